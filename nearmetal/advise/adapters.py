# SPDX-License-Identifier: Apache-2.0
"""Abilities of each kind of adapter, with the first version and the source of each.

Sources: VMW-ADAPTER is "Virtualizing HPC on vSphere: Choosing a Best Method for RDMA HCA/NIC
Deployment for MPI Workloads" (VMware), OSU the talk on MVAPICH2-Virt, each with the line of its
text. "Linux", "QEMU" and "libvirt" are their releases and mainline code.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from nearmetal.advise.needs import Platform


@dataclass(frozen=True)
class Source:
    """A work and the line of its text; 0: the whole work."""

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
    """An ability that an adapter has or lacks, with its conditions."""

    can: bool
    source: Source
    gates: tuple[Gate, ...] = ()
    only: str = ""
    """A condition other than a version, in words, for the user to check."""
    instead: str = ""
    """The change that would add the ability, or an alternative."""


class Sharing(StrEnum):
    """Number of virtual machines that can run on one physical adapter."""

    MANY = "many"
    ONE = "one"


@dataclass(frozen=True)
class AdapterKind:
    """One kind of adapter on one platform."""

    name: str
    title: str
    platform: Platform
    rdma: frozenset[str]
    """Subset of ib and roce that the guest sees; empty: TCP only."""
    rdma_source: Source
    sharing: Sharing
    sharing_source: Source
    migration: Ability
    snapshots: Ability
    ha: Ability
    drs: Ability
    requires: tuple[Gate, ...] = ()
    """Conditions of the adapter itself."""
    setup: tuple[str, ...] = ()
    """Further parts that it needs, in words."""
    rare: str = ""
    """A part that few installations have, in words; adapters without such a part rank first."""
    most_ranks: int | None = None
    """Most ranks per node that its source calls good."""
    most_ranks_source: Source | None = None


def _line(number: int) -> Source:
    return Source("VMW-ADAPTER", number)


_RDMA = frozenset({"ib", "roce"})
_TCP: frozenset[str] = frozenset()
_LINUX, _QEMU, _LIBVIRT = Source("Linux"), Source("QEMU"), Source("libvirt")
_AT_POWER_ON = "placement at power-on, no live balancing"
_RESERVED = "all memory of the machine reserved"
_MLX5_MIGRATION = (
    Gate("kernel", "6.7", _LINUX),
    Gate("qemu", "8.1", _QEMU),
    Gate("libvirt", "8.6", _LIBVIRT),
)


def _vsphere(
    name: str,
    title: str,
    rdma: frozenset[str],
    sharing: Sharing,
    *,
    moves: Ability,
    ha: Ability,
    drs: Ability,
    lines: tuple[int, int] = (99, 98),
    **more: Any,
) -> AdapterKind:
    """Return a row of the table in VMW-ADAPTER: live migration and snapshots go together.

    `lines` are the sources of its fabrics and of its sharing.
    """
    return AdapterKind(
        name,
        title,
        Platform.VSPHERE,
        rdma,
        _line(lines[0]),
        sharing,
        _line(lines[1]),
        migration=moves,
        snapshots=moves,
        ha=ha,
        drs=drs,
        **more,
    )


def _kvm(
    name: str,
    title: str,
    rdma: frozenset[str],
    sharing: Sharing,
    *,
    migration: Ability,
    snapshots: Ability | None = None,
    **more: Any,
) -> AdapterKind:
    """Return an adapter under KVM, where software above libvirt restarts and places machines."""
    return AdapterKind(
        name,
        title,
        Platform.KVM,
        rdma,
        _LINUX,
        sharing,
        _LINUX,
        migration=migration,
        snapshots=snapshots or Ability(False, _QEMU, instead="virtio-net with vhost"),
        ha=Ability(
            True, _LIBVIRT, only="a cluster manager that restarts machines, for example pacemaker"
        ),
        drs=Ability(
            True, _LIBVIRT, only="a scheduler above libvirt, for example OpenStack's placement"
        ),
        **more,
    )


_MOVES = Ability(True, _line(95))
_STAYS = Ability(
    False,
    _line(95),
    instead="DVX, where card and driver support it, or a suspend at MPI level (OSU)",
)
_HA_AND_DRS = Ability(True, _line(96))
_DVX = Ability(True, _line(101), only="card and driver support the DVX framework")

VMXNET3 = _vsphere(
    "vmxnet3",
    "VMXNET3",
    _TCP,
    Sharing.MANY,
    moves=_MOVES,
    ha=_HA_AND_DRS,
    drs=_HA_AND_DRS,
    setup=("a standard or distributed switch",),
)

PVRDMA = _vsphere(
    "pvrdma",
    "PVRDMA",
    frozenset({"roce"}),
    Sharing.MANY,
    moves=_MOVES,
    ha=_HA_AND_DRS,
    drs=_HA_AND_DRS,
    requires=(Gate("hardware_version", "13", _line(62)), Gate("guest_kernel", "4.6", _line(62))),
    setup=("a distributed switch", "a PVRDMA device in every virtual machine"),
    most_ranks=20,
    most_ranks_source=_line(142),
)

DIRECTPATH = _vsphere(
    "directpath",
    "DirectPath IO",
    _RDMA,
    Sharing.ONE,
    moves=_STAYS,
    ha=Ability(False, _line(96), instead="Dynamic DirectPath IO restarts elsewhere"),
    drs=Ability(False, _line(96), instead="Dynamic DirectPath IO, or SR-IOV from 8.0U2"),
    setup=(_RESERVED,),
)

DYNAMIC_DIRECTPATH = _vsphere(
    "dynamic-directpath",
    "Dynamic DirectPath IO",
    _RDMA,
    Sharing.ONE,
    moves=_STAYS,
    ha=Ability(True, _line(70)),
    drs=Ability(True, _line(96), only=_AT_POWER_ON),
    requires=(Gate("vsphere", "7.0", _line(70)),),
    setup=(_RESERVED, "the same labels of the adapters on every host"),
)

SRIOV = _vsphere(
    "sriov",
    "SR-IOV",
    _RDMA,
    Sharing.MANY,
    moves=_STAYS,
    ha=Ability(True, _line(96), gates=(Gate("vsphere", "8.0U2", _line(96)),)),
    drs=Ability(True, _line(80), gates=(Gate("vsphere", "8.0U2", _line(80)),), only=_AT_POWER_ON),
    requires=(Gate("vsphere", "6.0", _line(80)),),
    setup=(_RESERVED, "a port group on a standard or distributed switch"),
)

DVX = _vsphere(
    "dvx",
    "DVX",
    _RDMA,
    Sharing.MANY,
    moves=_DVX,
    ha=_DVX,
    drs=_DVX,
    lines=(101, 101),
    requires=(Gate("vsphere", "8.0", _line(101)),),
    rare="card and driver that support the DVX framework",
)

VIRTIO_NET = _kvm(
    "virtio-net",
    "virtio-net with vhost",
    _TCP,
    Sharing.MANY,
    migration=Ability(True, _QEMU),
    snapshots=Ability(True, _QEMU),
)

VDPA = _kvm(
    "vdpa",
    "vDPA",
    _TCP,
    Sharing.MANY,
    migration=Ability(True, _QEMU, gates=(Gate("qemu", "8.0", _QEMU),)),
    setup=("a card whose driver offers vDPA devices", "the guest sees virtio-net: no verbs"),
)

VFIO_PF = _kvm(
    "vfio-pf",
    "VFIO of a whole adapter (PF)",
    _RDMA,
    Sharing.ONE,
    migration=Ability(False, _QEMU, instead="a VF, or a suspend at MPI level (OSU)"),
    setup=("IOMMU on, an IOMMU group of its own", "locked memory of the machine's size"),
)

VFIO_VF = _kvm(
    "vfio-vf",
    "VFIO of a virtual function (VF)",
    _RDMA,
    Sharing.MANY,
    migration=Ability(
        True,
        _LINUX,
        gates=_MLX5_MIGRATION,
        only="mlx5 in Ethernet mode, ConnectX-7 or later",
        instead="for InfiniBand, a suspend at MPI level (OSU)",
    ),
    setup=("IOMMU on, an IOMMU group per VF", "locked memory of the machine's size"),
)

MEDIATED = _kvm(
    "mediated",
    "Mediated device (mdev)",
    _TCP,
    Sharing.MANY,
    migration=Ability(False, _LINUX, instead="a vendor's driver that implements it"),
    snapshots=Ability(False, _LINUX, instead="virtio-net with vhost"),
    rare="a vendor's driver: no driver of mainline Linux offers mediated network devices",
)

ADAPTERS = (
    VMXNET3,
    PVRDMA,
    DIRECTPATH,
    DYNAMIC_DIRECTPATH,
    SRIOV,
    DVX,
    VIRTIO_NET,
    VDPA,
    VFIO_PF,
    VFIO_VF,
    MEDIATED,
)
