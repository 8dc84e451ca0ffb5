# SPDX-License-Identifier: Apache-2.0
"""What an ESXi host needs: options of its driver, VFs, power policy, maintenance mode. Pure.

The API tells options as they are for the next boot, and VFs as they are now: so what is set and
not in force shows in the VFs.
"""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

from nearmetal.host.cards import ESXI_DRIVER, driver_ports, max_vfs
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

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nearmetal.host.cards import Pair
    from nearmetal.host.hosts_file import HostGroup
    from nearmetal.host.model import EsxiFacts, HostFacts, PortFacts

_STAGE = Stage.DRIVER
BOOT = "ESXi reads options of modules at boot"
_VFS_AT_BOOT = "ESXi makes VFs at boot"
_OURS = ("", ESXI_DRIVER)

POWER = {"high-performance": "static", "balanced": "dynamic", "low-power": "low"}
"""Short names of power policies, which no language of a vCenter translates."""

VSAN = {
    "accessible": "ensureObjectAccessibility",
    "evacuate": "evacuateAllData",
    "none": "noAction",
}

MAX_TOLD = 4
"""How many machines are named."""

_OPTION = re.compile(r'([A-Za-z0-9_]{1,64})=("[ !#-~]{0,512}"|[!#-~]{0,512})(?:\s+|$)')


def parse_options(text: str) -> dict[str, str] | None:
    """Return a module's options in their order; None for a text that is not understood whole."""
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
    """Return options as a module takes them."""
    return " ".join(f"{name}={value}" for name, value in options.items())


def plan_options(
    facts: HostFacts, ports: list[PortFacts], numbers: str | None, outcome: Outcome
) -> None:
    """Add what gives the driver this max_vfs, None for none, and every other option as it is.

    `esxcli system module parameters set -p`, and the call of the API, replace every option of a
    module: those that are set are said again.
    """
    before = facts.options.get(ESXI_DRIVER, "")
    now = parse_options(before)
    if now is None:
        outcome.refuse(
            _STAGE,
            f"the options of {ESXI_DRIVER} are not understood, and would be lost: {before[:128]!r}",
            "write them as NAME=VALUE, with spaces between",
        )
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
    # The driver asks the firmware for VFs when it loads, so they go together.
    tools = tuple(step.key for step in outcome.steps if step.key.startswith("package "))
    outcome.steps.append(Step(_STAGE, "options", text, action, BOOT, tools))


def _in_force(ports: list[PortFacts], numbers: str | None, outcome: Outcome) -> None:
    """Add the wait for a reboot where VFs are not those of max_vfs."""
    counts = numbers.split(",") if numbers else ["0"] * len(ports)
    if len(counts) != len(ports) or not all(count.isdigit() for count in counts):
        return
    pairs = [(port, int(count)) for port, count in zip(ports, counts, strict=True)]
    missing = [f"{p.address} has {p.vfs} of {count}" for p, count in pairs if p.vfs != count]
    if missing:
        text = f"{ESXI_DRIVER}: max_vfs is set, and not in force: {', '.join(missing)}"
        outcome.steps.append(Step(_STAGE, "options", text, Wait(), BOOT))


def plan_driver_options(facts: HostFacts, pairs: list[Pair], outcome: Outcome) -> None:
    """Add max_vfs for the ports that the file speaks of."""
    before = facts.options.get(ESXI_DRIVER, "")
    wanted = max_vfs(pairs, facts, parse_options(before) or {})
    if wanted and any(port.driver in _OURS for p in pairs for _, _, port in p.ports()):
        none = "max_vfs" not in before and not wanted.strip("0,")
        plan_options(facts, driver_ports(pairs, facts), None if none else wanted, outcome)


