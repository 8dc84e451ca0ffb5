# SPDX-License-Identifier: Apache-2.0
"""The order of servers that each take time, when there may not be time for all. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass
class ProjectTurns:
    """Each project has its turn before another has its second, and so has each of its servers.

    A new server stands behind those that wait: a project cannot come first by new servers.
    """

    _count: int = 0
    _projects: dict[str, int] = field(default_factory=dict)
    """The number of the last turn of each project."""
    _servers: dict[str, tuple[str, int]] = field(default_factory=dict)
    """The project of each server, and the number of its last turn."""

    def order(self, projects: Mapping[str, str]) -> list[str]:
        """Return servers, given with their projects, in the order of their turns."""
        count, last = self._count, self._servers
        self._servers = {s: (p, last.get(s, (p, count))[1]) for s, p in projects.items()}
        self._projects = {p: self._projects.get(p, count) for p in projects.values()}
        before: Counter[str] = Counter()
        places: dict[str, tuple[int, int]] = {}
        for server in sorted(projects, key=lambda one: self._servers[one][1]):
            project = projects[server]
            places[server] = before[project], self._projects[project]
            before[project] += 1
        return sorted(places, key=lambda one: places[one])

    def had(self, server: str) -> None:
        """Note that a server of the last order has its turn."""
        self._count += 1
        project = self._servers[server][0]
        self._servers[server] = project, self._count
        self._projects[project] = self._count
