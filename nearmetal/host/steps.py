# SPDX-License-Identifier: Apache-2.0
"""What a plan is made of: actions, the steps that carry them, and what a stage has to say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from nearmetal.host.model import BiosValue


class Stage(Enum):
    """The stages, in order."""

    REACH = "reach"
    BIOS = "bios"
    FIRMWARE = "firmware"
    DRIVER = "driver"
    FABRIC = "fabric"
    SWITCH = "switch"
    GUEST = "guest"

    @property
    def rank(self) -> int:
        """Its place in the order."""
        return list(Stage).index(self)


@dataclass(frozen=True)
class SetBios:
    """Stage a BIOS attribute through Redfish."""

    attribute: str
    value: BiosValue
    before: BiosValue


@dataclass(frozen=True)
class SetConfig:
    """Set one setting of an adapter's firmware with mlxconfig. `before` None: not known yet."""

    device: str
    setting: str
    value: str
    before: str | None


@dataclass(frozen=True)
class Burn:
    """Burn firmware from a file of the host whose checksum is known."""

    device: str
    file: str
    sha256: str
    version: str
    before: str


@dataclass(frozen=True)
class Install:
    """Install a package of ESXi."""

    name: str
    file: str


@dataclass(frozen=True)
class SetOptions:
    """Set all options of a module of ESXi: what is not in `options` is gone."""

    module: str
    options: str
    before: str


@dataclass(frozen=True)
class WriteFile:
    """Write a file that nearmetal keeps; `refresh` makes it count. `content` None removes it."""

    path: str
    content: str | None
    before: str | None
    refresh: tuple[str, ...] = ()


@dataclass(frozen=True)
class SetArguments:
    """Set arguments of the kernel through grubby, once those of `removed` are gone."""

    arguments: tuple[str, ...]
    before: tuple[str, ...]
    removed: tuple[str, ...] = ()


@dataclass(frozen=True)
class SetVfs:
    """Set how many VFs a physical function has, now."""

    address: str
    count: int
    before: int


@dataclass(frozen=True)
class SetMtu:
    """Set the MTU of a physical function's network device, and of its VFs', now.

    `vfs`: by address, of VFs that get another one.
    """

    address: str
    mtu: int
    before: int
    vfs: Mapping[str, int] = field(default_factory=dict)
    vfs_before: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class SetGovernor:
    """Set the governor of every core, now. `before`: one of those that they had."""

    governor: str
    before: str


@dataclass(frozen=True)
class SetProfile:
    """Set the profile of tuned, which keeps it itself. Several have spaces between, "" is none."""

    profile: str
    before: str


@dataclass(frozen=True)
class SetPower:
    """Set the power policy of ESXi, by its short name."""

    policy: str
    before: str


@dataclass(frozen=True)
class SetPassthru:
    """Set how many VFs ESXi makes of a physical function at its next boot."""

    address: str
    count: int
    before: int


@dataclass(frozen=True)
class EnterMaintenance:
    """Take an ESXi host out of service. `vsan`: what vSAN sees to before, of its own words."""

    vsan: str


@dataclass(frozen=True)
class LeaveMaintenance:
    """Put an ESXi host back into service."""


@dataclass(frozen=True)
class ByHand:
    """Commands that a person runs on a host which has no shell for nearmetal."""

    commands: tuple[str, ...]


@dataclass(frozen=True)
class Wait:
    """Nothing to do: it is staged, and only the reboot is missing."""


Action = (
    SetBios
    | SetConfig
    | Burn
    | Install
    | SetOptions
    | WriteFile
    | SetArguments
    | SetVfs
    | SetMtu
    | SetGovernor
    | SetProfile
    | SetPower
    | SetPassthru
    | EnterMaintenance
    | LeaveMaintenance
    | ByHand
    | Wait
)

STATELESS = (Wait, EnterMaintenance, LeaveMaintenance, ByHand)
"""Actions that have nothing to put back."""


@dataclass(frozen=True)
class Step:
    """One step. `reboot`: why it takes effect only at a reboot, "" where it does so at once.

    `after`: keys of steps that must have taken effect before this one can be done.
    """

    stage: Stage
    key: str
    text: str
    action: Action
    reboot: str = ""
    after: tuple[str, ...] = ()


@dataclass(frozen=True)
class Refusal:
    """Why nothing may be written to a host, and what would help."""

    stage: Stage
    what: str
    hint: str


@dataclass(frozen=True)
class Remark:
    """Something that a person should know, or do elsewhere."""

    stage: Stage
    text: str


@dataclass
class Outcome:
    """What stages say about a host, collected."""

    steps: list[Step] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    remarks: list[Remark] = field(default_factory=list)

    def refuse(self, stage: Stage, what: str, hint: str) -> None:
        """Note a refusal."""
        self.refusals.append(Refusal(stage, what, hint))

    def remark(self, stage: Stage, text: str) -> None:
        """Note a remark."""
        self.remarks.append(Remark(stage, text))