def plan_without_vcenter(facts: HostFacts, pairs: list[Pair], outcome: Outcome) -> None:
    """Add options of the driver, for a host of which only its shell is known."""
    for p in pairs:
        others = [q for _, _, q in p.ports() if q.driver not in _OURS]
        if others:
            outcome.refuse(
                _STAGE,
                f"{others[0].address} belongs to {others[0].driver}, and only "
                f"VFs of {ESXI_DRIVER} are planned",
                "leave its ports out, or name its vcenter",
            )
            return
    plan_driver_options(facts, pairs, outcome)


def plan_esxi(
    group: HostGroup, facts: HostFacts, esxi: EsxiFacts, pairs: list[Pair], outcome: Outcome
) -> None:
    """Add what the driver's side of a host under a vCenter still needs."""
    plan_driver_options(facts, pairs, outcome)
    ports = [(port, want.vfs) for p in pairs for _, want, port in p.ports()]
    for port, vfs in ports:
        if port.driver not in _OURS:
            plan_passthru(port, vfs, esxi, outcome)
    if group.esxi.power is not None:
        plan_power_policy(POWER[group.esxi.power], esxi, outcome)


def plan_passthru(port: PortFacts, vfs: int, esxi: EsxiFacts, outcome: Outcome) -> None:
    """Add what gives a physical function VFs that ESXi itself makes."""
    key, requested = f"vfs {port.address}", esxi.requested.get(port.address, port.vfs)
    name = port.netdev or port.address
    if vfs > port.total_vfs:
        outcome.refuse(
            _STAGE,
            f"{vfs} VFs are asked of {name}, it offers {port.total_vfs}",
            f"ask for at most {port.total_vfs}"
            if port.total_vfs
            else "see SR-IOV in the BIOS, and in the card's firmware",
        )
    elif requested != vfs:
        action = SetPassthru(port.address, vfs, requested)
        outcome.steps.append(
            Step(_STAGE, key, f"{name}: {requested} -> {vfs} VFs", action, _VFS_AT_BOOT)
        )
    elif port.vfs != vfs:
        text = f"{name}: {vfs} VFs are set, and not in force: it has {port.vfs}"
        outcome.steps.append(Step(_STAGE, key, text, Wait(), _VFS_AT_BOOT))


def plan_power_policy(policy: str, esxi: EsxiFacts, outcome: Outcome) -> None:
    """Add the power policy, by its short name."""
    if policy not in esxi.policies:
        have = ", ".join(esxi.policies) or "none: the BIOS keeps power to itself"
        outcome.refuse(
            _STAGE,
            f"there is no power policy {policy}; it has {have}",
            "let the operating system control power in the BIOS",
        )
    elif esxi.power != policy:
        text = f"power policy: {esxi.power or 'none'} -> {policy}"
        outcome.steps.append(Step(_STAGE, "power", text, SetPower(policy, esxi.power)))


def plan_by_hand(pairs: list[Pair], outcome: Outcome) -> None:
    """State what only a shell of the host can do, with its commands.

    Whether it was done shows through vCenter in how many VFs the firmware offers.
    """
    outcome.steps[:] = [_installed_by_hand(step) for step in outcome.steps]
    tools = tuple(step.key for step in outcome.steps if isinstance(step.action, ByHand))
    for pairing in pairs:
        card, place = pairing.card, pairing.card.address.removeprefix("0000:") + ".0"
        if pairing.wanted.firmware is not None:
            outcome.remark(
                Stage.FIRMWARE,
                f"{card.text}: without ssh its firmware is not known, "
                f"`mlxfwmanager -d {place}` must say at least "
                f"{pairing.wanted.firmware}",
            )
        if pairing.wanted.ats is not None:
            outcome.remark(
                Stage.FIRMWARE,
                f"{card.text}: without ssh ATS_ENABLED is not known, "
                f"`mlxconfig -d {place} query` must say {int(pairing.wanted.ats)}",
            )
        ports = [(want, port) for _, want, port in pairing.ports() if port.driver in _OURS]
        if not ports:
            continue
        settings = settings_of(pairing, "esxi", outcome)
        needed = int(settings.get("NUM_OF_VFS", "0"))
        offered = min((port.total_vfs for want, port in ports if want.vfs), default=needed)
        commands = tuple(f"mlxconfig -d {place} -y set {n}={v}" for n, v in settings.items())
        if offered < needed:
            text = (
                f"{card.text}: its firmware offers {offered} VFs, {needed} are needed; by hand: "
                f"{'; '.join(commands)}"
            )
            why = "the firmware reads its settings when it starts"
            outcome.steps.append(
                Step(Stage.FIRMWARE, f"firmware {card.address}", text, ByHand(commands), why, tools)
            )
        elif any(name.startswith("LINK_") for name in settings):
            outcome.remark(
                Stage.FIRMWARE,
                f"{card.text}: without ssh its link types are not "
                f"known, see `mlxconfig -d {place} query`",
            )


