# SPDX-License-Identifier: Apache-2.0
"""A backend that keeps its resources in memory, and may fail at the n-th step."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from nearmetal.cluster.backend import NodeStatus
from nearmetal.cluster.backends.local.plan import ContainerNode
from nearmetal.cluster.model import ClusterSpec
from nearmetal.cluster.resource import Facts, Key, Kind, Observed, Resource
from nearmetal.config.size import format_size
from nearmetal.core.errors import BackendError, Interrupted
from nearmetal.core.process import Command

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nearmetal.cluster.diff import Plan


@dataclass
class FakeBackend:
    cpus: tuple[int, ...] = (0, 1)
    there: dict[Key, Resource] = field(default_factory=dict)
    broken: set[Key] = field(default_factory=set)
    steps: list[str] = field(default_factory=list)
    fail_at: int = -1
    meeting: Path = Path("/nowhere")
    spec: str | None = None

    apart: str = ""

    shares_files = True
    patience_s = 0.0
    """That of the last command for a launcher."""
    interface = "br0"

    def why_apart(self, node: str, peer: str) -> str:
        del node, peer
        return self.apart

    def prepare(self) -> None:
        pass

    def finish(self) -> None:
        pass

    def leave(self, error: Interrupted) -> None:
        error.hint = "the backend left"

    def job_root(self) -> Path:
        return Path("/run/nearmetal")

    def facts(self) -> Facts:
        return Facts(self.cpus)

    def check(self, plan: Plan) -> None:
        pass

    def observe(self) -> Observed:
        return Observed(tuple(self.there.values()), frozenset(self.broken))

    details = observe

    def create(self, item: Resource, spec: ClusterSpec) -> None:
        self._step(f"+{item.key.name}", item.key)
        self.there[item.key] = item
        self.broken.discard(item.key)
        self.spec = spec.canonical()

    def change(self, item: Resource, spec: ClusterSpec) -> None:
        self._step(f"~{item.key.name}", item.key)
        self.there[item.key] = item
        self.spec = spec.canonical()

    def delete(self, key: Key) -> None:
        self._step(f"-{key.name}", key)
        self.there.pop(key, None)
        self.broken.discard(key)
        if key.kind is Kind.CLUSTER:
            self.there.clear()
            self.broken.clear()

    def _step(self, name: str, key: Key) -> None:
        if len(self.steps) == self.fail_at:
            self.broken.add(key)
            raise BackendError(f"{name} failed")
        self.steps.append(name)

    def status(self) -> list[NodeStatus]:
        nodes = Observed(tuple(self.there.values())).named(ContainerNode)
        return [
            NodeStatus(
                name=name,
                host=node.host,
                hostname=node.hostname,
                address=node.address,
                slots=node.slots,
                cpus=node.cpus,
                shm=format_size(node.shm),
                pid=1,
                uptime_s=1.0,
                healthy=Key(Kind.NODE, name) not in self.broken,
                health="dead" if Key(Kind.NODE, name) in self.broken else "running",
            )
            for name, node in nodes.items()
        ]

    def incarnations(self) -> Mapping[str, str]:
        return {}

    def on_node(
        self,
        node: str,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        workdir: Path | None = None,
        root: bool = False,
        patience_s: float = 0.0,
    ) -> Command:
        del root, patience_s
        return Command(("enter", node, *argv), env, workdir)

    def on_launcher(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        workdir: Path | None = None,
        patience_s: float = 0.0,
    ) -> Command:
        self.patience_s = patience_s
        return Command(("launcher", *argv), env, workdir)

    def remote_shell(self) -> str:
        return "/agent"

    def staged(self, node: str) -> Path | None:
        del node
        return None

    def meeting_directory(self, host: str) -> Path:
        return self.meeting / host

    def supervisor(self, job: str, nodes: Sequence[str], deadline_s: float | None) -> Command:
        return Command(("supervise", job, f"{deadline_s}", *nodes))

    def end_marked(self, marker: str) -> int:
        self.steps.append(f"sweep {marker.partition('=')[0]}")
        return 0
