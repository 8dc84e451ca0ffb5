# SPDX-License-Identifier: Apache-2.0
"""Heat maps of pairs and bars of nodes: the median of each, beside the norm of its class. Pure.

A colour never stands alone: each cell has its value, and how much slower than its class it is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp
from statistics import median
from typing import NamedTuple

from nearmetal.check.performance.run import (
    QUANTITIES,
    Item,
    MeasuredQuantity,
    MeasuredTurn,
    PerformanceRun,
)
from nearmetal.check.performance.screen import QuantityModel
from nearmetal.report import numbers
from nearmetal.report.page import GridCell

MOST_SIDE = 48
"""Nodes of a heat map; of more, the slowest are shown."""

_STEPS = ((-0.07, "fast"), (0.035, "even"), (0.07, "near"), (0.15, "slow"), (0.3, "slower"))
SLOWEST, ALONE, NONE = "slowest", "alone", "none"
LEGEND = (
    ("fast", "more than 7 % faster than its class"),
    ("even", "at most 3.5 % slower"),
    ("near", "at most 7 % slower, which is never a finding"),
    ("slow", "at most 15 % slower"),
    ("slower", "at most 30 % slower"),
    (SLOWEST, "more than 30 % slower"),
    (ALONE, "not compared: see what did not run"),
    (NONE, "no value"),
)
"""The styles of cells, as `templates/check.html` colours them, and their meaning."""


class HeatRow(NamedTuple):
    """A row of a heat map: the sender, then a cell for each receiver."""

    node: str
    cells: tuple[GridCell, ...]


class BarRow(NamedTuple):
    """A node with its value as a bar. `share`: percent of the largest value."""

    node: str
    cell: GridCell
    share: float


@dataclass(frozen=True)
class HeatMap:
    """The values of one quantity: a heat map of pairs, or bars of nodes. `how`: of measuring."""

    name: str
    title: str
    unit: str
    better: str
    how: str
    names: tuple[str, ...] = ()
    rows: tuple[HeatRow, ...] = ()
    bars: tuple[BarRow, ...] = ()
    left_out: int = 0


class RawValues(NamedTuple):
    """The values of a node or pair, as they were measured."""

    anchor: str
    item: str
    screening: str
    retests: str


def values_of(turns: Iterable[MeasuredTurn], quantity: str) -> dict[Item, list[float]]:
    """Return the values of each node or pair in the order in which they were measured."""
    values: dict[Item, list[float]] = defaultdict(list)
    for turn in turns:
        if turn.quantity == quantity:
            for item, value in turn.values.items():
                values[item].append(value)
    return values


def heat_map(run: PerformanceRun, model: QuantityModel) -> HeatMap:
    """Return the picture of one quantity."""
    quantity = QUANTITIES[model.quantity]
    found = {i: median(each) for i, each in values_of(run.screening, model.quantity).items()}
    names = _shown(run.names, model)
    made = HeatMap(
        model.quantity,
        quantity.title,
        quantity.unit,
        "lower is better" if quantity.lower_is_better else "higher is better",
        run.setup.get(model.quantity, ""),
        left_out=len(run.names) - len(names),
    )
    picture = _Picture(run, model, quantity, found)
    if quantity.of_pairs:
        rows = tuple(HeatRow(a, tuple(picture.pair(a, b) for b in names)) for a in names)
        return replace(made, names=names, rows=rows)
    most = max(found.values(), default=1.0)
    bars = tuple(
        BarRow(name, picture.cell((name,)), 100 * found.get((name,), 0.0) / most) for name in names
    )
    return replace(made, bars=bars)


def _shown(names: Sequence[str], model: QuantityModel) -> tuple[str, ...]:
    """Return the nodes to show, in their order: all, or those of the slowest medians."""
    if len(names) <= MOST_SIDE:
        return tuple(names)
    slow: dict[str, list[float]] = defaultdict(list)
    for item, left in model.left.items():
        for node in item:
            slow[node].append(left)
    worst = sorted(names, key=lambda name: -median(slow[name]) if name in slow else 0.0)
    kept = set(worst[:MOST_SIDE])
    return tuple(name for name in names if name in kept)


class _Picture(NamedTuple):
    run: PerformanceRun
    model: QuantityModel
    quantity: MeasuredQuantity
    found: Mapping[Item, float]

    def pair(self, sender: str, receiver: str) -> GridCell:
        if sender == receiver:
            return GridCell("-", style=NONE)
        return self.cell((sender, receiver))

    def cell(self, item: Item) -> GridCell:
        value = self.found.get(item)
        if value is None:
            gone = [name for name in item if (name,) in self.run.failures]
            failed = gone or item in self.run.failures or item[::-1] in self.run.failures
            words = "failed" if failed else "not measured"
            return GridCell(words, "#failures" if failed else "", style=NONE)
        href = f"#{anchor(self.run, self.model.quantity, item)}"
        slow = self.model.left.get(item)
        if slow is None:
            return GridCell(numbers.digits(value), href, "not compared", ALONE)
        return GridCell(numbers.digits(value), href, slower(slow), _style(slow))


def slower(left: float) -> str:
    """Return how much slower than its class something is: +12 %, or -3 %; left is a logarithm."""
    percent = round(100 * (exp(left) - 1))
    return f"{percent:+d} %" if percent else "0 %"


def _style(left: float) -> str:
    return next((style for most, style in _STEPS if left <= most), SLOWEST)


def anchor(run: PerformanceRun, quantity: str, item: Item) -> str:
    """Return the name of the raw values of a node or pair."""
    return "-".join(["raw", quantity, *(str(run.names.index(name)) for name in item)])


def raw_values(run: PerformanceRun, quantity: str, items: Iterable[Item]) -> list[RawValues]:
    """Return all values of these nodes or pairs, in the order of the nodes."""
    found = [values_of(turns, quantity) for turns in (run.screening, run.retests)]
    measured = [item for item in items if any(item in values for values in found)]
    return [
        RawValues(
            anchor(run, quantity, item),
            " to ".join(item),
            *(", ".join(f"{value:.6g}" for value in values.get(item, ())) for values in found),
        )
        for item in sorted(measured, key=lambda one: [run.names.index(name) for name in one])
    ]
