# SPDX-License-Identifier: Apache-2.0
"""The data of a study: points, observations, cells, arms, raw files. All frozen.

A *launch* is one start of one program; it is the replicate. A *cell* holds the launches of one arm
at one point of the grid. *Arms* are compared: platform, adapter, fabric, placement.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

from nearmetal.evidence import Unit
from nearmetal.evidence.model import LOWER_IS_BETTER, NEUTRAL, NO_SETUP, Setup

LAUNCH = "launch: "
"""Prefix of the names in the header of a source that the launcher recorded, not the log."""

JOULES = "energy_j"
"""The fact of a launch that is a figure: the energy of its hosts in joules."""


class Point(NamedTuple):
    """A point of the grid. Two arms are compared at equal points.

    `size` is None if the test has none. `setup` is the configuration of the benchmark: results that
    differ in it are never one cell. `variant` has the words of it that a reader must know.
    """

    program: str
    test: str
    variant: str
    size: int | None
    ranks: int | None
    nodes: int | None
    metric: str
    unit: Unit
    setup: Setup = NO_SETUP

    @property
    def place(self) -> Point:
        """The point without the ranks and setup, which may differ between two arms."""
        kept = ", ".join(filter(None, (self.setup.mode, self.setup.pair)))
        variant = self.variant if self.setup == NO_SETUP else kept
        return self._replace(variant=variant, ranks=None, setup=NO_SETUP)

    @property
    def curve(self) -> Point:
        """The point without its size. Iterations may change with the size."""
        return self._replace(size=None, setup=self.setup._replace(iterations=""))

    @property
    def lower_is_better(self) -> bool:
        """Whether smaller values are better."""
        return self.unit in LOWER_IS_BETTER

    @property
    def neutral(self) -> bool:
        """Whether larger values are neither better nor worse."""
        return self.unit in NEUTRAL


class Observation(NamedTuple):
    """One value of one launch, with its raw line: `source` is the path of its file.

    A path, not a digest: two files may have the same bytes.
    """

    run: str
    launch: int
    block: int | None
    value: float
    source: str
    line: int


@dataclass(frozen=True)
class Cell:
    """All observations of one arm at one point, in the order of the launches."""

    arm: str
    point: Point
    observations: tuple[Observation, ...]

    @property
    def values(self) -> tuple[float, ...]:
        """One value per launch, in order: the median of its observations."""
        by_launch: dict[tuple[str, int], list[float]] = {}
        for seen in self.observations:
            by_launch.setdefault((seen.run, seen.launch), []).append(seen.value)
        return tuple(median(values) for values in by_launch.values())


@dataclass(frozen=True)
class Arm:
    """One side of a comparison. The names of `facts` are in `nearmetal.study.gate.FACTS`."""

    name: str
    platform: str = ""
    fabric: str = ""
    placement: str = ""
    cores_per_node: int | None = None
    facts: Mapping[str, str] = field(default_factory=dict)


class SourceFile(NamedTuple):
    """One raw file: the SHA-256 of its bytes, its path, format and labels.

    Among the files with numbers a path is unique.
    `status` is `facts`, `refused`, `failed`, `duplicate` or `ignored`, with a reason in words.
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
