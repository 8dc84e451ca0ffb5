# SPDX-License-Identifier: Apache-2.0
"""Measures pairs of nodes over their RDMA devices: RDMA writes by perftest, in both directions.

The nodes are read once. Each pair uses the ports that fit together, and for RoCE two GIDs of one
network. The programs end with each value, and what a broken pair left in its nodes is ended there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import comb

from nearmetal.check.performance.run import (
    BY_RDMA,
    LIMIT_S,
    QUANTITIES,
    Item,
    MeasuredTurn,
    Order,
    is_possible,
)
from nearmetal.check.unmeasured import Unmeasured
from nearmetal.core.process import AT_ONCE, Runner
from nearmetal.core.progress import Progress
from nearmetal.host.fabric import ACTIVE, ends_of
from nearmetal.host.parse.ibverbs import RdmaNode
from nearmetal.job.client_server import NodeEntrance
from nearmetal.job.fabric import (
    TYPICAL,
    FabricMeasurement,
    FabricNodes,
    FabricPair,
    FabricTest,
    read_nodes,
)

PROGRAMS = {"rdma_latency": "ib_write_lat", "rdma_bandwidth": "ib_write_bw"}
SIZES = {"rdma_latency": 2, "rdma_bandwidth": 1 << 16}
ITERATIONS = 1000
_GBIT_TO_MEGABYTES = 1000 / 8
_LEAST = 2
_READ_S = 60.0
_NO_DEVICE = f"no active RDMA device, or no {' and '.join(PROGRAMS.values())}"
_KIND = "two active ports of one kind"
_REMEDY = "nearmetal check --profile health_extended  # fabric.*; apt-get install perftest"


@dataclass
class RdmaMeasurement:
    """The pairs of a run. The nodes are read with the first order.

    `addresses`: returns how other nodes reach each node. `lacking`: "why|remedy" of each quantity
    that no pair can have.
    """

    entrance: NodeEntrance
    runner: Runner
    names: Sequence[str]
    addresses: Callable[[], Mapping[str, str]]
    progress: Progress
    limit_s: float = LIMIT_S
    lacking: dict[str, str] = field(default_factory=dict)
    setup: dict[str, str] = field(default_factory=dict)
    _able: dict[str, RdmaNode] | None = None
    _unmeasured: Unmeasured = field(init=False)
    _apart: set[frozenset[str]] = field(default_factory=set)
    _quantity: str = ""
    _why: str = ""
    """Why a node cannot be measured."""

    def __post_init__(self) -> None:
        """Nothing has failed yet."""
        self._unmeasured = Unmeasured(len(self.names))
        self._nodes = FabricNodes(self.entrance, self.runner)

    @property
    def failures(self) -> dict[Item, str]:
        """Nodes and ways without a value, and why."""
        return self._unmeasured.reasons()

    def ask(self, order: Order) -> MeasuredTurn:
        """Measure pairs side by side, all in one direction and then all in the other."""
        name = order.quantity
        if name != self._quantity:
            self._quantity = name
            self.progress.step(f"measures {QUANTITIES[name].title}")
        able = self._read() if self._able is None else self._able
        if len(able) < _LEAST:
            self.lacking[name] = f"fewer than two nodes can be measured: {self._why}|{_REMEDY}"
            return MeasuredTurn(name, {})
        items = [
            item
            for item in order.items
            if able.keys() >= {*item}
            and not self._unmeasured.is_left_out(name, item)
            and self._fit(item, able)
        ]
        if self._apart:
            self.setup[name] = f"{_setup(name)}; pairs without {_KIND}: {len(self._apart)}"
            if len(self._apart) == comb(len(able), 2):
                self.lacking[name] = f"no pair has {_KIND}|{_REMEDY}"
        values: dict[Item, float] = {}
        for ways in (items, [item[::-1] for item in items]):
            for first in range(0, len(ways), AT_ONCE):
                values |= self._sent(name, ways[first : first + AT_ONCE], able, order.times)
        for item in items:
            if item not in values or item[::-1] not in values:
                # Each failure costs time: what fails twice is left out.
                self._unmeasured.was_late(name, item)
        return MeasuredTurn(name, values)

    def _fit(self, item: Item, able: Mapping[str, RdmaNode]) -> bool:
        """Whether two nodes have ports of one kind; nodes of two fabrics are no fault."""
        if ends_of(item, able) is None:
            self._apart.add(frozenset(item))
        return frozenset(item) not in self._apart

    def _sent(
        self, name: str, ways: Sequence[Item], able: Mapping[str, RdmaNode], times: int
    ) -> dict[Item, float]:
        """Return the values of ways from a client to a server."""
        places = self.addresses()
        pairs: dict[Item, FabricPair] = {}
        for way in ways:
            ends, address = ends_of(way[::-1], able), places.get(way[1], "")
            if ends and address:
                pairs[way] = FabricPair(ends, address)
            else:
                self._unmeasured.fail(name, way, f"{way[1]} has no address")
        test = FabricTest(iterations=ITERATIONS * times, timeout_s=self.limit_s)
        measurement = FabricMeasurement(self._nodes, test, TYPICAL)
        figures = measurement.figures([*pairs.values()], PROGRAMS[name], SIZES[name])
        values: dict[Item, float] = {}
        for way, figure in zip(pairs, figures, strict=True):
            if isinstance(figure, float) and is_possible(figure):
                values[way] = figure * (1.0 if name == "rdma_latency" else _GBIT_TO_MEGABYTES)
                self._unmeasured.succeed(name, way)
            else:
                why = figure if isinstance(figure, str) else f"{figure} is not possible"
                self._unmeasured.fail(name, way, why)
        for finding in measurement.rests:
            self.progress.step(f"{finding.node}: {finding.what}")
        return values

    def _read(self) -> dict[str, RdmaNode]:
        """Read all nodes, and keep those that can send."""
        fabric = read_nodes(self._nodes, self.names, max(_READ_S, self.limit_s))
        silent = {finding.node: finding.what for finding in fabric.findings}
        self._able = {name: node for name, node in fabric.nodes.items() if _sends(node)}
        others = {n: silent.get(n, _NO_DEVICE) for n in self.names if n not in self._able}
        self._why = next(iter(others.values()), "")
        for name, why in others.items() if len(self._able) >= _LEAST else ():
            self._unmeasured.give_up(name, f"RDMA: {why}")
        self.setup |= {name: _setup(name) for name in BY_RDMA}
        return self._able


def _setup(name: str) -> str:
    return f"{PROGRAMS[name]} of perftest, {ITERATIONS} x {SIZES[name]} bytes"


def _sends(node: RdmaNode) -> bool:
    active = any(port.state == ACTIVE for device in node.devices for port in device.ports)
    return active and node.tools >= {*PROGRAMS.values()}
