# SPDX-License-Identifier: Apache-2.0
"""Effects of one arm against another: split tax, strong scaling, jitter, signed tables. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean, median, stdev
from typing import NamedTuple

from nearmetal.core.errors import NearmetalError
from nearmetal.core.text import size_text
from nearmetal.study.flags import FAMILY_ERROR, outliers
from nearmetal.study.judge import Comparison
from nearmetal.study.model import Cell
from nearmetal.study.ratios import ratio
from nearmetal.study.stats import MIN_LAUNCHES, Ratio, percentile


class Loss(NamedTuple):
    """A loss of throughput as a share, with the limits of its interval or of its rounding."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class TaxSplit:
    """The cost of a VM: 1 - total = (1 - core loss) (1 - virtualization).

    `total` is against bare metal with all cores, `core_loss` is that of bare metal with as many
    cores as the VM has. `verdict` is empty, or the reason why there is no verdict.
    """

    total: Loss
    core_loss: Loss
    virtualization: Loss
    verdict: str = "no verdict: no variance was published"


def rounded(percent: float, digits: int = 1) -> Loss:
    """Return a published percentage with the limits that its digits leave open."""
    half = 0.5 * 10**-digits
    return Loss(percent / 100, (percent - half) / 100, (percent + half) / 100)


def decompose(total: Loss, core_loss: Loss) -> TaxSplit:
    """Split a published total loss by the loss of reduced bare metal."""
    if core_loss.high >= 1:
        raise NearmetalError("the core loss is 100 %", "nothing is left to compare; check the arms")
    pairs = zip(total, (core_loss.value, core_loss.high, core_loss.low), strict=True)
    rest = Loss(*(1 - (1 - whole) / (1 - cores) for whole, cores in pairs))
    return TaxSplit(total, core_loss, rest)


def split_tax(
    full: Sequence[float], reduced: Sequence[float], vm: Sequence[float], *, lower_is_better: bool
) -> TaxSplit:
    """Split the tax of three cells; the limits are those of the ratios, if launches suffice."""
    losses = []
    for test, base in ((vm, full), (reduced, full), (vm, reduced)):
        found = ratio(base, test) if lower_is_better else ratio(test, base)
        if found is None:
            raise NearmetalError("a value is not above zero", "a ratio needs values above zero")
        low = found.value if found.low is None else found.low
        high = found.value if found.high is None else found.high
        losses.append(Loss(1 - found.value, 1 - high, 1 - low))
    measured = all(loss.low < loss.high for loss in losses)
    verdict = "" if measured else f"no verdict: an arm has fewer than {MIN_LAUNCHES} launches"
    total, core_loss, rest = losses
    return TaxSplit(total, core_loss, rest, verdict)


class Efficiency(NamedTuple):
    """Strong scaling at one number of nodes: speed-up over the smallest number, and its ideal."""

    nodes: int
    speedup: Ratio
    ideal: float

    @property
    def value(self) -> float:
        """The efficiency; 1 is ideal."""
        return self.speedup.value / self.ideal


def efficiency(cells: Iterable[Cell]) -> list[Efficiency]:
    """Return the efficiencies of one arm's cells that differ in nodes only, smallest first."""
    by_nodes = {cell.point.nodes: cell for cell in cells if cell.point.nodes}
    found = []
    for nodes in sorted(nodes for nodes in by_nodes if nodes):
        smallest = min(n for n in by_nodes if n)
        sides = (by_nodes[nodes].values, by_nodes[smallest].values)
        lower = by_nodes[nodes].point.lower_is_better
        speedup = ratio(*(sides[::-1] if lower else sides))
        if speedup is not None:
            found.append(Efficiency(nodes, speedup, nodes / smallest))
    return found


