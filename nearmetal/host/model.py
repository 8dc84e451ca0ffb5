# SPDX-License-Identifier: Apache-2.0
"""Facts of a host: its BIOS, its cards, its boot. Frozen values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

BiosValue = str | int | bool | None


@dataclass(frozen=True)
class Lock:
    """A condition under which a BIOS attribute cannot be changed: another one has a value, or not.

    `equal`: whether the value locks, or every other value does.
    """

    other: str
    value: str
    equal: bool = True

    def holds(self, attributes: Mapping[str, BiosValue]) -> bool:
        """Whether these values lock the attribute."""
        return self.other in attributes and (attributes[self.other] == self.value) == self.equal


@dataclass(frozen=True)
class BiosFacts:
    """Facts from a management controller. `pending`: values staged for the next boot.

    `allowed`: the values in its attribute registry, if it has one. `locks`: for an attribute, the
    conditions of this registry under which it cannot be changed.
    """

    vendor: str
    attributes: Mapping[str, BiosValue]
    pending: Mapping[str, BiosValue] = field(default_factory=dict)
    allowed: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    locks: Mapping[str, tuple[Lock, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class ConfigValue:
    """One setting of an adapter's firmware, now and after a reset: `1` for `True(1)` or `IB(1)`.

    `fixed`: its tool marks it as read-only.
    """

    current: str
    next: str
    fixed: bool = False


@dataclass(frozen=True)
class VfGuids:
    """One VF in mlx5's sriov directory: its GUIDs, and how its link follows the port's."""

    number: int
    node: str
    port: str
    policy: str


@dataclass(frozen=True)
class PortFacts:
    """One physical function.

    `used_vfs`: VFs with vfio-pci, which must not be removed. `shared_vfs`: VFs whose IOMMU group
    contains other devices. `mtu`: of its network device, 0 for none; `vf_mtus`: of the network
    devices of its VFs on the host, by address. `link_file`: the file that named its network device.
    """

    address: str
    driver: str = ""
    netdev: str = ""
    link: str = ""
    total_vfs: int = 0
    vfs: int = 0
    used_vfs: int = 0
    state: str = ""
    shared_vfs: int = 0
    mtu: int = 0
    vf_mtus: Mapping[str, int] = field(default_factory=dict)
    link_file: str = ""
    guids: tuple[VfGuids, ...] = ()


@dataclass(frozen=True)
class CardFacts:
    """One adapter. `config` is None if no tool could read its firmware's settings.

    `firmware`: the running version; `stored`: the version of its next start, "" for the same.
    """

    address: str
    model: str
    ports: tuple[PortFacts, ...]
    psid: str = ""
    firmware: str = ""
    stored: str = ""
    device: str = ""
    config: Mapping[str, ConfigValue] | None = None

    @property
    def coming(self) -> str:
        """The firmware of its next start."""
        return self.stored or self.firmware

    @property
    def text(self) -> str:
        """Its name in messages."""
        return f"{self.model or 'adapter'} at {self.address}"


@dataclass(frozen=True)
class DeviceFacts:
    """One adapter or GPU as a whole device. `ids`: vendor and device.

    `used`: what the host does with it. `mates`: other devices of its IOMMU group, without bridges.
    `companions`: address and ids of those that go with it: sound, USB and the like of the same slot.
    `above`: its root complex and the bridges down to it, on Linux.
    `bars`: sizes of its memory regions; `unmapped`: the sum of those without an address.
    ESXi: `capable`, `enabled`, `active`: of DirectPath I/O; `parent`: the device that leaves ESXi.
    """

    address: str
    ids: str
    driver: str = ""
    used: str = ""
    mates: tuple[str, ...] = ()
    above: tuple[str, ...] = ()
    bars: tuple[int, ...] = ()
    unmapped: int = 0
    capable: bool = True
    enabled: bool = False
    active: bool = False
    parent: str = ""
    companions: tuple[tuple[str, str], ...] = ()

    @property
    def text(self) -> str:
        """Its name in messages."""
        return f"{self.ids} at {self.address}"


@dataclass(frozen=True)
class EsxiFacts:
    """Facts of an ESXi host from its vCenter, without its cards.

    `machines`: virtual machines that run; `bound`: those of them with devices of the host, which
    cannot move. `ours`: an unfinished `apply` entered maintenance mode. `power`, `policies`: short
    names. `requested`: VFs by physical function, for the next boot. `has_shell`: ssh also works.
    """

    maintenance: bool = False
    ours: bool = False
    machines: tuple[str, ...] = ()
    bound: tuple[str, ...] = ()
    power: str = ""
    policies: tuple[str, ...] = ()
    vsan: bool = False
    requested: Mapping[str, int] = field(default_factory=dict)
    has_shell: bool = False


@dataclass(frozen=True)
class PlatformFacts:
    """A host as it is now.

    `cmdline`: arguments of the running kernel. `files`: the files of nearmetal, None for a missing
    file, "" for an interrupted change. `options`: of ESXi modules, as set. `packages`: VIBs by
    name. `esxi`: None without a vCenter. `unread`: facts that could not be read, with the reason.
    `governors`: those of its cores, none without cpufreq. `tuned`: profiles of tuned, separated by
    spaces, "" for none, None if tuned does not run. `networkd`: the version of systemd if its
    networkd manages the network, else 0. `devices`: adapters and GPUs as whole devices.
    `acs`: capability and control of ACS, by bridge.
    """

    name: str
    platform: str
    boot: str = ""
    bios: BiosFacts | None = None
    cards: tuple[CardFacts, ...] = ()
    cpu: str = ""
    cmdline: tuple[str, ...] = ()
    iommu_groups: int = 0
    loader: str = ""
    files: Mapping[str, str | None] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)
    packages: Mapping[str, str] = field(default_factory=dict)
    esxi: EsxiFacts | None = None
    unread: tuple[str, ...] = ()
    governors: tuple[str, ...] = ()
    tuned: str | None = None
    networkd: int = 0
    devices: tuple[DeviceFacts, ...] = ()
    acs: Mapping[str, tuple[int, int]] = field(default_factory=dict)
