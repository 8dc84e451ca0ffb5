# SPDX-License-Identifier: Apache-2.0
"""From facts to phases: all stages plan, then their reboots are gathered. Pure.

A phase ends with at most one reboot. A step is in the first phase in which all steps that it waits
for are in force. So there are only as many reboots as in the longest chain of steps that wait for
each other across a reboot.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from nearmetal.core.errors import HostError
from nearmetal.host.cards import pair
from nearmetal.host.hosts_file import HostGroup, HostsFile, fold
from nearmetal.host.model import PlatformFacts
from nearmetal.host.names import failure
from nearmetal.host.stages.bios import plan_bios
from nearmetal.host.stages.devices import plan_devices
from nearmetal.host.stages.driver import plan_checks, plan_driver
from nearmetal.host.stages.esxi import plan_by_hand, plan_esxi, plan_maintenance
from nearmetal.host.stages.firmware import plan_firmware, plan_packages, version_key
from nearmetal.host.stages.outside import plan_outside
from nearmetal.host.steps import ByHand, Outcome, Refusal, Remark, Stage, Step, Wait


@dataclass(frozen=True)
class Phase:
    """Steps that one reboot ends, or none."""

    steps: tuple[Step, ...]

    @property
    def forcing(self) -> tuple[Step, ...]:
        """The steps that need the reboot."""
        return tuple(step for step in self.steps if step.reboot)

    def again(self, tried: Mapping[str, str]) -> Step | None:
        """Return a step that still needs a reboot after one. `tried`: texts by key.

        The same key with another text is another wish: the file was changed meanwhile.
        """
        for step in self.forcing:
            if step.key in tried and (
                isinstance(step.action, Wait) or step.text == tried[step.key]
            ):
                return step
        return None


@dataclass(frozen=True)
class HostPlan:
    """The missing steps of one host. With a refusal, no step is executed."""

    name: str
    platform: str
    domain: str
    phases: tuple[Phase, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    remarks: tuple[Remark, ...] = ()
    unread: tuple[str, ...] = ()

    @property
    def steps(self) -> tuple[Step, ...]:
        """All steps, in order."""
        return tuple(step for phase in self.phases for step in phase.steps)

    @property
    def reboots(self) -> int:
        """The number of reboots."""
        return sum(1 for phase in self.phases if phase.forcing)


@dataclass(frozen=True)
class HostsPlan:
    """The missing steps of all hosts. `waves`: hosts that may reboot together, the canary first."""

    name: str
    hosts: tuple[HostPlan, ...]
    waves: tuple[tuple[str, ...], ...]
    remarks: tuple[str, ...] = ()

    @property
    def empty(self) -> bool:
        """Whether every host is as the file says."""
        return not any(host.steps or host.refusals for host in self.hosts)

    @property
    def refused(self) -> bool:
        """Whether a host is refused."""
        return any(host.refusals for host in self.hosts)


def plan_hosts(
    file: HostsFile,
    facts: Mapping[str, PlatformFacts],
    unreached: Mapping[str, tuple[str, str]] | None = None,
    plan: Callable[[str, HostGroup, PlatformFacts], HostPlan] | None = None,
) -> HostsPlan:
    """Return the missing steps of all hosts, by `plan_host` or another planner of one host.

    Every host is in `facts`, or in `unreached` with the reason and the hint.
    """
    gone, one = unreached or {}, plan or plan_host

    def planned(name: str, group: HostGroup) -> HostPlan:
        if name not in gone:
            return one(name, group, facts[name])
        refusal = Refusal(Stage.REACH, *gone[name])
        return HostPlan(name, group.platform, group.domain or "", refusals=(refusal,))

    hosts = tuple(planned(name, group) for name, group in file.each())
    busy = [host for host in hosts if host.steps and not host.refusals]
    order = waves(busy, file.canary, file.limits.reboots, file.limits.per_domain)
    return HostsPlan(file.name, hosts, order, _mixed(list(facts.values())))


def plan_host(name: str, group: HostGroup, facts: PlatformFacts) -> HostPlan:
    """Return the missing steps of one host."""
    outcome = Outcome()
    plan_bios(group.bios, facts, outcome)
    plan_packages(group, facts, outcome)
    pairs = pair(group, facts, outcome)
    esxi = facts.esxi
    if esxi is None or esxi.has_shell:
        plan_firmware(group, facts, pairs, outcome)
    else:
        plan_by_hand(pairs, outcome)
    if esxi is None:
        plan_driver(group, facts, pairs, outcome)
    else:
        plan_esxi(group, facts, esxi, pairs, outcome)
    plan_devices(group, facts, pairs, outcome)
    plan_outside(group, facts, pairs, outcome)
    plan_checks(group, facts, pairs, outcome)
    if esxi is not None:
        plan_maintenance(group, esxi, outcome)
    outcome.remarks.sort(key=lambda remark: remark.stage.rank)
    return finished(name, group, facts, outcome)


def finished(name: str, group: HostGroup, facts: PlatformFacts, outcome: Outcome) -> HostPlan:
    """Return the outcome of the stages as the plan of a host."""
    return HostPlan(
        name,
        group.platform,
        group.domain or "",
        gather(outcome.steps),
        tuple(outcome.refusals),
        tuple(outcome.remarks),
        facts.unread,
    )


def refuse(plan: HostsPlan, file: HostsFile, *, by_hand_done: bool = False) -> None:
    """Raise HostError if `apply` must not write anything."""
    refusals = [(host.name, refusal) for host in plan.hosts for refusal in host.refusals]
    alone = [n for n, group in file.each() if group.platform == "esxi" and group.vcenter is None]
    esxi = [host.name for host in plan.hosts if host.name in alone and host.steps]
    by_hand = [
        (host.name, step.text, "add ssh to the file, or execute these steps and use --by-hand-done")
        for host in plan.hosts
        for step in host.steps
        if isinstance(step.action, ByHand)
    ]
    if refusals:
        faults = ((name, refusal.what, refusal.hint) for name, refusal in refusals)
        raise failure("nothing was written:", faults)
    if esxi:
        raise HostError(
            f"nothing was written: {fold(esxi)} run ESXi, which apply changes through a vCenter",
            "add vcenter to the file; nearmetal host plan shows the settings to make there",
        )
    if by_hand and not by_hand_done:
        raise failure("nothing was written, because a person comes first:", by_hand)


def gather(steps: Sequence[Step]) -> tuple[Phase, ...]:
    """Put steps into as few phases as their order allows."""
    by_key = {step.key: step for step in steps}
    placed: dict[str, int] = {}

    def place(step: Step) -> int:
        if step.key not in placed:
            placed[step.key] = 0  # ends a circle, which would be a defect of a stage
            before = [by_key[key] for key in step.after if key in by_key]
            placed[step.key] = max((place(b) + (1 if b.reboot else 0) for b in before), default=0)
        return placed[step.key]

    last = max((place(step) for step in steps), default=-1)
    return tuple(
        Phase(tuple(sorted((s for s in steps if placed[s.key] == n), key=lambda s: s.stage.rank)))
        for n in range(last + 1)
    )


def waves(
    hosts: Sequence[HostPlan], canary: str | None, at_once: int, per_domain: int
) -> tuple[tuple[str, ...], ...]:
    """Return the hosts that go together: the canary alone, then as many as the limits allow.

    A host without a domain shares no domain.
    """
    if not hosts:
        return ()
    first = next((host for host in hosts if host.name == canary), hosts[0])
    left = [host for host in hosts if host is not first]
    result: list[tuple[str, ...]] = [(first.name,)]
    while left:
        wave: list[HostPlan] = []
        for host in left:
            mates = sum(1 for mate in wave if host.domain and mate.domain == host.domain)
            if len(wave) < at_once and mates < per_domain:
                wave.append(host)
        left = [host for host in left if host not in wave]
        result.append(tuple(host.name for host in wave))
    return tuple(result)


def _mixed(facts: Sequence[PlatformFacts]) -> tuple[str, ...]:
    """Return remarks on boards with different firmware."""
    versions: dict[str, dict[str, list[str]]] = {}
    for host in facts:
        for card in host.cards:
            if card.psid and card.firmware:
                versions.setdefault(card.psid, {}).setdefault(card.firmware, []).append(host.name)
    return tuple(
        f"boards {psid} have different firmware: "
        + ", ".join(
            f"{version} on {', '.join(dict.fromkeys(found[version]))}"
            for version in sorted(found, key=version_key)
        )
        for psid, found in sorted(versions.items())
        if len(found) > 1
    )
