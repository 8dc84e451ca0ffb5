# SPDX-License-Identifier: Apache-2.0
"""The verb that measures a cluster: bench."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from nearmetal.cli.arguments import (
    ARM_HELP,
    BLOCKS_HELP,
    SLOT_HELP,
    TIME_HELP,
    add_spec,
    blocks_number,
    choose_mpis,
    mpi_names,
    open_running,
    run_directory,
    split_names,
)
from nearmetal.core.errors import ExitCode, UsageError
from nearmetal.core.process import LocalRunner

if TYPE_CHECKING:
    import argparse

    from nearmetal.cli.verbs import VerbParser
    from nearmetal.cli.view import View
    from nearmetal.evidence import NodePair


def bench_options(parser: VerbParser) -> None:
    """Add the arguments of `bench`."""
    from nearmetal.study.runner.suite import ARMS, GPU_ARMS, SUITES

    add_spec(parser)
    blocks = ", ".join(f"{s.blocks} for {s.name}" for s in SUITES.values())
    suites = "; ".join(f"{s.name}: {s.summary}" for s in SUITES.values())
    parser.option(
        "--suite",
        f"benchmarks to run. {suites} (default: quick)",
        choices=list(SUITES),
        default="quick",
    )
    parser.option(
        "--mpi LIST", f"MPIs, comma-separated, of {mpi_names()} (default: all that are installed)"
    )
    arms = "; ".join(f"{a.name}: {a.title}" for a in ARMS.values())
    gpu = "; ".join(f"{a.name}: {a.title}" for a in GPU_ARMS.values())
    parser.option(
        "--arms LIST",
        f"arms, comma-separated (default: all); {ARM_HELP}, here a way to carry messages: {arms}; "
        f"with --suite gpu: {gpu}",
    )
    parser.option(
        "--blocks N",
        f"{BLOCKS_HELP} (default: {blocks})",
        type=blocks_number,
    )
    parser.option("-n --ranks N", SLOT_HELP)
    parser.option(
        "--output DIR",
        f"new directory for the results (default: results/TIME-CLUSTER; {TIME_HELP})",
    )


def on_bench(args: argparse.Namespace, view: View) -> int:
    """Run the suite; exit code 1 if a launch failed."""
    from nearmetal.study.runner.collect import Collector, find_pairs, first_cores, unreachable
    from nearmetal.study.runner.suite import GPU_ARMS, SUITES, schedule

    suite = SUITES[args.suite]
    blocks = args.blocks or suite.blocks
    chosen = args.arms or ",".join(suite.arms)
    arms = [suite.arms[name] for name in split_names(chosen, suite.arms, "arm")]
    mpis = choose_mpis(args.mpi) if suite.programs else []
    directory = run_directory(args.output, Path(args.spec).stem)
    cluster, spec = open_running(args.spec)
    pairs: tuple[NodePair, ...] = ()
    if suite.arms is GPU_ARMS:
        from nearmetal.core.resources import built_program
        from nearmetal.study.runner.two_nodes import require_gpu

        program = built_program(suite.fabric[0].file)
        view.note(f"GPU: {require_gpu(cluster.backend, spec, LocalRunner(), program)}")
        pairs = find_pairs(cluster.backend, spec, LocalRunner())
        for arm, why in [(a, unreachable(a, spec, pairs)) for a in arms]:
            if why and args.arms:
                raise UsageError(f"--arms {arm.name}: {why}", "leave it out")
            if why:
                view.note(f"arm {arm.name} is left out: {why}")
                arms.remove(arm)
    planned = schedule(suite, mpis, arms, blocks)
    if suite.limits is not None and not first_cores(cluster.backend):
        planned = [launch for launch in planned if launch.arm is not None]
        view.note("no limits of the memory: the cores of the nodes are not known here")
    with view.steps(f"bench {cluster.name}") as steps:
        collector = Collector(
            cluster.backend,
            spec,
            LocalRunner(),
            directory,
            suite.name,
            blocks,
            args.ranks or spec.slots,
            steps,
            pairs,
        )
        manifest = collector.run(planned)
    failed = [launch for launch in manifest.launches if not launch.good]
    for launch in failed:
        how = "it did not end in time" if launch.timed_out else f"exit code {launch.exit_code}"
        view.warn(
            f"{launch.mpi} {launch.arm} {launch.program}: {how}",
            f"read {directory / launch.stderr}",
        )
    for skipped in manifest.skipped:
        view.warn(f"not run: {skipped}")
    total = len(manifest.launches)
    view.result(
        {
            "directory": str(directory),
            "launches": total,
            "failed": len(failed),
            "failed_launches": [launch.number for launch in failed],
            "skipped": list(manifest.skipped),
        },
        [
            f"{total - len(failed)} of {total} launches succeeded: {directory}",
            f"now `nearmetal report {directory}`",
        ],
    )
    return ExitCode.ERROR if failed or manifest.skipped else ExitCode.DONE
