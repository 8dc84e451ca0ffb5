# SPDX-License-Identifier: Apache-2.0
"""Steps of an ESXi host: options of its driver, VFs, power policy, maintenance mode. Pure.

The API has the options of the next boot and the VFs of this boot. So an option that is not in force
yet shows in the VFs.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import replace

from nearmetal.host.cards import ESXI_DRIVER, Pair, driver_ports, max_vfs
from nearmetal.host.hosts_file import HostGroup
from nearmetal.host.model import CardFacts, EsxiFacts, PlatformFacts, PortFacts
from nearmetal.host.stages.firmware import settings_of
from nearmetal.host.steps import (
    ByHand,
    EnterMaintenance,
    Install,
    LeaveMaintenance,
    Outcome,
    SetOptions,
    SetPassthru,
    SetPower,
    Stage,
    Step,
    Wait,
)

_STAGE = Stage.DRIVER
BOOT = "ESXi reads options of modules at boot"
_VFS_AT_BOOT = "ESXi makes VFs at boot"
_OURS = ("", ESXI_DRIVER)

POWER = {"high-performance": "static", "balanced": "dynamic", "low-power": "low"}
"""Short names of power policies, the same in every language of a vCenter."""

VSAN = {
    "accessible": "ensureObjectAccessibility",
    "evacuate": "evacuateAllData",
    "none": "noAction",
}

MAX_NAMED = 4
"""Machines that a refusal names."""

_OPTION = re.compile(r'([A-Za-z0-9_]{1,64})=("[ !#-~]{0,512}"|[!#-~]{0,512})(?:\s+|$)')


def parse_options(text: str) -> dict[str, str] | None:
    """Return a module's options in their order; None for a text with another part."""
    found: dict[str, str] = {}
    text, place = text.strip(), 0
    while place < len(text):
        match = _OPTION.match(text, place)
        if match is None:
            return None
        found[match[1]] = match[2]
        place = match.end()
    return found


def join_options(options: Mapping[str, str]) -> str:
    """Return options in the form of a module."""
    return " ".join(f"{name}={value}" for name, value in options.items())


def plan_options(
    facts: PlatformFacts, ports: list[PortFacts], numbers: str | None, outcome: Outcome
) -> None:
    """Add the step that sets this max_vfs, or removes it for None, and keeps every other option.

    `esxcli system module parameters set -p` and the call of the API replace all options of a
    module, so the step repeats the present ones.
    """
    before = facts.options.get(ESXI_DRIVER, "")
    now = parse_options(before)
    if now is None:
        what = f"the options of {ESXI_DRIVER} are not understood, and would be lost"
        hint = "write them as NAME=VALUE, with spaces between"
        outcome.refuse(_STAGE, f"{what}: {before[:128]!r}", hint)
        return
    old = now.get("max_vfs", "").strip('"')
    if old == (numbers or ""):
        if facts.esxi is not None:
            _in_force(ports, numbers, outcome)
        return
    if old and len(old.split(",")) != len(ports):
        outcome.remark(_STAGE, f"max_vfs={old} does not fit {len(ports)} ports")
    others = {name: value for name, value in now.items() if name != "max_vfs"}
    wanted = others if numbers is None else now | {"max_vfs": numbers}
    said = "no max_vfs" if numbers is None else f'max_vfs="{numbers}"'
    text = f"{ESXI_DRIVER}: {said}" + (f", keeping {join_options(others)}" if others else "")
    action = SetOptions(ESXI_DRIVER, join_options(wanted), before)
    # The driver asks the firmware for VFs when it loads, so one reboot serves both.
    tools = tuple(step.key for step in outcome.steps if step.key.startswith("package "))
    outcome.steps.append(Step(_STAGE, "options", text, action, BOOT, tools))


def _in_force(ports: list[PortFacts], numbers: str | None, outcome: Outcome) -> None:
    """Add the wait for a reboot if the VFs are not those of max_vfs."""
    counts = numbers.split(",") if numbers else ["0"] * len(ports)
    if len(counts) != len(ports) or not all(count.isdigit() for count in counts):
        return
    pairs = [(port, int(count)) for port, count in zip(ports, counts, strict=True)]
    missing = [f"{p.address} has {p.vfs} of {count}" for p, count in pairs if p.vfs != count]
    if missing:
        text = f"{ESXI_DRIVER}: max_vfs is set, but not in force: {', '.join(missing)}"
        outcome.steps.append(Step(_STAGE, "options", text, Wait(), BOOT))


