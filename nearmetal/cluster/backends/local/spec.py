# SPDX-License-Identifier: Apache-2.0
"""What a spec of `backend: local` may say: containers on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AfterValidator, Field

from nearmetal.cluster.model import (
    ClusterSpec,
    Cpus,
    Finding,
    Host,
    Network,
    Node,
    not_a_mount_point,
    too_small,
)
from nearmetal.cluster.spec.loader import load_spec
from nearmetal.config.model import MAX_NODES, AbsolutePath, Name, Size
from nearmetal.core.errors import NearmetalError

if TYPE_CHECKING:
    from pathlib import Path


class LocalNode(Node):
    """One isolated container."""

    cpus: Literal["auto"] | Cpus = Field(
        default="auto", description="cores of the machine the node is pinned to"
    )
    shm: Size = Field(
        default=512 << 20,
        description="size of the node's private /dev/shm and of its /tmp",
        json_schema_extra={"default": "512 MiB"},
    )
    hostname: Name | None = Field(
        default=None, description="what the node calls itself; its name by default; may repeat"
    )
    pids: Literal["own", "cluster"] = Field(
        default="own", description="whose PID namespace its processes are in"
    )


class LocalHost(Host):
    """Containers that meet in one directory."""

    segments: Size = Field(
        default=64 << 20,
        description="size of the directory in which the host's nodes meet",
        json_schema_extra={"default": "64 MiB"},
    )
    nodes: Annotated[list[LocalNode], Field(min_length=1, max_length=MAX_NODES)]


class LocalSpec(ClusterSpec):
    """A virtual cluster of containers on this machine."""

    backend: Literal["local"] = Field(description="local: containers on this machine")
    network: Network = Field(default_factory=Network)
    show: list[Annotated[AbsolutePath, AfterValidator(not_a_mount_point)]] = Field(
        default_factory=list,
        description="directories below /tmp, /run or /dev/shm that the nodes see, read-only",
    )
    hosts: Annotated[list[LocalHost], Field(min_length=1, max_length=64)]

    @property
    def nodes(self) -> list[tuple[LocalHost, LocalNode]]:
        """All nodes with their hosts, in the order of the spec."""
        return [(host, node) for host in self.hosts for node in host.nodes]

    def findings(self) -> list[Finding]:
        """Return what the subnet lacks."""
        return too_small(self)


def load_local(path: Path) -> LocalSpec:
    """Read a spec that must be one of containers on this machine; raises as `load_spec`."""
    spec = load_spec(path)
    if not isinstance(spec, LocalSpec):
        msg = f"{path}: this needs `backend: local`, the spec has {spec.backend}"
        raise NearmetalError(msg, "give the spec of a local cluster")
    return spec
