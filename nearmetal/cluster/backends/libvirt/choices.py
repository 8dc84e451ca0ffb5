# SPDX-License-Identifier: Apache-2.0
"""Choices of a plan: the device and the parts of each segment, and the cores of each node. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nearmetal.cluster.backends.libvirt.spec import LibvirtHost, LibvirtNode, LibvirtSpec
from nearmetal.cluster.backends.libvirt.values import Device, VirtualHost, VirtualNode
from nearmetal.cluster.resource import HostFacts
from nearmetal.config.size import format_size
from nearmetal.core.errors import StateError
from nearmetal.core.text import printable

QEMU_NAMES: dict[Device, str] = {
    "ivshmem": "ivshmem-plain",
    "virtio-pmem": "virtio-pmem-pci",
    "nvdimm": "nvdimm",
}
"""QEMU's names of the devices of a spec."""

_CONVENTION = "one mapping that all may write, so each keeps to its part by convention"

_WINDOW = 8 << 20
"""Memory of a part for one endpoint: a window with the usual knobs takes less than 6 MiB."""

_MOST_NAMED = 4
_USUAL_PART = 64 << 20
_LARGEST_PART = 1 << 30


def placed(spec: LibvirtSpec, held: Mapping[str, VirtualNode]) -> LibvirtSpec:
    """Return the spec with each moved node on its present host.

    A node that is moved stays where it is until the spec names a third host for it.
    """
    names = {host.name: host for host in spec.hosts}
    goals = {}
    for host, node in spec.nodes:
        there = held.get(node.name)
        if there is None or there.home != host.name or there.host not in names:
            continue
        if there.uri == names[there.host].uri:
            goals[node.name] = there.host
    if not goals:
        return spec
    nodes = {
        host.name: [node for node in host.nodes if node.name not in goals] for host in spec.hosts
    }
    for _, node in spec.nodes:
        if node.name in goals:
            nodes[goals[node.name]].append(node)
    hosts = [host.model_copy(update={"nodes": nodes[host.name]}) for host in spec.hosts]
    return spec.model_copy(update={"hosts": hosts})


def choose_device(
    host: LibvirtHost, facts: HostFacts, accel: str, there: VirtualHost | None
) -> tuple[Device, str]:
    """Return the device ("none" included) and the reason; StateError if QEMU lacks it.

    `there`: the host as it is. A node that is left alone keeps its device.
    """
    asked = host.segment.device
    have: list[Device] = [name for name, word in QEMU_NAMES.items() if word in facts.devices]
    if asked == "none":
        return "none", "the spec asks for none: its nodes meet over the network"
    if asked != "auto":
        if asked not in have:
            raise StateError(
                f"host {host.name}: its QEMU {facts.qemu} has no {QEMU_NAMES[asked]}",
                f"use auto, or a device that it has: {', '.join(have) or 'none'}",
            )
        return asked, "the spec asks for it"
    if len(host.nodes) <= 1 and host.segment.parts == "auto" and not (there and there.parts):
        return "none", f"the host has {'one node only' if host.nodes else 'no node'}"
    if not have:
        return "none", f"QEMU {facts.qemu} there has no device for it: nodes meet over the network"
    if have[0] != "ivshmem":
        return have[0], f"QEMU {facts.qemu} there has no ivshmem-plain; {_CONVENTION}"
    if accel == "kvm" and facts.cpu_vendor == "AMD" and "virtio-pmem" in have:
        return "virtio-pmem", (
            "under KVM on AMD the guest's own caching attributes hold, which makes the memory of "
            f"a PCI device uncached; DAX is write-back. {_CONVENTION.capitalize()}"
        )
    cached = (
        "TCG ignores caching attributes"
        if accel == "tcg"
        else "under KVM on this processor its memory is cached as the host's"
    )
    return "ivshmem", (
        f"each node writes its own part only, which the hypervisor enforces; {cached}"
    )


def part_size(host: LibvirtHost, device: Device, there: VirtualHost | None) -> int:
    """Return the size of each part of a host's segment; `there`: the host as it is.

    The parts of a running segment keep their size, because another one recreates all nodes.
    A host without nodes gets parts of the usual size, which machines of other hosts may take.
    """
    if host.segment.part != "auto":
        return host.segment.part
    if there is not None and there.device == device and there.part_size:
        return there.part_size
    most = max((node.slots for node in host.nodes), default=0)
    return min(max(_USUAL_PART, 1 << (_WINDOW * most - 1).bit_length()), _LARGEST_PART)


def small_parts(host: LibvirtHost, size: int) -> str:
    """Return a note on parts in which not every slot has a whole window; "" if there is room."""
    tight = [node for node in host.nodes if node.slots * _WINDOW > size]
    if not tight:
        return ""
    most = max(tight, key=lambda node: node.slots)
    return (
        f"parts of {format_size(size)}: the {most.slots} endpoints of node {most.name} get smaller "
        f"windows, which slows large messages; {format_size(most.slots * _WINDOW)} hold whole ones"
    )


def nr_parts(host: LibvirtHost, device: Device, size: int, there: VirtualHost | None) -> int:
    """Return the number of parts of a host's segment; `there`: the host as it is.

    A segment with more parts than necessary keeps them, because another size recreates all nodes.
    """
    if device == "none":
        return 0
    if host.segment.parts != "auto":
        return host.segment.parts
    if there is not None and (there.device, there.part_size) == (device, size):
        have = there.parts or 0
        if have >= len(host.nodes):
            return have
    return 1 << (len(host.nodes) - 1).bit_length()


