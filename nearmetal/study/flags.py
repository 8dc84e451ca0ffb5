# SPDX-License-Identifier: Apache-2.0
"""Flags on a cell: what a reader must know before believing its median. Nothing is removed. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from math import erf, log, sqrt
from statistics import fmean, median, stdev
from typing import TYPE_CHECKING

from nearmetal.study.stats import mad

if TYPE_CHECKING:
    from collections.abc import Sequence

OUTLIER_Z = 3.5
"""Iglewicz and Hoaglin's bound of 0.6745 times the distance from the median by the MAD."""

LEAST_SHARE = 0.01
"""What differs by less than this share of the median is no outlier, however narrow the rest is."""

MIN_SHAPE = 8
"""Launches below which nothing is said about shape or trend."""

MODE_SHARE = 0.2
ANDERSON_DARLING_5_PERCENT = 0.752
TREND_Z = 2.576


class Kind(Enum):
    """What is flagged."""

    OUTLIER = "outlier"
    BIMODAL = "two modes"
    NON_NORMAL = "not normal"
    FIRST_LAUNCH = "first launch"
    DRIFT = "drift"


@dataclass(frozen=True)
class Flag:
    """One flag, the reason in words, and the positions of the launches (0-based) it is about."""

    kind: Kind
    reason: str
    launches: tuple[int, ...] = ()


def outliers(values: Sequence[float]) -> tuple[int, ...]:
    """Return the positions of values far from the others."""
    if len(values) < 3:  # noqa: PLR2004 - of two, neither is the odd one
        return ()
    middle, spread = median(values), mad(values)
    bound = max(OUTLIER_Z * spread / 0.6745, LEAST_SHARE * abs(middle))
    return tuple(i for i, value in enumerate(values) if abs(value - middle) > bound)


def modes(values: Sequence[float]) -> tuple[int, float] | None:
    """Return how many values are below the widest gap and its middle, if it parts two modes.

    Each side must hold a fifth of the values, and the gap must be wider than either side.
    """
    ordered = sorted(values)
    n = len(ordered)
    least = max(2, round(MODE_SHARE * n))
    if n < MIN_SHAPE:
        return None
    below = max(range(least, n - least + 1), key=lambda i: ordered[i] - ordered[i - 1])
    gap = ordered[below] - ordered[below - 1]
    if gap <= max(ordered[below - 1] - ordered[0], ordered[-1] - ordered[below]):
        return None
    if gap <= LEAST_SHARE * abs(median(values)):
        return None
    return below, (ordered[below] + ordered[below - 1]) / 2


def anderson_darling(values: Sequence[float]) -> float:
    """Return Anderson and Darling's statistic against a normal of unknown mean and deviation."""
    n, mean, deviation = len(values), fmean(values), stdev(values)
    if deviation == 0:
        return 0.0
    share = [
        min(max(0.5 * (1 + erf((v - mean) / deviation / sqrt(2))), 1e-300), 1 - 1e-16)
        for v in sorted(values)
    ]
    total = sum((2 * i + 1) * (log(share[i]) + log(1 - share[n - 1 - i])) for i in range(n))
    return (-n - total / n) * (1 + 0.75 / n + 2.25 / n**2)


def trend(values: Sequence[float]) -> float:
    """Return Mann and Kendall's z: positive when values grow from launch to launch."""
    n = len(values)
    score = sum((b > a) - (b < a) for i, a in enumerate(values) for b in values[i + 1 :])
    ties = [values.count(v) for v in set(values)]
    variance = (n * (n - 1) * (2 * n + 5) - sum(t * (t - 1) * (2 * t + 5) for t in ties)) / 18
    if variance <= 0 or score == 0:
        return 0.0
    return (score - (1 if score > 0 else -1)) / sqrt(variance)


def flags(values: Sequence[float]) -> tuple[Flag, ...]:
    """Return the flags of a cell whose values are in the order of the launches."""
    found = []
    middle = median(values)
    odd = outliers(values)
    if odd:
        told = ", ".join(f"{values[i]:g}" for i in odd[:5])
        found.append(Flag(Kind.OUTLIER, f"{told} far from the median {middle:g}", odd))
    if len(values) >= MIN_SHAPE:
        found += _shape(list(values))
    rest = list(values[1:])
    if len(rest) >= 4 and 0 in outliers(values) and not outliers(rest):  # noqa: PLR2004 - a spread
        found.append(
            Flag(Kind.FIRST_LAUNCH, f"the first launch alone is far off: {values[0]:g}", (0,))
        )
    return tuple(found)


def _shape(values: list[float]) -> list[Flag]:
    found = []
    parted = modes(values)
    if parted:
        below, at = parted
        reason = f"{below} launches below {at:g}, {len(values) - below} above, none near"
        found.append(Flag(Kind.BIMODAL, reason))
    statistic = anderson_darling(values)
    if statistic > ANDERSON_DARLING_5_PERCENT:
        found.append(Flag(Kind.NON_NORMAL, f"Anderson-Darling {statistic:.2f}, 5 % is at 0.752"))
    z = trend(values)
    if abs(z) > TREND_Z:
        way = "grow" if z > 0 else "fall"
        found.append(Flag(Kind.DRIFT, f"values {way} from launch to launch, z = {z:.1f}"))
    return found
