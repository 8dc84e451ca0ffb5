# SPDX-License-Identifier: Apache-2.0
"""The claims of published studies, tested on the data of a reader. Pure.

A claim is CONFIRMED if the intervals of all its points lie within its limits, and REFUTED if an
interval lies outside and the number of points does not explain it. Otherwise it is INCONCLUSIVE. It
is CANNOT TEST if data are missing, or if the arms are not comparable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from statistics import median
from typing import NamedTuple

from nearmetal.study.gate import BANDWIDTHS
from nearmetal.study.judge import compare
from nearmetal.study.model import Arm, Cell, Observation, Point
from nearmetal.study.pairs import RATIO_ERROR, exclusion_p, ratio
from nearmetal.study.reproduce.claims import Claim, ClaimKind, ClaimLimits
from nearmetal.study.stats import (
    MIN_LAUNCHES,
    MOST_ERROR,
    Ratio,
    adjust,
    coverage,
    median_interval,
)


class ClaimOutcome(Enum):
    """The result of the test of a claim."""

    CONFIRMED = "CONFIRMED"
    REFUTED = "REFUTED"
    INCONCLUSIVE = "INCONCLUSIVE"
    CANNOT_TEST = "CANNOT TEST"


class Tested(NamedTuple):
    """One point of a claim: its quantity with its interval, the launches, and the raw lines."""

    point: Point
    quantity: Ratio
    launches: tuple[int, ...]
    observations: tuple[Observation, ...]
    error: float


@dataclass(frozen=True)
class Result:
    """The outcome of one claim, its reason, points and marks."""

    claim: Claim
    outcome: ClaimOutcome
    reason: str
    tested: tuple[Tested, ...] = ()
    marks: tuple[str, ...] = ()


class Data(NamedTuple):
    """The study of a reader: arm and cells of each role, versions and facts of the launches."""

    arms: Mapping[str, Arm]
    cells: Callable[[Arm], Sequence[Cell]]
    versions: Callable[[Cell], Iterable[str]]
    observed: Callable[[Cell], Mapping[str, str]]


def reproduce(claims: Iterable[Claim], data: Data) -> list[Result]:
    """Decide every claim."""
    return [_decide(claim, data) for claim in claims]


def _missing(claim: Claim, data: Data) -> str:
    """Return the reason why a claim cannot be tested, or an empty text."""
    without = [role for role in claim.roles if role not in data.arms]
    if without:
        roles = " and ".join(without)
        return f"no arm is {roles}; give --arm {without[0]}=ARM"
    if claim.kind is ClaimKind.SHARE and "line_rate_gbit" not in data.arms[claim.arm].facts:
        name = data.arms[claim.arm].name
        return f"the line rate of {name} is unknown; add the fact line_rate_gbit to its labels"
    return ""


def _nothing(claim: Claim) -> str:
    """Return the missing data of a claim without points."""
    sizes = ""
    if claim.from_size is not None or claim.to_size is not None:
        sizes = f", {claim.from_size or 0} to {claim.to_size or 'any'} bytes"
    nodes = f", {claim.nodes} nodes" if claim.nodes else ""
    return f"missing: {' or '.join(claim.tests)} ({' or '.join(claim.metrics)}){sizes}{nodes}"


def _decide(claim: Claim, data: Data) -> Result:
    missing = _missing(claim, data)
    if missing:
        return Result(claim, ClaimOutcome.CANNOT_TEST, missing)
    tested, refused, marks = (
        _absolute(claim, data) if claim.kind.absolute else _compared(claim, data)
    )
    if not tested:
        return Result(claim, ClaimOutcome.CANNOT_TEST, refused or _nothing(claim))
    most = max(min(one.launches) for one in tested)
    if most < MIN_LAUNCHES:
        why = f"{most} launches, at least {MIN_LAUNCHES} are needed; add launches"
        return Result(claim, ClaimOutcome.INCONCLUSIVE, why, tuple(tested), marks)
    outcome, reason = _conclude(claim, tested)
    return Result(claim, outcome, reason, tuple(tested), marks)


def _conclude(claim: Claim, tested: Sequence[Tested]) -> tuple[ClaimOutcome, str]:
    """Decide by the errors of all points, adjusted for their number."""
    adjusted = adjust([one.error for one in tested])
    most = MOST_ERROR if claim.kind.absolute else RATIO_ERROR
    sure = [
        (one, claim.limits.hold(one.quantity.value))
        for one, error in zip(tested, adjusted, strict=True)
        if error <= most
    ]
    inside, outside = [o for o, good in sure if good], [o for o, good in sure if not good]
    total = f"{len(tested)} point" + "s" * (len(tested) > 1)
    if claim.one_point_is_enough:
        if inside:
            return ClaimOutcome.CONFIRMED, f"reached at {len(inside)} of {total}"
        if len(outside) == len(tested):
            return ClaimOutcome.REFUTED, f"reached at none of {total}"
    elif outside:
        return ClaimOutcome.REFUTED, f"{len(outside)} of {total} outside of the limits"
    elif len(inside) == len(tested):
        return ClaimOutcome.CONFIRMED, f"all of {total} within the limits"
    left = len(tested) - len(sure)
    return ClaimOutcome.INCONCLUSIVE, f"{left} of {total} not settled; add launches"


_Points = tuple[list[Tested], str, tuple[str, ...]]
"""The points of a claim, the reasons of refusals, and marks."""


def _compared(claim: Claim, data: Data) -> _Points:
    """Return the points of arm and base as performances."""
    arm, base = data.arms[claim.arm], data.arms[claim.base]
    sides = [[cell for cell in data.cells(side) if claim.fits(cell.point)] for side in (base, arm)]
    found = compare(
        (base, sides[0]), (arm, sides[1]), versions=data.versions, observed=data.observed
    )
    tested: list[Tested] = []
    reasons: dict[str, None] = {}
    marks: dict[str, None] = {}
    for one in found:
        reasons |= dict.fromkeys(one.gate.reasons)
        if one.gate.blocked or one.ratio is None:
            continue
        marks |= dict.fromkeys(one.gate.watermarks)
        values = (one.test.values, one.base.values)
        better, worse = values[::-1] if one.point.lower_is_better else values
        quantity = ratio(better, worse)
        assert quantity is not None  # noqa: S101 - its inverse is one
        here = one.point._replace(ranks=None)
        cells = (c for side in sides for c in side if c.point._replace(ranks=None) == here)
        near = tuple(o for cell in cells for o in cell.observations)
        error = _error(claim.limits, partial(exclusion_p, better, worse))
        tested.append(Tested(one.point, quantity, (one.base.n, one.test.n), near, error))
    return tested, "; ".join(reasons), tuple(marks)


def _error(limits: ClaimLimits, of: Callable[[float], float]) -> float:
    """Return the error of the statement on which side of each limit a quantity lies."""
    return max(of(limit) for limit in limits if limit is not None)


def _absolute(claim: Claim, data: Data) -> _Points:
    """Return the points of one arm in the unit of the claim."""
    arm = data.arms[claim.arm]
    tested = []
    for cell in data.cells(arm):
        scale = _scale(claim, arm, cell)
        if scale is None or not claim.fits(cell.point):
            continue
        values = [value * scale for value in cell.values]
        interval = median_interval(values)
        quantity = Ratio(median(values), *(interval[:2] if interval else (None, None)))
        error = _error(claim.limits, partial(_beyond, values))
        tested.append(Tested(cell.point, quantity, (len(values),), cell.observations, error))
    if claim.kind is ClaimKind.GIGABITS and tested:
        # The size with the largest bandwidth decides whether a line is full.
        tested = [max(tested, key=lambda one: one.quantity.value)]
    return tested, "", ()


def _scale(claim: Claim, arm: Arm, cell: Cell) -> float | None:
    """Return the factor from the values of a cell to the quantity of a claim; None: another unit."""
    if claim.kind is ClaimKind.MICROSECONDS:
        return 1.0 if cell.point.unit.value == "µs" else None
    scale = BANDWIDTHS.get(cell.point.unit)
    if scale is None or claim.kind is ClaimKind.GIGABITS:
        return scale
    return scale / float(arm.facts["line_rate_gbit"])


def _beyond(values: Sequence[float], limit: float) -> float:
    """Return the smallest error at which a limit is outside the interval of the median, at most 1."""
    for rank in range(1, len(values) // 2 + 1):
        level = coverage(len(values), rank)
        found = median_interval(values, level)
        if found is not None and not found.low <= limit <= found.high:
            return 1 - level
    return 1.0
