# SPDX-License-Identifier: Apache-2.0
"""Lines: the share of an Ethernet, InfiniBand or PCIe line that a bandwidth fills. Pure.

The data rate of a line is its rate without encoding: InfiniBand names its rates up to FDR with
encoding, EDR and later without, as Ethernet does. Payload and headers share the data rate, one
packet per MTU. PCIe names its rates with encoding; the headers of its packets are not subtracted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

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


_PCIE_ENCODING = {2.5: 0.8, 5.0: 0.8, 8.0: 128 / 130, 16.0: 128 / 130, 32.0: 128 / 130, 64.0: 1.0}
"""The share of data by GT/s: 8b/10b, then 128b/130b, then flits. Source: kernel, drivers/pci/pci.h,
PCIE_SPEED2MBS_ENC."""


def pcie_rate(transfers: float, lanes: int) -> float | None:
    """Return the data rate of a slot in Gbit/s, from GT/s and lanes; None: the speed is unknown."""
    share = _PCIE_ENCODING.get(transfers)
    return None if share is None or lanes < 1 else transfers * share * lanes
