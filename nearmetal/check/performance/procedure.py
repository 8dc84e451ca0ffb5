# SPDX-License-Identifier: Apache-2.0
"""The procedure: all nodes and pairs, then suspects again, then names. Pure: `ask` measures.

A quantity of nodes is measured on all nodes at once. A quantity of pairs is measured in the rounds
of a tournament. Each is done several times, so that one disturbed value is not a suspicion.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from nearmetal.check.performance.classes import NodeClasses
from nearmetal.check.performance.neighbours import NoiseMeasurement
from nearmetal.check.performance.retest import Retests, orders
from nearmetal.check.performance.run import QUANTITIES, Ask, MeasuredTurn, Order, PerformanceRun
from nearmetal.check.performance.screen import screen
from nearmetal.check.performance.tournament import tournament

TIMES = 3
"""Number of values of each node and pair in the screening."""


def screening_orders(names: Sequence[str], quantities: Sequence[str]) -> Iterator[Order]:
    """Yield what to measure first. Repetitions of an item are far apart in time."""
    for _ in range(TIMES):
        for quantity in quantities:
            if QUANTITIES[quantity].of_pairs:
                for round_ in tournament(names):
                    yield Order(quantity, round_)
            else:
                yield Order(quantity, tuple((name,) for name in names))


def perform(
    names: Sequence[str],
    quantities: Sequence[str],
    ask: Ask,
    classes: NodeClasses,
    *,
    taken: float = 0.0,
    setup: Mapping[str, str] | None = None,
) -> PerformanceRun:
    """Measure a cluster: the screening, and the retests that it asks for."""
    measure = NoiseMeasurement(ask, names, classes)
    first = tuple(measure(order) for order in screening_orders(names, quantities))
    run = PerformanceRun(tuple(names), taken, setup or {}, first)
    return PerformanceRun(run.names, run.taken, run.setup, first, _again(run, measure, classes))


def _again(run: PerformanceRun, ask: Ask, classes: NodeClasses) -> tuple[MeasuredTurn, ...]:
    """Measure suspects again, one quantity after the other, each until all of it is decided."""
    screening = screen(run, classes)
    turns: list[MeasuredTurn] = []
    retests = Retests(screening)
    for quantity in screening.models:
        for order in orders(run.names, screening, quantity):
            turn = ask(order)
            turns.append(turn)
            retests.add(turn)
            if retests.decided(quantity):
                break
    return tuple(turns)
