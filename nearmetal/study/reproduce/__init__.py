# SPDX-License-Identifier: Apache-2.0
"""The claims of published studies, tested on the data of a reader. Pure.

A claim is CONFIRMED if the 90 % intervals of its points lie within its limits: each limit is a test
with an error of 5 %, as in a test of equivalence. If its words make the number a limit, no interval
may lie beyond the number, and no value if they say `less than`. It is REFUTED if a 95 % interval lies outside, and
the number of points does not explain it. Otherwise it is INCONCLUSIVE. It is CANNOT TEST if data
are missing, or if the arms are not comparable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from math import exp, fsum, log
from statistics import median
from typing import NamedTuple

from nearmetal.study.gate import BANDWIDTHS
from nearmetal.study.judge import compare
from nearmetal.study.model import Arm, Cell, Observation, Point
from nearmetal.study.ratios import RATIO_ERROR, exclusion_p, ratio
from nearmetal.study.reproduce.claims import SHARP, Claim, ClaimKind
from nearmetal.study.stats import (
    MIN_LAUNCHES,
    MOST_ERROR,
    Ratio,
    adjust,
    coverage,
    median_interval,
)

LEAST_LAUNCHES = 5
"""Fewer have no 90 % interval of a median: 1 - 2 / 2^5 is 93.75 %, and 1 - 2 / 2^4 is 87.5 %."""

MOST_BESIDE = 0.10
"""Error of an interval that confirms: 5 % at each limit."""


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
    inside: float
    """Error of the statement that the quantity lies within the limits; 1: it does not."""
    outside: float
    """Error of the statement that it lies outside of the refuting limits; 1: it does not."""
    beyond: bool = False
    """Whether its interval lies beyond a number that the claim states as a limit."""


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
    if most < LEAST_LAUNCHES:
        why = f"{most} launches, at least {LEAST_LAUNCHES} are needed; add launches"
        return Result(claim, ClaimOutcome.INCONCLUSIVE, why, tuple(tested), marks)
    outcome, reason = _conclude(claim, tested)
    return Result(claim, outcome, reason, tuple(tested), marks)


def _conclude(claim: Claim, tested: Sequence[Tested]) -> tuple[ClaimOutcome, str]:
    """Decide by the errors of all points; those that one point decides are adjusted for the number."""
    count = len(tested)
    total = f"{count} point" + "s" * (count > 1)
    most = MOST_ERROR if claim.kind.absolute else RATIO_ERROR
    outside = sum(error <= most for error in adjust([one.outside for one in tested]))
    if claim.one_point_is_enough:
        inside = sum(error <= MOST_BESIDE for error in adjust([one.inside for one in tested]))
        beyond = sum(_beats(claim, one, most) for one in tested)
        if beyond:
            return ClaimOutcome.REFUTED, f"{beyond} of {total} beyond the number"
        if inside:
            return ClaimOutcome.CONFIRMED, f"reached at {inside} of {total}"
        if outside == count:
            return ClaimOutcome.REFUTED, f"reached at none of {total}"
        return ClaimOutcome.INCONCLUSIVE, f"not settled at {count - outside} of {total}; {_MORE}"
    inside = sum(one.inside <= MOST_BESIDE for one in tested)
    enough = count // 2 + 1 if claim.over == "typical" else count
    if outside > count - enough:
        why = f"{outside} of {total} outside of the limits: {claim.refuting.beyond}"
        return ClaimOutcome.REFUTED, why
    beyond = sum(one.beyond for one in tested)
    if beyond > count - enough:
        why = f"{beyond} of {total} beyond the number, perhaps by chance: {claim.refuting.beyond}"
        return ClaimOutcome.INCONCLUSIVE, f"{why}; {_MORE}"
    if inside >= enough:
        return ClaimOutcome.CONFIRMED, f"{inside} of {total} within the limits"
    return ClaimOutcome.INCONCLUSIVE, f"{count - inside} of {total} not settled; {_MORE}"


_MORE = "add launches"


def _beats(claim: Claim, one: Tested, most: float) -> bool:
    """Return whether a point is surely further than `up to` or `almost` says."""
    low, high = claim.refuting
    limit = high if claim.raises else low
    if limit is None or one.outside > most:
        return False
    return one.quantity.value > limit if claim.raises else one.quantity.value < limit


_Points = tuple[list[Tested], str, tuple[str, ...]]
"""The points of a claim, the reasons of refusals, and marks."""


def _compared(claim: Claim, data: Data) -> _Points:
    """Return the points of arm and base as performances."""
    arm, base = data.arms[claim.arm], data.arms[claim.base]
    sides = [[cell for cell in data.cells(side) if claim.fits(cell.point)] for side in (base, arm)]
    if claim.across:
        arm, base = _without_line_rate(arm), _without_line_rate(base)
    found = compare(
        (base, sides[0]), (arm, sides[1]), versions=data.versions, observed=data.observed
    )
    pairs: list[_Pair] = []
    reasons: dict[str, None] = {}
    marks: dict[str, None] = {}
    for one in found:
        reasons |= dict.fromkeys(one.gate.reasons)
        if one.gate.blocked or one.ratio is None:
            continue
        marks |= dict.fromkeys(one.gate.watermarks)
        values = (one.test.values, one.base.values)
        better, worse = values[::-1] if one.point.lower_is_better else values
        here = one.point._replace(ranks=None)
        cells = (c for side in sides for c in side if c.point._replace(ranks=None) == here)
        near = tuple(o for cell in cells for o in cell.observations)
        pairs.append(_Pair(one.point, better, worse, near))
    if claim.over == "average":
        pairs = [_average(pairs)] if pairs else []
    return [_tested(claim, pair) for pair in pairs], "; ".join(reasons), tuple(marks)


def _without_line_rate(arm: Arm) -> Arm:
    facts = {name: fact for name, fact in arm.facts.items() if name != "line_rate_gbit"}
    return replace(arm, facts=facts)


class _Pair(NamedTuple):
    """The launches of both arms at a point, and their raw lines."""

    point: Point
    better: Sequence[float]
    worse: Sequence[float]
    observations: tuple[Observation, ...]


def _tested(claim: Claim, pair: _Pair) -> Tested:
    quantity = ratio(pair.better, pair.worse)
    assert quantity is not None  # noqa: S101 - its inverse is one
    launches = (len(pair.better), len(pair.worse))
    excluded = partial(exclusion_p, pair.better, pair.worse, least=LEAST_LAUNCHES)
    inside, outside = _errors(claim, quantity.value, excluded)
    enough = min(launches) >= MIN_LAUNCHES
    beyond = claim.bound in SHARP and outside <= RATIO_ERROR
    # A refutation needs the launches of any other verdict.
    outside = outside if enough else 1.0
    return Tested(pair.point, quantity, launches, pair.observations, inside, outside, beyond)


def _average(pairs: Sequence[_Pair]) -> _Pair:
    """Return the geometric mean of all points, launch by launch."""
    better = _means([pair.better for pair in pairs])
    worse = _means([pair.worse for pair in pairs])
    point = pairs[0].point._replace(size=None)
    seen = tuple(o for pair in pairs for o in pair.observations)
    return _Pair(point, better, worse, seen)


def _means(rows: Sequence[Sequence[float]]) -> list[float]:
    launches = zip(*rows, strict=False)
    return [exp(fsum(map(log, values)) / len(values)) for values in launches]


def _errors(claim: Claim, value: float, excluded: Callable[[float], float]) -> tuple[float, float]:
    """Return the errors of the statements that a value is inside, and outside, of the limits.

    `excluded` returns the smallest error at which a limit is outside of the interval of the value.
    """
    sure = [excluded(limit) for limit in claim.limits if limit is not None]
    inside = max(sure) if claim.limits.hold(value) else 1.0
    low, high = claim.refuting
    if claim.bound == "less than" and not claim.refuting.hold(value):
        inside = 1.0
    if low is not None and value < low:
        return inside, excluded(low)
    if high is not None and value > high:
        return inside, excluded(high)
    return inside, 1.0


def _absolute(claim: Claim, data: Data) -> _Points:
    """Return the points of one arm in the unit of the claim."""
    arm = data.arms[claim.arm]
    found: list[tuple[Point, Sequence[float], tuple[Observation, ...]]] = []
    for cell in data.cells(arm):
        scale = _scale(claim, arm, cell)
        if scale is not None and claim.fits(cell.point):
            found.append((cell.point, [v * scale for v in cell.values], cell.observations))
    if claim.over == "peak" and found:
        # The size with the largest bandwidth decides whether a line is full.
        found = [max(found, key=lambda one: median(one[1]))]
    if claim.over == "average" and found:
        seen = tuple(o for _, _, observations in found for o in observations)
        point = found[0][0]._replace(size=None)
        found = [(point, _means([values for _, values, _ in found]), seen)]
    return [_alone(claim, *one) for one in found], "", ()


def _alone(
    claim: Claim, point: Point, values: Sequence[float], seen: tuple[Observation, ...]
) -> Tested:
    interval = median_interval(values)
    quantity = Ratio(median(values), *(interval[:2] if interval else (None, None)))
    errors = _errors(claim, quantity.value, partial(_beyond, values))
    most = MOST_ERROR if len(values) >= MIN_LAUNCHES else MOST_BESIDE
    beyond = claim.bound in SHARP and errors[1] <= most
    return Tested(point, quantity, (len(values),), seen, *errors, beyond)


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
