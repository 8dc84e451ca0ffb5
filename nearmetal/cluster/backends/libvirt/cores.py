# SPDX-License-Identifier: Apache-2.0
"""Which cores of a hypervisor its nodes are pinned to. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nearmetal.core.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nearmetal.cluster.backends.libvirt.plan import VirtualNode
    from nearmetal.cluster.backends.libvirt.spec import LibvirtNode
    from nearmetal.cluster.spec import HostFacts


class Cores:
    """Deals the cores of one hypervisor to its nodes.

    A node whose cores are dealt keeps the ones it has. Another one gets those that the fewest such
    nodes have, in their order: in a new cluster the next ones, beginning anew behind the last.
    """

    def __init__(self, facts: HostFacts) -> None:
        """Nothing is dealt yet."""
        self.facts = facts
        self.users: dict[int, list[str]] = {}
        self.nr_slots = 0
        self._dealt = dict.fromkeys(facts.cpus, 0)
        self._kept: dict[str, tuple[int, ...]] = {}

    def keep(self, node: LibvirtNode, held: VirtualNode | None) -> None:
        """Let a node keep what it holds, where that is what it asks for; before any `assign`."""
        have = () if held is None else held.cpus
        fits = len(set(have)) == len(have) == min(node.slots, len(self.facts.cpus))
        if node.cpus == "auto" and fits and set(have) <= set(self.facts.cpus):
            self._kept[node.name] = have
            self._count(have)

    def _count(self, cpus: Sequence[int]) -> None:
        for cpu in cpus:
            self._dealt[cpu] += 1

    def assign(self, node: LibvirtNode) -> tuple[int, ...]:
        """Return the cores of one node, () for the kernel's choice."""
        self.nr_slots += node.slots
        if node.cpus == "none":
            return ()
        if node.cpus != "auto":
            chosen = self._given(node, node.cpus)
        elif node.name in self._kept:
            chosen = self._kept[node.name]
        else:
            order = sorted(self.facts.cpus, key=lambda cpu: self._dealt[cpu])
            chosen = tuple(sorted(order[: node.slots]))
            self._count(chosen)
        for cpu in chosen:
            self.users.setdefault(cpu, []).append(node.name)
        return chosen

    def _given(self, node: LibvirtNode, cpus: Sequence[int]) -> tuple[int, ...]:
        foreign = [cpu for cpu in cpus if cpu not in self.facts.cpus]
        if foreign:
            listed = ", ".join(map(str, self.facts.cpus))
            msg = f"node {node.name}: {self.facts.uri} has no core {foreign[0]} to give"
            raise StateError(msg, f"use cores out of {listed}, or cpus: auto")
        return tuple(sorted(cpus))

    def emulator(self, node: LibvirtNode, held: VirtualNode | None) -> tuple[int, ...]:
        """Return the cores of QEMU's own threads; asked when all nodes have theirs."""
        if node.emulator_cpus == "none":
            return ()
        if node.emulator_cpus == "auto":
            have = () if held is None else held.emulator_cpus
            if have and set(have) <= set(self.facts.cpus):
                return have
            free = [cpu for cpu in self.facts.cpus if cpu not in self.users]
            return tuple(free or self.facts.cpus)
        return self._given(node, node.emulator_cpus)

    def cells(self, node: LibvirtNode, cpus: Sequence[int]) -> tuple[int, ...]:
        """Return the host's NUMA nodes that a node's memory comes from; () for any."""
        if node.numa == "none" or not cpus or len(self.facts.numa) < 2:  # noqa: PLR2004 - a choice
            return ()
        return tuple(sorted({self.facts.cell_of(cpu) for cpu in cpus}))
