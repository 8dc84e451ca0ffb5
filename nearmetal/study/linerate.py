# SPDX-License-Identifier: Apache-2.0
"""How much of a line a bandwidth fills: the link's rate less its encoding, less the packets' headers. Pure.

InfiniBand's rates up to QDR are told before their 8b/10b encoding, FDR before 64b/66b; EDR and later, and
Ethernet, are told behind it. What is left is shared by payload and headers, a packet per MTU.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

FULL = 0.9
"""From this share on, large messages fill a line: what is lost is pauses, not a cause to look for."""

BEYOND = 1.01
"""Above this share, the line that was told is not the line that was measured."""


class Link(Enum):
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
    Link.INFINIBAND: Packet(0, 26, 4096),
    # preamble 8, Ethernet 14, IPv4 20, UDP 8, base transport 12, checksums 4 + 4, gap 12
    Link.ROCE: Packet(0, 82, 1024),
    # IPv4 20 and TCP 20 with 12 of time stamps within the MTU; preamble 8, Ethernet 14 + 4, gap 12
    Link.TCP: Packet(52, 38, 1500),
}

_TOLD_BEFORE_ENCODING = {10: 0.8, 20: 0.8, 40: 0.8, 56: 64 / 66 * 56.25 / 56}
"""InfiniBand: by the usual name of the rate, what of it carries data (SDR, DDR, QDR, FDR)."""


def link_of(fabric: str) -> Link:
    """Return what a fabric's packets are made of, from its name."""
    words = fabric.lower().replace("-", " ").replace("/", " ").split()
    if "roce" in words or "rocev2" in words:
        return Link.ROCE
    if "infiniband" in words or "ib" in words:
        return Link.INFINIBAND
    return Link.TCP


@dataclass(frozen=True)
class LineRate:
    """What a line can carry, what was measured, and what that means."""

    link: Link
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
    if link is Link.INFINIBAND and told.is_integer():
        data = told * _TOLD_BEFORE_ENCODING.get(int(told), 1.0)
    payload = data * (size - packet.inside) / (size + packet.outside)
    return LineRate(link, told, data, payload, measured)
