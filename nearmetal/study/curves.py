# SPDX-License-Identifier: Apache-2.0
"""Curves of two arms: the time of one operation over message sizes, launch by launch. Pure.

A curve is one benchmark of one study. A launch measures all sizes, so a sum over sizes is one value
of each launch, and its ratio has the interval of `nearmetal.study.ratios`: that of all sizes
together.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import exp, log
from statistics import median

from nearmetal.evidence import Unit
from nearmetal.study.judge import Comparison, Verdict
from nearmetal.study.ratios import ratio
from nearmetal.study.stats import MIN_LAUNCHES, Ratio

METRICS = ("latency", "time_p50", "time_mean", "time")
"""Metrics that are the time of one operation; the first that a benchmark has is used."""

_SECONDS = {Unit.MICROSECONDS: 1e-6, Unit.SECONDS: 1.0}
MOST_BEYOND = 4.0
"""A message may be this many times as large as the largest that was measured, or as small as the
smallest: the time of a larger one is in proportion, that of a smaller one is the same."""

SHORT = 64
"""Bytes of a message that stands for all smaller ones."""

Sized = Sequence[tuple[float, float]]
"""Sizes in bytes, and how often."""


@dataclass(frozen=True)
class Knot:
    """One measured size with the seconds of each launch, of base and test."""

    size: float
    base: tuple[float, ...]
    test: tuple[float, ...]


@dataclass(frozen=True)
class Cost:
    """The cost of some messages: seconds in the base, and the ratio test by base."""

    seconds: float
    ratio: Ratio


def _at(sizes: Sequence[float], values: Sequence[float], size: float) -> float:
    """Return the time at a size: a straight line between two sizes on logarithmic axes."""
    if size <= sizes[0]:
        return values[0]
    if size >= sizes[-1]:
        return values[-1] * (size / sizes[-1] if sizes[-1] else 1.0)
    right = bisect_left(sizes, size)
    low, high = max(sizes[right - 1], 1.0), sizes[right]
    share = log(max(size, low) / low) / log(high / low) if high > low else 1.0
    return exp((1 - share) * log(values[right - 1]) + share * log(values[right]))


@dataclass(frozen=True)
class Curve:
    """One benchmark of two arms; without a size it has one knot, which stands for every size."""

    test: str
    ranks: int | None
    knots: tuple[Knot, ...]
    marks: tuple[str, ...] = ()
    """Differences between the arms that the gate marks."""

    @cached_property
    def _sizes(self) -> list[float]:
        return [knot.size for knot in self.knots]

    def why_not(self, messages: Sized) -> str:
        """Return why the curve does not stand for these messages; "": it does."""
        first, last = self._sizes[0], self._sizes[-1]
        if not messages or last == 0:
            return ""
        smallest, largest = (f(size for size, _ in messages) for f in (min, max))
        if largest > last * MOST_BEYOND:
            return f"messages of {largest:.0f} bytes, {self.test} ends at {last:.0f}"
        if first > SHORT and smallest < first / MOST_BEYOND:
            return f"messages of {smallest:.0f} bytes, {self.test} begins at {first:.0f}"
        return ""

    def _totals(self, messages: Sized, *, of_test: bool) -> list[float]:
        sides = [knot.test if of_test else knot.base for knot in self.knots]
        return [
            sum(count * _at(self._sizes, values, size) for size, count in messages)
            for values in zip(*sides, strict=True)
        ]

    def cost(self, messages: Sized) -> Cost:
        """Return the cost of messages, one after another."""
        base = self._totals(messages, of_test=False)
        found = ratio(self._totals(messages, of_test=True), base)
        assert found is not None  # noqa: S101 - times are above zero, curves_of() checks it
        return Cost(median(base), found)

    def anywhere(self) -> Ratio:
        """Return the ratio for messages of unknown size: between all that were measured."""
        found = [self.cost([(size, 1.0)]).ratio for size in self._sizes]
        low = min(one.value if one.low is None else one.low for one in found)
        high = max(one.value if one.high is None else one.high for one in found)
        return Ratio(exp((log(low) + log(high)) / 2), low, high)

    def least(self, count: float) -> float:
        """Return the seconds in the base that `count` messages of any size take at least."""
        return count * min(median(knot.base) for knot in self.knots)


def _why_not(found: Sequence[Comparison]) -> str:
    """Return why no point of a benchmark can be used; "": some can."""
    usable = [one for one in found if one.verdict not in (Verdict.REFUSED, Verdict.INVALID)]
    if not usable:
        return f"the arms are not comparable: {found[0].reason}"
    if not any(one.ratio is not None for one in usable):
        return "a time is zero"
    if max(min(one.base.n, one.test.n) for one in usable) < MIN_LAUNCHES:
        return f"fewer than {MIN_LAUNCHES} launches of an arm: there is no interval"
    return ""


def _knots(found: Iterable[Comparison]) -> tuple[Knot, ...]:
    """Return the points that all launches measured, by size."""
    usable = [
        one
        for one in found
        if one.verdict not in (Verdict.REFUSED, Verdict.INVALID) and one.ratio is not None
    ]
    launches = max((one.base.n, one.test.n) for one in usable)
    knots: dict[float, Knot] = {}
    for one in usable:
        if (one.base.n, one.test.n) == launches:
            unit = _SECONDS[one.point.unit]
            size = float(one.point.size or 0)
            base, test = (tuple(v * unit for v in side.values) for side in (one.base, one.test))
            knots.setdefault(size, Knot(size, base, test))
    return tuple(knots[size] for size in sorted(knots))


@dataclass(frozen=True)
class Curves:
    """The curves of two arms by the name of the test, and the reasons for tests without one."""

    by_test: dict[str, list[Curve]]
    refused: dict[str, str]

    def find(self, tests: Iterable[str], ranks: int | None) -> Curve | str:
        """Return the curve of the first test that has one, or the reason why none has.

        `ranks` None: a benchmark of any number of ranks.
        """
        why = ""
        for test in tests:
            known = self.by_test.get(test, [])
            fit = [curve for curve in known if ranks is None or curve.ranks == ranks]
            if fit:
                return fit[0]
            if known:
                others = ", ".join(sorted({str(curve.ranks) for curve in known}))
                why = why or f"{test} has {others} ranks, the profile {ranks}"
            elif test in self.refused:
                why = why or f"{test}: {self.refused[test]}"
        return why or "the study has no benchmark for it"


def curves_of(found: Iterable[Comparison]) -> Curves:
    """Return the curves of all benchmarks of two arms."""
    groups: dict[tuple[object, ...], list[Comparison]] = {}
    for one in found:
        if one.point.metric in METRICS and one.point.unit in _SECONDS:
            key = (one.point.test, one.point.curve, one.point.metric)
            groups.setdefault(key, []).append(one)
    curves: dict[str, list[tuple[tuple[int, ...], Curve]]] = {}
    refused: dict[str, str] = {}
    for members in groups.values():
        point = members[0].point
        why = _why_not(members)
        if why:
            refused.setdefault(point.test, why)
            continue
        marks = tuple(dict.fromkeys(mark for one in members for mark in one.gate.watermarks))
        curve = Curve(point.test, point.ranks, _knots(members), marks)
        # The usual configuration comes first, then few ranks: a pair has the least contention.
        rank = (METRICS.index(point.metric), len(point.variant), point.ranks or 0)
        curves.setdefault(point.test, []).append((rank, curve))
    ordered = {
        test: [curve for _, curve in sorted(known, key=lambda pair: pair[0])]
        for test, known in curves.items()
    }
    return Curves(ordered, refused)
