# SPDX-License-Identifier: Apache-2.0
"""From a planned node to its virtual machine. Pure."""

from __future__ import annotations

import hashlib
import ipaddress
import uuid
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from nearmetal.cluster.backend import STAGED
from nearmetal.cluster.backends.libvirt.ivshmem import ALL_PCI, OWN_PCI
from nearmetal.cluster.backends.libvirt.machine import (
    SHARE_TAG,
    Cell,
    Disk,
    Kernel,
    Link,
    Machine,
    MadeNetwork,
    Owner,
    Segment,
)
from nearmetal.cluster.backends.libvirt.plan import NONE, VirtualNetwork, VirtualNode
from nearmetal.image.seed import Seed, SeedInterface, SeedNode, SeedSegment, SeedShare, SeedSsh

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nearmetal.cluster.backends.libvirt.spec import LibvirtSpec
    from nearmetal.cluster.resource import Resource

PLACE = "/run/nearmetal-cluster"
"""What we put into every node: the agent, jobs' directories, staged programs."""

JOBS = f"{PLACE}/jobs"
FILES = f"{JOBS}/{STAGED}"
"""Programs and MPIs that are staged: a directory of the host, or one of the node's own."""

_DATA_LEAD = 2 << 20
"""Where the bytes of a DAX namespace begin in its file: its own label lies before."""


@dataclass(frozen=True)
class Boot:
    """What machines start: a kernel with a shared read-only root, or a disk of each one's own."""

    kernel: Kernel | None = None
    root: str = ""
    root_serial: str = ""


@dataclass(frozen=True)
class Layout:
    """Where the bytes of a host's segment lie in its file; sizes in bytes. The token is secret."""

    token: str = field(repr=False)
    nr_parts: int
    part_size: int
    part_off: int
    size: int


@dataclass(frozen=True)
class Site:
    """What a host's machines share: its files, its QEMU, its segment."""

    directory: str
    emulator: str
    label: str
    numa: tuple[tuple[int, ...], ...]
    segment: str = ""
    """The path of the segment's file; "" where there is none."""
    layout: Layout | None = None
    distances: tuple[tuple[int, ...], ...] = ()
    """Between the host's NUMA nodes; () where they are not known."""
    share: str = ""
    """The directory of the host that nodes may read, for those that get it."""

    def file(self, name: str) -> str:
        """Return the path of one of the cluster's files on the host."""
        return str(PurePosixPath(self.directory) / name)


def domain_name(cluster: str, node: str) -> str:
    """Return a name that no two nodes of any clusters share: neither name can hold a dot."""
    return f"nearmetal.{cluster}.{node}"


def bridge_name(cluster: str, identity: str) -> str:
    """Return the name of a bridge we make: at most 15 characters, another for each cluster."""
    return "nm" + hashlib.sha256(f"{cluster}/{identity}".encode()).hexdigest()[:10]


def _cells(node: VirtualNode, site: Site) -> tuple[Cell, ...]:
    """Give each processor to the host's NUMA node that its core belongs to, memory in proportion."""
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
    return tuple(Cell(cell, cpus, rest if i == 0 else share) for i, (cell, cpus) in enumerate(used))


def segment_of(node: VirtualNode, site: Site) -> Segment | None:
    """Return a node's view of the segment; None where the host has none."""
    device, path, part, layout = node.device, site.segment, node.part, site.layout
    if device == NONE or part is None or layout is None:
        return None
    if device != "ivshmem":
        return Segment(device, path, layout.size)
    offset = layout.part_off + part * layout.part_size
    return Segment(device, path, layout.size, offset, layout.part_size)


