# SPDX-License-Identifier: Apache-2.0
"""OSU micro-benchmarks 3.x to 7.x: any number of tests in one text, with launchers' talk between.

A test begins with its title, has its columns in one comment line, and marks no end. Sizes double,
so a missing one shows; a missing tail does not, unless the run left a mark of its crash.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from nearmetal.evidence.model import Column, Log, Table, Unit
from nearmetal.evidence.parse.text import fail, number, row, shown, spaced_columns, split_lines

if TYPE_CHECKING:
    from nearmetal.evidence.model import Row

VALIDATION = Column("validation", Unit.COUNT)
COLUMNS = {
    "Size": Column("size", Unit.BYTES),
    "Latency(us)": Column("latency", Unit.MICROSECONDS),
    "Avg Latency(us)": Column("latency", Unit.MICROSECONDS),
    "Min Latency(us)": Column("latency_min", Unit.MICROSECONDS),
    "Max Latency(us)": Column("latency_max", Unit.MICROSECONDS),
    "Iterations": Column("iterations", Unit.COUNT),
    "Bandwidth(MB/s)": Column("bandwidth", Unit.MEGABYTES_PER_SECOND),
    "MB/s": Column("bandwidth", Unit.MEGABYTES_PER_SECOND),
    "Messages/s": Column("rate", Unit.MESSAGES_PER_SECOND),
    "Overall(us)": Column("overall", Unit.MICROSECONDS),
    "Compute(us)": Column("compute", Unit.MICROSECONDS),
    "Coll. Init(us)": Column("init", Unit.MICROSECONDS),
    "MPI_Test(us)": Column("mpi_test", Unit.MICROSECONDS),
    "MPI_Wait(us)": Column("mpi_wait", Unit.MICROSECONDS),
    "Pure Comm.(us)": Column("communication", Unit.MICROSECONDS),
    "Min Comm.(us)": Column("communication_min", Unit.MICROSECONDS),
    "Max Comm.(us)": Column("communication_max", Unit.MICROSECONDS),
    "Overlap(%)": Column("overlap", Unit.PERCENT),
    "P50 Tail Lat(us)": Column("latency_p50", Unit.MICROSECONDS),
    "P90 Tail Lat(us)": Column("latency_p90", Unit.MICROSECONDS),
    "P95 Tail Lat(us)": Column("latency_p95", Unit.MICROSECONDS),
    "P99 Tail Lat(us)": Column("latency_p99", Unit.MICROSECONDS),
    "P50 Tail BW(MB/s)": Column("bandwidth_p50", Unit.MEGABYTES_PER_SECOND),
    "P90 Tail BW(MB/s)": Column("bandwidth_p90", Unit.MEGABYTES_PER_SECOND),
    "P95 Tail BW(MB/s)": Column("bandwidth_p95", Unit.MEGABYTES_PER_SECOND),
    "P99 Tail BW(MB/s)": Column("bandwidth_p99", Unit.MEGABYTES_PER_SECOND),
    "Validation": VALIDATION,
}

TESTS = {
    "latency": "latency",
    "multi latency": "multi_lat",
    "multi-threaded latency": "latency_mt",
    "multi-process latency": "latency_mp",
    "bandwidth": "bw",
    "bi-directional bandwidth": "bibw",
    "multiple bandwidth / message rate": "mbw_mr",
    "all-to-all personalized exchange latency": "alltoall",
    "all-to-allv personalized exchange latency": "alltoallv",
    "all-to-all latency": "alltoall",
    "all-to-allv latency": "alltoallv",
    "broadcast latency": "bcast",
}
"""Titles whose words are not the program's name. Others follow the rule in `_program`."""

PAIRWISE = re.compile(r"osu_(?:latency|bw|bibw|(?:put|get|acc|get_acc|fop|cas)_\w+)$")
"""Tests between two ranks, however many there are."""

DEFAULT_LAST = {"latency": 4 << 20, "bw": 4 << 20, "bibw": 4 << 20, "mbw_mr": 4 << 20}

