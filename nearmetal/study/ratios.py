# SPDX-License-Identifier: Apache-2.0
"""The ratio of two arms from all pairs of their launches: interval, and error of a limit. Pure.

Each launch of one arm is divided by each launch of the other. If both arms scatter in the same way,
whatever their distribution, the number of quotients above the true ratio has an exact distribution
(Mann and Whitney 1947, doi:10.1214/aoms/1177730491), and two order statistics of the quotients are
an exact interval (Hodges and Lehmann 1963, doi:10.1214/aoms/1177704172). Equal values count against a
decision. Three rules make it safer:

* If one arm scatters more than the other, the number of quotients varies more. Its variance is
  estimated from the placements (Fligner and Policello 1981, doi:10.1080/01621459.1981.10477623), and
  the distance of the ranks from the middle grows by the root of its excess.
* The interval contains the ratio of the medians, which is the estimate that is shown.
* The error is RATIO_ERROR and not 5 %, so that the interval still holds the ratio in 95 % of studies
  if launches were repeated until the intervals of the medians were narrow.

If both arms have the same two modes, the first and the third rule waste error, because such launches
spread a lot and differ only by chance. If the numbers of launches are equal, and the modes are
equally far apart, alike in width and equally often taken, the interval is that of 5 % without the
first rule: the largest error that arms which scatter alike allow.

`benchmarks/study_power.py` is the simulation; docs/design/study-power.md has its tables.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate
from math import ceil, comb, exp, floor, log, sqrt
from statistics import NormalDist, fmean, median

from nearmetal.study.stats import MIN_LAUNCHES, Ratio

RATIO_ERROR = 0.026
"""Error of both sides of the interval of a ratio: 1.3 % a side, a step that six launches have."""

MODES_ERROR = 0.05
"""The same for arms with the same two modes. Arms that scatter alike never err more often."""

APART = 3
"""Modes are at least so many times as far apart as either is wide."""

AS_WIDE = 3
"""Modes of one arm are at most so many times as wide as those of the other."""

MAX_EXACT = 2500
"""With more pairs, the normal approximation replaces the exact distribution."""

MAX_SORTED = 10_000
"""With more pairs, an order statistic is searched, and the quotients are not listed."""

_TINY = 1e-12
"""Logarithms that are nearer are equal."""


@lru_cache(maxsize=256)
def _chances(m: int, n: int) -> tuple[float, ...]:
    """Return the probability of at most 0, 1, 2, ... of the m * n pairs in one order."""
    counts = [1] + [0] * (m * n)
    for i in range(1, m + 1):
        for at in range(m * n, n + i - 1, -1):
            counts[at] -= counts[at - n - i]
        for at in range(i, m * n + 1):
            counts[at] += counts[at - i]
    return tuple(count / comb(m + n, n) for count in accumulate(counts))


def chance(m: int, n: int, pairs: int) -> float:
    """Return the probability of at most `pairs` of the m * n pairs in one order, for equal arms."""
    if m * n <= MAX_EXACT:
        return _chances(m, n)[pairs]
    return NormalDist(m * n / 2, sqrt(m * n * (m + n + 1) / 12)).cdf(pairs + 0.5)


@lru_cache(maxsize=1024)
def critical(m: int, n: int, error: float) -> int:
    """Return the most pairs in one order that decide with this error; -1: none."""
    return bisect_right(range(m * n // 2), error / 2, key=lambda u: chance(m, n, u)) - 1


def _modes(ordered: Sequence[float]) -> tuple[Sequence[float], Sequence[float]] | None:
    """Return the values below and above the largest gap, if both are narrow beside it."""
    at = max(range(1, len(ordered)), key=lambda i: ordered[i] - ordered[i - 1])
    lower, upper = ordered[:at], ordered[at:]
    gap = upper[0] - lower[-1]
    return (lower, upper) if gap > max(_TINY, APART * _width(lower, upper)) else None


def _width(*modes: Sequence[float]) -> float:
    return max(mode[-1] - mode[0] for mode in modes)


@dataclass(frozen=True)
class PairedArms:
    """The sorted logarithms of two arms."""

    base: list[float]
    test: list[float]

    @property
    def pairs(self) -> int:
        """The number of pairs of launches."""
        return len(self.base) * len(self.test)

    def at(self, *ranks: int) -> list[float]:
        """Return order statistics (from 0) of all differences test - base."""
        if self.pairs <= MAX_SORTED:
            return [self._differences[rank] for rank in ranks]
        return [self._search(rank) for rank in ranks]

    @cached_property
    def _differences(self) -> list[float]:
        return sorted(ours - theirs for ours in self.test for theirs in self.base)

    def _search(self, rank: int) -> float:
        low, high = self.test[0] - self.base[-1], self.test[-1] - self.base[0]
        while low < (middle := (low + high) / 2) < high:
            up_to = sum(bisect_right(self.test, theirs + middle) for theirs in self.base)
            low, high = (low, middle) if up_to > rank else (middle, high)
        return high

    @cached_property
    def same_modes(self) -> bool:
        """Both arms have two modes, as far apart, as wide and as often taken, as far as one sees.

        With unlike numbers of launches, the exact chance does not bear unlike widths: never then.
        """
        if len(self.base) != len(self.test) or len(self.base) < MIN_LAUNCHES:
            return False
        base, test = _modes(self.base), _modes(self.test)
        if base is None or test is None:
            return False
        distances = [median(upper) - median(lower) for lower, upper in (base, test)]
        narrow, wide = sorted((_width(*base), _width(*test)))
        near = abs(distances[0] - distances[1]) <= max(_TINY, wide)
        alike = wide <= max(_TINY, AS_WIDE * narrow)
        return near and alike and abs(len(base[1]) - len(test[1])) <= 1

    def stretch(self) -> float:
        """Return by how much the deviation of the number of pairs exceeds that of equal arms."""
        shift = fmean(self.at((self.pairs - 1) // 2, self.pairs // 2))
        moved = [value - shift for value in self.test]
        squares = 0.0
        for ours, theirs in ((self.base, moved), (moved, self.base)):
            places = [
                (bisect_left(ours, value - _TINY) + bisect_right(ours, value + _TINY)) / 2
                for value in theirs
            ]
            middle = fmean(places)
            squares += sum((place - middle) ** 2 for place in places)
        equal = self.pairs * (len(self.base) + len(self.test) + 1) / 12
        return sqrt(max(1.0, squares / equal))


def ratio(test: Sequence[float], base: Sequence[float], error: float = RATIO_ERROR) -> Ratio | None:
    """Return median(test) / median(base) with its interval; None: a value is not above zero."""
    if min(*test, *base) <= 0:
        return None
    value = median(test) / median(base)
    if min(len(test), len(base)) < MIN_LAUNCHES:
        return Ratio(value, None, None)
    arms = PairedArms(sorted(map(log, base)), sorted(map(log, test)))
    most = critical(len(base), len(test), error)
    if most < 0:
        return Ratio(value, None, None)
    if arms.same_modes:
        rank = critical(len(base), len(test), error * MODES_ERROR / RATIO_ERROR)
    else:
        middle = arms.pairs / 2
        # Values that do not overlap at all always decide.
        rank = max(0, floor(middle - arms.stretch() * (middle - most)))
    low, high = arms.at(rank, arms.pairs - 1 - rank)
    return Ratio(value, min(value, exp(low)), max(value, exp(high)))


def exclusion_p(
    test: Sequence[float], base: Sequence[float], limit: float, *, least: int = MIN_LAUNCHES
) -> float:
    """Return the smallest error at which a limit is outside the interval of the ratio, at most 1.

    With fewer than `least` launches of an arm it is 1.
    """
    if min(len(test), len(base)) < least or limit <= 0 or min(*test, *base) <= 0:
        return 1.0
    arms = PairedArms(sorted(map(log, base)), sorted(map(log, test)))
    above = limit < median(test) / median(base)
    edge = log(limit) + (_TINY if above else -_TINY)
    up_to = sum((bisect_right if above else bisect_left)(arms.test, x + edge) for x in arms.base)
    contrary = up_to if above else arms.pairs - up_to
    middle = arms.pairs / 2
    if contrary >= middle:
        return 1.0
    if arms.same_modes:
        exact = 2 * chance(len(base), len(test), contrary)
        return min(1.0, exact * RATIO_ERROR / MODES_ERROR)
    moved = ceil(middle - (middle - contrary) / arms.stretch() - _TINY) if contrary else 0
    return min(1.0, 2 * chance(len(base), len(test), moved))
