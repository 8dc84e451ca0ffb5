# SPDX-License-Identifier: Apache-2.0
"""Puts hosts back as they were before the first `apply`: read, planned and carried out as there."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from nearmetal.host.apply import Applier
from nearmetal.host.facts import read_hosts
from nearmetal.host.hosts_file import expand, fold
from nearmetal.host.plan import HostPlan, HostsPlan, plan_hosts
from nearmetal.host.plan_back import plan_back
from nearmetal.host.steps import SetArguments, WriteFile

if TYPE_CHECKING:
    from nearmetal.host.hosts_file import HostGroup
    from nearmetal.host.model import HostFacts
    from nearmetal.host.steps import Step


class Rollback(Applier):
    """One `host rollback` of one hosts file. `left`: what cannot be put back, by host."""

    verb = "host rollback"
    goal = "as it was"
    left: dict[str, tuple[str, ...]]

    def plan(self) -> HostsPlan:
        """Read the hosts of which something is kept or marked; returns what makes them as they were."""
        self.left = {}
        kept = self._earlier.read()
        named = {name for name, _ in self._file.each()}
        touched = kept.keys() | self._marks.names()
        groups = [
            group.model_copy(update={"nodes": fold(names)})
            for group in self._file.hosts
            if (names := [name for name in expand(group.nodes) if name in touched])
        ]
        file = self._file.model_copy(update={"hosts": groups})
        found = read_hosts(file, self._reach)
        plan = plan_hosts(file, found.facts, found.unreached, self._plan)
        others = [
            f"{name} is not in the file, and something is kept of it"
            for name in sorted(touched - named)
        ]
        return replace(plan, remarks=tuple(others))

    def _plan(self, name: str, group: HostGroup, facts: HostFacts) -> HostPlan:
        facts = self._marks.on(name, facts)
        back = plan_back(name, group, facts, self._earlier.read().get(name, {}))
        self.left[name] = back.left
        return back.plan

    def _keep(self, name: str, facts: HostFacts, step: Step) -> None:
        # Before the file is written: that it is back says that the mark counts.
        if step.key == "kernel" and isinstance(step.action, WriteFile):
            self._earlier.mark(name, step.key, facts.boot)

    def _taken(self, name: str, facts: HostFacts, step: Step) -> None:
        # After grubby: nothing shows whether it ran, and it may run twice.
        if isinstance(step.action, SetArguments):
            self._earlier.mark(name, step.key, facts.boot)

    def _finish(self) -> None:
        super()._finish()
        # What is back need not be kept: the next apply finds it, and keeps it anew.
        for name, left in self.left.items():
            self._earlier.forget(name, left)
