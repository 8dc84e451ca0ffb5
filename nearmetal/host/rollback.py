# SPDX-License-Identifier: Apache-2.0
"""Restores hosts as they were before the first `apply`: the plan from the kept values, and its run."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from pydantic import TypeAdapter, ValidationError

from nearmetal.host.apply import Applier
from nearmetal.host.hosts_file import HostGroup, expand, fold
from nearmetal.host.model import CardFacts, PlatformFacts
from nearmetal.host.places import GRUB, VFIO, refresh, vfs_in
from nearmetal.host.plan import HostPlan, HostsPlan, finished
from nearmetal.host.stages.bios import plan_attribute
from nearmetal.host.stages.devices import AT_BOOT, plan_directpath
from nearmetal.host.stages.driver import BOOT, plan_count, plan_governor, plan_mtu, plan_profile
from nearmetal.host.stages.esxi import (
    back_options,
    back_passthru,
    plan_maintenance,
    plan_power_policy,
)
from nearmetal.host.stages.firmware import configure, is_hidden
from nearmetal.host.steps import (
    Burn,
    HostAction,
    Outcome,
    SetArguments,
    SetBios,
    SetConfig,
    SetDirectPath,
    SetGovernor,
    SetMtu,
    SetOptions,
    SetPassthru,
    SetPower,
    SetProfile,
    SetVfs,
    Stage,
    Step,
    Wait,
    WriteFile,
)

Kept = dict[str, Any]


@dataclass(frozen=True)
class Back:
    """The way back of one host. `left`: places whose old value cannot be restored."""

    plan: HostPlan
    left: tuple[str, ...]


@dataclass(frozen=True)
class _Place:
    """A place to restore. `restored`: the boot in which this was done already, if any."""

    key: str
    restored: object
    facts: PlatformFacts
    outcome: Outcome
    left: list[str]

    def card(self, device: str) -> CardFacts | None:
        return next((card for card in self.facts.cards if card.device == device), None)

    def odd(self) -> None:
        self.outcome.refuse(
            Stage.REACH,
            f"the kept value of {self.key[:64]!r} is not understood",
            "was before.json edited, or written by a newer nearmetal?",
        )


def plan_back(name: str, group: HostGroup, facts: PlatformFacts, kept: Kept) -> Back:
    """Return the plan that restores a host, from the kept values by place. Pure."""
    outcome = Outcome()
    left: list[str] = []
    actions = {key: _parsed(entry) for key, entry in kept.items()}
    # The last change goes first: a setting may hide earlier ones.
    for key, action in reversed(actions.items()):
        restored = kept[key].get("restored") if action is not None else None
        place = _Place(key, restored, facts, outcome, left)
        if action is None:
            place.odd()
        else:
            _WAYS[type(action)](place, action)
    _vfs(facts, [action for action in actions.values() if action is not None], outcome)
    if facts.esxi is not None:
        plan_maintenance(group, facts.esxi, outcome)
    return Back(finished(name, group, facts, outcome), tuple(left))


def _parsed(entry: Any) -> HostAction | None:
    """Return a kept action; None for an entry that no action fits."""
    name = str(entry.get("action")) if isinstance(entry, dict) else ""
    kind = next((kind for kind in _WAYS if kind.__name__ == name), None)
    if kind is None:
        return None
    try:
        return TypeAdapter(kind).validate_json(json.dumps(entry), strict=True)
    except ValidationError:
        return None


def _bios(place: _Place, action: SetBios) -> None:
    name, before, bios = action.attribute, action.before, place.facts.bios
    if bios is not None and name in bios.attributes:
        plan_attribute(bios, name, before, place.outcome)
        return
    why, hint = (
        ("the BIOS could not be read", "see the reason above")
        if bios is None
        else (
            "this BIOS has no such attribute now",
            "was the BIOS updated? set its new attribute by hand",
        )
    )
    place.outcome.refuse(Stage.BIOS, f"{name} was {before}, and {why}", hint)


def _config(place: _Place, action: SetConfig) -> None:
    name, card = action.setting, place.card(action.device)
    if card is None or card.config is None:
        place.outcome.refuse(
            Stage.FIRMWARE,
            f"{name} of {action.device} cannot be read any more",
            "was the card taken out, or mlxconfig removed?",
        )
    elif action.before is not None:
        # A later setting made it visible, is restored after it, and may be so already.
        if not is_hidden(name, card):
            configure(card, {name: action.before}, (), place.outcome)
    elif name in card.config:
        place.left.append(f"config {card.address} {name}")
        place.outcome.remark(
            Stage.FIRMWARE,
            f"{card.text}: {name} is left unchanged: the previous firmware had no such setting, "
            "so there is no value to restore",
        )


def _burn(place: _Place, action: Burn) -> None:
    card = place.card(action.device)
    if card is None or card.coming != action.before:
        place.left.append(place.key)
        where = f"{card.text}: firmware stays {card.coming}" if card else action.device
        place.outcome.remark(
            Stage.FIRMWARE,
            f"{where}, it was {action.before}: there is no image of that version, burn it by hand",
        )


def _file(place: _Place, action: WriteFile) -> None:
    path, before = action.path, action.before
    command, now = refresh(path), place.facts.files.get(path)
    reboot = {GRUB: BOOT, VFIO: AT_BOOT}.get(path, "")
    if command is None:
        place.odd()
    elif now != before:
        text = f"{'remove' if before is None else 'restore'} {path}"
        write = WriteFile(path, before, now, command)
        place.outcome.step(Stage.DRIVER, place.key, text, write, reboot)
    elif reboot and place.restored == place.facts.boot:
        text = f"{path} is restored, and not in force"
        place.outcome.step(Stage.DRIVER, place.key, text, Wait(), reboot)


def _arguments(place: _Place, action: SetArguments) -> None:
    """Restore arguments of grubby until a reboot after that: later ones belong to others."""
    gone, before, facts = action.arguments, action.before, place.facts
    if place.restored in (None, facts.boot):
        names = {word.partition("=")[0] for word in gone}
        now = tuple(word for word in facts.cmdline if word.partition("=")[0] in names)
        new = f", set {' '.join(before)}" if before else ""
        text = f"kernel arguments: remove {' '.join(gone)}{new}"
        place.outcome.step(Stage.DRIVER, "kernel", text, SetArguments(before, now, gone), BOOT)


def _mtu(place: _Place, action: SetMtu) -> None:
    ports = (port for card in place.facts.cards for port in card.ports)
    for port in ports:
        # Without a network device there is no MTU to set; a new device gets the old one.
        if port.address == action.address and port.mtu and action.before:
            plan_mtu(port, action.before, action.vfs_before, place.outcome)


def _directpath(place: _Place, action: SetDirectPath) -> None:
    found = [d for d in place.facts.devices if d.address == action.address]
    if found and place.facts.esxi is not None:
        plan_directpath(found[0], place.outcome, wanted=action.before)
    else:
        what = f"DirectPath I/O of {action.address} was changed, and the device is gone"
        place.outcome.refuse(Stage.DRIVER, what, "was it removed?")


def _power(place: _Place, action: SetPower) -> None:
    if place.facts.esxi is None:
        place.odd()
    else:
        plan_power_policy(action.before, place.facts.esxi, place.outcome)


_WAYS: dict[type[HostAction], Callable[[_Place, Any], None]] = {
    SetBios: _bios,
    SetConfig: _config,
    Burn: _burn,
    WriteFile: _file,
    SetArguments: _arguments,
    SetVfs: lambda *_: None,  # `_vfs` restores them together with those of the files
    SetMtu: _mtu,
    SetGovernor: lambda p, kept: plan_governor(p.key, kept.before, p.facts, p.outcome),
    SetProfile: lambda p, kept: plan_profile(kept.before, p.facts, p.outcome),
    SetOptions: lambda p, kept: back_options(p.facts, kept.before, p.outcome),
    SetPassthru: lambda p, kept: back_passthru(p.facts, kept.address, kept.before, p.outcome),
    SetDirectPath: _directpath,
    SetPower: _power,
}
"""By kind of a kept action: the function that plans its way back."""


def _vfs(facts: PlatformFacts, kept: list[HostAction], outcome: Outcome) -> None:
    """Restore numbers of VFs: the kept numbers, otherwise those of the earlier files."""
    wanted: dict[str, int] = {}
    for file in (action for action in kept if isinstance(action, WriteFile)):
        path, now = file.path, facts.files.get(file.path)
        earlier = vfs_in(path, file.before)
        for address in (*vfs_in(path, file.content), *vfs_in(path, now), *earlier):
            wanted[address] = wanted.get(address) or earlier.get(address, 0)
    wanted |= {action.address: action.before for action in kept if isinstance(action, SetVfs)}
    for port in (port for card in facts.cards for port in card.ports):
        count = wanted.get(port.address, port.vfs)
        plan_count(port, count, f"it had {count}", outcome)


class Rollback(Applier):
    """One `host rollback` of one hosts file. `left`: places that cannot be restored, by host."""

    verb = "host rollback"
    goal = "as it was"
    left: dict[str, tuple[str, ...]]

    def look(self) -> tuple[HostsPlan, dict[str, PlatformFacts]]:
        """Read the hosts with kept values or marks; returns the plan that restores them."""
        self.left = {}
        kept = self._earlier.read()
        named = {name for name, _ in self._file.each()}
        touched = kept.keys() | self._marks.names()
        groups = [
            group.model_copy(update={"nodes": fold(names)})
            for group in self._file.hosts
            if (names := [name for name in expand(group.nodes) if name in touched])
        ]
        file = self._file.model_copy(update={"hosts": groups})
        plan, facts = self._planned(file)
        others = sorted(touched - named)
        remark = f"not among these hosts, and with kept values: {fold(others)}"
        return replace(plan, remarks=(remark,) if others else ()), facts

    def _plan(self, name: str, group: HostGroup, facts: PlatformFacts) -> HostPlan:
        facts = self._marks.on(name, facts)
        back = plan_back(name, group, facts, self._earlier.read().get(name, {}))
        self.left[name] = back.left
        return back.plan

    def _keep(self, name: str, facts: PlatformFacts, step: Step) -> None:
        # Before the write: the restored file then confirms the mark.
        if step.key in ("kernel", "vfio") and isinstance(step.action, WriteFile):
            self._earlier.mark(name, step.key, facts.boot)

    def _taken(self, name: str, facts: PlatformFacts, step: Step) -> None:
        # After grubby: the host does not show whether it ran, and it may run twice.
        if isinstance(step.action, SetArguments):
            self._earlier.mark(name, step.key, facts.boot)

    def _finish(self) -> None:
        super()._finish()
        # A restored value is not kept: the next apply finds it, and keeps it again.
        for name, left in self.left.items():
            self._earlier.forget(name, left)
