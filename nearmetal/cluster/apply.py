# SPDX-License-Identifier: Apache-2.0
"""Executes plans: first the removals, against the order of making, then the rest in order."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from nearmetal.cluster.backend import Backend
from nearmetal.cluster.diff import Action, Change, Plan, folded, make_plan, removal
from nearmetal.cluster.model import ClusterSpec, some
from nearmetal.cluster.post_work import PostScripts
from nearmetal.cluster.registration import desired
from nearmetal.cluster.resource import Key, Kind
from nearmetal.cluster.store import Store
from nearmetal.core.errors import Interrupted, NearmetalError, StateError
from nearmetal.core.journal import Event, Journal
from nearmetal.core.lock import locked
from nearmetal.core.process import LocalRunner
from nearmetal.core.progress import Progress, Silent

Agree = Callable[[Plan], None]

MAKING = "make "
"""How the journal's text of a step begins that makes an object."""


@dataclass(frozen=True)
class Cluster:
    """A named cluster on its backend."""

    name: str
    backend: Backend
    store: Store

    @property
    def journal(self) -> Journal:
        """The cluster's journal."""
        return Journal(self.store.cluster(self.name))

    def scripts(self, spec: ClusterSpec) -> PostScripts:
        """Return the scripts of its spec."""
        return PostScripts(spec, self.backend, self.store.cluster(self.name), LocalRunner())


def plan_up(cluster: Cluster, spec: ClusterSpec) -> Plan:
    """Return what `up` would do; changes nothing."""
    backend = cluster.backend
    facts, observed = backend.facts(), backend.observe()
    plan = make_plan(cluster.name, desired(spec, facts, observed), observed)
    return cluster.scripts(spec).added(plan)


def checked_plan(cluster: Cluster, spec: ClusterSpec) -> Plan:
    """Return what `up` would do; raises BackendError if the plan needs things that are missing."""
    plan = plan_up(cluster, spec)
    cluster.backend.check(plan)
    return plan


def plan_down(cluster: Cluster) -> Plan:
    """Return what `down` would do; changes nothing."""
    return removal(cluster.name, cluster.backend.observe())


def describe(change: Change, *others: Change) -> str:
    """Return one line for the user: the symbol, the resource, and the differences.

    `others`: changes of the same form, see `folded`.
    """
    names = some([one.key.name for one in (change, *others)])
    text = f"{change.action.value} {change.key.kind.value} {names}"
    if change.action is Action.CHANGE and change.differences:
        text += ": " + ", ".join(
            f"{values[0][0]} {_each(values)}"
            for values in zip(*(one.differences for one in (change, *others)), strict=True)
        )
    reason = change.reason or change.why
    if change.in_place:
        reason = f"in place; {reason}" if reason else "in place"
    return f"{text} ({reason})" if reason else text


def first_step(plan: Plan) -> str:
    """Return the first line of a plan that is not empty."""
    return describe(plan.effective[0]) if plan.effective else plan.scripts[0].text


def steps_of(plan: Plan) -> list[str]:
    """Return what a plan does, for the user."""
    return [*described(plan.effective), *(run.text for run in plan.scripts)]


def _each(values: Sequence[tuple[str, str, str]]) -> str:
    """Return how an attribute of several changes differs."""
    ways = dict.fromkeys(f"{before or '(none)'} -> {after}" for _, before, after in values)
    return next(iter(ways)) + (f" and {len(ways) - 1} other ways" if len(ways) > 1 else "")


def described(changes: Iterable[Change]) -> list[str]:
    """Return the changes for the user, many of one form in one line."""
    return [describe(*group) for group in folded(changes)]


def _refuse_other_spec(cluster: Cluster, plan: Plan) -> None:
    if plan.rewrites:
        lines = "\n".join(f"  {line}" for line in described(plan.rewrites))
        raise StateError(
            f"cluster {cluster.name} is already up under another spec:\n{lines}",
            "run `nearmetal down` first, use another name in SPEC, or run `nearmetal up --replace`",
        )


