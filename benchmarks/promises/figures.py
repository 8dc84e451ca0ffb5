# SPDX-License-Identifier: Apache-2.0
"""The table of figures: each promise, its measured value, and the verdict of the study's judge. Pure.

A turn is the repetition: its value is the median of its samples. For a program that takes no turns,
a launch is the repetition. A promise is a margin for the ratio of the medians of two cells, as in
a study: interval, minimum number of repetitions, comparability gate, errors adjusted over the whole
table. All comparisons stay within one placement of the cores. Bounds are set for two cores: if the
two processors are threads of one core, the table shows the ratio without a verdict.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from benchmarks.promises.rows import title_of
from benchmarks.promises.samples import Placement, What, Who
from nearmetal.evidence import Unit
from nearmetal.study.gate import check
from nearmetal.study.judge import Comparison, Margin, Verdict, compare_cells, settle
from nearmetal.study.model import Arm, Cell, Observation, Point
from nearmetal.study.stats import MIN_LAUNCHES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from benchmarks.promises.rows import Bound, FigureRow, Measure, Promise
    from benchmarks.promises.samples import Samples
    from nearmetal.evidence import RunFacts

NO_BOUND = "no bound: threads of one core"
ANY = "any"
"""Placement of programs that take no turns."""


@dataclass(frozen=True)
class Part:
    """One bound in one placement, with the deciding comparison.

    `holds` None: not measured, not settled, or without a bound there; `why` gives the reason.
    """

    name: str
    placement: str
    unit: str
    must: str
    peer: str
    holds: bool | None = None
    why: str = ""
    comparison: Comparison | None = None

    def data(self) -> dict[str, Any]:
        """Return the part for figures.json."""
        one = self.comparison
        ratio = one.ratio if one else None
        return {
            **{key: value for key, value in vars(self).items() if key != "comparison"},
            "value": one.test.median if one else None,
            "peer_value": one.base.median if one else None,
            "ratio": ratio.value if ratio else None,
            "interval": [ratio.low, ratio.high] if ratio and ratio.low is not None else None,
            "repetitions": [one.test.n, one.base.n] if one else [0, 0],
            "verdict": one.verdict.value if one else "not measured",
            "differences": list(one.gate.watermarks) if one else [],
        }


@dataclass(frozen=True)
class Figure:
    """A row with all its parts, and the part that decides."""

    row: str
    title: str
    reference: str
    holds: bool | None
    deciding: Part
    parts: tuple[Part, ...]

    def data(self) -> dict[str, Any]:
        """Return the row for figures.json."""
        part = self.deciding.data()
        keys = (
            "value",
            "unit",
            "peer",
            "ratio",
            "interval",
            "repetitions",
            "placement",
            "verdict",
            "why",
        )
        return {
            "name": self.row,
            "title": self.title,
            **{key: part[key] for key in keys},
            "must": "; ".join(dict.fromkeys(f"{p.name}: {p.must}" for p in self.parts)),
            "holds": self.holds,
            "reference": self.reference,
            "parts": [p.data() for p in self.parts],
        }


def _beyond(one: Comparison) -> float:
    """Return the ratio in units of the bound, or the ratio itself; above 1 is worse."""
    if one.ratio is None:
        return 0.0
    lower = one.margin.lower_is_better if one.margin else one.point.lower_is_better
    share = one.ratio.value / (one.margin.limit if one.margin else 1)
    return share if lower else 1 / share


@dataclass(frozen=True)
class _Side:
    """One side of a comparison."""

    who: Who
    cell: Cell

    @property
    def n(self) -> int:
        return len(self.cell.values)

    def arm(self, placement: str) -> Arm:
        facts = {"mpi": self.who.mpi} if self.who.mpi else {}
        return Arm(self.cell.arm, "", self.who.arm, f"cores {placement}", facts=facts)


@dataclass(frozen=True)
class _Open:
    """A part that is to be decided together with all others of the table."""

    part: Part
    ours: _Side
    peers: list[_Side]
    margin: Margin | None

    def compare(self) -> list[Comparison]:
        """Return the comparison with each peer, not decided yet."""
        found = []
        test = self.ours.arm(self.part.placement)
        for peer in self.peers:
            cells = (peer.cell, self.ours.cell)
            gate = check(peer.arm(self.part.placement), test, cells, ((), ()))
            found.append(compare_cells(cells, gate, self.margin))
        return found

    def close(self, decided: list[Comparison]) -> Part:
        """Return the part with its verdict: a bound holds if it holds against each peer."""
        if not decided:
            return self.part
        order = (Verdict.REJECT, Verdict.REFUSED, Verdict.INCONCLUSIVE, Verdict.NO_MARGIN)
        worst = next((v for v in order if any(c.verdict is v for c in decided)), Verdict.ACCEPT)
        one = max((c for c in decided if c.verdict is worst), key=_beyond)
        why = "" if worst is Verdict.ACCEPT else one.reason.partition(";")[0]
        if worst is Verdict.REJECT:
            why = f"missed by {(_beyond(one) - 1) * 100:.0f} %"
        elif worst is Verdict.NO_MARGIN:
            why = NO_BOUND
        elif worst is Verdict.INCONCLUSIVE:
            more = "launches" if self.part.placement == ANY else "turns"
            lacking = f"an interval needs {one.needed} more {more}"
            why += f"; {lacking}" if one.needed else "; measure longer"
        holds = {Verdict.ACCEPT: True, Verdict.REJECT: False}.get(worst)
        return replace(self.part, peer=one.arms[0], holds=holds, why=why, comparison=one)


class _Table:
    """Makes the parts of all rows from the samples and the facts of a run."""

    def __init__(self, samples: Samples, run: RunFacts) -> None:
        self._samples = samples
        self._run = run

    def of_promise(self, promise: Promise) -> Iterator[_Open]:
        """Return the parts of a promise: each bound in each placement."""
        for bound in promise.bounds:
            seen = not is_rare(self._samples, Placement.SIBLINGS)
            shown = seen and Placement.NEAR in bound.placements
            for placement in (*((Placement.SIBLINGS,) if shown else ()), *bound.placements):
                yield self._in_placement(promise, bound, placement)

    def _in_placement(self, promise: Promise, bound: Bound, placement: Placement) -> _Open:
        quantity, what = promise.quantity, promise.what
        ours = self._turns(promise, promise.ours, what.test, placement)
        peers = [
            self._turns(promise, who, test, placement)
            for who in bound.peers
            for test in bound.tests or (what.test,)
        ]
        must = f"{'<=' if quantity.less_is_better else '>='} {bound.factor:g} x {bound.words}"
        part = Part(promise.title, placement.value, quantity.unit.value, must, bound.words)
        enough = [peer for peer in peers if peer.n >= MIN_LAUNCHES]
        if ours.n < MIN_LAUNCHES or not enough:
            few = ours if ours.n < MIN_LAUNCHES else max(peers, key=lambda peer: peer.n)
            return _Open(replace(part, why=self._missing(placement, few)), ours, [], None)
        margin = Margin(bound.factor, quantity.less_is_better, part.must)
        judged = placement in bound.placements
        return _Open(part, ours, enough, margin if judged else None)

    def _turns(self, promise: Promise, who: Who, test: str, placement: Placement) -> _Side:
        what, quantity = promise.what, promise.quantity
        seen = tuple(
            Observation("", one.turn, None, quantity.of(one.us, what.size), one.file, one.line)
            for one in self._samples.of(who, What(test, what.size), placement)
            if one.us > 0
        )
        name = title_of(who) if test == what.test else f"{title_of(who)} {test}"
        point = Point("turns", what.test, "", what.size, None, None, promise.title, quantity.unit)
        return _Side(who, Cell(name, point, seen))

    def _missing(self, placement: Placement, few: _Side) -> str:
        """Return the reason for too few turns, and the next step."""
        turns = self._samples.turns
        if is_rare(self._samples, placement):
            total = sum(turns.values()) + self._samples.unsettled
            seen = f"the cores were {placement.value} in {turns[placement]} of {total} turns"
            return f"{seen}; run again"
        return (
            f"{few.n} turns of {few.cell.arm}, at least {MIN_LAUNCHES} are needed; measure longer, "
            "or read the log of that launch"
        )

    def of_measure(self, measure: Measure) -> _Open:
        """Return the part of a measure."""
        ours = self._launches(measure, measure.ours)
        if measure.limit is None:
            must = f"<= {measure.factor:g} x the best peer"
            peers = [self._launches(measure, who) for who in measure.peers]
        else:
            # A limit is an arm without scatter: the interval of the ratio is that of the median.
            must = f"<= {measure.limit:g} {measure.unit}"
            fixed = tuple(Observation("", n, None, measure.limit, "", 0) for n in range(ours.n))
            peers = [_Side(measure.ours, replace(ours.cell, arm="", observations=fixed))]
        part = Part(measure.title, ANY, measure.unit, must, "")
        peers = [p for p in peers if p.n >= MIN_LAUNCHES] or [p for p in peers if p.n]
        if not ours.n or not peers:
            why = "no launch ended well; read the log of the launch"
            return _Open(replace(part, why=why), ours, [], None)
        factor = measure.factor if measure.limit is None else 1.0
        return _Open(part, ours, peers, Margin(factor, lower_is_better=True, origin=must))

    def _launches(self, measure: Measure, who: Who) -> _Side:
        facts = self._run.select(
            program=measure.program,
            mpi=who.mpi,
            arm=who.arm,
            test=measure.test,
            size=measure.size,
            metric=measure.metric,
        )
        # IMB prints zeros for a test that it gave up for lack of time.
        seen = tuple(
            Observation(
                "", fact.launch, fact.block, fact.value * measure.scale, fact.file, fact.line
            )
            for fact in facts
            if fact.value > 0
        )
        point = Point(
            "launches", measure.test, "", measure.size, None, None, measure.title, Unit.COUNT
        )
        return _Side(who, Cell(title_of(who), point, seen))


def is_rare(samples: Samples, placement: Placement) -> bool:
    """Whether the placement was seen in too few turns for any statement."""
    total = sum(samples.turns.values()) + samples.unsettled
    return not total or samples.turns[placement] < total / 20


def judge(samples: Samples, run: RunFacts, rows: Sequence[FigureRow]) -> list[Figure]:
    """Return every row with its verdict; the errors of all comparisons are adjusted together."""
    table = _Table(samples, run)
    opened = [
        (row, part)
        for row in rows
        for part in (
            *(part for promise in row.promises for part in table.of_promise(promise)),
            *(table.of_measure(measure) for measure in row.measures),
        )
    ]
    compared = [part.compare() for _, part in opened]
    decided = iter(settle([one for found in compared for one in found], lambda _point: ()))
    closed = [
        (row, part.close([next(decided) for _ in found]))
        for (row, part), found in zip(opened, compared, strict=True)
    ]
    return [_figure(row, tuple(part for owner, part in closed if owner is row)) for row in rows]


def _figure(row: FigureRow, parts: tuple[Part, ...]) -> Figure:
    """Return a row: it holds if all bounds that were measured hold, and at least one was."""
    by_verdict = [
        [p for p in parts if p.comparison and p.comparison.verdict in verdicts]
        for verdicts in (
            (Verdict.REJECT,),
            (Verdict.REFUSED, Verdict.INCONCLUSIVE),
            (Verdict.ACCEPT,),
        )
    ]
    members, holds = next(
        ((m, h) for m, h in zip(by_verdict, (False, None, True), strict=True) if m), ([], None)
    )
    deciding = max(
        members, key=lambda p: _beyond(p.comparison) if p.comparison else 0, default=None
    )
    return Figure(row.name, row.title, row.reference, holds, deciding or parts[0], parts)
