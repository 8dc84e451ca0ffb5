# SPDX-License-Identifier: Apache-2.0
"""Physics: values that cannot be true, and the share of a line that a bandwidth fills. Pure.

A value beyond the wire makes a run invalid, not fast. The data rate of a line is its rate without
encoding: InfiniBand names its rates up to FDR with encoding, EDR and later without, as Ethernet
does. Payload and headers share the data rate, one packet per MTU.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from nearmetal.evidence import Unit
from nearmetal.study.gate import BANDWIDTHS
from nearmetal.study.model import Cell, Point

BOTH_WAYS = ("osu_bibw", "bidir", "bidirectional", "exchange", "sendrecv")
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


def above_line_rate(cells: Iterable[Cell], line_rate_gbit: float) -> list[Violation]:
    """Return bandwidths above the line rate; both directions together may have twice the rate."""
    found = []
    for cell in cells:
        both = any(name in cell.point.test.lower() for name in BOTH_WAYS)
        limit = line_rate_gbit * (2 if both else 1)
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


def rate_disagrees(cells: Iterable[Cell]) -> list[Violation]:
    """Return points at which message rate times size is not the bandwidth."""
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
    """Return the fault if ports counted less than the program sent, else None."""
    if counted < payload:
        return f"the ports sent {counted} bytes, the program sent {payload}"
    return None


def violations(cells: Iterable[Cell], line_rate_gbit: float | None) -> list[Violation]:
    """Return all violations in the cells of one arm."""
    known = list(cells)
    found = above_line_rate(known, line_rate_gbit) if line_rate_gbit else []
    return [*found, *rate_disagrees(known), *falling_latency(known), *slow_both_ways(known)]


FULL = 0.9
"""Share of a full line: with large messages, pauses cost the rest."""

BEYOND = 1.01
"""Above this share, the line rate of the labels is wrong."""


class Packet(NamedTuple):
    """Bytes around the payload of a packet, and the default MTU.

    `inside` counts towards the MTU, `outside` does not.
    """

    inside: int
    outside: int
    mtu: int


# local route 8, base transport 12, invariant 4 and variant 2 checksums
_INFINIBAND = Packet(0, 26, 4096)
# preamble 8, Ethernet 14, IPv4 20, UDP 8, base transport 12, checksums 4 + 4, gap 12
_ROCE = Packet(0, 82, 1024)
# IPv4 20 and TCP 20 with 12 of time stamps within the MTU; preamble 8, Ethernet 14 + 4, gap 12
_TCP = Packet(52, 38, 1500)

_WITH_ENCODING = {10: 0.8, 20: 0.8, 40: 0.8, 56: 64 / 66 * 56.25 / 56}
"""InfiniBand: the share of data in the rate, by its usual name (SDR, DDR, QDR, FDR)."""


def _packet_of(fabric: str) -> Packet:
    """Return the packets of a fabric, from its name."""
    words = fabric.lower().replace("-", " ").replace("/", " ").split()
    if "roce" in words or "rocev2" in words:
        return _ROCE
    if "infiniband" in words or "ib" in words:
        return _INFINIBAND
    return _TCP


@dataclass(frozen=True)
class LineRate:
    """The capacity of a line, the measured bandwidth, and the conclusion."""

    nominal: float
    data: float
    payload: float
    measured: float

    @property
    def share(self) -> float:
        """The measured share of the possible payload."""
        return self.measured / self.payload

    @property
    def verdict(self) -> str:
        """The conclusion in words."""
        if self.share > BEYOND:
            return "impossible: correct the fact line_rate_gbit"
        return "fills the line" if self.share >= FULL else "does not fill the line"


def line_rate(fabric: str, nominal: float, measured: float, mtu: int | None = None) -> LineRate:
    """Return the share of a line of `nominal` Gbit/s that a bandwidth (Gbit/s of payload) uses."""
    packet = _packet_of(fabric)
    size = mtu or packet.mtu
    data = nominal
    if packet is _INFINIBAND and nominal.is_integer():
        data = nominal * _WITH_ENCODING.get(int(nominal), 1.0)
    payload = data * (size - packet.inside) / (size + packet.outside)
    return LineRate(nominal, data, payload, measured)
