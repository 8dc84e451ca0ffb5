# SPDX-License-Identifier: Apache-2.0
"""What each kind of adapter can do, since which version, and who says so.

Sources: VMW-ADAPTER is "Virtualizing HPC on vSphere: Choosing a Best Method for RDMA HCA/NIC
Deployment for MPI Workloads" (VMware), OSU the talk on MVAPICH2-Virt, each with the line of its
text. "Linux", "QEMU" and "libvirt" stand for what their releases and mainline code carry.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from nearmetal.advise.needs import Platform


@dataclass(frozen=True)
class Source:
    """Who says so: a work and the line of its text; 0 where there is no line."""

    work: str
    line: int = 0

    def __str__(self) -> str:
        """Return for example `VMW-ADAPTER:95`."""
        return f"{self.work}:{self.line}" if self.line else self.work


@dataclass(frozen=True)
class Gate:
    """A condition on a version: `product` is the name of a field of Needs."""

    product: str
    least: str
    source: Source


@dataclass(frozen=True)
class Ability:
    """Whether an adapter can do something, and under which conditions."""

    can: bool
    source: Source
    gates: tuple[Gate, ...] = ()
    only: str = ""
    """A condition that is no version, in words: it is told, and left to the reader to check."""
    instead: str = ""
    """What would change a no, or what to do instead."""


class Sharing(StrEnum):
    """How many virtual machines can run on one physical adapter."""

    MANY = "many"
    ONE = "one"


@dataclass(frozen=True)
class Adapter:
    """One kind of adapter on one platform."""

    name: str
    title: str
    platform: Platform
    rdma: frozenset[str]
    """Out of ib and roce, as the guest sees them; empty: TCP only."""
    rdma_source: Source
    sharing: Sharing
    sharing_source: Source
    migration: Ability
    snapshots: Ability
    ha: Ability
    drs: Ability
    requires: tuple[Gate, ...] = ()
    """Without these there is no such adapter."""
    setup: tuple[str, ...] = ()
    """What has to be there besides, in words."""
    rare: str = ""
    """What few installations have, in words; ranks it behind those that anybody can set up."""
    most_ranks: int | None = None
    """More ranks per node than that are outside what its sources call good."""
    most_ranks_source: Source | None = None


def _line(number: int) -> Source:
    return Source("VMW-ADAPTER", number)


_RDMA = frozenset({"ib", "roce"})
_DVX_HELPS = "DVX, where card and driver support it, or a suspend at MPI level (OSU)"
_KVM_HA = Ability(
    True, Source("libvirt"), only="a cluster manager that restarts machines, such as pacemaker"
)
_KVM_NO_DRS = Ability(
    True, Source("libvirt"), only="a scheduler above libvirt, such as OpenStack's placement"
)
_MLX5_MIGRATION = (
    Gate("kernel", "6.7", Source("Linux")),
    Gate("qemu", "8.1", Source("QEMU")),
    Gate("libvirt", "8.6", Source("libvirt")),
)

VMXNET3 = Adapter(
    "vmxnet3", "VMXNET3", Platform.VSPHERE, frozenset(), _line(99), Sharing.MANY, _line(98),
    migration=Ability(True, _line(95)),
    snapshots=Ability(True, _line(95)),
    ha=Ability(True, _line(96)),
    drs=Ability(True, _line(96)),
    setup=("a standard or distributed switch",),
)  # fmt: skip

PVRDMA = Adapter(
    "pvrdma", "PVRDMA", Platform.VSPHERE, frozenset({"roce"}), _line(99), Sharing.MANY, _line(98),
    migration=Ability(True, _line(95)),
    snapshots=Ability(True, _line(95)),
    ha=Ability(True, _line(96)),
    drs=Ability(True, _line(96)),
    requires=(
        Gate("hardware_version", "13", _line(62)),
        Gate("guest_kernel", "4.6", _line(62)),
    ),
    setup=("a distributed switch", "a PVRDMA device in every virtual machine"),
    most_ranks=20,
    most_ranks_source=_line(142),
)  # fmt: skip

DIRECTPATH = Adapter(
    "directpath", "DirectPath IO", Platform.VSPHERE, _RDMA, _line(99), Sharing.ONE, _line(98),
    migration=Ability(False, _line(95), instead=_DVX_HELPS),
    snapshots=Ability(False, _line(95), instead=_DVX_HELPS),
    ha=Ability(False, _line(96), instead="Dynamic DirectPath IO restarts elsewhere"),
    drs=Ability(False, _line(96), instead="Dynamic DirectPath IO, or SR-IOV from 8.0U2"),
    setup=("all memory of the machine reserved",),
)  # fmt: skip

DYNAMIC_DIRECTPATH = Adapter(
    "dynamic-directpath", "Dynamic DirectPath IO", Platform.VSPHERE, _RDMA, _line(99),
    Sharing.ONE, _line(98),
    migration=Ability(False, _line(95), instead=_DVX_HELPS),
    snapshots=Ability(False, _line(95), instead=_DVX_HELPS),
    ha=Ability(True, _line(70)),
    drs=Ability(True, _line(96), only="placement at power-on, no live balancing"),
    requires=(Gate("vsphere", "7.0", _line(70)),),
    setup=("all memory of the machine reserved", "adapters labelled alike on every host"),
)  # fmt: skip

SRIOV = Adapter(
    "sriov", "SR-IOV", Platform.VSPHERE, _RDMA, _line(99), Sharing.MANY, _line(98),
    migration=Ability(False, _line(95), instead=_DVX_HELPS),
    snapshots=Ability(False, _line(95), instead=_DVX_HELPS),
    ha=Ability(True, _line(96), gates=(Gate("vsphere", "8.0U2", _line(96)),)),
    drs=Ability(
        True, _line(80), gates=(Gate("vsphere", "8.0U2", _line(80)),),
        only="placement at power-on, no live balancing",
    ),
    requires=(Gate("vsphere", "6.0", _line(80)),),
    setup=("all memory of the machine reserved", "a port group on a standard or distributed switch"),
)  # fmt: skip

DVX = Adapter(
    "dvx", "DVX", Platform.VSPHERE, _RDMA, _line(101), Sharing.MANY, _line(101),
    migration=Ability(True, _line(101), only="card and driver support the DVX framework"),
    snapshots=Ability(True, _line(101), only="card and driver support the DVX framework"),
    ha=Ability(True, _line(101), only="card and driver support the DVX framework"),
    drs=Ability(True, _line(101), only="card and driver support the DVX framework"),
    requires=(Gate("vsphere", "8.0", _line(101)),),
    rare="card and driver that support the DVX framework",
)  # fmt: skip

VIRTIO_NET = Adapter(
    "virtio-net", "virtio-net with vhost", Platform.KVM, frozenset(), Source("Linux"),
    Sharing.MANY, Source("Linux"),
    migration=Ability(True, Source("QEMU")),
    snapshots=Ability(True, Source("QEMU")),
    ha=_KVM_HA,
    drs=_KVM_NO_DRS,
)  # fmt: skip

VDPA = Adapter(
    "vdpa", "vDPA", Platform.KVM, frozenset(), Source("Linux"), Sharing.MANY, Source("Linux"),
    migration=Ability(True, Source("QEMU"), gates=(Gate("qemu", "8.0", Source("QEMU")),)),
    snapshots=Ability(False, Source("QEMU"), instead="virtio-net with vhost"),
    ha=_KVM_HA,
    drs=_KVM_NO_DRS,
    setup=("a card whose driver offers vDPA devices", "the guest sees virtio-net: no verbs"),
)  # fmt: skip

VFIO_PF = Adapter(
    "vfio-pf", "VFIO of a whole adapter (PF)", Platform.KVM, _RDMA, Source("Linux"),
    Sharing.ONE, Source("Linux"),
    migration=Ability(False, Source("QEMU"), instead="a VF, or a suspend at MPI level (OSU)"),
    snapshots=Ability(False, Source("QEMU"), instead="virtio-net with vhost"),
    ha=_KVM_HA,
    drs=_KVM_NO_DRS,
    setup=("IOMMU on, an IOMMU group of its own", "locked memory of the machine's size"),
)  # fmt: skip

VFIO_VF = Adapter(
    "vfio-vf", "VFIO of a virtual function (VF)", Platform.KVM, _RDMA, Source("Linux"),
    Sharing.MANY, Source("Linux"),
    migration=Ability(
        True, Source("Linux"), gates=_MLX5_MIGRATION,
        only="mlx5 in Ethernet mode, ConnectX-7 or later",
        instead="for InfiniBand, a suspend at MPI level (OSU)",
    ),
    snapshots=Ability(False, Source("QEMU"), instead="virtio-net with vhost"),
    ha=_KVM_HA,
    drs=_KVM_NO_DRS,
    setup=("IOMMU on, an IOMMU group per VF", "locked memory of the machine's size"),
)  # fmt: skip

MEDIATED = Adapter(
    "mediated", "Mediated device (mdev)", Platform.KVM, frozenset(), Source("Linux"),
    Sharing.MANY, Source("Linux"),
    migration=Ability(False, Source("Linux"), instead="a vendor's driver that implements it"),
    snapshots=Ability(False, Source("Linux"), instead="virtio-net with vhost"),
    ha=_KVM_HA,
    drs=_KVM_NO_DRS,
    rare="a vendor's driver: no driver of mainline Linux offers mediated network devices",
)  # fmt: skip

ADAPTERS = (
    VMXNET3, PVRDMA, DIRECTPATH, DYNAMIC_DIRECTPATH, SRIOV, DVX,
    VIRTIO_NET, VDPA, VFIO_PF, VFIO_VF, MEDIATED,
)  # fmt: skip
