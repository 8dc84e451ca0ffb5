# SPDX-License-Identifier: Apache-2.0
"""The driver stage: what a Linux host does about its clock. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nearmetal.host.places import HEAD, POWER
from nearmetal.host.steps import Outcome, SetGovernor, SetProfile, Stage, Step, WriteFile

if TYPE_CHECKING:
    from nearmetal.host.hosts_file import Power
    from nearmetal.host.model import HostFacts

_STAGE = Stage.DRIVER


def plan_clock(wanted: Power | None, facts: HostFacts, outcome: Outcome) -> None:
    """Add what makes the governor or the profile so. Neither needs a reboot."""
    if wanted is None:
        return
    if wanted.profile is not None:
        plan_profile(wanted.profile, facts, outcome)
    elif wanted.governor is not None:
        _governor(wanted.governor, facts, outcome)


def plan_profile(profile: str, facts: HostFacts, outcome: Outcome) -> None:
    """Add what makes these the active profiles of tuned; "" is none."""
    if facts.tuned is None:
        outcome.refuse(
            _STAGE,
            f"tuned does not run here, and {_told(profile)} is asked for",
            "install and start tuned, or ask for a governor",
        )
    elif facts.tuned != profile:
        text = f"tuned: {_told(facts.tuned)} -> {_told(profile)}"
        outcome.steps.append(Step(_STAGE, "profile", text, SetProfile(profile, facts.tuned)))


def _told(profile: str) -> str:
    return f"profile {profile}" if profile else "no profile"


def _governor(governor: str, facts: HostFacts, outcome: Outcome) -> None:
    if not facts.governors:
        outcome.remark(
            _STAGE,
            f"governor {governor} is not offered here: the host has no cpufreq "
            "(a virtual machine has none, and BIOS settings can hide it)",
        )
        return
    if facts.tuned:
        outcome.refuse(
            _STAGE,
            f"tuned runs here (profile {facts.tuned}) and sets the governor",
            "ask for a profile instead",
        )
        return
    place = "/sys/devices/system/cpu/cpu*/cpufreq/scaling_governor"
    content = f"{HEAD}w {place} - - - - {governor}\n"
    before = facts.files.get(POWER)
    if content != before:
        file = WriteFile(POWER, content, before, ("true",))
        outcome.steps.append(Step(_STAGE, "power", f"governor at every boot: {governor}", file))
    others = [found for found in facts.governors if found != governor]
    if others:
        text = f"governor: {', '.join(others)} -> {governor}"
        action = SetGovernor(governor, others[0])
        outcome.steps.append(Step(_STAGE, "governor", text, action))
