# SPDX-License-Identifier: Apache-2.0
"""What `apply` kept of a host as it was, as a plan to put it back. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nearmetal.host.places import GRUB, refresh, vfs_in
from nearmetal.host.plan import HostPlan, gather
from nearmetal.host.stages.bios import plan_attribute
from nearmetal.host.stages.driver import BOOT
from nearmetal.host.stages.esxi import (
    back_options,
    back_passthru,
    plan_maintenance,
    plan_power_policy,
)
from nearmetal.host.stages.firmware import configure
from nearmetal.host.stages.power import plan_profile
from nearmetal.host.stages.vfs import plan_mtu
from nearmetal.host.steps import (
    Outcome,
    SetArguments,
    SetGovernor,
    SetVfs,
    Stage,
    Step,
    Wait,
    WriteFile,
)

if TYPE_CHECKING:
    from nearmetal.host.hosts_file import HostGroup
    from nearmetal.host.model import CardFacts, HostFacts

Kept = dict[str, Any]


@dataclass(frozen=True)
class Back:
    """The way back of one host. `left`: what was kept of it and cannot be put back."""

    plan: HostPlan
    left: tuple[str, ...]


def plan_back(name: str, group: HostGroup, facts: HostFacts, kept: Kept) -> Back:
    """Return what makes a host as it was, from what was kept, by place."""
    outcome = Outcome()
    left: list[str] = []
    # The last change goes first: a setting may hide those that were made after it.
    for key, entry in reversed(kept.items()):
        if not _entry(key, entry, facts, outcome, left):
            outcome.refuse(
                Stage.REACH,
                f"what was kept as {key[:64]!r} is not understood",
                "was before.json edited, or written by a newer nearmetal?",
            )
    _vfs(facts, kept, outcome)
    if facts.esxi is not None:
        plan_maintenance(group, facts.esxi, outcome)
    plan = HostPlan(
        name,
        group.platform,
        group.domain or "",
        gather(outcome.steps),
        tuple(outcome.refusals),
        tuple(outcome.remarks),
        facts.unread,
    )
    return Back(plan, tuple(left))


def _entry(key: str, entry: Any, facts: HostFacts, outcome: Outcome, left: list[str]) -> bool:
    """Add the way back of one place; returns whether its entry was understood."""
    match entry:
        case {
            "action": "SetBios",
            "attribute": str(name),
            "before": str() | int() | None as before,
        }:
            _bios(name, before, facts, outcome)
        case {
            "action": "SetConfig",
            "device": str(device),
            "setting": str(name),
            "before": str() | None as before,
        }:
            _config((device, name), before, facts, outcome, left)
        case {"action": "Burn", "device": str(device), "before": str(before)}:
            card = _card(device, facts)
            if card is None or card.coming != before:
                left.append(key)
                where = f"{card.text}: firmware stays {card.coming}" if card else device
                outcome.remark(
                    Stage.FIRMWARE,
                    f"{where}, it was {before}: no image of that is kept, burn one by hand",
                )
        case {"action": "WriteFile", "path": str(path), "before": str() | None as before} if (
            refresh(path) is not None
        ):
            _file(key, path, before, (facts, entry.get("restored")), outcome)
        case {"action": "SetArguments", "arguments": list(words), "before": list(before)} if all(
            isinstance(word, str) for word in (*words, *before)
        ):
            _arguments((tuple(words), tuple(before)), facts, entry.get("restored"), outcome)
        case _:
            return _running(key, entry, facts, outcome)
    return True


def _running(key: str, entry: Any, facts: HostFacts, outcome: Outcome) -> bool:
    """As `_entry`, for what was set in the running system."""
    match entry:
        case {"action": "SetVfs", "address": str(), "before": int()}:
            pass  # together with those of the files
        case {"action": "SetMtu", "address": str(address), "before": int(before)}:
            vfs = entry.get("vfs_before", {})
            if not isinstance(vfs, dict) or not all(isinstance(n, int) for n in vfs.values()):
                return False
            # One without a network device now gets its MTU with the next one.
            for port in (p for card in facts.cards for p in card.ports if p.address == address):
                if port.mtu and before:
                    plan_mtu(port, before, vfs, outcome)
        case {"action": "SetGovernor", "before": str(before)}:
            others = [governor for governor in facts.governors if governor != before]
            if others:
                governor = SetGovernor(before, others[0])
                text = f"governor: {others[0]} -> {before}"
                outcome.steps.append(Step(Stage.DRIVER, key, text, governor))
        case {"action": "SetProfile", "before": str(before)}:
            plan_profile(before, facts, outcome)
        case _:
            return _esxi_entry(entry, facts, outcome)
    return True


def _esxi_entry(entry: Any, facts: HostFacts, outcome: Outcome) -> bool:
    """As `_entry`, of what only ESXi has."""
    match entry:
        case {"action": "SetOptions", "before": str(before)}:
            back_options(facts, before, outcome)
        case {"action": "SetPassthru", "address": str(address), "before": int(count)}:
            back_passthru(facts, address, count, outcome)
        case {"action": "SetPower", "before": str(policy)} if facts.esxi is not None:
            plan_power_policy(policy, facts.esxi, outcome)
        case _:
            return False
    return True


def _bios(name: str, before: str | int | None, facts: HostFacts, outcome: Outcome) -> None:
    if facts.bios is None:
        outcome.refuse(
            Stage.BIOS,
            f"{name} was {before}, and the BIOS could not be read",
            "see what could not be read, above",
        )
    elif name not in facts.bios.attributes:
        outcome.refuse(
            Stage.BIOS,
            f"{name} was {before}, and this BIOS has no such attribute now",
            "was the BIOS updated? set what took its place by hand",
        )
    else:
        plan_attribute(facts.bios, name, before, outcome)


def _card(device: str, facts: HostFacts) -> CardFacts | None:
    return next((card for card in facts.cards if card.device == device), None)


def _config(
    what: tuple[str, str], before: str | None, facts: HostFacts, outcome: Outcome, left: list[str]
) -> None:
    device, name = what
    card = _card(device, facts)
    if card is None or card.config is None:
        outcome.refuse(
            Stage.FIRMWARE,
            f"{name} of {device} cannot be read any more",
            "was the card taken out, or mlxconfig removed?",
        )
    elif before is None:
        if name in card.config:
            left.append(f"config {card.address} {name}")
            outcome.remark(
                Stage.FIRMWARE,
                f"{card.text}: {name} stays: what it was was not known, "
                "as the firmware before had no such setting",
            )
    else:
        configure(card, {name: before}, (), outcome)


def _file(
    key: str, path: str, before: str | None, now: tuple[HostFacts, object], outcome: Outcome
) -> None:
    facts, restored = now
    content = facts.files.get(path)
    reboot = BOOT if path == GRUB else ""
    if content != before:
        verb = "remove" if before is None else "put back"
        action = WriteFile(path, before, content, refresh(path) or ())
        outcome.steps.append(Step(Stage.DRIVER, key, f"{verb} {path}", action, reboot))
    elif reboot and restored == facts.boot:
        text = f"{path} is put back, and not in force"
        outcome.steps.append(Step(Stage.DRIVER, key, text, Wait(), reboot))


def _arguments(
    words: tuple[tuple[str, ...], tuple[str, ...]],
    facts: HostFacts,
    restored: object,
    outcome: Outcome,
) -> None:
    """Put back arguments that grubby set, until a reboot after that: later ones are others'."""
    gone, before = words
    names = {word.partition("=")[0] for word in gone}
    now = tuple(word for word in facts.cmdline if word.partition("=")[0] in names)
    if restored in (None, facts.boot):
        text = f"kernel arguments: remove {' '.join(gone)}" + (
            f", set {' '.join(before)}" if before else ""
        )
        action = SetArguments(before, now, gone)
        outcome.steps.append(Step(Stage.DRIVER, "kernel", text, action, BOOT))


