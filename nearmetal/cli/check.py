# SPDX-License-Identifier: Apache-2.0
"""The verbs of health: check run, collect, analyse and diff."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from nearmetal.core.errors import BackendError, ExitCode, StateError, UsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from nearmetal.check.collect import Gathered
    from nearmetal.check.collection import Collection
    from nearmetal.check.model import Analysis, CheckFinding, Gravity
    from nearmetal.check.performance.checks import FoundOnNodes
    from nearmetal.check.performance.classes import NodeClasses
    from nearmetal.check.performance.findings import JudgedRun
    from nearmetal.check.performance.line_verdict import MeasuredLine
    from nearmetal.check.performance.run import PerformanceRun
    from nearmetal.check.snapshot import Snapshot
    from nearmetal.cli.verbs import VerbParser
    from nearmetal.cli.view import View
    from nearmetal.cluster.apply import Cluster
    from nearmetal.cluster.backend import Backend
    from nearmetal.cluster.model import ClusterSpec
    from nearmetal.core.process import Command

_GRADES = ["fault", "warning", "note"]
_QUICK_S = 20.0
_FILES, _FILES_OF_NODE = 64, 9
"""Files that are open, at most: those of nearmetal, and those for each node that is asked."""

_LEAST_S = 2
"""Of --timeout: a node must be entered, and its Python started, in that time."""

_TARGETS = """\
Without SPEC, --hosts and --slurm, the node is this machine. The agent is one Python file that is
sent to each node and reads only; nodes need Python 3.6 or later, and nothing of nearmetal."""


def timeout(text: str) -> float:
    """Return the argument of --timeout; raises ArgumentTypeError."""
    from nearmetal.cli.arguments import seconds

    return seconds(text, _LEAST_S)


def _add_targets(parser: VerbParser) -> None:
    parser.add_argument_group("nodes", _TARGETS)
    add_nodes(parser, "; its nodes are checked")
    parser.option("--slurm", "the nodes of the Slurm job in which this runs, each by a step of it")
    parser.option(
        "--root", "enter the machines of a cluster as root, who sees more (default: user of jobs)"
    )
    parser.option(
        "--at-once N", "number of nodes that are asked at the same time (default: 16)", default=16
    )
    parser.option(
        "--timeout SECONDS",
        "time after which a node is silent (default: 60)",
        default=60.0,
        type=timeout,
    )


def add_nodes(parser: VerbParser, optional: str) -> None:
    """Add the arguments of a cluster or of hosts. `optional`: of SPEC, see `add_spec`."""
    from nearmetal.cli.arguments import add_spec

    add_spec(parser, optional=optional)
    parser.option("--hosts NODES", "hosts to reach by ssh, for example compute-[01-16],login1")
    parser.option("--user NAME", "user of the logins with --hosts (default: that of ssh)")


def add_judging(parser: VerbParser, fail_at: str = "fault") -> None:
    """Add the arguments of a judgement. `fail_at`: the default of --fail-at."""
    from nearmetal.cli.arguments import report_file

    parser.option(
        "--profile PROFILE",
        "health_base, health_extended, hpc_platform, simulation, or the path of a YAML file "
        "(default: health_extended)",
    )
    parser.option(
        "--fail-at",
        f"least severity of a finding that makes the check fail (default: {fail_at})",
        choices=_GRADES,
        default=fail_at,
    )
    parser.option("--junit FILE", "write a JUnit report to FILE", type=report_file)
    text = "write FILE for the textfile collector of node_exporter"
    parser.option("--prometheus FILE", text, type=report_file)


def add_report(parser: VerbParser) -> None:
    """Add the argument of the page."""
    from nearmetal.cli.arguments import report_file

    text = "write a page with heat maps, classes and evidence to FILE (HTML)"
    parser.option("--report FILE", text, type=report_file)


def run_options(parser: VerbParser) -> None:
    """Add the arguments of `check run`."""
    _add_targets(parser)
    add_judging(parser)
    parser.option("--output DIR", "keep the collection of snapshots in the new directory DIR")
    parser.option("--list", "show the checks of the profile, and do nothing else")
    parser.option(
        "--drain",
        "for HealthCheckProgram of Slurm: check this machine quickly by health_base, print only "
        "faults, and drain its node with the words of the first fault",
    )


def on_run(args: argparse.Namespace, view: View) -> int:
    """Collect and analyse; exit code 4 if a finding is as grave as --fail-at."""
    if args.list:
        return _list(args, view)
    if args.drain:
        return _drain(args, view)
    refuse_reports(args)
    if args.output is not None:
        refuse_output(args.output)
    gathered = _gather(args, view)
    if args.output is not None:
        gathered.write(args.output)
    analysis = _analysis(args, gathered.snapshots(), gathered.silent)
    return show_analysis(args, view, analysis, gathered.taken)


def _list(args: argparse.Namespace, view: View) -> int:
    from nearmetal.check.families import CHECKS
    from nearmetal.check.profile import load_profile

    profile = load_profile(args.profile or "health_extended")
    checks = [CHECKS[name] for name in profile.checks]
    view.table(
        ("check", "severity", "healthy if", "source"),
        [[c.name, c.grade.word, c.title, c.source or "the expectation"] for c in checks],
    )
    view.result(
        {
            "profile": profile.name,
            "checks": [
                {"check": c.name, "severity": c.grade.word, "title": c.title, "source": c.source}
                for c in checks
            ],
        }
    )
    return ExitCode.DONE


def _drain(args: argparse.Namespace, view: View) -> int:
    from concurrent.futures import ThreadPoolExecutor

    if named_hosts(args) or args.spec is not None or args.slurm:
        raise UsageError("--drain is for this machine", "leave out SPEC, --hosts and --slurm")
    args.profile = args.profile or "health_base"
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(_here, min(args.timeout, _QUICK_S))
        # To load the analysis takes as long as half of the agent's work.
        from nearmetal.check import analyse, profile  # noqa: F401
        from nearmetal.check.model import Gravity

        gathered = asked.result()
    analysis = _analysis(args, gathered.snapshots(), gathered.silent)
    faults = [f for f in analysis.findings if f.grade is Gravity.FAULT]
    view.result(
        {"faults": [f"{f.key}: {f.value}" for f in faults]},
        [f"{f.key}: {f.reason}: {f.value}, expected {f.expected}" for f in faults],
    )
    if faults:
        _drain_node(faults[0])
    return ExitCode.CHECKS_FAILED if faults else ExitCode.DONE


def _drain_node(fault: CheckFinding) -> None:
    from nearmetal.core.process import LocalRunner
    from nearmetal.slurm.queue import drain, this_node

    drain(LocalRunner(), this_node(), f"{fault.key}: {fault.value}")


def _here(timeout_s: float) -> Gathered:
    from nearmetal.check.collect import collect, here
    from nearmetal.core.process import LocalRunner
    from nearmetal.core.progress import Silent

    targets = here(os.uname().nodename, quick=True)
    return collect(targets, LocalRunner(), timeout_s=timeout_s, progress=Silent())


def collect_options(parser: VerbParser) -> None:
    """Add the arguments of `check collect`."""
    _add_targets(parser)
    parser.option("--output DIR", "new directory of the snapshots; required", required=True)


def on_collect(args: argparse.Namespace, view: View) -> int:
    """Write a collection; exit code 4 if nodes were silent."""
    refuse_output(args.output)
    gathered = _gather(args, view)
    gathered.write(args.output)
    silent = {name: why.partition("|") for name, why in gathered.silent.items()}
    for name, (why, _, remedy) in silent.items():
        view.warn(f"node {name}: {why}", remedy)
    view.result(
        {
            "directory": str(args.output),
            "nodes": list(gathered.contents),
            "silent": {name: why for name, (why, _, _) in silent.items()},
        },
        [f"{len(gathered.contents)} snapshots in {args.output}, {len(silent)} silent nodes"],
    )
    return ExitCode.CHECKS_FAILED if silent else ExitCode.DONE


def refuse_output(output: Path) -> None:
    """Raise UsageError if the directory of a collection exists, or cannot be made."""
    if os.path.lexists(output):
        raise UsageError(f"{output} exists", "a collection is written once: give another name")
    if not output.parent.is_dir():
        raise UsageError(f"{output.parent} is no directory", f"mkdir -p {output.parent}")
    if not os.access(output.parent, os.W_OK | os.X_OK):
        raise UsageError(f"no new directory can be made in {output.parent}", "give another one")


def refuse_reports(args: argparse.Namespace) -> None:
    """Raise UsageError if a report cannot be written at the end, before anything is collected.

    The directory of a collection, which is made on the way, may have it.
    """
    made = getattr(args, "output", None)
    for option in ("--junit", "--prometheus", "--report"):
        file: Path | None = getattr(args, option[2:], None)
        if file is None or (made is not None and file.parent == made.resolve()):
            continue
        if not file.parent.is_dir():
            raise UsageError(
                f"{option} {file}: {file.parent} is no directory", f"mkdir -p {file.parent}"
            )
        if not os.access(file.parent, os.W_OK | os.X_OK):
            raise UsageError(f"{option} {file}: no file can be made there", "give another path")


def _gather(args: argparse.Namespace, view: View) -> Gathered:
    from nearmetal.check.collect import collect
    from nearmetal.core.process import LocalRunner

    at_once = int(args.at_once)
    if at_once < 1:
        raise UsageError(f"--at-once {at_once}: more than 0")
    targets, silent, cluster = _targets(args)
    at_once = min(at_once, len(targets))
    _refuse_files(at_once)
    with view.steps("check: collect") as steps:
        gathered = collect(
            targets, LocalRunner(), at_once=at_once, timeout_s=args.timeout, progress=steps
        )
    gathered.silent |= silent
    if cluster is not None:
        _add_facts(gathered, *cluster, view)
    return gathered


def _add_facts(gathered: Gathered, backend: Backend, spec: ClusterSpec, view: View) -> None:
    """Add what the nodes of a cluster cannot see: settings of machines, and how nodes meet."""
    from nearmetal.check.meetings import meetings_of
    from nearmetal.check.settings import settings_of
    from nearmetal.core.process import LocalRunner

    # Only machines of vSphere have settings that they cannot see.
    settings, why = settings_of(backend) if spec.backend == "vsphere" else ({}, "")
    gathered.add_settings(settings)
    if why:
        view.note(f"the settings of the machines are not known: {why}")
    meetings, why = meetings_of(backend, spec, LocalRunner(), gathered.contents)
    gathered.add_meetings(meetings)
    if why:
        view.note(f"how the nodes meet is not known: {why}")


def _refuse_files(at_once: int) -> None:
    """Raise UsageError if the pipes to so many nodes are more than this process may open."""
    import resource

    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    least = _FILES + at_once * _FILES_OF_NODE
    if most not in (resource.RLIM_INFINITY, -1) and most < least:
        raise UsageError(
            f"--at-once {at_once}: this process may open only {most} files",
            f"ulimit -n {least}, or a smaller number",
        )


def _targets(
    args: argparse.Namespace,
) -> tuple[dict[str, Command], dict[str, str], tuple[Backend, ClusterSpec] | None]:
    """Return the commands for the nodes, and the nodes that cannot be entered, with the reason.

    The last value is the cluster, if there is one.
    """
    from nearmetal.check.collect import here, over_ssh

    if (args.spec is not None) + (args.hosts is not None) + args.slurm > 1:
        raise UsageError("SPEC, --hosts and --slurm contradict each other", "give one of them")
    hosts = named_hosts(args)
    if args.slurm:
        return _of_job(args.timeout), {}, None
    if hosts:
        return over_ssh(hosts, args.user or ""), {}, None
    if args.spec is None:
        return here(os.uname().nodename), {}, None
    from nearmetal.cli.arguments import open_target

    # A cluster with a dead node is not up as its spec says, and is just what a check is for.
    cluster, spec = open_target(args.spec)
    return *of_cluster(cluster, spec, root=args.root), (cluster.backend, spec)


def named_hosts(args: argparse.Namespace) -> list[str]:
    """Return the hosts of --hosts; none without it."""
    from nearmetal.check.collection import MAX_NODES
    from nearmetal.check.node_pattern import expand

    if args.spec is not None and args.hosts is not None:
        raise UsageError("SPEC and --hosts contradict each other", "give one of them")
    if args.user is not None and args.hosts is None:
        raise UsageError("--user is for the logins of --hosts", "give --hosts, or leave out --user")
    try:
        return [] if args.hosts is None else expand(args.hosts, MAX_NODES)
    except ValueError as error:
        why, _, hint = str(error).partition("|")
        raise UsageError(f"--hosts {args.hosts[:60]!r} {why}", hint) from error


def _of_job(timeout_s: float) -> dict[str, Command]:
    """Return the commands for the nodes of this job of Slurm."""
    from nearmetal.check.collect import over_srun
    from nearmetal.core.process import LocalRunner
    from nearmetal.slurm.queue import expand, this_job

    job, nodes = this_job()
    if not job:
        raise UsageError("--slurm: this is no job of Slurm", "salloc -N 2 nearmetal check --slurm")
    # Should nearmetal be killed, Slurm ends the steps.
    minutes = int(timeout_s // 60) + 2
    return over_srun(expand(LocalRunner(), nodes), job, minutes)


def of_cluster(
    cluster: Cluster, spec: ClusterSpec, *, root: bool = False
) -> tuple[dict[str, Command], dict[str, str]]:
    """Return the commands for the nodes of a cluster, and those that cannot be entered, and why."""
    from nearmetal.check.collect import agent_argv

    commands: dict[str, Command] = {}
    silent: dict[str, str] = {}
    for _, node in spec.nodes:
        try:
            commands[node.name] = cluster.backend.on_node(node.name, agent_argv(), root=root)
        except (BackendError, StateError) as error:
            silent[node.name] = f"{error.message.replace('|', '/')}|{error.hint}"
    if not commands:
        raise StateError(
            f"no node of cluster {cluster.name} can be entered: "
            f"{next(iter(silent.values())).partition('|')[0]}",
            "run `nearmetal up SPEC`",
        )
    return commands, silent


def analyse_options(parser: VerbParser) -> None:
    """Add the arguments of `check analyse`."""
    parser.option(
        "paths PATH",
        "directory of `check collect`, or a snapshot; several are one cluster",
        nargs="*",
        type=Path,
    )
    parser.option(
        "--nhc FILE",
        "add the failures of LBNL Node Health Check: its output on all nodes, each line with the "
        "name of the node, as of `pdsh -a nhc`",
        type=Path,
    )
    add_judging(parser)
    add_report(parser)


def on_analyse(args: argparse.Namespace, view: View) -> int:
    """Judge collections; exit code 4 if a finding is as grave as --fail-at."""
    from nearmetal.check.collection import Collection

    refuse_reports(args)
    if not args.paths and args.nhc is None:
        raise UsageError("nothing to judge", "give a directory of `check collect`, or --nhc FILE")
    reported = [] if args.nhc is None else _reported(args.nhc)
    sources = _sources(args.paths)
    silent: dict[str, str] = {}
    for source in sources:
        if isinstance(source, Collection):
            silent |= source.silent
    run = _run(sources)
    if run is None and args.report is not None:
        raise UsageError(
            "--report: no values of `check performance`", "give its directory, see --output"
        )
    performance, known, lines = None, None, []
    if run is not None:
        from nearmetal.check.performance.classes import classes
        from nearmetal.check.performance.findings import judge_run
        from nearmetal.check.performance.line_verdict import measured_lines

        known = classes(_snapshots(sources), {}).in_run(run.hosts, run.software)
        lines = measured_lines(run, _snapshots(sources), known)
        performance = judge_run(run, known, lines)
    analysis = _analysis(args, _snapshots(sources), silent, performance, reported)
    if run is not None and known is not None:
        write_page(args.report, (run, known, lines), analysis, _snapshots(sources))
    taken = [source.taken for source in sources] or [args.nhc.stat().st_mtime]
    return show_analysis(args, view, analysis, max(taken))


def write_page(
    file: Path | None,
    judged: tuple[PerformanceRun, NodeClasses, Sequence[MeasuredLine]],
    analysis: Analysis,
    snapshots: Iterable[Snapshot],
) -> None:
    """Write the page of a run, its classes and its lines, if one is wanted."""
    if file is None:
        return
    import shlex
    import sys

    from nearmetal.core.files import replace_file
    from nearmetal.report.check_page import CheckRun, environment, render_check

    run, known, lines = judged
    command = shlex.join(["nearmetal", *sys.argv[1:]])
    page = render_check(CheckRun(run, known, analysis, lines, environment(snapshots), command))
    replace_file(file, page, mode=0o644)


def _reported(path: Path) -> list[FoundOnNodes]:
    """Return the failures of an output of NHC; raises LogError."""
    from nearmetal.check.nhc import MAX_BYTES, failures
    from nearmetal.core.errors import LogError
    from nearmetal.core.files import read_named

    try:
        content = read_named(path, MAX_BYTES)
    except OSError as error:
        raise LogError(f"cannot read {path}: {error.strerror}", "give the output of NHC") from error
    return list(failures(content.decode("utf-8", "replace"), str(path)))


def _sources(paths: Iterable[Path]) -> list[Collection | Snapshot]:
    from nearmetal.check.collection import open_collection

    return [open_collection(path) for path in paths]


def _snapshots(sources: Iterable[Collection | Snapshot]) -> Iterator[Snapshot]:
    """Read one snapshot after the other."""
    from nearmetal.check.collection import Collection

    for source in sources:
        if isinstance(source, Collection):
            yield from source.snapshots()
        else:
            yield source


def _run(sources: Iterable[Collection | Snapshot]) -> PerformanceRun | None:
    """Return the run of `check performance` that one of the collections has."""
    from nearmetal.check.collection import Collection

    having = [source for source in sources if isinstance(source, Collection) and source.has_run]
    if len(having) > 1:
        raise UsageError(
            f"{having[1].folder}: a second run of `check performance`", "give one of them"
        )
    return having[0].performance() if having else None


def _analysis(
    args: argparse.Namespace,
    snapshots: Iterable[Snapshot],
    silent: Mapping[str, str],
    performance: JudgedRun | None = None,
    reported: Iterable[FoundOnNodes] = (),
) -> Analysis:
    from datetime import UTC, datetime

    from nearmetal.check.analyse import analyse
    from nearmetal.check.profile import load_profile

    profile = load_profile(args.profile or "health_extended")
    today = datetime.now(UTC).date()
    return analyse(
        snapshots, profile, silent=silent, today=today, performance=performance, reported=reported
    )


def show_analysis(args: argparse.Namespace, view: View, analysis: Analysis, taken: float) -> int:
    """Print and write an analysis as the arguments say; return the exit code."""
    from nearmetal.check import outputs
    from nearmetal.check.model import Gravity
    from nearmetal.core.exposition import metrics_text
    from nearmetal.core.files import replace_file

    least: Gravity = Gravity[args.fail_at.upper()]
    if args.junit is not None:
        replace_file(args.junit, outputs.junit(analysis, least), mode=0o644)
    if args.prometheus is not None:
        text = metrics_text(outputs.metrics(analysis, taken))
        replace_file(args.prometheus, text, mode=0o644)
    view.result(outputs.data(analysis), list(outputs.lines(analysis)))
    return ExitCode.CHECKS_FAILED if analysis.fails(least) else ExitCode.DONE


def diff_options(parser: VerbParser) -> None:
    """Add the arguments of `check diff`."""
    text = "directory of `check collect`, or a snapshot"
    parser.option("before BEFORE", text, type=Path)
    parser.option("after AFTER", f"{text}, taken later", type=Path)


def on_diff(args: argparse.Namespace, view: View) -> int:
    """Print what changed; exit code 4 if an error counter grew."""
    from dataclasses import asdict

    from nearmetal.check.diff import compare
    from nearmetal.host.hosts_file import fold

    before, after = _sources([args.before]), _sources([args.after])
    changes = compare(_snapshots(before), _snapshots(after))
    view.table(
        ("place", "before", "after", "nodes"),
        [
            [f"{c.place}{' (errors)' if c.grown else ''}", c.before, c.after, fold(list(c.nodes))]
            for c in changes
        ],
    )
    closing = [] if changes else ["nothing changed"]
    view.result({"changes": [asdict(change) for change in changes]}, closing)
    return ExitCode.CHECKS_FAILED if any(c.grown for c in changes) else ExitCode.DONE
