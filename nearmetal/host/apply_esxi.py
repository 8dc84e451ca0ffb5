# SPDX-License-Identifier: Apache-2.0
"""Executes a plan on one ESXi host: through its vCenter, and over ssh where only its shell can.

As on Linux, the host is read and planned again before every phase. A step enters maintenance mode
before the first write that needs a reboot. Another step leaves it after all others, so that a host
with a fault after its reboot stays out of service.
"""

from __future__ import annotations

import contextlib
from http.client import HTTPException

from nearmetal.core.errors import HostError
from nearmetal.host.esxi_marks import Marks
from nearmetal.host.facts import Reach
from nearmetal.host.facts_esxi import same_boot
from nearmetal.host.hosts_file import HostGroup
from nearmetal.host.plan import Phase
from nearmetal.host.shell import take
from nearmetal.host.stages.esxi import install_command
from nearmetal.host.steps import (
    Burn,
    EnterMaintenance,
    Install,
    LeaveMaintenance,
    SetConfig,
    SetDirectPath,
    SetOptions,
    SetPassthru,
    SetPower,
    Step,
)

INSTALL_S = 600.0
CONNECTED = "connected"
LOST = (OSError, HTTPException)


class EsxiSteps:
    """Executes the steps and reboots of one ESXi host.

    Raises HostError for a host that vCenter does not have, and for a failure: a host in our
    maintenance mode then stays in it.
    """

    stays = "; it stays in maintenance mode"

    def __init__(self, name: str, group: HostGroup, reach: Reach, marks: Marks) -> None:
        self._name = name
        self._group = group
        self._reach = reach
        self._marks = marks
        vsphere = reach.vsphere(name, group)
        if vsphere is None:
            raise HostError("its changes need a vCenter", "add its vCenter under vcenter")
        self._host = vsphere

    def keep_tried(self, phase: Phase, boot: str) -> None:
        """Keep the steps of a reboot that is about to end this boot."""
        self._marks.reboot(self._name, {step.key: step.text for step in phase.forcing}, boot)

    def refuse_again(self, phase: Phase, boot: str) -> None:
        """Refuse to reboot again for a change that a reboot did not bring."""
        again = phase.again(self._marks.tried(self._name, boot))
        if again is not None:
            # The user who runs this again has looked at it.
            self._marks.retry(self._name)
            raise HostError(
                f"after its reboot: {again.text}{self.stays}",
                "set SR-IOV in the BIOS, and SRIOV_EN and NUM_OF_VFS in the card's firmware; "
                "then run the same command again",
            )

    def refuse_running(self) -> None:
        """Do nothing: machines move away when the host enters maintenance mode."""

    def take(self, step: Step) -> None:
        """Execute one step."""
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
            case SetDirectPath(address=address, enabled=enabled):
                host.set_directpath(address, enabled=enabled)
            case SetPower(policy=policy):
                host.set_power(policy)
            case SetConfig() | Burn():
                take(self._reach.shell(self._name, self._group), step, alone=False)
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

    def reboot(self) -> None:
        """Reboot."""
        self._host.reboot()

    def is_back(self, boot: str) -> bool:
        """Return whether the host runs, in another boot than this."""
        state, now = self._host.look()
        return state == CONNECTED and bool(now) and not same_boot(now, boot)

    def settle(self) -> None:
        """Make the host look at its PCI devices again."""
        self._host.refresh()
