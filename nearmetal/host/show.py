# SPDX-License-Identifier: Apache-2.0
"""A plan for hosts as lines for a person, and as data for --json. Pure."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nearmetal.host.model import HostFacts
    from nearmetal.host.plan import HostPlan, HostsPlan
    from nearmetal.host.steps import Step


def plan_lines(plan: HostsPlan, goal: str = "as the file says") -> list[str]:
    """Return a plan for a person; `goal`: what hosts are that need nothing."""
    lines: list[str] = []
    for host in plan.hosts:
        lines += host_lines(host, goal)
    lines += [f"note: {remark}" for remark in plan.remarks]
    if len(plan.hosts) > 1 and plan.waves:
        lines.append("order: " + ", then ".join(" with ".join(wave) for wave in plan.waves))
    refused = sum(1 for host in plan.hosts if host.refusals)
    steps = sum(len(host.steps) for host in plan.hosts if not host.refusals)
    reboots = sum(host.reboots for host in plan.hosts if not host.refusals)
    closing = f"plan: {_count(steps, 'step')}, {_count(reboots, 'reboot')}"
    lines.append(closing + (f", {_count(refused, 'host')} refused" if refused else ""))
    return lines


def status_lines(plan: HostsPlan, facts: Mapping[str, HostFacts]) -> list[str]:
    """Return what hosts are, and how they differ from the file, for a person."""
    lines: list[str] = []
    for host in plan.hosts:
        drift = len(host.steps) + len(host.refusals)
        state = f"{_count(drift, 'difference')} from the file" if drift else "as the file says"
        place = ", ".join(filter(None, (host.platform, host.domain)))
        lines.append(f"host {host.name} ({place}): {state}")
        if host.name in facts:
            lines += _facts_lines(facts[host.name])
        lines += [f"  could not read: {text}" for text in host.unread]
        lines += [f"  differs: {r.stage.value}: {r.what}" for r in host.refusals]
        lines += [f"  differs: {step.stage.value}: {step.text}" for step in host.steps]
        lines += [f"  note: {remark.stage.value}: {remark.text}" for remark in host.remarks]
    return [*lines, *(f"note: {remark}" for remark in plan.remarks)]


def _facts_lines(facts: HostFacts) -> list[str]:
    lines = []
    if facts.bios is not None:
        lines.append(
            f"  bios      {facts.bios.vendor or 'of an unnamed vendor'}, "
            f"{len(facts.bios.attributes)} attributes"
        )
    if facts.platform == "linux":
        on = f"{facts.iommu_groups} groups" if facts.iommu_groups else "off"
        lines.append(f"  iommu     {on}")
        clock = f"tuned {facts.tuned}" if facts.tuned else ", ".join(facts.governors)
        lines.append(f"  power     {clock or 'no cpufreq here'}")
    esxi = facts.esxi
    if esxi is not None:
        state = "in maintenance mode" if esxi.maintenance else "in service"
        words = [
            state,
            f"power policy {esxi.power or 'none'}",
            *(["vSAN"] if esxi.vsan else []),
            f"{_count(len(esxi.machines), 'machine')} on",
        ]
        lines.append(f"  esxi      {', '.join(words)}")
    for card in facts.cards:
        about = ", ".join(
            filter(
                None,
                (
                    card.psid,
                    card.firmware and f"firmware {card.firmware}",
                    card.stored and f"{card.stored} stored",
                ),
            )
        )
        lines.append(f"  card      {card.text}" + (f" ({about})" if about else ""))
        for port in card.ports:
            words = [port.netdev or "-", port.driver or "no driver", port.link, port.state]
            counted = facts.platform == "linux" or esxi is not None
            vfs = f"{port.vfs} of {port.total_vfs} VFs" if counted else ""
            mtu = f"MTU {port.mtu}" if port.mtu else ""
            lines.append(f"    {port.address}  " + "  ".join(filter(None, (*words, vfs, mtu))))
            lines += [
                f"      vf {vf.number}  node {vf.node}  port {vf.port}  {vf.policy}"
                for vf in port.guids
            ]
    for module, text in facts.options.items():
        shown = "".join(c if c.isprintable() else "?" for c in text)
        lines.append(f"  options   {module}: {shown}")
    return lines


def status_data(plan: HostsPlan, facts: Mapping[str, HostFacts]) -> dict[str, Any]:
    """As `status_lines`, for --json."""
    data = plan_data(plan)
    for entry in data["hosts"]:
        found = facts.get(entry["host"])
        entry["facts"] = None if found is None else asdict(found)
    return data


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def host_lines(host: HostPlan, goal: str) -> list[str]:
    """Return one host's part."""
    place = ", ".join(filter(None, (host.platform, host.domain)))
    if host.refusals:
        state = "refused, nothing will be written"
    elif not host.steps:
        state = goal
    else:
        state = f"{_count(len(host.steps), 'step')}, {_count(host.reboots, 'reboot')}"
    lines = [f"host {host.name} ({place}): {state}"]
    lines += [f"  could not read: {text}" for text in host.unread]
    for refusal in host.refusals:
        lines.append(f"  {refusal.stage.value:<9} refused: {refusal.what}")
        lines.append(f"            hint: {refusal.hint}")
    if not host.refusals:
        number = 0
        for phase in host.phases:
            for step in phase.steps:
                mark = f"  [reboot {number + 1}]" if step.reboot else ""
                lines.append(f"  {step.stage.value:<9} {step.text}{mark}")
            if phase.forcing:
                number += 1
                lines.append(f"  reboot {number}: {_reasons(phase.forcing)}")
    lines += [f"  note: {remark.stage.value}: {remark.text}" for remark in host.remarks]
    return lines


def _reasons(steps: tuple[Step, ...]) -> str:
    return "; ".join(dict.fromkeys(step.reboot for step in steps))


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
            {
                "steps": [_step_data(step) for step in phase.steps],
                "reboot": bool(phase.forcing),
            }
            for phase in host.phases
        ],
        "refusals": [
            {"stage": r.stage.value, "what": r.what, "hint": r.hint} for r in host.refusals
        ],
        "remarks": [{"stage": r.stage.value, "text": r.text} for r in host.remarks],
        "unread": list(host.unread),
    }


def _step_data(step: Step) -> dict[str, Any]:
    return {
        "stage": step.stage.value,
        "step": step.key,
        "text": step.text,
        "action": type(step.action).__name__,
        "values": asdict(step.action),
        "reboot": step.reboot,
    }
