# SPDX-License-Identifier: Apache-2.0
"""Flags on a cell: properties that a reader must know before the median. No value is removed. Pure.

The whole study has a wrong flag in at most one case of twenty: each test of each cell has the error
FAMILY_ERROR / (tests * cells). This is Bonferroni's bound, which also holds for dependent cells.

The null hypothesis: the launches of a cell are independent draws from one distribution, which is
normal or log-normal, rounded to a grid or not. A flag needs evidence against both shapes; drift
assumes no shape. Every test has a bound for finite samples:

* Outliers: the distance of one value from the others, in their standard deviations, has Student's
  distribution (Grubbs 1950, doi:10.1214/aoms/1177729885). Up to a fifth of the values may be
  outliers together, so that two do not mask each other (Rosner 1983,
  doi:10.1080/00401706.1983.10487848); Bonferroni pays for all choices of values.
* Two modes: Student's statistic between two groups; Bonferroni pays for all partitions.
* Drift: the exact distribution of Kendall's score (Mann 1945, doi:10.2307/1907187).
* Shape: the statistic of Anderson and Darling with the tail of Stephens (D'Agostino and Stephens,
  Goodness-of-Fit Techniques, 1986, table 4.9). A simulation checked its error.

A printed value is known to half a step of its grid. Distances are shortened and deviations widened by
the most that rounding can do, and ties count against a drift.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from functools import lru_cache
from math import comb, erf, exp, factorial, gcd, inf, lgamma, log, log1p, sqrt
from statistics import fmean, median
from typing import NamedTuple

FAMILY_ERROR = 0.05
"""Probability of any flag in a study whose launches are alike."""

TESTS = 4
"""Tests of one cell: outliers, two modes, shape, drift."""

LEAST_SHARE = 0.01
"""A smaller difference, as a share of the median, is neither an outlier nor a mode."""

MIN_OUTLIER = 3
MIN_SHAPE = 8
"""Least number of launches for flags of outliers, and of shape or drift."""

MODE_SHARE = 0.2
OUTLIER_SHARE = 0.2
DIGITS = 12
"""Significant digits beyond which a value is binary noise."""


class FlagKind(Enum):
    """The kind of a flag."""

    OUTLIER = "outlier"
    BIMODAL = "two modes"
    NON_NORMAL = "not normal"
    FIRST_LAUNCH = "first launch"
    DRIFT = "drift"


@dataclass(frozen=True)
class Flag:
    """One flag, its reason, and the positions of its launches (0-based)."""

    kind: FlagKind
    reason: str
    launches: tuple[int, ...] = ()


class _Scale(NamedTuple):
    """Values on a scale, and the largest error of rounding."""

    values: tuple[float, ...]
    error: float


def resolution(values: Sequence[float]) -> float:
    """Return the coarsest grid of all values: a product of twos, fives and tens; 0: none.

    Fixed decimals, counters and conversions of units have such steps.
    """
    parts = [Fraction(f"{value:.{DIGITS}g}") for value in values]
    below = 1
    for part in parts:
        below = below * part.denominator // gcd(below, part.denominator)
    step = 0
    for part in parts:
        step = gcd(step, int(part * below))
    grid = 1
    for factor in (2, 5):
        while step and step % factor == 0:
            step //= factor
            grid *= factor
    return grid / below if step else 0.0


def _scales(values: Sequence[float]) -> list[_Scale]:
    """Return the values, and their logarithms if all values are clearly above zero."""
    half = resolution(values) / 2
    scales = [_Scale(tuple(values), half)]
    lowest = min(values)
    if lowest > 0 and half < lowest:
        scales.append(_Scale(tuple(log(v) for v in values), -log1p(-half / lowest)))
    return scales


def _beta_fraction(a: float, b: float, x: float) -> float:
    """Return the continued fraction of the incomplete beta function, after Lentz."""
    tiny = 1e-300
    c, d = 1.0, 1 / max(1 - (a + b) * x / (a + 1), tiny)
    result = d
    for m in range(1, 500):
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 / (1 + term * d or tiny)
            c = 1 + term / c or tiny
            result *= c * d
        if abs(c * d - 1) < 1e-12:  # noqa: PLR2004 - beyond the digits that matter
            break
    return result


def student_tail(t: float, freedom: int) -> float:
    """Return the probability that Student's |t| is at least this large."""
    if t <= 1:
        return 1.0  # not needed: no test is decided there
    if t == inf:
        return 0.0
    a, b = freedom / 2, 0.5
    x = freedom / (freedom + t * t)
    front = a * log(x) + b * log1p(-x) + lgamma(a + b) - lgamma(a) - lgamma(b)
    if x < (a + 1) / (a + b + 2):
        return exp(front) * _beta_fraction(a, b, x) / a
    return 1 - exp(front) * _beta_fraction(b, a, 1 - x) / b