def machine(
    spec: LibvirtSpec, identity: str, item: Resource, site: Site, boot: Boot, *, vf: str = ""
) -> Machine:
    """Return the virtual machine of one planned node. `vf`: the PCI address of its VF, if any."""
    name, node = item.key.name, item.of(VirtualNode)
    bridge = spec.network.bridge or ""
    disks: tuple[Disk, ...]
    if boot.kernel is not None:
        root = Disk(boot.root, "raw", "vda", read_only=True, serial=boot.root_serial)
        disks = (root,) if boot.root else ()
    else:
        disks = (
            Disk(site.file(f"{name}.qcow2"), "qcow2", "vda"),
            Disk(site.file(f"{name}.iso"), "raw", "sda", read_only=True, device="cdrom"),
        )
    return Machine(
        name=domain_name(spec.name, name),
        uuid=str(uuid.uuid5(uuid.UUID(identity), name)),
        owner=owner_of(spec, identity, item, ready=False),
        accel=node.accel,
        memory=node.memory,
        nr_cpus=node.slots,
        console=site.file(f"{name}.console"),
        disks=disks,
        links=(
            Link(
                node.mac,
                spec.network.mtu,
                bridge=bridge,
                network="" if bridge else domain_name(spec.name, "network"),
            ),
        ),
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
        vf=vf,
        share=site.share if node.files == "9p" else "",
        label=site.label,
    )


def made_network(spec: LibvirtSpec, identity: str, item: Resource) -> MadeNetwork:
    """Return the network that libvirt makes for a cluster on one hypervisor."""
    name = domain_name(spec.name, "network")
    return MadeNetwork(
        name=name,
        owner=Owner(spec.name, identity, item.key.name, item.attributes, ready=True),
        bridge=bridge_name(spec.name, identity),
        mtu=spec.network.mtu,
        address=item.of(VirtualNetwork).address,
        prefix=ipaddress.IPv4Network(spec.network.subnet).prefixlen,
    )


def owner_of(spec: LibvirtSpec, identity: str, item: Resource, *, ready: bool) -> Owner:
    """Return what the domain of a planned node says of itself."""
    return Owner(spec.name, identity, item.key.name, item.attributes, ready=ready)


def lead_of(device: str) -> int:
    """Return how many bytes of the file the device keeps for itself."""
    return 0 if device in ("ivshmem", NONE) else _DATA_LEAD


def seed_of(
    spec: LibvirtSpec,
    item: Resource,
    keys: NodeKeys,
    site: Site,
    *,
    places: Mapping[str, str],
    vf: SeedInterface | None = None,
) -> Seed:
    """Return what one planned node is told.

    `places`: all nodes' addresses. `vf`: of its VF, if it has one with a MAC address.
    """
    prefix, own = ipaddress.IPv4Network(spec.network.subnet).prefixlen, item.of(VirtualNode)
    return Seed(
        cluster=spec.name,
        name=item.key.name,
        nodes=[
            SeedNode(
                name=node.name,
                address=places[node.name],
                slots=node.slots,
                host=host.name,
                ssh_host_key=keys.public[node.name],
            )
            for host, node in spec.nodes
        ],
        interfaces=[
            SeedInterface(
                mac=own.mac,
                address=f"{own.address}/{prefix}",
                mtu=spec.network.mtu,
                soft_roce=own.soft_roce,
            ),
            *([] if vf is None else [vf]),
        ],
        ssh=SeedSsh(
            authorized_keys=[keys.client],
            host_key=keys.host_key,
            node_key=keys.node_key,
            node_key_public=keys.node_key_public,
        ),
        segment=seed_segment(own, site),
        shares=[SeedShare(tag=SHARE_TAG, readonly=True, path=FILES)] if own.files == "9p" else [],
    )


@dataclass(frozen=True)
class NodeKeys:
    """Keys as text: public ones of all nodes' sshd, and what one node gets in private."""

    public: Mapping[str, str]
    client: str
    node_key_public: str
    host_key: str = field(repr=False)
    node_key: str = field(repr=False)


def seed_segment(node: VirtualNode, site: Site) -> SeedSegment | None:
    """Return what one planned node is told of the segment; None where it has none."""
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
        own_pci=OWN_PCI if ivshmem else None,
        all_pci=ALL_PCI if ivshmem else None,
        vcpu_numa=cell,
        distances=list(site.distances[cell]) if 0 <= cell < len(site.distances) else [],
    )
