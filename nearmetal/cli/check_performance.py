# SPDX-License-Identifier: Apache-2.0
"""The verb check performance: measures a cluster and judges what it measured."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from nearmetal.cli.arguments import split_names
from nearmetal.cli.check import (
    add_judging,
    add_nodes,
    add_report,
    named_hosts,
    of_cluster,
    refuse_output,
    refuse_reports,
    show_analysis,
    timeout,
    write_page,
)
from nearmetal.core.errors import UsageError

if TYPE_CHECKING:
    import argparse

    from nearmetal.cli.verbs import VerbParser
    from nearmetal.cli.view import View


def performance_options(parser: VerbParser) -> None:
    """Add the arguments of `check performance`."""
    from nearmetal.check.performance.run import BY_HPL, BY_MPI, BY_RDMA, LIMIT_S, MEASURED, NOISE

    add_nodes(parser, "; or give --hosts")
    names, noise, rdma, more = map(", ".join, (MEASURED, NOISE, BY_RDMA, (*BY_MPI, *BY_HPL)))
    parser.option(
        "--measure LIST",
        f"what to measure, comma-separated, of {names} (default: all of these), of neighbours "
        f"{noise}, by perftest {rdma}, and by MPI jobs {more}",
        default=",".join(MEASURED),
    )
    parser.option(
        "--timeout SECONDS",
        f"time after which a node that hangs in one measurement is given up (default: {LIMIT_S:g})",
        default=LIMIT_S,
        type=timeout,
    )
    add_judging(parser, "warning")
    add_report(parser)
    parser.option(
        "--output DIR",
        "keep the snapshots and the measured values in the new directory DIR, for `check analyse`",
    )


def on_performance(args: argparse.Namespace, view: View) -> int:
    """Measure and judge; exit code 4 if a finding is as grave as --fail-at."""
    from datetime import UTC, datetime

    from nearmetal.check.analyse import analyse
    from nearmetal.check.collect import TIMEOUT_S, collect, over_ssh
    from nearmetal.check.families.base import ANSWER
    from nearmetal.check.measure import measure_cluster, measure_hosts
    from nearmetal.check.performance.classes import classes
    from nearmetal.check.performance.findings import judge_run
    from nearmetal.check.performance.line_verdict import measured_lines
    from nearmetal.check.performance.run import PERFORMANCE, run_text
    from nearmetal.check.profile import load_profile
    from nearmetal.check.ssh_hosts import SshHosts
    from nearmetal.cli.arguments import open_target
    from nearmetal.core.process import LocalRunner

    quantities = _quantities(args)
    profile = load_profile(args.profile or "health_extended")
    refuse_reports(args)
    if args.output is not None:
        refuse_output(args.output)
    runner = LocalRunner()
    hosts = SshHosts(named_hosts(args), args.user or "", runner)
    silent: dict[str, str] = {}
    if hosts.names:
        commands = over_ssh(hosts.names, hosts.user)
        _refuse_number(len(hosts.names))
    elif args.spec is None:
        raise UsageError("no nodes to measure", "give SPEC or --hosts")
    else:
        cluster, spec = open_target(args.spec)
        _refuse_number(len(spec.nodes))
        commands, silent = of_cluster(cluster, spec)
    with view.steps("check: collect", lines=False) as steps:
        patience = max(TIMEOUT_S, args.timeout)
        gathered = collect(commands, runner, timeout_s=patience, progress=steps)
    gathered.silent |= silent
    snapshots = gathered.snapshots()
    known = classes(snapshots, {})
    with view.steps("check: measure") as steps:
        if hosts.names:
            run = measure_hosts(hosts, quantities, known, limit_s=args.timeout, progress=steps)
        else:
            run = measure_cluster(
                cluster.backend,
                spec,
                runner,
                quantities,
                known,
                limit_s=args.timeout,
                progress=steps,
            )
    if args.output is not None:
        gathered.write(args.output, {PERFORMANCE: run_text(run)})
    known = known.in_run(run.hosts, run.software)
    lines = measured_lines(run, snapshots, known)
    analysis = analyse(
        snapshots,
        replace(profile, checks=(ANSWER.name,), not_run={}),
        silent=gathered.silent,
        today=datetime.now(UTC).date(),
        performance=judge_run(run, known, lines),
    )
    write_page(args.report, (run, known, lines), analysis, snapshots)
    return show_analysis(args, view, analysis, run.taken)


def _quantities(args: argparse.Namespace) -> list[str]:
    """Return the quantities of --measure; raises UsageError, also for those that hosts lack."""
    from nearmetal.check.performance.run import BY_HPL, BY_MPI, BY_RDMA, MEASURED, NOISE

    without_mpi = (*MEASURED, *NOISE, *BY_RDMA)
    quantities = split_names(args.measure, (*without_mpi, *BY_MPI, *BY_HPL), "measurement")
    if args.hosts is not None and not set(without_mpi).issuperset(quantities):
        raise UsageError(
            f"--measure {args.measure}: hosts have no MPI job",
            f"use {', '.join(without_mpi)}, or the spec of a cluster",
        )
    return quantities


def _refuse_number(count: int) -> None:
    """Raise UsageError for a cluster that has no majority, or more nodes than a run may have."""
    from nearmetal.check.performance.run import MAX_NODES
    from nearmetal.check.performance.screen import LEAST_NODES, LEAST_PAIRED

    if count < LEAST_NODES:
        raise UsageError(
            f"a cluster of {count} nodes has no majority to compare with",
            f"use one of at least {LEAST_NODES} nodes, {LEAST_PAIRED} to compare pairs",
        )
    if count > MAX_NODES:
        raise UsageError(f"{count} nodes are more than {MAX_NODES}", "measure them in groups")
