# SPDX-License-Identifier: Apache-2.0
"""The primary endpoints of a comparison: the points that make its headline. Pure.

The choice uses names, sizes and scales only, never a value, so it is fixed before any result is
seen. Each measurement (a program, test and variant) gives one metric, at the largest common scale,
for a short and for a long message. The other points are detail.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import log2

from nearmetal.study.gate import BANDWIDTHS
from nearmetal.study.judge import Comparison, Verdict, settle_endpoints
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

WORST_FIRST = (
    Verdict.REJECT,
    Verdict.INCONCLUSIVE,
    Verdict.ACCEPT,
    Verdict.REFUSED,
    Verdict.NO_MARGIN,
    Verdict.INVALID,
)


def worst(found: Iterable[Comparison]) -> Verdict:
    """Return the worst verdict; REFUSED, NO MARGIN and INVALID only if there is no other."""
    said = {one.verdict for one in found}
    return next((verdict for verdict in WORST_FIRST if verdict in said), Verdict.REFUSED)


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


def _endpoints(points: list[Point]) -> set[Point]:
    """Return the endpoints among the points of one test."""
    metric = _metric(points)
    points = [point for point in points if point.metric == metric]
    largest = max((point.nodes or 0, point.ranks or 0) for point in points)
    points = [point for point in points if (point.nodes or 0, point.ranks or 0) == largest]
    sized = [point for point in points if point.size]
    if not sized:
        return set(points)

    def doublings(point: Point, wanted: int) -> float:
        return abs(log2((point.size or 1) / wanted))

    nearest = [min(sized, key=lambda p: doublings(p, wanted)) for wanted in SIZES]
    near = [p for p, size in zip(nearest, SIZES, strict=True) if doublings(p, size) <= NEAR]
    return set(near or nearest[:1])


def with_endpoints(found: Sequence[Comparison]) -> list[Comparison]:
    """Return the comparisons of two arms with their endpoints marked and decided.

    Aliases are left out, and so are bandwidths of zero bytes, which no program can measure.
    """
    judged = [one for one in found if one.point.size != 0 or one.point.unit not in BANDWIDTHS]
    judged = _without_aliases(judged) if judged else judged
    tests: dict[tuple[str, ...], list[Point]] = {}
    for one in judged:
        tests.setdefault(_test(one.point), []).append(one.point)
    chosen = {point for points in tests.values() for point in _endpoints(points)}
    return settle_endpoints([replace(one, primary=one.point in chosen) for one in judged])


@dataclass(frozen=True)
class Conclusion:
    """The verdict of the endpoints, and the numbers of verdicts of endpoints and of the detail."""

    verdict: Verdict
    primary: Counter[Verdict]
    detail: Counter[Verdict]


def conclude(found: Sequence[Comparison]) -> Conclusion:
    """Return the headline of two arms."""
    primary = [one for one in found if one.primary]
    return Conclusion(
        worst(primary or found),
        Counter(one.verdict for one in primary),
        Counter(one.verdict for one in found if not one.primary),
    )
