# SPDX-License-Identifier: Apache-2.0
"""`nearmetal run`: start an MPI program in a cluster with the MPI's own launcher."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

from nearmetal.cli.target import add_spec, open_running
from nearmetal.cli.verbs import Subparsers, add_verb
from nearmetal.core.errors import UsageError
from nearmetal.core.process import LocalRunner
from nearmetal.job.mpi import MapBy, Mpi, Provider
from nearmetal.job.run import JobRequest, JobResult, Output, run_job
from nearmetal.job.stats import JobVerdict

if TYPE_CHECKING:
    import argparse

    from nearmetal.cli.view import View


def register(subparsers: Subparsers) -> None:
    """Add the verb."""
    parser = add_verb(
        subparsers,
        "run",
        start,
        "run an MPI program in a cluster",
        "nearmetal run examples/two-nodes.yaml --mpi mpich5 -n 2 -- ./hello",
    )
    add_spec(parser)
    names = ", ".join(mpi.value for mpi in Mpi)
    parser.add_argument(
        "--mpi",
        metavar="NAME",
        help=f"MPI to use: {names} (default: the first installed MPI that PROGRAM is linked to)",
    )
    parser.add_argument(
        "-n",
        dest="ranks",
        metavar="N",
        type=int,
        help="number of ranks (default: one per slot of the cluster)",
    )
    parser.add_argument(
        "--map-by",
        choices=[m.value for m in MapBy],
        default="slot",
        help="slot: fill the slots of a node before the next node; node: place one rank on each node in turn (default: slot)",
    )
    parser.add_argument(
        "--env",
        metavar="K=V",
        action="append",
        default=[],
        help="set an environment variable for the launcher and the ranks; may be repeated",
    )
    parser.add_argument(
        "--channels",
        metavar="LIST",
        help="channels that the provider may use, comma-separated: self (within a process), "
        "shm (shared memory of one kernel), segment (memory that virtual machines of one host "
        "share), net (network); net alone gives the network-only baseline (default: all)",
    )
    parser.add_argument(
        "--provider",
        choices=[p.value for p in Provider],
        default="nearmetal",
        help="nearmetal: the provider of this project; stock: the MPI's own stack over TCP (default: nearmetal)",
    )
    parser.add_argument(
        "--timeout",
        metavar="SECONDS",
        type=float,
        help="end the job after SECONDS, with exit code 124 (default: no limit)",
    )
    parser.add_argument("program", metavar="PROGRAM", help="path of the MPI program")
    parser.add_argument(
        "args", metavar="ARGS", nargs="*", help="arguments of the program, after `--`"
    )


def parse_environment(pairs: list[str]) -> dict[str, str]:
    """Return --env K=V as a mapping; raises UsageError."""
    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise UsageError(f"--env {pair!r}: not of the form K=V", "--env OMP_NUM_THREADS=1")
        found[name] = value
    return found


def start(args: argparse.Namespace, view: View) -> int:
    """Run the job; returns its exit code. With --json its output goes to standard error."""
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
        timeout_s=args.timeout,
    )
    stdin = None if sys.stdin is None or sys.stdin.isatty() else sys.stdin.buffer
    output = Output(stdin=stdin, stdout=sys.stderr.buffer if view.as_json else None)
    result = run_job(cluster.backend, spec, request, LocalRunner(), output)
    _tell(result, view)
    return 124 if result.timed_out else result.exit_code


def _tell(result: JobResult, view: View) -> None:
    if result.timed_out:
        view.warn(f"the job was ended: no end after {result.seconds:.0f} s")
    elif result.exit_code != 0:
        view.warn(f"the job ended with exit code {result.exit_code}")
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
