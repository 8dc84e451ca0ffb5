# SPDX-License-Identifier: Apache-2.0
"""What a cluster of virtual machines is made of, and why. Pure.

Reasons stand in the notes, never in attributes: another reason alone changes nothing.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import PlainSerializer

from nearmetal.cluster.backends.libvirt.cores import Cores
from nearmetal.cluster.backends.libvirt.segment import (
    Room,
    choose_device,
    deal_parts,
    room_for,
    why_anew,
)
from nearmetal.cluster.backends.libvirt.spec import LibvirtHost, LibvirtSpec
from nearmetal.cluster.model import addresses
from nearmetal.cluster.registration import Registration
from nearmetal.cluster.resource import (
    Bytes,
    Desired,
    Facts,
    HostFacts,
    Key,
    Kind,
    Numbers,
    Observed,
    Resource,
    Values,
    YesNo,
    cores_note,
    from_text,
)
from nearmetal.config.size import format_size, parse_size
from nearmetal.core.errors import StateError
from nearmetal.host.vf.request import VfRequest

if TYPE_CHECKING:
    from collections.abc import Mapping

MIN_LIBVIRT = (9, 0)
MIN_QEMU = (8, 1)
"""The first that drops writes to a read-only view of the segment instead of ending the guest."""

NONE = "none"
MADE = "(made)"
"""The bridge of a network that libvirt makes, in the network's values."""

Device = Literal["ivshmem", "virtio-pmem", "nvdimm", "none"]


class VirtualCluster(Values):
    """The records of the cluster on this machine."""

    backend: str


class Placed(Values):
    """A resource on one hypervisor."""

    uri: str


class VirtualNetwork(Placed):
    """The network of one hypervisor."""

    bridge: str
    subnet: str
    mtu: int
    address: str


class VirtualHost(Placed):
    """The directory and the segment of one host."""

    directory: str
    device: Device
    parts: int | None = None
    part_size: Bytes | None = None


class VirtualDisk(Placed):
    """The disk of one node."""

    host: str
    format: str
    image: str


class VirtualNode(Placed):
    """One virtual machine."""

    host: str
    slots: int
    memory: Bytes
    hugepages: Annotated[
        int,
        from_text(lambda text: 0 if text == NONE else parse_size(text)),
        PlainSerializer(lambda value: format_size(value) if value else NONE),
    ]
    locked: YesNo
    viommu: Literal["intel", "none"]
    soft_roce: YesNo
    accel: Literal["kvm", "tcg"]
    device: Device
    part: Annotated[
        int | None,
        from_text(lambda text: text or None),
        PlainSerializer(lambda value: "" if value is None else value),
    ]
    files: Literal["9p", "ssh"]
    """The way in which programs and MPIs come to the node."""
    address: str
    mac: str
    cpus: Numbers
    emulator_cpus: Numbers
    numa: Numbers
    image: str
    vf: (
        Annotated[
            VfRequest,
            from_text(VfRequest.model_validate_json),
            PlainSerializer(lambda value: value.model_dump_json(exclude_defaults=True)),
        ]
        | None
    ) = None


MODELS: dict[Kind, type[Values]] = {
    Kind.CLUSTER: VirtualCluster,
    Kind.NETWORK: VirtualNetwork,
    Kind.HOST: VirtualHost,
    Kind.DISK: VirtualDisk,
    Kind.NODE: VirtualNode,
}


def part_of(spec: LibvirtSpec, key: Key, values: Values) -> Resource:
    """Return a resource of the cluster of a spec with the resources that it stands on."""
    if key.kind is Kind.CLUSTER:
        return Resource(key, values)
    needs = [Key(Kind.CLUSTER, spec.name)]
    match values:
        case VirtualHost(uri=uri) if uri in spec.uris:
            needs.append(Key(Kind.NETWORK, spec.first_host(uri)))
        case VirtualDisk(host=host):
            needs.append(Key(Kind.HOST, host))
        case VirtualNode(host=host):
            needs += [Key(Kind.HOST, host), Key(Kind.DISK, key.name)]
    return Resource(key, values, tuple(needs))


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


def _accel(
    spec: LibvirtSpec, host: LibvirtHost, facts: HostFacts
) -> tuple[Literal["kvm", "tcg"], str]:
    """Return what executes the machines of a host, and why."""
    if spec.accel == "kvm":
        if not facts.kvm:
            msg = f"host {host.name}: accel kvm is asked for, but {facts.kvm_reason}"
            raise StateError(msg, "switch on virtualization in its BIOS, or write accel: auto")
        return "kvm", "the spec asks for it"
    if spec.accel == "tcg":
        return "tcg", "the spec asks for it"
    return ("kvm" if facts.kvm else "tcg"), facts.kvm_reason


