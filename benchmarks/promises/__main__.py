# SPDX-License-Identifier: Apache-2.0
"""`python -m benchmarks.promises`: every promise of speed beside the limits and the peers, in one table."""

from __future__ import annotations

import os
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.promises import jobs as plan
from benchmarks.promises import page
from benchmarks.promises.figures import is_rare, judge
from benchmarks.promises.rows import ROWS
from benchmarks.promises.samples import Placement, Samples
from benchmarks.promises.single import Single
from benchmarks.promises.turns import Turns
from nearmetal.cli.main import run
from nearmetal.cli.verbs import Parser
from nearmetal.cluster.apply import Cluster, down, up
from nearmetal.cluster.backend import open_backend
from nearmetal.cluster.backends.local.spec import LocalSpec
from nearmetal.cluster.spec import load_spec
from nearmetal.cluster.store import Store, state_directory
from nearmetal.core.errors import ExitCode, LaunchError, UsageError
from nearmetal.core.lock import locked
from nearmetal.core.process import LocalRunner
from nearmetal.core.resources import REPOSITORY
from nearmetal.evidence import Manifest, load_run, write_manifest
from nearmetal.job.mpi import find_installations
from nearmetal.study.runner.collect import find_pairs, now, title
from nearmetal.study.runner.environment import environment
from nearmetal.study.stats import MIN_LAUNCHES

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from benchmarks.promises.figures import Figure
    from nearmetal.cli.view import View
    from nearmetal.cluster.spec import ClusterSpec
    from nearmetal.core.progress import Progress
    from nearmetal.evidence import Launch