def up(
    cluster: Cluster,
    spec: ClusterSpec,
    *,
    replace: bool = False,
    progress: Progress | None = None,
    journal: Journal | None = None,
    agree: Agree | None = None,
) -> Plan:
    """Make the cluster as the spec says; returns the plan that was executed.

    `agree` sees the plan before its first change, and raises to refuse it.

    A second `up` changes nothing, and an interrupted `up` is resumed. Raises StateError if the
    cluster runs under another spec and `replace` is not given.
    """
    cluster.store.prepare()
    journal = journal or cluster.journal
    with locked(cluster.store.lock(cluster.name), f"cluster {cluster.name}"):
        cluster.backend.prepare()
        plan = plan_up(cluster, spec)
        if not replace:
            _refuse_other_spec(cluster, plan)
        cluster.backend.check(plan)
        if agree is not None:
            agree(plan)
        try:
            _execute(cluster, plan, spec, journal, progress or Silent())
        except Interrupted as error:
            cluster.backend.leave(error)
            raise
        rest = plan_up(cluster, spec)
        if not rest.empty:
            raise StateError(
                f"cluster {cluster.name} is not as planned: {first_step(rest)}",
                "run `nearmetal up` again; `nearmetal status` shows the nodes",
            )
    # What no plan repairs may have changed with the work.
    return dataclasses.replace(plan, notes=rest.notes)


def down(cluster: Cluster, *, progress: Progress | None = None, agree: Agree | None = None) -> Plan:
    """Remove the cluster and its records; no error if there is none.

    `agree` sees a plan that removes anything, and raises to refuse it.
    """
    if not cluster.store.root.exists():
        return plan_down(cluster)
    cluster.store.prepare()
    with locked(cluster.store.lock(cluster.name), f"cluster {cluster.name}"):
        plan = plan_down(cluster)
        if not plan.empty:
            if agree is not None:
                agree(plan)
            keys = [change.key for change in plan.effective]
            watcher = progress or Silent()
            watcher.begin(len(keys))
            # The removal of the cluster includes all other resources, so it is the only real step.
            for key in keys:
                watcher.step(f"remove {key}")
            journal = cluster.journal
            if journal.path.parent.exists():
                journal.write("down", f"remove cluster {cluster.name}", Event.BEGIN)
            try:
                cluster.backend.delete(Key(Kind.CLUSTER, cluster.name))
            except Interrupted as error:
                cluster.backend.leave(error)
                raise
    cluster.store.tidy()
    return plan


def _is_recorded(cluster: Cluster, spec: ClusterSpec) -> bool:
    try:
        return cluster.store.recorded(cluster.name) == spec
    except StateError:
        return False


def _execute(
    cluster: Cluster, plan: Plan, spec: ClusterSpec, journal: Journal, progress: Progress
) -> None:
    backend = cluster.backend
    steps: list[tuple[str, Callable[[], None]]] = [
        *((f"remove {c.key}", partial(backend.delete, c.key)) for c in plan.going),
        *(
            (f"change {c.key}", partial(backend.change, c.item, spec))
            if c.in_place
            else (f"{MAKING}{c.key}", partial(backend.create, c.item, spec))
            for c in plan.coming
        ),
    ]
    # The record may be another spec, from before a change or from an interrupted `up`.
    if steps or not _is_recorded(cluster, spec):
        steps.append(("record the spec", partial(cluster.store.record, spec)))
        steps.append(("wait for the nodes", backend.finish))
    scripts = cluster.scripts(spec)
    steps += [(f"run {r.entry.script} in nodes", partial(scripts.run, r)) for r in plan.scripts]
    progress.begin(len(steps))
    for text, work in steps:
        progress.step(text)
        journal.write("up", text, Event.BEGIN)
        try:
            work()
        except NearmetalError as error:
            journal.write("up", text, Event.FAILED, error.message)
            raise
        journal.write("up", text, Event.DONE)
