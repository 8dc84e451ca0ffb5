# SPDX-License-Identifier: Apache-2.0
"""Which servers nearmetal-computed gives a part of a segment, and why others have none. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nearmetal.cluster.model import some
from nearmetal.core.text import printable

if TYPE_CHECKING:
    from nearmetal.cluster.backends.openstack.spec import OpenstackSpec

EXTRA_SPEC = "nearmetal:segment"
"""The extra spec of a flavor whose servers get a part of this size."""

_LOCKED, _TRUE = "hw:locked_memory", ("1", "t", "true", "on", "y", "yes")
"""The extra spec that servers with virtual functions also need, and what Nova takes for yes."""

STOCK = "stock Nova has no memory that servers share"

_LATE = (
    "their flavor gives them a segment, and nearmetal-computed has not: `nearmetal computed status` "
    "on their hypervisor shows why"
)


@dataclass(frozen=True)
class SharedMemory:
    """What servers of one hypervisor share. `nodes`: those that get a part of a segment.

    `others`: the rest of them. `why`: the reason of these; "" where there are none.
    """

    nodes: tuple[str, ...]
    others: tuple[str, ...]
    why: str

    def reason(self, *nodes: str) -> str:
        """Return why these nodes of one host have no part of one segment."""
        return _LATE if set(nodes).isdisjoint(self.others) else self.why

    def notes(self, missing: Sequence[str]) -> Iterator[str]:
        """Say which nodes use the network. `missing`: those that should have a part now."""
        for nodes, why in ((self.others, self.why), (missing, _LATE)):
            if nodes:
                yield f"nodes {some(list(nodes))}, which share a hypervisor, use the network: {why}"


def shared_memory(spec: OpenstackSpec, flavor: Callable[[str], Any]) -> SharedMemory:
    """Return what the flavors of a cluster give its servers. `flavor`: finds one; None: it is missing.

    A user who may not read extra specs sees none: nothing is awaited then.
    """
    near = [node for host in spec.hosts if len(host.nodes) > 1 for node in host.nodes]
    direct = [network.name for network in spec.networks if network.kind == "direct"]
    without, loose = list[str](), list[str]()
    for name in dict.fromkeys(spec.flavor_of(node) for node in near):
        specs = _specs(flavor(name))
        if not specs.get(EXTRA_SPEC):
            without.append(name)
        elif direct and str(specs.get(_LOCKED)).lower() not in _TRUE:
            loose.append(name)
    whys = []
    if without:
        whys.append(
            f"{STOCK}; with nearmetal-computed, a flavor with the extra spec {EXTRA_SPEC} gives "
            f"some, and flavor {printable(some(without))} shows none"
        )
    if loose:
        whys.append(
            f"with virtual functions (network {some(direct)}), a flavor also needs the extra specs "
            f"{_LOCKED}=true and hw:mem_page_size, and flavor {printable(some(loose))} does not "
            f"show {_LOCKED}"
        )
    given = tuple(n.name for n in near if spec.flavor_of(n) not in (*without, *loose))
    others = tuple(node.name for node in near if node.name not in given)
    return SharedMemory(given, others, "; ".join(whys))


def _specs(flavor: Any) -> dict[str, Any]:
    return getattr(flavor, "extra_specs", None) or {}
