# SPDX-License-Identifier: Apache-2.0
"""The verbs that use a running cluster: run, exec, locality."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from nearmetal.cli.arguments import SLOT_HELP, add_spec, mpi_names, open_running
from nearmetal.core.errors import ExitCode, UsageError
from nearmetal.core.process import LocalRunner

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from nearmetal.cli.verbs import VerbParser
    from nearmetal.cli.view import View
    from nearmetal.job.locality import Meeting
    from nearmetal.job.run import JobResult


locality_options = add_spec


_RESULT = """\
After the job, `run` prints the number of messages per channel on standard error. The line
`error: ...` on standard error shows that nearmetal could not start the program."""


def run_options(parser: VerbParser) -> None:
    """Add the arguments of `run`."""
    from nearmetal.job.mpi import Library, MapBy, Provider

    add_spec(parser)
    parser.option(
        "--mpi NAME",
        f"MPI to use: {mpi_names()} (default: the first installed one that PROGRAM is linked to)",
    )
    parser.option("-n --ranks N", SLOT_HELP)
    parser.option(
        "--map-by",
        "slot: fill the slots of one node after another; node: give one rank to each node in turn (default: slot)",
        choices=[m.value for m in MapBy],
        default="slot",
    )
    parser.option(
        "--env K=V",
        "set an environment variable for the launcher and the ranks; may be repeated",
        action="append",
        default=[],
    )
    parser.option(
        "--channels LIST",
        "channels that nearmetal may use, comma-separated, of self, shm, segment and net, see "
        "`nearmetal --help`; net alone is for a comparison with the network (default: all)",
    )
    parser.option(
        "--provider",
        "nearmetal: messages go over nearmetal; stock: messages between nodes go over the MPI's own TCP, for a comparison (default: nearmetal)",
        choices=[p.value for p in Provider],
        default="nearmetal",
    )
    parser.option(
        "--heap",
        "put large allocations of the ranks into memory that all other ranks on the host may read, so that large messages between containers are copied once; see HEAP in fi_nearmetal(7)",
    )
    parser.option(
        "--fabric",
        "ofi: the MPI uses nearmetal through libfabric; ucx: through UCX 1.22, see FABRICS (default: ofi)",
        choices=[f.value for f in Library],
        default="ofi",
    )
    parser.option(
        "--collectives DIR",
        "use the rules for collectives that `tune collectives` wrote to DIR",
    )
    parser.option(
        "--timeout SECONDS",
        "end the job after SECONDS (default: no limit)",
        type=float,
    )
    parser.option(
        "program PROGRAM",
        "path of the MPI program. Containers see the files of this machine at the same paths, read-only, and virtual machines get a copy. If this machine has no such file, PROGRAM is an absolute path in the nodes",
        metavar="-- PROGRAM",
    )
    parser.option("args ARGS", "arguments of the program", nargs="*")
    parser.option(
        "--json",
        "print the result as one JSON document; the output of the program goes to standard error",
    )
    parser.add_argument_group("result", _RESULT)


def on_run(args: argparse.Namespace, view: View) -> int:
    """Run the job; returns its exit code. With --json its output goes to standard error."""
    from nearmetal.job.mpi import Library, MapBy, Provider
    from nearmetal.job.run import JobRequest, Output, run_job

    cluster, spec = open_running(args.spec)
    request = JobRequest(
        program=args.program,
        args=tuple(args.args),
        mpi=args.mpi,
        ranks=args.ranks,
        map_by=MapBy(args.map_by),
        env=parse_environment(args.env),
        channels=None if args.channels is None else tuple(args.channels.split(",")),
        provider=Provider(args.provider),
        heap=args.heap,
        fabric=Library(args.fabric),
        collectives=args.collectives,
        timeout_s=args.timeout,
    )
    stdin = None if sys.stdin is None or sys.stdin.isatty() else sys.stdin.buffer
    output = Output(stdin=stdin, stdout=sys.stderr.buffer if view.as_json else None)
    result = run_job(cluster.backend, spec, request, LocalRunner(), output)
    _show_end(result, view)
    return 124 if result.timed_out else result.exit_code


def parse_environment(pairs: list[str]) -> dict[str, str]:
    """Return --env K=V as a mapping; raises UsageError."""
    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise UsageError(f"--env {pair!r}: not of the form K=V", "--env OMP_NUM_THREADS=1")
        found[name] = value
    return found


def _show_end(result: JobResult, view: View) -> None:
    from nearmetal.job.stats import JobVerdict

    if result.timed_out:
        view.warn(f"the job was ended: it still ran after {result.seconds:.0f} s")
    elif result.exit_code != 0:
        lost = f": {result.lost}" if result.lost else ""
        view.warn(f"the job ended with exit code {result.exit_code}{lost}")
    if result.proof.verdict in (JobVerdict.ABSENT, JobVerdict.NO_TRAFFIC):
        view.warn(
            f"nearmetal did not carry this job: {result.proof.reason}",
            "is the program an MPI program of that MPI? NEARMETAL_LOG=info shows the choice",
        )
    elif result.proof.verdict is JobVerdict.PROVEN:
        view.note(f"carried by nearmetal: {result.proof.reason}")
    if view.as_json:
        data = asdict(result)
        data["proof"]["verdict"] = result.proof.verdict.value
        view.result(data)


def exec_options(parser: VerbParser) -> None:
    """Add the arguments of `exec`."""
    add_spec(parser)
    parser.option(
        "node NODE",
        "name of a node in the spec; or `launcher`, where `run` starts mpirun or mpiexec",
    )
    parser.option("program PROGRAM", "program in the node", metavar="-- PROGRAM")
    parser.option("args ARGS", "arguments of the program", nargs="*")
    parser.option(
        "--json", "print exit code and output of the program as one JSON document, at its end"
    )


def on_exec(args: argparse.Namespace, view: View) -> int:
    """Run it in the foreground; returns its exit code. With --json its output is captured."""
    cluster, spec = open_running(args.spec)
    names = [node.name for _, node in spec.nodes]
    if args.node not in (*names, "launcher"):
        raise UsageError(f"no node {args.node!r}", f"nodes: {', '.join(names)}, launcher")
    argv = [args.program, *args.args]
    if args.node == "launcher":
        command = cluster.backend.on_launcher(argv, workdir=Path.cwd())
    else:
        command = cluster.backend.on_node(args.node, argv, workdir=Path.cwd())
    runner = LocalRunner()
    if view.as_json:
        done = runner.run(command, timeout_s=3600)
        view.result(
            {
                "node": args.node,
                "exit_code": done.code,
                "stdout": done.text,
                "stderr": done.stderr.decode("utf-8", "replace"),
            }
        )
    else:
        done = runner.attach(command, stdin=sys.stdin.buffer, foreground=True)
    return done.code if done.code >= 0 else 128 - done.code


def on_locality(args: argparse.Namespace, view: View) -> int:
    """Print the matrix of channels, then every pair with its reason."""
    from nearmetal.job.locality import measure_locality

    cluster, spec = open_running(args.spec)
    meetings = measure_locality(cluster.backend, spec, LocalRunner())
    names = [node.name for _, node in spec.nodes]
    channel = {(m.node, m.peer): m.channel for m in meetings}
    view.table(("", *names), [[a, *(channel[a, b] for b in names)] for a in names])
    view.result({"cluster": cluster.name, "pairs": [asdict(m) for m in meetings]}, [""])
    columns = locality_columns(meetings)
    view.table(list(columns), list(zip(*columns.values(), strict=True)))
    return ExitCode.DONE


def locality_columns(meetings: Sequence[Meeting]) -> dict[str, list[str]]:
    """Return the columns of the table of pairs; that of GPUs only if a node has one."""
    columns = {
        "from": [m.node for m in meetings],
        "to": [m.peer for m in meetings],
        "relation": [m.relation for m in meetings],
        "channel": [m.channel for m in meetings],
        "integrity": [m.integrity for m in meetings],
        "direct copies": [_copies(m) for m in meetings],
    }
    if any(m.device_reason for m in meetings):
        columns["memory of GPUs"] = [_device(m) for m in meetings]
    return columns | {"reason": [m.reason for m in meetings]}


def _device(meeting: Meeting) -> str:
    return meeting.device_reason or f"no GPU in node {meeting.node}"


def _copies(meeting: Meeting) -> str:
    if meeting.direct_copies:
        return "yes"
    return f"no: {meeting.copy_reason}" if meeting.copy_reason else "-"
