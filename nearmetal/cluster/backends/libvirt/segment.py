# SPDX-License-Identifier: Apache-2.0
"""The segment of a host: which device shows it to the virtual machines, who gets which part. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nearmetal.core.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nearmetal.cluster.backends.libvirt.plan import Device, VirtualHost, VirtualNode
    from nearmetal.cluster.backends.libvirt.spec import LibvirtHost
    from nearmetal.cluster.spec import HostFacts

QEMU_NAMES = {
    "ivshmem": "ivshmem-plain",
    "virtio-pmem": "virtio-pmem-pci",
    "nvdimm": "nvdimm",
}
"""What QEMU calls the devices of a spec."""

_CONVENTION = "one mapping that all may write, so each keeps to its part by convention"


def _has(facts: HostFacts, device: str) -> bool:
    return QEMU_NAMES[device] in facts.devices


def choose_device(
    host: LibvirtHost, facts: HostFacts, accel: str, held: str = ""
) -> tuple[Device, str]:
    """Return the device ("none" included) and the reason; StateError when QEMU lacks it.

    `held`: the device that the host's segment has already. A node that is left alone keeps it.
    """
    asked = host.segment.device
    if asked == "none":
        return "none", "the spec asks for none: its nodes meet over the network"
    if asked != "auto":
        if not _has(facts, asked):
            have = [name for name in QEMU_NAMES if _has(facts, name)]
            msg = f"host {host.name}: its QEMU {facts.qemu} has no {QEMU_NAMES[asked]}"
            raise StateError(msg, f"segment devices it has: {', '.join(have) or 'none'}; or auto")
        return asked, "the spec asks for it"
    if len(host.nodes) == 1 and host.segment.parts == "auto" and held in ("", "none"):
        return "none", "one node only, nobody to meet"
    if not _has(facts, "ivshmem"):
        return _without_ivshmem(facts)
    if accel == "kvm" and facts.cpu_vendor == "AMD" and _has(facts, "virtio-pmem"):
        why = (
            "under KVM on AMD the guest's own caching attributes hold, which makes the memory of "
            f"a PCI device uncached; DAX is write-back. {_CONVENTION.capitalize()}"
        )
        return "virtio-pmem", why
    cached = (
        "TCG ignores caching attributes"
        if accel == "tcg"
        else "under KVM on this processor its memory is cached as the host's"
    )
    why = f"each node writes its own part only, which the hypervisor enforces; {cached}"
    return "ivshmem", why


def _without_ivshmem(facts: HostFacts) -> tuple[Device, str]:
    others: tuple[Device, ...] = ("virtio-pmem", "nvdimm")
    for device in others:
        if _has(facts, device):
            return device, f"QEMU {facts.qemu} there has no ivshmem-plain; {_CONVENTION}"
    why = f"QEMU {facts.qemu} there has no device for it: nodes meet over the network"
    return "none", why


@dataclass(frozen=True)
class Room:
    """For how many nodes a host's segment has parts; 0 where it has none."""

    device: Device
    parts: int


def room_for(host: LibvirtHost, device: Device, there: VirtualHost | None) -> Room:
    """Return the room of a host's segment; `there`: the host as it is.

    A segment that has more room than is needed keeps it: another size would make all nodes anew.
    """
    if device == "none":
        return Room(device, 0)
    if host.segment.parts != "auto":
        return Room(device, host.segment.parts)
    if there is not None and (there.device, there.part_size) == (device, host.segment.part):
        have = there.parts or 0
        if have >= len(host.nodes):
            return Room(device, have)
    return Room(device, 1 << (len(host.nodes) - 1).bit_length())


def deal_parts(host: LibvirtHost, room: Room, held: Mapping[str, VirtualNode]) -> dict[str, int]:
    """Return each node's part: the one it has, or else the first free one."""
    if not room.parts:
        return {}
    dealt: dict[str, int] = {}
    for node in host.nodes:
        there = held.get(node.name)
        if there is None or (there.host, there.uri) != (host.name, host.uri):
            continue
        part = room.parts if there.part is None else there.part
        if 0 <= part < room.parts and part not in dealt.values():
            dealt[node.name] = part
    free = iter(sorted(set(range(room.parts)) - set(dealt.values())))
    return {n.name: dealt[n.name] if n.name in dealt else next(free) for n in host.nodes}


def why_anew(host: LibvirtHost, there: VirtualHost | None, wanted: VirtualHost) -> str:
    """Say why a host that is there is made anew with all of its nodes; "" where it is not."""
    more = f"`segment: {{parts: {2 << (len(host.nodes) - 1).bit_length()}}}` leaves room for more"
    if there is None or there == wanted:
        return ""
    if there.device == "none" and wanted.device != "none":
        return f"its nodes have no device for a segment and get one only at their start; {more}"
    if there.device != wanted.device:
        return "its nodes get another device for the segment only at their start"
    if there.parts != wanted.parts:
        return (
            f"its segment has {there.parts} parts, and a file that is mapped gets no more; {more}"
        )
    if there.part_size != wanted.part_size:
        return "the parts of a segment that is mapped keep their size"
    return ""
