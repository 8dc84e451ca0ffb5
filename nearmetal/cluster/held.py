# SPDX-License-Identifier: Apache-2.0
"""What the nodes of a running cluster have, and keep when others come or go. Pure.

Without it a node that comes or goes would move the ones behind it in the spec to other addresses,
cores and parts of the segment, and each of them would have to be made anew for that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nearmetal.cluster.spec import Kind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nearmetal.cluster.spec import Observed


@dataclass(frozen=True)
class Held:
    """The attributes of nodes and hosts as they are there, by name."""

    nodes: Mapping[str, Mapping[str, str]]
    hosts: Mapping[str, Mapping[str, str]]

    @classmethod
    def of(cls, observed: Observed) -> Held:
        """Return what is held in a cluster as observed."""
        found: dict[Kind, dict[str, Mapping[str, str]]] = {Kind.NODE: {}, Kind.HOST: {}}
        for item in observed.resources:
            if item.key.kind in found:
                found[item.key.kind][item.key.name] = dict(item.attributes)
        return cls(found[Kind.NODE], found[Kind.HOST])

    @property
    def addresses(self) -> dict[str, str]:
        """Each node's address."""
        return {name: node.get("address", "") for name, node in self.nodes.items()}

    def node(self, name: str, **same: str) -> Mapping[str, str]:
        """Return a node's attributes, empty unless those named are as given."""
        return _if_same(self.nodes, name, same)

    def host(self, name: str, **same: str) -> Mapping[str, str]:
        """Likewise of a host."""
        return _if_same(self.hosts, name, same)


def _if_same(
    things: Mapping[str, Mapping[str, str]], name: str, same: Mapping[str, str]
) -> Mapping[str, str]:
    found = things.get(name, {})
    return found if all(found.get(key) == value for key, value in same.items()) else {}


def numbers(text: str) -> tuple[int, ...]:
    """Return the numbers in an attribute, as `0,2`; () when it is no such list."""
    words = text.split(",") if text else []
    return tuple(map(int, words)) if all(word.isdecimal() for word in words) else ()


def number(text: str, otherwise: int) -> int:
    """Return the number in an attribute, or `otherwise` when it is none."""
    return int(text) if text.isdecimal() else otherwise