def plan_driver_options(facts: PlatformFacts, pairs: list[Pair], outcome: Outcome) -> None:
    """Add max_vfs for the ports of the file."""
    before = facts.options.get(ESXI_DRIVER, "")
    wanted = max_vfs(pairs, facts, parse_options(before) or {})
    if wanted and any(port.driver in _OURS for p in pairs for _, _, port in p.ports()):
        none = "max_vfs" not in before and not wanted.strip("0,")
        plan_options(facts, driver_ports(pairs, facts), None if none else wanted, outcome)


def plan_without_vcenter(facts: PlatformFacts, pairs: list[Pair], outcome: Outcome) -> None:
    """Add options of the driver, for a host with a shell and no vCenter."""
    other = next((q for p in pairs for _, _, q in p.ports() if q.driver not in _OURS), None)
    if other is None:
        plan_driver_options(facts, pairs, outcome)
        return
    what = f"{other.address} belongs to {other.driver}"
    hint = f"remove its ports, or add its vcenter: without it, only {ESXI_DRIVER} gets VFs"
    outcome.refuse(_STAGE, what, hint)


def plan_esxi(
    group: HostGroup, facts: PlatformFacts, esxi: EsxiFacts, pairs: list[Pair], outcome: Outcome
) -> None:
    """Add the steps for driver, VFs and power of a host under a vCenter."""
    plan_driver_options(facts, pairs, outcome)
    for _, want, port in (entry for pair in pairs for entry in pair.ports()):
        if port.driver not in _OURS:
            plan_passthru(port, want.vfs, esxi, outcome)
    if group.esxi.power is not None:
        plan_power_policy(POWER[group.esxi.power], esxi, outcome)


def plan_passthru(port: PortFacts, vfs: int, esxi: EsxiFacts, outcome: Outcome) -> None:
    """Add the step that makes ESXi itself give a physical function its VFs."""
    requested, name = esxi.requested.get(port.address, port.vfs), port.netdev or port.address
    if vfs > port.total_vfs:
        hint = "check SR-IOV in the BIOS, and in the card's firmware"
        if port.total_vfs:
            hint = f"use at most {port.total_vfs}"
        outcome.refuse(_STAGE, f"{name} offers {port.total_vfs} VFs, not {vfs}", hint)
        return
    action: SetPassthru | Wait = SetPassthru(port.address, vfs, requested)
    text = f"{name}: {requested} -> {vfs} VFs"
    if requested == vfs:
        action = Wait()
        text = f"{name}: {vfs} VFs are set, but not in force: it has {port.vfs}"
    if not requested == vfs == port.vfs:
        outcome.steps.append(Step(_STAGE, f"vfs {port.address}", text, action, _VFS_AT_BOOT))


def plan_power_policy(policy: str, esxi: EsxiFacts, outcome: Outcome) -> None:
    """Add the power policy, by its short name."""
    if policy not in esxi.policies:
        have = ", ".join(esxi.policies) or "none: the BIOS controls the power"
        hint = "let the operating system control power in the BIOS"
        outcome.refuse(_STAGE, f"the host has no power policy {policy}; it has {have}", hint)
    elif esxi.power != policy:
        text = f"power policy: {esxi.power or 'none'} -> {policy}"
        outcome.steps.append(Step(_STAGE, "power", text, SetPower(policy, esxi.power)))


