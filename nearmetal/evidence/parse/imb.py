# SPDX-License-Identifier: Apache-2.0
"""Intel MPI Benchmarks: the text of IMB-MPI1 and IMB-RMA."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from nearmetal.evidence.model import Column, Log, Table, Unit
from nearmetal.evidence.parse.text import columns, fail, row, shown, split_lines

if TYPE_CHECKING:
    from nearmetal.evidence.model import Row

COLUMNS = {
    "#bytes": Column("size", Unit.BYTES),
    "#repetitions": Column("repetitions", Unit.COUNT),
    "t[usec]": Column("time", Unit.MICROSECONDS),
    "t_min[usec]": Column("time_min", Unit.MICROSECONDS),
    "t_max[usec]": Column("time_max", Unit.MICROSECONDS),
    "t_avg[usec]": Column("time_mean", Unit.MICROSECONDS),
    "t_pure[usec]": Column("time_pure", Unit.MICROSECONDS),
    "t_ovrl[usec]": Column("time_overlapped", Unit.MICROSECONDS),
    "Mbytes/sec": Column("bandwidth", Unit.MEGABYTES_PER_SECOND),
    "Msg/sec": Column("rate", Unit.MESSAGES_PER_SECOND),
    "defects": Column("defects", Unit.COUNT),
}

_HEADER = re.compile(r"#\s+([A-Za-z_ ]+?)\s*:\s*(.*)$")
_BENCHMARK = re.compile(r"#\s*Benchmarking\s+(\S+)")
_PROCESSES = re.compile(r"#\s*#processes\s*=\s*(\d+)")
_GROUPS = re.compile(r"#\s*\(\s*(\d+) groups of \d+ process(?:es)? each running simultan")
_MODE = re.compile(r"#\s*MODE:\s*(\S+)")
_TITLE = re.compile(r"#\s+Intel\(R\) MPI Benchmarks\s+(.*)$")
_TIME_OUT = re.compile(r"\s*\d+ time-out\.;")
_END = "# All processes entering MPI_Finalize"


class _Reader:
    """Walks over the lines of one file."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.header: dict[str, str] = {}
        self.tables: list[Table] = []
        self.remarks: list[tuple[int, str]] = []
        self.ended = False
        self._test = ""
        self._variant = ""
        self._processes: int | None = None
        self._line = 0
        self._columns: tuple[Column, ...] | None = None
        self._rows: list[Row] = []

    def take(self, number: int, line: str) -> None:
        if not line.strip():
            self.close()
        elif line.split(maxsplit=1)[0] in COLUMNS and self._test:
            self._columns = columns(line.split(), COLUMNS, self.file, number)
            self._line = number
        elif line.startswith("#"):
            self._comment(number, line)
        elif self._columns is not None:
            self._row(number, line)
        elif line.split(maxsplit=1)[0].startswith("#"):
            raise fail(
                self.file,
                number,
                f"unknown column {shown(line.split(maxsplit=1)[0])}",
                f"known: {', '.join(COLUMNS)}",
            )
        else:
            self.remarks.append((number, line.strip()))

    def _row(self, number: int, line: str) -> None:
        if _TIME_OUT.match(line):
            self.remarks.append((number, f"{self._test}: {line.strip()}"))
            return
        assert self._columns is not None  # noqa: S101 - our own invariant, checked by the caller
        self._rows.append(row(line.split(), self._columns, self.file, number))

    def _comment(self, number: int, line: str) -> None:
        self.close()
        if line.startswith(_END):
            self.ended = True
        elif match := _BENCHMARK.match(line):
            self._test, self._variant, self._processes = match[1], "", None
        elif match := _PROCESSES.match(line):
            self._processes = int(match[1])
        elif match := _GROUPS.match(line):
            self._variant = f"{match[1]} groups"
        elif match := _MODE.match(line):
            self._variant = match[1].lower()
        elif match := _TITLE.match(line):
            self.header["title"] = match[1]
        elif (match := _HEADER.match(line)) and not self._test:
            self.header[match[1]] = match[2]
        elif self._test and line.startswith("# (") and "additional" in line:
            self.remarks.append((number, f"{self._test}: {line.removeprefix('#').strip()}"))

    def close(self) -> None:
        """End the table that is open, if one is."""
        if self._columns is None:
            return
        table = Table(
            self._test, self._line, self._columns, tuple(self._rows), self._variant, self._processes
        )
        self.tables.append(table)
        self._columns, self._rows = None, []


def parse(text: str, file: str) -> Log:
    """Read one output; raises LogError when it is damaged, cut off, or something else."""
    reader = _Reader(file)
    lines = split_lines(text)
    for number, line in enumerate(lines, 1):
        reader.take(number, line)
    reader.close()
    if "title" not in reader.header:
        raise fail(file, 1, "not the output of the Intel MPI Benchmarks", "their title is missing")
    if not reader.ended:
        raise fail(
            file,
            len(lines),
            "the output stops before its end",
            f"{_END[2:]!r} is missing: the run crashed or was cut off",
        )
    return Log(file, "imb", reader.header, tuple(reader.tables), tuple(reader.remarks))