_TITLE = re.compile(r"#\s*OSU (MPI|UPC\+\+|UPC|OpenSHMEM|NCCL)(\S*)\s+(.+?)\s+Test\s+v(\d\S*)\s*$")
_BUFFERS = re.compile(r"#\s*Send Buffer on \w+ \((\w+)\) and Receive Buffer on \w+ \((\w+)\)")
_DATATYPE = re.compile(r"#\s*Datatype:\s*([\w ]+?)\.?\s*$")
_ONE_SIDED = re.compile(r"#\s*(?:Window creation|Synchronization):\s*(\S+?)\.?\s*$")
_PAIRS = re.compile(r"#\s*\[ pairs: (\d+) \](?: \[ window size: (\S+) \])?")
_WINDOW = re.compile(r"#\s*Window:\s*(\S+)")
_ROW = re.compile(r"\s*[-+.]?\d")
_NUMBERS = re.compile(r"[\d.\s]+")
_HEADER = re.compile(r"#\s*(?:Size\b|[A-Z][\w. ]*\((?:us|MB/s|%)\)|MB/s\b)")
_INTEL_NODE = re.compile(r"\[0\] MPI startup\(\):\s+(\d+)\s+\d+\s+(\S+)\s+\{")
_INTEL_TRANSPORT = re.compile(r"\[\d+\] MPI startup\(\): (\S+) data transfer mode")


def _program(kind: str, title: str) -> str:
    """Return the program's name, as `osu_ialltoall`, from the words of its title."""
    words = title.lower()
    plain = TESTS.get(words)
    if plain is None:
        non_blocking = words.startswith("non-blocking ")
        words = words.removeprefix("non-blocking ")
        plain = TESTS.get(words) or TESTS.get(f"{words} latency")
        if plain is None:
            plain = re.sub(r"[^a-z0-9]+", "_", words.removesuffix(" latency")).strip("_")
        plain = "i" * non_blocking + plain
    one_sided = re.match(r"_([A-Za-z_]+?)(?:-|$)", kind)
    return f"osu_{one_sided[1].lower()}_{plain}" if one_sided else f"osu_{plain}"


def header_columns(text: str, file: str, line: int) -> tuple[Column, ...]:
    """Return the columns that a header names; names may hold spaces, so the longest fits first."""
    words = re.sub(r"\s*\(", "(", " ".join(text.lstrip("# \t").split()))
    return spaced_columns(words, COLUMNS, file, line)


