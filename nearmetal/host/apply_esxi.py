# SPDX-License-Identifier: Apache-2.0
"""Executes a plan on one ESXi host: through its vCenter, and over ssh where only its shell can.

As on Linux, the host is read and planned again before every phase. A step enters maintenance mode
before the first write that needs a reboot. Another step leaves it after all others, so that a host
with a fault after its reboot stays out of service.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from http.client import HTTPException
from typing import TYPE_CHECKING

from nearmetal.core.errors import HostError
from nearmetal.host.facts import read_host
from nearmetal.host.facts_esxi import same_boot
from nearmetal.host.stages.esxi import install_command
from nearmetal.host.steps import (
    STATELESS,
    Burn,
    ByHand,
    EnterMaintenance,
    Install,
    LeaveMaintenance,
    SetBios,
    SetConfig,
    SetOptions,
    SetPassthru,
    SetPower,
    Step,
    Wait,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from nearmetal.host.apply import Patience
    from nearmetal.host.esxi_marks import Marks
    from nearmetal.host.facts import Reach
    from nearmetal.host.hosts_file import HostGroup
    from nearmetal.host.model import PlatformFacts
    from nearmetal.host.plan import HostPlan, Phase
    from nearmetal.host.shell import Shell
    from nearmetal.host.vsphere_host import VsphereHost

MAX_ROUNDS = 6
INSTALL_S = 600.0
CONNECTED = "connected"
LOST = (OSError, HTTPException)


@dataclass(frozen=True)
class Hooks:
    """Functions of the `apply` or `rollback`: they plan, keep old values, and write the journal.

    `take`: executes a step in a shell. `check`: raises when all hosts must stop. `wait`: sleeps
    for seconds, or until all hosts must stop.
    """

    plan: Callable[[str, HostGroup, PlatformFacts], HostPlan]
    keep: Callable[[str, PlatformFacts, Step], None]
    taken: Callable[[str, PlatformFacts, Step], None]
    noted: Callable[[str, str, Callable[[], object]], None]
    take: Callable[[Shell, Step], None]
    check: Callable[[], None]
    wait: Callable[[float], object]
    marks: Marks
    times: Patience


class EsxiRun:
    """One host, until it is as planned. Raises HostError for a host that vCenter does not have."""

    def __init__(self, name: str, group: HostGroup, reach: Reach, hooks: Hooks) -> None:
        self._name = name
        self._group = group
        self._reach = reach
        self._hooks = hooks
        self._marks = hooks.marks
        self._times = hooks.times
        self._rebooted = False
        vsphere = reach.vsphere(name, group)
        if vsphere is None:
            raise HostError("its changes need a vCenter", "add its vCenter under vcenter")
        self._host: VsphereHost = vsphere

    def carry_out(self) -> None:
        """Raises HostError for a failure; a host in our maintenance mode then stays in it."""
        for _ in range(MAX_ROUNDS):
            facts = read_host(self._name, self._group, self._reach)
            plan = self._hooks.plan(self._name, self._group, facts)
            if plan.refusals:
                raise HostError(plan.refusals[0].what, plan.refusals[0].hint)
            if not plan.phases:
                self._marks.forget([self._name])
                return
            self._check_tried(facts, plan.phases[0])
            self._phase(facts, plan.phases[0])
        raise HostError(
            f"still not done after {MAX_ROUNDS} rounds: {plan.steps[0].text}",
            "nearmetal host status shows the differences",
        )

    def _check_tried(self, facts: PlatformFacts, phase: Phase) -> None:
        """Refuse to reboot again for a change that a reboot did not bring."""
        again = phase.again(self._marks.tried(self._name, facts.boot))
        if again is not None:
            # The user who runs this again has looked at it.
            self._marks.retry(self._name)
            raise HostError(
                f"after its reboot: {again.text}; it stays in maintenance mode",
                "set SR-IOV in the BIOS, and SRIOV_EN and NUM_OF_VFS in the card's firmware; "
                "then run the same command again",
            )

    def _phase(self, facts: PlatformFacts, phase: Phase) -> None:
        by_hand = [step for step in phase.steps if isinstance(step.action, ByHand)]
        if by_hand and (self._rebooted or not self._times.by_hand_done):
            raise HostError(by_hand[0].text, "do that, then add --by-hand-done")
        for step in phase.steps:
            if isinstance(step.action, EnterMaintenance):
                self._take(step)
        for step in phase.steps:
            if not isinstance(step.action, STATELESS):
                self._hooks.keep(self._name, facts, step)
        self._stage_bios(phase)
        for step in phase.steps:
            if not isinstance(step.action, SetBios | Wait | ByHand | EnterMaintenance):
                self._take(step)
                self._hooks.taken(self._name, facts, step)
        if phase.forcing:
            steps = {step.key: step.text for step in phase.forcing}
            self._marks.reboot(self._name, steps, facts.boot)
            self._hooks.noted(self._name, "reboot", lambda: self._reboot(facts.boot))
            self._rebooted = True

    def _stage_bios(self, phase: Phase) -> None:
        staged = {
            s.action.attribute: s.action.value for s in phase.steps if isinstance(s.action, SetBios)
        }
        if not staged:
            return
        redfish = self._reach.redfish(self._name, self._group)
        if redfish is None:
            raise HostError("it has no BMC", "add its BMC under bmc")
        self._hooks.noted(self._name, f"stage {', '.join(staged)}", lambda: redfish.stage(staged))

    def _take(self, step: Step) -> None:
        self._hooks.noted(self._name, step.text, lambda: self._do(step))

    def _do(self, step: Step) -> None:
        host = self._host
        match step.action:
            case EnterMaintenance(vsan=vsan):
                self._enter(vsan)
            case LeaveMaintenance():
                host.leave_maintenance()
            case SetOptions(module=module, options=options):
                host.set_options(module, options)
            case SetPassthru(address=address, count=count):
                host.set_vfs(address, count)
            case SetPower(policy=policy):
                host.set_power(policy)
            case SetConfig() | Burn():
                self._hooks.take(self._reach.shell(self._name, self._group), step)
            case Install() as action:
                self._install(action)
            case _:
                raise HostError(f"{step.text}: this step does not exist on ESXi")

    def _enter(self, vsan: str) -> None:
        before = self._marks.is_ours(self._name)
        self._marks.enter(self._name)
        try:
            self._host.enter_maintenance(vsan)
        except HostError as error:
            # Our task continues after a run that was killed or lost the vCenter.
            ours = before or isinstance(error.__cause__, LOST)
            # After this error a user may enter it by hand: that maintenance mode is not ours.
            with contextlib.suppress(HostError):
                continues = ours and self._host.is_entering()
                if not continues and not self._host.in_maintenance():
                    self._marks.not_entered(self._name)
            raise

    def _install(self, action: Install) -> None:
        shell = self._reach.shell(self._name, self._group)
        answer = shell.script(f"{install_command(action)} 2>&1\n", timeout_s=INSTALL_S)
        if answer.code:
            raise HostError(
                f"{action.name}: {' '.join(answer.text.split())[-300:]}",
                "fix the file: the message of esxcli gives the reason",
            )

    def _reboot(self, boot: str) -> None:
        self._host.reboot()
        deadline = time.monotonic() + self._times.reboot_s
        while time.monotonic() < deadline:
            self._hooks.wait(self._times.look_s)
            self._hooks.check()
            try:
                state, now = self._host.look()
            except HostError:
                continue  # vCenter itself may be a machine that moves now
            if state == CONNECTED and now and not same_boot(now, boot):
                self._host.refresh()
                return
        bmc = self._group.bmc
        where = f", see {bmc.address.replace('{host}', self._name)}" if bmc else ""
        raise HostError(
            f"did not come back within {self._times.reboot_s:g} s of its reboot; it is in "
            "maintenance mode",
            f"look at its console{where}; when it is back, run the same command again",
        )
