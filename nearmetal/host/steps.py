# SPDX-License-Identifier: Apache-2.0
"""The parts of a plan: actions, the steps that carry them, refusals and remarks. Pure."""

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
        """Its position in the order."""
        return list(Stage).index(self)


@dataclass(frozen=True)
class HostAction:
    """A change of a host. `before`, if an action has it: the value that a rollback restores."""

    @property
    def kind(self) -> str:
        """Its name in plans and files."""
        return type(self).__name__


@dataclass(frozen=True)
class SetBios(HostAction):
    """Stage a BIOS attribute through Redfish."""

    attribute: str
    value: BiosValue
    before: BiosValue


@dataclass(frozen=True)
class SetConfig(HostAction):
    """Set one setting of an adapter's firmware with mlxconfig. `before` None: unknown."""

    device: str
    setting: str
    value: str
    before: str | None


@dataclass(frozen=True)
class Burn(HostAction):
    """Burn firmware from a file of the host with a known checksum."""

    device: str
    file: str
    sha256: str
    version: str
    before: str


@dataclass(frozen=True)
class Install(HostAction):
    """Install a package of ESXi."""

    name: str
    file: str


@dataclass(frozen=True)
class SetOptions(HostAction):
    """Set all options of a module of ESXi: options outside of `options` are removed."""

    module: str
    options: str
    before: str


@dataclass(frozen=True)
class WriteFile(HostAction):
    """Write a file of nearmetal; the command `refresh` applies it. `content` None removes it."""

    path: str
    content: str | None
    before: str | None
    refresh: tuple[str, ...] = ()


@dataclass(frozen=True)
class SetArguments(HostAction):
    """Remove the kernel arguments `removed` with grubby, then set `arguments`."""

    arguments: tuple[str, ...]
    before: tuple[str, ...]
    removed: tuple[str, ...] = ()


@dataclass(frozen=True)
class SetVfs(HostAction):
    """Set the number of VFs of a physical function now."""

    address: str
    count: int
    before: int


@dataclass(frozen=True)
class SetMtu(HostAction):
    """Set the MTU of the network devices of a physical function and of its VFs now.

    `vfs`: by address, of VFs with another MTU.
    """

    address: str
    mtu: int
    before: int
    vfs: Mapping[str, int] = field(default_factory=dict)
    vfs_before: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class SetGovernor(HostAction):
    """Set the governor of every core now. `before`: one of their governors."""

    governor: str
    before: str


@dataclass(frozen=True)
class SetProfile(HostAction):
    """Set the profiles of tuned, separated by spaces; "" is none. tuned stores them itself."""

    profile: str
    before: str


@dataclass(frozen=True)
class SetPower(HostAction):
    """Set the power policy of ESXi, by its short name."""

    policy: str
    before: str


@dataclass(frozen=True)
class SetPassthru(HostAction):
    """Set the number of VFs that ESXi makes of a physical function at its next boot."""

    address: str
    count: int
    before: int


@dataclass(frozen=True)
class SetDirectPath(HostAction):
    """Switch DirectPath I/O of a whole device of ESXi on or off."""

    address: str
    enabled: bool
    before: bool


@dataclass(frozen=True)
class EnterMaintenance(HostAction):
    """Take an ESXi host out of service. `vsan`: vSAN's own word for its preparation."""

    vsan: str


@dataclass(frozen=True)
class LeaveMaintenance(HostAction):
    """Put an ESXi host back into service."""


@dataclass(frozen=True)
class ByHand(HostAction):
    """Commands that a person runs on a host without a shell for nearmetal."""

    commands: tuple[str, ...]


@dataclass(frozen=True)
class Wait(HostAction):
    """No change: the setting is staged, and only the reboot is missing."""


STATELESS = (Wait, EnterMaintenance, LeaveMaintenance, ByHand)
"""Actions without a value to restore."""


@dataclass(frozen=True)
class Step:
    """One step. `reboot`: the reason why it needs a reboot, "" for an immediate step.

    `after`: keys of steps that must be in force before this one.
    """

    stage: Stage
    key: str
    text: str
    action: HostAction
    reboot: str = ""
    after: tuple[str, ...] = ()


@dataclass(frozen=True)
class Refusal:
    """The reason why no step of a host is executed, and what would help."""

    stage: Stage
    what: str
    hint: str


@dataclass(frozen=True)
class Remark:
    """Information for a person, or a task elsewhere."""

    stage: Stage
    text: str


@dataclass
class Outcome:
    """The result of the stages for one host."""

    steps: list[Step] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    remarks: list[Remark] = field(default_factory=list)

    @property
    def reboots(self) -> bool:
        """Whether a step so far needs a reboot."""
        return any(step.reboot for step in self.steps)

    def step(
        self,
        stage: Stage,
        key: str,
        text: str,
        action: HostAction,
        reboot: str = "",
        *,
        after: tuple[str, ...] = (),
    ) -> None:
        """Add a step."""
        self.steps.append(Step(stage, key, text, action, reboot, after))

    def refuse(self, stage: Stage, what: str, hint: str) -> None:
        """Add a refusal."""
        self.refusals.append(Refusal(stage, what, hint))

    def remark(self, stage: Stage, text: str) -> None:
        """Add a remark."""
        self.remarks.append(Remark(stage, text))
