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


@dataclass(frozen=True)
class Table:
    """The rows of one test. `variant` distinguishes tests of one name, for example by their mode."""

    test: str
    line: int
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    variant: str = ""
    processes: int | None = None


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
