# SPDX-License-Identifier: Apache-2.0
"""From a planned node to its virtual machine. Pure."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from nearmetal.cluster.backends.libvirt.efi import Firmware
from nearmetal.cluster.backends.libvirt.machine import (
    SHARE_TAG,
    Disk,
    GuestKernel,
    Nic,
    NumaCell,
    OwnerMark,
    Segment,
    VirtualMachine,
    network_xml,
)
from nearmetal.cluster.backends.libvirt.spec import LibvirtSpec
from nearmetal.cluster.backends.libvirt.values import NONE, VirtualNetwork, VirtualNode
from nearmetal.cluster.resource import Resource
from nearmetal.cluster.ssh_nodes import FILES
from nearmetal.image.seed import Seed, SeedInterface, SeedNode, SeedSegment, SeedShare, SeedSsh

_DATA_LEAD = 2 << 20
"""Offset of a DAX namespace's bytes in its file, after its label."""


@dataclass(frozen=True)
class Boot:
    """The start of machines: from a kernel with a shared read-only root, or from each one's disk."""

    kernel: GuestKernel | None = None
    root: str = ""
    root_serial: str = ""


@dataclass(frozen=True)
class Layout:
    """The layout of a host's segment in its file; sizes in bytes. The token is secret."""

    token: str = field(repr=False)
    nr_parts: int
    part_size: int
    part_off: int
    size: int


@dataclass(frozen=True)
class Site:
    """The files, the QEMU and the segment that a host's machines share."""

    directory: str
    emulator: str
    label: str
    numa: tuple[tuple[int, ...], ...]
    segment: str = ""
    """Path of the segment's file; "" if there is none."""
    layout: Layout | None = None
    distances: tuple[tuple[int, ...], ...] = ()
    """Distances between the host's NUMA nodes; () if they are not known."""
    share: str = ""
    """Directory of the host that nodes with `files: 9p` may read."""
    firmware: Firmware | None = None
    """The EFI firmware of the host; None if no node needs it."""

    def file(self, name: str) -> str:
        """Return the path of one of the cluster's files on the host."""
        return str(PurePosixPath(self.directory) / name)


def domain_name(cluster: str, node: str) -> str:
    """Return a name that is unique over all clusters, because neither part can have a dot."""
    return f"nearmetal.{cluster}.{node}"


def bridge_name(cluster: str, identity: str) -> str:
    """Return the name of the bridge of a cluster: unique, with at most 15 characters."""
    return "nm" + hashlib.sha256(f"{cluster}/{identity}".encode()).hexdigest()[:10]


