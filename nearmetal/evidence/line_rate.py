# SPDX-License-Identifier: Apache-2.0
"""Lines: the share of an Ethernet, InfiniBand or PCIe line that a bandwidth fills. Pure.

The data rate of a line is its rate without encoding: InfiniBand names its rates up to FDR with
encoding, EDR and later without, as Ethernet does. Payload and headers share the data rate, one
packet per MTU. PCIe names its rates with encoding, and its packets carry at most MaxPayload bytes.
Acknowledgements and flow control of PCIe also need a part, which depends on the devices: it is not
subtracted.
"""

from __future__ import annotations

from collections.abc import Mapping
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

_8B_10B, _64B_66B = 8 / 10, 64 / 66
_PAM4 = 256 / 257 * 514 / 544
"""256b/257b, and the forward error correction RS(544,514): IEEE 802.3, clause 91."""

LANES: Mapping[str, float] = {
    "SDR": 2.5 * _8B_10B,
    "DDR": 5 * _8B_10B,
    "QDR": 10 * _8B_10B,
    "FDR10": 10.3125 * _64B_66B,
    "FDR": 14.0625 * _64B_66B,
    "EDR": 25.78125 * _64B_66B,
    "HDR": 53.125 * _PAM4,
    "NDR": 106.25 * _PAM4,
    "XDR": 212.5 * _PAM4,
}
"""Gbit/s of data in a lane of InfiniBand, from the bits on the wire. EDR with error correction has
the same rate: 256b/257b and RS(528,514) need as much as 64b/66b."""

_WITH_ENCODING = {10: "SDR", 20: "DDR", 40: "QDR", 56: "FDR"}
"""Generations of InfiniBand by the rate of four lanes, if only the rate is known."""


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


def line_rate(
    fabric: str,
    nominal: float,
    measured: float,
    mtu: int | None = None,
    lanes: tuple[int, str] | None = None,
) -> LineRate:
    """Return the share of a line of `nominal` Gbit/s that a bandwidth (Gbit/s of payload) uses.

    `lanes`: of InfiniBand, their number and generation; without them, four lanes are assumed.
    """
    packet = _packet_of(fabric)
    size = mtu or packet.mtu
    data = nominal
    if packet is _INFINIBAND:
        known = lanes or (4, _WITH_ENCODING.get(int(nominal) if nominal.is_integer() else 0, ""))
        data = known[0] * LANES[known[1]] if known[1] in LANES else nominal
    payload = data * (size - packet.inside) / (size + packet.outside)
    return LineRate(nominal, data, payload, measured)


_FLITS = 64.0
_PCIE_ENCODING = {2.5: 0.8, 5.0: 0.8, 8.0: 128 / 130, 16.0: 128 / 130, 32.0: 128 / 130, _FLITS: 1.0}
"""The share of data by GT/s: 8b/10b, then 128b/130b, then flits. Source: kernel, drivers/pci/pci.h,
PCIE_SPEED2MBS_ENC."""

_FLIT = 236 / 256
"""The share of packets in a flit; the rest is 6 bytes of acknowledgements, 8 of checksums and 6 of
error correction. Source: PCI-SIG, PCIe 6.0."""

_PCIE_HEADER = 16
_PCIE_FRAME = 8
"""Bytes around the payload of a PCIe packet: a header with a 64-bit address; and start, sequence
number and checksum, which flits have once for all packets. Source: Intel AN 708, five to seven
words of 4 bytes; here six."""

PCIE_PAYLOADS = (128, 256, 512, 1024, 2048, 4096)


def pcie_rate(transfers: float, lanes: int, max_payload: int = 0) -> float | None:
    """Return the data rate of a slot in Gbit/s, from GT/s and lanes; None: the speed is unknown.

    `max_payload`: of its packets, whose headers are then subtracted; 0: not known.
    """
    share = _PCIE_ENCODING.get(transfers)
    if share is None or lanes < 1:
        return None
    rate = transfers * share * lanes * (_FLIT if transfers == _FLITS else 1)
    if max_payload not in PCIE_PAYLOADS:
        return rate
    around = _PCIE_HEADER + (0 if transfers == _FLITS else _PCIE_FRAME)
    return rate * max_payload / (max_payload + around)
