# SPDX-License-Identifier: Apache-2.0
"""The samples of turns, each with the placement of the cores at its time.

The limits program measured the raw cache-line ping-pong between any two turns. A turn has the
placement of its two neighbours. If they differ, the cores moved, and the turn is left out.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from nearmetal.evidence import WARM_UP
from nearmetal.study.stats import percentile

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from nearmetal.evidence import Log, RunFacts

SIBLINGS_US, NEAR_US = 0.045, 0.150
"""Limits of half round trips: two threads of one core share the L1 and need 25 to 35 ns, cores that
share the last-level cache 50 to 100 ns, other cores 200 ns and more."""

LIMITS = ("", "")
"""The limits of the cores, as (mpi, arm)."""


class Placement(Enum):
    """The cache that the two processors shared."""

    SIBLINGS = "siblings"
    """Threads of one core: the units of one core do the work of both."""
    NEAR = "near"
    FAR = "far"


@dataclass(frozen=True)
class Who:
    """The owner of samples: an MPI and its way, libfabric alone (mpi ""), or the limits (both "")."""

    mpi: str
    arm: str


@dataclass(frozen=True)
class What:
    """A test at one message size."""

    test: str
    size: int


@dataclass(frozen=True)
class Sample:
    """One sample: the turn, microseconds per operation or message, and the raw line."""

    turn: int
    us: float
    file: str
    line: int


class Samples:
    """All samples of a run, by owner, test and placement."""

    def __init__(self, run: RunFacts) -> None:
        """Read the logs of all good launches that took turns."""
        self.turns: dict[Placement, int] = dict.fromkeys(Placement, 0)
        self.unsettled = 0
        """Number of turns during which the cores moved."""
        self.failed = [(x.mpi, x.arm, x.program) for x in run.manifest.launches if not x.good]
        self._by: dict[tuple[Who, What, Placement], list[Sample]] = defaultdict(list)
        logs = [
            (Who(launch.mpi, launch.arm), launch) for launch in run.manifest.launches if launch.good
        ]
        raw: dict[tuple[Who, What], list[Sample]] = {}
        for who, launch in logs:
            for what, samples in _read(run.logs[launch.file], launch.file):
                key = (Who(who.mpi, _with_ranks(who.arm, launch.ranks)), what)
                raw.setdefault(key, []).extend(samples)
        self._place(raw)

    def _place(self, raw: Mapping[tuple[Who, What], list[Sample]]) -> None:
        ruler = raw.get((Who(*LIMITS), What("cacheline", 8)), [])
        probes: dict[int, list[float]] = defaultdict(list)
        for sample in ruler:
            probes[sample.turn].append(sample.us)
        said = {turn: _placement(values) for turn, values in probes.items()}
        order = sorted(said)
        seen: dict[int, Placement | None] = {}
        for (who, what), samples in raw.items():
            for sample in samples:
                if sample.turn not in seen:
                    seen[sample.turn] = _between(sample.turn, order, said)
                placement = seen[sample.turn]
                if placement is not None:
                    self._by[who, what, placement].append(sample)
        for placement in seen.values():
            if placement is None:
                self.unsettled += 1
            else:
                self.turns[placement] += 1

    def of(self, who: Who, what: What, placement: Placement) -> list[Sample]:
        """Return the samples of one test in one placement."""
        return self._by.get((who, what, placement), [])

    def who(self, what: What) -> list[Who]:
        """Return the owners of samples of a test."""
        return list(dict.fromkeys(who for who, other, _ in self._by if other == what))

    def whats(self, who: Who) -> list[What]:
        """Return all tests of one owner."""
        return list(dict.fromkeys(what for other, what, _ in self._by if other == who))


def _with_ranks(arm: str, ranks: int) -> str:
    """Return the name of an arm; jobs of more than two ranks have names of their own."""
    return arm if ranks <= 2 else f"{arm}/{ranks}"  # noqa: PLR2004 - a pair


def _read(log: Log, file: str) -> Iterable[tuple[What, list[Sample]]]:
    found: dict[What, list[Sample]] = defaultdict(list)
    for table in log.tables:
        for row in table.rows:
            if row.values.get("turn", WARM_UP) != WARM_UP and "time" in row.values:
                what = What(table.test, int(row.values["size"]))
                turn = int(row.values["turn"])
                found[what].append(Sample(turn, row.values["time"], file, row.line))
    return found.items()


def _placement(half_round_trips_us: Sequence[float]) -> Placement:
    """Return the placement of one probe, by its lower quarter: interruptions only add time."""
    quiet = percentile(half_round_trips_us, 25)
    if quiet < SIBLINGS_US:
        return Placement.SIBLINGS
    return Placement.NEAR if quiet < NEAR_US else Placement.FAR


def _between(turn: int, order: Sequence[int], said: Mapping[int, Placement]) -> Placement | None:
    """Return the placement that the probes around a turn agree on; None: they differ."""
    after = bisect_right(order, turn)
    before = after - 1
    if before < 0:
        return None  # before the first probe: the job was warming up
    if order[before] == turn:
        return said[turn]
    if after == len(order) or said[order[before]] is not said[order[after]]:
        return None
    return said[order[before]]
