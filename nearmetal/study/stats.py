# SPDX-License-Identifier: Apache-2.0
"""Statistics of launches: order statistics, so that no distribution is assumed. Pure.

Every interval has its achieved coverage, because order statistics have steps. There is no
resampling, so the same launches give the same digits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from math import ceil, comb
from statistics import fmean, median, stdev
from typing import NamedTuple

LEVEL = 0.95
MOST_ERROR = 1 - LEVEL + 1e-12
"""An error of a median up to this decides; binary fractions may add a little."""

MIN_LAUNCHES = 6
"""Fewer cannot give a 95 % interval of a median: 1 - 2 / 2^5 is 93.75 %."""


class Interval(NamedTuple):
    """An interval with its achieved coverage."""

    low: float
    high: float
    coverage: float


@lru_cache(maxsize=1024)
def _coverages(n: int) -> tuple[float, ...]:
    """Return the coverage of each rank from 1 to n / 2; it falls with the rank."""
    below = accumulate(comb(n, i) for i in range(n // 2))
    return tuple(1.0 - float(2 * count / 2**n) for count in below)


def coverage(n: int, rank: int) -> float:
    """Return how often the `rank`-th smallest and largest of n values hold the median between them."""
    return _coverages(n)[rank - 1]


def median_interval(values: Sequence[float], level: float = LEVEL) -> Interval | None:
    """Return the interval of the median; None: too few values for the level."""
    rank = sum(reached >= level for reached in _coverages(len(values)))
    if rank == 0:
        return None
    ordered = sorted(values)
    return Interval(ordered[rank - 1], ordered[-rank], coverage(len(values), rank))


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the smallest value that `percent` of all values do not exceed (nearest rank)."""
    ordered = sorted(values)
    return ordered[max(0, ceil(percent / 100 * len(ordered)) - 1)]


def mad(values: Sequence[float]) -> float:
    """Return the median of the distances from the median."""
    middle = median(values)
    return median(abs(value - middle) for value in values)


@dataclass(frozen=True)
class Summary:
    """The statistics of one cell. Values are in the order of the launches.

    `p95` needs 20 launches and `p99` 100: one launch must lie above. `stdev` needs 2.
    """

    values: tuple[float, ...]
    median: float
    interval: Interval | None
    minimum: float
    maximum: float
    mad: float
    mean: float
    stdev: float | None
    p95: float | None
    p99: float | None

    @property
    def n(self) -> int:
        """The number of launches."""
        return len(self.values)


def summarize(values: Sequence[float], level: float = LEVEL) -> Summary:
    """Return the summary of at least one value."""
    n = len(values)
    return Summary(
        tuple(values),
        median(values),
        median_interval(values, level),
        min(values),
        max(values),
        mad(values),
        fmean(values),
        stdev(values) if n > 1 else None,
        percentile(values, 95) if n >= 20 else None,  # noqa: PLR2004 - 1 / (1 - 0.95)
        percentile(values, 99) if n >= 100 else None,  # noqa: PLR2004 - 1 / (1 - 0.99)
    )


class Ratio(NamedTuple):
    """The ratio of two medians, with its interval if launches suffice (`nearmetal.study.ratios`)."""

    value: float
    low: float | None
    high: float | None


def adjust(errors: Sequence[float]) -> list[float]:
    """Return errors adjusted for their number, after Benjamini and Hochberg.

    With adjusted errors, at most the stated share of all decisions is wrong on average.
    """
    return _adjust(errors, lambda n, rank: n / rank)


def adjust_all(errors: Sequence[float]) -> list[float]:
    """Return errors adjusted for their number, after Hochberg (1988, doi:10.1093/biomet/75.4.800).

    With adjusted errors, the stated error is the chance of any wrong decision at all.
    """
    return _adjust(errors, lambda n, rank: n - rank + 1)


def _adjust(errors: Sequence[float], factor: Callable[[int, int], float]) -> list[float]:
    """Return errors times their factor, from the largest (rank n) down, never growing."""
    order = sorted(range(len(errors)), key=lambda i: errors[i], reverse=True)
    adjusted, lowest = [1.0] * len(errors), 1.0
    for position, index in enumerate(order):
        lowest = min(lowest, errors[index] * factor(len(errors), len(errors) - position))
        adjusted[index] = lowest
    return adjusted
