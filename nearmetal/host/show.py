# SPDX-License-Identifier: Apache-2.0
"""A plan for hosts as lines for a person, and as data for --json. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from nearmetal.host.hosts_file import fold
from nearmetal.host.model import CardFacts, PlatformFacts
from nearmetal.host.names import grouped
from nearmetal.host.plan import HostPlan, HostsPlan
from nearmetal.host.steps import Burn, Step


def plan_lines(plan: HostsPlan, goal: str = "as the file says") -> list[str]:
    """Return a plan for a person; `goal`: the words for hosts without steps."""
    lines = _blocks((host.name, host_lines(host, goal)) for host in plan.hosts)
    lines += [f"note: {remark}" for remark in plan.remarks]
    if len(plan.hosts) > 1 and plan.waves:
        lines.append("order: " + ", then ".join(" with ".join(wave) for wave in plan.waves))
    going = [host for host in plan.hosts if not host.refusals]
    refused = len(plan.hosts) - len(going)
    steps, reboots = sum(len(h.steps) for h in going), sum(h.reboots for h in going)
    closing = f"plan: {_count(steps, 'step')}, {_count(reboots, 'reboot')}"
    return [*lines, closing + (f", {_count(refused, 'host')} refused" if refused else "")]


def question(plan: HostsPlan) -> str:
    """Return what a plan does to which hosts, as the question before it begins."""
    rebooted = [host.name for host in plan.hosts if host.reboots]
    burnt = [
        host.name for host in plan.hosts if any(isinstance(s.action, Burn) for s in host.steps)
    ]
    changed = [host.name for host in plan.hosts if host.steps]
    parts = [
        f"{verb} {fold(names)}"
        for verb, names in (
            ("reboot", rebooted),
            ("burn firmware of", burnt),
            ("change settings of", [] if rebooted else changed),
        )
        if names
    ]
    return " and ".join(parts)


def _blocks(hosts: Iterable[tuple[str, list[str]]]) -> list[str]:
    """Return the lines of hosts, and those of hosts with the same lines once."""
    found = grouped((name, "\n".join(lines)) for name, lines in hosts)
    shown = [text.replace("host {host} (", f"hosts {names} (", 1) for names, text in found]
    return [line for text in shown for line in text.split("\n")]


def host_lines(host: HostPlan, goal: str) -> list[str]:
    """Return the plan of one host for a person."""
    if host.refusals:
        state = "refused, nothing will be written"
    elif not host.steps:
        state = goal
    else:
        state = f"{_count(len(host.steps), 'step')}, {_count(host.reboots, 'reboot')}"
    lines = [_title(host, state), *_unread(host)]
    for refusal in host.refusals:
        lines.append(f"  {refusal.stage.value:<9} refused: {refusal.what}")
        lines.append(f"            hint: {refusal.hint}")
    number = 1
    for phase in () if host.refusals else host.phases:
        for step in phase.steps:
            mark = f"  [reboot {number}]" if step.reboot else ""
            lines.append(f"  {step.stage.value:<9} {step.text}{mark}")
        if phase.forcing:
            reasons = "; ".join(dict.fromkeys(step.reboot for step in phase.forcing))
            lines.append(f"  reboot {number}: {reasons}")
            number += 1
    return lines + _remarks(host)


def status_lines(plan: HostsPlan, facts: Mapping[str, PlatformFacts]) -> list[str]:
    """Return the facts of hosts and their differences from the file, for a person."""
    lines = _blocks((host.name, _status_block(host, facts)) for host in plan.hosts)
    return [*lines, *(f"note: {remark}" for remark in plan.remarks)]


def _status_block(host: HostPlan, facts: Mapping[str, PlatformFacts]) -> list[str]:
    drift = len(host.steps) + len(host.refusals)
    state = f"{_count(drift, 'difference')} from the file" if drift else "as the file says"
    return [
        _title(host, state),
        *(_facts_lines(facts[host.name]) if host.name in facts else []),
        *_unread(host),
        *(f"  differs: {r.stage.value}: {r.what}" for r in host.refusals),
        *(f"  differs: {step.stage.value}: {step.text}" for step in host.steps),
        *_remarks(host),
    ]


def _title(host: HostPlan, state: str) -> str:
    return f"host {host.name} ({', '.join(filter(None, (host.platform, host.domain)))}): {state}"


def _unread(host: HostPlan) -> list[str]:
    return [f"  could not read: {text}" for text in host.unread]


def _remarks(host: HostPlan) -> list[str]:
    return [f"  note: {remark.stage.value}: {remark.text}" for remark in host.remarks]


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def _facts_lines(facts: PlatformFacts) -> list[str]:
    lines = []
    if facts.bios is not None:
        vendor = facts.bios.vendor or "of an unnamed vendor"
        lines.append(f"  bios      {vendor}, {len(facts.bios.attributes)} attributes")
    if facts.platform == "linux":
        on = f"{facts.iommu_groups} groups" if facts.iommu_groups else "off"
        clock = f"tuned {facts.tuned}" if facts.tuned else ", ".join(facts.governors)
        lines += [f"  iommu     {on}", f"  power     {clock or 'no cpufreq here'}"]
    esxi = facts.esxi
    if esxi is not None:
        words = [
            "in maintenance mode" if esxi.maintenance else "in service",
            f"power policy {esxi.power or 'none'}",
            *(["vSAN"] if esxi.vsan else []),
            f"{_count(len(esxi.machines), 'machine')} on",
        ]
        lines.append(f"  esxi      {', '.join(words)}")
    counted = facts.platform == "linux" or esxi is not None
    for card in facts.cards:
        lines += _card_lines(card, counted=counted)
    for module, text in facts.options.items():
        shown = "".join(c if c.isprintable() else "?" for c in text)
        lines.append(f"  options   {module}: {shown}")
    return lines


def _card_lines(card: CardFacts, *, counted: bool) -> list[str]:
    """Return the lines of a card; `counted`: whether the numbers of VFs are known."""
    firmware = f"firmware {card.firmware}" if card.firmware else ""
    stored = f"{card.stored} stored" if card.stored else ""
    about = ", ".join(filter(None, (card.psid, firmware, stored)))
    lines = [f"  card      {card.text}" + (f" ({about})" if about else "")]
    for port in card.ports:
        vfs = f"{port.vfs} of {port.total_vfs} VFs" if counted else ""
        mtu = f"MTU {port.mtu}" if port.mtu else ""
        driver = port.driver or "no driver"
        words = (port.netdev or "-", driver, port.link, port.state, vfs, mtu)
        lines.append(f"    {port.address}  " + "  ".join(filter(None, words)))
        lines += [
            f"      vf {vf.number}  node {vf.node}  port {vf.port}  {vf.policy}"
            for vf in port.guids
        ]
    return lines


def status_data(plan: HostsPlan, facts: Mapping[str, PlatformFacts]) -> dict[str, Any]:
    """Return the facts of hosts and their differences from the file, for --json."""
    data = plan_data(plan)
    for entry in data["hosts"]:
        found = facts.get(entry["host"])
        entry["facts"] = None if found is None else asdict(found)
    return data


def plan_data(plan: HostsPlan) -> dict[str, Any]:
    """Return a plan for --json."""
    return {
        "name": plan.name,
        "hosts": [_host_data(host) for host in plan.hosts],
        "waves": [list(wave) for wave in plan.waves],
        "remarks": list(plan.remarks),
    }


def _host_data(host: HostPlan) -> dict[str, Any]:
    return {
        "host": host.name,
        "platform": host.platform,
        "domain": host.domain,
        "reboots": host.reboots,
        "phases": [
            {"steps": [_step_data(step) for step in phase.steps], "reboot": bool(phase.forcing)}
            for phase in host.phases
        ],
        "refusals": [asdict(each) | {"stage": each.stage.value} for each in host.refusals],
        "remarks": [asdict(each) | {"stage": each.stage.value} for each in host.remarks],
        "unread": list(host.unread),
    }


def _step_data(step: Step) -> dict[str, Any]:
    return {
        "stage": step.stage.value,
        "step": step.key,
        "text": step.text,
        "action": step.action.kind,
        "values": asdict(step.action),
        "reboot": step.reboot,
    }
