# SPDX-License-Identifier: Apache-2.0
"""The verbs that measure: bench measures a cluster, tune measures this machine."""

from __future__ import annotations

import os
from datetime import UTC, datetime
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
from nearmetal.core.errors import ExitCode, LaunchError, UsageError
from nearmetal.core.process import LocalRunner

if TYPE_CHECKING:
    import argparse

    from nearmetal.cli.verbs import VerbParser
    from nearmetal.cli.view import View
    from nearmetal.evidence import NodePair

_ROUNDS, _ROUNDS_MAX = 3, 100
_BUSY = 1.0


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


def tune_options(parser: VerbParser) -> None:
    """Add the arguments of `tune`."""
    parser.option(
        "--show",
        "do not measure; print the file that the provider uses and its rates, or the reason why the provider refuses it",
    )
    parser.option(
        "--output FILE",
        "file to write, or to read with --show (default: $NEARMETAL_TUNE_FILE, else /etc/nearmetal/tuning as root and ~/.config/nearmetal/tuning otherwise)",
    )
    parser.option(
        "--rounds N",
        f"number of rounds, 1 to {_ROUNDS_MAX}; the two measured cores may share a cache in one round and not in another, so that more rounds measure both cases (default: {_ROUNDS})",
        default=_ROUNDS,
    )


def on_tune(args: argparse.Namespace, view: View) -> int:
    """Measure and write the rates, or show the active rates."""
    if not 1 <= args.rounds <= _ROUNDS_MAX:
        raise UsageError(f"--rounds {args.rounds}: out of range", f"use 1 to {_ROUNDS_MAX}")
    return _show_rates(args.output, view) if args.show else _tune(args, view)


def _show_rates(path: Path | None, view: View) -> int:
    from nearmetal.core.resources import tool
    from nearmetal.study.runner import tune

    active = tune.in_force(LocalRunner(), tool("nearmetal-info"), path and path.absolute())
    view.result({"tuning": active}, [f"{active['path'] or 'no file'}: {active['reason']}"])
    if active["rates"]:
        view.table(
            ("size up to", "load", "protocol", "MB/s"),
            [[r["class"], r["load"], r["protocol"], str(r["mbps"])] for r in active["rates"]],
        )
    return ExitCode.DONE if active["usable"] or not active["path"] else ExitCode.CHECKS_FAILED


def _tune(args: argparse.Namespace, view: View) -> int:
    from nearmetal.core.resources import built_program, tool
    from nearmetal.study.runner import tune

    runner, info, program = LocalRunner(), tool("nearmetal-info"), built_program("limits")
    path = (args.output or tune.default_path(os.environ, os.geteuid())).absolute()
    here = tune.machine(runner, info)
    found: dict[str, tune.Measured] = {}
    if os.getloadavg()[0] > _BUSY:
        view.note("other programs run: the measurement takes longer and may find lower rates")
    with view.steps("tune") as steps:
        steps.begin(args.rounds * len(tune.LOADS))
        for number in range(1, args.rounds + 1):
            for load in tune.LOADS:
                steps.step(f"round {number} of {args.rounds}, {load} messages")
                placement, log = tune.measure(runner, program, load, number)
                tune.collect(found.setdefault(placement, tune.Measured()), load, log)
    # Cores that moved in the middle of a round may leave a placement without one of the loads.
    whole = {p: m for p, m in found.items() if m.half_round_trips_ns and m.rates}
    if not whole:
        raise LaunchError("the cores moved in every round", "try again, or with more --rounds")
    date = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    tune.write(path, tune.tuning_text(here, date, whole))
    active = tune.in_force(runner, info, path)
    if not active["usable"]:
        raise LaunchError(f"the provider does not accept {path}: {active['reason']}")
    rounds = {p: len(m.half_round_trips_ns) for p, m in whole.items()}
    seen = ", ".join(f"{p} in {n} of {args.rounds} rounds" for p, n in rounds.items())
    view.result(
        {"file": str(path), "rounds": rounds, "tuning": active},
        [f"wrote {path}; placement of the cores: {seen}"],
    )
    return ExitCode.DONE
