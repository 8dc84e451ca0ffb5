# SPDX-License-Identifier: Apache-2.0
"""The scales of charts: bounds that hold all values, and the round values that an axis names. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, floor, log2, log10

_MOST_TICKS = 6
_MANY_DECADES = 2.2


def place_of(size: int) -> float:
    """Return the place of a size on the axis: powers of two are one apart, 0 stands before 1."""
    return -1.0 if size == 0 else log2(size)


def decades(values: Sequence[float]) -> tuple[float, float]:
    """Return bounds of a logarithmic axis that hold all values: 1, 2 or 5 times a power of ten."""
    positive = [v for v in values if v > 0]
    if not positive:
        return 0.1, 10.0
    low, high = min(positive), max(positive)
    below, above = 10.0 ** floor(log10(low)), 10.0 ** ceil(log10(high))
    return (
        max(m * below for m in (1, 2, 5) if m * below <= low * 1.0001),
        min(m * above for m in (0.2, 0.5, 1, 2) if m * above >= high * 0.9999),
    )


def _step(span: float) -> float:
    """Return a round step that cuts a span into three to six."""
    power: float = 10.0 ** floor(log10(span))
    return next(m * power for m in (0.2, 0.25, 0.5, 1, 2) if span / (m * power) <= _MOST_TICKS)


def even(values: Sequence[float]) -> tuple[float, float]:
    """Return bounds of an even axis that hold all values: multiples of its step."""
    low, high = min(values), max(values)
    if low == high == 0:
        return 0.0, 1.0
    step = _step(max(high - low, 0.02 * abs(high)))
    return floor(low / step) * step, ceil(high / step) * step


def ticks(low: float, high: float, *, log: bool) -> list[float]:
    """Return the values that an axis between bounds names."""
    if not log:
        step = _step(high - low)
        first, last = ceil(low / step - 1e-6), floor(high / step + 1e-6)
        return [round(n * step, 9) for n in range(first, last + 1)]
    powers = range(floor(log10(low)), ceil(log10(high)) + 1)
    steps = (1,) if log10(high / low) > _MANY_DECADES else (1, 2, 5)
    found = [m * 10.0**p for p in powers for m in steps]
    return [t for t in found if low * 0.999 <= t <= high * 1.001]


def named(sizes: Sequence[int], crowded: int, step: int) -> Sequence[int]:
    """Return the sizes that an axis names: all, or powers of two at this distance."""
    if len(sizes) <= crowded:
        return sizes
    return [s for s in sizes if s == 0 or log2(s) % step == 0] or [sizes[0], sizes[-1]]
