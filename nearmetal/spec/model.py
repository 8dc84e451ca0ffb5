# SPDX-License-Identifier: Apache-2.0
"""What every cluster spec may say. Frozen models; reading files is the loader's work."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    WithJsonSchema,
)

from nearmetal.spec.size import format_size, parse_size

MAX_NODES = 200
"""Nodes in one cluster: far past what one machine carries, and a /24 holds them."""

MIN_SIZE = 1 << 20
MAX_SIZE = 1 << 44

RESERVED_NAMES = ("launcher", "localhost")
"""Names the local backend gives to its own places."""


def _size(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str):
        msg = "is not a size|write for example 512 MiB"
        raise ValueError(msg)
    nr_bytes = parse_size(str(value))
    if not MIN_SIZE <= nr_bytes <= MAX_SIZE:
        msg = "is out of range|use 1 MiB to 16 TiB"
        raise ValueError(msg)
    return nr_bytes


def _subnet(value: str) -> str:
    try:
        network = ipaddress.IPv4Network(value)
    except ValueError as error:
        msg = f"is not an IPv4 subnet: {error}|write for example 10.77.0.0/24"
        raise ValueError(msg) from None
    if not network.is_private or not 16 <= network.prefixlen <= 29:  # noqa: PLR2004 - a prefix
        msg = "is not a private subnet between /16 and /29|write for example 10.77.0.0/24"
        raise ValueError(msg)
    return str(network)


def _not_reserved(value: str) -> str:
    if value in RESERVED_NAMES:
        msg = "is reserved|choose another name"
        raise ValueError(msg)
    return value


def _absolute(value: str) -> str:
    if not value.startswith("/") or "/../" in value + "/" or "\0" in value or "\n" in value:
        msg = "is not an absolute path without ..|write for example /opt/programs"
        raise ValueError(msg)
    return value.rstrip("/") or "/"


def not_a_mount_point(value: str) -> str:
    """Refuse the places of which every node has its own."""
    if value in ("/", "/tmp", "/run", "/dev/shm"):  # noqa: S108 - mount points
        msg = "would undo the nodes' own one|name a directory below it"
        raise ValueError(msg)
    return value


Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,30}$", max_length=31)]
NodeName = Annotated[Name, AfterValidator(_not_reserved)]
Cpu = Annotated[int, Field(ge=0, le=8191)]
Size = Annotated[
    int,
    BeforeValidator(_size),
    PlainSerializer(format_size, return_type=str),
    WithJsonSchema({"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)? ?(B|KiB|MiB|GiB|TiB)$"}),
]


AbsolutePath = Annotated[str, AfterValidator(_absolute)]
Cpus = Annotated[list[Cpu], Field(min_length=1)]


class Model(BaseModel):
    """Frozen and strict; unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Node(Model):
    """One node: what every backend's nodes have."""

    name: NodeName = Field(description="unique in the cluster; MPI launchers use it as host name")
    slots: Annotated[int, Field(ge=1, le=4096)] = Field(
        default=1, description="how many ranks the node takes, and cores it is given"
    )


class Host(Model):
    """Nodes that share one physical host, so that they can meet in shared memory."""

    name: Name = Field(description="unique in the cluster")
    nodes: Sequence[Node]


class Network(Model):
    """The private network between the nodes."""

    subnet: Annotated[str, AfterValidator(_subnet)] = Field(
        default="10.77.0.0/24", description="private IPv4 subnet; its first address is the launcher"
    )
    mtu: Annotated[int, Field(ge=1280, le=65535)] = Field(default=1500, description="bytes")


class ClusterSpec(Model):
    """A virtual cluster: what `nearmetal up` makes. One child per backend, in its own module."""

    version: Literal[1] = Field(description="the version of this format")
    name: Name = Field(description="unique per user and machine")
    backend: str
    hosts: Sequence[Host]

    @property
    def nodes(self) -> Sequence[tuple[Host, Node]]:
        """All nodes with their hosts, in the order of the spec."""
        return [(host, node) for host in self.hosts for node in host.nodes]

    @property
    def slots(self) -> int:
        """How many ranks the cluster takes."""
        return sum(node.slots for _, node in self.nodes)

    def canonical(self) -> str:
        """Return the spec as JSON with every default spelt out: equal text, equal cluster."""
        return json.dumps(self.model_dump(mode="json"), indent=1, sort_keys=True) + "\n"
