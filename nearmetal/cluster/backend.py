# SPDX-License-Identifier: Apache-2.0
"""What a backend is: it observes, makes and removes resources, and reaches into nodes."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, cast

from nearmetal.cluster import backends

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from nearmetal.cluster.model import ClusterSpec
    from nearmetal.cluster.resource import Facts, Key, Observed, Resource
    from nearmetal.cluster.store import Store
    from nearmetal.core.process import Command, Runner


STAGED = "files"
"""Below `job_root` of nodes that do not see our files: those that were brought to them."""

SWEEP = """
killed=0
for round in 1 2 3 4 5 6 7 8 9 10; do
  found=$(grep -lzFxs -e "$marker" /proc/[0-9]*/environ | cut -d/ -f3)
  [ -n "$found" ] || break
  kill -KILL $found 2>/dev/null
  killed=$((killed + $(echo "$found" | wc -l)))
  sleep 0.1
done
"""
"""Kills every process that carries `$marker`, and counts them in `$killed`. One grep for all
processes: a program for each takes a minute under TCG."""


@dataclass(frozen=True)
class NodeStatus:
    """One node as it is now. `pid` as the machine sees process 1 of the node; 0: none."""

    name: str
    host: str
    hostname: str
    address: str
    slots: int
    cpus: tuple[int, ...]
    shm: str
    pid: int
    uptime_s: float
    healthy: bool
    health: str


class Backend(Protocol):
    """One cluster on one kind of infrastructure. Errors are BackendError with the reason."""

    @property
    def shares_files(self) -> bool:
        """Whether nodes see this machine's files; else programs must be carried to them."""

    def prepare(self) -> None:
        """Make what planning an `up` must know about and what outlives clusters: images."""

    def finish(self) -> None:
        """Wait until all that was made is usable. The last step of an `up` that did something."""

    def facts(self) -> Facts:
        """Return what planning must know about the infrastructure."""

    def observe(self) -> Observed:
        """Return what there is; reads only."""

    def create(self, item: Resource, spec: ClusterSpec) -> None:
        """Make one resource; what it stands on is there. `finish` may have to wait for it."""

    def change(self, item: Resource, spec: ClusterSpec) -> None:
        """Change in place a resource that is there, where the plan says it can be; as `create`."""

    def delete(self, key: Key) -> None:
        """Remove one resource in whatever state; no error when it is not there."""

    def status(self) -> list[NodeStatus]:
        """Return the state of every node that is, or should be, there."""

    def on_node(
        self,
        node: str,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        workdir: Path | None = None,
        root: bool = False,
    ) -> Command:
        """Return the command that runs `argv` in a node, on its cores.

        `root`: not as the user of jobs but as the node's root, where nodes are machines.
        """

    def on_launcher(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        workdir: Path | None = None,
    ) -> Command:
        """Return the command that runs `argv` where MPI launchers run."""

    def remote_shell(self) -> str:
        """Return the path of the remote-shell agent, as launcher and nodes see it."""

    def job_root(self) -> Path:
        """Return where jobs' directories lie, as the nodes see it."""

    def staged(self, node: str) -> Path | None:
        """Return the directory here that a node sees as `job_root` / STAGED; None: its own is there."""

    def meeting_directory(self, host: str) -> Path:
        """Return where the nodes of a host meet (/run/nearmetal in them), as we reach it."""

    def end_marked(self, marker: str) -> int:
        """Kill every process in the cluster that has `NAME=value` in its environment."""


class Driver(Protocol):
    """The module `driver` of a backend."""

    def open_backend(self, spec: ClusterSpec, store: Store, runner: Runner) -> Backend:
        """Return the backend of a spec's cluster; nothing is touched yet."""


def open_backend(spec: ClusterSpec, store: Store, runner: Runner) -> Backend:
    """Return the backend of a spec's cluster; nothing is touched yet."""
    module = importlib.import_module(f"{backends.__name__}.{spec.backend}.driver")
    return cast("Driver", module).open_backend(spec, store, runner)
