# SPDX-License-Identifier: Apache-2.0
"""The OSU micro-benchmarks."""

from __future__ import annotations

import re
from typing import NamedTuple

from nearmetal.evidence.model import DERIVED, Column, Row, Setup, Table, Unit
from nearmetal.evidence.parse.reader import (
    CRASHED,
    MIXED,
    Reader,
    on,
    options,
    remark,
    shown,
)

VALIDATION = Column("validation", Unit.COUNT)
TRANSMITTED = Column("transmitted", Unit.BYTES)
SIZE = Column("size", Unit.BYTES)
GRIDS = {
    "Uni-directional Bandwidth (MB/sec)": Column("bandwidth", Unit.MEGABYTES_PER_SECOND),
    "Message Rate Profile": Column("rate", Unit.MESSAGES_PER_SECOND),
}
"""Titles of the tables of `osu_mbw_mr -V`, with a column for each window size."""
OSU_COLUMNS = {
    "Size": SIZE,
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
    "Validation": VALIDATION,
    "Transmit Size": TRANSMITTED,
}
for _tail in ("50", "90", "95", "99"):
    OSU_COLUMNS |= {
        f"P{_tail} Tail Lat(us)": Column(f"latency_p{_tail}", Unit.MICROSECONDS),
        f"P{_tail} Tail BW(MB/s)": Column(f"bandwidth_p{_tail}", Unit.MEGABYTES_PER_SECOND),
    }

