# SPDX-License-Identifier: Apache-2.0
"""Decides claims on a reader's data. Pure.

A claim is CONFIRMED when the intervals of all its points lie within its limits, REFUTED when one lies
outside, beyond what the number of points explains, INCONCLUSIVE otherwise, and CANNOT TEST when there
is nothing to test it on, or when what there is may not be compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from nearmetal.study.gate import BANDWIDTHS
from nearmetal.study.judge import compare
from nearmetal.study.reproduce.claims import CLAIMED, Claim, ClaimKind, claims_of, roles_of
from nearmetal.study.stats import (
    MIN_LAUNCHES,
    MOST_ERROR,
    Interval,
    Ratio,
    adjust,
    coverage,
    exclusion_p,
    median_interval,
    ratio,
    summarize,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from nearmetal.study.model import Arm, Cell, Observation, Point
    from nearmetal.study.reproduce.claims import ClaimLimits

__all__ = [
    "CLAIMED",
    "Claim",
    "ClaimKind",
    "ClaimOutcome",
    "Data",
    "Result",
    "Tested",
    "claims_of",
    "reproduce",
    "roles_of",
]


class ClaimOutcome(Enum):
    """What became of a claim."""

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
    """What became of one claim, why, on which points, and what stands beside it."""

    claim: Claim
    outcome: ClaimOutcome
    reason: str
    tested: tuple[Tested, ...] = ()
    marks: tuple[str, ...] = ()


class Data(NamedTuple):
    """A reader's study: the arm and cells of each role, and what is known of the launches."""

    arms: Mapping[str, Arm]
    cells: Callable[[Arm], Sequence[Cell]]
    versions: Callable[[Cell], Iterable[str]]
    observed: Callable[[Cell], Mapping[str, str]]


def reproduce(claims: Iterable[Claim], data: Data) -> list[Result]:
    """Decide every claim."""
    return [_decide(claim, data) for claim in claims]


def _missing(claim: Claim, data: Data) -> str:
    """Return what keeps a claim from being tested; empty when nothing does."""
    without = [role for role in claim.roles if role not in data.arms]
    if without:
        return f"no arm is {' and '.join(without)}"
    if claim.kind is ClaimKind.SHARE and "line_rate_gbit" not in data.arms[claim.arm].facts:
        return f"the line rate of {data.arms[claim.arm].name} is not told (fact line_rate_gbit)"
    return ""


def _nothing(claim: Claim) -> str:
    """Return what was looked for, where no point fits a claim."""
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
        why = f"{most} launches; {MIN_LAUNCHES} are needed for an interval"
        return Result(claim, ClaimOutcome.INCONCLUSIVE, why, tuple(tested), marks)
    outcome, reason = _conclude(claim, tested)
    return Result(claim, outcome, reason, tuple(tested), marks)


def _inside(value: float, limits: ClaimLimits) -> bool:
    return (limits.low is None or value >= limits.low) and (
        limits.high is None or value <= limits.high
    )


def _conclude(claim: Claim, tested: Sequence[Tested]) -> tuple[ClaimOutcome, str]:
    """Decide by the errors of all points together: their number is accounted for."""
    adjusted = adjust([one.error for one in tested])
    sure = [
        (one, _inside(one.quantity.value, claim.limits))
        for one, error in zip(tested, adjusted, strict=True)
        if error <= MOST_ERROR
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
    return ClaimOutcome.INCONCLUSIVE, f"{len(tested) - len(sure)} of {total} not settled"


def _compared(claim: Claim, data: Data) -> tuple[list[Tested], str, tuple[str, ...]]:
    """Return the points of arm and base as performances; else why they may not be compared."""
    arm, base = data.arms[claim.arm], data.arms[claim.base]
    sides = [[cell for cell in data.cells(side) if _fits(claim, cell)] for side in (base, arm)]
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
        near = [
            o
            for side in sides
            for cell in side
            if cell.point._replace(ranks=None) == one.point._replace(ranks=None)
            for o in cell.observations
        ]
        error = _error(claim.limits, partial(exclusion_p, better, worse))
        tested.append(Tested(one.point, quantity, (one.base.n, one.test.n), tuple(near), error))
    return tested, "; ".join(reasons), tuple(marks)


def _fits(claim: Claim, cell: Cell) -> bool:
    point = cell.point
    return claim.fits(point.test, point.metric, point.size, point.nodes)


def _error(limits: ClaimLimits, of: Callable[[float], float]) -> float:
    """Return the error of saying on which side of every limit a quantity lies."""
    return max(of(limit) for limit in limits if limit is not None)


def _absolute(claim: Claim, data: Data) -> tuple[list[Tested], str, tuple[str, ...]]:
    """Return the points of one arm in the unit of the claim."""
    arm = data.arms[claim.arm]
    tested = []
    for cell in data.cells(arm):
        scale = _scale(claim, arm, cell)
        if scale is None or not _fits(claim, cell):
            continue
        values = [value * scale for value in cell.values]
        summary = summarize(values)
        low, high = (
            (summary.interval.low, summary.interval.high) if summary.interval else (None, None)
        )
        error = _error(claim.limits, partial(_beyond, values))
        tested.append(
            Tested(
                cell.point, Ratio(summary.median, low, high), (summary.n,), cell.observations, error
            )
        )
    if claim.kind is ClaimKind.GIGABITS and tested:
        # A line is filled by the size that fills it best.
        tested = [max(tested, key=lambda one: one.quantity.value)]
    return tested, "", ()


def _scale(claim: Claim, arm: Arm, cell: Cell) -> float | None:
    """Return what turns a cell's values into the quantity of a claim; None: they are of another unit."""
    if claim.kind is ClaimKind.MICROSECONDS:
        return 1.0 if cell.point.unit.value == "µs" else None
    scale = BANDWIDTHS.get(cell.point.unit)
    if scale is None or claim.kind is ClaimKind.GIGABITS:
        return scale
    return scale / float(arm.facts["line_rate_gbit"])


def _beyond(values: Sequence[float], limit: float) -> float:
    """Return the smallest error at which the median's interval leaves a limit outside; 1 if never."""
    for rank in range(1, len(values) // 2 + 1):
        level = coverage(len(values), rank)
        found: Interval | None = median_interval(values, level)
        if found is not None and not found.low <= limit <= found.high:
            return 1 - level
    return 1.0
