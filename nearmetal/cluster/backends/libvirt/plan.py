# SPDX-License-Identifier: Apache-2.0
"""The resources of a cluster of virtual machines, and the reasons of the choices. Pure.

Reasons are in the notes, never in values, so another reason alone changes nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from nearmetal.cluster.backends.libvirt.choices import (
    Cores,
    choose_device,
    deal_parts,
    nr_parts,
    part_size,
    placed,
    small_parts,
    why_recreated,
)
from nearmetal.cluster.backends.libvirt.efi import mmio_window, shared_regions
from nearmetal.cluster.backends.libvirt.spec import LibvirtHost, LibvirtNode, LibvirtSpec
from nearmetal.cluster.backends.libvirt.values import (
    MADE,
    NONE,
    VirtualCluster,
    VirtualDisk,
    VirtualHost,
    VirtualNetwork,
    VirtualNode,
    part_of,
)
from nearmetal.cluster.model import addresses
from nearmetal.cluster.registration import Registration
from nearmetal.cluster.resource import (
    Desired,
    Facts,
    HostFacts,
    Key,
    Kind,
    Observed,
    Values,
    cores_note,
)
from nearmetal.config.size import format_size, parse_size
from nearmetal.core.errors import StateError

NEW_FIRMWARE = "a machine gets its firmware, with new variables, only at its start"

MIN_LIBVIRT = (9, 0)
MIN_QEMU = (8, 1)
"""The first QEMU that drops writes to a read-only view of the segment; older ones end the guest."""


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
            raise StateError(
                f"host {host.name}: {what} {have} is too old",
                f"install {what} {wanted} or newer there",
            )


def _accel(
    spec: LibvirtSpec, host: LibvirtHost, facts: HostFacts
) -> tuple[Literal["kvm", "tcg"], str]:
    """Return what executes the machines of a host, and why."""
    if spec.accel == "kvm":
        if not facts.kvm:
            raise StateError(
                f"host {host.name}: accel kvm is asked for, but {facts.kvm_reason}",
                "switch on virtualization in its BIOS, or use accel: auto",
            )
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
    """Return notes on the nodes with a virtual function, and on those without."""
    notes = [note for host in spec.hosts for note in facts.hosts[host.name].vfs]
    without = [node.name for _, node in spec.nodes if node.vf is None]
    if len(without) == len(spec.nodes):
        notes.append("no virtual function is asked for: all nodes use virtio-net")
    elif without:
        notes.append(f"no virtual function for {', '.join(without)}: virtio-net alone")
    return notes


@dataclass(frozen=True)
class _Host:
    """The decisions for one host."""

    made: VirtualHost
    accel: Literal["kvm", "tcg"]
    parts: Mapping[str, int]
    """The part of each of its nodes; empty if they have no segment."""
    notes: tuple[str, ...]
    why: str
    """Reason why it is recreated."""
    files: Literal["9p", "ssh"]
    """Way of programs and MPIs to its nodes."""


def _files(
    spec: LibvirtSpec, host: LibvirtHost, facts: HostFacts
) -> tuple[Literal["9p", "ssh"], str]:
    """Return the way of staged programs and MPIs to the nodes of a host, and the reason."""
    if host.uri.startswith("qemu+ssh"):
        return "ssh", "it is another machine, so each node gets a copy"
    if spec.image != "default":
        return "ssh", "a cloud image may lack 9p, so each node gets a copy"
    if "virtio-9p-pci" not in facts.devices:
        return "ssh", "its QEMU has no virtio-9p-pci, so each node gets a copy"
    if host.directory != "auto":
        # The shared directory is below the state directory, which QEMU enters only with `auto`.
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
    device, reason = choose_device(host, facts, accel, there)
    files, way = _files(spec, host, facts)
    size = part_size(host, device, there)
    room = nr_parts(host, device, size, there)
    made = VirtualHost(
        uri=host.uri,
        directory=facts.directory,
        device=device,
        parts=room or None,
        part_size=None if device == NONE else size,
    )
    tight = "" if device == NONE else small_parts(host, size)
    notes = (
        f"host {host.name}: {accel.upper()}: {because}",
        f"host {host.name}: segment {device}: {reason}",
        *([f"host {host.name}: segment: {tight}"] if tight else ()),
        f"host {host.name}: programs by {files}: {way}",
    )
    parts = deal_parts(host, room, observed.named(VirtualNode))
    return _Host(made, accel, parts, notes, why_recreated(host, there, made), files)


def _mmio(node: LibvirtNode, host: VirtualHost, facts: HostFacts) -> tuple[int | None, list[str]]:
    """Return the 64-bit MMIO window of a node, None for that of its firmware, and notes on it."""
    if node.firmware != "efi":
        return None, []
    if not facts.efi:
        raise StateError(
            f"node {node.name}: {facts.uri} has no EFI firmware for it",
            "install OVMF there (on Debian `apt install ovmf`), or use firmware: bios",
        )
    regions = list(facts.regions.get(node.name, ()))
    if host.device == "ivshmem" and host.parts and host.part_size:
        regions.append(shared_regions(host.parts, host.part_size))
    asked = None if node.mmio == "auto" else node.mmio
    size, why = mmio_window(node.name, asked, regions)
    if size is None:
        return None, []
    return size, [f"node {node.name}: 64-bit MMIO window of {format_size(size)}: {why}"]


def _home(host: LibvirtHost, there: VirtualNode | None) -> str | None:
    """Return the host from which a node was moved to this one; None if it was not."""
    return there.home if there is not None and there.host == host.name else None


def machines(spec: LibvirtSpec, facts: Facts, observed: Observed) -> Desired:
    """Return the virtual machines of a spec and the resources that they need.

    Nodes that are `observed` keep their addresses, cores and parts of the segment.
    """
    held = observed.named(VirtualNode)
    spec = placed(spec, held)
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
    whys = {Key(Kind.HOST, name): on.why for name, on in hosts.items() if on.why}
    for host, node in spec.nodes:
        deal, cpus, name, on = cores[host.uri], pinned[node.name], node.name, hosts[host.name]
        if spec.image != "default":
            disk = VirtualDisk(host=host.name, uri=host.uri, format="qcow2", image=facts.image)
            made.append((Key(Kind.DISK, name), disk))
        mmio, window_notes = _mmio(node, on.made, facts.hosts[host.name])
        notes += window_notes
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
            device=on.made.device,
            part=on.parts.get(name),
            files=on.files,
            vf=node.vf,
            address=places[name],
            mac=_mac(spec.name, name),
            cpus=cpus,
            emulator_cpus=deal.emulator(node, there[name]),
            numa=deal.cells(node, cpus),
            image=facts.image,
            passthrough=tuple(node.passthrough) or None,
            firmware="efi" if node.firmware == "efi" else None,
            mmio=mmio,
            home=_home(host, held.get(name)),
        )
        made.append((Key(Kind.NODE, name), values))
        before = there[name]
        if before is not None and before.firmware != values.firmware:
            whys[Key(Kind.NODE, name)] = NEW_FIRMWARE
        if values.home is not None:
            notes.append(f"node {name}: on host {values.host}, to which it was moved")
    notes += _vf_notes(spec, facts)
    for uri in spec.uris:
        deal = cores[uri]
        note = cores_note(deal.nr_slots, len(deal.facts.cpus), deal.users)
        notes += [f"{deal.facts.uri}: {each}" for each in (note, deal.strangers()) if each]
    parts = tuple(part_of(spec, key, values) for key, values in made)
    return Desired(parts, tuple(notes), whys=whys)


REGISTRATION = Registration(LibvirtSpec, machines)