OSU_TESTS = {
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
"""Titles that differ from the program's name. The others follow the rule in `_program`."""

PAIRWISE = re.compile(r"osu_(?:latency|bw|bibw|(?:put|get|acc|get_acc|fop|cas)_\w+)$")
"""Tests between two ranks, whatever the number of ranks."""

DEFAULT_LAST = {"latency": 4 << 20, "bw": 4 << 20, "bibw": 4 << 20, "mbw_mr": 4 << 20}
LARGEST_FIRST_SIZE = 4096

VARIED = "window sizes varied"

_TITLE = re.compile(r"#\s*OSU (MPI|UPC\+\+|UPC|OpenSHMEM|NCCL)(\S*)\s")
_VERSION = re.compile(r"v(\d.*)")
_DATATYPE = re.compile(r"[\w ]+")
_ROW = re.compile(r"\s*[-+.]?\d")
_NUMBERS = re.compile(r"[\d.\s]+")
_COMMAND = re.compile(r"(?:.*[/\s])?osu_[a-z_]+\s+(-.*)")
_OF_THE_RUN = re.compile(r"date|time|host|node|job|user|rank|pid|warning|note")
"""Comments about one run, which are no options."""
_SIZES = ("-m", "--message-size", "-f", "--full", "-z", "--tail-lat")
"""Options that select sizes and columns only."""
_INTEL_TRANSPORT = re.compile(r"\[\d+\] MPI startup\(\): (\S+) data transfer mode")


class _Title(NamedTuple):
    library: str
    kind: str
    title: str
    version: str


def _title(text: str) -> _Title | None:
    """Return the parts of `# OSU MPI-One-sided Latency Test v5.8`; None: the line is no title."""
    match = _TITLE.match(text)
    words = text[match.end() :].split() if match else []
    version = _VERSION.fullmatch(words[-1]) if words else None
    if match is None or version is None or words[-2:-1] != ["Test"] or not words[:-2]:
        return None
    return _Title(match[1], match[2], " ".join(words[:-2]), version[1])


def _program(kind: str, title: str) -> str:
    """Return the program's name, such as `osu_ialltoall`, from the words of its title."""
    words = title.lower()
    plain = OSU_TESTS.get(words)
    if plain is None:
        non_blocking = words.startswith("non-blocking ")
        words = words.removeprefix("non-blocking ")
        plain = OSU_TESTS.get(words) or OSU_TESTS.get(f"{words} latency")
        if plain is None:
            plain = re.sub(r"[^a-z0-9]+", "_", words.removesuffix(" latency")).strip("_")
        plain = "i" * non_blocking + plain
    one_sided = re.match(r"_([A-Za-z_]+?)(?:-|$)", kind)
    return f"osu_{one_sided[1].lower()}_{plain}" if one_sided else f"osu_{plain}"


class Osu(Reader):
    """OSU micro-benchmarks 3.x to 7.x: any number of tests in one text, with output of launchers.

    A test begins with its title, names its columns in one comment line, and has no end mark. Sizes
    double, so a missing row shows. A missing tail does not show, unless the run reported its crash.
    """

    format = "osu"
    version = 3
    ends_in_figures = True

    def __init__(self, text: str, file: str) -> None:
        super().__init__(text, file)
        self.whole_lines = text.endswith("\n")
        self.setup = Setup()
        self.called: dict[str, None] = {}
        """Options of the command that stands before a test."""
        self.pairs: int | None = None
        self.grid: Column | None = None
        """What a table with a column for each window size has."""
        self.windows: tuple[str, ...] = ()

    def take(self, text: str) -> None:
        """Read one line: a row, a comment of the benchmark, or a launcher's line."""
        if self.columns is not None and (text[:1].isdigit() or _ROW.match(text)):
            self._row(text.split(), self.columns)
        elif text.startswith("#"):
            if title := _title(text):
                self._begin(title)
            elif self.test:
                super().take(text)
            else:
                self.remark(text)
        elif self.test and self.columns is None and text.strip() and _NUMBERS.fullmatch(text):
            raise self.fail(
                f"numbers {shown(text.strip())} without a header", "no line names their columns"
            )
        elif text.strip():
            self._launcher(text)
            self.remark(text)

    def aside(self, text: str) -> None:
        """Read a line of another rank as one of a launcher."""
        self._launcher(text)
        super().aside(text)

    def _launcher(self, text: str) -> None:
        if "DATA VALIDATION ERROR" in text:
            raise self.fail(shown(text.strip()), "the data arrived wrong: the run is invalid")
        if text.startswith("[0] MPI startup"):
            self.header["mpi"] = "Intel MPI"
        if match := _INTEL_TRANSPORT.match(text):
            self.header["transport"] = match[1]
        elif match := _COMMAND.match(text):
            self.called = dict.fromkeys(options(match[1].split(), _SIZES))

    def _begin(self, found: _Title) -> None:
        self._close()
        library, kind, title, version = found
        if self.header.setdefault("version", version) != version:
            raise self.fail(
                f"version {version} after {self.header['version']}",
                "two versions are mixed in one file",
            )
        self.test = _program(kind, title)
        self.pairs = self.grid = None
        self.flags, self.called = self.called, {}
        accelerator = re.search(r"-(\w+)$", kind)
        modes = (accelerator[1].lower() if accelerator else "", "" if library == "MPI" else library)
        self.setup = Setup(mode=", ".join(filter(None, modes)))

    def _set(self, **parts: str) -> None:
        """Set parts of the setup. Within a test without rows yet, no part changes."""
        if self.rows:
            self._close()
        elif any(getattr(self.setup, name) not in ("", part) for name, part in parts.items()):
            known = ", ".join(filter(None, (getattr(self.setup, name) for name in parts)))
            raise self.fail(f"{', '.join(parts.values())} after {known}", MIXED)
        self.setup = self.setup._replace(**parts)

    @on(r"#\s*\[ pairs: (\d+) \](?: \[ window size: (\S+) \])?")
    def _on_pairs(self, match: re.Match[str]) -> None:
        if self.rows:
            self._close()
            self.setup = self.setup._replace(pair="", window="")
        self.pairs = self.whole(match[1])
        self._set(pair=f"{self.pairs} pairs", window=match[2] or "")

    @on(
        r"#\s*(?:Send Buffer|Rank 0 Memory) on [\w ]{1,20}\((\w+)\) and "
        r"(?:Receive Buffer|Rank 1 Memory) on [\w ]{1,20}\((\w+)\)"
    )
    def _buffers(self, match: re.Match[str]) -> None:
        self._set(buffers=f"{match[1]} {match[2]}")

    @on(r"#\s*Datatype:(.*)$")
    def _datatype(self, match: re.Match[str]) -> None:
        datatype = match[1].strip().removesuffix(".").rstrip()
        if not _DATATYPE.fullmatch(datatype):
            self.remark(match.string)
            return
        # Some versions print it before the columns, others after them. A test may have several.
        if self.rows:
            self._close()
            self.setup = self.setup._replace(datatype="")
        self._set(datatype=datatype)

    @on(r"#\s*(Window creation|Synchronization):\s*(\S+?)\.?\s*$")
    def _one_sided(self, match: re.Match[str]) -> None:
        if self.rows or match[1] == "Window creation":
            self._close()
            self.setup = self.setup._replace(synchronization="")
        before = self.setup.synchronization
        if "," in before:
            raise self.fail(f"{match[2]} after {before}", MIXED)
        self.setup = self.setup._replace(
            synchronization=", ".join(filter(None, (before, match[2])))
        )

    @on(r"#\s*(" + "|".join(map(re.escape, GRIDS)) + r")\s*$")
    def _on_grid(self, match: re.Match[str]) -> None:
        self._close()
        self.grid = GRIDS[match[1]]

    @on(r"#\s+(\d[\d\s]*)$")
    def _on_windows(self, match: re.Match[str]) -> None:
        if self.grid is None:
            self.remark(match.string)
            return
        self._close()
        self.windows = tuple(match[1].split())
        if len(set(self.windows)) < len(self.windows):
            raise self.fail("a window size stands twice", "the header is damaged")
        self.open_table((SIZE, *(Column(w, self.grid.unit) for w in self.windows)))

    @on(r"#\s*Window(?: size)?:\s*(\S+)")
    def _window(self, match: re.Match[str]) -> None:
        self._set(window=match[1])

    @on(r"(?!.*=)#\s*(?:Size\b|[A-Z][\w. ]*\((?:us|MB/s|%)\)|MB/s\b)")
    def _head(self, match: re.Match[str]) -> None:
        if self.columns is not None:
            raise self.fail("a second header within a test", MIXED)
        words = re.sub(r"\s*\(", "(", " ".join(match.string.lstrip("# \t").split()))
        self.open_table(self.spaced_columns(words, OSU_COLUMNS))

    @on(r"#\s*([A-Z][\w -]{1,40}):\s*(\S.{0,80}?)\.?\s*$")
    def _option(self, match: re.Match[str]) -> None:
        self.remark(match.string)
        name = match[1].lower()
        if not self.rows and not _OF_THE_RUN.search(name):
            self.flag(f"{name} {match[2]}")

    _comment = remark("")

    def _row(self, words: list[str], columns: tuple[Column, ...]) -> None:
        if VALIDATION in columns and len(words) == len(columns):
            at = columns.index(VALIDATION)
            if words[at].lower() not in ("pass", "-", "n/a"):
                raise self.fail(
                    f"validation says {shown(words[at])}",
                    "the data arrived wrong: the run is invalid",
                )
            words[at] = "1"
        found = self.row(words, columns)
        self._check_size(found)
        self.rows.append(found)

    def _check_size(self, found: Row) -> None:
        size = found.values.get("size")
        if size is None:
            if self.rows:
                raise self.fail("a second row of a test without sizes", MIXED)
            return
        if not size.is_integer():
            raise self.fail(f"size {size:g} is not a whole number", "the row is damaged")
        if self.rows:
            before = self.rows[-1].values["size"]
            due = before * 2 if before else 1
            if size != due and not (before == 0 and size <= LARGEST_FIRST_SIZE):
                raise self.fail(
                    f"size {size:.0f} after {before:.0f}",
                    "rows are missing, or two outputs are mixed",
                )

    def _close(self) -> None:
        """Close the test that is open, if there is one."""
        if self.columns is None:
            return
        if not self.rows:
            raise self.fail(f"{self.test} has no row", "the run was cut off", self.opened)
        last = self.rows[-1].values.get("size", 0)
        usual = DEFAULT_LAST.get(self.test.removeprefix("osu_"), 0)
        if last < usual:
            text = f"{self.test} ends at {last:.0f} B, not at its default of {usual} B"
            self.remarks.append((self.rows[-1].line, f"{text}: a shorter run, or it was cut off"))
        processes = 2 * self.pairs if self.pairs else self.rank_map.size or None
        setup = self.setup._replace(flags=self.flag_words(), datatype=self._sent())
        if self.windows:
            self._close_grid(setup, processes)
        else:
            self.close_table(setup, 2 if PAIRWISE.match(self.test) else processes)

    def _sent(self) -> str:
        """Return the datatype of the rows; of a derived one (`-D`), the log shows what it sends."""
        known = self.setup.datatype
        if TRANSMITTED not in (self.columns or ()):
            return known
        size, sent = (self.rows[-1].values[c.metric] for c in (SIZE, TRANSMITTED))
        share = f"{DERIVED}, {sent / size:.3g} of it sent" if size else DERIVED
        return ", ".join(filter(None, (known, share)))

    def _close_grid(self, setup: Setup, processes: int | None) -> None:
        """Keep one table for each window size of the table that is open."""
        grid = self.grid or SIZE
        tables = []
        for window in self.windows:
            rows = tuple(
                Row(r.line, {SIZE.metric: r.values[SIZE.metric], grid.metric: r.values[window]})
                for r in self.rows
            )
            own = setup._replace(
                window=window, flags="; ".join(filter(None, (setup.flags, VARIED)))
            )
            tables.append(Table(self.test, self.opened, (SIZE, grid), rows, own, processes))
        self.keep(*tables)
        self.columns, self.rows, self.windows = None, [], ()

    def _check_last_row(self) -> None:
        """Refuse a last line that lost its end: it has fewer digits than the line before."""
        last = self.lines[-1].split()
        if not last or not _ROW.match(self.lines[-1]):
            return
        rows = (line.split() for line in reversed(self.lines[:-1]) if _ROW.match(line))
        before = next(rows, [])
        if len(before) != len(last):
            return
        self.number(last[-1])
        digits = [len(words[-1].partition(".")[2]) for words in (before, last)]
        if digits[1] < digits[0]:
            raise self.fail(
                f"the last row ends in {shown(last[-1])}",
                "it is cut off: the rows before have more digits, and no newline follows",
            )

    def end(self) -> None:
        """Close the last test."""
        if not self.test:
            raise self.fail("not the output of the OSU benchmarks", "it has no title of a test", 1)
        if not self.whole_lines:
            self._check_last_row()
        self._close()
        self.flags = {}
        if not self.tables:
            raise self.fail(f"{self.test} printed no columns", CRASHED)
