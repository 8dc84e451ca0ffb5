# SPDX-License-Identifier: Apache-2.0
"""What every cluster spec may say. Frozen models; reading files is the loader's work."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, Protocol

from pydantic import AfterValidator, Field

from nearmetal.config.model import Model, Name

MAX_NAMED = 3
"""Nodes that a finding names; it counts the rest."""

RESERVED_NAMES = ("launcher", "localhost")
"""Names the local backend gives to its own places."""


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


def not_a_mount_point(value: str) -> str:
    """Refuse the places of which every node has its own."""
    if value in ("/", "/tmp", "/run", "/dev/shm"):  # noqa: S108 - mount points
        msg = "would undo the nodes' own one|name a directory below it"
        raise ValueError(msg)
    return value


SpecPath = tuple[str | int, ...]
"""Keys and indexes from the top of a spec to one of its parts."""


@dataclass(frozen=True)
class Finding:
    """One rule that the spec breaks: where in it, what, why, and what to write instead."""

    path: SpecPath
    what: str
    why: str
    hint: str
    nodes: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """What is wrong, and with which nodes."""
        if not self.nodes:
            return self.what
        rest = len(self.nodes) - MAX_NAMED
        listed = ", ".join(self.nodes[:MAX_NAMED]) + (f" and {rest} more" if rest > 0 else "")
        return f"node{'s' if len(self.nodes) > 1 else ''} {listed}: {self.what}"


NodeName = Annotated[Name, AfterValidator(_not_reserved)]
Cpu = Annotated[int, Field(ge=0, le=8191)]
Cpus = Annotated[list[Cpu], Field(min_length=1)]


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

    mixed: ClassVar[Mapping[str, str]] = {}
    """Keys that take a word or something else: "why|hint" for a wrong word."""

    def findings(self) -> Iterable[Finding]:
        """Return the rules that the spec breaks and that no single key shows."""
        return ()

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


FIRST_NODE = 11
"""Host number of the first node where the subnet is large enough: .1 is the launcher."""


class Networked(Protocol):
    """A spec whose nodes have a private network of their own."""

    @property
    def network(self) -> Network:
        """The private network."""

    @property
    def nodes(self) -> Sequence[tuple[Host, Node]]:
        """All nodes with their hosts, in the order of the spec."""


def too_small(spec: Networked) -> list[Finding]:
    """Return a finding when the subnet has fewer addresses than the spec has nodes."""
    network = ipaddress.IPv4Network(spec.network.subnet)
    room, needed = network.num_addresses - 3, len(spec.nodes)
    if needed <= room:
        return []
    why = f"has room for {room} nodes, the spec has {needed}"
    hint = "use a larger one, for example 10.77.0.0/16"
    return [Finding(("network", "subnet"), f"subnet {network}", why, hint)]


def addresses(spec: Networked, held: Mapping[str, str] | None = None) -> tuple[str, dict[str, str]]:
    """Return the launcher's address and each node's.

    A node keeps its address in `held` if the subnet has it and no earlier node took it. The others
    get the free ones, in the order of the spec: a node that comes or goes moves no other.
    """
    network = ipaddress.IPv4Network(spec.network.subnet)
    names = [node.name for _, node in spec.nodes]
    launcher = str(network[1])
    taken, kept = {launcher}, {}
    for name in names:
        address = (held or {}).get(name, "")
        if address not in taken and _is_of(network, address):
            taken.add(address)
            kept[name] = address
    first = FIRST_NODE if network.num_addresses - FIRST_NODE > len(names) else 2
    # The low ones last: a subnet that has become full has them still.
    numbers = [*range(first, network.num_addresses - 1), *range(2, first)]
    free = (str(network[i]) for i in numbers if str(network[i]) not in taken)
    return launcher, {name: kept.get(name) or next(free) for name in names}


def _is_of(network: ipaddress.IPv4Network, text: str) -> bool:
    try:
        address = ipaddress.IPv4Address(text)
    except ValueError:
        return False
    return address in network and address not in (network[0], network[-1])
