# SPDX-License-Identifier: Apache-2.0
"""Verdicts: one arm against another at every point, with a margin of non-inferiority. Pure.

A margin is a ratio that depends on the metric: 44 of 48 cores are 8.33 % less throughput, but 9.09 %
more time. It comes from core counts, or it is declared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from nearmetal.core.errors import NearmetalError
from nearmetal.study.flags import MIN_OUTLIER, Flag, flags
from nearmetal.study.gate import Comparability, check, with_line_rate
from nearmetal.study.model import Arm, Cell, Point
from nearmetal.study.pairing import matched
from nearmetal.study.physics import impossible_points
from nearmetal.study.ratios import RATIO_ERROR, exclusion_p, ratio
from nearmetal.study.stats import MIN_LAUNCHES, Ratio, Summary, adjust, adjust_all, summarize


@dataclass(frozen=True)
class Margin:
    """The acceptable limit of the ratio test / base: above 1 for times, below 1 for rates."""

    limit: float
    lower_is_better: bool
    origin: str

    @property
    def percent(self) -> float:
        """The distance from the base in percent."""
        return abs(self.limit - 1) * 100


def from_cores(base: int, test: int, *, lower_is_better: bool) -> Margin:
    """Return the margin that a loss of cores explains."""
    if base < 1 or test < 1:
        raise NearmetalError(f"{base} and {test} cores", "use core counts of at least 1")
    limit = base / test if lower_is_better else test / base
    return Margin(limit, lower_is_better, f"{test} of {base} cores")


def from_percent(percent: float, *, lower_is_better: bool) -> Margin:
    """Return a declared margin: more time, or less of a rate, in percent."""
    if not 0 <= percent / 100 < 1:
        raise NearmetalError(f"a margin of {percent} %", "use at least 0 and less than 100")
    limit = 1 + percent / 100 if lower_is_better else 1 - percent / 100
    return Margin(limit, lower_is_better, f"declared {percent:g} %")


class Verdict(Enum):
    """The result of a comparison with the margin."""

    ACCEPT = "ACCEPT"
    REJECT = "REJECT"
    INCONCLUSIVE = "INCONCLUSIVE"
    REFUSED = "REFUSED"
    NO_MARGIN = "NO MARGIN"
    INVALID = "INVALID"
    MISSING = "MISSING"
    """Of an endpoint that one arm lacks; no comparison has it."""


@dataclass(frozen=True)
class Comparison:
    """One point of one arm against the base. `ratio` is test by base for every metric.

    `error` is the smallest error at which the margin is outside the interval; `adjusted` accounts for
    all points of the family. `needed` is the number of launches that an interval lacks. A `primary`
    point is an endpoint of the headline (`nearmetal.study.endpoints`). `lost` are the launches of
    both arms that should have a value here (`nearmetal.study.losses`).
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
    primary: bool = False
    lost: tuple[int, int] = (0, 0)

    @property
    def tax_percent(self) -> float | None:
        """The loss of the test arm in percent of the base; negative: the test arm is better."""
        if self.ratio is None:
            return None
        change = (self.ratio.value - 1) * 100
        return change if self.point.lower_is_better else -change


def margin_of(
    base: Arm, test: Arm, percent: float | None, *, lower_is_better: bool
) -> Margin | None:
    """Return the declared margin, or that of the core counts; None: neither is known."""
    if percent is not None:
        return from_percent(percent, lower_is_better=lower_is_better)
    if base.cores_per_node and test.cores_per_node:
        return from_cores(base.cores_per_node, test.cores_per_node, lower_is_better=lower_is_better)
    return None


_OPEN = "the margin lies within the interval"


def _decide(found: Ratio, margin: Margin, error: float) -> tuple[Verdict, str]:
    if found.low is None or found.high is None:
        return Verdict.INCONCLUSIVE, "too few launches for an interval; add launches"
    if error > RATIO_ERROR:
        return Verdict.INCONCLUSIVE, f"{_OPEN}, or may by chance; add launches"
    worse = found.low > margin.limit if margin.lower_is_better else found.high < margin.limit
    better = found.high <= margin.limit if margin.lower_is_better else found.low >= margin.limit
    if worse:
        return Verdict.REJECT, f"the interval lies beyond {margin.origin}"
    if better:
        return Verdict.ACCEPT, f"the interval lies within {margin.origin}"
    return Verdict.INCONCLUSIVE, f"{_OPEN}; add launches"


LOST = "launches were lost"
"""Begin of the reason of a point whose survivors alone would decide."""

