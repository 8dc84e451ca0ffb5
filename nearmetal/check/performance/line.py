# SPDX-License-Identifier: Apache-2.0
"""What the lines of two nodes can carry: port, packets of the MTU, and the slot. Pure.

The line of a node is the weaker of its port, after encoding and headers, and its slot.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from nearmetal.check.families.fabric import RATE, SPEED
from nearmetal.check.snapshot import Snapshot, is_decimal
from nearmetal.core.text import printable
from nearmetal.evidence.line_rate import PCIE_PAYLOADS, line_rate, pcie_rate

_ROCE_MTUS = (4096, 2048, 1024, 512, 256)
_ROCE_HEADERS = 52
"""Bytes of a RoCE packet within the MTU of its interface: IPv4 20, UDP 8, transport 12 to 24."""

_IPOIB_MTUS = {size - 4: size for size in _ROCE_MTUS}
"""MTUs of InfiniBand by those of interfaces in datagram mode, which lose 4 bytes to a header."""


@dataclass(frozen=True)
class PortCapacity:
    """The Gbit/s of payload of a port, and the part that limits it, in words."""

    node: str
    port: str
    gbit: float
    limit: str


def capacities(node: Snapshot) -> Iterator[PortCapacity]:
    """Yield the capacity of each active port of a real RDMA device."""
    for device in sorted(node.table("fabric")):
        if node.flag("fabric", device, "software"):
            continue
        slot = _slot(node, node.text("fabric", device, "address"))
        for port in sorted(node.table("fabric", device, "ports")):
            place = ("fabric", device, "ports", port)
            found = RATE.match(node.text(*place, "rate"))
            if found and node.text(*place, "state") == "ACTIVE":
                name = printable(f"{device}/{port}")[:64]
                fabric, mtu = _packets(node, place)
                lanes = (int(found[2]), found[3]) if found[2] else None
                line = line_rate(fabric, float(found[1]), 0.0, mtu, lanes)
                if not float(found[1]) or not line.payload:
                    continue
                if slot and slot[0] < line.payload:
                    yield PortCapacity(node.name, name, *slot)
                else:
                    words = f"{fabric} of {line.nominal:g} Gbit/s"
                    words += f" with an MTU of {mtu}" if mtu else ""
                    yield PortCapacity(node.name, name, line.payload, words)


def _packets(node: Snapshot, port: tuple[str, ...]) -> tuple[str, int | None]:
    """Return the fabric and the MTU of its packets; None: the usual one."""
    mtu = node.count("net", node.text(*port, "netdev"), "mtu")
    if node.text(*port, "link_layer") != "Ethernet":
        return "InfiniBand", _IPOIB_MTUS.get(mtu)
    return "RoCE", next((size for size in _ROCE_MTUS if size + _ROCE_HEADERS <= mtu), None)


def _slot(node: Snapshot, address: str) -> tuple[float, str] | None:
    """Return the Gbit/s of a slot, and its words; None: not known, as a hypervisor makes it up."""
    place = ("pci", address)
    speed = SPEED.match(node.text(*place, "current_link_speed"))
    width = node.text(*place, "current_link_width")
    if node.flag("virtual", "guest") or node.text(*place, "physical"):
        return None
    if speed is None or not is_decimal(width):
        return None
    payload = node.count(*place, "max_payload")
    rate = pcie_rate(float(speed[1]), int(width), payload)
    words = f"PCIe slot of {speed[1]} GT/s with {width} lanes"
    words += f" and a MaxPayload of {payload}" if payload in PCIE_PAYLOADS else ""
    return None if rate is None else (rate, words)


@dataclass(frozen=True)
class LineShare:
    """The share of the possible payload that a pair reached."""

    capacity: PortCapacity
    gbit: float

    @property
    def share(self) -> float:
        """The measured share."""
        return self.gbit / self.capacity.gbit


def capacity_of(node: Snapshot) -> PortCapacity | None:
    """Return the best port of a node: the MPI chooses the port, and no file says which."""
    return max(capacities(node), key=lambda c: c.gbit, default=None)


def weaker(ends: Sequence[PortCapacity]) -> PortCapacity:
    """Return the capacity of the weakest end."""
    return min(ends, key=lambda c: c.gbit)