def _networks(spec: LibvirtSpec, launcher: str) -> list[tuple[Key, Values]]:
    return [
        (
            Key(Kind.NETWORK, spec.first_host(uri)),
            VirtualNetwork(
                uri=uri,
                bridge=spec.network.bridge or MADE,
                subnet=spec.network.subnet,
                mtu=spec.network.mtu,
                address="" if spec.network.bridge else launcher,
            ),
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

    made: VirtualHost
    accel: Literal["kvm", "tcg"]
    room: Room
    parts: Mapping[str, int]
    """The part of each of its nodes; empty where they have no segment."""
    notes: tuple[str, ...]
    why: str
    """Why it is made anew, where it is."""
    files: Literal["9p", "ssh"]
    """How programs and MPIs come to its nodes."""


def _files(
    spec: LibvirtSpec, host: LibvirtHost, facts: HostFacts
) -> tuple[Literal["9p", "ssh"], str]:
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


def _host(spec: LibvirtSpec, host: LibvirtHost, facts: HostFacts, observed: Observed) -> _Host:
    _check_versions(host, facts)
    accel, because = _accel(spec, host, facts)
    there = observed.named(VirtualHost).get(host.name)
    if there is not None and there.uri != host.uri:
        there = None
    device, reason = choose_device(host, facts, accel, "" if there is None else there.device)
    files, way = _files(spec, host, facts)
    room = room_for(host, device, there)
    made = VirtualHost(
        uri=host.uri,
        directory=facts.directory,
        device=device,
        parts=None if device == NONE else room.parts,
        part_size=None if device == NONE else host.segment.part,
    )
    notes = (
        f"host {host.name}: {accel.upper()}: {because}",
        f"host {host.name}: segment {device}: {reason}",
        f"host {host.name}: programs by {files}: {way}",
    )
    parts = deal_parts(host, room, observed.named(VirtualNode))
    return _Host(made, accel, room, parts, notes, why_anew(host, there, made), files)


def machines(spec: LibvirtSpec, facts: Facts, observed: Observed) -> Desired:
    """Return the virtual machines of a spec and what they stand on.

    Of what is `observed` the nodes keep addresses, cores and parts of the segment.
    """
    held = observed.named(VirtualNode)
    launcher, places = addresses(spec, {name: node.address for name, node in held.items()})
    made: list[tuple[Key, Values]] = [
        (Key(Kind.CLUSTER, spec.name), VirtualCluster(backend=spec.backend)),
        *_networks(spec, launcher),
    ]
    hosts = {h.name: _host(spec, h, facts.hosts[h.name], observed) for h in spec.hosts}
    made += [(Key(Kind.HOST, name), on.made) for name, on in hosts.items()]
    notes = [note for on in hosts.values() for note in on.notes]
    cores = {host.uri: Cores(facts.hosts[host.name]) for host in reversed(spec.hosts)}
    there = {
        node.name: found if (found := held.get(node.name)) and found.uri == host.uri else None
        for host, node in spec.nodes
    }
    for host, node in spec.nodes:
        cores[host.uri].keep(node, there[node.name])
    pinned = {node.name: cores[host.uri].assign(node) for host, node in spec.nodes}
    for host, node in spec.nodes:
        deal, cpus, name, on = cores[host.uri], pinned[node.name], node.name, hosts[host.name]
        if spec.image != "default":
            disk = VirtualDisk(host=host.name, uri=host.uri, format="qcow2", image=facts.image)
            made.append((Key(Kind.DISK, name), disk))
        values = VirtualNode(
            host=host.name,
            uri=host.uri,
            slots=node.slots,
            memory=node.memory,
            hugepages=0 if node.hugepages == NONE else parse_size(node.hugepages),
            locked=node.locked,
            viommu="intel" if node.viommu else "none",
            soft_roce=node.soft_roce,
            accel=on.accel,
            device=on.room.device,
            part=on.parts.get(name),
            files=on.files,
            vf=node.vf,
            address=places[name],
            mac=_mac(spec.name, name),
            cpus=cpus,
            emulator_cpus=deal.emulator(node, there[name]),
            numa=deal.cells(node, cpus),
            image=facts.image,
        )
        made.append((Key(Kind.NODE, name), values))
    notes += _vf_notes(spec, facts)
    for uri in spec.uris:
        deal = cores[uri]
        note = cores_note(deal.nr_slots, len(deal.facts.cpus), deal.users)
        notes += [f"{deal.facts.uri}: {note}"] if note else []
    whys = {Key(Kind.HOST, name): on.why for name, on in hosts.items() if on.why}
    parts = tuple(part_of(spec, key, values) for key, values in made)
    return Desired(parts, tuple(notes), whys=whys)


REGISTRATION = Registration(LibvirtSpec, machines)
