# SPDX-License-Identifier: Apache-2.0
"""Physics: values that cannot be true, and the share of a line that a bandwidth fills. Pure.

A value beyond the wire makes a run invalid, not fast. The data rate of a line is its rate without
encoding: InfiniBand names its rates up to FDR with encoding, EDR and later without, as Ethernet
does. Payload and headers share the data rate, one packet per MTU.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from nearmetal.evidence import Unit
from nearmetal.study.gate import BANDWIDTHS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nearmetal.study.model import Cell, Point

BOTH_WAYS = ("osu_bibw", "bidir", "bidirectional", "exchange", "sendrecv")
FALL = 0.10
"""A fall of latency by less than this share is noise where launches are too few to say."""

LARGE = 64 << 10
BIDIRECTIONAL_SHARE = 0.9
AGREE = 0.02


class Severity(Enum):
    """What a violation means."""

    INVALID = "invalid"
    SUSPECT = "suspect"


@dataclass(frozen=True)
class Violation:
    """One thing that cannot be, or hardly can."""

    severity: Severity
    arm: str
    point: Point
    what: str


def _both_ways(test: str) -> bool:
    return any(name in test.lower() for name in BOTH_WAYS)


def above_line_rate(cells: Iterable[Cell], line_rate_gbit: float) -> list[Violation]:
    """Return bandwidths above the line rate; both directions together have twice of it."""
    found = []
    for cell in cells:
        scale = BANDWIDTHS.get(cell.point.unit)
        if scale is None:
            continue
        limit = line_rate_gbit * (2 if _both_ways(cell.point.test) else 1)
        most = max(cell.values) * scale
        if most > limit:
            words = f"{most:.1f} Gbit/s over a line of {limit:g} Gbit/s"
            found.append(Violation(Severity.INVALID, cell.arm, cell.point, words))
    return found


def falling_latency(cells: Iterable[Cell]) -> list[Violation]:
    """Return sizes whose latency is below that of a smaller one, beyond noise.

    A change of protocol can do that, so it makes a curve suspect, not invalid.
    """
    curves: dict[tuple[str, Point], list[Cell]] = {}
    for cell in cells:
        if cell.point.size is not None and cell.point.metric == "latency":
            curves.setdefault((cell.arm, cell.point._replace(size=None)), []).append(cell)
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
    both: list[tuple[tuple[object, ...], Cell]] = []
    for cell in cells:
        size = cell.point.size
        if cell.point.unit not in BANDWIDTHS or size is None or size < LARGE:
            continue
        key = (cell.arm, size, cell.point.nodes, cell.point.unit, cell.point.program)
        if cell.point.test == "osu_bw":
            one_way[key] = median(cell.values)
        elif cell.point.test == "osu_bibw":
            both.append((key, cell))
    return [
        Violation(
            Severity.SUSPECT,
            cell.arm,
            cell.point,
            f"both ways {median(cell.values):g}, one way {one_way[key]:g}",
        )
        for key, cell in both
        if key in one_way and median(cell.values) < BIDIRECTIONAL_SHARE * one_way[key]
    ]


def rate_disagrees(cells: Iterable[Cell]) -> list[Violation]:
    """Return points where message rate times size is not the bandwidth beside it."""
    rates: dict[tuple[object, ...], Cell] = {}
    bandwidths: dict[tuple[object, ...], Cell] = {}
    for cell in cells:
        key = (cell.arm, *cell.point[:6])
        if cell.point.unit is Unit.MESSAGES_PER_SECOND and cell.point.metric == "rate":
            rates[key] = cell
        elif cell.point.unit is Unit.MEGABYTES_PER_SECOND and cell.point.metric == "bandwidth":
            bandwidths[key] = cell
    found = []
    for both in rates.keys() & bandwidths.keys():
        cell, size = bandwidths[both], bandwidths[both].point.size
        for rate, bandwidth in zip(rates[both].values, cell.values, strict=False):
            due = rate * (size or 0) / 1e6
            if abs(due - bandwidth) > max(AGREE * bandwidth, 0.01):
                words = f"{rate:g} messages/s of {size} B are {due:.2f} MB/s, not {bandwidth:g}"
                found.append(Violation(Severity.INVALID, cell.arm, cell.point, words))
                break
    return sorted(found, key=lambda v: (v.arm, v.point.test, v.point.size or 0))


def wire_disagrees(payload: int, counted: int) -> str | None:
    """Return what is wrong when port counters say less than the program sent, or None."""
    if counted < payload:
        return f"the ports sent {counted} bytes, the program says {payload}"
    return None


def violations(cells: Iterable[Cell], line_rate_gbit: float | None) -> list[Violation]:
    """Return everything that cannot be in the cells of one arm."""
    known = list(cells)
    found = above_line_rate(known, line_rate_gbit) if line_rate_gbit else []
    return [*found, *rate_disagrees(known), *falling_latency(known), *slow_both_ways(known)]


FULL = 0.9
"""From this share on, large messages fill a line: what is lost is pauses, not a cause to look for."""

BEYOND = 1.01
"""Above this share, the line that was told is not the line that was measured."""


class LinkLayer(Enum):
    """What the packets are made of."""

    INFINIBAND = "InfiniBand"
    ROCE = "RoCE"
    TCP = "TCP over Ethernet"


class Packet(NamedTuple):
    """Bytes around the payload of a packet, and the MTU where none is told.

    `inside` counts towards the MTU, `outside` does not.
    """

    inside: int
    outside: int
    mtu: int


PACKETS = {
    # local route 8, base transport 12, invariant 4 and variant 2 checksums
    LinkLayer.INFINIBAND: Packet(0, 26, 4096),
    # preamble 8, Ethernet 14, IPv4 20, UDP 8, base transport 12, checksums 4 + 4, gap 12
    LinkLayer.ROCE: Packet(0, 82, 1024),
    # IPv4 20 and TCP 20 with 12 of time stamps within the MTU; preamble 8, Ethernet 14 + 4, gap 12
    LinkLayer.TCP: Packet(52, 38, 1500),
}

_TOLD_BEFORE_ENCODING = {10: 0.8, 20: 0.8, 40: 0.8, 56: 64 / 66 * 56.25 / 56}
"""InfiniBand: by the usual name of the rate, what of it carries data (SDR, DDR, QDR, FDR)."""


def link_of(fabric: str) -> LinkLayer:
    """Return what a fabric's packets are made of, from its name."""
    words = fabric.lower().replace("-", " ").replace("/", " ").split()
    if "roce" in words or "rocev2" in words:
        return LinkLayer.ROCE
    if "infiniband" in words or "ib" in words:
        return LinkLayer.INFINIBAND
    return LinkLayer.TCP


@dataclass(frozen=True)
class LineRate:
    """What a line can carry, what was measured, and what that means."""

    link: LinkLayer
    told: float
    data: float
    payload: float
    measured: float

    @property
    def share(self) -> float:
        """The share of the possible payload that was measured."""
        return self.measured / self.payload

    @property
    def verdict(self) -> str:
        """In words."""
        if self.share > BEYOND:
            return "impossible: is the line faster than told?"
        return "fills the line" if self.share >= FULL else "does not fill the line"


def line_rate(fabric: str, told: float, measured: float, mtu: int | None = None) -> LineRate:
    """Return what a bandwidth (Gbit/s of payload) is of a line of `told` Gbit/s."""
    link = link_of(fabric)
    packet = PACKETS[link]
    size = mtu or packet.mtu
    data = told
    if link is LinkLayer.INFINIBAND and told.is_integer():
        data = told * _TOLD_BEFORE_ENCODING.get(int(told), 1.0)
    payload = data * (size - packet.inside) / (size + packet.outside)
    return LineRate(link, told, data, payload, measured)