def deal_parts(host: LibvirtHost, parts: int, held: Mapping[str, VirtualNode]) -> dict[str, int]:
    """Return each node's part: the part that it has, or else the first free part."""
    dealt: dict[str, int] = {}
    for node in host.nodes if parts else ():
        there = held.get(node.name)
        if there is None or (there.host, there.uri) != (host.name, host.uri):
            continue
        part = there.part
        if part is not None and 0 <= part < parts and part not in dealt.values():
            dealt[node.name] = part
    free = sorted(set(range(parts)) - set(dealt.values()))
    others = [node.name for node in host.nodes if node.name not in dealt]
    return dealt | dict(zip(others, free, strict=False))


def why_recreated(host: LibvirtHost, there: VirtualHost | None, wanted: VirtualHost) -> str:
    """Return the reason why a host is recreated with all of its nodes; "" if it is not."""
    more = f"`segment: {{parts: {2 << (len(host.nodes) - 1).bit_length()}}}` leaves room for more"
    if there is None or there == wanted:
        return ""
    if there.device == "none" and wanted.device != "none":
        return f"its nodes have no device for a segment and get one only at their start; {more}"
    if there.device != wanted.device:
        return "its nodes get another device for the segment only at their start"
    if there.parts != wanted.parts:
        return f"its segment has {there.parts} parts, and a mapped file cannot grow; {more}"
    if there.part_size != wanted.part_size:
        return "the parts of a mapped segment keep their size"
    return ""


class Cores:
    """Deals the cores of one hypervisor to its nodes.

    A node keeps the dealt cores that it has. Any other node gets the cores that the fewest such
    nodes and machines of others have, in their order: in a new cluster the next cores, and after
    the last the first again.
    """

    def __init__(self, facts: HostFacts) -> None:
        self.facts = facts
        self.users: dict[int, list[str]] = {}
        self.nr_slots = 0
        self._dealt = dict.fromkeys(facts.cpus, 0)
        for cores in facts.pins.values():
            self._count(sorted(cores.intersection(facts.cpus)))
        self._kept: dict[str, tuple[int, ...]] = {}

    def keep(self, node: LibvirtNode, held: VirtualNode | None) -> None:
        """Let a node keep its cores if it asks for that number; before any `assign`."""
        have = () if held is None else held.cpus
        fits = len(set(have)) == len(have) == min(node.slots, len(self.facts.cpus))
        if node.cpus == "auto" and fits and set(have) <= set(self.facts.cpus):
            self._kept[node.name] = have
            self._count(have)

    def _count(self, cpus: Sequence[int]) -> None:
        for cpu in cpus:
            self._dealt[cpu] += 1

    def assign(self, node: LibvirtNode) -> tuple[int, ...]:
        """Return the cores of one node, () for the kernel's choice."""
        self.nr_slots += node.slots
        if node.cpus == "none":
            return ()
        if node.cpus != "auto":
            chosen = self._given(node, node.cpus)
        elif node.name in self._kept:
            chosen = self._kept[node.name]
        else:
            order = sorted(self.facts.cpus, key=lambda cpu: self._dealt[cpu])
            chosen = tuple(sorted(order[: node.slots]))
            self._count(chosen)
        for cpu in chosen:
            self.users.setdefault(cpu, []).append(node.name)
        return chosen

    def _given(self, node: LibvirtNode, cpus: Sequence[int]) -> tuple[int, ...]:
        foreign = [cpu for cpu in cpus if cpu not in self.facts.cpus]
        if foreign:
            listed = ", ".join(map(str, self.facts.cpus))
            raise StateError(
                f"node {node.name}: {self.facts.uri} has no core {foreign[0]}",
                f"use cores out of {listed}, or cpus: auto",
            )
        return tuple(sorted(cpus))

    def emulator(self, node: LibvirtNode, held: VirtualNode | None) -> tuple[int, ...]:
        """Return the cores of QEMU's own threads; after all calls of `assign`."""
        if node.emulator_cpus == "none":
            return ()
        if node.emulator_cpus == "auto":
            have = () if held is None else held.emulator_cpus
            if have and set(have) <= set(self.facts.cpus):
                return have
            pinned = set(self.users).union(*self.facts.pins.values())
            free = [cpu for cpu in self.facts.cpus if cpu not in pinned]
            return tuple(free or self.facts.cpus)
        return self._given(node, node.emulator_cpus)

    def strangers(self) -> str:
        """Return a note on cores that machines of others have, too; "" if there are none."""
        shared = {
            name: sorted(cores.intersection(self.users))
            for name, cores in sorted(self.facts.pins.items())
        }
        named = [f"{printable(n)[:64]} ({', '.join(map(str, c))})" for n, c in shared.items() if c]
        if not named:
            return ""
        more = f" and {len(named) - _MOST_NAMED} more" if len(named) > _MOST_NAMED else ""
        shown = ", ".join(named[:_MOST_NAMED])
        return f"machines of others are pinned to cores of nodes: {shown}{more}"

    def cells(self, node: LibvirtNode, cpus: Sequence[int]) -> tuple[int, ...]:
        """Return the host's NUMA nodes that a node's memory comes from; () for any."""
        if node.numa == "none" or not cpus or len(self.facts.numa) < 2:  # noqa: PLR2004 - a choice
            return ()
        return tuple(sorted({self.facts.cell_of(cpu) for cpu in cpus}))
