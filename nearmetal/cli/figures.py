# SPDX-License-Identifier: Apache-2.0
"""`nearmetal figures`: every promise of speed beside the limits and the peers, in one table."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from nearmetal.apply import Cluster, down, locked, up
from nearmetal.backend import Store, open_backend, state_directory
from nearmetal.bench import figures as plan
from nearmetal.bench.collect import find_pairs, now, title
from nearmetal.bench.environment import environment
from nearmetal.bench.single import Single
from nearmetal.bench.turns import Turns
from nearmetal.cli.verbs import Subparsers, add_verb
from nearmetal.errors import ExitCode, LaunchError, UsageError
from nearmetal.evidence import Manifest, load_run, write_manifest
from nearmetal.mpi import find_installations
from nearmetal.report import figures_page as page
from nearmetal.report.figures import is_rare, judge
from nearmetal.report.promises import ROWS
from nearmetal.report.samples import Placement, Samples
from nearmetal.run import LocalRunner
from nearmetal.spec import load_local

if TYPE_CHECKING:
    import argparse

    from nearmetal.cli.view import Steps, View
    from nearmetal.evidence import Launch
    from nearmetal.report.figures import Figure
    from nearmetal.spec import ClusterSpec

_ROOT = Path(__file__).resolve().parents[2]
NAME = "figures"
SPEC = _ROOT / "benchmarks" / "figures.yaml"
OUT = _ROOT / "benchmarks" / "out"
_QUICK_S, _FULL_S = 90.0, 600.0
_MANY_BLOCKS = 100_000
_PAIR = 2
"""Ranks of a job that has every core to itself."""
_BUSY = 1.0


def register(subparsers: Subparsers) -> None:
    """Add the verb."""
    parser = add_verb(
        subparsers,
        "figures",
        show,
        "measure every promise of speed beside limits and peers",
        "nearmetal figures --only openmpi-latency,bandwidth-large",
    )
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
    parser.add_argument(
        "--shared", action="store_true", help="let others have the cores during a turn as usual"
    )
    parser.add_argument(
        "--output",
        metavar="DIR",
        type=Path,
        default=OUT,
        help="where table and raw output go (default: benchmarks/out)",
    )
    parser.add_argument(
        "--from",
        metavar="RUN",
        type=Path,
        dest="source",
        help="measure nothing: judge this run directory again",
    )


def _chosen(text: str | None) -> list[str]:
    names = [row.name for row in ROWS]
    if text is None:
        return names
    for name in text.split(","):
        if name not in names:
            msg = f"unknown row {name!r}"
            raise UsageError(msg, f"known: {', '.join(names)}")
    return text.split(",")


def _cores() -> list[int]:
    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < _PAIR:
        msg = "two cores are needed, this process may use one"
        raise LaunchError(msg, "give it more with taskset, or run on a larger machine")
    return cores


def show(args: argparse.Namespace, view: View) -> int:
    """Measure, judge, write; exit code 4 when a promise does not hold."""
    chosen = _chosen(args.only)
    if args.source is not None:
        directory = args.source
    else:
        seconds = args.seconds or (_FULL_S if args.full else _QUICK_S)
        directory = _measure(chosen, seconds, args.output, view, alone=not args.shared)
    run = load_run(directory)
    samples = Samples(run)
    figures = judge(samples, run, [row for row in ROWS if row.name in chosen])
    args.output.mkdir(parents=True, exist_ok=True)
    paths = {
        args.output / "figures.json": page.render_json(figures, samples, run.manifest),
        args.output / "figures.md": page.render_markdown(figures, samples, run.manifest),
        args.output / "figures.html": page.render_html(figures, samples, run.manifest),
    }
    for path, text in paths.items():
        path.write_text(text, encoding="utf-8")
    _tell(figures, samples, run.manifest, view)
    view.result(
        page.figures_data(figures, samples, run.manifest),
        ["", *map(str, paths), f"raw output: {directory}"],
    )
    return ExitCode.CHECKS_FAILED if any(f.holds is False for f in figures) else ExitCode.DONE


def _tell(figures: list[Figure], samples: Samples, manifest: Manifest, view: View) -> None:
    rows = [
        tuple(text for i, text in enumerate(page.part_cells(f, p)) if i not in {3, 6})
        for f in figures
        for p in f.parts
    ]
    columns = tuple(text for i, text in enumerate(page.COLUMNS) if i not in {3, 6})
    view.table(columns, rows)
    total = sum(samples.turns.values()) + samples.unsettled
    for placement in (Placement.NEAR, Placement.FAR):
        turns = samples.turns[placement]
        if total and is_rare(samples, placement):
            view.note(
                f"the cores were {placement.value} in {turns} of {total} turns: little or "
                "nothing was measured there; run again when the machine is as you want it"
            )
    load = max((launch.load for launch in manifest.launches), default=0.0)
    if load > len(os.sched_getaffinity(0)) * _BUSY:
        view.note(
            f"the load was {load:.1f} at a start: others used the cores; medians are theirs too"
        )
    for text in manifest.skipped:
        view.warn(f"not run: {text}")


def _measure(chosen: list[str], seconds: float, output: Path, view: View, *, alone: bool) -> Path:
    """Make the cluster, take turns, remove the cluster; returns the run directory."""
    spec = plan.pinned_spec(load_local(SPEC), _cores())
    store = Store(state_directory())
    cluster = Cluster(NAME, open_backend(spec, store, LocalRunner()), store)
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    directory = output / f"run-{stamp}"
    (directory / "raw").mkdir(parents=True)
    try:
        store.prepare()
        with locked(store.lock(f"{NAME}-verb"), f"{NAME} (of nearmetal figures)"):
            try:
                if NAME in store.names():
                    view.note("a run that was killed left its cluster: it is removed first")
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
    """One run: parts by number of ranks, for jobs of one part share blocks."""

    def __init__(
        self,
        *,
        cluster: Cluster,
        spec: ClusterSpec,
        chosen: list[str],
        seconds: float,
        directory: Path,
        steps: Steps,
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
        """Make the launches that take no turns: rounds until the time is up, at least one."""
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
            if addresses:
                self._steps.step("addresses")
                single.run(plan.addresses_step(), 1)
            rounds = 0
            while imb and (rounds == 0 or time.monotonic() < until):
                for step in plan.imb_steps(find_installations(), plan.OURS, rounds):
                    self._steps.step(f"round {rounds + 1}: {title(step)}")
                    single.run(step, plan.IMB_RANKS)
                rounds += 1
        finally:
            self._next = single.next_number
            self._launches += single.launches
            self._skipped += single.skipped

    def _part(self, rows: list[plan.Row]) -> None:
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
