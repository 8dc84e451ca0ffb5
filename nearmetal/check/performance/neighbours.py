# SPDX-License-Identifier: Apache-2.0
"""Noisy neighbours: what a node gets alone on its host or adapter, and what beside all others. Pure.

To lose something together is normal. To lose more than nodes of the same hardware with as many
neighbours is not. The time beside the others over the time alone is a value of the node; it is
screened and retested as any other.

Cores and memory are those of a host. Traffic leaves by an adapter: by the physical function of the
nodes' virtual functions, or by the network of the host. Each node of an adapter exchanges messages
with a node of one other adapter, and in each turn with another one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from math import exp

from nearmetal.check.performance.classes import NodeClasses
from nearmetal.check.performance.run import QUANTITIES, Ask, Item, MeasuredTurn, Order
from nearmetal.check.performance.tournament import Pair, tournament

LONGER = 2
"""Values take this much longer, so that the neighbours' work covers each of them."""

LEAST_ADAPTERS = 4
"""With three adapters, two of the three pairs have any noisy one, and its loss would be normal."""

_ALONE = "each node is alone on its {0}, as far as is known|nearmetal status SPEC"
_UNKNOWN = (
    "the {0}s of the nodes are not known, so neither are neighbours|"
    "nearmetal check performance SPEC  # a cluster knows its hosts"
)
_FEW = "adapters with several nodes: {0}, and it takes {1} to name one|nearmetal status SPEC"


def is_of_traffic(quantity: str) -> bool:
    """Whether neighbours share the adapter in a quantity of noise, not cores and memory."""
    return QUANTITIES[QUANTITIES[quantity].noise_of].of_pairs


def is_without_noise(words: str) -> bool:
    """Whether these are the words of `why_not` for nodes without any neighbour: nothing lacks."""
    return words in {_ALONE.format(place) for place in ("host", "adapter")}


def neighbourhoods(
    names: Sequence[str], classes: NodeClasses, *, traffic: bool = False
) -> list[list[str]]:
    """Return the nodes of each host, or of each adapter, that has several of them."""
    places: dict[str, list[str]] = defaultdict(list)
    for name in names:
        place = classes.adapter(name) if traffic else classes.host(name)
        if place:
            places[place].append(name)
    return [nodes for nodes in places.values() if len(nodes) > 1]


def why_not(quantity: str, names: Sequence[str], classes: NodeClasses) -> str:
    """Return why a noise cannot be measured, as "why|remedy"; "" if it can."""
    traffic = is_of_traffic(quantity)
    found = neighbourhoods(names, classes, traffic=traffic)
    if found:
        few = traffic and len(found) < LEAST_ADAPTERS
        return _FEW.format(len(found), LEAST_ADAPTERS) if few else ""
    known = all(classes.adapter(name) if traffic else classes.host(name) for name in names)
    return (_ALONE if known else _UNKNOWN).format("adapter" if traffic else "host")


def alone(places: Sequence[Sequence[Item]]) -> Iterator[tuple[Item, ...]]:
    """Yield what to measure side by side, one of each place, until all had their turn."""
    for turn in zip_longest(*places):
        yield tuple(item for item in turn if item is not None)


def meetings(places: Sequence[Sequence[str]], turn: int) -> list[list[Pair]]:
    """Return the pairs of each two adapters that meet in a turn."""
    rounds = tournament([str(index) for index in range(len(places))])
    found = []
    for a, b in rounds[turn % len(rounds)]:
        ours, theirs = places[int(a)], places[int(b)]
        shift = turn // len(rounds) % len(theirs)
        found.append(list(zip(ours, [*theirs[shift:], *theirs[:shift]], strict=False)))
    return found


@dataclass
class NoiseMeasurement:
    """Measures the quantities of noise by those that `ask` knows; others go to `ask` unchanged.

    Against drift, every second turn has the reverse order: each alone, and then all together.
    """

    ask: Ask
    names: Sequence[str]
    classes: NodeClasses
    _turns: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    def __call__(self, order: Order) -> MeasuredTurn:
        """Return the loss of each node that has neighbours."""
        base = QUANTITIES[order.quantity].noise_of
        if not base:
            return self.ask(order)
        traffic = is_of_traffic(order.quantity)
        places = neighbourhoods(self.names, self.classes, traffic=traffic)
        turn = self._turns[order.quantity]
        self._turns[order.quantity] += 1
        if not places:
            return MeasuredTurn(order.quantity, {})
        items: Sequence[Sequence[Item]]
        items = meetings(places, turn) if traffic else [[(n,) for n in nodes] for nodes in places]
        orders = [tuple(item for place in items for item in place), *alone(items)]
        if turn % 2:
            orders.reverse()
        times = [self._times(Order(base, asked, LONGER)) for asked in orders]
        if turn % 2:
            times.reverse()
        together, *single = times
        whole = {name for place in items for name in _whole(place, places)}
        wanted = {name for (name,) in order.items} & (whole if traffic else {*self.names})
        values: dict[Item, float] = {
            (name,): together[name] / time
            for one in single
            for name, time in one.items()
            if name in together and name in wanted
        }
        return MeasuredTurn(order.quantity, values)

    def _times(self, order: Order) -> Mapping[str, float]:
        """Return the time of each node: of a pair, that of both ways together."""
        quantity, values = QUANTITIES[order.quantity], self.ask(order).values
        found: dict[str, float] = {}
        for item in order.items:
            ways = (item, item[::-1]) if quantity.of_pairs else (item,)
            if all(way in values for way in ways):
                time = sum(exp(quantity.slowness(values[way])) for way in ways)
                found |= dict.fromkeys(item, time)
        return found


def _whole(pairs: Sequence[Item], places: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the nodes of the adapters of which each node is in a pair."""
    busy = {name for pair in pairs for name in pair}
    for nodes in places:
        if busy.issuperset(nodes):
            yield from nodes