def _cells(node: VirtualNode, site: Site) -> tuple[NumaCell, ...]:
    """Put each processor on the NUMA node of its core, and equal memory on each of these nodes."""
    pins, memory = node.cpus, node.memory
    members = {
        cell: tuple(i for i in range(node.slots) if pins[i % len(pins)] in site.numa[cell])
        for cell in node.numa
    }
    used = [(cell, cpus) for cell, cpus in members.items() if cpus]
    if not used:
        return ()
    share = (memory // len(used)) >> 20 << 20
    rest = memory - share * (len(used) - 1)
    return tuple(
        NumaCell(cell, cpus, rest if i == 0 else share) for i, (cell, cpus) in enumerate(used)
    )


def segment_of(node: VirtualNode, site: Site) -> Segment | None:
    """Return a node's view of the segment; None if the host has none."""
    device, path, part, layout = node.device, site.segment, node.part, site.layout
    if device == NONE or part is None or layout is None:
        return None
    if device != "ivshmem":
        return Segment(device, path, layout.size)
    offset = layout.part_off + part * layout.part_size
    return Segment(device, path, layout.size, offset, layout.part_size)


def machine(
    spec: LibvirtSpec, identity: str, item: Resource, site: Site, boot: Boot, *, vf: str = ""
) -> VirtualMachine:
    """Return the virtual machine of one planned node. `vf`: the PCI address of its VF, if any."""
    name, node = item.key.name, item.of(VirtualNode)
    firmware = site.firmware if node.firmware else None
    bridge = spec.network.bridge or ""
    network = "" if bridge else domain_name(spec.name, "network")
    disks: tuple[Disk, ...]
    if boot.kernel is not None:
        root = Disk(boot.root, "raw", "vda", read_only=True, serial=boot.root_serial)
        disks = (root,) if boot.root else ()
    else:
        disks = (
            Disk(site.file(f"{name}.qcow2"), "qcow2", "vda"),
            Disk(site.file(f"{name}.iso"), "raw", "sda", read_only=True, device="cdrom"),
        )
    return VirtualMachine(
        name=domain_name(spec.name, name),
        uuid=str(uuid.uuid5(uuid.UUID(identity), name)),
        owner=owner_of(spec, identity, item, ready=False),
        accel=node.accel,
        memory=node.memory,
        nr_cpus=node.slots,
        console=site.file(f"{name}.console"),
        disks=disks,
        links=(Nic(node.mac, spec.network.mtu, bridge, network),),
        kernel=boot.kernel,
        seed=site.file(f"{name}.seed") if boot.kernel is not None else "",
        emulator=site.emulator,
        pins=node.cpus,
        emulator_pins=node.emulator_cpus,
        cells=_cells(node, site),
        hugepages=node.hugepages,
        locked=node.locked,
        viommu=node.viommu != NONE,
        segment=segment_of(node, site),
        devices=tuple(filter(None, (vf, *(node.passthrough or ())))),
        efi=firmware.code if firmware else "",
        variables=site.file(f"{name}.nvram") if firmware else "",
        mmio=node.mmio or 0,
        share=site.share if node.files == "9p" else "",
        label=site.label,
    )


def made_network(spec: LibvirtSpec, identity: str, item: Resource) -> str:
    """Return the XML of the network that libvirt makes for a cluster on one hypervisor."""
    return network_xml(
        owner_of(spec, identity, item, ready=True),
        name=domain_name(spec.name, "network"),
        bridge=bridge_name(spec.name, identity),
        mtu=spec.network.mtu,
        address=item.of(VirtualNetwork).address,
        prefix=spec.network.prefix,
    )


def owner_of(spec: LibvirtSpec, identity: str, item: Resource, *, ready: bool) -> OwnerMark:
    """Return the mark of a planned node's domain."""
    return OwnerMark(spec.name, identity, item.key.name, item.attributes, ready=ready)


def lead_of(device: str) -> int:
    """Return the number of bytes of the file that the device reserves."""
    return 0 if device in ("ivshmem", NONE) else _DATA_LEAD


def seed_of(
    spec: LibvirtSpec,
    item: Resource,
    ssh: SeedSsh,
    site: Site,
    *,
    host_keys: Mapping[str, str],
    places: Mapping[str, str],
    vf: SeedInterface | None = None,
) -> Seed:
    """Return the seed of one planned node.

    `host_keys`, `places`: the public keys of all nodes' sshd, and their addresses. `vf`: the
    interface of its VF, if that has a MAC address.
    """
    own = item.of(VirtualNode)
    return Seed(
        cluster=spec.name,
        name=item.key.name,
        nodes=[
            SeedNode(
                name=node.name,
                address=places[node.name],
                slots=node.slots,
                host=host.name,
                ssh_host_key=host_keys[node.name],
            )
            for host, node in spec.nodes
        ],
        interfaces=[
            SeedInterface(
                mac=own.mac,
                address=f"{own.address}/{spec.network.prefix}",
                mtu=spec.network.mtu,
                soft_roce=own.soft_roce,
            ),
            *([] if vf is None else [vf]),
        ],
        ssh=ssh,
        segment=seed_segment(own, site),
        shares=[SeedShare(tag=SHARE_TAG, readonly=True, path=FILES)] if own.files == "9p" else [],
    )


def seed_segment(node: VirtualNode, site: Site) -> SeedSegment | None:
    """Return the segment in the seed of one planned node; None if it has none."""
    layout = site.layout
    if node.device == NONE or node.part is None or layout is None:
        return None
    ivshmem = node.device == "ivshmem"
    cell = node.numa[0] if len(node.numa) == 1 else -1
    return SeedSegment(
        device="ivshmem" if ivshmem else "dax",
        token=layout.token,
        nr_parts=layout.nr_parts,
        part=node.part,
        part_size=layout.part_size,
        size=layout.size,
        vcpu_numa=cell,
        distances=list(site.distances[cell]) if 0 <= cell < len(site.distances) else [],
    )
