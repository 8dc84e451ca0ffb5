# SPDX-License-Identifier: Apache-2.0
"""Screening: which nodes and pairs are so slow in their class that they are measured again. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from statistics import median, median_low

from nearmetal.check.performance.classes import BETWEEN_HOSTS, NodeClasses
from nearmetal.check.performance.hops import groups
from nearmetal.check.performance.neighbours import (
    LEAST_ADAPTERS,
    is_of_traffic,
    neighbourhoods,
)
from nearmetal.check.performance.robust import FLOOR, spread, suspicious_z
from nearmetal.check.performance.run import QUANTITIES, Item, MeasuredTurn, PerformanceRun

LEAST_NODES = 3
"""Fewer nodes of one class have no majority."""

LEAST_PAIRED = 4
"""With three nodes, two of the three pairs hold any slow node, and the slow ones would be normal."""

LEAST_PARTNERS = 3

TWO_LEVELS = "pairs have two levels that no grouping explains, so the switches must be known"
ANOTHER_SWITCH = "only its latency is higher, with all partners: it may be behind another switch"

NO_NEIGHBOURS = "it has no neighbour that is known, or could not be measured beside it"

ClassKey = tuple[object, ...]


class Side(Enum):
    """The part of the traffic that is slow."""

    WHOLE = "works"
    SENDS = "sends"
    RECEIVES = "receives"
    PAIR = "to"


@dataclass(frozen=True)
class Suspicion:
    """A node, or a pair, that seems slow in one quantity. `slow`: the logarithm of the factor."""

    quantity: str
    side: Side
    item: Item
    slow: float
    z: float


@dataclass
class QuantityModel:
    """The norms of one quantity. `class_of` has only items that can be compared."""

    quantity: str
    class_of: dict[Item, ClassKey] = field(default_factory=dict)
    centres: dict[ClassKey, float] = field(default_factory=dict)
    left: dict[Item, float] = field(default_factory=dict)
    """How much slower than its class each item is."""
    effects: dict[tuple[Side, str], float] = field(default_factory=dict)
    """How much slower a node is than its class, as the median over its partners."""
    norms: dict[Side, float] = field(default_factory=dict)
    """The middle of these effects."""
    left_out: dict[str, str] = field(default_factory=dict)

    def slowness(self, item: Item, value: float) -> float | None:
        """Return how much slower a value is than the class of its item; None: no class."""
        key = self.class_of.get(item)
        if key is None:
            return None
        return QUANTITIES[self.quantity].slowness(value) - self.centres[key]

    def explained(self, item: Item) -> float:
        """Return the part of the slowness of a pair that its two nodes explain."""
        return sum(
            max(0.0, self.effects.get((side, node), 0.0) - self.norms.get(side, 0.0))
            for side, node in zip((Side.SENDS, Side.RECEIVES), item, strict=True)
        )

    def expected(self, item: Item) -> float:
        """Return the usual value of the class of an item."""
        return QUANTITIES[self.quantity].value(self.centres[self.class_of[item]])


@dataclass
class Screening:
    """The norms of all quantities, and what is to be measured again."""

    models: dict[str, QuantityModel] = field(default_factory=dict)
    suspicions: tuple[Suspicion, ...] = ()
    tests: int = 0


def screen(run: PerformanceRun, classes: NodeClasses) -> Screening:
    """Return the norms of a run and its suspicions."""
    by_quantity: dict[str, list[MeasuredTurn]] = defaultdict(list)
    for turn in run.screening:
        by_quantity[turn.quantity].append(turn)
    models = {
        name: (_of_pairs if QUANTITIES[name].of_pairs else _of_nodes)(name, turns, classes)
        for name, turns in by_quantity.items()
    }
    for name, model in models.items():
        if QUANTITIES[name].noise_of:
            known = {*model.left_out, *(node for (node,) in model.left)}
            model.left_out |= {n: NO_NEIGHBOURS for n in run.names if n not in known}
    tests = sum(len(model.left) + len(model.effects) for model in models.values())
    found = [one for model in models.values() for one in _suspicions(model, suspicious_z(tests))]
    return Screening(models, tuple(found), tests)


def _middles(name: str, turns: Iterable[MeasuredTurn]) -> dict[Item, float]:
    """Return the slowness of each item: the median of its turns."""
    values: dict[Item, list[float]] = defaultdict(list)
    for turn in turns:
        for item, value in turn.values.items():
            values[item].append(QUANTITIES[name].slowness(value))
    return {item: median(found) for item, found in values.items()}


def _of_nodes(name: str, turns: Sequence[MeasuredTurn], classes: NodeClasses) -> QuantityModel:
    slow = _middles(name, turns)
    model = QuantityModel(name)
    members: dict[ClassKey, list[Item]] = defaultdict(list)
    beside: dict[str, int] = {}
    if QUANTITIES[name].noise_of:
        # With more neighbours, each loses more.
        places = neighbourhoods([i[0] for i in slow], classes, traffic=is_of_traffic(name))
        beside = {node: len(nodes) for nodes in places for node in nodes}
    for item in slow:
        members[classes.of_node(item[0]), beside.get(item[0], 0)].append(item)
    for key, items in members.items():
        if beside and is_of_traffic(name):
            adapters = {classes.adapter(node) for (node,) in items}
            if len(adapters) < LEAST_ADAPTERS:
                why = f"fewer than {LEAST_ADAPTERS} adapters of its kind have as many nodes"
                model.left_out |= {node: why for (node,) in items}
                continue
        if len(items) < LEAST_NODES:
            for (node,) in items:
                model.left_out[node] = f"fewer than {LEAST_NODES} nodes of its hardware and Python"
            continue
        _centre(model, key, items, slow)
    return model


def _of_pairs(name: str, turns: Sequence[MeasuredTurn], classes: NodeClasses) -> QuantityModel:
    slow = _middles(name, turns)
    model = QuantityModel(name)
    known: dict[ClassKey, list[Item]] = defaultdict(list)
    for item in slow:
        known[classes.of_pair(item[0], item[1])].append(item)
    for key, items in known.items():
        names = sorted({node for item in items for node in item})
        group: dict[str, int] | None = dict.fromkeys(names, 0)
        if key[0] == BETWEEN_HOSTS:
            group = groups(names, {(a, b): slow[a, b] for a, b in items})
        if group is None:
            for item in items:
                model.left_out[" to ".join(item)] = TWO_LEVELS
            continue
        parts: dict[bool, list[Item]] = defaultdict(list)
        for item in items:
            parts[group[item[0]] == group[item[1]]].append(item)
        for near, part in parts.items():
            why = _incomparable(part)
            if why:
                for item in part:
                    model.left_out[" to ".join(item)] = why
            else:
                _centre(model, (*key, near), part, slow)
    _effects(model)
    return model


def _incomparable(items: Sequence[Item]) -> str:
    """Return why the pairs of a class cannot be compared; "" if they can."""
    touched = Counter(node for item in items for node in item)
    if len(touched) < LEAST_PAIRED:
        return f"fewer than {LEAST_PAIRED} nodes have such pairs"
    if max(touched.values()) > len(items) / 2:
        return "one node is part of most such pairs"
    return ""


def _centre(
    model: QuantityModel, key: ClassKey, items: Sequence[Item], slow: Mapping[Item, float]
) -> None:
    model.centres[key] = median_low([slow[item] for item in items])
    for item in items:
        model.class_of[item] = key
        model.left[item] = slow[item] - model.centres[key]


def _effects(model: QuantityModel) -> None:
    partners: dict[tuple[Side, str], list[float]] = defaultdict(list)
    for (sender, receiver), left in model.left.items():
        partners[Side.SENDS, sender].append(left)
        partners[Side.RECEIVES, receiver].append(left)
    model.effects = {
        place: median_low(values)
        for place, values in partners.items()
        if len(values) >= LEAST_PARTNERS
    }


def _suspicions(model: QuantityModel, least_z: float) -> Iterator[Suspicion]:
    if not QUANTITIES[model.quantity].of_pairs:
        by_class: dict[ClassKey, dict[Item, float]] = defaultdict(dict)
        for item, key in model.class_of.items():
            by_class[key][item] = model.left[item]
        for values in by_class.values():
            yield from _slow(model.quantity, Side.WHOLE, values, least_z)
        return
    for side in (Side.SENDS, Side.RECEIVES):
        ours: dict[Item, float] = {
            (node,): slow for (which, node), slow in model.effects.items() if which is side
        }
        if len(ours) >= LEAST_PAIRED:
            model.norms[side] = spread(list(ours.values())).middle
            yield from _slow(model.quantity, side, ours, least_z)
    rests = {item: slow - model.explained(item) for item, slow in model.left.items()}
    yield from _slow(model.quantity, Side.PAIR, rests, least_z)


def _slow(
    quantity: str, side: Side, values: Mapping[Item, float], least_z: float
) -> Iterator[Suspicion]:
    """Yield the items that are slower than the floor, and slow among these values."""
    if not values:
        return
    norm = spread(list(values.values()))
    for item, slow in values.items():
        above, z = slow - norm.middle, norm.z(slow)
        if above > FLOOR and z >= least_z:
            yield Suspicion(quantity, side, item, above, z)
