# SPDX-License-Identifier: Apache-2.0
"""The primary endpoints of a comparison: the points that make its headline. Pure.

The choice uses names, sizes and scales only, never a value, so it is fixed before any result is
seen. Each measurement (a program, test and variant) gives one metric, at the largest common scale,
for a short and for a long message. The other points are detail.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import log2

from nearmetal.study.gaps import Gap, is_judged
from nearmetal.study.judge import LOST, Comparison, Verdict, settle_endpoints
from nearmetal.study.model import Point

SIZES = (8, 1 << 20)
"""Sizes of an endpoint in bytes: a short message, and a long one."""

NEAR = 4
"""Doublings between a size of an endpoint and the size that stands for it."""

FIRST = (
    "latency",
    "time",
    "time_p50",
    "time_mean",
    "loop_time",
    "speed",
    "rate",
    "bandwidth",
    "harmonic_mean_teps",
    "wall_time",
    "execution_time",
    "step_mean",
)
"""The metric of an endpoint is the first of these, else the first of the log."""

ALIASES = {
    "nearmetal-bench": ("time_p50", "rate_p50", "bandwidth_p50"),
    "gromacs": ("speed", "hours_per_ns", "wall_time"),
    "hpl": ("rate", "time"),
    "imb": ("time", "bandwidth", "rate"),
    "lammps": ("loop_time", "speed", "hours_per_ns", "steps", "atom_steps"),
    "nccl": ("time", "bandwidth", "bus_bandwidth"),
    "namd": ("speed", "days_per_ns"),
    "netpipe": ("time", "bandwidth"),
    "npb": ("rate", "time", "rate_per_process", "rate_per_thread"),
    "osu": ("bandwidth", "rate"),
    "perftest": ("latency", "transactions", "bandwidth", "rate"),
    "stream": ("bandwidth", "time_min"),
}
"""By program, metrics that it computes from one measured time: the first is judged."""

NOT_COMPARED = (Verdict.INVALID, Verdict.REFUSED, Verdict.NO_MARGIN, Verdict.MISSING)
"""Verdicts that leave an endpoint undecided, whatever the number of launches; the worst first."""


def headline_of(said: Mapping[Verdict, int]) -> Verdict:
    """Return the verdict of all endpoints, from the number of each of their verdicts.

    A loss that is shown at one endpoint stays one. ACCEPT needs every endpoint.
    """
    kinds = {verdict for verdict, count in said.items() if count}
    for verdict in (Verdict.REJECT, Verdict.INVALID):
        if verdict in kinds:
            return verdict
    decided = kinds - {Verdict.MISSING}
    if len(decided) == 1 and (kinds == decided or decided != {Verdict.ACCEPT}):
        return decided.pop()
    return Verdict.INCONCLUSIVE


def _test(point: Point) -> tuple[str, ...]:
    return (point.program, point.test, point.variant)


def _without_aliases(found: Sequence[Comparison]) -> list[Comparison]:
    """Leave out metrics that are another one in other words."""
    metrics: dict[Point, set[str]] = {}
    places = [one.point._replace(metric="", unit=found[0].point.unit) for one in found]
    for place, one in zip(places, found, strict=True):
        metrics.setdefault(place, set()).add(one.point.metric)

    def judged(place: Point, metric: str) -> bool:
        same = ALIASES.get(place.program, ())
        before = same[: same.index(metric)] if metric in same else ()
        return metrics[place].isdisjoint(before)

    pairs = zip(places, found, strict=True)
    return [one for place, one in pairs if judged(place, one.point.metric)]


def _metric(points: Iterable[Point]) -> str:
    names = list(dict.fromkeys(point.metric for point in points))
    return next((name for name in FIRST if name in names), names[0])


def _scale(point: Point) -> tuple[int, int]:
    return point.nodes or 0, point.ranks or 0


def _endpoints(points: list[Point]) -> set[Point]:
    """Return the endpoints among the points of one test."""
    metric = _metric(points)
    points = [point for point in points if point.metric == metric]
    largest = max(map(_scale, points))
    points = [point for point in points if _scale(point) == largest]
    sized = [point for point in points if point.size]
    if not sized:
        return set(points)

    def doublings(point: Point, wanted: int) -> float:
        return abs(log2((point.size or 1) / wanted))

    nearest = [min(sized, key=lambda p: doublings(p, wanted)) for wanted in SIZES]
    near = [p for p, size in zip(nearest, SIZES, strict=True) if doublings(p, size) <= NEAR]
    return set(near or nearest[:1])


def _without_other_words(gaps: Sequence[Gap], found: Sequence[Comparison]) -> list[Gap]:
    """Leave out gaps whose measurement is judged in another metric."""
    judged: dict[tuple[object, ...], set[str]] = {}
    for one in found:
        judged.setdefault(_cell(one.point), set()).add(one.point.metric)
    alone: dict[tuple[object, ...], set[str]] = {}
    for gap in gaps:
        alone.setdefault((gap.lacking, *_cell(gap.point)), set()).add(gap.point.metric)
    kept = []
    for gap in gaps:
        same, metric = ALIASES.get(gap.point.program, ()), gap.point.metric
        others = set(same) - {metric} if metric in same else set()
        first = same[: same.index(metric)] if metric in same else ()
        beside = alone[gap.lacking, *_cell(gap.point)]
        if judged.get(_cell(gap.point), set()).isdisjoint(others) and beside.isdisjoint(first):
            kept.append(gap)
    return kept


def _cell(point: Point) -> tuple[object, ...]:
    return (*_test(point), point.size, point.nodes)


def choose(
    found: Sequence[Comparison], gaps: Sequence[Gap] = ()
) -> tuple[list[Comparison], list[Gap]]:
    """Return the comparisons and the gaps of two arms, with the endpoints marked and decided.

    Aliases are left out, and so are bandwidths of zero bytes, which no program can measure. What one
    arm lacks is an endpoint too, at the largest scale that both arms have for the test.
    """
    judged = [one for one in found if is_judged(one.point)]
    judged = _without_aliases(judged) if judged else judged
    alone = _without_other_words(gaps, judged)
    tests: dict[tuple[str, ...], list[Point]] = {}
    for one in judged:
        tests.setdefault(_test(one.point), []).append(one.point)
    scales = {test: max(map(_scale, points)) for test, points in tests.items()}
    compared = {(*_cell(one.point), one.point.metric) for one in judged}
    for gap in alone:
        test = _test(gap.point)
        here = scales.get(test) in (None, _scale(gap.point))
        if here and (*_cell(gap.point), gap.point.metric) not in compared:
            tests.setdefault(test, []).append(gap.point)
    chosen = {point for points in tests.values() for point in _endpoints(points)}
    settled = settle_endpoints([replace(one, primary=one.point in chosen) for one in judged])
    seen: set[tuple[object, ...]] = set(compared)
    marked = []
    for gap in alone:
        key = (*_cell(gap.point), gap.point.metric)
        primary = gap.point in chosen and key not in seen
        seen |= {key} if primary else set()
        marked.append(replace(gap, primary=primary))
    return settled, marked


def with_endpoints(found: Sequence[Comparison]) -> list[Comparison]:
    """Return the comparisons of two arms that have the same points, with their endpoints."""
    return choose(found)[0]


@dataclass(frozen=True)
class Conclusion:
    """The verdict of the endpoints, and the numbers of verdicts of endpoints and of the detail.

    `reasons` says why endpoints are not compared; `survivors` is the mark of unequal losses.
    """

    verdict: Verdict
    primary: Counter[Verdict]
    detail: Counter[Verdict]
    reasons: tuple[str, ...] = ()
    survivors: str = ""

    @property
    def decided(self) -> int:
        """The number of endpoints that are ACCEPT or REJECT."""
        return self.primary[Verdict.ACCEPT] + self.primary[Verdict.REJECT]

    @property
    def words(self) -> str:
        """The headline in words: what is decided, and why the rest is not."""
        text = f"{self.decided} of {self.primary.total()} primary endpoints decided"
        return "; ".join((text, *self.reasons, *filter(None, [self.survivors])))


SHOWN = 2
"""Reasons of one verdict that a headline names."""


def _reasons(primary: Sequence[Comparison], gaps: Sequence[Gap]) -> Iterator[str]:
    said = [(one.verdict, one.reason) for one in primary if one.verdict in NOT_COMPARED]
    said += [(Verdict.MISSING, gap.why) for gap in gaps]
    said += [
        (one.verdict, "too many launches were lost")
        for one in primary
        if one.verdict is Verdict.INCONCLUSIVE and one.reason.startswith(LOST)
    ]
    for verdict in (*NOT_COMPARED, Verdict.INCONCLUSIVE):
        reasons = [reason for kind, reason in said if kind is verdict]
        if reasons:
            known = list(dict.fromkeys(reasons))
            more = f"; and {len(known) - SHOWN} more reasons" if len(known) > SHOWN else ""
            yield f"{len(reasons)} {verdict.value} ({'; '.join(known[:SHOWN])}{more})"


def conclude(
    found: Sequence[Comparison], gaps: Sequence[Gap] = (), survivors: str = ""
) -> Conclusion:
    """Return the headline of two arms."""
    lacking = [gap for gap in gaps if gap.primary]
    primary = [one for one in found if one.primary]
    counts = Counter(one.verdict for one in primary)
    counts.update([Verdict.MISSING] * len(lacking))
    return Conclusion(
        headline_of(counts or Counter(one.verdict for one in found)),
        counts,
        Counter(one.verdict for one in found if not one.primary),
        tuple(_reasons(primary, lacking)),
        survivors,
    )
