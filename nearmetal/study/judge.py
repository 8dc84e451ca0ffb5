# SPDX-License-Identifier: Apache-2.0
"""Verdicts: one arm against another at every point, against a margin. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from math import ceil, log
from typing import TYPE_CHECKING

from nearmetal.core.errors import NearmetalError
from nearmetal.study.flags import MIN_OUTLIER, Flag, flags
from nearmetal.study.gate import BANDWIDTHS, Comparability, check, with_line_rate
from nearmetal.study.model import Cell
from nearmetal.study.stats import (
    MIN_LAUNCHES,
    MOST_ERROR,
    Ratio,
    Summary,
    adjust,
    exclusion_p,
    ratio,
    summarize,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from nearmetal.study.model import Arm, Point

MANY = 1000
"""Launches beyond which an estimate only says that the effect sits at the margin."""


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
    if not 0 <= percent / 100 < 1:
        raise NearmetalError(f"a margin of {percent} %", "it must be at least 0 and below 100")
    limit = 1 + percent / 100 if lower_is_better else 1 - percent / 100
    return Margin(limit, lower_is_better, f"declared {percent:g} %")


class Verdict(Enum):
    """What can be said against the margin."""

    ACCEPT = "ACCEPT"
    REJECT = "REJECT"
    INCONCLUSIVE = "INCONCLUSIVE"
    REFUSED = "REFUSED"
    NO_MARGIN = "NO MARGIN"


@dataclass(frozen=True)
class Comparison:
    """One point of one arm against the base. `ratio` is test by base, whatever is better.

    `error` is the smallest error at which the margin is outside the interval, `adjusted` the same
    among all points of the family. `needed` is about how many more launches would settle it.
    """

    point: Point
    base: Summary
    test: Summary
    arms: tuple[str, str]
    ratio: Ratio | None
    margin: Margin | None
    gate: Comparability
    flags: tuple[tuple[Flag, ...], tuple[Flag, ...]]
    verdict: Verdict
    reason: str
    error: float = 1.0
    adjusted: float = 1.0
    needed: int | None = None

    @property
    def tax_percent(self) -> float | None:
        """How much worse the test arm is, in percent of the base; negative when it is better."""
        if self.ratio is None:
            return None
        change = (self.ratio.value - 1) * 100
        return change if self.point.lower_is_better else -change


def margin_of(
    base: Arm, test: Arm, percent: float | None, *, lower_is_better: bool
) -> Margin | None:
    """Return the declared margin, or that of the core counts, or None when neither is known."""
    if percent is not None:
        return from_percent(percent, lower_is_better=lower_is_better)
    if base.cores_per_node and test.cores_per_node:
        return from_cores(base.cores_per_node, test.cores_per_node, lower_is_better=lower_is_better)
    return None


def _decide(found: Ratio, margin: Margin, error: float) -> tuple[Verdict, str]:
    if found.low is None or found.high is None:
        return Verdict.INCONCLUSIVE, "too few launches for an interval"
    if error > MOST_ERROR:
        return Verdict.INCONCLUSIVE, "the margin lies within the interval, or may by chance"
    worse = found.low > margin.limit if margin.lower_is_better else found.high < margin.limit
    better = found.high <= margin.limit if margin.lower_is_better else found.low >= margin.limit
    if worse:
        return Verdict.REJECT, f"the interval lies beyond {margin.origin}"
    if better:
        return Verdict.ACCEPT, f"the interval lies within {margin.origin}"
    return Verdict.INCONCLUSIVE, "the margin lies within the interval"


def launches_needed(found: Ratio, margin: Margin, n: int) -> int | None:
    """Return about how many more launches settle it: an interval narrows as the root of their number.

    None when the ratio sits so near the margin that no sane number would.
    """
    if n < MIN_LAUNCHES:
        return MIN_LAUNCHES - n
    if found.low is None or found.high is None:
        return None
    distance = log(found.value / margin.limit)
    half = log(found.value / found.low) if distance > 0 else log(found.high / found.value)
    if distance == 0 or half / abs(distance) > (MANY / n) ** 0.5:
        return None
    return max(1, ceil(n * (half / distance) ** 2) - n)


def _pairs(base: Iterable[Cell], test: Iterable[Cell]) -> list[tuple[Cell, Cell]]:
    """Pair cells of the same point; ranks may differ where nodes and all else agree."""
    exact = {cell.point: cell for cell in base}
    loose: dict[Point, list[Cell]] = {}
    for cell in exact.values():
        loose.setdefault(cell.point._replace(ranks=None), []).append(cell)
    pairs = []
    for cell in test:
        for alike in (cell, *_in_other_units(cell)):
            other = exact.get(alike.point)
            near = loose.get(alike.point._replace(ranks=None), [])
            if other is None and len(near) == 1:
                other = near[0]
            if other is not None:
                pairs.append((other, alike))
                break
    return pairs


def _in_other_units(cell: Cell) -> Iterator[Cell]:
    """Return the same bandwidths in other units: versions of one program print different ones."""
    scale = BANDWIDTHS.get(cell.point.unit)
    if scale is None:
        return
    for unit, other in BANDWIDTHS.items():
        if unit is not cell.point.unit:
            seen = (o._replace(value=o.value * scale / other) for o in cell.observations)
            yield Cell(cell.arm, cell.point._replace(unit=unit), tuple(seen))


def _sizes(cells: Iterable[Cell]) -> dict[tuple[str, ...], frozenset[int]]:
    """Return the message sizes of every test and metric."""
    found: dict[tuple[str, ...], set[int]] = {}
    for cell in cells:
        if cell.point.size is not None:
            found.setdefault(_curve(cell.point), set()).add(cell.point.size)
    return {curve: frozenset(sizes) for curve, sizes in found.items()}


def _curve(point: Point) -> tuple[str, ...]:
    return (point.program, point.test, point.variant, point.metric)


def compare(
    base: tuple[Arm, Iterable[Cell]],
    test: tuple[Arm, Iterable[Cell]],
    *,
    percent: float | None = None,
    margin: Margin | None = None,
    versions: Callable[[Cell], Iterable[str]] = lambda _cell: (),
    observed: Callable[[Cell], Mapping[str, str]] = lambda _cell: {},
    cell_count: int | None = None,
) -> list[Comparison]:
    """Compare two arms at every point that both have, neutral figures left out.

    `margin` or `percent` declares the margin; otherwise it comes from the core counts. `versions` tells what
    the logs of a cell say about the benchmark's version, `observed` what its launches recorded.
    `cell_count` is the number of cells of the whole study that a flag is possible in, by default
    those of both arms: in a larger study, a flag needs more evidence.
    """
    cells = (list(base[1]), list(test[1]))
    arms = (with_line_rate(base[0], cells[0]), with_line_rate(test[0], cells[1]))
    sizes = (_sizes(cells[0]), _sizes(cells[1]))
    count = cell_count or sum(len(cell.values) >= MIN_OUTLIER for side in cells for cell in side)
    found = []
    for ours, theirs in _pairs(*cells):
        if ours.point.neutral:
            continue
        curve = _curve(ours.point)
        gate = check(
            *arms,
            (ours, theirs),
            (versions(ours), versions(theirs)),
            same_sizes=sizes[0].get(curve) == sizes[1].get(curve),
            seen=(observed(ours), observed(theirs)),
        )
        limit = margin or margin_of(*arms, percent, lower_is_better=ours.point.lower_is_better)
        compared = compare_cells((ours, theirs), gate, limit)
        marks = (flags(ours.values, count), flags(theirs.values, count))
        found.append(replace(compared, flags=marks))
    return settle(found)


def compare_cells(
    cells: tuple[Cell, Cell], gate: Comparability, margin: Margin | None
) -> Comparison:
    """Return the comparison of base and test; `settle` decides it among the others."""
    base, test = cells
    values = ratio(test.values, base.values)
    comparison = Comparison(
        base.point,
        summarize(base.values),
        summarize(test.values),
        (base.arm, test.arm),
        values,
        margin,
        gate,
        ((), ()),
        Verdict.INCONCLUSIVE,
        "",
    )
    if gate.blocked:
        return replace(comparison, verdict=Verdict.REFUSED, reason="; ".join(gate.reasons))
    if values is None:
        return replace(comparison, reason="a value is zero: there is no ratio")
    if margin is None:
        why = "no core counts, and no margin was declared"
        return replace(comparison, verdict=Verdict.NO_MARGIN, reason=why)
    error = exclusion_p(test.values, base.values, margin.limit)
    return replace(comparison, error=error)


def _family(point: Point) -> tuple[str, ...]:
    return (point.program, point.test, point.metric)


def settle(
    found: Sequence[Comparison], family: Callable[[Point], tuple[str, ...]] = _family
) -> list[Comparison]:
    """Decide each comparison among those of its family: one test and metric, over sizes and scales.

    With more comparisons in a family, a verdict needs more evidence.
    """
    settled = list(found)
    families: dict[tuple[str, ...], list[int]] = {}
    for index, one in enumerate(settled):
        if one.verdict is Verdict.INCONCLUSIVE and one.ratio and one.margin:
            families.setdefault(family(one.point), []).append(index)
    for members in families.values():
        adjusted = adjust([settled[i].error for i in members])
        for index, error in zip(members, adjusted, strict=True):
            one = settled[index]
            assert one.ratio is not None and one.margin is not None  # noqa: S101, PT018 - above
            verdict, reason = _decide(one.ratio, one.margin, error)
            needed = None
            if verdict is Verdict.INCONCLUSIVE:
                needed = launches_needed(one.ratio, one.margin, min(one.base.n, one.test.n))
            settled[index] = replace(
                one, verdict=verdict, reason=reason, adjusted=error, needed=needed
            )
    return settled