def _installed_by_hand(step: Step) -> Step:
    if not isinstance(step.action, Install):
        return step
    command = install_command(step.action)
    return Step(
        step.stage,
        step.key,
        f"{step.text}: by hand: {command}",
        ByHand((command,)),
        step.reboot,
        step.after,
    )


def install_command(action: Install) -> str:
    """Return the command that installs a package: a .zip is a depot, all else a VIB."""
    option = "-d" if action.file.endswith(".zip") else "-v"
    return shlex.join(("esxcli", "software", "vib", "install", option, action.file))


def plan_maintenance(group: HostGroup, esxi: EsxiFacts, outcome: Outcome) -> None:
    """Add maintenance mode around what reboots, and the way out of one that is ours."""
    forcing = any(step.reboot for step in outcome.steps)
    if esxi.maintenance and not esxi.ours:
        outcome.remark(_STAGE, "it is in maintenance mode, and stays so")
        return
    if forcing and not esxi.maintenance:
        if esxi.bound:
            some = ", ".join(esxi.bound[:MAX_TOLD]) + (
                " and others" if len(esxi.bound) > MAX_TOLD else ""
            )
            outcome.refuse(
                Stage.REACH,
                f"machines have devices of the host and cannot move: {some}",
                "switch them off: this host must reboot",
            )
        words = [f"{len(esxi.machines)} machines move away"] if esxi.machines else []
        words += [f"vSAN: {VSAN[group.esxi.vsan]}"] if esxi.vsan else []
        text = "enter maintenance mode" + (f" ({', '.join(words)})" if words else "")
        action = EnterMaintenance(VSAN[group.esxi.vsan] if esxi.vsan else "")
        outcome.steps.append(Step(Stage.REACH, "enter maintenance", text, action))
    if forcing or esxi.maintenance:
        after = tuple(step.key for step in outcome.steps)
        outcome.steps.append(
            Step(
                Stage.GUEST,
                "leave maintenance",
                "leave maintenance mode",
                LeaveMaintenance(),
                "",
                after,
            )
        )


# The way back


def back_options(facts: HostFacts, before: str, outcome: Outcome) -> None:
    """Add what gives the driver the max_vfs that it had; other options stay as they are now."""
    then = parse_options(before)
    if then is None:
        outcome.refuse(
            _STAGE,
            f"the options that were kept are not understood: {before[:128]!r}",
            "was before.json edited?",
        )
        return
    numbers = then.get("max_vfs")
    text = None if numbers is None else numbers.strip('"')
    plan_options(facts, driver_ports([], facts), text, outcome)


def back_passthru(facts: HostFacts, address: str, before: int, outcome: Outcome) -> None:
    """Add what gives a physical function the VFs that it had."""
    ports = [port for card in facts.cards for port in card.ports if port.address == address]
    if not ports or facts.esxi is None:
        outcome.refuse(
            _STAGE,
            f"{address} had {before} VFs, and is not there any more",
            "was the card taken out?",
        )
        return
    plan_passthru(ports[0], before, facts.esxi, outcome)
