# SPDX-License-Identifier: Apache-2.0
"""Types of measured data. All are frozen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

WARM_UP = 0
"""Number of the turn that does not count."""


class Unit(Enum):
    """Units of raw columns. A million is 10^6, except in the bits of NetPIPE."""

    BYTES = "B"
    COUNT = ""
    MICROSECONDS = "µs"
    KILOBYTES = "kB"
    MEGABYTES_PER_SECOND = "MB/s"
    MESSAGES_PER_SECOND = "1/s"
    MEGAMESSAGES_PER_SECOND = "10^6/s"
    MEBIBITS_PER_SECOND = "Mibit/s"
    MEBIBYTES_PER_SECOND = "MiB/s"
    GIGABYTES_PER_SECOND = "GB/s"
    GIGABITS_PER_SECOND = "Gbit/s"
    SECONDS = "s"
    GIGAFLOPS = "GFLOP/s"
    TERAFLOPS = "TFLOP/s"
    MEGAOPS = "10^6 op/s"
    GIGAUPDATES = "GUP/s"
    TRAVERSED_EDGES = "TEPS"
    NANOSECONDS_PER_DAY = "ns/day"
    HOURS_PER_NANOSECOND = "h/ns"
    DAYS_PER_NANOSECOND = "day/ns"
    STEPS_PER_SECOND = "step/s"
    PERCENT = "%"


LOWER_IS_BETTER = frozenset(
    {Unit.MICROSECONDS, Unit.SECONDS, Unit.HOURS_PER_NANOSECOND, Unit.DAYS_PER_NANOSECOND}
)
NEUTRAL = frozenset({Unit.BYTES, Unit.COUNT, Unit.PERCENT})
"""Units of figures that are neither better nor worse when they are larger."""


class Column(NamedTuple):
    """Meaning of a column of a raw table: the name of the metric, and its unit."""

    metric: str
    unit: Unit


class Row(NamedTuple):
    """One line of numbers, by metric. `line` counts from 1 in the raw file."""

    line: int
    values: Mapping[str, float]


class Setup(NamedTuple):
    """The configuration of a measurement, in words; empty: not known, or the program has none.

    Results that differ in any part are never one cell. `mode` is a mode of the test or the problem
    that it solves. `placement` is empty if the ranks that communicate are in different nodes, or
    if the log does not say it.
    """

    version: str = ""
    mode: str = ""
    buffers: str = ""
    synchronization: str = ""
    datatype: str = ""
    window: str = ""
    iterations: str = ""
    pair: str = ""
    placement: str = ""
    flags: str = ""

    @property
    def variant(self) -> str:
        """The parts that differ from the usual ones and that a reader must know."""
        window = f"window {self.window}" if self.window not in ("", USUAL_WINDOW) else ""
        datatype = self.datatype if self.datatype not in USUAL_DATATYPES else ""
        parts = (self.mode, self.buffers, self.synchronization, datatype)
        return ", ".join(filter(None, (*parts, window, self.pair, self.placement)))

    @property
    def words(self) -> str:
        """All parts that are known."""
        names = ("version", "window", "iterations")
        known = (
            f"{name} {part}" if name in names else part
            for name, part in zip(self._fields, self, strict=True)
            if part
        )
        return ", ".join(known)


NO_SETUP = Setup()
IN_ONE_NODE = "in one node"
PARTLY_IN_ONE_NODE = "partly in one node"
USUAL_WINDOW = "64"
DERIVED = "derived"
"""In the datatype of a setup: a message has gaps that are not sent."""
USUAL_DATATYPES = ("", "MPI_CHAR", "MPI_BYTE")


@dataclass(frozen=True)
class Table:
    """The rows of one test. `nodes` is their number, if the log shows the node of each rank.

    `launch` counts from 0 in a log that collects the results of several launches.
    """

    test: str
    line: int
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    setup: Setup = NO_SETUP
    processes: int | None = None
    nodes: int | None = None
    launch: int = 0

    @property
    def variant(self) -> str:
        """The words that distinguish tests of one name."""
        return self.setup.variant

    def setup_of(self, row: Row) -> Setup:
        """Return the configuration of a row, with its iterations.

        A count with more than three digits before its zeros is the result of a fixed time.
        """
        count = row.values.get("iterations", 0)
        if self.setup.iterations or not is_chosen(count):
            return self.setup
        return self.setup._replace(iterations=f"{count:.0f}")


CHOSEN_DIGITS = 3


def is_chosen(iterations: float) -> bool:
    """Return whether a number of iterations looks as if a user chose it."""
    count = f"{iterations:.0f}"
    return count != "0" and len(count.rstrip("0")) <= CHOSEN_DIGITS


NO_END = "the closing line is missing: the run was cut off"
"""Remark on a log whose figures may be complete, but whose last line is not."""


@dataclass(frozen=True)
class Log:
    """One raw file, read to its end. `remarks` are lines that qualify the figures."""

    file: str
    format: str
    header: Mapping[str, str]
    tables: tuple[Table, ...]
    remarks: tuple[tuple[int, str], ...] = field(default=())

    def table(self, test: str, variant: str = "") -> Table | None:
        """Return the test's table, or None."""
        return next((t for t in self.tables if t.test == test and t.variant == variant), None)


@dataclass(frozen=True)
class Fact:
    """One value, with the place where it stands."""

    launch: int
    block: int
    mpi: str
    arm: str
    program: str
    test: str
    variant: str
    ranks: int
    size: int
    metric: str
    unit: Unit
    value: float
    file: str
    line: int
