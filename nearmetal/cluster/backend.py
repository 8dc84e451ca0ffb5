# SPDX-License-Identifier: Apache-2.0
"""What a backend is: it observes, makes and removes resources, and reaches into nodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from nearmetal.cluster.spec import ClusterSpec, Facts, Key, Observed, Resource
    from nearmetal.core.process import Command


STAGED = "files"
"""Below `job_root` of nodes that do not see our files: those that were brought to them."""


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
