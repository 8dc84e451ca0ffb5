# SPDX-License-Identifier: Apache-2.0
"""Which algorithm of a collective is faster than the choice of the MPI, beyond the noise. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import comb, isqrt
from statistics import median

from nearmetal.study.stats import MOST_ERROR, Interval, adjust, median_interval

WORTH = 0.95
"""A choice takes at most this part of the time of the MPI's own."""

NO_WORSE = 1.05
"""A choice for all sizes takes at most this part of the time at each."""

OWN = ""
"""The name of the MPI's own choice among algorithms."""

Times = Mapping[str, Sequence[float]]
"""The time of each algorithm, by launch; the launches with one index were made in turn."""


@dataclass(frozen=True)
class Gain:
    """The time of an algorithm as a part of the time of the MPI's own choice."""

    algorithm: str
    ratio: float
    interval: Interval | None
    error: float
    """The chance of this result if the algorithm gained nothing worth it."""


def gains(times: Times) -> list[Gain]:
    """Return the gain of each algorithm but the MPI's own, from launches in turn."""
    own = times[OWN]
    found = []
    for name, values in times.items():
        ratios = [one / base for one, base in zip(values, own, strict=False)]
        if name != OWN and ratios:
            found.append(Gain(name, median(ratios), median_interval(ratios), _error(ratios)))
    return found


def _error(ratios: Sequence[float]) -> float:
    """Return how often N fair coins show at least as many heads as ratios are worth it."""
    good, total = sum(ratio < WORTH for ratio in ratios), len(ratios)
    return float(sum(comb(total, i) for i in range(good, total + 1)) / 2**total)


def promising(times: Mapping[int, Times], most: int) -> list[str]:
    """Return up to `most` algorithms that were the fastest at a size, by the least of few launches."""
    best: dict[str, float] = {}
    for of_size in times.values():
        if not of_size.get(OWN):
            continue
        own = min(of_size[OWN])
        ratios = {name: min(v) / own for name, v in of_size.items() if name != OWN and v}
        if ratios and min(ratios.values()) < 1:
            name = min(ratios, key=lambda n: ratios[n])
            best[name] = min(best.get(name, 1.0), ratios[name])
    return sorted(best, key=lambda n: best[n])[:most]


def choose(times: Mapping[tuple[str, int], Times]) -> dict[tuple[str, int], Gain]:
    """Return the best algorithm of each point that has one: a collective and a size.

    The errors of all comparisons are adjusted for their number.
    """
    found = [(point, gain) for point, of in times.items() for gain in gains(of)]
    errors = adjust([gain.error for _, gain in found])
    chosen: dict[tuple[str, int], Gain] = {}
    for (point, gain), error in zip(found, errors, strict=True):
        better = point not in chosen or gain.ratio < chosen[point].ratio
        if error <= MOST_ERROR and better:
            chosen[point] = gain
    return chosen


def choose_whole(times: Mapping[tuple[str, int], Times]) -> dict[tuple[str, int], Gain]:
    """As `choose`, with one algorithm for all sizes of a collective, which is worse at none."""
    chosen: dict[tuple[str, int], Gain] = {}
    found = [(point, gain) for point, of in times.items() for gain in gains(of)]
    errors = adjust([gain.error for _, gain in found])
    good = {(p[0], g.algorithm) for (p, g), e in zip(found, errors, strict=True) if e <= MOST_ERROR}
    for name in dict.fromkeys(point[0] for point in times):
        best: dict[tuple[str, int], Gain] = {}
        for algorithm in dict.fromkeys(a for n, a in good if n == name):
            of = {p: g for p, g in found if p[0] == name and g.algorithm == algorithm}
            everywhere = len(of) == sum(point[0] == name for point in times)
            harmless = all(
                g.interval is not None and g.interval.high <= NO_WORSE for g in of.values()
            )
            if everywhere and harmless and (not best or _sum(of) < _sum(best)):
                best = of
        chosen |= best
    return chosen


def _sum(of: Mapping[tuple[str, int], Gain]) -> float:
    return sum(gain.ratio for gain in of.values())


def ranges(sizes: Sequence[int], chosen: Mapping[int, str]) -> list[tuple[int, int, str]]:
    """Return the first and the last byte of each choice, from the measured sizes.

    Two measured sizes meet at their geometric mean. The first begins where it was measured, and
    the last ends below twice its size.
    """
    ordered = sorted(sizes)
    ends = [isqrt(a * b) for a, b in pairwise(ordered)]
    starts = [ordered[0], *ends]
    found: list[tuple[int, int, str]] = []
    for size, start, end in zip(ordered, starts, [*ends, 2 * ordered[-1]], strict=True):
        name = chosen.get(size)
        if name is None or end <= start:
            continue
        if found and found[-1][1] == start - 1 and found[-1][2] == name:
            found[-1] = (found[-1][0], end - 1, name)
        else:
            found.append((start, end - 1, name))
    return found