def _apart(first: Sequence[float], second: Sequence[float], error: float) -> float:
    """Return the least |t| between two groups that rounding by at most `error` allows."""
    ours, theirs = fmean(first), fmean(second)
    distance = abs(ours - theirs) - 2 * error
    if distance <= 0:
        return 0.0
    n = len(first) + len(second)
    squares = sum((v - ours) ** 2 for v in first) + sum((v - theirs) ** 2 for v in second)
    spread = (sqrt(squares) + error * sqrt(n)) / sqrt(n - 2)
    if spread <= 1e-12 * distance:
        return inf
    return distance / (spread * sqrt(1 / len(first) + 1 / len(second)))


def _extremes(values: Sequence[float], number: int) -> list[int]:
    """Return positions of the values farthest from the rest, one after the other."""
    rest, found = list(range(len(values))), []
    for _ in range(number):
        middle = median(values[i] for i in rest)
        found.append(max(rest, key=lambda i: abs(values[i] - middle)))
        rest.remove(found[-1])
    return found


def _chance(scale: _Scale, group: Sequence[int], rest: Sequence[int]) -> float:
    """Return a bound of the probability that `group` lies so far from the rest by chance.

    Either all its launches lie on one side together, or each lies far off on any side.
    """
    inner = [scale.values[i] for i in rest]
    freedom = len(rest) + len(group) - 2
    together = _apart([scale.values[i] for i in group], inner, scale.error)
    # More choices than this exclude any flag, and a larger number has no float.
    choices = min(comb(freedom + 2, len(group)), 10**300)
    if len(group) == 1:
        return choices * student_tail(together, freedom)
    alone = _apart([scale.values[group[-1]]], inner, scale.error)
    return 2 * min(
        choices * student_tail(together, freedom),
        choices * len(group) * student_tail(alone, len(rest) - 1),
    )


def outliers(values: Sequence[float], error: float = FAMILY_ERROR) -> tuple[int, ...]:
    """Return the positions of values far from the others, with at most this error."""
    n = len(values)
    if n < MIN_OUTLIER or min(values) == max(values):
        return ()
    scales = _scales(values)
    most = max(1, int(OUTLIER_SHARE * n))
    order = _extremes(values, most)
    least = LEAST_SHARE * abs(median(values))
    found: tuple[int, ...] = ()
    for number in range(1, most + 1):
        group, rest = order[:number], [i for i in range(n) if i not in order[:number]]
        if abs(values[group[-1]] - median(values[i] for i in rest)) <= least:
            continue
        if most * max(_chance(scale, group, rest) for scale in scales) <= error:
            found = tuple(sorted(group))
    return found


def modes(values: Sequence[float], error: float = FAMILY_ERROR) -> tuple[int, float] | None:
    """Return the number of values below the widest gap and its middle, if it separates two modes.

    Each side must hold a fifth of the values, and the gap must be wider than either side.
    """
    ordered = sorted(values)
    n = len(ordered)
    least = max(2, round(MODE_SHARE * n))
    if n < MIN_SHAPE:
        return None
    below = max(range(least, n - least + 1), key=lambda i: ordered[i] - ordered[i - 1])
    gap = ordered[below] - ordered[below - 1]
    widest = max(ordered[below - 1] - ordered[0], ordered[-1] - ordered[below])
    if gap <= max(widest, LEAST_SHARE * abs(median(values))):
        return None
    partitions = sum(comb(n, k) for k in range(least, n - least + 1)) / 2
    wrong = max(
        partitions * student_tail(_apart(s.values[:below], s.values[below:], s.error), n - 2)
        for s in _scales(ordered)
    )
    return (below, (ordered[below] + ordered[below - 1]) / 2) if wrong <= error else None


