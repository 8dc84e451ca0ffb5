# SPDX-License-Identifier: Apache-2.0
"""Robust statistics of a class: median, MAD, the z of a value, and the errors of retests. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import ceil, comb, inf
from statistics import NormalDist, median, median_low
from typing import NamedTuple

FLOOR = 0.07
"""A slowness up to this is never a finding. It is a natural logarithm, so about 7 %."""

FALSE_ALARM = 0.05
"""Largest chance that a healthy cluster has any finding, over all its nodes, pairs and quantities."""

SHARE = 2 / 3
"""Share of the retests that must be slow."""

_TO_DEVIATION = 1.4826
"""The standard deviation of a normal distribution in its MADs."""

_MOST_RETESTS = 400


class Spread(NamedTuple):
    """The middle of a class, and its standard deviation as the MAD shows it."""

    middle: float
    deviation: float

    def z(self, value: float) -> float:
        """Return the robust z of a value.

        With a MAD of 0, more than half of the class agrees: each larger value has an infinite z,
        and the floor alone decides.
        """
        above = value - self.middle
        if self.deviation > 0:
            return above / self.deviation
        return inf if above > 0 else 0.0


def spread(values: Sequence[float]) -> Spread:
    """Return the spread of slownesses. The middle of an even number is the faster one.

    So in a class of four in which two are slow, the fast ones are the norm.
    """
    middle = median_low(values)
    return Spread(middle, _TO_DEVIATION * median(abs(value - middle) for value in values))


def suspicious_z(tests: int) -> float:
    """Return the z from which a value is retested.

    Of normal values without any slow one, `tests` of them reach it once on average. A suspicion is
    no finding, so this number only balances retests against overlooked nodes.
    """
    return NormalDist().inv_cdf(1 - 1 / max(tests, 20))


def chance(retests: int, slow: int) -> float:
    """Return the chance that at least `slow` of the retests are slow if each is with 1/2."""
    return float(sum(comb(retests, count) for count in range(slow, retests + 1)) / 2**retests)


@cache
def retests_needed(suspicions: int) -> tuple[int, int]:
    """Return the number of retests, and how many of them must be slow, for each of the suspicions.

    It is the least number with which SHARE of the retests proves all of them together.
    """
    if not suspicions:
        return 0, 0
    for count in range(4, _MOST_RETESTS, 2):
        slow = ceil(SHARE * count)
        if chance(count, slow) <= FALSE_ALARM / suspicions:
            return count, slow
    return _MOST_RETESTS, _MOST_RETESTS