NAME = "figures"
SPEC = Path(__file__).with_name("cluster.yaml")
OUT = REPOSITORY / "benchmarks" / "out"
_QUICK_S, _FULL_S = 90.0, 600.0
_MANY_BLOCKS = 100_000
_PAIR = 2
"""Ranks of a job with one rank on each core."""
_BUSY = 1.0


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of this program."""
    parser = Parser(
        prog="python -m benchmarks.promises",
        description="Measure every promise of speed beside limits and peers.",
        epilog="example: python -m benchmarks.promises --only openmpi-latency,bandwidth-large",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document instead")
    parser.set_defaults(handler=show)
    names = [row.name for row in ROWS]
    parser.add_argument("--only", metavar="ROW,...", help=f"rows of the table: {', '.join(names)}")
    parser.add_argument(
        "--full", action="store_true", help="minutes instead of seconds for each part"
    )
    parser.add_argument(
        "--seconds",
        type=float,
        metavar="S",
        help="time for the blocks of each part, without the start of the jobs",
    )
    parser.add_argument("--shared", action="store_true", help="use normal scheduling during a turn")
    parser.add_argument(
        "--output",
        metavar="DIR",
        type=Path,
        default=OUT,
        help="directory for tables and raw output (default: benchmarks/out)",
    )
    parser.add_argument(
        "--from",
        metavar="RUN",
        type=Path,
        dest="source",
        help="do not measure; judge this run directory again",
    )
    return parser


def _chosen(text: str | None) -> list[str]:
    names = [row.name for row in ROWS]
    if text is None:
        return names
    for name in text.split(","):
        if name not in names:
            raise UsageError(f"unknown row {name!r}", f"known: {', '.join(names)}")
    return text.split(",")


def _cores() -> list[int]:
    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < _PAIR:
        raise LaunchError(
            "this process may use only one core", "give it two with taskset, or use another machine"
        )
    return cores


def show(args: argparse.Namespace, view: View) -> int:
    """Measure, judge, write; exit code 4 if a promise does not hold."""
    chosen = _chosen(args.only)
    if args.source is not None:
        directory = args.source
    else:
        seconds = args.seconds or (_FULL_S if args.full else _QUICK_S)
        directory = _measure(chosen, seconds, args.output, view, alone=not args.shared)
    facts = load_run(directory)
    samples = Samples(facts)
    figures = judge(samples, facts, [row for row in ROWS if row.name in chosen])
    args.output.mkdir(parents=True, exist_ok=True)
    paths = {
        args.output / "figures.json": page.render_json(figures, samples, facts.manifest),
        args.output / "figures.md": page.render_markdown(figures, samples, facts.manifest),
        args.output / "figures.html": page.render_html(figures, samples, facts.manifest),
    }
    for path, text in paths.items():
        path.write_text(text, encoding="utf-8")
    _tell(figures, samples, facts.manifest, view)
    view.result(
        page.figures_data(figures, samples, facts.manifest),
        ["", *map(str, paths), f"raw output: {directory}"],
    )
    return ExitCode.CHECKS_FAILED if any(f.holds is False for f in figures) else ExitCode.DONE


def _tell(figures: list[Figure], samples: Samples, manifest: Manifest, view: View) -> None:
    view.table(page.COLUMNS, [page.part_cells(f, p) for f in figures for p in f.parts])
    total = sum(samples.turns.values()) + samples.unsettled
    for placement in (Placement.NEAR, Placement.FAR):
        turns = samples.turns[placement]
        if total and is_rare(samples, placement):
            view.note(
                f"the cores were {placement.value} in {turns} of {total} turns, too few for a "
                "verdict; run again"
            )
    # Later launches follow those of 32 ranks, which are a load themselves.
    load = next((launch.load for launch in manifest.launches), 0.0)
    if load > len(os.sched_getaffinity(0)) * _BUSY:
        view.note(
            f"the load was {load:.1f} at the start: other work used the cores; run again without it"
        )
    for text in manifest.skipped:
        view.warn(f"not run: {text}")


def _measure(chosen: list[str], seconds: float, output: Path, view: View, *, alone: bool) -> Path:
    """Make the cluster, measure, remove the cluster; returns the run directory."""
    local = load_spec(SPEC)
    assert isinstance(local, LocalSpec)  # noqa: S101 - the file is ours
    spec = plan.pinned_spec(local, _cores())
    store = Store(state_directory())
    cluster = Cluster(NAME, open_backend(spec, store, LocalRunner()), store)
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    directory = output / f"run-{stamp}"
    (directory / "raw").mkdir(parents=True)
    try:
        store.prepare()
        with locked(store.lock(f"{NAME}-verb"), f"cluster {NAME} (of benchmarks.promises)"):
            try:
                if NAME in store.names():
                    view.note("an interrupted run left its cluster: it is removed first")
                    down(cluster)
                with view.steps(NAME) as steps:
                    up(cluster, spec)
                    _Run(
                        cluster=cluster,
                        spec=spec,
                        chosen=chosen,
                        seconds=seconds,
                        directory=directory,
                        steps=steps,
                        alone=alone,
                    ).all()
            finally:
                down(cluster)
    finally:
        store.tidy()
    return directory


class _Run:
    """One run: a part for each number of ranks; the jobs of a part share blocks."""

    def __init__(
        self,
        *,
        cluster: Cluster,
        spec: ClusterSpec,
        chosen: list[str],
        seconds: float,
        directory: Path,
        steps: Progress,
        alone: bool,
    ) -> None:
        self._cluster = cluster
        self._spec = spec
        self._chosen = chosen
        self._seconds = seconds
        self._directory = directory
        self._steps = steps
        self._alone = alone
        self._started = now()
        self._launches: list[Launch] = []
        self._skipped: list[str] = []
        self._blocks = 0
        self._next = 1
        self._turn = 0

    def all(self) -> None:
        pairs = find_pairs(self._cluster.backend, self._spec, LocalRunner())
        rows = [row for row in plan.ROWS if row.name in self._chosen]
        turning = [row for row in rows if row.tests]
        for ranks in sorted({row.ranks for row in turning}):
            self._part([row for row in turning if row.ranks == ranks])
        self._single(imb=any(row.imb for row in rows), addresses=any(r.addresses for r in rows))
        environment_ = environment(self._cluster.backend.status())
        write_manifest(
            self._directory,
            Manifest(
                name=NAME,
                suite=NAME,
                blocks=self._blocks,
                started=self._started,
                finished=now(),
                spec=self._spec.canonical(),
                environment=environment_,
                locality=pairs,
                launches=tuple(self._launches),
                skipped=tuple(self._skipped),
            ),
        )

    def _single(self, *, imb: bool, addresses: bool) -> None:
        """Make the launches that take no turns: rounds until the time is up, and enough for a verdict."""
        single = Single(
            self._cluster.backend,
            self._spec,
            LocalRunner(),
            self._directory,
            self._next,
            alone=self._alone,
        )
        until = time.monotonic() + self._seconds
        try:
            for number in range(MIN_LAUNCHES if addresses else 0):
                self._steps.step(f"addresses, launch {number + 1}")
                single.run(plan.addresses_step(number), 1)
            rounds = 0
            while imb and (rounds < MIN_LAUNCHES or time.monotonic() < until):
                for step in plan.imb_steps(find_installations(), plan.OURS, rounds):
                    self._steps.step(f"round {rounds + 1}: {title(step)}")
                    single.run(step, plan.IMB_RANKS)
                rounds += 1
        finally:
            self._next = single.next_number
            self._launches += single.launches
            self._skipped += single.skipped

    def _part(self, rows: list[plan.FigureRun]) -> None:
        turns = Turns(
            self._cluster.backend,
            self._spec,
            LocalRunner(),
            self._directory,
            plan.limits_seat(rows),
            self._steps.step,
            first_number=self._next,
            turn=self._turn,
            alone=self._alone and max(row.ranks for row in rows) == _PAIR,
        )
        seats = plan.seats(rows, find_installations(), plan.OURS)
        try:
            self._blocks += turns.run(
                seats, blocks=_MANY_BLOCKS, seconds=self._seconds, seed=int(time.time())
            )
        finally:
            self._launches += turns.launches
            self._skipped += turns.skipped
            self._next += len(seats) + 1
            self._turn = turns.turn


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; returns the exit code."""
    return run(sys.argv[1:] if argv is None else argv, build_parser)


if __name__ == "__main__":
    sys.exit(main())
