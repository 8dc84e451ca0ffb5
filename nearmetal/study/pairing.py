# SPDX-License-Identifier: Apache-2.0
"""The cells of two arms that are compared with each other. Pure.

Cells of one point are a pair. Ranks and configuration may differ: the gate then marks or refuses the
comparison. A cell with several equally near cells in the other arm has no pair.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from nearmetal.study.gate import BANDWIDTHS
from nearmetal.study.model import Cell, Point


class CellPair(NamedTuple):
    """A cell of the tested arm, its partner in the base, and the cell in the unit of the partner."""

    base: Cell
    test: Cell
    alike: Cell


def matched(base: Iterable[Cell], test: Iterable[Cell]) -> list[CellPair]:
    """Return each cell of the tested arm that has a partner in the base."""
    exact = {cell.point: cell for cell in base}
    near: dict[Point, list[Cell]] = {}
    for cell in exact.values():
        near.setdefault(cell.point.place, []).append(cell)
    found = []
    for cell in test:
        for alike in (cell, *_in_other_units(cell)):
            other = exact.get(alike.point)
            other = other or nearest(alike.point, near.get(alike.point.place, []))
            if other is not None:
                found.append(CellPair(other, cell, alike))
                break
    return found


def nearest(point: Point, near: Sequence[Cell]) -> Cell | None:
    """Return the cell whose configuration and ranks differ in the fewest parts, if it is one cell."""
    ordered = sorted(near, key=lambda other: _distance(point, other.point))
    first = [_distance(point, other.point) for other in ordered[:2]]
    return ordered[0] if len(set(first)) == len(first) > 0 else None


def _distance(one: Point, other: Point) -> int:
    """Return the number of parts that differ; a version counts less than any other part."""
    parts = sum(a != b for a, b in zip(one.setup[1:], other.setup[1:], strict=True))
    return 2 * (parts + (one.ranks != other.ranks)) + (one.setup.version != other.setup.version)


def _in_other_units(cell: Cell) -> Iterator[Cell]:
    """Return the same bandwidths in other units: versions of one program differ in their units."""
    scale = BANDWIDTHS.get(cell.point.unit)
    if scale is None:
        return
    for unit, other in BANDWIDTHS.items():
        if unit is not cell.point.unit:
            seen = (o._replace(value=o.value * scale / other) for o in cell.observations)
            yield Cell(cell.arm, cell.point._replace(unit=unit), tuple(seen))
