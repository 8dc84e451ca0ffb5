# SPDX-License-Identifier: Apache-2.0
"""What a cluster of virtual machines is made of, and why. Pure.

Reasons stand in the notes, never in attributes: another reason alone changes nothing.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from nearmetal.errors import StateError
from nearmetal.plan.segment import choose_device
from nearmetal.plan.wanted import Desired, cores_note
from nearmetal.spec import (
    Facts,
    HostFacts,
    Kind,
    LibvirtHost,
    LibvirtNode,
    LibvirtSpec,
    Resource,
    addresses,
    format_size,
    resource,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

MIN_LIBVIRT = (9, 0)
MIN_QEMU = (8, 1)
"""The first that drops writes to a read-only view of the segment instead of ending the guest."""


def _mac(cluster: str, node: str) -> str:
    """Return a locally administered address that only depends on the names."""
    digest = hashlib.sha256(f"{cluster}/{node}".encode()).digest()
    return ":".join(["52", "54", *(f"{byte:02x}" for byte in digest[:4])])


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".") if part.isdigit())


def _check_versions(host: LibvirtHost, facts: HostFacts) -> None:
    for what, have, least in (
        ("libvirt", facts.libvirt, MIN_LIBVIRT),
        ("QEMU", facts.qemu, MIN_QEMU),
    ):
        if _version(have) < least:
            wanted = ".".join(map(str, least))
            msg = f"host {host.name}: {what} {have} is too old"
            raise StateError(msg, f"install {what} {wanted} or newer there")


def _accel(spec: LibvirtSpec, host: LibvirtHost, facts: HostFacts) -> tuple[str, str]:
    """Return what executes the machines of a host, and why."""
    if spec.accel == "kvm":
        if not facts.kvm:
            msg = f"host {host.name}: accel kvm is asked for, but {facts.kvm_reason}"
            raise StateError(msg, "switch on virtualization in its BIOS, or write accel: auto")
        return "kvm", "the spec asks for it"
    if spec.accel == "tcg":
        return "tcg", "the spec asks for it"
    return ("kvm" if facts.kvm else "tcg"), facts.kvm_reason


class _Cores:
    """Deals the cores of one hypervisor to its nodes."""

    def __init__(self, facts: HostFacts) -> None:
        self.facts = facts
        self.begin = 0
        self.users: dict[int, list[str]] = {}
        self.nr_slots = 0

    def assign(self, node: LibvirtNode) -> tuple[int, ...]:
        """Return the cores of one node, () for the kernel's choice."""
        self.nr_slots += node.slots
        if node.cpus == "none":
            return ()
        have = self.facts.cpus
        if node.cpus == "auto":
            chosen = tuple(sorted({have[(self.begin + i) % len(have)] for i in range(node.slots)}))
            self.begin += node.slots
        else:
            chosen = self._given(node, node.cpus)
        for cpu in chosen:
            self.users.setdefault(cpu, []).append(node.name)
        return chosen

    def _given(self, node: LibvirtNode, cpus: Sequence[int]) -> tuple[int, ...]:
        foreign = [cpu for cpu in cpus if cpu not in self.facts.cpus]
        if foreign:
            listed = ", ".join(map(str, self.facts.cpus))
            msg = f"node {node.name}: {self.facts.uri} has no core {foreign[0]} to give"
            raise StateError(msg, f"use cores out of {listed}, or cpus: auto")
        return tuple(sorted(cpus))

    def emulator(self, node: LibvirtNode) -> tuple[int, ...]:
        """Return the cores of QEMU's own threads; asked when all nodes have theirs."""
        if node.emulator_cpus == "none":
            return ()
        if node.emulator_cpus == "auto":
            free = [cpu for cpu in self.facts.cpus if cpu not in self.users]
            return tuple(free or self.facts.cpus)
        return self._given(node, node.emulator_cpus)

    def cells(self, node: LibvirtNode, cpus: Sequence[int]) -> tuple[int, ...]:
        """Return the host's NUMA nodes that a node's memory comes from; () for any."""
        if node.numa == "none" or not cpus or len(self.facts.numa) < 2:  # noqa: PLR2004 - a choice
            return ()
        return tuple(sorted({self.facts.cell_of(cpu) for cpu in cpus}))


