# SPDX-License-Identifier: Apache-2.0
"""Physics: values that cannot be true. Pure.

A value beyond the wire makes a run invalid, not fast. `nearmetal.evidence.line_rate` knows lines.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from statistics import median

from nearmetal.core.errors import NearmetalError
from nearmetal.evidence import Unit
from nearmetal.evidence.model import DERIVED
from nearmetal.study.gate import BANDWIDTHS
from nearmetal.study.model import Arm, Cell, Point

BOTH_WAYS = ("bibw", "bidir", "both directions", "biband", "exchange", "sendrecv")
MANY_PAIRS = ("mbw_mr", "uniband", "biband")
FALL = 0.10
"""A smaller fall of latency may be noise."""

LARGE = 64 << 10
BIDIRECTIONAL_SHARE = 0.9
AGREE = 0.02


class Severity(Enum):
    """The meaning of a violation."""

    INVALID = "invalid"
    SUSPECT = "suspect"


@dataclass(frozen=True)
class Violation:
    """One value that is impossible, or hardly possible."""

    severity: Severity
    arm: str
    point: Point
    what: str


MEAN_BANDWIDTHS = ("bandwidth", "bandwidth_p50")
"""Metrics over a whole test; the peak of a few messages may leave a buffer at any rate."""

ON_THE_LINE = {
    "osu": r"osu_(?:(?:put_|get_|xccl_)?(?:bw|bibw)|mbw_mr)",
    "imb": r"PingPong|PingPing|Sendrecv|Exchange|Uniband|Biband|(?:Uni|Bi)dir_\w+",
    "netpipe": r"PingPong",
    "perftest": r"\w+",
    "hpcc": r"MinPingPongBandwidth",
    "nearmetal-bench": r"pingpong\w*|uniband\w*|biband\w*",
}
"""By program: the tests whose bandwidth is that of one line, if the ranks are in different nodes."""

WITHIN_A_NODE = {"shm", "self", "vmseg", "sm", "posix", "cma"}
BETWEEN_NODES = {"net", "tcp"}


def crosses_the_line(point: Point) -> bool:
    """Return whether a value is the bandwidth of bytes on the line between two nodes."""
    pattern = ON_THE_LINE.get(point.program)
    return (
        pattern is not None
        and re.fullmatch(pattern, point.test) is not None
        and point.metric in MEAN_BANDWIDTHS
        and point.nodes != 1
        and not point.setup.placement
    )


def _within_a_node(carried_by: str) -> bool:
    """Return whether the record of a launch says that no message left its node."""
    words = set(re.findall(r"[a-z]+", carried_by.partition(" (")[0].lower()))
    return bool(words & WITHIN_A_NODE) and not words & BETWEEN_NODES


def _lines(point: Point) -> int:
    """Return the number of line rates that a bandwidth may add up to."""
    words = f"{point.test} {point.setup.flags}".lower()
    ways = 2 if any(name in words for name in BOTH_WAYS) else 1
    if point.test == "Exchange" and point.ranks != point.nodes:
        return 2 * ways  # one of the two neighbours may be in the same node
    many = any(name in words for name in MANY_PAIRS)
    return ways * (max(1, (point.nodes or 2) // 2) if many else 1)


def above_line_rate(
    cells: Iterable[Cell],
    line_rate_gbit: float,
    observed: Callable[[Cell], Mapping[str, str]] = lambda _cell: {},
) -> list[Violation]:
    """Return bandwidths above the rate of the line that they crossed.

    Both directions together may have twice the rate, and pairs of nodes one line each.
    """
    found = []
    for cell in cells:
        if not crosses_the_line(cell.point):
            continue
        if _within_a_node(observed(cell).get("carried_by", "")):
            continue
        limit = line_rate_gbit * _lines(cell.point)
        most = max(cell.values) * BANDWIDTHS.get(cell.point.unit, 0)
        if most > limit:
            words = f"{most:.1f} Gbit/s over a line of {limit:g} Gbit/s"
            found.append(Violation(Severity.INVALID, cell.arm, cell.point, words))
    return found


def falling_latency(cells: Iterable[Cell]) -> list[Violation]:
    """Return sizes whose latency is clearly below that of a smaller size.

    A change of protocol can cause this, so the curve is suspect and not invalid.
    """
    curves: dict[tuple[str, Point], list[Cell]] = {}
    for cell in cells:
        if cell.point.size is not None and cell.point.metric == "latency":
            curves.setdefault((cell.arm, cell.point.curve), []).append(cell)
    found = []
    for curve in curves.values():
        ordered = sorted(curve, key=lambda cell: cell.point.size or 0)
        for small, large in pairwise(ordered):
            apart = min(small.values) > max(large.values)
            before, after = median(small.values), median(large.values)
            if apart and after < before * (1 - FALL):
                words = f"latency falls from {before:g} at {small.point.size} B to {after:g}"
                found.append(Violation(Severity.SUSPECT, large.arm, large.point, words))
    return found


def slow_both_ways(cells: Iterable[Cell]) -> list[Violation]:
    """Return large sizes at which both directions together carry less than one alone."""
    one_way: dict[tuple[object, ...], float] = {}
    both: list[tuple[tuple[object, ...], Cell, float]] = []
    for cell in cells:
        point = cell.point
        if point.unit not in BANDWIDTHS or (point.size or 0) < LARGE:
            continue
        key = (cell.arm, point.size, point.nodes, point.unit, point.program)
        if point.test == "osu_bw":
            one_way[key] = median(cell.values)
        elif point.test == "osu_bibw":
            both.append((key, cell, median(cell.values)))
    return [
        Violation(
            Severity.SUSPECT, cell.arm, cell.point, f"both ways {value:g}, one way {one_way[key]:g}"
        )
        for key, cell, value in both
        if value < BIDIRECTIONAL_SHARE * one_way.get(key, 0)
    ]


RATES = {Unit.MESSAGES_PER_SECOND: 1.0, Unit.MEGAMESSAGES_PER_SECOND: 1e6}
"""Messages per second by unit."""

STEPS = {Unit.MESSAGES_PER_SECOND: 0.01, Unit.MEGAMESSAGES_PER_SECOND: 1e-6}
"""The last digit that programs print of a rate."""

LAST_DIGIT = 0.01
"""The last digit that programs print of a bandwidth."""


def _by_launch(cell: Cell) -> dict[tuple[str, int], float]:
    return {(seen.run, seen.launch): seen.value for seen in cell.observations}


def rate_disagrees(cells: Iterable[Cell]) -> list[Violation]:
    """Return points at which message rate times size is not the bandwidth, in any of their units."""
    rates: dict[tuple[object, ...], Cell] = {}
    bandwidths: dict[tuple[object, ...], list[Cell]] = {}
    for cell in cells:
        key = (cell.arm, *cell.point[:6], cell.point.setup)
        if DERIVED in cell.point.setup.datatype:
            continue  # the rate counts messages of which a part is sent
        if cell.point.unit in RATES and cell.point.metric == "rate":
            rates[key] = cell
        elif cell.point.unit in BANDWIDTHS and cell.point.metric == "bandwidth":
            bandwidths.setdefault(key, []).append(cell)
    found = [
        Violation(Severity.INVALID, cell.arm, cell.point, words)
        for key, rate in rates.items()
        for cell in bandwidths.get(key, [])
        if (words := _disagreement(rate, cell))
    ]
    return sorted(found, key=lambda v: (v.arm, v.point.test, v.point.size or 0))


def _disagreement(rates: Cell, bandwidths: Cell) -> str:
    """Return the first launch in words whose rate and bandwidth do not fit; "": all fit."""
    size, unit = rates.point.size or 0, bandwidths.point.unit
    scale = 8e-9 * size / BANDWIDTHS[unit]
    known = _by_launch(bandwidths)
    slack = LAST_DIGIT + STEPS[rates.point.unit] * RATES[rates.point.unit] * scale / 2
    for launch, rate in _by_launch(rates).items():
        bandwidth = known.get(launch)
        due = rate * RATES[rates.point.unit] * scale
        if bandwidth is not None and abs(due - bandwidth) > max(AGREE * bandwidth, slack):
            return (
                f"{rate:g} {_RATE_WORDS[rates.point.unit]} of {size} B are {due:.2f} {unit.value}, "
                f"not {bandwidth:g}"
            )
    return ""


_RATE_WORDS = {
    Unit.MESSAGES_PER_SECOND: "messages/s",
    Unit.MEGAMESSAGES_PER_SECOND: "million messages/s",
}


def wire_disagrees(payload: int, counted: int) -> str | None:
    """Return the fault if ports counted less than the program sent, else None."""
    if counted < payload:
        return f"the ports sent {counted} bytes, the program sent {payload}"
    return None


def rate_of(arm: Arm) -> float | None:
    """Return the line rate of an arm in Gbit/s, if the labels have it."""
    text = arm.facts.get("line_rate_gbit", "")
    try:
        return float(text) if text else None
    except ValueError as error:
        raise NearmetalError(f"arm {arm.name}: line_rate_gbit {text!r}", "give a number") from error


def impossible_points(
    arms: Sequence[Arm],
    cells: Sequence[Sequence[Cell]],
    observed: Callable[[Cell], Mapping[str, str]] = lambda _cell: {},
) -> list[Violation]:
    """Return the points of each arm, in its cells, that physics forbids."""
    return [
        one
        for arm, ours in zip(arms, cells, strict=True)
        for one in violations(ours, rate_of(arm), observed)
        if one.severity is Severity.INVALID
    ]


def violations(
    cells: Iterable[Cell],
    line_rate_gbit: float | None,
    observed: Callable[[Cell], Mapping[str, str]] = lambda _cell: {},
) -> list[Violation]:
    """Return all violations in the cells of one arm."""
    known = list(cells)
    found = above_line_rate(known, line_rate_gbit, observed) if line_rate_gbit else []
    return [*found, *rate_disagrees(known), *falling_latency(known), *slow_both_ways(known)]
