# SPDX-License-Identifier: Apache-2.0
"""Which address each node of a cluster has. Pure."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, Protocol

from nearmetal.cluster.model import Finding

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nearmetal.cluster.model import Host, Network, Node

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
