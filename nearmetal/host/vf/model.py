# SPDX-License-Identifier: Apache-2.0
"""Devices of a machine: adapters, virtual functions (VFs), IOMMU, and their PCI addresses. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field

MAC = r"^([0-9a-f]{2}:){5}[0-9a-f]{2}$"
GUID = r"^([0-9a-f]{2}:){7}[0-9a-f]{2}$"
NO_GUID = "00:00:00:00:00:00:00:00"

_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]")
_SHORT = re.compile(r"[0-9a-f]{2}:[01][0-9a-f]\.[0-7]")

Use = Literal["machine", "host"]
"""The user of a VF: a virtual machine, which gets the device by vfio-pci, or programs of this host,
which use its own driver."""

VFIO = "vfio-pci"
ETHERNET = "Ethernet"
INFINIBAND = "InfiniBand"


def is_address(text: str) -> bool:
    """Whether a text is a PCI address with its domain, for example `0000:01:10.0`."""
    return _ADDRESS.fullmatch(text) is not None


def full_address(text: str) -> str | None:
    """Return the address with its domain, also for `01:10.0`; None for any other text."""
    lower = text.lower()
    if is_address(lower):
        return lower
    return f"0000:{lower}" if _SHORT.fullmatch(lower) else None


@dataclass(frozen=True)
class AcsPort:
    """A root or downstream port above an adapter. `acs`: None if it cannot be read."""

    address: str
    acs: bool | None

    @property
    def text(self) -> str:
        """One word for a table."""
        return {True: "on", False: "off", None: "unknown"}[self.acs]


@dataclass(frozen=True)
class VfSettings:
    """Settings of one VF in its adapter. None: the driver does not report the setting.

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
    """A network device, as netlink reports it. `vfs`: settings by the number of the VF."""

    index: int
    name: str
    type: str
    up: bool
    carrier: bool
    enslaved: bool
    vfs: tuple[tuple[int, VfSettings], ...] = ()


@dataclass(frozen=True)
class VfFacts:
    """One virtual function. `group` is its IOMMU group, None without IOMMU.

    `holders`: processes that have this group open, so the virtual machine that has the VF.
    `alias`: the name by which modprobe finds the VF's own driver.
    """

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
    rdma: tuple[str, ...] = ()
    alias: str = ""


@dataclass(frozen=True)
class PfFacts:
    """One physical function with SR-IOV. `links` and `rdma` are its devices, by port.

    `vf_pkeys`: whether the driver lets the host choose partition keys for VFs (mlx4).
    """

    address: str
    ids: str
    driver: str
    numa: int
    total: int
    vfs: tuple[VfFacts, ...]
    autoprobe: bool
    links: tuple[Link, ...]
    rdma: tuple[str, ...]
    ports: tuple[AcsPort, ...]
    pkeys: tuple[int, ...] = ()
    vf_pkeys: bool = False

    @property
    def link(self) -> Link | None:
        """The network device through which VFs are configured."""
        return self.links[0] if self.links else None

    @property
    def link_type(self) -> str:
        """Ethernet, InfiniBand, or "" without a network device."""
        return self.links[0].type if self.links else ""

    @property
    def name(self) -> str:
        """The name for messages: network device, RDMA device or address."""
        return self.links[0].name if self.links else next(iter(self.rdma), self.address)

    @property
    def names(self) -> tuple[str, ...]:
        """All names that a spec may use."""
        return (self.address, *(link.name for link in self.links), *self.rdma)


@dataclass(frozen=True)
class Iommu:
    """Facts that decide whether devices can be given to virtual machines.

    `tables`: firmware tables that describe an IOMMU. `switches`: words of the kernel's command
    line about it. `vendor`: "intel", "amd" or "" for the processor's.
    """

    nr_groups: int
    tables: tuple[str, ...]
    switches: tuple[str, ...]
    vendor: str

    @property
    def on(self) -> bool:
        """Whether the kernel uses an IOMMU."""
        return self.nr_groups > 0


@dataclass(frozen=True)
class Machine:
    """The machine as it is now. `others`: devices without SR-IOV, by each of their names."""

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
