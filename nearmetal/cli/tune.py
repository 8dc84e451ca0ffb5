# SPDX-License-Identifier: Apache-2.0
"""The verbs that measure for faster jobs: copies of this machine, collectives in a cluster."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from nearmetal.cli.arguments import (
    TIME_HELP,
    add_spec,
    choose_mpis,
    mpi_names,
    open_running,
    split_names,
)
from nearmetal.core.errors import ExitCode, LaunchError, UsageError
from nearmetal.core.process import LocalRunner

if TYPE_CHECKING:
    import argparse

    from nearmetal.cli.verbs import VerbParser
    from nearmetal.cli.view import View
    from nearmetal.study.runner.collectives import TunedMpi, TuningPlan

_ROUNDS, _ROUNDS_MAX = 3, 100
_BUSY = 1.0
_LAUNCHES, _LAUNCHES_MAX = 10, 100
_SIZES = "8,1024,8192,65536,524288"
_SIZE_MAX = 4 << 20
_SECONDS, _SECONDS_MAX = 0.1, 60.0
_RANKS_MAX = 1024


def copies_options(parser: VerbParser) -> None:
    """Add the arguments of `tune copies`."""
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


def on_copies(args: argparse.Namespace, view: View) -> int:
    """Measure and write the rates, or show the active rates."""
    if not 1 <= args.rounds <= _ROUNDS_MAX:
        raise UsageError(f"--rounds {args.rounds}: out of range", f"use 1 to {_ROUNDS_MAX}")
    return _show_rates(args.output, view) if args.show else _copies(args, view)


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


def _copies(args: argparse.Namespace, view: View) -> int:
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


def collectives_options(parser: VerbParser) -> None:
    """Add the arguments of `tune collectives`."""
    from nearmetal.job.mpi.rules import COLLECTIVES

    add_spec(parser)
    parser.option(
        "--mpi LIST", f"MPIs, comma-separated, of {mpi_names()} (default: all that are installed)"
    )
    parser.option(
        "-n --ranks LIST",
        "numbers of ranks, comma-separated; the rules are for these (default: one per slot)",
    )
    known = ",".join(COLLECTIVES)
    parser.option("--only LIST", f"collectives, comma-separated (default: {known})", default=known)
    parser.option(
        "--sizes LIST",
        f"bytes, comma-separated, multiples of 8 up to 4 MiB (default: {_SIZES})",
        default=_SIZES,
    )
    parser.option(
        "--launches N",
        f"number of launches of each compared algorithm, 6 to {_LAUNCHES_MAX}; with few, only a difference at many sizes is beyond the noise (default: {_LAUNCHES})",
        default=_LAUNCHES,
    )
    parser.option(
        "--seconds SECONDS",
        f"time of each size in a launch, up to {_SECONDS_MAX:g} (default: {_SECONDS})",
        type=float,
        default=_SECONDS,
    )
    parser.option(
        "--output DIR",
        f"directory for the rules and the logs, which the nodes see; an interrupted measurement resumes there (default: results/TIME-collectives; {TIME_HELP})",
    )


def on_collectives(args: argparse.Namespace, view: View) -> int:
    """Measure the collectives of each MPI, and write rules for the faster algorithms."""
    from nearmetal.core.resources import program_for_mpi
    from nearmetal.job.mpi import find_installations
    from nearmetal.study.runner.collectives import CollectiveTuner

    mpis = choose_mpis(args.mpi)
    cluster, spec = open_running(args.spec)
    plan = _plan(args, spec.slots)
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    directory = args.output or Path("results") / f"{stamp}-collectives"
    found = find_installations()
    results = []
    shared = False
    for mpi in mpis:
        with view.steps(f"tune {mpi.value}") as steps:
            program = program_for_mpi("mpi_patterns", mpi.value, mpi.family.name.lower())
            tuner = CollectiveTuner(
                cluster.backend, spec, LocalRunner(), directory, found[mpi], plan, steps, program
            )
            if tuner.crowded() and not shared:
                shared = True
                view.warn(
                    "ranks share cores: the figures are those of the scheduler too",
                    "give at most as many ranks as cores to -n, or use the rules for such jobs only",
                )
            results.append(tuner.tune())
    _show_tuned(results, directory, view, crowded=shared)
    return ExitCode.DONE


def _plan(args: argparse.Namespace, slots: int) -> TuningPlan:
    """Return what the arguments ask for; raises UsageError."""
    from nearmetal.job.mpi.rules import COLLECTIVES
    from nearmetal.study.runner.collectives import TuningPlan
    from nearmetal.study.stats import MIN_LAUNCHES

    names = split_names(args.only, COLLECTIVES, "collective")
    sizes = _numbers("--sizes", args.sizes, 8, _SIZE_MAX)
    if any(size % 8 for size in sizes):
        raise UsageError(f"--sizes {args.sizes}: not all are multiples of 8", "for example 8,1024")
    ranks = [slots] if args.ranks is None else _numbers("-n", args.ranks, 2, _RANKS_MAX)
    if not MIN_LAUNCHES <= args.launches <= _LAUNCHES_MAX:
        bounds = f"use {MIN_LAUNCHES} to {_LAUNCHES_MAX}"
        raise UsageError(f"--launches {args.launches}: out of range", bounds)
    if not 0 < args.seconds <= _SECONDS_MAX:
        raise UsageError(f"--seconds {args.seconds:g}: more than 0, at most {_SECONDS_MAX:g}")
    return TuningPlan(tuple(ranks), tuple(names), tuple(sizes), args.launches, args.seconds)


def _numbers(option: str, text: str, least: int, most: int) -> list[int]:
    """Return the numbers of a list in ascending order, each once; raises UsageError."""
    words = text.split(",")
    for word in words:
        if not (word.isascii() and word.isdigit()) or not least <= int(word) <= most:
            raise UsageError(f"{option} {text}: {word!r} is not a number from {least} to {most}")
    return sorted({int(word) for word in words})


def _show_tuned(results: list[TunedMpi], directory: Path, view: View, *, crowded: bool) -> None:
    from dataclasses import asdict

    data = [
        {
            "mpi": one.mpi.value,
            "library": one.library,
            "file": None if one.file is None else str(one.file),
            "points": [asdict(point) for point in one.points],
            "refused": one.refused,
        }
        for one in results
    ]
    lines = []
    for one in results:
        for name, reason in one.refused.items():
            view.note(f"{one.mpi.value}, {name}: not used: {reason}")
        if one.file is None:
            lines.append(f"{one.mpi.value}: no algorithm is faster than its own choice; no rules")
        else:
            lines.append(f"{one.mpi.value}: wrote {one.file}")
    view.result({"directory": str(directory), "crowded": crowded, "mpis": data}, lines)
    rows = [
        [
            one.mpi.value,
            p.collective,
            str(p.ranks),
            str(p.size),
            f"{p.own_us:.2f}",
            p.algorithm or "own choice",
            "" if p.ratio is None else f"{p.ratio:.3f} ({p.low:.3f} to {p.high:.3f})",
        ]
        for one in results
        for p in one.points
    ]
    if rows:
        columns = ("MPI", "collective", "ranks", "bytes", "own, us", "rules", "part of own time")
        view.table(columns, rows)
    if any(one.file for one in results):
        view.note(f"use them with `nearmetal run --collectives {directory}`")
