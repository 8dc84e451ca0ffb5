# SPDX-License-Identifier: Apache-2.0
"""Margins of non-inferiority: how much worse is still acceptable, by direction of the metric. Pure.

44 of 48 cores are 8.33 % less throughput, but 9.09 % more time: a margin is a ratio, and which one
depends on the metric. It comes from core counts or from a declared percentage, never from habit.
"""

from __future__ import annotations

from dataclasses import dataclass

from nearmetal.core.errors import NearmetalError

MAX_PERCENT = 100


@dataclass(frozen=True)
class Margin:
    """The ratio test / base that is just acceptable: above 1 for times, below 1 for rates."""

    limit: float
    lower_is_better: bool
    origin: str

    @property
    def percent(self) -> float:
        """How much worse that is, in percent of the base."""
        return abs(self.limit - 1) * 100


def from_cores(base: int, test: int, *, lower_is_better: bool) -> Margin:
    """Return the margin that a loss of cores explains."""
    if base < 1 or test < 1:
        raise NearmetalError(f"{base} and {test} cores", "core counts are at least 1")
    limit = base / test if lower_is_better else test / base
    return Margin(limit, lower_is_better, f"{test} of {base} cores")


def from_percent(percent: float, *, lower_is_better: bool) -> Margin:
    """Return a declared margin: so much more time, or so much less of a rate."""
    if not 0 <= percent < MAX_PERCENT:
        raise NearmetalError(f"a margin of {percent} %", "it must be at least 0 and below 100")
    limit = 1 + percent / 100 if lower_is_better else 1 - percent / 100
    return Margin(limit, lower_is_better, f"declared {percent:g} %")
