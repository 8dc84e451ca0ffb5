# SPDX-License-Identifier: Apache-2.0
"""The classes of nodes and pairs: same hardware, same kind of hop, as snapshots show them. Pure.

A fact that may itself be the fault is no part of a class: the rate of a port, memory that is
missing, the processors that a control group leaves. Else the slow node would be alone in a class,
and normal.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from nearmetal.check.families.uniformity import kind_of
from nearmetal.check.performance.run import MAX_TEXT
from nearmetal.check.snapshot import Snapshot
from nearmetal.core.text import printable

_WORD = 8
"""Letters of a boot id that tell kernels apart in words."""

ONE_KERNEL, ONE_HOST, BETWEEN_HOSTS = "in one kernel", "in one host", "between hosts"
ONE_SWITCH, BETWEEN_SWITCHES = "by one switch", "between switches"
WITHIN_A_HOST = (ONE_KERNEL, ONE_HOST)


class ClassPlace(NamedTuple):
    """What a snapshot says of a node.

    `host`: its kernel, or the host of its virtual machine. `adapter`: the physical function whose
    virtual functions are its interfaces, or the network of its host, as the cluster names it.
    """

    hardware: tuple[str, ...] = ()
    kernel: str = ""
    host: str = ""
    adapter: str = ""


PairClass = tuple[str, tuple[tuple[str, ...], ...]]
"""The kind of hop, and the hardware of both ends."""


@dataclass(frozen=True)
class NodeClasses:
    """The places of nodes. A node without a snapshot has an unknown place.

    `switches`: the switch of each node, as the user says it; no snapshot shows it.
    """

    places: Mapping[str, ClassPlace] = field(default_factory=dict)
    switches: Mapping[str, str] = field(default_factory=dict)

    def of_node(self, name: str) -> tuple[str, ...]:
        """Return the class of a node."""
        return self.places.get(name, ClassPlace()).hardware

    def of_pair(self, a: str, b: str) -> PairClass:
        """Return the class of a pair, which is the same in both directions."""
        ends = sorted((self.of_node(a), self.of_node(b)))
        return self.hop(a, b), tuple(ends)

    def hop(self, a: str, b: str) -> str:
        """Return the kind of hop between two nodes."""
        ours, theirs = (self.places.get(name, ClassPlace()) for name in (a, b))
        if ours.kernel and ours.kernel == theirs.kernel:
            return ONE_KERNEL
        if ours.host and ours.host == theirs.host:
            return ONE_HOST
        behind = {self.switches.get(a, ""), self.switches.get(b, "")}
        if "" in behind:
            return BETWEEN_HOSTS
        return ONE_SWITCH if len(behind) == 1 else BETWEEN_SWITCHES

    def host(self, name: str) -> str:
        """Return the host of a node, "" if it is not known."""
        return self.places.get(name, ClassPlace()).host

    def adapter(self, name: str) -> str:
        """Return the adapter by which a node sends, else its host; "" if neither is known."""
        return self.places.get(name, ClassPlace()).adapter or self.host(name)

    def in_run(self, hosts: Mapping[str, str], software: Mapping[str, str]) -> NodeClasses:
        """Return the classes with what only a run knows, see PerformanceRun.

        What a snapshot says of a host is kept. Of one name, it holds for all nodes of this name.
        """
        named = {hosts[name]: p.host for name, p in self.places.items() if p.host and name in hosts}
        places = {
            name: place._replace(
                hardware=(*place.hardware, software.get(name, "")),
                host=place.host or named.get(hosts.get(name, ""), hosts.get(name, "")),
                adapter=place.adapter or (f"network of {hosts[name]}" if name in hosts else ""),
            )
            for name, place in self.places.items()
        }
        return replace(self, places=places)


def classes(snapshots: Iterable[Snapshot], switches: Mapping[str, str]) -> NodeClasses:
    """Return the classes of nodes. Hosts may be among the snapshots: they know their machines."""
    places: dict[str, ClassPlace] = {}
    uuids: dict[str, str] = {}
    owners: dict[str, str] = {}
    for node in snapshots:
        kernel = node.text("system", "boot_id")
        places[node.name] = ClassPlace(_hardware(node), kernel, kernel, _adapter(node))
        if node.flag("virtual", "guest"):
            uuids[node.name] = node.text("virtual", "uuid")
        for uuid in node.table("virtual", "guests"):
            owners[uuid] = kernel
    for name, uuid in uuids.items():
        places[name] = places[name]._replace(host=owners.get(uuid, ""))
    return NodeClasses(places, switches)


def _adapter(node: Snapshot) -> str:
    """Return the adapters whose virtual functions a node sends by; "": a guest does not see it."""
    addresses = {node.text("net", name, "address") for name in node.table("net")}
    cards = {node.text("pci", address, "physical") for address in addresses} - {""}
    kernel = node.text("system", "boot_id")[:_WORD]
    words = " ".join(sorted(printable(card) for card in cards))
    return f"{words} of kernel {printable(kernel)}"[:MAX_TEXT] if words else ""


def _hardware(node: Snapshot) -> tuple[str, ...]:
    adapters = {
        node.text("fabric", device, "hca_type") or node.text("fabric", device, "driver")
        for device in node.table("fabric")
    }
    return (
        kind_of(node),
        node.text("system", "dmi", "product_name"),
        node.text("processor", "model"),
        *(str(node.count("processor", key)) for key in ("packages", "cores")),
        " ".join(sorted(adapters)),
    )
