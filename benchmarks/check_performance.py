# SPDX-License-Identifier: Apache-2.0
"""Simulate the performance checks: false alarms of healthy clusters, and slow parts that are named.

    python -m benchmarks.check_performance                # the table of docs/design/check.md
    python -m benchmarks.check_performance --clusters 50 --nodes 16

The norm of each pair is that of a real cluster (`tests/data/logs/matrix`): 16 nodes on two switches,
two of them 6 % slower than the others. Larger clusters repeat its nodes. Each value is multiplied by
the noise of a launch: the real values of one cell of `tests/data/logs/osu_repeats` over their median,
drawn again for each value. Bandwidths take cells of osu_bw of at least 64 KiB, latencies cells of
osu_latency up to 8 KiB. No public repetitions of memory bandwidth and processors were at hand:
they take the cells of bandwidths, whose scatter is larger than the usual one of these programs.
Rows of neighbours have four nodes on each host; all lose the same beside each other.
"""

from __future__ import annotations

import argparse
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import product
from math import exp
from pathlib import Path
from statistics import median, median_low
from typing import NamedTuple

from nearmetal.check.performance.classes import ClassPlace, NodeClasses
from nearmetal.check.performance.naming import Culprit, name_parts
from nearmetal.check.performance.procedure import perform
from nearmetal.check.performance.robust import FLOOR
from nearmetal.check.performance.run import NOISE, QUANTITIES, Item, MeasuredTurn, Order
from nearmetal.evidence.parse import parse_log

ROOT = Path(__file__).resolve().parents[1]
LOGS = ROOT / "tests/data/logs"
MATRIX = LOGS / "matrix/stackhpc_alaska_ib_nxnlatbw.csv"
ARMS = ("bare-metal", "usernetes")
MEASURED = ("memory", "processor", "latency", "bandwidth")
SMALL, LARGE = 8 << 10, 64 << 10
SWITCHES = "AAABBABABABBAAAB"
"""The switch of each node of the real cluster, as its latencies show it."""

KNOWN = ("known", "unknown")
SLOWER = (5, 9)
"""The nodes of the real cluster that are 6 % slower than the others."""


@cache
def matrix() -> Mapping[str, Mapping[tuple[int, int], float]]:
    """Return the real values of all pairs, by quantity."""
    found: dict[str, dict[tuple[int, int], float]] = {"latency": {}, "bandwidth": {}}
    for line in MATRIX.read_text(encoding="ascii").splitlines():
        parts = line.split(",")
        if len(parts) == 4 and parts[0].isdigit():  # noqa: PLR2004 - both nodes, both quantities
            pair = (int(parts[0]), int(parts[1]))
            found["latency"][pair] = float(parts[2])
            found["bandwidth"][pair] = float(parts[3])
    return found


@cache
def noises(arm: str) -> Mapping[str, tuple[tuple[float, ...], ...]]:
    """Return the real noise of latencies and bandwidths: cells of values over their median."""
    found: dict[str, list[tuple[float, ...]]] = {"latency": [], "bandwidth": []}
    for quantity, program in (("latency", "osu_latency"), ("bandwidth", "osu_bw")):
        cells: dict[float, list[float]] = {}
        for path in sorted((LOGS / "osu_repeats" / arm).glob(f"{program}-*.out")):
            for table in parse_log(path.read_text(encoding="utf-8"), str(path), "osu").tables:
                for row in table.rows:
                    cells.setdefault(row.values["size"], []).append(row.values[quantity])
        for size, values in cells.items():
            if 0 < size <= SMALL if quantity == "latency" else size >= LARGE:
                found[quantity].append(tuple(value / median(values) for value in values))
    return {quantity: tuple(cells) for quantity, cells in found.items()}


NEIGHBOURS = 4
"""Nodes of a host, in the rows of neighbours."""


class Fault(NamedTuple):
    """Something slow, and whether a result names it and blames nothing else.

    `beside`: the factor on the time of the first nodes while their neighbours work.
    """

    slow: Callable[[Sequence[str], str, Item], float]
    nodes: int
    culprits: frozenset[Culprit]
    measured: tuple[str, ...] = MEASURED
    beside: float = 1.0


