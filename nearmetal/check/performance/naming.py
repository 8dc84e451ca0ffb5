# SPDX-License-Identifier: Apache-2.0
"""Names: a node, a link or a pair. Pure.

A node is slow if its processor or its memory is. If only its traffic is slow, with every partner,
then its link is: adapter, cable or port. If the same node is fast within its host, then it is the
link of the host. A pair is named if each of its nodes is fast with other partners; several such
pairs between the same two hosts are the link between these hosts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from statistics import median

from nearmetal.check.performance.classes import BETWEEN_HOSTS, WITHIN_A_HOST, NodeClasses
from nearmetal.check.performance.neighbours import is_of_traffic, neighbourhoods
from nearmetal.check.performance.retest import Confirmation, confirm
from nearmetal.check.performance.robust import FLOOR
from nearmetal.check.performance.run import QUANTITIES, Item, PerformanceRun
from nearmetal.check.performance.screen import (
    ANOTHER_SWITCH,
    QuantityModel,
    Screening,
    Side,
    screen,
)

UNSETTLED = "it seemed slow, and too few retests could be made to settle it: measure again"


LATENCIES = ("latency", "mpi_latency", "rdma_latency")
"""A node behind another switch has all of them higher."""


class Culprit(Enum):
    """The part that is slow."""

    NODE = "node"
    FOLLOWS = "traffic of a slow node"
    LINK = "link of the node"
    HOST_LINK = "link of the host"
    BETWEEN = "link between two hosts"
    PAIR = "pair"
    NOISE = "neighbours"


@dataclass(frozen=True)
class SlowPart:
    """Something slow, with a name. `sides`: the slow directions. `slow`: a logarithm."""

    quantity: str
    culprit: Culprit
    nodes: tuple[str, ...]
    sides: tuple[Side, ...]
    slow: float
    value: float
    """As the screening measured it: of a node, or the median over its pairs."""
    expected: float
    retests: int
    slow_retests: int
    one_way: bool = False
    """Of a pair: only the direction from the first of `nodes` to the second is slow."""
    noise: str = ""
    """The host or the adapter that makes nodes slow to each other, in words."""
    beside: tuple[str, ...] = ()
    """All nodes of that host or adapter."""


@dataclass
class Named:
    """The result of a run: slow parts, and what could not be compared, with the reason."""

    parts: tuple[SlowPart, ...]
    screening: Screening
    confirmations: tuple[Confirmation, ...]

    def not_compared(self) -> dict[str, str]:
        """Return why nodes and pairs were left out, or not settled by their retests, by quantity."""
        reasons: dict[tuple[str, str], set[str]] = defaultdict(set)
        for quantity, model in self.screening.models.items():
            for what, why in model.left_out.items():
                reasons[quantity, what].add(why)
        for one in self.confirmations:
            if one.proven is None:
                reasons[one.suspicion.quantity, " to ".join(one.suspicion.item)].add(UNSETTLED)
        return dict(_by_reason(reasons))


def _by_reason(reasons: Mapping[tuple[str, str], set[str]]) -> Iterator[tuple[str, str]]:
    """Yield what has the same quantity and reasons together, by the first name."""
    alike: dict[tuple[str, str], list[str]] = defaultdict(list)
    for (quantity, what), whys in reasons.items():
        alike[quantity, "; ".join(sorted(whys))].append(what)
    for (quantity, why), items in alike.items():
        more = f" and {len(items) - 1} more" if len(items) > 1 else ""
        yield f"performance.{quantity} of {min(items)}{more}", why


def name_parts(run: PerformanceRun, classes: NodeClasses) -> Named:
    """Return the slow parts of a run."""
    screening = screen(run, classes)
    confirmations = confirm(run.retests, screening)
    proven = [one for one in confirmations if one.proven]
    slow_nodes = {
        one.suspicion.item[0]
        for one in proven
        if one.suspicion.side is Side.WHOLE and not QUANTITIES[one.suspicion.quantity].noise_of
    }
    parts: list[SlowPart] = []
    for quantity, model in screening.models.items():
        ours = [one for one in proven if one.suspicion.quantity == quantity]
        if QUANTITIES[quantity].noise_of:
            parts += _noisy(model, ours, run, classes)
            continue
        if not QUANTITIES[quantity].of_pairs:
            parts += [_part(model, Culprit.NODE, one.suspicion.item, [one]) for one in ours]
            continue
        by_node: dict[str, list[Confirmation]] = defaultdict(list)
        pairs: list[Confirmation] = []
        for one in ours:
            if one.suspicion.side is Side.PAIR:
                pairs.append(one)
            else:
                by_node[one.suspicion.item[0]].append(one)
        for node in _perhaps_far(model, by_node, classes, proven):
            model.left_out[node] = ANOTHER_SWITCH
            del by_node[node]
        parts += _links(model, by_node, classes, slow_nodes)
        parts += _pairs(model, pairs, classes, {*by_node, *slow_nodes})
    return Named(tuple(parts), screening, tuple(confirmations))


def _noisy(
    model: QuantityModel,
    ours: Sequence[Confirmation],
    run: PerformanceRun,
    classes: NodeClasses,
) -> Iterator[SlowPart]:
    """Yield one part for each host or adapter whose nodes lose too much to each other."""
    traffic = is_of_traffic(model.quantity)
    for place in neighbourhoods(run.names, classes, traffic=traffic):
        found = [one for one in ours if one.suspicion.item[0] in place]
        if found:
            nodes = sorted(one.suspicion.item[0] for one in found)
            part = _part(model, Culprit.NOISE, nodes, found)
            noise = classes.adapter(place[0]) if traffic else ""
            if not noise or noise == classes.host(place[0]):
                hosts = sorted({run.hosts.get(name, "") for name in place} - {""})
                noise = f"host {' '.join(hosts)}" if hosts else "host"
            yield replace(part, noise=noise, beside=tuple(place))


def _perhaps_far(
    model: QuantityModel,
    nodes: Iterable[str],
    classes: NodeClasses,
    proven: Sequence[Confirmation],
) -> list[str]:
    """Return the nodes that only their latency makes slow, and that a switch may explain."""
    if model.quantity not in LATENCIES:
        return []
    otherwise = {
        name for one in proven if not _of_latency(one.suspicion.quantity) for name in _nodes(one)
    }
    return [n for n in nodes if n not in otherwise and _another_switch(model, n, classes)]


def _of_latency(quantity: str) -> bool:
    """Whether a quantity shows no more than a latency does; a loss to neighbours shows no link."""
    return quantity in LATENCIES or bool(QUANTITIES[quantity].noise_of)


def _nodes(one: Confirmation) -> tuple[str, ...]:
    """Return the nodes whose slowness a confirmation shows: no end of a pair alone."""
    return () if one.suspicion.side is Side.PAIR else one.suspicion.item


def _another_switch(model: QuantityModel, node: str, classes: NodeClasses) -> bool:
    """Whether a node has pairs whose switches are not known, and no slow ones within its host."""
    hops = [classes.hop(*item) for item in model.left if node in item]
    within = any(hop in WITHIN_A_HOST for hop in hops)
    return BETWEEN_HOSTS in hops and (not within or _fast_within(model, node, classes))


def _part(
    model: QuantityModel, culprit: Culprit, nodes: Sequence[str], ours: Sequence[Confirmation]
) -> SlowPart:
    items = [item for one in ours for item in _items(model, one)]
    worst = max(ours, key=lambda one: one.typical)
    expected = median(model.expected(item) for item in items)
    return SlowPart(
        model.quantity,
        culprit,
        tuple(nodes),
        tuple(dict.fromkeys(one.suspicion.side for one in ours)),
        worst.typical,
        _factor(model, expected, worst.typical),
        expected,
        worst.retests,
        worst.slow,
    )


def _factor(model: QuantityModel, expected: float, slow: float) -> float:
    """Return the value that is this much slower than the expected one."""
    quantity = QUANTITIES[model.quantity]
    return quantity.value(quantity.slowness(expected) + slow)


def _items(model: QuantityModel, one: Confirmation) -> list[Item]:
    suspicion = one.suspicion
    if suspicion.side in (Side.PAIR, Side.WHOLE):
        return [suspicion.item]
    at = 0 if suspicion.side is Side.SENDS else 1
    return [item for item in model.left if item[at] == suspicion.item[0]]


def _links(
    model: QuantityModel,
    by_node: Mapping[str, Sequence[Confirmation]],
    classes: NodeClasses,
    slow_nodes: set[str],
) -> Iterator[SlowPart]:
    hosts: dict[str, list[str]] = defaultdict(list)
    for node, ours in by_node.items():
        host = classes.host(node)
        if node in slow_nodes:
            yield _part(model, Culprit.FOLLOWS, (node,), ours)
        elif host and _fast_within(model, node, classes):
            hosts[host].append(node)
        else:
            yield _part(model, Culprit.LINK, (node,), ours)
    for nodes in hosts.values():
        ours = [one for node in nodes for one in by_node[node]]
        yield _part(model, Culprit.HOST_LINK, nodes, ours)


def _fast_within(model: QuantityModel, node: str, classes: NodeClasses) -> bool:
    """Whether a node has fast pairs within its host."""
    within = [
        left
        for item, left in model.left.items()
        if node in item and classes.hop(*item) in WITHIN_A_HOST
    ]
    return bool(within) and median(within) <= FLOOR


def _pairs(
    model: QuantityModel,
    pairs: Iterable[Confirmation],
    classes: NodeClasses,
    named: set[str],
) -> Iterator[SlowPart]:
    by_pair: dict[tuple[str, ...], list[Confirmation]] = defaultdict(list)
    by_node: dict[str, list[Confirmation]] = defaultdict(list)
    for one in pairs:
        if not named.isdisjoint(one.suspicion.item):
            continue
        ends = [
            node
            for node, slow in zip(one.suspicion.item, one.exchanged, strict=True)
            if slow > FLOOR
        ]
        for node in ends:
            by_node[node].append(one)
        if not ends:
            by_pair[tuple(sorted(one.suspicion.item))].append(one)
    for node, ours in by_node.items():
        yield _part(model, Culprit.LINK, (node,), ours)
    hosts: dict[tuple[str, ...], list[tuple[str, ...]]] = defaultdict(list)
    for pair in by_pair:
        ends = sorted(classes.host(node) for node in pair)
        hosts[tuple(ends) if all(ends) and len(set(ends)) > 1 else pair].append(pair)
    for among in hosts.values():
        ours = [one for pair in among for one in by_pair[pair]]
        nodes = tuple(sorted({node for pair in among for node in pair}))
        if len(among) > 1:
            yield _part(model, Culprit.BETWEEN, nodes, ours)
        else:
            directed = {one.suspicion.item for one in ours}
            one_way = len(directed) == 1
            part = _part(model, Culprit.PAIR, next(iter(directed)) if one_way else nodes, ours)
            yield replace(part, one_way=one_way)
