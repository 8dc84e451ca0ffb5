# SPDX-License-Identifier: Apache-2.0
"""What each kind of adapter can do, since which version, and who says so.

Sources: VMW-ADAPTER is "Virtualizing HPC on vSphere: Choosing a Best Method for RDMA HCA/NIC
Deployment for MPI Workloads" (VMware), OSU the talk on MVAPICH2-Virt, each with the line of its
text. "Linux", "QEMU" and "libvirt" stand for what their releases and mainline code carry.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

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
) -> Adapter:
    """Return a row of VMW-ADAPTER's table: what moves a machine alive also takes its snapshots.

    `lines` say which fabrics it has, and who may share it.
    """
    return Adapter(
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
) -> Adapter:
    """Return an adapter under KVM, where restart and placement are the work of what stands above."""
    return Adapter(
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
            True, _LIBVIRT, only="a cluster manager that restarts machines, such as pacemaker"
        ),
        drs=Ability(
            True, _LIBVIRT, only="a scheduler above libvirt, such as OpenStack's placement"
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
    setup=(_RESERVED, "adapters labelled alike on every host"),
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