_BEYOND = 1e6
"""A lost launch is worse than any value by this factor; only its rank counts."""


def _with_losses(one: Comparison, verdict: Verdict, reason: str) -> tuple[Verdict, str]:
    """Return a verdict that also holds if the lost launches are worse than all others.

    It holds for the survivors already. In both arms a lost launch has the last rank, so equal losses
    leave a verdict as it is.
    """
    if not any(one.lost) or verdict not in (Verdict.ACCEPT, Verdict.REJECT) or not one.margin:
        return verdict, reason
    sides = (one.base.values, one.test.values)
    known = [*sides[0], *sides[1]]
    worst = max(known) * _BEYOND if one.point.lower_is_better else min(known) / _BEYOND
    base, test = ([*v, *[worst] * lost] for v, lost in zip(sides, one.lost, strict=True))
    found = ratio(test, base)
    assert found is not None  # noqa: S101 - the survivors have a ratio
    decided, _ = _decide(found, one.margin, exclusion_p(test, base, one.margin.limit))
    if decided is verdict:
        return verdict, reason
    sides_lost = zip(one.arms, (one.base, one.test), one.lost, strict=True)
    words = ", ".join(f"{lost} of {side.n + lost} of {arm}" for arm, side, lost in sides_lost)
    return Verdict.INCONCLUSIVE, (
        f"{LOST} ({words}): the survivors alone give {verdict.value}, but not if the "
        "lost ones count as worst"
    )


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
    lost: Callable[[Cell], int] = lambda _cell: 0,
) -> list[Comparison]:
    """Compare two arms at every common point, without neutral metrics.

    `margin` or `percent` declares the margin; otherwise it comes from the core counts. `versions`
    returns the versions of the benchmark in the logs of a cell, `observed` the facts of its launches.
    `cell_count` is the number of cells of the whole study in which a flag is possible, by default
    those of both arms: in a larger study, a flag needs more evidence. `lost` returns the number of
    launches of a cell that should have a value and have none.
    """
    cells = (list(base[1]), list(test[1]))
    arms = (with_line_rate(base[0], cells[0]), with_line_rate(test[0], cells[1]))
    sizes = (_sizes(cells[0]), _sizes(cells[1]))
    count = cell_count or sum(len(cell.values) >= MIN_OUTLIER for side in cells for cell in side)
    found = []
    broken = {(v.arm, v.point): v.what for v in impossible_points(arms, cells, observed)}
    for ours, own, theirs in matched(*cells):
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
        why = [broken[key] for key in ((c.arm, c.point) for c in (ours, theirs)) if key in broken]
        if why:
            compared = replace(compared, ratio=None, verdict=Verdict.INVALID, reason="; ".join(why))
        marks = (flags(ours.values, count), flags(theirs.values, count))
        losses = (lost(ours), lost(own))
        found.append(replace(compared, flags=marks, lost=losses))
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
        return replace(comparison, reason="a value is zero: there is no ratio; read its raw line")
    if margin is None:
        why = "no margin: declare one, or add cores_per_node to the labels"
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
            verdict, reason = _with_losses(one, *_decide(one.ratio, one.margin, error))
            missing = MIN_LAUNCHES - min(one.base.n, one.test.n)
            needed = missing if missing > 0 else None
            settled[index] = replace(
                one, verdict=verdict, reason=reason, adjusted=error, needed=needed
            )
    return settled


_SETTLED = (Verdict.ACCEPT, Verdict.REJECT, Verdict.INCONCLUSIVE)


def settle_endpoints(found: Sequence[Comparison]) -> list[Comparison]:
    """Decide the primary points again, as one family; the other points stay as they are.

    All are ACCEPT together only if each is, so the error of one is the error of the headline. Any
    REJECT is a REJECT of the headline, so its error accounts for all of them.
    """
    settled = list(found)
    chosen = [i for i, one in enumerate(settled) if one.primary and one.verdict in _SETTLED]
    for index, adjusted in zip(chosen, adjust_all([settled[i].error for i in chosen]), strict=True):
        one = settled[index]
        if one.ratio is None or one.margin is None:
            continue
        verdict, reason = _decide(one.ratio, one.margin, one.error)
        error = one.error
        if verdict is Verdict.REJECT:
            error = adjusted
            verdict, reason = _decide(one.ratio, one.margin, error)
        verdict, reason = _with_losses(one, verdict, reason)
        settled[index] = replace(one, verdict=verdict, reason=reason, adjusted=error)
    return settled
