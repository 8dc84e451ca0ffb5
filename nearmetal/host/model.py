# SPDX-License-Identifier: Apache-2.0
"""What a host is found to be: its BIOS, its cards, how it boots. Frozen values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

BiosValue = str | int | bool | None


@dataclass(frozen=True)
class BiosFacts:
    """What a management controller tells. `pending`: staged for the next boot.

    `allowed`: the values its attribute registry lists, where it has one.
    """

    vendor: str
    attributes: Mapping[str, BiosValue]
    pending: Mapping[str, BiosValue] = field(default_factory=dict)
    allowed: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class ConfigValue:
    """One setting of an adapter's firmware: as it runs, and as it will after a reset.

    `number` forms: `1` where the tool prints `True(1)` or `IB(1)`.
    """

    current: str
    next: str


@dataclass(frozen=True)
class VfGuids:
    """What mlx5's sriov directory says of one VF: its GUIDs, and how its link follows the port's."""

    number: int
    node: str
    port: str
    policy: str


@dataclass(frozen=True)
class PortFacts:
    """One physical function.

    `used_vfs`: VFs that vfio-pci has, which must not be removed. `shared_vfs`: VFs whose IOMMU group
    holds other devices as well. `mtu`: of its network device, 0 where there is none; `vf_mtus`: of
    those of its VFs that the host has, by address. `link_file`: what gave its network device its name.
    `guids`: what the kernel says of each InfiniBand VF.
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
    """One adapter. `config` is None where no tool could read its firmware's settings.

    `firmware`: what runs; `stored`: what it starts with next, "" where that is the same.
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
        """The firmware that it starts with next."""
        return self.stored or self.firmware

    @property
    def text(self) -> str:
        """What a person calls it."""
        return f"{self.model or 'adapter'} at {self.address}"


@dataclass(frozen=True)
class EsxiFacts:
    """What a vCenter tells of an ESXi host beside its cards.

    `machines`: those that are on; `bound`: of them, those with devices of the host, which cannot
    move. `ours`: maintenance mode was entered by an `apply` that is not done. `power`, `policies`:
    by short names. `requested`: VFs by physical function, for the next boot. `has_shell`: it
    can be reached over ssh, too.
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
class HostFacts:
    """A host as it is now.

    `cmdline`: what its kernel was booted with. `files`: what nearmetal keeps there, None where it
    is missing, "" where a change of it was cut short. `options`: of ESXi modules, as set.
    `packages`: VIBs by name. `esxi`: what its vCenter tells, None without one. `unread`: what could
    not be read, and why. `governors`: those that its cores have, none where it has no cpufreq.
    `tuned`: profiles of tuned with spaces between, "" where none is active, None where it does not
    run. `networkd`: the version of systemd
    where its networkd has the network, else 0.
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