class _Reader:
    """Walks over the lines of one file."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.header: dict[str, str] = {}
        self.tables: list[Table] = []
        self.remarks: list[tuple[int, str]] = []
        self.nodes: dict[str, None] = {}
        self.ranks = 0
        self.test = ""
        self._line = 0
        self._variant: list[str] = []
        self._pairs: int | None = None
        self._columns: tuple[Column, ...] | None = None
        self._validated = False
        self._rows: list[Row] = []

    def take(self, line: int, text: str) -> None:
        if self._columns is not None and (text[:1].isdigit() or _ROW.match(text)):
            self._row(line, text)
        elif text.startswith("#"):
            self._comment(line, text)
        elif not text.strip():
            return
        elif self.test and self._columns is None and _NUMBERS.fullmatch(text):
            raise fail(
                self.file,
                line,
                f"numbers {shown(text.strip())} without a header",
                "no line names their columns",
            )
        else:
            self._preamble(text)
            self.remarks.append((line, text.strip()))

    def _preamble(self, text: str) -> None:
        if match := _INTEL_NODE.match(text):
            self.ranks = max(self.ranks, int(match[1]) + 1)
            self.nodes[match[2]] = None
            self.header["mpi"] = "Intel MPI"
        elif match := _INTEL_TRANSPORT.match(text):
            self.header["transport"] = match[1]

    def _comment(self, line: int, text: str) -> None:
        if match := _TITLE.match(text):
            self.close()
            self._begin(line, *match.groups())
        elif not self.test:
            self.remarks.append((line, text.strip()))
        elif match := _PAIRS.match(text):
            if self._rows:
                self.close()
            self._pairs = int(match[1])
            if match[2]:
                self.header["window"] = match[2]
        elif self._setting(text):
            return
        elif _HEADER.match(text) and "=" not in text:
            if self._columns is not None:
                raise fail(
                    self.file, line, "a second header within a test", "two outputs are mixed"
                )
            self._columns, self._line = header_columns(text, self.file, line), line
            self._validated = VALIDATION in self._columns
        else:
            self.remarks.append((line, text.strip()))

    def _setting(self, text: str) -> bool:
        """Take a comment that says how a test runs; returns whether it was one."""
        if match := _BUFFERS.match(text):
            self._variant.append(f"{match[1]} {match[2]}")
        elif match := _DATATYPE.match(text):
            # It stands before the columns in some versions, behind them in others.
            if self._rows:
                self.close()
            self._variant = [v for v in self._variant if not v.startswith("MPI_")]
            self.header["datatype"] = match[1]
            if match[1] != "MPI_CHAR":
                self._variant.append(match[1])
        elif match := _ONE_SIDED.match(text):
            self._variant.append(match[1])
        elif match := _WINDOW.match(text):
            self.header["window"] = match[1]
        else:
            return False
        return True

    def _begin(self, line: int, library: str, kind: str, title: str, version: str) -> None:
        known = self.header.get("version")
        if known not in (None, version):
            raise fail(
                self.file,
                line,
                f"version {version} after {known}",
                "two versions are mixed in one file",
            )
        self.header["version"] = version
        self.test = _program(kind, title)
        self._pairs = None
        accelerator = re.search(r"-(\w+)$", kind)
        self._variant = [accelerator[1].lower()] if accelerator else []
        if library != "MPI":
            self._variant.append(library)

    def _row(self, line: int, text: str) -> None:
        assert self._columns is not None  # noqa: S101 - our own invariant, checked by the caller
        words = text.split()
        if self._validated and len(words) == len(self._columns):
            where = self._columns.index(VALIDATION)
            if words[where].lower() not in ("pass", "-", "n/a"):
                raise fail(
                    self.file,
                    line,
                    f"validation says {shown(words[where])}",
                    "the data arrived wrong: the run is invalid",
                )
            words[where] = "1"
        found = row(words, self._columns, self.file, line)
        self._check_size(line, found)
        self._rows.append(found)

    def _check_size(self, line: int, found: Row) -> None:
        size = found.values.get("size")
        if size is None:
            if self._rows:
                raise fail(
                    self.file, line, "a second row of a test without sizes", "two outputs are mixed"
                )
            return
        if not size.is_integer():
            raise fail(self.file, line, f"size {size:g} is no whole number", "the row is damaged")
        if self._rows:
            before = self._rows[-1].values["size"]
            due = before * 2 if before else 1
            if size != due and not (before == 0 and size <= 4096):  # noqa: PLR2004 - a page
                raise fail(
                    self.file,
                    line,
                    f"size {size:.0f} after {before:.0f}",
                    "rows are missing, or two outputs are mixed",
                )

    def close(self) -> None:
        """End the test that is open, if one is."""
        if self._columns is None:
            return
        if not self._rows:
            raise fail(self.file, self._line, f"{self.test} has no row", "the run was cut off")
        last = self._rows[-1].values.get("size", 0)
        usual = DEFAULT_LAST.get(self.test.removeprefix("osu_"), 0)
        if last < usual:
            text = f"{self.test} ends at {last:.0f} B, not at its default of {usual} B"
            self.remarks.append((self._rows[-1].line, f"{text}: a shorter run, or one cut off"))
        variant = [*self._variant, *([f"{self._pairs} pairs"] if self._pairs else [])]
        processes = 2 * self._pairs if self._pairs else self.ranks or None
        if PAIRWISE.match(self.test):
            processes = 2
        self.tables.append(
            Table(
                self.test,
                self._line,
                self._columns,
                tuple(self._rows),
                ", ".join(variant),
                processes,
            )
        )
        self._columns, self._rows = None, []


def _check_last_row(lines: list[str], file: str) -> None:
    """Raise LogError when the last line lost its end: its digits say less than the others'."""
    last = lines[-1].split()
    if not last or not _ROW.match(lines[-1]):
        return
    before = next((line.split() for line in reversed(lines[:-1]) if _ROW.match(line)), None)
    if before is None or len(before) != len(last):
        return
    number(last[-1], file, len(lines))
    digits = [len(words[-1].partition(".")[2]) for words in (before, last)]
    if digits[1] < digits[0]:
        raise fail(
            file,
            len(lines),
            f"the last row ends in {shown(last[-1])}",
            "it is cut off: the rows before have more digits, and no newline follows",
        )


def parse(text: str, file: str) -> Log:
    """Read one output; raises LogError when it is damaged, mixed, or something else."""
    reader = _Reader(file)
    lines = split_lines(text)
    for nr, line in enumerate(lines, 1):
        reader.take(nr, line)
    if not reader.test:
        raise fail(file, 1, "not the output of the OSU benchmarks", "no title names one")
    if not text.endswith("\n"):
        _check_last_row(lines, file)
    reader.close()
    if not reader.tables:
        raise fail(
            file, len(lines), f"{reader.test} printed no columns", "the run crashed or was cut off"
        )
    if reader.nodes:
        reader.header["nodes"] = str(len(reader.nodes))
    return Log(file, "osu", reader.header, tuple(reader.tables), tuple(reader.remarks))
