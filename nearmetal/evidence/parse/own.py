# SPDX-License-Identifier: Apache-2.0
"""The format of the programs in benchmarks/: "nearmetal-bench 1", told in sampling.h."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nearmetal.evidence.model import Column, Log, Table, Unit
from nearmetal.evidence.parse.text import columns, fail, row, shown, split_lines

if TYPE_CHECKING:
    from nearmetal.evidence.model import Row

VERSION = "1"

COLUMNS = {
    "size_B": Column("size", Unit.BYTES),
    "samples": Column("samples", Unit.COUNT),
    "batch": Column("batch", Unit.COUNT),
    "insert_s": Column("insert", Unit.SECONDS),
    "insert_cpu_s": Column("insert_cpu", Unit.SECONDS),
    "private_kB": Column("private", Unit.KILOBYTES),
    "vector_kB": Column("vector", Unit.KILOBYTES),
    "shared_kB": Column("shared", Unit.KILOBYTES),
    "addresses": Column("addresses", Unit.COUNT),
    "turn": Column("turn", Unit.COUNT),
    "time_us": Column("time", Unit.MICROSECONDS),
    "time_p2_us": Column("time_p2", Unit.MICROSECONDS),
    "time_p25_us": Column("time_p25", Unit.MICROSECONDS),
    "time_p50_us": Column("time_p50", Unit.MICROSECONDS),
    "time_p75_us": Column("time_p75", Unit.MICROSECONDS),
    "time_p98_us": Column("time_p98", Unit.MICROSECONDS),
    "messages": Column("messages", Unit.COUNT),
    "rate_p50_Mps": Column("rate_p50", Unit.MEGAMESSAGES_PER_SECOND),
    "bandwidth_p50_MBps": Column("bandwidth_p50", Unit.MEGABYTES_PER_SECOND),
}

_REMARKS = ("placement", "absent", "verified")


class _Reader:
    """Walks over the lines of one file."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.header: dict[str, str] = {}
        self.tables: list[Table] = []
        self.remarks: list[tuple[int, str]] = []
        self.program = ""
        self.done = False
        self._open: tuple[str, int] | None = None
        self._columns: tuple[Column, ...] | None = None
        self._rows: list[Row] = []

    def take(self, number: int, line: str) -> None:
        words = line.split()
        if not words:
            return
        if self.done:
            raise fail(self.file, number, f"{shown(line)} after the end", "two outputs are mixed")
        if words[0] == "#":
            self._comment(number, words[1:], line)
        elif self._open is None:
            self.remarks.append((number, line))
        elif self._columns is None:
            self._columns = columns(words, COLUMNS, self.file, number)
            if Column("size", Unit.BYTES) not in self._columns:
                raise fail(self.file, number, "no column size_B", "rows could not be told apart")
        else:
            self._rows.append(row(words, self._columns, self.file, number))

    def _comment(self, number: int, words: list[str], line: str) -> None:
        keyword = words[0] if words else ""
        rest = " ".join(words[1:])
        if not self.program:
            self._first(number, words)
        elif keyword == "table":
            if self._open is not None:
                raise fail(
                    self.file,
                    number,
                    f"table {rest} within {self._open[0]}",
                    f"line {self._open[1]} is not closed",
                )
            self._open, self._columns, self._rows = (rest, number), None, []
        elif keyword == "end":
            self._close(number, rest)
        elif keyword == "done":
            if self._open is not None or rest != self.program:
                raise fail(self.file, number, f"the end of {rest!r}", "something else is open")
            self.done = True
        elif keyword in _REMARKS:
            self.remarks.append((number, line.removeprefix("# ")))
            self.header.setdefault(keyword, rest)
        elif self._open is None:
            key = f"{keyword} {words[1]}" if keyword == "host" and len(words) > 1 else keyword
            self.header[key] = rest
        else:
            raise fail(self.file, number, f"{shown(line)} within a table", "rows were expected")

    def _first(self, number: int, words: list[str]) -> None:
        match words:
            case ["nearmetal-bench", version, program]:
                self.program = program
            case _:
                raise fail(
                    self.file,
                    number,
                    "not the output of a nearmetal benchmark",
                    "it must start with '# nearmetal-bench 1 PROGRAM'",
                )
        if version != VERSION:
            raise fail(
                self.file,
                number,
                f"format version {shown(version)}",
                f"this reads version {VERSION}",
            )

    def _close(self, number: int, name: str) -> None:
        if self._open is None or self._open[0] != name:
            raise fail(self.file, number, f"the end of {name!r}", "that table is not open")
        if self._columns is None:
            raise fail(self.file, number, f"table {name} has no columns", "it is cut off")
        if any(t.test == name for t in self.tables):
            raise fail(self.file, number, f"table {name} stands twice", "two outputs are mixed")
        table = Table(name, self._open[1], self._columns, tuple(self._rows))
        self.tables.append(table)
        self._open = None


def parse(text: str, file: str) -> Log:
    """Read one output; raises LogError when it is damaged, cut off, or something else."""
    reader = _Reader(file)
    lines = split_lines(text)
    start = next((i for i, line in enumerate(lines) if line.startswith("# nearmetal-bench ")), None)
    if start is None:
        raise fail(
            file,
            1,
            "not the output of a nearmetal benchmark",
            "no line starts with '# nearmetal-bench'",
        )
    # Launchers and loaders may have said something before.
    reader.remarks = [(i + 1, line) for i, line in enumerate(lines[:start]) if line.strip()]
    for number, line in enumerate(lines[start:], start + 1):
        reader.take(number, line)
    if not reader.done:
        raise fail(
            file,
            len(lines),
            "the output stops before its end",
            f"'# done {reader.program}' is missing: the run crashed or was cut off",
        )
    return Log(file, "nearmetal-bench", reader.header, tuple(reader.tables), tuple(reader.remarks))
