# SPDX-License-Identifier: Apache-2.0
"""Executes plans: phase by phase, journalled, the canary first. apply_esxi has the part of ESXi.

Before every phase a host is read and planned again. So a second run continues a run that was
interrupted anywhere, also across reboots: finished steps are not in its plan.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from threading import Event as ThreadEvent
from threading import Lock
from typing import Any

from nearmetal.core.errors import CommandError, HostError, NearmetalError, PasswordError
from nearmetal.core.files import read_tables, replace_tables
from nearmetal.core.journal import Event, Journal
from nearmetal.core.lock import locked
from nearmetal.core.progress import Progress, Silent
from nearmetal.host.apply_esxi import EsxiSteps
from nearmetal.host.esxi_marks import Marks
from nearmetal.host.facts import Reach, read_host, read_hosts
from nearmetal.host.hosts_file import HostGroup, HostsFile, fold
from nearmetal.host.model import PlatformFacts
from nearmetal.host.names import failure
from nearmetal.host.places import mtu_in, vfs_in
from nearmetal.host.plan import HostPlan, HostsPlan, Phase, plan_host, plan_hosts, refuse
from nearmetal.host.saved import Begun, SavedHostsPlan
from nearmetal.host.shell import ENVIRONMENT, STEP_S, Shell, take
from nearmetal.host.slurm import Service
from nearmetal.host.stages.firmware import opens_more
from nearmetal.host.steps import (
    STATELESS,
    Burn,
    ByHand,
    EnterMaintenance,
    HostAction,
    SetArguments,
    SetBios,
    SetConfig,
    SetMtu,
    SetVfs,
    Step,
    Wait,
    WriteFile,
)

Agree = Callable[[HostsPlan], None]

MAX_ROUNDS = 6

_RESTORED = "restored"

_MACHINES = """\
for f in /proc/[0-9]*/comm; do
  read -r name <"$f" 2>/dev/null || continue
  case $name in
  qemu*|kvm) echo "$name" ;;
  slurmstepd) tr '\\0' ' ' <"${f%comm}cmdline" 2>/dev/null | grep -q '^[^ ]* infinity ' || echo "$name" ;;
  esac
