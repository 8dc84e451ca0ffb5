# SPDX-License-Identifier: Apache-2.0
"""The keys that all cluster specs share, and the addresses of nodes. Pure; spec.py reads files."""

from __future__ import annotations

import ipaddress
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field

from nearmetal.config.model import AbsolutePath, Model, Name
from nearmetal.core.errors import BackendError

MAX_NAMED = 3
"""Nodes that a line names; it counts the rest."""

RESERVED_NAMES = ("launcher", "localhost")
"""Names that the local backend uses itself."""


def read_subnet(value: str) -> ipaddress.IPv4Network:
    """Return the subnet of a text; raises the ValueError of a validator, "why|hint"."""
    try:
        return ipaddress.IPv4Network(value)
    except ValueError as error:
        raise ValueError(f"is not an IPv4 subnet: {error}|use for example 10.77.0.0/24") from None


def _subnet(value: str) -> str:
    network = read_subnet(value)
    if not network.is_private or not 16 <= network.prefixlen <= 29:  # noqa: PLR2004 - a prefix
        raise ValueError("is not a private subnet from /16 to /29|use for example 10.77.0.0/24")
    return str(network)


def _not_reserved(value: str) -> str:
    if value in RESERVED_NAMES:
        raise ValueError("is reserved|choose another name")
    return value


def not_a_mount_point(value: str) -> str:
    """Refuse the mount points that each node has for itself."""
    if value in ("/", "/tmp", "/run", "/dev/shm"):  # noqa: S108 - mount points
        raise ValueError("is private in each node|give a directory below it")
    return value


def some(names: Sequence[str]) -> str:
    """Return the first names, and the number of the others."""
    rest = len(names) - MAX_NAMED
    return ", ".join(names[:MAX_NAMED]) + (f" and {rest} more" if rest > 0 else "")


SpecPath = tuple[str | int, ...]
"""Keys and indexes from the top of a spec to one of its parts."""


@dataclass(frozen=True)
class Finding:
    """One rule that the spec breaks: the place in it, what is wrong, why, and what to do."""

    path: SpecPath
    what: str
    why: str
    hint: str
    nodes: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The fault, with the names of its nodes."""
        if not self.nodes:
            return self.what
        return f"node{'s' if len(self.nodes) > 1 else ''} {some(self.nodes)}: {self.what}"

    @property
    def sentence(self) -> str:
        """The fault with its reason and its fix."""
        return "; ".join(filter(None, (": ".join(filter(None, (self.text, self.why))), self.hint)))


def merged_findings(found: Iterable[Finding]) -> list[Finding]:
    """Return each finding once, with all nodes that have it."""
    alike: dict[tuple[SpecPath, str, str, str], list[str]] = defaultdict(list)
    for one in found:
        alike[one.path, one.what, one.why, one.hint] += one.nodes
    return [Finding(*key, tuple(dict.fromkeys(nodes))) for key, nodes in alike.items()]


def refuse(cluster: str, found: Iterable[Finding], hint: str) -> None:
    """Raise the BackendError of a plan that the infrastructure cannot carry out, if any is found."""
    lines = "".join(f"\n  {finding.sentence}" for finding in merged_findings(found))
    if lines:
        raise BackendError(
            f"cluster {cluster} cannot be made as planned, and nothing was changed:{lines}", hint
        )


NodeName = Annotated[Name, AfterValidator(_not_reserved)]
Cpu = Annotated[int, Field(ge=0, le=8191)]
Cpus = Annotated[list[Cpu], Field(min_length=1)]


class Node(Model):
    """The keys that the nodes of all backends have."""

    name: NodeName = Field(description="unique in the cluster; MPI launchers use it as host name")
    slots: Annotated[int, Field(ge=1, le=4096)] = Field(
        default=1, description="number of ranks that the node takes, and of cores that it gets"
    )


class Host(Model):
    """Nodes of one physical host, which can meet in shared memory."""

    name: Name = Field(description="unique in the cluster")
    nodes: Sequence[Node]


class Network(Model):
    """The private network between the nodes."""

    subnet: Annotated[str, AfterValidator(_subnet)] = Field(
        default="10.77.0.0/24",
        description="private IPv4 subnet; the launcher has its first address",
    )
    mtu: Annotated[int, Field(ge=1280, le=65535)] = Field(default=1500, description="MTU in bytes")

    @property
    def prefix(self) -> int:
        """The length of the subnet's prefix."""
        return ipaddress.IPv4Network(self.subnet).prefixlen


