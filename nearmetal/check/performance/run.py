# SPDX-License-Identifier: Apache-2.0
"""What was measured: quantities, turns, and the file of a run. Pure.

A run comes from `nearmetal check` or by mail, and is hostile: its size and its numbers are bounded.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, isfinite, log
from typing import Any, NamedTuple, NoReturn, TypeGuard

from nearmetal.check.node_pattern import NODE
from nearmetal.check.snapshot import load_bounded, real
from nearmetal.core.errors import LogError
from nearmetal.core.text import printable

PERFORMANCE = "performance.json"
"""The name of a run in a collection."""

FORMAT = "nearmetal-performance"
VERSION = 1
MAX_NODES = 512
MAX_BYTES = 128 << 20
_MAX_VALUES = 12_000_000
_MAX_TURNS = 20_000
_MAX_SETUP = 32
MAX_TEXT = 200
_LEAST, _MOST = 1e-12, 1e18
_HINT = "measure again; the file is written by `nearmetal check`"

Item = tuple[str, ...]
"""A node, or the sender and the receiver of a pair."""


@dataclass(frozen=True)
class MeasuredQuantity:
    """Something that is measured on nodes or between pairs."""

    unit: str
    of_pairs: bool
    lower_is_better: bool
    title: str
    noise_of: str = ""
    """The quantity whose time beside neighbours, over the time alone, this is."""

    def slowness(self, value: float) -> float:
        """Return the logarithm of a value; larger is slower."""
        return log(value) if self.lower_is_better else -log(value)

    def value(self, slowness: float) -> float:
        """Return the value of a slowness."""
        return exp(slowness if self.lower_is_better else -slowness)


def _noise(quantity: str, words: str) -> MeasuredQuantity:
    title = f"{words}: time beside neighbours over time alone"
    return MeasuredQuantity(
        "times", of_pairs=False, lower_is_better=True, title=title, noise_of=quantity
    )


QUANTITIES: Mapping[str, MeasuredQuantity] = {
    "memory": MeasuredQuantity(
        "GB/s", of_pairs=False, lower_is_better=False, title="memory bandwidth"
    ),
    "processor": MeasuredQuantity(
        "MB/s", of_pairs=False, lower_is_better=False, title="speed of the processor"
    ),
    "latency": MeasuredQuantity("µs", of_pairs=True, lower_is_better=True, title="latency"),
    "bandwidth": MeasuredQuantity("MB/s", of_pairs=True, lower_is_better=False, title="bandwidth"),
    "stream": MeasuredQuantity(
        "GB/s", of_pairs=False, lower_is_better=False, title="triad of STREAM"
    ),
    "dgemm": MeasuredQuantity(
        "GFLOP/s", of_pairs=False, lower_is_better=False, title="products of matrices"
    ),
    "mpi_latency": MeasuredQuantity(
        "µs", of_pairs=True, lower_is_better=True, title="latency of MPI"
    ),
    "mpi_bandwidth": MeasuredQuantity(
        "MB/s", of_pairs=True, lower_is_better=False, title="bandwidth of MPI"
    ),
    "hpl": MeasuredQuantity("GFLOP/s", of_pairs=False, lower_is_better=False, title="HPL"),
    "rdma_latency": MeasuredQuantity(
        "µs", of_pairs=True, lower_is_better=True, title="latency of RDMA writes"
    ),
    "rdma_bandwidth": MeasuredQuantity(
        "MB/s", of_pairs=True, lower_is_better=False, title="bandwidth of RDMA writes"
    ),
    "neighbours": _noise("memory", "memory bandwidth"),
    "neighbours_processor": _noise("processor", "processor"),
    "neighbours_latency": _noise("latency", "latency"),
    "neighbours_bandwidth": _noise("bandwidth", "bandwidth"),
}
"""Every quantity by its name, which is also that of its check."""

MEASURED = ("memory", "processor", "latency", "bandwidth")
"""What `nearmetal check performance` measures by default, with agents."""

BY_MPI = ("stream", "dgemm", "mpi_latency", "mpi_bandwidth")
"""What it can measure by an MPI job."""

BY_HPL = ("hpl",)
"""What it can measure by a job of HPL on each node."""

BY_RDMA = ("rdma_latency", "rdma_bandwidth")
"""What it can measure by perftest, between RDMA devices."""

NOISE = tuple(name for name, quantity in QUANTITIES.items() if quantity.noise_of)
"""What it can measure of neighbours, with agents."""

TOGETHER = "all nodes together: "
"""In front of a wrong result of nodes that computed it together."""

LIMIT_S = 10.0
"""Default limit of one measurement."""


class Order(NamedTuple):
    """What to measure side by side. A pair is measured in both directions, one after the other.

    `times`: how much longer a value takes than usual.
    """

    quantity: str
    items: tuple[Item, ...]
    times: int = 1


@dataclass(frozen=True)
class MeasuredTurn:
    """The values of what was measured side by side. A value that could not be had is absent."""

    quantity: str
    values: Mapping[Item, float]


Ask = Callable[[Order], MeasuredTurn]


@dataclass(frozen=True)
class PerformanceRun:
    """All turns of a run. `setup`: how it was measured, in words.

    `failures`: why a node, or the way from one node to another, could not be measured. `hosts`: of
    nodes that are machines, as their cluster names them. `software`: that of the agent in a node,
    which its values depend on. `wrong`: nodes whose HPL has a wrong result, with its line. `lacking`:
    "why|remedy" of quantities that were not measured, or not as one expects.
    """

    names: tuple[str, ...]
    taken: float = 0.0
    setup: Mapping[str, str] = field(default_factory=dict)
    screening: tuple[MeasuredTurn, ...] = ()
    retests: tuple[MeasuredTurn, ...] = ()
    failures: Mapping[Item, str] = field(default_factory=dict)
    hosts: Mapping[str, str] = field(default_factory=dict)
    software: Mapping[str, str] = field(default_factory=dict)
    lacking: Mapping[str, str] = field(default_factory=dict)
    wrong: Mapping[str, str] = field(default_factory=dict)


def is_possible(value: Any) -> TypeGuard[float]:
    """Whether something is a value that a quantity can have, for nodes and for files."""
    return type(value) in (int, float) and isfinite(value) and _LEAST < value < _MOST


def run_text(run: PerformanceRun) -> str:
    """Return the content of the file of a run."""
    number = {name: index for index, name in enumerate(run.names)}
    data: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "taken": round(run.taken, 3),
        "nodes": list(run.names),
        "setup": dict(run.setup),
        "hosts": dict(run.hosts),
        "software": dict(run.software),
        "lacking": dict(run.lacking),
        "wrong": dict(run.wrong),
        "failures": [[*(number[name] for name in item), why] for item, why in run.failures.items()],
    }
    for part, turns in (("screening", run.screening), ("retests", run.retests)):
        data[part] = [
            {
                "quantity": turn.quantity,
                "values": [
                    [*(number[name] for name in item), v] for item, v in turn.values.items()
                ],
            }
            for turn in turns
        ]
    return json.dumps(data, separators=(",", ":")) + "\n"


def parse_run(content: bytes, file: str) -> PerformanceRun:
    """Return a run; raises LogError."""
    data = load_bounded(content, file, most_bytes=MAX_BYTES, most_values=_MAX_VALUES, hint=_HINT)
    if data.get("format") != FORMAT or data.get("version") != VERSION:
        _refuse(file, f"not a run of version {VERSION}")
    names = data.get("nodes")
    if not isinstance(names, list) or not 0 < len(names) <= MAX_NODES:
        _refuse(file, f"not 1 to {MAX_NODES} nodes")
    for name in names:
        if not isinstance(name, str) or not NODE.fullmatch(name):
            _refuse(file, f"{printable(str(name)[:40])!r} is not the name of a node")
    if len(set(names)) != len(names):
        _refuse(file, "a node appears twice")
    setup = data.get("setup")
    if not isinstance(setup, dict) or len(setup) > _MAX_SETUP:
        _refuse(file, "no setup, or one of too many words")
    return PerformanceRun(
        tuple(names),
        round(real(data.get("taken")), 3),
        {printable(k): printable(str(v))[:MAX_TEXT] for k, v in setup.items()},
        _turns(file, names, "screening", data.get("screening")),
        _turns(file, names, "retests", data.get("retests")),
        _failures(file, names, data.get("failures")),
        _words_of(file, names, "hosts", data.get("hosts", {})),
        _words_of(file, names, "software", data.get("software", {})),
        _words_of(file, QUANTITIES, "lacking", data.get("lacking", {}), 2 * MAX_TEXT + 1),
        _words_of(file, names, "wrong", data.get("wrong", {})),
    )


def _words_of(
    file: str, names: Iterable[str], part: str, given: Any, most: int = MAX_TEXT
) -> dict[str, str]:
    if not isinstance(given, dict) or not given.keys() <= set(names):
        _refuse(file, f"{part}: not words of what is known")
    return {name: printable(str(words))[:most] for name, words in given.items()}


def _failures(file: str, names: Sequence[str], given: Any) -> dict[Item, str]:
    if not isinstance(given, list) or len(given) > MAX_NODES * MAX_NODES:
        _refuse(file, "no list of failures, or one that is too long")
    found: dict[Item, str] = {}
    for row in given:
        if not isinstance(row, list) or len(row) not in (2, 3) or not isinstance(row[-1], str):
            _refuse(file, "a failure has not one or two nodes and a reason")
        found[_item(file, names, "failures", row[:-1])] = printable(row[-1])[:MAX_TEXT]
    return found


def _item(file: str, names: Sequence[str], place: str, ends: Sequence[Any]) -> Item:
    if not all(type(end) is int and 0 <= end < len(names) for end in ends):
        _refuse(file, f"{place}: a row names a node that is not in the list")
    item = tuple(names[end] for end in ends)
    if len(set(item)) != len(ends):
        _refuse(file, f"{place}: {' to '.join(item)} is no pair")
    return item


def _turns(file: str, names: Sequence[str], part: str, given: Any) -> tuple[MeasuredTurn, ...]:
    if not isinstance(given, list) or len(given) > _MAX_TURNS:
        _refuse(file, f"{part}: not a list of at most {_MAX_TURNS} turns")
    return tuple(_turn(file, names, f"{part}[{index}]", turn) for index, turn in enumerate(given))


def _turn(file: str, names: Sequence[str], place: str, given: Any) -> MeasuredTurn:
    name = given.get("quantity") if isinstance(given, dict) else None
    values = given.get("values") if isinstance(given, dict) else None
    if not isinstance(name, str) or name not in QUANTITIES or not isinstance(values, list):
        _refuse(file, f"{place}: no known quantity with values")
    count = 2 if QUANTITIES[name].of_pairs else 1
    found: dict[Item, float] = {}
    for row in values:
        if not isinstance(row, list) or len(row) != count + 1:
            _refuse(file, f"{place}: a row has not {count + 1} numbers")
        *ends, value = row
        item = _item(file, names, place, ends)
        if item in found:
            _refuse(file, f"{place}: {' to '.join(item)} appears twice")
        if not is_possible(value):
            _refuse(file, f"{place}: the value of {' to '.join(item)} is not possible")
        found[item] = float(value)
    return MeasuredTurn(name, found)


def _refuse(file: str, why: str) -> NoReturn:
    raise LogError(f"{file}: {why}", _HINT)
