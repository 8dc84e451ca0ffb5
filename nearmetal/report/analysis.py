# SPDX-License-Identifier: Apache-2.0
"""From facts to curves, ratios and headlines.

A launch is the replicate. Its figure at one size is the median of its short samples; the band is
the middle half of them. A point of a curve shows the lower median of the launches: this is always a
measured value, so every number has a raw line. Ratios and headlines come from the judge of studies:
ratio of medians with its interval, comparability gate, verdict.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple, Self

from nearmetal.evidence import Fact, RunFacts, Unit
from nearmetal.report import numbers
from nearmetal.study import judge, model
from nearmetal.study.judge import Comparison, Margin, Verdict
from nearmetal.study.ratios import ratio
from nearmetal.study.stats import MIN_LAUNCHES, Ratio, percentile

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
    """A judged figure: its unit, and the text of its values."""

    TIME = "time", Unit.MICROSECONDS, numbers.microseconds
    RATE = "rate", Unit.MEGAMESSAGES_PER_SECOND, numbers.megamessages_per_second
    BANDWIDTH = "bandwidth", Unit.MEGABYTES_PER_SECOND, numbers.megabytes_per_second

    _value_: str
    unit: Unit
    show: Callable[[float], str]

    def __new__(cls, value: str, unit: Unit, show: Callable[[float], str]) -> Self:
        """Make a member whose value is its name in the data."""
        made = object.__new__(cls)
        made._value_ = value
        made.unit, made.show = unit, show
        return made

    @property
    def less_is_better(self) -> bool:
        """Whether a smaller value wins."""
        return self is Quantity.TIME


class RawLine(NamedTuple):
    """The place of a number in the raw output."""

    file: str
    line: int


@dataclass(frozen=True)
class CurvePoint:
    """One value with its band, and the best sample in fifty, at one message size."""

    size: int
    value: float
    low: float
    high: float
    best: float
    source: RawLine
    launches: int


def times_better(one: Comparison) -> Ratio | None:
    """Return the factor by which the test arm is better; None if it is refused or has no interval."""
    if one.gate.blocked:
        return None
    sides = (one.test.values, one.base.values)
    found = ratio(*(sides[::-1] if one.point.lower_is_better else sides))
    return None if found is None or found.low is None else found


@dataclass(frozen=True)
class Goal:
    """A promise: the factor by which nearmetal must be better, and the limit of the cores."""

    title: str
    quantity: Quantity
    test: str
    size: int
    goal: float
    limit_test: str
    limit_name: str


_GOALS = (
    Goal(
        "latency of 8 bytes",
        Quantity.TIME,
        "pingpong",
        8,
        20,
        "cacheline",
        "half round trip of one cache line",
    ),
    Goal(
        "rate of 8-byte messages",
        Quantity.RATE,
        "uniband",
        8,
        30,
        "slots",
        "slots of 64 bytes through a ring",
    ),
    Goal(
        "bandwidth at 64 KiB",
        Quantity.BANDWIDTH,
        "uniband",
        64 << 10,
        3,
        "two_copy",
        "two copies through a shared pool",
    ),
    Goal(
        "bandwidth at 1 MiB",
        Quantity.BANDWIDTH,
        "uniband",
        1 << 20,
        3,
        "two_copy",
        "two copies through a shared pool",
    ),
)


@dataclass(frozen=True, kw_only=True)
class Headline(Goal):
    """One headline: nearmetal's figure, the baseline, the limit of the cores, and the comparison."""

    ours: CurvePoint | None
    baseline: CurvePoint | None
    network: CurvePoint | None
    limit: CurvePoint | None
    comparison: Comparison | None

    @property
    def ratio(self) -> Ratio | None:
        """The factor by which nearmetal is better, with an interval; None if there is none."""
        return None if self.comparison is None else times_better(self.comparison)

    @property
    def launches(self) -> int:
        """Number of launches of the smaller side of the comparison."""
        one = self.comparison
        return 0 if one is None else min(one.base.n, one.test.n)

    @property
    def verdict(self) -> str:
        """Whether the goal is reached, in words."""
        one = self.comparison
        if one is None:
            return "not measured"
        if one.verdict is Verdict.REFUSED:
            return f"refused: {one.reason}"
        if self.launches < MIN_LAUNCHES:
            return f"too few launches: {self.launches} of at least {MIN_LAUNCHES}"
        words = {Verdict.ACCEPT: "reached", Verdict.REJECT: "not reached"}
        return words.get(one.verdict, f"not settled: {one.reason}")

    @property
    def reached(self) -> bool | None:
        """Whether the goal is reached; None if this is not measured or not settled."""
        verdict = None if self.comparison is None else self.comparison.verdict
        return {Verdict.ACCEPT: True, Verdict.REJECT: False}.get(verdict) if verdict else None


@dataclass(frozen=True)
class Which:
    """The key of a curve."""

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


class _Figures(NamedTuple):
    """A row of our own programs: median, middle half, and the best sample in fifty."""

    value: float
    low: float
    high: float
    best: float


