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
class PortFacts:
    """One physical function. `used_vfs`: VFs that vfio-pci has, which must not be removed."""

    address: str
    driver: str = ""
    netdev: str = ""
    link: str = ""
    total_vfs: int = 0
    vfs: int = 0
    used_vfs: int = 0
    state: str = ""


@dataclass(frozen=True)
class CardFacts:
    """One adapter. `config` is None where no tool could read its firmware's settings."""

    address: str
    model: str
    ports: tuple[PortFacts, ...]
    psid: str = ""
    firmware: str = ""
    device: str = ""
    config: Mapping[str, ConfigValue] | None = None

    @property
    def text(self) -> str:
        """What a person calls it."""
        return f"{self.model or 'adapter'} at {self.address}"


@dataclass(frozen=True)
class HostFacts:
    """A host as it is now.

    `cmdline`: what its kernel was booted with. `files`: what nearmetal keeps there, None where it
    is missing. `options`: of ESXi modules, as set. `packages`: VIBs by name. `unread`: what could
    not be read, and why.
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
    unread: tuple[str, ...] = ()
