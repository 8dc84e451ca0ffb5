# SPDX-License-Identifier: Apache-2.0
"""Jitter over all pairs of nodes, and what neighbours on the same adapter do to each other. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean, median, stdev
from typing import TYPE_CHECKING

from nearmetal.core.errors import NearmetalError
from nearmetal.study.stats import Ratio, percentile, ratio

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from nearmetal.study.model import Cell


@dataclass(frozen=True)
class Jitter:
    """The spread of one figure over pairs (and their launches): 3 sigma as papers show, and tails."""

    pairs: int
    values: int
    mean: float
    three_sigma: float
    median: float
    p95: float
    p99: float
    worst: tuple[str, float]

    @property
    def tail(self) -> float:
        """The 99th percentile in units of the median."""
        return self.p99 / self.median


def jitter(by_pair: Mapping[str, Sequence[float]], *, lower_is_better: bool = True) -> Jitter:
    """Return the jitter of at least two values; the worst pair is by its median."""
    values = [value for found in by_pair.values() for value in found]
    if len(values) < 2:  # noqa: PLR2004 - one value has no spread
        raise NearmetalError(f"{len(values)} values over all pairs", "jitter needs at least two")
    middles = {pair: median(found) for pair, found in by_pair.items() if found}
    worst = (max if lower_is_better else min)(middles, key=lambda pair: middles[pair])
    tails = (95, 99) if lower_is_better else (5, 1)
    return Jitter(
        len(middles),
        len(values),
        fmean(values),
        3 * stdev(values),
        median(values),
        percentile(values, tails[0]),
        percentile(values, tails[1]),
        (worst, middles[worst]),
    )


def by_pair(cells: Iterable[Cell]) -> dict[str, list[float]]:
    """Return the values of one figure by pair: each pair is a variant of an all-pairs matrix."""
    found: dict[str, list[float]] = {}
    for cell in cells:
        found.setdefault(cell.point.variant, []).extend(cell.values)
    return found


def over_pairs(cells: Iterable[Cell], metric: str) -> Jitter:
    """Return the jitter of one arm's all-pairs matrices."""
    chosen = [c for c in cells if c.point.test == "all_pairs" and c.point.metric == metric]
    lower = all(cell.point.lower_is_better for cell in chosen)
    return jitter(by_pair(chosen), lower_is_better=lower)


@dataclass(frozen=True)
class Inflation:
    """What a busy neighbour costs: ratios of busy to quiet, of the median and of the tail."""

    median: Ratio
    tail: float


def noisy_neighbour(quiet: Sequence[float], busy: Sequence[float]) -> Inflation:
    """Return the inflation of latencies of a VF when others of its PF are busy."""
    found = ratio(busy, quiet)
    if found is None:
        raise NearmetalError("a latency that is not above zero", "there is no ratio of it")
    return Inflation(found, percentile(busy, 99) / percentile(quiet, 99))
