# SPDX-License-Identifier: Apache-2.0
"""From facts to phases: every stage speaks, then reboots are gathered. Pure.

A phase is what is done before one reboot. A step stands in the first phase in which everything it
waits for has taken effect, so there are as many reboots as the longest chain of steps that wait
for one another across a reboot, and no more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nearmetal.host.cards import pair
from nearmetal.host.stages.bios import plan_bios
from nearmetal.host.stages.driver import plan_driver
from nearmetal.host.stages.esxi import plan_by_hand, plan_esxi, plan_maintenance
from nearmetal.host.stages.firmware import plan_firmware, plan_packages, version_key
from nearmetal.host.stages.outside import plan_outside
from nearmetal.host.stages.vfs import plan_checks
from nearmetal.host.steps import Outcome, Refusal, Remark, Stage, Step, Wait

if TYPE_CHECKING:
    from nearmetal.host.hosts_file import HostGroup, HostsFile
    from nearmetal.host.model import HostFacts


@dataclass(frozen=True)
class Phase:
    """Steps, and whether a reboot ends them."""

    steps: tuple[Step, ...]

    @property
    def forcing(self) -> tuple[Step, ...]:
        """The steps that force the reboot."""
        return tuple(step for step in self.steps if step.reboot)

    def again(self, tried: Mapping[str, str]) -> Step | None:
        """Return a step that forces a reboot after one did not help. `tried`: texts by key.

        The same key with another text is another wish: the file was changed meanwhile.
        """
        return next(
            (
                s
                for s in self.forcing
                if s.key in tried and (isinstance(s.action, Wait) or s.text == tried[s.key])
            ),
            None,
        )


@dataclass(frozen=True)
class HostPlan:
    """What one host still needs. With refusals nothing of it is carried out."""

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
        """How many reboots it takes."""
        return sum(1 for phase in self.phases if phase.forcing)


@dataclass(frozen=True)
class HostsPlan:
    """What all hosts need. `waves`: who may reboot together, the canary first."""

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
        """Whether anything stands in the way."""
        return any(host.refusals for host in self.hosts)


def plan_hosts(
    file: HostsFile,
    facts: Mapping[str, HostFacts],
    unreached: Mapping[str, tuple[str, str]] | None = None,
    plan: Callable[[str, HostGroup, HostFacts], HostPlan] | None = None,
) -> HostsPlan:
    """Return what every host of the file needs, by `plan_host` or another planner of one host.

    Each must be among `facts`, or among those that could not be reached, with reason and hint.
    """
    gone = unreached or {}
    one = plan or plan_host
    hosts = tuple(
        _unreached(name, group, gone[name]) if name in gone else one(name, group, facts[name])
        for name, group in file.each()
    )
    busy = [host for host in hosts if host.steps and not host.refusals]
    return HostsPlan(
        file.name,
        hosts,
        waves(busy, file.canary, file.limits.reboots, file.limits.per_domain),
        _mixed(list(facts.values())),
    )


def plan_host(name: str, group: HostGroup, facts: HostFacts) -> HostPlan:
    """Return what one host needs."""
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
    plan_outside(group, facts, pairs, outcome)
    plan_checks(group, facts, pairs, outcome)
    if esxi is not None:
        plan_maintenance(group, esxi, outcome)
    return HostPlan(
        name,
        group.platform,
        group.domain or "",
        gather(outcome.steps),
        tuple(outcome.refusals),
        tuple(sorted(outcome.remarks, key=lambda remark: remark.stage.rank)),
        facts.unread,
    )


def _unreached(name: str, group: HostGroup, why: tuple[str, str]) -> HostPlan:
    refusal = Refusal(Stage.REACH, *why)
    return HostPlan(name, group.platform, group.domain or "", refusals=(refusal,))


def gather(steps: Sequence[Step]) -> tuple[Phase, ...]:
    """Put steps into as few phases as what they wait for allows."""
    by_key = {step.key: step for step in steps}
    placed: dict[str, int] = {}

    def place(step: Step) -> int:
        if step.key not in placed:
            placed[step.key] = 0  # a circle would be a defect of a stage, and must end
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
    """Return who goes together: the canary alone, then as many as the limits allow.

    Hosts without a domain share none with anybody.
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


def _mixed(facts: Sequence[HostFacts]) -> tuple[str, ...]:
    """Name boards whose firmware differs between hosts."""
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