def _figures(row: Mapping[str, Fact], quantity: Quantity) -> _Figures | None:
    """Return the figures of a row for a quantity; None if it has none."""
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
    """Curves and ratios from the facts of a run; every look-up is by arm, MPI, program and test."""

    def __init__(self, run: RunFacts) -> None:
        self.run = run
        self._facts: dict[Which, list[Fact]] = defaultdict(list)
        for fact in run.facts:
            key = Which(fact.arm, fact.mpi, fact.program, fact.test, fact.variant)
            self._facts[key].append(fact)

    def tests(self, program: str) -> list[tuple[str, str]]:
        """Return (test, variant) of a program, in the order of appearance."""
        found = [(k.test, k.variant) for k in self._facts if k.program == program]
        return list(dict.fromkeys(found))

    def mpis(self, program: str) -> list[str]:
        """Return the MPIs that ran a program, in the usual order."""
        seen = {k.mpi for k in self._facts if k.mpi and k.program == program}
        return [m for m in MPI_TITLES if m in seen] + sorted(seen - MPI_TITLES.keys())

    def arms(self, mpi: str, program: str) -> list[str]:
        """Return the arms that ran a program, in the usual order."""
        seen = {k.arm for k in self._facts if k.mpi == mpi and k.program == program}
        return [a for a in ARM_TITLES if a in seen]

    def facts(self, which: Which) -> list[Fact]:
        """Return the facts of one curve."""
        return self._facts.get(which, [])

    def _measured(self, quantity: Quantity, which: Which) -> dict[int, list[tuple[_Figures, Fact]]]:
        """Return the figures of a curve's launches by size, each with the fact of its median."""
        by_size: dict[int, list[tuple[_Figures, Fact]]] = defaultdict(list)
        for (_, size), row in rows_of(self.facts(which)).items():
            figures = _figures(row, quantity)
            if figures is not None:
                by_size[size].append((figures, row["time_p50"]))
        return dict(sorted(by_size.items()))

    def curve(self, quantity: Quantity, which: Which) -> list[CurvePoint]:
        """Return the points of one of our own programs' tests, by size."""
        points = []
        for size, measured in self._measured(quantity, which).items():
            measured.sort(key=lambda m: (m[0].value, m[1].launch))
            (value, *_), fact = measured[(len(measured) - 1) // 2]
            _, low, high, best = (
                percentile(column, 50) for column in zip(*(m[0] for m in measured), strict=True)
            )
            source = RawLine(fact.file, fact.line)
            low, high = min(low, value), max(high, value)
            points.append(CurvePoint(size, value, low, high, best, source, len(measured)))
        return points

    def point(self, quantity: Quantity, which: Which, size: int) -> CurvePoint | None:
        """Return one point of a curve."""
        return next((p for p in self.curve(quantity, which) if p.size == size), None)

    def compare(
        self,
        quantity: Quantity,
        which: Which,
        against: str,
        goals: Mapping[int, float] | None = None,
    ) -> dict[int, Comparison]:
        """Return a curve against another arm's as a study judges them, by size.

        `goals` names the sizes to compare, and the factor by which the curve must be better there.
        """
        sides = [self._side(quantity, one) for one in (which.of(against), which)]
        found = {}
        for size, goal in (goals or dict.fromkeys(c.point.size or 0 for c in sides[1][1])).items():
            cells = [(arm, [c for c in cells if c.point.size == size]) for arm, cells in sides]
            margin = None
            if goal is not None:
                limit = 1 / goal if quantity.less_is_better else goal
                margin = Margin(limit, quantity.less_is_better, f"the goal of {goal:g} times")
            for one in judge.compare(*cells, margin=margin):
                found[size] = one
        return found

    def ratios(self, quantity: Quantity, which: Which, against: str) -> dict[int, Ratio]:
        """Return the factors by which a curve is better, by size, where launches suffice."""
        compared = self.compare(quantity, which, against)
        found = {size: times_better(one) for size, one in sorted(compared.items())}
        return {size: ratio for size, ratio in found.items() if ratio is not None}

    def _side(self, quantity: Quantity, which: Which) -> tuple[model.Arm, list[model.Cell]]:
        """Return an arm and its cells as a study has them."""
        seen: dict[model.Point, list[model.Observation]] = defaultdict(list)
        keys = (which.program, which.test, which.variant)
        for size, measured in self._measured(quantity, which).items():
            for figures, fact in measured:
                point = model.Point(*keys, size, fact.ranks, None, quantity.value, quantity.unit)
                where = (fact.file, fact.line)
                seen[point].append(
                    model.Observation("", fact.launch, fact.block, figures.value, *where)
                )
        launches = [
            x
            for x in self.run.manifest.launches
            if x.good and (x.arm, x.mpi, x.program) == (which.arm, which.mpi, which.program)
        ]
        placements = ", ".join(sorted({launch.nodes for launch in launches}))
        title = ARM_TITLES.get(which.arm, which.arm)
        arm = model.Arm(which.arm, "", title, placements, facts={"mpi": which.mpi})
        return arm, [model.Cell(which.arm, point, tuple(o)) for point, o in sorted(seen.items())]


def primary_mpi(evidence: Evidence) -> str | None:
    """Return the MPI of the headline: the first in the usual order that ran the patterns."""
    return next(iter(evidence.mpis("patterns")), None)


def headlines(evidence: Evidence, mpi: str | None = None) -> list[Headline]:
    """Return the headlines for one MPI (None: the primary one)."""
    chosen = primary_mpi(evidence) if mpi is None else mpi
    found = []
    for goal in _GOALS:
        arms: dict[str, CurvePoint | None] = dict.fromkeys((OURS, BASELINE, NETWORK))
        one = None
        if chosen is not None:
            which = Which(OURS, chosen, "patterns", goal.test)
            for arm in arms:
                arms[arm] = evidence.point(goal.quantity, which.of(arm), goal.size)
            goals = {goal.size: goal.goal}
            one = evidence.compare(goal.quantity, which, BASELINE, goals).get(goal.size)
        found.append(
            Headline(
                **vars(goal),
                ours=arms[OURS],
                baseline=arms[BASELINE],
                network=arms[NETWORK],
                limit=evidence.point(goal.quantity, limit(goal.limit_test), goal.size),
                comparison=one,
            )
        )
    return found
