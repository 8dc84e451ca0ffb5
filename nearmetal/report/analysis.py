# SPDX-License-Identifier: Apache-2.0
"""From facts to curves, ratios and verdicts.

A launch is the replicate. Its figure at one size is the median of its short samples; the band is
the middle half of them. Over launches the lower median is taken, which is always a value that was
measured, so every number shown has a raw line. Arms are compared within a block, where they ran
one after the other; the ratio shown is the median of the blocks' ratios, with their range.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING

from nearmetal.report import numbers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from nearmetal.evidence import Fact, RunFacts

OURS, NETWORK, BASELINE = "auto", "net", "stock"

ARM_TITLES = {
    OURS: "nearmetal",
    NETWORK: "nearmetal, network only",
    BASELINE: "MPI's own TCP",
    "": "limit of the cores",
}

MPI_TITLES = {
    "openmpi5": "Open MPI 5",
    "openmpi4": "Open MPI 4.1",
    "mpich5": "MPICH 5",
    "impi": "Intel MPI 2021",
}


class Quantity(Enum):
    """What is judged, and whether less of it is better."""

    TIME = "time"
    RATE = "rate"
    BANDWIDTH = "bandwidth"

    @property
    def less_is_better(self) -> bool:
        """Whether a smaller value wins."""
        return self is Quantity.TIME

    @property
    def show(self) -> Callable[[float], str]:
        """How a value of it is written."""
        return {
            Quantity.TIME: numbers.microseconds,
            Quantity.RATE: numbers.megamessages_per_second,
            Quantity.BANDWIDTH: numbers.megabytes_per_second,
        }[self]


@dataclass(frozen=True)
class Source:
    """Where a number stands in the raw output."""

    file: str
    line: int


@dataclass(frozen=True)
class Point:
    """One value with its band, and the best sample in fifty, at one message size."""

    size: int
    value: float
    low: float
    high: float
    best: float
    source: Source
    launches: int


@dataclass(frozen=True)
class Ratio:
    """How many times better one arm is than another, over blocks."""

    size: int
    value: float
    low: float
    high: float
    blocks: int


@dataclass(frozen=True)
class Verdict:
    """One headline: our figure, what it is compared with, and what the cores allow."""

    title: str
    quantity: Quantity
    size: int
    goal: float
    ours: Point | None
    baseline: Point | None
    network: Point | None
    limit: Point | None
    limit_name: str
    ratio: Ratio | None

    @property
    def quiet_ratio(self) -> float | None:
        """How many times better ours is in the best sample of fifty: the machine undisturbed."""
        if self.ours is None or self.baseline is None or not self.ours.best * self.baseline.best:
            return None
        ratio = self.baseline.best / self.ours.best
        return ratio if self.quantity.less_is_better else 1 / ratio

    @property
    def reached(self) -> bool | None:
        """Whether the goal is reached; None when something was not measured."""
        return None if self.ratio is None else self.ratio.value >= self.goal


def lower_median(values: Sequence[float]) -> float:
    """Return the median; of an even number of values the lower of the two in the middle."""
    return sorted(values)[(len(values) - 1) // 2]


@dataclass(frozen=True)
class Which:
    """What distinguishes one curve from another."""

    arm: str
    mpi: str
    program: str
    test: str
    variant: str = ""

    def of(self, arm: str) -> Which:
        """Return the same curve of another arm."""
        return replace(self, arm=arm)


def limit(test: str) -> Which:
    """Return the curve of a limit of the cores."""
    return Which("", "", "limits", test)


_Rows = dict[tuple[int, int], dict[str, "Fact"]]
"""Facts of one test by (launch, size), then by metric."""


def rows_of(facts: Iterable[Fact]) -> _Rows:
    """Group facts of one arm and test into the rows they came from."""
    rows: _Rows = defaultdict(dict)
    for fact in facts:
        rows[fact.launch, fact.size][fact.metric] = fact
    return rows


@dataclass(frozen=True)
class _Figures:
    """A row of our own programs: median, middle half, and the best sample in fifty."""

    value: float
    low: float
    high: float
    best: float


def _figures(row: Mapping[str, Fact], quantity: Quantity) -> _Figures | None:
    """Return what a row says of a quantity; None when it has no such figure."""
    names = ("time_p50", "time_p25", "time_p75", "time_p2")
    if any(name not in row for name in names):
        return None
    times = [row[name].value for name in names]
    if quantity is Quantity.TIME:
        return _Figures(*times)
    if "messages" not in row or not all(times):
        return None
    amount = row["messages"].value
    if quantity is Quantity.BANDWIDTH:
        amount *= row["messages"].size
    return _Figures(amount / times[0], amount / times[2], amount / times[1], amount / times[3])


class Evidence:
    """Curves and ratios out of a run's facts; every look-up is by arm, MPI, program and test."""

    def __init__(self, run: RunFacts) -> None:
        """Index the facts by what distinguishes curves."""
        self.run = run
        self._facts: dict[Which, list[Fact]] = defaultdict(list)
        for fact in run.facts:
            key = Which(fact.arm, fact.mpi, fact.program, fact.test, fact.variant)
            self._facts[key].append(fact)

    def tests(self, program: str) -> list[tuple[str, str]]:
        """Return (test, variant) of a program, in the order of appearance."""
        found = [(k.test, k.variant) for k in self._facts if k.program == program]
        return list(dict.fromkeys(found))

    def mpis(self, program: str | None = None) -> list[str]:
        """Return the MPIs that ran, in the usual order."""
        seen = {k.mpi for k in self._facts if k.mpi and program in (None, k.program)}
        return [m for m in MPI_TITLES if m in seen] + sorted(seen - MPI_TITLES.keys())

    def arms(self, mpi: str, program: str) -> list[str]:
        """Return the arms that ran a program, in the usual order."""
        seen = {k.arm for k in self._facts if k.mpi == mpi and k.program == program}
        return [a for a in ARM_TITLES if a in seen]

    def facts(self, which: Which) -> list[Fact]:
        """Return the facts of one curve."""
        return self._facts.get(which, [])

    def curve(self, quantity: Quantity, which: Which) -> list[Point]:
        """Return the points of one of our own programs' tests, by size."""
        by_size: dict[int, list[tuple[_Figures, Fact]]] = defaultdict(list)
        for (_, size), row in rows_of(self.facts(which)).items():
            figures = _figures(row, quantity)
            if figures is not None:
                by_size[size].append((figures, row["time_p50"]))
        points = []
        for size, measured in sorted(by_size.items()):
            measured.sort(key=lambda m: (m[0].value, m[1].launch))
            figures, fact = measured[(len(measured) - 1) // 2]
            low = lower_median([m[0].low for m in measured])
            high = lower_median([m[0].high for m in measured])
            points.append(
                Point(
                    size,
                    figures.value,
                    min(low, figures.value),
                    max(high, figures.value),
                    lower_median([m[0].best for m in measured]),
                    Source(fact.file, fact.line),
                    len(measured),
                )
            )
        return points

    def ratios(self, quantity: Quantity, which: Which, against: str) -> list[Ratio]:
        """Return how many times better a curve is than another arm's, by size, over blocks."""
        first = self._by_block(quantity, which)
        second = self._by_block(quantity, which.of(against))
        by_size: dict[int, list[float]] = defaultdict(list)
        for key in sorted(first.keys() & second.keys()):
            a, b = first[key], second[key]
            if a > 0 and b > 0:
                by_size[key[1]].append(b / a if quantity.less_is_better else a / b)
        return [
            Ratio(size, lower_median(values), min(values), max(values), len(values))
            for size, values in sorted(by_size.items())
        ]

    def _by_block(self, quantity: Quantity, which: Which) -> dict[tuple[int, int], float]:
        found: dict[tuple[int, int], float] = {}
        for (_, size), row in rows_of(self.facts(which)).items():
            figures = _figures(row, quantity)
            if figures is not None:
                found[row["time_p50"].block, size] = figures.value
        return found

    def point(self, quantity: Quantity, which: Which, size: int) -> Point | None:
        """Return one point of a curve."""
        return next((p for p in self.curve(quantity, which) if p.size == size), None)


def primary_mpi(evidence: Evidence) -> str | None:
    """Return the MPI of the headline: the first in the usual order that ran the patterns."""
    return next(iter(evidence.mpis("patterns")), None)


@dataclass(frozen=True)
class _Headline:
    title: str
    quantity: Quantity
    test: str
    size: int
    goal: float
    limit_test: str
    limit_name: str


_HEADLINES = (
    _Headline(
        "latency of 8 bytes",
        Quantity.TIME,
        "pingpong",
        8,
        20,
        "cacheline",
        "half round trip of one cache line",
    ),
    _Headline(
        "rate of 8-byte messages",
        Quantity.RATE,
        "uniband",
        8,
        30,
        "slots",
        "slots of 64 bytes through a ring",
    ),
    _Headline(
        "bandwidth at 1 MiB",
        Quantity.BANDWIDTH,
        "uniband",
        1 << 20,
        3,
        "two_copy",
        "two copies through a shared pool",
    ),
)


def verdicts(evidence: Evidence, mpi: str | None = None) -> list[Verdict]:
    """Return the three headlines for one MPI (None: the primary one)."""
    chosen = primary_mpi(evidence) if mpi is None else mpi
    found = []
    for h in _HEADLINES:
        arms: dict[str, Point | None] = dict.fromkeys((OURS, BASELINE, NETWORK))
        ratio = None
        if chosen is not None:
            which = Which(OURS, chosen, "patterns", h.test)
            for arm in arms:
                arms[arm] = evidence.point(h.quantity, which.of(arm), h.size)
            ratios = evidence.ratios(h.quantity, which, BASELINE)
            ratio = next((r for r in ratios if r.size == h.size), None)
        floor = evidence.point(h.quantity, limit(h.limit_test), h.size)
        found.append(
            Verdict(
                h.title,
                h.quantity,
                h.size,
                h.goal,
                arms[OURS],
                arms[BASELINE],
                arms[NETWORK],
                floor,
                h.limit_name,
                ratio,
            )
        )
    return found
