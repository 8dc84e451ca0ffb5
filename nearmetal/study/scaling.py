# SPDX-License-Identifier: Apache-2.0
"""Strong scaling: how much of the ideal speed-up is left at each number of nodes. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from nearmetal.study.stats import Ratio, ratio

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nearmetal.study.model import Cell


class Efficiency(NamedTuple):
    """One number of nodes: speed-up against the smallest, its ideal, and their ratio."""

    nodes: int
    speedup: Ratio
    ideal: float

    @property
    def value(self) -> float:
        """The efficiency; 1 is ideal."""
        return self.speedup.value / self.ideal


def efficiency(cells: Iterable[Cell]) -> list[Efficiency]:
    """Return the efficiencies of one arm's cells that differ in nodes only, smallest first."""
    by_nodes = {cell.point.nodes: cell for cell in cells if cell.point.nodes}
    if not by_nodes:
        return []
    smallest = min(nodes for nodes in by_nodes if nodes)
    base = by_nodes[smallest]
    found = []
    for nodes in sorted(nodes for nodes in by_nodes if nodes):
        cell = by_nodes[nodes]
        sides = (
            (base.values, cell.values) if cell.point.lower_is_better else (cell.values, base.values)
        )
        speedup = ratio(*sides)
        if speedup is not None:
            found.append(Efficiency(nodes, speedup, nodes / smallest))
    return found