def _vfs(facts: HostFacts, kept: Kept, outcome: Outcome) -> None:
    """Put back numbers of VFs: as they were, else as the files from before say."""
    entries = [entry for entry in kept.values() if isinstance(entry, dict)]
    wanted: dict[str, int] = {}
    for entry in entries:
        path = str(entry.get("path"))
        earlier = vfs_in(path, str(entry.get("before") or ""))
        ours = vfs_in(path, str(entry.get("content") or "")) | vfs_in(path, facts.files.get(path))
        wanted |= {
            address: earlier.get(address, 0)
            for address in (*ours, *earlier)
            if not wanted.get(address)
        }
    wanted |= {
        e["address"]: e["before"]
        for e in entries
        if e.get("action") == "SetVfs"
        and isinstance(e.get("address"), str)
        and isinstance(e.get("before"), int)
    }
    at_boot = any(step.reboot for step in outcome.steps)
    for port in (port for card in facts.cards for port in card.ports):
        count = wanted.get(port.address, port.vfs)
        if count == port.vfs:
            continue
        if port.used_vfs:
            outcome.refuse(
                Stage.DRIVER,
                f"{port.address} had {count} VFs, it has {port.vfs}, and "
                f"virtual machines have {port.used_vfs} of them",
                "end the machines first",
            )
        elif not at_boot:
            text = f"{port.netdev or port.address}: {port.vfs} -> {count} VFs"
            action = SetVfs(port.address, count, port.vfs)
            outcome.steps.append(
                Step(Stage.DRIVER, f"vfs {port.address}", text, action, "", ("rules",))
            )