def plan_by_hand(pairs: list[Pair], outcome: Outcome) -> None:
    """Add the commands that only a shell of the host can execute.

    Their effect shows through vCenter in the number of VFs that the firmware offers.
    """
    outcome.steps[:] = [_installed_by_hand(step) for step in outcome.steps]
    tools = tuple(step.key for step in outcome.steps if isinstance(step.action, ByHand))
    for pairing in pairs:
        card, place = pairing.card, pairing.card.address.removeprefix("0000:") + ".0"
        if pairing.wanted.firmware is not None:
            check = f"`mlxfwmanager -d {place}` must show at least {pairing.wanted.firmware}"
            outcome.remark(Stage.FIRMWARE, _unknown(card, "its firmware is", check))
        if pairing.wanted.ats is not None:
            check = f"`mlxconfig -d {place} query` must show {int(pairing.wanted.ats)}"
            outcome.remark(Stage.FIRMWARE, _unknown(card, "ATS_ENABLED is", check))
        ports = [(want, port) for _, want, port in pairing.ports() if port.driver in _OURS]
        if not ports:
            continue
        settings = settings_of(pairing, "esxi", outcome)
        needed = int(settings.get("NUM_OF_VFS", "0"))
        offered = min((port.total_vfs for want, port in ports if want.vfs), default=needed)
        commands = tuple(f"mlxconfig -d {place} -y set {n}={v}" for n, v in settings.items())
        if offered < needed:
            what = f"{card.text}: its firmware offers {offered} VFs, {needed} are needed"
            text = f"{what}; by hand: {'; '.join(commands)}"
            why = "the firmware reads its settings when it starts"
            outcome.steps.append(
                Step(Stage.FIRMWARE, f"firmware {card.address}", text, ByHand(commands), why, tools)
            )
        elif any(name.startswith("LINK_") for name in settings):
            check = f"see `mlxconfig -d {place} query`"
            outcome.remark(Stage.FIRMWARE, _unknown(card, "its link types are", check))


def _unknown(card: CardFacts, what: str, check: str) -> str:
    return f"{card.text}: without ssh {what} not known: {check}"


def _installed_by_hand(step: Step) -> Step:
    if not isinstance(step.action, Install):
        return step
    command = install_command(step.action)
    return replace(step, text=f"{step.text}: by hand: {command}", action=ByHand((command,)))


def install_command(action: Install) -> str:
    """Return the command that installs a package: a .zip is a depot, other files are VIBs."""
    option = "-d" if action.file.endswith(".zip") else "-v"
    return shlex.join(("esxcli", "software", "vib", "install", option, action.file))


def plan_maintenance(group: HostGroup, esxi: EsxiFacts, outcome: Outcome) -> None:
    """Add maintenance mode around the reboots, and the way out of our own maintenance mode."""
    forcing = any(step.reboot for step in outcome.steps)
    if esxi.maintenance and not esxi.ours:
        outcome.remark(_STAGE, "it is in maintenance mode, and stays so")
        return
    if forcing and not esxi.maintenance:
        if esxi.bound:
            more = " and others" if len(esxi.bound) > MAX_NAMED else ""
            some = ", ".join(esxi.bound[:MAX_NAMED]) + more
            what = f"machines have devices of the host and cannot move: {some}"
            outcome.refuse(Stage.REACH, what, "power them off: this host must reboot")
        if esxi.machines:
            # No part of the step: machines come and go, and a saved plan stays valid.
            outcome.remark(_STAGE, f"{len(esxi.machines)} machines move away for the reboot")
        vsan = f" (vSAN: {VSAN[group.esxi.vsan]})" if esxi.vsan else ""
        text = f"enter maintenance mode{vsan}"
        action = EnterMaintenance(VSAN[group.esxi.vsan] if esxi.vsan else "")
        outcome.steps.append(Step(Stage.REACH, "enter maintenance", text, action))
    if forcing or esxi.maintenance:
        key, text = "leave maintenance", "leave maintenance mode"
        after = tuple(step.key for step in outcome.steps)
        outcome.steps.append(Step(Stage.GUEST, key, text, LeaveMaintenance(), after=after))


# The way back


def back_options(facts: PlatformFacts, before: str, outcome: Outcome) -> None:
    """Add the step that restores max_vfs; other options stay as they are now."""
    then = parse_options(before)
    if then is None:
        what = f"the recorded options are not understood: {before[:128]!r}"
        outcome.refuse(_STAGE, what, "was before.json edited?")
        return
    numbers = then.get("max_vfs")
    text = None if numbers is None else numbers.strip('"')
    plan_options(facts, driver_ports([], facts), text, outcome)


def back_passthru(facts: PlatformFacts, address: str, before: int, outcome: Outcome) -> None:
    """Add the step that restores the VFs of a physical function."""
    ports = [port for card in facts.cards for port in card.ports if port.address == address]
    if ports and facts.esxi is not None:
        plan_passthru(ports[0], before, facts.esxi, outcome)
    else:
        what = f"{address} had {before} VFs, and is not there any more"
        outcome.refuse(_STAGE, what, "was the card removed?")