done
"""
"""slurmd has a permanent `slurmstepd infinity` under control groups of version 2."""

_REBOOT = "nohup sh -c 'sleep 1; systemctl reboot || reboot' >/dev/null 2>&1 </dev/null &\n"


@dataclass(frozen=True)
class Patience:
    """Limit of a reboot, and the interval of looks at the host.

    `by_hand_done`: steps of a plan for a person are done, and in force after the next reboot.
    """

    reboot_s: float = 900.0
    look_s: float = 2.0
    by_hand_done: bool = False


class LinuxSteps:
    """Executes the steps and reboots of one Linux host. `stays`: its state after a failure."""

    stays = ""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        self._tried: dict[str, str] = {}

    def keep_tried(self, phase: Phase, boot: str) -> None:  # noqa: ARG002 - in this run only
        """Keep the steps of a reboot that is about to end this boot."""
        self._tried |= {step.key: step.text for step in phase.forcing}

    def refuse_again(self, phase: Phase, boot: str) -> None:  # noqa: ARG002 - in this run only
        """Refuse to reboot again for a change that a reboot did not bring."""
        again = phase.again(self._tried)
        if again is not None:
            raise HostError(
                f"after its reboot: {again.text}",
                "this run does not reboot again for it: some settings and firmware start "
                "only after a power cycle; run the command again after that",
            )

    def refuse_running(self) -> None:
        """Refuse a reboot that would end jobs or virtual machines."""
        running = self._shell.script(_MACHINES, timeout_s=60).text.split()
        if "slurmstepd" in running:
            raise HostError(
                "jobs of Slurm run on it", "add slurm: to the file, so that apply drains the node"
            )
        if running:
            raise HostError(
                f"{len(running)} virtual machines run on it ({running[0]})",
                "move or end them: this host must reboot",
            )

    def take(self, step: Step) -> None:
        """Execute one step."""
        take(self._shell, step)

    def reboot(self) -> None:
        """Begin a reboot."""
        self._shell.script(ENVIRONMENT + _REBOOT, timeout_s=STEP_S)

    def is_back(self, boot: str) -> bool:
        """Return whether the host runs, in another boot than this."""
        now = self._shell.script("cat /proc/sys/kernel/random/boot_id\n", timeout_s=30)
        return now.code == 0 and now.text.strip() not in ("", boot)

    def settle(self) -> None:
        """Wait for udev: ssh answers before udev has made every VF."""
        self._shell.script(ENVIRONMENT + "udevadm settle --timeout=120\n", timeout_s=STEP_S)


class Earlier:
    """The first action on each place of a host, with the value before it."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "before.json"
        self._lock = Lock()

    def read(self) -> dict[str, dict[str, Any]]:
        """Return everything; raises HostError for a damaged file."""
        return read_tables(self.path, "move it away; the values before apply are then lost")

    def keep(self, host: str, place: str, value: Any) -> None:
        """Keep a value, on disk before this returns, unless the place has one.

        Later kernel arguments are also kept: each is added to the place.
        """
        with self._lock:
            found = self.read()
            entry = found.setdefault(host, {}).setdefault(place, value)
            changed = entry is value or entry.pop(_RESTORED, None) is not None
            if entry is not value and value.get("action") == SetArguments.__name__:
                changed = _widened(entry, value) or changed
            if changed:
                replace_tables(self.path, found)

    def mark(self, host: str, place: str, boot: str) -> None:
        """Note the boot in which a place was restored; the next `keep` of it drops this."""
        with self._lock:
            found = self.read()
            found[host][place][_RESTORED] = boot
            replace_tables(self.path, found)

    def forget(self, host: str, but: Sequence[str]) -> None:
        """Drop the values of a host, except for some places."""
        with self._lock:
            found = self.read()
            left = {place: v for place, v in found.pop(host, {}).items() if place in but}
            replace_tables(self.path, found | ({host: left} if left else {}))


def _widened(entry: dict[str, Any], later: dict[str, Any]) -> bool:
    """Add later arguments; of each name the first earlier value is kept."""
    known = {word.partition("=")[0] for word in entry["arguments"]}
    more = [word for word in later["arguments"] if word not in entry["arguments"]]
    entry["arguments"] += more
    entry["before"] += [word for word in later["before"] if word.partition("=")[0] not in known]
    return bool(more)


