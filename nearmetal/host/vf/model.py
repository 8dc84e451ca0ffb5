# SPDX-License-Identifier: Apache-2.0
"""What a machine is found to have: adapters, virtual functions, IOMMU. Frozen values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field

from nearmetal.host.vf.pci import Port, full_address

MAC = r"^([0-9a-f]{2}:){5}[0-9a-f]{2}$"
GUID = r"^([0-9a-f]{2}:){7}[0-9a-f]{2}$"
NO_GUID = "00:00:00:00:00:00:00:00"

Use = Literal["machine", "host"]
"""What a VF is for: a virtual machine, which gets the device by vfio-pci, or programs of this host,
which use it by its own driver."""

ETHERNET = "Ethernet"
INFINIBAND = "InfiniBand"


@dataclass(frozen=True)
class VfSettings:
    """What the adapter does for one VF. None: its driver does not tell.

    `rate` is a maximum in Mbit/s, 0 for none; `vlan` 0 is none. `link_state` is 0 (follows the
    adapter), 1 (always up) or 2 (always down), as in the kernel's if_link.h.
    """

    mac: Annotated[str, Field(pattern=MAC)] | None = None
    vlan: int | None = None
    qos: int | None = None
    trust: bool | None = None
    spoof_check: bool | None = None
    rate: int | None = None
    min_rate: int | None = None
    link_state: int | None = None
    node_guid: Annotated[str, Field(pattern=GUID)] | None = None
    port_guid: Annotated[str, Field(pattern=GUID)] | None = None
    pkey_index: int | None = None


@dataclass(frozen=True)
class Link:
    """A network device as netlink tells. `vfs`: settings by the number of the VF."""

    index: int
    name: str
    type: str
    up: bool
    carrier: bool
    enslaved: bool
    vfs: tuple[tuple[int, VfSettings], ...] = ()


@dataclass(frozen=True)
class VfFacts:
    """One virtual function. `group` is its IOMMU group, None without IOMMU."""

    address: str
    number: int
    driver: str
    driver_override: str
    group: int | None
    group_others: tuple[str, ...]
    numa: int
    links: tuple[Link, ...]
    settings: VfSettings
    holders: tuple[int, ...] = ()
    """Processes that have its IOMMU group open: the virtual machine that it is part of."""
    rdma: tuple[str, ...] = ()
    alias: str = ""
    """By what modprobe finds its own driver."""


@dataclass(frozen=True)
class PfFacts:
    """One physical function with SR-IOV. `links` and `rdma` are its devices, by port."""

    address: str
    ids: str
    driver: str
    numa: int
    total: int
    vfs: tuple[VfFacts, ...]
    autoprobe: bool
    links: tuple[Link, ...]
    rdma: tuple[str, ...]
    ports: tuple[Port, ...]
    pkeys: tuple[int, ...] = ()
    vf_pkeys: bool = False
    """Whether the driver lets the host choose partition keys for VFs (mlx4)."""

    @property
    def link(self) -> Link | None:
        """The network device that VFs are configured through."""
        return self.links[0] if self.links else None

    @property
    def link_type(self) -> str:
        """Ethernet, InfiniBand, or "" where there is no network device to ask."""
        return self.links[0].type if self.links else ""

    @property
    def name(self) -> str:
        """What a person calls it: its network device, its RDMA device, else its address."""
        return self.links[0].name if self.links else next(iter(self.rdma), self.address)

    @property
    def names(self) -> tuple[str, ...]:
        """Everything by which a spec may name it."""
        return (self.address, *(link.name for link in self.links), *self.rdma)


@dataclass(frozen=True)
class Iommu:
    """Whether devices can be given away safely, and what stands in the way.

    `tables`: firmware tables that describe an IOMMU. `switches`: words of the kernel's command
    line about it. `vendor`: "intel", "amd" or "" for the processor's.
    """

    nr_groups: int
    tables: tuple[str, ...]
    switches: tuple[str, ...]
    vendor: str

    @property
    def on(self) -> bool:
        """Whether the kernel uses one."""
        return self.nr_groups > 0


@dataclass(frozen=True)
class Machine:
    """The machine as it is now. `others`: devices without SR-IOV, by every name they have."""

    pfs: tuple[PfFacts, ...]
    iommu: Iommu
    vfio: bool
    boot: str
    others: tuple[tuple[str, str], ...] = field(default=())

    def find(self, name: str) -> PfFacts | None:
        """Return the adapter of that name or address."""
        wanted = full_address(name) or name
        return next((pf for pf in self.pfs if wanted in pf.names), None)

    def pf(self, address: str) -> PfFacts | None:
        """Return the adapter at that address."""
        return next((pf for pf in self.pfs if pf.address == address), None)

    def vf(self, address: str) -> tuple[PfFacts, VfFacts] | None:
        """Return a VF with its adapter."""
        found = ((pf, vf) for pf in self.pfs for vf in pf.vfs if vf.address == address)
        return next(found, None)