def _listed(numbers: Sequence[int]) -> str:
    return ",".join(map(str, numbers))


def _nr_parts(host: LibvirtHost) -> int:
    """Return the parts of a host's segment: with room to the next power of two."""
    if host.segment.parts != "auto":
        return host.segment.parts
    return 1 << (len(host.nodes) - 1).bit_length()


def _networks(spec: LibvirtSpec, launcher: str) -> list[Resource]:
    first = {host.uri: host.name for host in reversed(spec.hosts)}
    return [
        resource(
            Kind.NETWORK,
            first[uri],
            {
                "uri": uri,
                "bridge": spec.network.bridge or "(made)",
                "subnet": spec.network.subnet,
                "mtu": spec.network.mtu,
                "address": "" if spec.network.bridge else launcher,
            },
        )
        for uri in spec.uris
    ]


def _vf_notes(spec: LibvirtSpec, facts: Facts) -> list[str]:
    """Say aloud which nodes have a virtual function, and that the others have none."""
    notes = [note for host in spec.hosts for note in facts.hosts[host.name].vfs]
    without = [node.name for _, node in spec.nodes if node.vf is None]
    if len(without) == len(spec.nodes):
        notes.append("no virtual function is asked for: all nodes use virtio-net")
    elif without:
        notes.append(f"no virtual function for {', '.join(without)}: virtio-net alone")
    return notes


def machines(spec: LibvirtSpec, facts: Facts) -> Desired:
    """Return the virtual machines of a spec and what they stand on."""
    launcher, node_addresses = addresses(spec)
    made = [resource(Kind.CLUSTER, spec.name, {"backend": spec.backend})]
    made += _networks(spec, launcher)
    notes, chosen = [], {}
    cores: dict[str, _Cores] = {}
    for host in spec.hosts:
        found = facts.hosts[host.name]
        _check_versions(host, found)
        accel, why = _accel(spec, host, found)
        device, reason = choose_device(host, found, accel)
        chosen[host.name] = accel, device
        notes.append(f"host {host.name}: {accel.upper()}: {why}")
        notes.append(f"host {host.name}: segment {device}: {reason}")
        made.append(_host(host, found, device))
        cores.setdefault(host.uri, _Cores(found))
    pinned = {node.name: cores[host.uri].assign(node) for host, node in spec.nodes}
    for host, node in spec.nodes:
        deal, cpus = cores[host.uri], pinned[node.name]
        if spec.image != "default":
            disk = {"host": host.name, "format": "qcow2", "image": facts.image}
            made.append(resource(Kind.DISK, node.name, disk))
        accel, device = chosen[host.name]
        attributes = {
            "host": host.name,
            "uri": host.uri,
            "address": node_addresses[node.name],
            "mac": _mac(spec.name, node.name),
            "slots": node.slots,
            "cpus": _listed(cpus),
            "emulator_cpus": _listed(deal.emulator(node)),
            "numa": _listed(deal.cells(node, cpus)),
            "memory": format_size(node.memory),
            "hugepages": node.hugepages,
            "locked": "yes" if node.locked else "no",
            "viommu": "intel" if node.viommu else "none",
            "soft_roce": "yes" if node.soft_roce else "no",
            "accel": accel,
            "device": device,
            "part": host.nodes.index(node) if device != "none" else "",
            "image": facts.image,
        }
        if node.vf is not None:
            attributes["vf"] = node.vf.model_dump_json(exclude_defaults=True)
        made.append(resource(Kind.NODE, node.name, attributes))
    notes += _vf_notes(spec, facts)
    for deal in cores.values():
        note = cores_note(deal.nr_slots, len(deal.facts.cpus), deal.users)
        notes += [f"{deal.facts.uri}: {note}"] if note else []
    return Desired(tuple(made), tuple(notes))


def _host(host: LibvirtHost, facts: HostFacts, device: str) -> Resource:
    attributes = {"uri": host.uri, "directory": facts.directory, "device": device}
    if device != "none":
        attributes["parts"] = str(_nr_parts(host))
        attributes["part_size"] = format_size(host.segment.part)
    return resource(Kind.HOST, host.name, attributes)
