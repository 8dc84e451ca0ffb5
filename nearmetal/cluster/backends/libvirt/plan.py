# SPDX-License-Identifier: Apache-2.0
"""What a cluster of virtual machines is made of, and why. Pure.

Reasons stand in the notes, never in attributes: another reason alone changes nothing.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nearmetal.cluster.backends.libvirt.cores import Cores
from nearmetal.cluster.backends.libvirt.segment import (
    Room,
    choose_device,
    deal_parts,
    room_for,
    why_anew,
)
from nearmetal.cluster.backends.libvirt.spec import LibvirtHost, LibvirtNode, LibvirtSpec
from nearmetal.cluster.held import Held
from nearmetal.cluster.spec import Facts, HostFacts, Kind, Observed, Resource, addresses, resource
from nearmetal.cluster.wanted import Desired, cores_note
from nearmetal.config.size import format_size
from nearmetal.core.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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


def _listed(numbers: Sequence[int]) -> str:
    return ",".join(map(str, numbers))


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


@dataclass(frozen=True)
class _Host:
    """What was decided for one host."""

    made: Resource
    accel: str
    room: Room
    parts: Mapping[str, int]
    """The part of each of its nodes; empty where they have no segment."""
    notes: tuple[str, ...]
    why: str
    """Why it is made anew, where it is."""
    files: str
    """How programs and MPIs come to its nodes: 9p or ssh."""


def _files(spec: LibvirtSpec, host: LibvirtHost, facts: HostFacts) -> tuple[str, str]:
    """Return how staged programs and MPIs come to the nodes of a host, and why."""
    if host.uri.startswith("qemu+ssh"):
        return "ssh", "it is another machine, so each node gets a copy"
    if spec.image != "default":
        return "ssh", "an image of one's own may lack 9p, so each node gets a copy"
    if "virtio-9p-pci" not in facts.devices:
        return "ssh", "its QEMU has no virtio-9p-pci, so each node gets a copy"
    if host.directory != "auto":
        # What it would share lies below the state directory, which is opened for `auto` alone.
        return (
            "ssh",
            "with a `directory` QEMU may not enter the state directory, so nodes get copies",
        )
    return "9p", "nodes see a directory of this machine, and cannot write it"


def _host(spec: LibvirtSpec, host: LibvirtHost, facts: HostFacts, held: Held) -> _Host:
    _check_versions(host, facts)
    accel, because = _accel(spec, host, facts)
    there = held.host(host.name, uri=host.uri)
    device, reason = choose_device(host, facts, accel, there.get("device", ""))
    files, way = _files(spec, host, facts)
    room = room_for(host, device, there)
    attributes = {"uri": host.uri, "directory": facts.directory, "device": device}
    if device != "none":
        attributes["parts"] = str(room.parts)
        attributes["part_size"] = format_size(host.segment.part)
    made = resource(Kind.HOST, host.name, attributes)
    notes = (
        f"host {host.name}: {accel.upper()}: {because}",
        f"host {host.name}: segment {device}: {reason}",
        f"host {host.name}: programs by {files}: {way}",
    )
    parts = deal_parts(host, room, held)
    why = why_anew(host, there, dict(made.attributes))
    return _Host(made, accel, room, parts, notes, why, files)


def _node(host: LibvirtHost, node: LibvirtNode, on: _Host) -> dict[str, object]:
    """Return the attributes that need neither cores nor an address."""
    attributes: dict[str, object] = {
        "host": host.name,
        "uri": host.uri,
        "slots": node.slots,
        "memory": format_size(node.memory),
        "hugepages": node.hugepages,
        "locked": "yes" if node.locked else "no",
        "viommu": "intel" if node.viommu else "none",
        "soft_roce": "yes" if node.soft_roce else "no",
        "accel": on.accel,
        "device": on.room.device,
        "part": on.parts.get(node.name, ""),
        "files": on.files,
    }
    if node.vf is not None:
        attributes["vf"] = node.vf.model_dump_json(exclude_defaults=True)
    return attributes


def machines(spec: LibvirtSpec, facts: Facts, observed: Observed) -> Desired:
    """Return the virtual machines of a spec and what they stand on.

    Of what is `observed` the nodes keep addresses, cores and parts of the segment.
    """
    held = Held.of(observed)
    launcher, places = addresses(spec, held.addresses)
    made = [resource(Kind.CLUSTER, spec.name, {"backend": spec.backend})]
    made += _networks(spec, launcher)
    hosts = {h.name: _host(spec, h, facts.hosts[h.name], held) for h in spec.hosts}
    made += [on.made for on in hosts.values()]
    notes = [note for on in hosts.values() for note in on.notes]
    cores = {host.uri: Cores(facts.hosts[host.name]) for host in reversed(spec.hosts)}
    for host, node in spec.nodes:
        cores[host.uri].keep(node, held.node(node.name, uri=host.uri))
    pinned = {node.name: cores[host.uri].assign(node) for host, node in spec.nodes}
    for host, node in spec.nodes:
        deal, cpus, name = cores[host.uri], pinned[node.name], node.name
        if spec.image != "default":
            disk = {"host": host.name, "uri": host.uri, "format": "qcow2", "image": facts.image}
            made.append(resource(Kind.DISK, name, disk))
        emulator = deal.emulator(node, held.node(name, uri=host.uri))
        attributes = _node(host, node, hosts[host.name]) | {
            "address": places[name],
            "mac": _mac(spec.name, name),
            "cpus": _listed(cpus),
            "emulator_cpus": _listed(emulator),
            "numa": _listed(deal.cells(node, cpus)),
            "image": facts.image,
        }
        made.append(resource(Kind.NODE, name, attributes))
    notes += _vf_notes(spec, facts)
    for uri in spec.uris:
        deal = cores[uri]
        note = cores_note(deal.nr_slots, len(deal.facts.cpus), deal.users)
        notes += [f"{deal.facts.uri}: {note}"] if note else []
    whys = {on.made.key: on.why for on in hosts.values() if on.why}
    return Desired(tuple(made), tuple(notes), whys=whys)
