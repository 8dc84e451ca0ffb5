# SPDX-License-Identifier: Apache-2.0
"""Launches that gave no value: they failed, their file was refused, or they ended early. Pure.

The rest are survivors, and a comparison of survivors can hide what the others would show. A file
without numbers does not say its test: it counts for the tests of the files of its arm whose paths
differ from its own in numbers only.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping
from typing import NamedTuple

from nearmetal.evidence.model import NO_END
from nearmetal.study.model import Cell, SourceFile

LOST = ("refused", "failed")
"""Status of a file without numbers that a launch should have had."""

_DIGITS = re.compile(r"\d+")


class ArmLosses(NamedTuple):
    """The launches of an arm: all, those without numbers, and those that ended early."""

    launches: int
    failed: int
    early: int

    @property
    def lost(self) -> int:
        """The launches that lack some or all values."""
        return self.failed + self.early

    def words(self, arm: str) -> str:
        """Return the losses in words."""
        kinds = ((self.failed, "gave no numbers"), (self.early, "ended early"))
        what = " and ".join(f"{count} {kind}" for count, kind in kinds if count)
        return f"{arm}: of {self.launches} launches {what or 'none was lost'}"


class Sizes(NamedTuple):
    """The smallest and the largest message size that a file has of one curve."""

    first: int
    last: int


def early(curves: Iterable[Mapping[str, Sizes]]) -> set[str]:
    """Return the files that end before another file of a curve that begins at the same size."""
    found: set[str] = set()
    for files in curves:
        ends: dict[int, int] = {}
        for first, last in files.values():
            ends[first] = max(last, ends.get(first, last))
        found.update(path for path, (first, last) in files.items() if last < ends[first])
    return found


def was_cut(source: SourceFile) -> bool:
    """Return whether a log lacks the line that its program prints at the end."""
    return any(NO_END in text for _, text in source.remarks)


def _series(source: SourceFile) -> Hashable:
    """Return what the files of the launches of one program have in common."""
    return source.arm, _DIGITS.sub("#", source.path), source.nodes, source.ranks


class Losses:
    """The losses in the sources of some cells; called with a cell, those at this cell."""

    def __init__(
        self, sources: Iterable[SourceFile], cells: Iterable[Cell], *, every: bool = True
    ) -> None:
        """`every`: also files without numbers whose program has no other file."""
        self._curves: dict[Hashable, dict[str, Sizes]] = defaultdict(dict)
        used: dict[str, set[str]] = defaultdict(set)
        for cell in cells:
            used[cell.arm].update(seen.source for seen in cell.observations)
            self._take(cell)
        known = list(sources)
        good = [s for s in known if s.status == "facts" and s.path in used.get(s.arm, ())]
        self._series = {s.path: _series(s) for s in good}
        mine = set(self._series.values())
        lost = [s for s in known if s.status in LOST and s.arm]
        self.failed = tuple(s for s in lost if every or _series(s) in mine)
        self._failed = Counter(_series(s) for s in self.failed)
        ended = early(self._curves.values()) | {s.path for s in good if was_cut(s)}
        self.early = tuple(s for s in good if s.path in ended)
        self._good = Counter(s.arm for s in good)

    def _take(self, cell: Cell) -> None:
        size = cell.point.size
        if size is None:
            return
        files = self._curves[cell.arm, cell.point.curve]
        for path in {seen.source for seen in cell.observations}:
            first, last = files.get(path, (size, size))
            files[path] = Sizes(min(first, size), max(last, size))

    def __call__(self, cell: Cell) -> int:
        """Return the number of launches that have no value at a cell, but should."""
        paths = {seen.source for seen in cell.observations}
        series = {self._series[path] for path in paths if path in self._series}
        size, ended = cell.point.size, 0
        if size is not None:
            files = self._curves.get((cell.arm, cell.point.curve), {})
            firsts = {files[path].first for path in paths if path in files}
            ended = sum(f.first in firsts and f.last < size for f in files.values())
        return ended + sum(self._failed[one] for one in series)

    def of(self, arm: str) -> ArmLosses:
        """Return the losses of an arm."""
        failed = sum(s.arm == arm for s in self.failed)
        return ArmLosses(self._good[arm] + failed, failed, sum(s.arm == arm for s in self.early))

    def survivors(self, base: str, arm: str) -> str:
        """Return the mark of a comparison whose arms lost different shares; "": they did not."""
        ours, theirs = self.of(base), self.of(arm)
        if ours.lost * theirs.launches == theirs.lost * ours.launches:
            return ""
        return (
            f"survivors only: {arm} lost {theirs.lost} of {theirs.launches} launches, "
            f"{base} {ours.lost} of {ours.launches}"
        )
