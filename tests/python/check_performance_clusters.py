# SPDX-License-Identifier: Apache-2.0
"""Clusters without noise for the performance checks: every value is that of a formula."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from nearmetal.check.performance.classes import ClassPlace, NodeClasses
from nearmetal.check.performance.naming import Named, name_parts
from nearmetal.check.performance.procedure import perform
from nearmetal.check.performance.run import QUANTITIES, Item, MeasuredTurn, Order, PerformanceRun

Factor = Callable[[str, Item], float]
"""The factor on the time of an item."""

ALL = ("memory", "processor", "latency", "bandwidth")


def names(count: int) -> tuple[str, ...]:
    """Return the names of a cluster."""
    return tuple(f"n{index}" for index in range(count))


def places(hosts: Mapping[str, Sequence[str]]) -> NodeClasses:
    """Return classes in which each host has some nodes."""
    return NodeClasses(
        {
            node: ClassPlace(("guest",), node, host)
            for host, nodes in hosts.items()
            for node in nodes
        }
    )


def measure(
    cluster: Sequence[str],
    factor: Factor,
    classes: NodeClasses | None = None,
    quantities: Sequence[str] = ALL,
) -> PerformanceRun:
    """Return the run of a cluster whose values are all 100, apart from the factor and 0.1 %."""

    def ask(order: Order) -> MeasuredTurn:
        pairs = QUANTITIES[order.quantity].of_pairs
        items = [i for item in order.items for i in ((item, item[::-1]) if pairs else (item,))]
        values = {}
        for place, item in enumerate(items):
            slow = factor(order.quantity, item) * (1 + 0.001 * (place % 3))
            better = QUANTITIES[order.quantity].lower_is_better
            values[item] = 100 * slow if better else 100 / slow
        return MeasuredTurn(order.quantity, values)

    return perform(cluster, quantities, ask, classes or NodeClasses())


def named(
    cluster: Sequence[str],
    factor: Factor,
    classes: NodeClasses | None = None,
    quantities: Sequence[str] = ALL,
) -> Named:
    """Return the slow parts of such a run."""
    return name_parts(measure(cluster, factor, classes, quantities), classes or NodeClasses())
