# SPDX-License-Identifier: Apache-2.0
"""The format of the programs in benchmarks/, "nearmetal-bench 1", as sampling.h describes it."""

from __future__ import annotations

from nearmetal.evidence.model import Column, Unit
from nearmetal.evidence.parse.reader import MIXED, Reader, shown

VERSION = "1"

COLUMNS = {
    "size_B": Column("size", Unit.BYTES),
    "samples": Column("samples", Unit.COUNT),
    "batch": Column("batch", Unit.COUNT),
    "insert_s": Column("insert", Unit.SECONDS),
    "insert_cpu_s": Column("insert_cpu", Unit.SECONDS),
    "private_kB": Column("private", Unit.KILOBYTES),
    "vector_kB": Column("vector", Unit.KILOBYTES),
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
    "copy_p50_MBps": Column("copy_p50", Unit.MEGABYTES_PER_SECOND),
    "pinned_p50_MBps": Column("pinned_p50", Unit.MEGABYTES_PER_SECOND),
    "of_copy_p50": Column("of_copy", Unit.COUNT),
    "of_pinned_p50": Column("of_pinned", Unit.COUNT),
}

_FIRST = "# nearmetal-bench "
_REMARKS = ("placement", "absent", "verified")


class Own(Reader):
    """Output of one program: settings, tables that begin and end by name, and an end mark."""

    format = "nearmetal-bench"
    started = done = False
    program = ""

    def __init__(self, text: str, file: str) -> None:
        super().__init__(text, file)
        self.closed: set[str] = set()

    def take(self, text: str) -> None:
        """Read one line. Launchers and loaders may print lines before the first one."""
        words = text.split()
        self.started = self.started or text.startswith(_FIRST)
        if not words:
            return
        if not self.started:
            self.remarks.append((self.line, text))
        elif self.done:
            raise self.fail(f"{shown(text)} after the end", MIXED)
        elif words[0] == "#":
            self._comment(words[1:], text)
        elif not self.test:
            self.remarks.append((self.line, text))
        elif self.columns is None:
            self.columns = self.columns_of(words, COLUMNS)
            if COLUMNS["size_B"] not in self.columns:
                raise self.fail("no column size_B", "rows could not be distinguished")
        else:
            self.rows.append(self.row(words, self.columns))

    def _comment(self, words: list[str], text: str) -> None:
        keyword, rest = (words or [""])[0], " ".join(words[1:])
        if not self.program:
            self._first(words)
        elif keyword == "table":
            self._open(rest)
        elif keyword == "end":
            self._close(rest)
        elif keyword == "done":
            if self.test or rest != self.program:
                raise self.fail(f"the end of {rest!r}", "another part is open")
            self.done = True
        elif keyword in _REMARKS:
            self.remarks.append((self.line, text.removeprefix("# ")))
            self.header.setdefault(keyword, rest)
        elif not self.test:
            key = f"{keyword} {words[1]}" if keyword == "host" and len(words) > 1 else keyword
            self.header[key] = rest
        else:
            raise self.fail(f"{shown(text)} within a table", "rows were expected")

    def _first(self, words: list[str]) -> None:
        match words:
            case ["nearmetal-bench", version, program]:
                self.program = program
            case _:
                raise self.fail(
                    "not the output of a nearmetal benchmark",
                    f"it must start with '{_FIRST}{VERSION} PROGRAM'",
                )
        if version != VERSION:
            raise self.fail(f"format version {shown(version)}", f"this reads version {VERSION}")

    def _open(self, name: str) -> None:
        if not name:
            raise self.fail("a table without a name", "the line is damaged")
        if self.test:
            raise self.fail(f"table {name} within {self.test}", f"line {self.opened} is not closed")
        self.test, self.opened = name, self.line

    def _close(self, name: str) -> None:
        if self.test != name:
            raise self.fail(f"the end of {name!r}", "that table is not open")
        if self.columns is None:
            raise self.fail(f"table {name} has no columns", "it is cut off")
        if name in self.closed:
            raise self.fail(f"table {name} stands twice", MIXED)
        self.closed.add(name)
        self.close_table()
        self.test = ""

    def end(self) -> None:
        """Check that the program has ended."""
        if not self.started:
            raise self.fail(
                "not the output of a nearmetal benchmark", f"no line starts with {_FIRST!r}", 1
            )
        if not self.done:
            raise self.cut_off(f"# done {self.program}")
