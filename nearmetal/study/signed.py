# SPDX-License-Identifier: Apache-2.0
"""Signed tables: by how many percent one fabric is faster than another, and which cells stand out."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from nearmetal.study.flags import OUTLIER_Z
from nearmetal.study.stats import mad

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from nearmetal.study.judge import Comparison

RULE = (
    f"flagged: 0.6745 |x - median| / MAD above {OUTLIER_Z:g} over all cells of the table "
    "(Iglewicz and Hoaglin)"
)


@dataclass(frozen=True)
class SignedTable:
    """Percentages by row and column; plus: `first` is faster, minus: `second` is."""

    first: str
    second: str
    cells: Mapping[tuple[str, str], float]
    rule: str = RULE

    @property
    def flagged(self) -> dict[tuple[str, str], float]:
        """The cells that stand out, by the rule."""
        values = list(self.cells.values())
        if not values:
            return {}
        middle, spread = median(values), mad(values)
        bound = OUTLIER_Z * spread / 0.6745
        return {key: value for key, value in self.cells.items() if abs(value - middle) > bound}

    def shown(self, key: tuple[str, str], digits: int = 1) -> str:
        """Return a cell with its sign."""
        value = self.cells[key]
        return f"{value:+.{digits}f} %" if round(value, digits) else f"{0:.{digits}f} %"


def faster_percent(first: float, second: float, *, lower_is_better: bool) -> float:
    """Return by how many percent the first performs better than the second."""
    return ((second / first) if lower_is_better else (first / second)) * 100 - 100


def from_comparisons(found: Iterable[Comparison], metric: str | None = None) -> SignedTable:
    """Return the table of comparisons, of one metric or of all: rows by scale and size, columns by test.

    Refused comparisons are left out: a sign would be a conclusion.
    """
    cells: dict[tuple[str, str], float] = {}
    arms = ("", "")
    for one in found:
        if one.ratio is None or metric not in (None, one.point.metric) or one.gate.blocked:
            continue
        arms = (one.arms[1], one.arms[0])
        point = one.point
        scale = "" if point.nodes is None else f"{point.nodes} node" + "s" * (point.nodes > 1)
        size = "" if point.size is None else f"{point.size} B"
        row = ", ".join(filter(None, (scale, size))) or "all"
        percent = faster_percent(
            one.test.median, one.base.median, lower_is_better=point.lower_is_better
        )
        name = (point.test, point.variant, "" if metric else point.metric)
        cells[row, " ".join(filter(None, name))] = percent
    return SignedTable(*arms, cells)


def tables_of(found: Iterable[Comparison]) -> dict[str, SignedTable]:
    """Return signed tables by title: applications together, and one for each metric over sizes."""
    groups: dict[str, list[Comparison]] = {}
    for one in found:
        title = "Applications" if one.point.size is None else one.point.metric.capitalize()
        groups.setdefault(title, []).append(one)
    made = {
        title: from_comparisons(
            members, None if title == "Applications" else members[0].point.metric
        )
        for title, members in groups.items()
    }
    return {title: table for title, table in made.items() if table.cells}


def z_score(value: float, others: list[float]) -> float:
    """Return 0.6745 (x - median) / MAD against the other cells of a table."""
    spread = mad(others)
    return 0.6745 * (value - median(others)) / spread if spread else float("inf")
