# SPDX-License-Identifier: Apache-2.0
"""What only one of two arms has: cells without a partner, and why they have none. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from nearmetal.core.text import size_text
from nearmetal.study.gate import BANDWIDTHS, SETUP_WORDS
from nearmetal.study.model import Cell, Point
from nearmetal.study.pairing import matched

SHOWN = 3
"""Values of the other arm that a reason names."""


@dataclass(frozen=True)
class Gap:
    """A cell that the arm `lacking` has no partner for.

    `point` is that of the cell, with the ranks of the base where the base has them.
    """

    cell: Cell
    lacking: str
    why: str
    point: Point
    primary: bool = False

    @property
    def having(self) -> str:
        """The arm that has the cell."""
        return self.cell.arm


def is_judged(point: Point) -> bool:
    """Return whether a verdict on a point is possible: no program measures zero bytes a second."""
    return not point.neutral and (point.size != 0 or point.unit not in BANDWIDTHS)


def gaps_of(arms: tuple[str, str], base: Sequence[Cell], test: Sequence[Cell]) -> list[Gap]:
    """Return the cells of two arms, named first, that are not compared."""
    paired = matched(base, test)
    used = ({id(pair.base) for pair in paired}, {id(pair.test) for pair in paired})
    ranks = {_ranks(pair.test.point): pair.base.point.ranks for pair in paired}
    found = []
    for cells, own, others, lacking in (
        (base, used[0], test, arms[1]),
        (test, used[1], base, arms[0]),
    ):
        by_test: dict[tuple[str, str], list[Point]] = {}
        for other in others:
            by_test.setdefault((other.point.program, other.point.test), []).append(other.point)
        for cell in cells:
            if id(cell) in own or not is_judged(cell.point):
                continue
            near = by_test.get((cell.point.program, cell.point.test), [])
            point = cell.point
            if cells is test:
                point = point._replace(ranks=ranks.get(_ranks(point), point.ranks))
            found.append(Gap(cell, lacking, _why(cell, lacking, near), point))
    return found


def _ranks(point: Point) -> tuple[str, str, int | None, int | None]:
    return point.program, point.test, point.nodes, point.ranks


def _why(cell: Cell, lacking: str, others: Sequence[Point]) -> str:
    """Return why the other arm, with these points of the same test, has no partner of a cell."""
    point = cell.point
    if not others:
        return f"{lacking} has no {point.test}"
    alike = [other for other in others if other.metric == point.metric]
    if not alike:
        return f"{lacking} has no {point.metric} of {point.test}"
    for name in ("mode", "pair"):
        own = getattr(point.setup, name)
        same = [other for other in alike if getattr(other.setup, name) == own]
        if not same:
            theirs = _some(sorted(getattr(other.setup, name) or "none" for other in alike))
            return f"{SETUP_WORDS[name]}: {own or 'none'} in {cell.arm}, {theirs} in {lacking}"
        alike = same
    same = [other for other in alike if other.nodes == point.nodes]
    if not same:
        known = sorted({other.nodes or 0 for other in alike})
        theirs = _some(str(nodes or "unknown") for nodes in known)
        return f"the nodes: {point.nodes or 'unknown'} in {cell.arm}, {theirs} in {lacking}"
    if all(other.size != point.size for other in same):
        return f"{lacking} lacks this size"
    return (
        f"several configurations of {cell.arm} or {lacking} are equally near, or another is nearer"
    )


def _some(values: Iterable[str]) -> str:
    known = list(dict.fromkeys(values))
    more = f" and {len(known) - SHOWN} more" if len(known) > SHOWN else ""
    return ", ".join(known[:SHOWN]) + more


@dataclass(frozen=True)
class GapGroup:
    """Gaps that differ in their sizes only."""

    point: Point
    having: str
    lacking: str
    why: str
    sizes: tuple[int, ...]
    points: int
    primary: tuple[int | None, ...]
    """The sizes of the endpoints; None: the endpoint has no size."""

    @property
    def size_words(self) -> str:
        """The sizes in words."""
        if not self.sizes:
            return ""
        ends = dict.fromkeys((size_text(self.sizes[0]), size_text(self.sizes[-1])))
        count = f" ({len(self.sizes)} sizes)" if len(self.sizes) > 1 else ""
        return " to ".join(ends) + count

    @property
    def primary_words(self) -> str:
        """The endpoints in words."""
        return ", ".join("yes" if size is None else size_text(size) for size in self.primary)


def grouped(gaps: Iterable[Gap]) -> list[GapGroup]:
    """Return gaps by arms, test, metric, scale and reason; those with endpoints first."""
    groups: dict[tuple[object, ...], list[Gap]] = {}
    for gap in gaps:
        key = (gap.having, gap.lacking, gap.why, gap.cell.point.curve)
        groups.setdefault(key, []).append(gap)
    found = []
    for members in groups.values():
        first = members[0]
        sizes = sorted({g.point.size for g in members if g.point.size is not None})
        chosen = sorted({g.point.size for g in members if g.primary}, key=lambda s: s or 0)
        point = first.cell.point._replace(size=None)
        found.append(
            GapGroup(
                point,
                first.having,
                first.lacking,
                first.why,
                tuple(sizes),
                len(members),
                tuple(chosen),
            )
        )
    return sorted(found, key=lambda group: not group.primary)


def reasons(gaps: Iterable[Gap]) -> Mapping[str, int]:
    """Return the reasons with the number of points."""
    counts: dict[str, int] = {}
    for gap in gaps:
        counts[gap.why] = counts.get(gap.why, 0) + 1
    return counts


def sentences(gaps: Iterable[Gap]) -> Iterator[str]:
    """Return one line per group."""
    for group in grouped(gaps):
        point = group.point
        parts = (point.test, point.variant, point.metric, group.size_words)
        what = ", ".join(filter(None, parts))
        endpoint = f" (endpoint: {group.primary_words})" if group.primary else ""
        yield f"only {group.having}: {what}{endpoint}: {group.why}"
