# SPDX-License-Identifier: Apache-2.0
"""Noisy neighbours: a node alone on its host, against all nodes of the host together. Pure.

The nodes may be virtual functions of one adapter, or cores of one host. To lose something together
is normal. To lose more than nodes of the same hardware with as many neighbours is not.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest

from nearmetal.check.performance.classes import NodeClasses
from nearmetal.check.performance.run import QUANTITIES, Item, MeasuredTurn


def neighbourhoods(names: Sequence[str], classes: NodeClasses) -> list[list[str]]:
    """Return the nodes of each host that has several of them."""
    hosts: dict[str, list[str]] = defaultdict(list)
    for name in names:
        if classes.host(name):
            hosts[classes.host(name)].append(name)
    return [nodes for nodes in hosts.values() if len(nodes) > 1]


def alone(names: Sequence[str], classes: NodeClasses) -> Iterator[tuple[str, ...]]:
    """Yield nodes to measure side by side, each alone on its host, until each had its turn."""
    for turn in zip_longest(*neighbourhoods(names, classes)):
        yield tuple(name for name in turn if name is not None)


def losses(
    quantity: str, single: Mapping[str, float], together: Mapping[str, float]
) -> MeasuredTurn:
    """Return the time with neighbours over the time alone, of nodes that have both values."""
    lower = QUANTITIES[quantity].lower_is_better
    values: dict[Item, float] = {
        (name,): together[name] / value if lower else value / together[name]
        for name, value in single.items()
        if name in together
    }
    return MeasuredTurn("neighbours", values)
