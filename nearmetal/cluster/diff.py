# SPDX-License-Identifier: Apache-2.0
"""desired x observed -> Plan. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property

from nearmetal.cluster.post import ScriptRun
from nearmetal.cluster.resource import (
    Attributes,
    Desired,
    Key,
    Kind,
    Observed,
    Resource,
    depths,
    in_order,
)


class Action(Enum):
    """Effect of a plan on one resource. The value is the symbol that the user sees."""

    NONE = " "
    CREATE = "+"
    CHANGE = "~"
    DELETE = "-"


@dataclass(frozen=True)
class Change:
    """The effect of a plan on one resource, and the reason. One of `old` and `new` is there."""

    action: Action
    old: Resource | None = None
    new: Resource | None = None
    reason: str = ""
    in_place: bool = False
    """Whether the resource is changed, instead of removed and recreated."""
    outage: bool = False
    """Whether a resource that is changed in place does not work for a while."""
    why: str = ""
    """Meaning of the differences for the resource; `reason` is one outside of the spec."""

    @property
    def item(self) -> Resource:
        """The resource as it will be; as it was where it is removed."""
        item = self.new or self.old
        assert item is not None  # noqa: S101 - make_plan gives at least one
        return item

    @property
    def key(self) -> Key:
        """The identity of the resource."""
        return self.item.key

    @property
    def before(self) -> Attributes:
        """The values before the change, as text."""
        return () if self.old is None else self.old.attributes

    @property
    def after(self) -> Attributes:
        """The values after the change, as text."""
        return () if self.new is None else self.new.attributes

    @cached_property
    def differences(self) -> tuple[tuple[str, str, str], ...]:
        """Return (attribute, before, after) where the two differ; "" stands for absent."""
        old, new = dict(self.before), dict(self.after)
        names = sorted(old.keys() | new.keys())
        rows = ((name, old.get(name, ""), new.get(name, "")) for name in names)
        return tuple(row for row in rows if row[1] != row[2])


@dataclass(frozen=True)
class Plan:
    """All changes: first the removals, then the rest in the order of making, then the scripts."""

    cluster: str
    changes: tuple[Change, ...]
    notes: tuple[str, ...] = ()
    scripts: tuple[ScriptRun, ...] = ()

    @property
    def effective(self) -> tuple[Change, ...]:
        """The changes that do something."""
        return tuple(c for c in self.changes if c.action is not Action.NONE)

    @property
    def going(self) -> list[Change]:
        """The changes that remove a resource, also to recreate it, in the order of removal."""
        # A resource is removed before all that it stood on, and all that it will stand on.
        depth = depths(
            replace(change.item, needs=(*change.item.needs, *change.old.needs))
            if change.old is not None
            else change.item
            for change in self.changes
        )
        gone = [c for c in self.effective if c.action is not Action.CREATE and not c.in_place]
        return sorted(gone, key=lambda change: -depth[change.key])

    @property
    def coming(self) -> list[Change]:
        """The changes that make a resource or change it in place, in the order of making."""
        return [c for c in self.effective if c.action is not Action.DELETE]

    @property
    def empty(self) -> bool:
        """Whether everything is as desired."""
        return not self.effective and not self.scripts

    @property
    def fresh(self) -> set[str]:
        """The nodes that are made, or made again."""
        made = (c for c in self.coming if not c.in_place)
        return {change.key.name for change in made if change.key.kind is Kind.NODE}

    def count(self, action: Action) -> int:
        """Return the number of resources with this action."""
        return sum(change.action is action for change in self.changes)

    @property
    def rewrites(self) -> tuple[Change, ...]:
        """Sound resources that would be lost, at least for a while, because the spec differs."""
        takes = (Action.CHANGE, Action.DELETE)
        lost = (c for c in self.changes if c.action in takes and c.before and not c.in_place)
        return tuple(c for c in lost if c.reason == "")

    @property
    def disruptive(self) -> tuple[Change, ...]:
        """Sound resources that are removed, recreated or interrupted."""
        sound = (c for c in self.effective if c.before and c.reason != BROKEN)
        return tuple(c for c in sound if c.outage or not c.in_place)


BROKEN = "unfinished or dead"
"""The reason to recreate a resource that is no loss."""

MIN_FOLDED = 5
"""Changes of one form that a person reads as one."""


def folded(changes: Iterable[Change]) -> list[list[Change]]:
    """Return the changes for a person: many of one form together, where the first of them is."""
    groups: dict[object, list[Change]] = defaultdict(list)
    every = [(change, groups[_form(change)]) for change in changes]
    for change, group in every:
        group.append(change)
    shown: list[list[Change]] = []
    for change, group in every:
        if len(group) < MIN_FOLDED:
            shown.append([change])
        elif group[0] is change:
            shown.append(group)
    return shown


def _form(change: Change) -> object:
    """Return all that changes have in common that are shown together: not their values."""
    names = tuple(name for name, *_ in change.differences)
    return change.action, change.key.kind, change.in_place, change.reason, change.why, names


def _unknown(broken: Iterable[Key], there: Iterable[Key]) -> list[Resource]:
    """Return broken resources whose values are unknown; each needs all that its kind may need."""
    rank, keys = list(Kind).index, sorted(broken, key=str)
    return [
        Resource(key, needs=tuple(k for k in [*there, *keys] if rank(k.kind) < rank(key.kind)))
        for key in keys
    ]


def make_plan(cluster: str, desired: Desired, observed: Observed) -> Plan:
    """Compare; the resources that need a recreated resource are recreated with it."""
    there, wanted = observed.by_key(), {item.key: item for item in desired.resources}
    gone = [item for key, item in there.items() if key not in wanted]
    gone += _unknown(observed.broken - wanted.keys() - there.keys(), there)
    changes = [Change(Action.DELETE, item) for item in reversed(in_order(gone))]
    moved: dict[Key, str] = {}
    for item in in_order(desired.resources):
        key = item.key
        ground = next((moved[need] for need in item.needs if need in moved), "")
        # What stands on something that is recreated is recreated with it.
        cause = observed.halted.get(key) or (f"{ground} is recreated" if ground else "")
        change = _compare(item, there.get(key), broken=key in observed.broken, cause=cause)
        if change.action is Action.NONE and key in observed.unfinished:
            change = replace(change, action=Action.CHANGE)
        change = replace(change, in_place=not ground and _fits(change, desired.in_place))
        if change.action is Action.CHANGE:
            why = desired.whys.get(key) or observed.unfinished.get(key, "")
            change = replace(change, why=why, outage=key in desired.outages)
        changes.append(change)
        if _moves(change, desired):
            moved[key] = ground or str(key)
    advice = observed.advice if desired.resources else ()
    return Plan(cluster, tuple(changes), desired.notes + observed.notes + advice)


def _fits(change: Change, in_place: frozenset[str]) -> bool:
    """Whether a change of something sound is one of attributes that can be set."""
    if change.action is not Action.CHANGE or not change.before or change.reason:
        return False
    return {name for name, _, _ in change.differences} <= in_place


def _moves(change: Change, desired: Desired) -> bool:
    """Whether the resources that need this one are recreated with it."""
    if change.action is Action.CREATE:
        # Where things change in place, those resources are attached to it again instead.
        return not desired.in_place
    return change.action is Action.CHANGE and not change.in_place


def _compare(item: Resource, old: Resource | None, *, broken: bool, cause: str) -> Change:
    if broken:
        return Change(Action.CHANGE, old, item, BROKEN)
    if old is None:
        return Change(Action.CREATE, None, item)
    if old.attributes != item.attributes:
        return Change(Action.CHANGE, old, item)
    if cause:
        return Change(Action.CHANGE, old, item, cause)
    return Change(Action.NONE, old, item)


def removal(cluster: str, observed: Observed) -> Plan:
    """Return the plan that takes everything away."""
    return make_plan(cluster, Desired(()), observed)