class Applier:
    """One `host apply` of one hosts file."""

    verb = "host apply"
    goal = "as the file says"

    def __init__(
        self,
        file: HostsFile,
        reach: Reach,
        directory: Path,
        patience: Patience | None = None,
    ) -> None:
        """Read and write nothing yet. `directory`: for the state of this file."""
        self.progress: Progress = Silent()
        self._file = file
        self._reach = reach
        self._directory = directory
        self._patience = patience or Patience()
        self._saved: SavedHostsPlan | None = None
        self._begun = Begun(directory)
        self._agreed: dict[str, HostPlan] = {}
        self._journal = Journal(directory)
        self._earlier = Earlier(directory)
        self._marks = Marks(directory)
        self._writing = Lock()
        self._stop = ThreadEvent()

    def apply(self, agree: Agree | None = None, saved: SavedHostsPlan | None = None) -> HostsPlan:
        """Bring every host to its plan; returns the plan of the beginning.

        `agree` sees a plan with steps before the first of them, and raises to refuse it. `saved`:
        the plan that a user has seen before; it is refused if the hosts have changed since.

        Raises HostError for a refusal, before any write, and for a failed host: then the other
        hosts of its wave are finished, and no further wave begins.
        """
        with locked(self._directory / "lock", f"hosts file {self._file.name}"):
            plan, facts = self.look()
            refuse(plan, self._file, by_hand_done=self._patience.by_hand_done)
            if saved is not None and not plan.empty:
                saved.check(plan, facts, self._begun.of(saved))
            if agree is not None and not plan.empty:
                agree(plan)
            self._saved = saved
            self._agreed = {host.name: host for host in plan.hosts}
            groups = dict(self._file.each())
            busy = {host.name for host in plan.hosts if host.steps}
            for name, group in groups.items():
                if name not in busy:
                    # An earlier run may have ended between its last check and this, or between the
                    # drain and the first step: then the plan of a rollback is empty.
                    self._back_in_service(name, group)
            for number, wave in enumerate(plan.waves, 1):
                failures = self._wave(wave, groups)
                if failures:
                    left = [name for later in plan.waves[number:] for name in later]
                    raise failure("", failures, f"; not begun: {fold(left)}" if left else "")
            self._finish()
        return plan

    def plan(self) -> HostsPlan:
        """Read every host; returns the missing steps."""
        return self.look()[0]

    def look(self) -> tuple[HostsPlan, dict[str, PlatformFacts]]:
        """Read every host; returns the missing steps, and the facts of those that answered."""
        return self._planned(self._file)

    def _planned(self, file: HostsFile) -> tuple[HostsPlan, dict[str, PlatformFacts]]:
        facts, unreached = read_hosts(file, self._reach)
        return plan_hosts(file, facts, unreached, self._plan), self._marks.on_all(facts)

    def _plan(self, name: str, group: HostGroup, facts: PlatformFacts) -> HostPlan:
        """Return the missing steps of one host."""
        facts = self._marks.on(name, facts)
        kept = self._earlier.read().get(name, {}).get("kernel")
        if isinstance(kept, dict) and kept.get(_RESTORED) == facts.boot:
            # After an interrupted rollback, removed arguments are in force until the next boot.
            gone = kept.get("arguments", facts.cmdline)
            facts = replace(facts, cmdline=tuple(w for w in facts.cmdline if w not in gone))
        return plan_host(name, group, facts)

    def _keep(self, name: str, facts: PlatformFacts, step: Step) -> None:
        """Keep the present value before a step changes it."""
        self._keep_action(name, step.key, step.action)
        if not isinstance(step.action, WriteFile):
            return
        # A boot makes VFs and MTUs of a file, so no other step keeps their present numbers.
        wanted = vfs_in(step.action.path, step.action.content)
        mtus = mtu_in(step.action.path, step.action.content)
        for port in (port for card in facts.cards for port in card.ports):
            if port.address in wanted:
                vfs = SetVfs(port.address, wanted[port.address], port.vfs)
                self._keep_action(name, f"vfs {port.address}", vfs)
            if port.address in mtus and port.mtu:
                mtu = SetMtu(port.address, mtus[port.address], port.mtu, vfs_before=port.vf_mtus)
                self._keep_action(name, f"mtu {port.address}", mtu)

    def _keep_action(self, name: str, place: str, action: HostAction) -> None:
        self._earlier.keep(name, place, {"action": action.kind, **asdict(action)})

    def _taken(self, name: str, facts: PlatformFacts, step: Step) -> None:
        """Note facts of an executed step that the host itself does not show."""

    def _finish(self) -> None:
        """Do the rest after every host is as planned."""
        self._marks.forget(name for name, _ in self._file.each())
        self._begun.forget()

    def _wave(
        self, wave: tuple[str, ...], groups: dict[str, HostGroup]
    ) -> list[tuple[str, str, str]]:
        """Bring the hosts of a wave to their plans; returns failures: host, text and hint."""
        with ThreadPoolExecutor(len(wave)) as pool:
            try:
                answers = list(pool.map(lambda name: self._guarded(name, groups[name]), wave))
            except BaseException:
                # For example Ctrl-C: the hosts' threads end after their present step.
                self._stop.set()
                raise
        return [answer for answer in answers if answer is not None]

    def _guarded(self, name: str, group: HostGroup) -> tuple[str, str, str] | None:
        try:
            self._host(name, group)
        except (HostError, CommandError, PasswordError) as error:
            text = error.message.removeprefix(f"{name}: ")
            self.progress.step(f"{name}: failed: {text}")
            return name, text, error.hint
        self.progress.step(f"{name}: {self.goal}")
        return None

    def _host(self, name: str, group: HostGroup) -> None:
        host: LinuxSteps | EsxiSteps
        if group.platform == "esxi":
            host = EsxiSteps(name, group, self._reach, self._marks)
        else:
            host = LinuxSteps(self._reach.shell(name, group))
        by_hand_done = self._patience.by_hand_done
        for _ in range(MAX_ROUNDS):
            facts = read_host(name, group, self._reach)
            plan = self._plan(name, group, facts)
            if plan.refusals:
                raise HostError(plan.refusals[0].what, plan.refusals[0].hint)
            if not plan.phases:
                self._marks.forget([name])
                self._back_in_service(name, group)
                return
            phase = plan.phases[0]
            self._refuse_more(name, phase)
            host.refuse_again(phase, facts.boot)
            by_hand = [step for step in phase.steps if isinstance(step.action, ByHand)]
            if by_hand and not by_hand_done:
                raise HostError(by_hand[0].text, "do that, then add --by-hand-done")
            if self._saved is not None:
                self._begun.add(self._saved, name)
            self._phase(name, group, host, facts, phase)
            by_hand_done = by_hand_done and not phase.forcing
        raise HostError(
            f"still not {self.goal} after {MAX_ROUNDS} rounds: {plan.steps[0].text}",
            "nearmetal host status shows what differs",
        )

    def _refuse_more(self, name: str, phase: Phase) -> None:
        """Refuse a burn or a first reboot that nobody has agreed to: an earlier step revealed it."""
        agreed = self._agreed[name]
        known = {step.key for step in agreed.steps}
        burns = [s for s in phase.steps if isinstance(s.action, Burn) and s.key not in known]
        more = burns or (phase.forcing if not agreed.reboots else ())
        if more:
            raise HostError(
                f"not in the plan of this run: {more[0].text}",
                "run the command again, and look at the new plan",
            )

    def _phase(
        self,
        name: str,
        group: HostGroup,
        host: LinuxSteps | EsxiSteps,
        facts: PlatformFacts,
        phase: Phase,
    ) -> None:
        staged = {
            s.action.attribute: s.action.value for s in phase.steps if isinstance(s.action, SetBios)
        }
        redfish = self._reach.redfish(name, group)
        if staged and redfish is None:
            raise HostError("it has no BMC", "add bmc to the file")
        if phase.forcing:
            self._out_of_service(name, group, host)
        for step in phase.steps:
            # Maintenance mode comes first: its stage is the first of a phase.
            if isinstance(step.action, EnterMaintenance):
                self._noted(name, step.text, partial(host.take, step))
            elif not isinstance(step.action, STATELESS):
                self._keep(name, facts, step)
        if staged and redfish is not None:
            # In one request: controllers make a job of each, and refuse a second job.
            self._noted(name, f"stage {', '.join(staged)}", lambda: redfish.stage(staged))
        for step in phase.steps:
            if not isinstance(step.action, SetBios | Wait | ByHand | EnterMaintenance):
                self._noted(name, step.text, partial(host.take, step))
                self._taken(name, facts, step)
        if phase.forcing:
            phase = self._joined(name, group, host, phase)
            # A virtual machine may have started during the minutes of a burn.
            host.refuse_running()
            host.keep_tried(phase, facts.boot)
            self._noted(name, "reboot", lambda: self._reboot(name, group, host, facts.boot))

    def _joined(
        self, name: str, group: HostGroup, host: LinuxSteps | EsxiSteps, phase: Phase
    ) -> Phase:
        """Execute the firmware settings that became visible in this phase: one reboot serves both.

        Returns the phase with them.
        """
        while opens_more(phase.steps):
            facts = read_host(name, group, self._reach)
            plan = self._plan(name, group, facts)
            known = {step.key for step in phase.steps}
            more = tuple(
                step
                for step in (plan.phases[0].steps if plan.phases and not plan.refusals else ())
                if isinstance(step.action, SetConfig) and step.key not in known
            )
            for step in more:
                self._keep(name, facts, step)
                self._noted(name, step.text, partial(host.take, step))
            phase = replace(phase, steps=(*phase.steps, *more))
            if not more:
                break
        return phase

    def _service(self, name: str, group: HostGroup) -> Service | None:
        """Return the host as a node of Slurm; None if the file does not have `slurm`."""
        if group.slurm is None:
            return None
        node = group.slurm.node.replace("{host}", name)
        return Service(self._reach.scheduler(), node, self._file.name)

    def _out_of_service(self, name: str, group: HostGroup, host: LinuxSteps | EsxiSteps) -> None:
        """Drain the host in Slurm, unless it is drained, and check that nothing runs on it.

        Its jobs end first, because they may have virtual machines. If anything still runs, the host
        returns to service, unless an earlier phase or run has changed it: jobs must not run on a
        changed host.
        """
        service = self._service(name, group)
        if service is None or group.slurm is None:
            host.refuse_running()
            return
        ours = not service.drained()
        if ours:
            self._noted(name, f"drain {service.node} in Slurm", service.drain)
        try:
            service.wait_idle(group.slurm.drain, self._pause)
            host.refuse_running()
        except HostError:
            if ours or not self._earlier.read().get(name):
                # The first error is more important than an error of Slurm.
                with contextlib.suppress(HostError):
                    self._resume(name, service)
            raise

    def _back_in_service(self, name: str, group: HostGroup) -> None:
        """Allow jobs again on a host that is as planned, if a run for this file drained it."""
        service = self._service(name, group)
        if service is not None:
            self._check_stop()
            self._resume(name, service)

    def _resume(self, name: str, service: Service) -> None:
        """Resume a node that a run for this file has drained, also after an interrupt."""
        if service.drained_by_us():
            self._do(f"{name}: resume {service.node} in Slurm", service.resume)

    def _pause(self) -> None:
        self._stop.wait(self._patience.look_s)
        self._check_stop()

    def _noted(self, name: str, text: str, work: Callable[[], object]) -> None:
        self._check_stop()
        self._do(f"{name}: {text}", work)

    def _do(self, step: str, work: Callable[[], object]) -> None:
        self.progress.step(step)
        self._note(step, Event.BEGIN)
        try:
            work()
        except NearmetalError as error:
            self._note(step, Event.FAILED, error.message)
            raise
        self._note(step, Event.DONE)

    def _check_stop(self) -> None:
        if self._stop.is_set():
            raise HostError("interrupted", "run the same command again to continue")

    def _note(self, step: str, event: Event, detail: str = "") -> None:
        with self._writing:
            self._journal.write(self.verb, step, event, detail)

    def _reboot(self, name: str, group: HostGroup, host: LinuxSteps | EsxiSteps, boot: str) -> None:
        host.reboot()
        deadline = time.monotonic() + self._patience.reboot_s
        while time.monotonic() < deadline:
            self._pause()
            try:
                if not host.is_back(boot):
                    continue
            except HostError:
                continue
            host.settle()
            return
        where = f", see {group.bmc.address.replace('{host}', name)}" if group.bmc else ""
        raise HostError(
            f"did not come back within {self._patience.reboot_s:g} s of its reboot{host.stays}",
            f"look at its console{where}; when it is back, run the same command again",
        )
