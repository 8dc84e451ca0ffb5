# SPDX-License-Identifier: Apache-2.0
"""The shapes of a study: what was observed, what belongs together, what the arms are. All frozen.

A *launch* is one start of one program; it is the replicate. A *cell* holds the launches of one arm
at one point of the grid. An *arm* is what is compared: platform, adapter, fabric, placement.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

from nearmetal.evidence import Unit
from nearmetal.evidence.model import LOWER_IS_BETTER, NEUTRAL

LAUNCH = "launch: "
"""Begins the names in a source's header that its launcher recorded, not the log."""


class Point(NamedTuple):
    """A point of the grid: what must agree before two arms can be compared there.

    `size` is None where the test has none. `variant` tells apart what has the same name, as a
    mode, a buffer's place or a number of pairs.
    """

    program: str
    test: str
    variant: str
    size: int | None
    ranks: int | None
    nodes: int | None
    metric: str
    unit: Unit

    @property
    def lower_is_better(self) -> bool:
        """Whether less of it is better."""
        return self.unit in LOWER_IS_BETTER

    @property
    def neutral(self) -> bool:
        """Whether it is neither better nor worse when it grows."""
        return self.unit in NEUTRAL


class Observation(NamedTuple):
    """One value of one launch, and the raw line it comes from (`source` is a SHA-256)."""

    run: str
    launch: int
    block: int | None
    value: float
    source: str
    line: int


@dataclass(frozen=True)
class Cell:
    """All observations of one arm at one point, in the order they were made."""

    arm: str
    point: Point
    observations: tuple[Observation, ...]

    @property
    def values(self) -> tuple[float, ...]:
        """One value per launch, in order: what one launch said twice counts once."""
        by_launch: dict[tuple[str, int], list[float]] = {}
        for seen in self.observations:
            by_launch.setdefault((seen.run, seen.launch), []).append(seen.value)
        return tuple(median(values) for values in by_launch.values())


@dataclass(frozen=True)
class Arm:
    """One side of a comparison. `facts` are by the names in `nearmetal.study.gate.FACTS`."""

    name: str
    platform: str = ""
    fabric: str = ""
    placement: str = ""
    cores_per_node: int | None = None
    facts: Mapping[str, str] = field(default_factory=dict)


class SourceFile(NamedTuple):
    """One raw file: where it lay, what it is, and to what it belongs.

    `status` is `facts`, `refused`, `duplicate` or `ignored`; `reason` says why in words.
    """

    source: str
    path: str
    status: str
    reason: str = ""
    format: str = ""
    parser: str = ""
    run: str = ""
    arm: str = ""
    launch: int | None = None
    block: int | None = None
    nodes: int | None = None
    ranks: int | None = None
    header: Mapping[str, str] = {}
    remarks: tuple[tuple[int, str], ...] = ()
