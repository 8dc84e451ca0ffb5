# SPDX-License-Identifier: Apache-2.0
"""desired x observed -> Plan. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from nearmetal.cluster.action import Action
from nearmetal.cluster.spec import Attributes, Key, Kind, Observed, Resource, in_order
from nearmetal.cluster.wanted import Desired


@dataclass(frozen=True)
class Change:
    """What happens to one resource, and why."""

    action: Action
    key: Key
    before: Attributes = ()
    after: Attributes = ()
    reason: str = ""
    in_place: bool = False
    """Whether what is there is changed, instead of removed and made anew."""
    why: str = ""
    """What the differences mean for what is there; `reason` stands for one outside of the spec."""

    @property
    def differences(self) -> tuple[tuple[str, str, str], ...]:
        """Return (attribute, before, after) where the two differ; "" stands for absent."""
        old, new = dict(self.before), dict(self.after)
        names = sorted(old.keys() | new.keys())
        rows = ((name, old.get(name, ""), new.get(name, "")) for name in names)
        return tuple(row for row in rows if row[1] != row[2])


@dataclass(frozen=True)
class Plan:
    """Everything that would be done, in order: deletions, then the rest as it is made."""

    cluster: str
    changes: tuple[Change, ...]
    notes: tuple[str, ...] = ()

    @property
    def effective(self) -> tuple[Change, ...]:
        """The changes that do something."""
        return tuple(c for c in self.changes if c.action is not Action.NONE)

    @property
    def empty(self) -> bool:
        """Whether everything is as desired."""
        return not self.effective

    def count(self, action: Action) -> int:
        """How many resources meet this action."""
        return sum(change.action is action for change in self.changes)

    @property
    def rewrites(self) -> tuple[Change, ...]:
        """Sound resources that would be lost, at least for a while: what another spec causes."""
        takes = (Action.CHANGE, Action.DELETE)
        lost = (c for c in self.changes if c.action in takes and c.before and not c.in_place)
        return tuple(c for c in lost if c.reason == "")


def make_plan(cluster: str, desired: Desired, observed: Observed) -> Plan:
    """Compare; a re-made cluster or network takes everything that stands on it along."""
    there, wanted = observed.by_key(), {item.key: item for item in desired.resources}
    gone = [item for key, item in there.items() if key not in wanted]
    gone += [Resource(k) for k in observed.broken if k not in wanted and k not in there]
    changes = [
        Change(Action.DELETE, item.key, before=item.attributes) for item in reversed(in_order(gone))
    ]
    moved = ""
    moved_hosts: set[str] = set()
    moved_disks: set[str] = set()
    for item in in_order(desired.resources):
        key, old = item.key, there.get(item.key)
        ground = moved
        if key.kind.rank > Kind.HOST.rank and not moved:
            if item.get("host") in moved_hosts:
                ground = f"host {item.get('host')}"
            elif key.name in moved_disks:
                ground = f"disk {key.name}"
        change = _compare(item, old, broken=key in observed.broken, ground=ground)
        change = replace(change, in_place=not ground and _fits(change, desired.in_place))
        if change.action is Action.CHANGE:
            change = replace(change, why=desired.whys.get(key, ""))
        changes.append(change)
        if _moves(change, desired):
            if key.kind in (Kind.CLUSTER, Kind.NETWORK) and not moved:
                moved = str(key)
            elif key.kind is Kind.HOST:
                moved_hosts.add(key.name)
            elif key.kind is Kind.DISK:
                moved_disks.add(key.name)
    return Plan(cluster, tuple(changes), desired.notes + observed.notes)


def _fits(change: Change, in_place: frozenset[str]) -> bool:
    """Whether a change of something sound is one of attributes that can be set."""
    if change.action is not Action.CHANGE or not change.before or change.reason:
        return False
    return {name for name, _, _ in change.differences} <= in_place


def _moves(change: Change, desired: Desired) -> bool:
    """Whether what stands on the resource is made anew with it."""
    if change.action is Action.CREATE:
        # Where things change in place, they are hung on it again instead.
        return not desired.in_place
    return change.action is Action.CHANGE and not change.in_place


def _compare(item: Resource, old: Resource | None, *, broken: bool, ground: str) -> Change:
    if broken:
        before = () if old is None else old.attributes
        return Change(Action.CHANGE, item.key, before, item.attributes, "unfinished or dead")
    if old is None:
        return Change(Action.CREATE, item.key, after=item.attributes)
    if old.attributes != item.attributes:
        return Change(Action.CHANGE, item.key, old.attributes, item.attributes)
    if ground:
        reason = f"{ground} is made anew"
        return Change(Action.CHANGE, item.key, old.attributes, item.attributes, reason)
    return Change(Action.NONE, item.key, old.attributes, item.attributes)


def removal(cluster: str, observed: Observed) -> Plan:
    """Return the plan that takes everything away."""
    return make_plan(cluster, Desired(()), observed)