@dataclass(frozen=True)
class Jitter:
    """The spread of one metric over pairs (and their launches): 3 sigma as papers show, and tails."""

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
        raise NearmetalError(
            f"{len(values)} values over all pairs", "jitter needs two; add launches"
        )
    middles = {pair: median(found) for pair, found in by_pair.items() if found}
    worst = (max if lower_is_better else min)(middles, key=lambda pair: middles[pair])
    p95, p99 = (percentile(values, p if lower_is_better else 100 - p) for p in (95, 99))
    return Jitter(
        len(middles),
        len(values),
        fmean(values),
        3 * stdev(values),
        median(values),
        p95,
        p99,
        (worst, middles[worst]),
    )


def by_pair(cells: Iterable[Cell]) -> dict[str, list[float]]:
    """Return the values of one metric by pair: each pair is a variant of an all-pairs matrix."""
    found: dict[str, list[float]] = {}
    for cell in cells:
        found.setdefault(cell.point.variant, []).extend(cell.values)
    return found


@dataclass(frozen=True)
class Inflation:
    """The cost of a busy neighbour: ratios of busy to quiet, of the median and of the tail."""

    median: Ratio
    tail: float


def noisy_neighbour(quiet: Sequence[float], busy: Sequence[float]) -> Inflation:
    """Return the inflation of latencies of a VF while others of its PF are busy."""
    found = ratio(busy, quiet)
    if found is None:
        raise NearmetalError("a latency is not above zero", "a ratio needs values above zero")
    return Inflation(found, percentile(busy, 99) / percentile(quiet, 99))


RULE = (
    "flagged: cells far from the other cells of the table, with an error of at most "
    f"{FAMILY_ERROR:.0%} per table (Grubbs, Rosner)"
)


@dataclass(frozen=True)
class SignedTable:
    """Percentages by row and column; plus: `first` is faster, minus: `second` is."""

    first: str
    second: str
    cells: Mapping[tuple[str, str], float]

    @cached_property
    def flagged(self) -> dict[tuple[str, str], float]:
        """The outliers among the cells, by the rule of all flags."""
        keys = list(self.cells)
        return {keys[i]: self.cells[keys[i]] for i in outliers(list(self.cells.values()))}

    def shown(self, key: tuple[str, str], digits: int = 1) -> str:
        """Return a cell with its sign."""
        value = self.cells[key]
        return f"{value:+.{digits}f} %" if round(value, digits) else f"{0:.{digits}f} %"


def faster_percent(first: float, second: float, *, lower_is_better: bool) -> float:
    """Return by how many percent the first performs better than the second."""
    return ((second / first) if lower_is_better else (first / second)) * 100 - 100


def from_comparisons(found: Iterable[Comparison], metric: str | None = None) -> SignedTable:
    """Return the table of one metric or of all: rows by scale and size, columns by test.

    Refused comparisons are left out: a sign would be a conclusion.
    """
    cells: dict[tuple[str, str], float] = {}
    arms = ("", "")
    for one in found:
        if one.ratio is None or metric not in (None, one.point.metric) or one.gate.blocked:
            continue
        arms = (one.arms[1], one.arms[0])
        point = one.point
        scale = "" if point.nodes is None else f"{point.nodes} node" + "s" * (point.nodes > 1)
        size = "" if point.size is None else size_text(point.size)
        row = ", ".join(filter(None, (scale, size))) or "all"
        name = (point.test, point.variant, "" if metric else point.metric)
        cells[row, " ".join(filter(None, name))] = faster_percent(
            one.test.median, one.base.median, lower_is_better=point.lower_is_better
        )
    return SignedTable(*arms, cells)


def tables_of(found: Iterable[Comparison]) -> dict[str, SignedTable]:
    """Return signed tables by title: applications together, and one for each metric over sizes."""
    groups: dict[str, list[Comparison]] = {}
    for one in found:
        title = "Applications" if one.point.size is None else one.point.metric.capitalize()
        groups.setdefault(title, []).append(one)
    made = {
        title: from_comparisons(
            members, None if title == "Applications" else members[0].point.metric
        )
        for title, members in groups.items()
    }
    return {title: table for title, table in made.items() if table.cells}
