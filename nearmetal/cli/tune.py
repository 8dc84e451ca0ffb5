# SPDX-License-Identifier: Apache-2.0
"""`nearmetal tune`: measure this machine, so that the provider starts from its own rates."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from nearmetal.cli.verbs import Subparsers, add_verb
from nearmetal.core.errors import ExitCode, LaunchError, UsageError
from nearmetal.core.process import LocalRunner
from nearmetal.core.resources import tool
from nearmetal.study.runner import tune

if TYPE_CHECKING:
    import argparse

    from nearmetal.cli.view import View

_ROUNDS, _ROUNDS_MAX = 3, 100
_BUSY = 1.0


def register(subparsers: Subparsers) -> None:
    """Add the verb."""
    parser = add_verb(
        subparsers,
        "tune",
        show,
        "measure the copy rates of this machine for the provider",
        "nearmetal tune",
    )
    parser.add_argument(
        "--show",
        action="store_true",
        help="do not measure; print the active file and its rates, or the reason why it is refused",
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help="file to write, or to read with --show (default: $NEARMETAL_TUNE_FILE, else /etc/nearmetal/tuning as root and ~/.config/nearmetal/tuning otherwise)",
    )
    parser.add_argument(
        "--rounds",
        type=int,
        default=_ROUNDS,
        metavar="N",
        help=f"number of rounds, 1 to {_ROUNDS_MAX}; more rounds find more placements of virtual cores (default: {_ROUNDS})",
    )


def show(args: argparse.Namespace, view: View) -> int:
    """Measure and write, or tell what is in force."""
    if not 1 <= args.rounds <= _ROUNDS_MAX:
        raise UsageError(f"--rounds {args.rounds}: 1 to {_ROUNDS_MAX} are possible")
    if args.show:
        return _show(args.output, view)
    return _tune(args, view)


def _show(path: Path | None, view: View) -> int:
    told = tune.in_force(LocalRunner(), tool("nearmetal-info"), path and path.absolute())
    words = f"{told['path'] or 'no file'}: {told['reason']}"
    view.result({"tuning": told}, [words])
    if told["rates"]:
        view.table(
            ("size up to", "load", "protocol", "MB/s"),
            [[r["class"], r["load"], r["protocol"], str(r["mbps"])] for r in told["rates"]],
        )
    return ExitCode.DONE if told["usable"] or not told["path"] else ExitCode.CHECKS_FAILED


def _tune(args: argparse.Namespace, view: View) -> int:
    runner, info, program = LocalRunner(), tool("nearmetal-info"), tune.limits_program()
    path = (args.output or tune.default_path(os.environ, os.geteuid())).absolute()
    here = tune.machine(runner, info)
    found: dict[str, tune.Measured] = {}
    if os.getloadavg()[0] > _BUSY:
        view.note("other programs are running; this takes longer then, and may find lower rates")
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
    told = tune.in_force(runner, info, path)
    if not told["usable"]:
        raise LaunchError(f"the provider does not take {path}: {told['reason']}")
    rounds = {p: len(m.half_round_trips_ns) for p, m in whole.items()}
    seen = ", ".join(f"{p} in {n} of {args.rounds} rounds" for p, n in rounds.items())
    view.result(
        {"file": str(path), "rounds": rounds, "tuning": told},
        [f"wrote {path}; the cores were placed {seen}"],
    )
    return ExitCode.DONE