def anderson_darling(values: Sequence[float]) -> float:
    """Return Anderson and Darling's statistic against a normal of unknown mean and deviation."""
    n, mean = len(values), fmean(values)
    deviation = sqrt(sum((v - mean) ** 2 for v in values) / (n - 1))
    if deviation == 0:
        return 0.0
    share = [
        min(max(0.5 * (1 + erf((v - mean) / deviation / sqrt(2))), 1e-300), 1 - 1e-16)
        for v in sorted(values)
    ]
    total = sum((2 * i + 1) * (log(share[i]) + log(1 - share[n - 1 - i])) for i in range(n))
    return (-n - total / n) * (1 + 0.75 / n + 2.25 / n**2)


def shape_error(statistic: float) -> float:
    """Return the probability that normal launches have such a statistic of Anderson and Darling."""
    if statistic < 0.6:  # noqa: PLR2004 - the formula of Stephens begins here
        return 1.0
    return exp(1.2937 - 5.709 * statistic + 0.0186 * min(statistic, 10) ** 2)


def _spread(values: Sequence[float]) -> list[float]:
    """Return sorted values; equal values are spread over their step of the grid."""
    ordered, step = sorted(values), resolution(values)
    return [
        value + step * ((i - ordered.index(value) + 0.5) / ordered.count(value) - 0.5)
        for i, value in enumerate(ordered)
    ]


def not_normal(values: Sequence[float], error: float = FAMILY_ERROR) -> float | None:
    """Return the statistic of Anderson and Darling if neither a normal nor a log-normal fits.

    The smaller statistic counts. None also if the grid is too coarse to show a shape.
    """
    middle = fmean(values)
    deviation = sqrt(sum((v - middle) ** 2 for v in values) / (len(values) - 1))
    if deviation == 0 or deviation < resolution(values) / 2:
        return None
    fine = _spread(values)
    statistic = anderson_darling(fine)
    if fine[0] > 0:
        statistic = min(statistic, anderson_darling([log(v) for v in fine]))
    return statistic if shape_error(statistic) <= error else None


@lru_cache(maxsize=256)
def _inversions(n: int) -> tuple[int, ...]:
    """Return the numbers of orders of n values with 0, 1, 2, ... falling pairs."""
    counts = [1]
    for size in range(2, n + 1):
        total = len(counts) + size - 1
        counts = [sum(counts[max(0, i - size + 1) : i + 1]) for i in range(total)]
    return tuple(counts)


def trend(values: Sequence[float]) -> tuple[int, float]:
    """Return the growing pairs minus the falling pairs, and the probability of such a score.

    It comes from Kendall's exact distribution, for both directions; ties count as contrary.
    """
    n = len(values)
    pairs = [(a, b) for i, a in enumerate(values) for b in values[i + 1 :]]
    grow, fall = sum(b > a for a, b in pairs), sum(b < a for a, b in pairs)
    contrary = len(pairs) - max(grow, fall)
    chance = 2 * sum(_inversions(n)[: contrary + 1]) / factorial(n)
    return grow - fall, min(1.0, chance)


def flags(values: Sequence[float], cells: int = 1) -> tuple[Flag, ...]:
    """Return the flags of a cell whose values are in the order of the launches.

    `cells` is the number of cells of the whole study: with more cells, a flag needs more evidence.
    """
    error = FAMILY_ERROR / (TESTS * max(1, cells))
    found = []
    odd = outliers(values, error)
    if odd:
        shown = ", ".join(f"{values[i]:g}" for i in odd[:5])
        found.append(Flag(FlagKind.OUTLIER, f"{shown} far from the median {median(values):g}", odd))
    if len(values) >= MIN_SHAPE:
        found += _shape(list(values), error)
    if odd == (0,):
        reason = f"the first launch alone is far off: {values[0]:g}"
        found.append(Flag(FlagKind.FIRST_LAUNCH, reason, odd))
    return tuple(found)


def _shape(values: list[float], error: float) -> list[Flag]:
    found = []
    parted = modes(values, error)
    if parted:
        below, at = parted
        reason = f"{below} launches below {at:g}, {len(values) - below} above, none near"
        found.append(Flag(FlagKind.BIMODAL, reason))
    statistic = not_normal(values, error)
    if statistic is not None:
        reason = f"neither normal nor log-normal: Anderson-Darling {statistic:.2f}"
        found.append(Flag(FlagKind.NON_NORMAL, reason))
    score, chance = trend(values)
    if chance <= error:
        way = "grow" if score > 0 else "fall"
        reason = f"values {way} from launch to launch, by chance once in {1 / chance:.0f}"
        found.append(Flag(FlagKind.DRIFT, reason))
    return found