@dataclass
class SimulatedCluster:
    """A cluster whose values are real ones with real noise, slowed in some parts."""

    source: random.Random
    count: int
    arm: str
    fault: Fault
    switches: bool = True
    """Whether the switches of nodes are known."""
    names: tuple[str, ...] = ()
    classes: NodeClasses = field(default_factory=NodeClasses)
    _kinds: dict[str, int] = field(default_factory=dict)
    _cells: dict[str, tuple[float, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.names = tuple(f"node-{index:03d}" for index in range(self.count))
        kinds = list(range(16)) * (-(-self.count // 16))
        self.source.shuffle(kinds)
        # The first node gets the fault. A real one that is 6 % slower would make it easier to find.
        usual = next(i for i, kind in enumerate(kinds) if kind not in SLOWER)
        kinds[0], kinds[usual] = kinds[usual], kinds[0]
        self._kinds = dict(zip(self.names, kinds, strict=False))
        if self.switches:
            behind = {name: SWITCHES[kind] for name, kind in self._kinds.items()}
            self.classes = NodeClasses(switches=behind)
        if self.fault.measured == NOISE:
            hosts = {name: f"h{n // NEIGHBOURS}" for n, name in enumerate(self.names)}
            places = {n: ClassPlace((), n, host, f"network of {host}") for n, host in hosts.items()}
            self.classes = replace(self.classes, places=places)
        pools = noises(self.arm)
        for quantity in MEASURED:
            pool = pools["latency" if quantity == "latency" else "bandwidth"]
            self._cells[quantity] = self.source.choice(pool)

    def _norm(self, quantity: str, item: Item) -> float:
        if not QUANTITIES[quantity].of_pairs:
            return 100.0
        values = matrix()[quantity]
        pair = (self._kinds[item[0]], self._kinds[item[1]])
        if pair[0] == pair[1]:  # the same real node twice: it is as near as its nearest partners
            return median_low(sorted(v for p, v in values.items() if p[0] == pair[0])[:6])
        return values[pair]

    def measure(self, order: Order) -> MeasuredTurn:
        """Return the values of an order, each with its own noise."""
        quantity = order.quantity
        pairs = QUANTITIES[quantity].of_pairs
        items = [i for item in order.items for i in ((item, item[::-1]) if pairs else (item,))]
        values: dict[Item, float] = {}
        busy = Counter(self.classes.host(name) for item in order.items for name in item)
        faulty = {*self.names[: self.fault.nodes]}
        for item in items:
            factor = self.fault.slow(self.names, quantity, item)
            if order.times > 1 and any(busy[self.classes.host(n)] > 1 for n in faulty & {*item}):
                factor *= self.fault.beside
            if not QUANTITIES[quantity].lower_is_better:
                factor = 1 / factor
            noise = self.source.choice(self._cells[quantity])
            values[item] = self._norm(quantity, item) * factor * noise
        return MeasuredTurn(quantity, values)


def _node(*quantities: str, factor: float) -> Callable[[Sequence[str], str, Item], float]:
    return lambda names, quantity, item: (
        factor if quantity in quantities and names[0] in item else 1.0
    )


def _pair(*quantities: str, factor: float) -> Callable[[Sequence[str], str, Item], float]:
    return lambda names, quantity, item: (
        factor if quantity in quantities and {*item} == {*names[:2]} else 1.0
    )


def _sends(factor: float) -> Callable[[Sequence[str], str, Item], float]:
    return lambda names, quantity, item: (
        factor if quantity == "bandwidth" and item[0] == names[0] else 1.0
    )


def _none(_names: Sequence[str], _quantity: str, _item: Item) -> float:
    return 1.0


NEIGHBOUR = frozenset({Culprit.NOISE})
NODE = frozenset({Culprit.NODE, Culprit.FOLLOWS})
LINK, PAIR = frozenset({Culprit.LINK}), frozenset({Culprit.PAIR})
FAULTS = {
    "healthy": Fault(_none, 0, frozenset()),
    "node 10 % slow, in all": Fault(_node(*MEASURED, factor=1.1), 1, NODE),
    "node 10 % slow, memory only": Fault(_node("memory", factor=1.1), 1, NODE),
    "link of a node 10 % slow": Fault(_node("latency", "bandwidth", factor=1.1), 1, LINK),
    "a node sends 10 % slower": Fault(_sends(1.1), 1, LINK),
    "pair 10 % slow": Fault(_pair("latency", "bandwidth", factor=1.1), 2, PAIR),
    "neighbours, healthy": Fault(_none, 0, frozenset(), NOISE),
    "neighbours take 10 % of a node": Fault(_none, 1, NEIGHBOUR, NOISE, 1.1),
    "neighbours take 10 % of a host": Fault(_none, NEIGHBOURS, NEIGHBOUR, NOISE, 1.1),
    "neighbours take 30 % of a host": Fault(_none, NEIGHBOURS, NEIGHBOUR, NOISE, 1.3),
    "node at the floor, memory only": Fault(_node("memory", factor=exp(FLOOR)), 0, frozenset()),
    "node 3 % slow, in all": Fault(_node(*MEASURED, factor=1.03), 0, frozenset()),
}


class Outcome(NamedTuple):
    """Shares of clusters."""

    named: float
    """The slow part is named; of healthy clusters: nothing is."""
    others: float
    """Another node is blamed, alone or too."""
    turns: float
    """Mean number of turns of retests."""


def outcome(
    fault: Fault, count: int, arm: str, clusters: int, seed: str, *, switches: bool = True
) -> Outcome:
    """Return the outcome of simulated clusters."""
    source = random.Random(seed)  # noqa: S311 - a simulation, no secret
    named = others = turns = 0
    for _ in range(clusters):
        cluster = SimulatedCluster(source, count, arm, fault, switches)
        run = perform(cluster.names, fault.measured, cluster.measure, cluster.classes)
        parts = name_parts(run, cluster.classes).parts
        right = {*cluster.names[: fault.nodes]}
        good = [p for p in parts if {*p.nodes} == right and p.culprit in fault.culprits]
        named += bool(good) if fault.nodes else not parts
        others += any(not {*p.nodes} <= right for p in parts)
        turns += len(run.retests)
    return Outcome(named / clusters, others / clusters, turns / clusters)


def rows(
    names: Sequence[str], counts: Sequence[int], known: Sequence[str], clusters: int, seed: int
) -> Iterator[str]:
    """Return the table, line by line."""
    yield "| cluster | nodes | noise | switches | right | others blamed | turns of retests |"
    yield "|---|---|---|---|---|---|---|"
    for name in names:
        for count, arm, switches in product(counts, ARMS, known):
            seeds = f"{seed}/{name}/{count}/{arm}/{switches}"
            found = outcome(FAULTS[name], count, arm, clusters, seeds, switches=switches == "known")
            yield (
                f"| {name} | {count} | {arm} | {switches} "
                f"| {100 * found.named:.1f} % | {100 * found.others:.1f} % | {found.turns:.1f} |"
            )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False, prog="python -m benchmarks.check_performance", description=__doc__
    )
    parser.add_argument("--clusters", type=int, default=200, help="clusters per row")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--nodes", type=int, nargs="+", default=[16], help="nodes of a cluster")
    parser.add_argument("--only", choices=FAULTS, nargs="+", default=list(FAULTS), metavar="ROW")
    parser.add_argument("--switches", choices=KNOWN, nargs="+", default=list(KNOWN))
    args = parser.parse_args()
    begin = time.monotonic()
    for line in rows(args.only, args.nodes, args.switches, args.clusters, args.seed):
        print(line, flush=True)
    print(f"\n{args.clusters} clusters a row, seed {args.seed}, {time.monotonic() - begin:.0f} s")


if __name__ == "__main__":
    main()