class PostScript(Model):
    """A script that runs once in each new node, when all nodes are usable."""

    script: AbsolutePath = Field(
        description="path on this machine of a script or program of at most 1 MiB"
    )
    step: Annotated[int, Field(ge=0, le=9999)] = Field(
        default=1, description="lower steps run first; within a step, the order of the list counts"
    )
    nodes: Annotated[list[str], Field(min_length=1)] | None = Field(
        default=None, description="nodes that run it, up to 8 at a time; default: all nodes"
    )
    timeout: Annotated[int, Field(ge=1, le=86400)] = Field(
        default=600, description="seconds after which it is ended and counts as failed"
    )


class ClusterSpec(Model):
    """A virtual cluster, as `nearmetal up` makes it. Each backend has a child of this model."""

    version: Literal[1] = Field(description="version of this format")
    name: Name = Field(description="unique per user and machine")
    backend: str
    hosts: Sequence[Host]
    post: Annotated[list[PostScript], Field(max_length=256)] = Field(
        default_factory=list, description="scripts that `up` runs in the nodes; default: none"
    )

    mixed: ClassVar[Mapping[str, str]] = {}
    """For each key that takes a word or another type: "why|hint" for a wrong word."""

    def findings(self) -> Iterable[Finding]:
        """Return the broken rules that concern several keys."""
        return ()

    @property
    def nodes(self) -> Sequence[tuple[Host, Node]]:
        """All nodes with their hosts, in the order of the spec."""
        return [(host, node) for host in self.hosts for node in host.nodes]

    def is_on(self, node: str) -> bool:
        """Whether a node should run."""
        del node
        return True

    @property
    def slots(self) -> int:
        """The number of ranks that the cluster takes."""
        return sum(node.slots for _, node in self.nodes)

    def canonical(self) -> str:
        """Return the spec as JSON with every default; equal texts mean equal clusters."""
        return json.dumps(self.model_dump(mode="json"), indent=1, sort_keys=True) + "\n"


FIRST_NODE = 11
"""Host number of the first node where the subnet is large enough; the launcher has .1."""


class NetworkedSpec(ClusterSpec):
    """A spec whose nodes have a private network."""

    network: Network = Field(default_factory=Network)


def too_small(spec: NetworkedSpec) -> list[Finding]:
    """Return a finding when the subnet has fewer addresses than the spec has nodes."""
    network = ipaddress.IPv4Network(spec.network.subnet)
    room, needed = network.num_addresses - 3, len(spec.nodes)
    if needed <= room:
        return []
    why = f"has room for {room} nodes, and the spec has {needed}"
    hint = "use a larger subnet, for example 10.77.0.0/16"
    return [Finding(("network", "subnet"), f"subnet {network}", why, hint)]


def addresses(
    spec: NetworkedSpec, held: Mapping[str, str] | None = None
) -> tuple[str, dict[str, str]]:
    """Return the launcher's address and each node's.

    A node keeps its address in `held` if the subnet has it and no earlier node took it. The others
    get the free addresses, in the order of the spec. So no other node moves when one comes or goes.
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
    # The low addresses come last: they remain for a subnet that has become full.
    numbers = [*range(first, network.num_addresses - 1), *range(2, first)]
    free = (str(network[i]) for i in numbers if str(network[i]) not in taken)
    return launcher, {name: kept.get(name) or next(free) for name in names}


def _is_of(network: ipaddress.IPv4Network, text: str) -> bool:
    try:
        address = ipaddress.IPv4Address(text)
    except ValueError:
        return False
    return address in network and address not in (network[0], network[-1])
