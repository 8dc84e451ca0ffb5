# SPDX-License-Identifier: Apache-2.0
"""The spec of `backend: local`: containers on this machine."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from nearmetal.cluster.model import (
    Cpus,
    Finding,
    Host,
    NetworkedSpec,
    Node,
    not_a_mount_point,
    too_small,
)
from nearmetal.config.model import MAX_NODES, AbsolutePath, Name, Size


class LocalNode(Node):
    """One isolated container."""

    cpus: Literal["auto"] | Cpus = Field(
        default="auto", description="cores of the machine for the node"
    )
    shm: Size = Field(
        default=512 << 20,
        description="size of the node's private /dev/shm and of its /tmp",
        json_schema_extra={"default": "512 MiB"},
    )
    hostname: Name | None = Field(
        default=None, description="host name, which may repeat; default: the name of the node"
    )
    pids: Literal["own", "cluster"] = Field(
        default="own", description="PID namespace: its own, or one for the whole cluster"
    )


class LocalHost(Host):
    """Containers with one rundir."""

    segments: Size = Field(
        default=64 << 20,
        description="size of the rundir of the host",
        json_schema_extra={"default": "64 MiB"},
    )
    nodes: Annotated[list[LocalNode], Field(min_length=1, max_length=MAX_NODES)]


class LocalSpec(NetworkedSpec):
    """A virtual cluster of containers on this machine."""

    backend: Literal["local"] = Field(description="local: containers on this machine")
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
        """Return a finding if the subnet is too small."""
        return too_small(self)
