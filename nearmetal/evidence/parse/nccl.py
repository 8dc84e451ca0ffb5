# SPDX-License-Identifier: Apache-2.0
"""nccl-tests (and rccl-tests): collectives between accelerators."""

from __future__ import annotations

import re
from typing import NamedTuple

from nearmetal.evidence.model import Column, Row, Setup, Table, Unit
from nearmetal.evidence.parse.reader import CRASHED, MIXED, Reader, on, shown, stop

NCCL_COLUMNS = {
    "time": Column("time", Unit.MICROSECONDS),
    "cputime": Column("cpu_time", Unit.MICROSECONDS),
    "algbw": Column("bandwidth", Unit.GIGABYTES_PER_SECOND),
    "busbw": Column("bus_bandwidth", Unit.GIGABYTES_PER_SECOND),
    "i_min": Column("time_min", Unit.MICROSECONDS),
    "i_max": Column("time_max", Unit.MICROSECONDS),
    "i_p99": Column("time_p99", Unit.MICROSECONDS),
    "i_cv%": Column("time_cv", Unit.PERCENT),
}
SIZE = Column("size", Unit.BYTES)
LABELS = ("size", "count", "type", "redop", "root")
CHECKS = ("#wrong", "error")
"""Columns of the check of the data: the number of wrong values, or the largest deviation."""
STARTS = ("time", "cputime")
PLACES = ("out of place", "in place")
STAMP = "timestamp"
PRINTED_UNITS = {
    "size": "(B)",
    "count": "(elements)",
    "i_cv%": "(%)",
    **{
        name: {Unit.MICROSECONDS: "(us)", Unit.GIGABYTES_PER_SECOND: "(GB/s)"}[column.unit]
        for name, column in NCCL_COLUMNS.items()
        if column.unit is not Unit.PERCENT
    },
}
BYTES_OF = {
    **dict.fromkeys(("int8", "uint8", "char", "f8e4m3", "f8e5m2"), 1),
    **dict.fromkeys(("half", "bfloat16"), 2),
    **dict.fromkeys(("int32", "uint32", "int", "float"), 4),
    **dict.fromkeys(("int64", "uint64", "double"), 8),
}
PROGRAMS = (
    *("all_reduce", "all_gather", "reduce_scatter", "reduce", "broadcast", "sendrecv"),
    *("gather", "scatter", "alltoallv", "alltoall", "hypercube"),
)
TUNED = "ALGO|PROTO|BUFFSIZE|NTHREADS|MIN_NCHANNELS|MAX_NCHANNELS|P2P_NET_CHUNKSIZE"
"""Settings of NCCL that choose how a message is sent, without their prefix."""

FACTOR_SHOWS = 1.05
"""The bus bandwidth is a multiple of the other one: a quotient above this is no rounding."""

_PROGRAM = re.compile(rf"(?<![a-z_])({'|'.join(PROGRAMS)})_perf(?![a-z])")
_SETTINGS = re.compile(
    r"(nThread|nGpus|warmup ?[iI]ters|iters|agg iters|validation|graph|unalign):? (\d+)(?=\s|$)"
)
_NUMBER = re.compile(r"-?[\d.]+(?:e[+-]?\d+)?")
_IN_COMMAND = re.compile(rf"(?<!\w)NCCL_({TUNED})=(\S{{1,80}})")


class _Series(NamedTuple):
    """What makes a table of its own: the type, the operation, the root, and the buffers."""

    datatype: str
    redop: str
    root: int
    buffers: str


class Nccl(Reader):
    """nccl-tests: any number of runs in one text, with the messages of NCCL and of launchers.

    A run begins with its settings, names the device of each rank, and ends with its check.
    """

    format = "nccl"
    names: tuple[str, ...] = ()
    """The columns of the open run, in words."""
    ready = False
    """Whether the units of the columns were checked."""
    running = False
    ranks = 0
    iterations = ""

    def __init__(self, text: str, file: str) -> None:
        super().__init__(text, file)
        self.places: dict[_Series, list[Row]] = {}
        self.whole_size: dict[str, bool] = {}
        """By operation and root: whether a rank has all the bytes of the size."""
        self.groups: set[str] = set()

    def take(self, text: str) -> None:
        """Read one line: a row, a comment of the benchmark, or a message."""
        if self.ready and text.split(maxsplit=1)[:1] and text.split(maxsplit=1)[0].isdigit():
            self._row(text.split())
        else:
            super().take(text)

    _failed = stop(
        r".*: Test (?:NCCL|CUDA|HIP) failure|.*NCCL WARN Cuda failure", "the test failed"
    )

    @on(r"#\s*nccl-tests version (\S+)(?:.*?nccl-library=(\d+))?")
    def _version(self, match: re.Match[str]) -> None:
        library = f", NCCL {match[2]}" if match[2] else ""
        self.header["version"] = match[1] + library

    @on(r"(?:.*NCCL INFO )?NCCL version (\S+)")
    def _library(self, match: re.Match[str]) -> None:
        self.header.setdefault("version", f"NCCL {match[1]}")

    @on(rf".*(?:INFO|Setting) NCCL_({TUNED}) (?:set by environment )?to \"?(\w+)")
    def _tuned(self, match: re.Match[str]) -> None:
        self.flag(f"NCCL_{match[1]} {match[2]}")

    @on(r"#\s*Collective test starting: (\S+)")
    def _named(self, match: re.Match[str]) -> None:
        self.test = self._program(match[1]) or match[1]

    @on(r"#\s*nThread:? \d")
    def _begin(self, match: re.Match[str]) -> None:
        if self.running:
            raise self.fail("another run begins", f"the run before has no end: {CRASHED}")
        self.running, self.ready, self.names, self.ranks = True, False, (), 0
        self.groups.clear()
        for name, value in _SETTINGS.findall(match.string):
            if name == "iters":
                self.iterations = value
            else:
                self.flag(f"{name.replace('warmupI', 'warmup i')} {value}")

    @on(r"#\s*Blocking Enabled:\s*(.*)$")
    def _blocking(self, match: re.Match[str]) -> None:
        self.flag(f"blocking: {match[1].strip()}")

    @on(r"#\s+Rank\s+(\d+)\s+(?:Group\s+(\d+)\s+)?Pid\s+\d+ on\s+(\S+) device")
    def _rank(self, match: re.Match[str]) -> None:
        self.ranks += 1
        self.groups.add(match[2] or "0")
        self.rank_map.put(int(match[1][:9]), match[3])

    @on(r"#\s+size\s+count\s+type\b")
    def _head(self, match: re.Match[str]) -> None:
        if self.names:
            raise self.fail("a second header within a run", MIXED)
        self.names = tuple(match.string.split()[1:])
        for name in self.names:
            self.known(name, (*LABELS, *NCCL_COLUMNS, *CHECKS, STAMP), "column")
        starts = [name for name in self.names if name in STARTS]
        if self.names[: len(LABELS) - 2] != LABELS[:3] or not 1 <= len(starts) <= len(PLACES):
            raise self.fail("no columns that can be distinguished", "the header is damaged")

    @on(r"#\s+\(B\)\s")
    def _units(self, match: re.Match[str]) -> None:
        due = [PRINTED_UNITS[name] for name in self.names if name in PRINTED_UNITS]
        found = match.string.split()[1:]
        if STAMP in self.names:
            found = found[: len(due)]
        if not self.names or found != due:
            raise self.fail(f"units {shown(' '.join(found))}", f"{' '.join(due)!r} were expected")
        self.ready = True

    @on(r"#\s*Out of bounds values\s*:\s*(\S+)\s+(\S+)")
    def _checked(self, match: re.Match[str]) -> None:
        if match[2] != "OK":
            raise self.fail(f"{match[1]} values out of bounds", "the data arrived wrong")
        if not self.places:
            raise self.fail("a run without rows", CRASHED)
        self._close_run()

    @on(r"#\s*Avg bus bandwidth\s*:\s*(\S+)\s*(\S*)")
    def _mean(self, match: re.Match[str]) -> None:
        self.header["mean bus bandwidth"] = match[1]

    @on(r"(?!#)")
    def _other(self, match: re.Match[str]) -> None:
        if not self.running and (program := self._program(match.string)):
            self.test, self.flags = program, {}
            for name, value in _IN_COMMAND.findall(match.string):
                self.flag(f"NCCL_{name} {value}")
        elif match.string.strip():
            self.remark(match.string)

    @staticmethod
    def _program(text: str) -> str:
        match = _PROGRAM.search(text)
        return match[1] if match else ""

    def _row(self, words: list[str]) -> None:
        if STAMP in self.names:
            words = [*words[:-2], words[-1]]  # the date and the clock are two words
        if "redop" in self.names:
            at = self.names.index("redop")
            if len(words) == len(self.names) - 1 and _NUMBER.fullmatch(words[at]):
                words = [*words[:at], "none", *words[at:]]  # old versions print nothing
        self.same_length(words, self.names)
        labels = {
            name: word for name, word in zip(self.names, words, strict=True) if name in LABELS
        }
        size = self.number(labels["size"])
        root = -1 if labels.get("root", "-1") == "-1" else self.whole(labels["root"])
        redop = labels.get("redop", "none")
        item = BYTES_OF.get(labels["type"], 0)
        whole = size == self.number(labels["count"]) * item if item else True
        self.whole_size[f"{redop} {root}"] = whole
        groups: list[dict[Column, float]] = []
        for name, word in zip(self.names, words, strict=True):
            if name in STARTS:
                groups.append({SIZE: size})
            if name in NCCL_COLUMNS:
                groups[-1][NCCL_COLUMNS[name]] = self.number(word)
            elif name in CHECKS:
                self._check(name, word)
        for place, values in zip(PLACES, groups, strict=False):
            self.count()
            key = _Series(labels["type"], redop, root, place)
            rows = self.places.setdefault(key, [])
            # Sizes that are no whole number of elements are rounded down, so a size may repeat.
            if rows and size < rows[-1].values["size"]:
                raise self.fail(f"size {size:.0f} after {rows[-1].values['size']:.0f}", MIXED)
            rows.append(Row(self.line, {c.metric: v for c, v in values.items()}))

    def _check(self, name: str, word: str) -> None:
        if word != "N/A" and self.number(word) > 0 and name == "#wrong":
            raise self.fail(f"{word} wrong values", "the data arrived wrong: the run is invalid")

    def _name(self, place: _Series) -> str:
        """Return the name of the test; of a log that does not name it, what its columns show.

        Versions before 2022 have columns only for what a test has; later ones have all for each.
        """
        if self.test:
            return self.test
        reduces, rooted = place.redop != "none", place.root >= 0
        whole = self.whole_size[f"{place.redop} {place.root}"]
        if rooted:
            return "reduce" if reduces else "broadcast" if whole else "gather_or_scatter"
        if reduces and not whole:
            return "reduce_scatter"
        if reduces:
            exact = "root" not in self.names or self._quotient(place) > FACTOR_SHOWS
            return "all_reduce" if exact else "all_reduce_or_sendrecv"
        if whole:
            return "sendrecv"
        if abs(1 - self._quotient(place)) * 2 * max(self.ranks, 1) < 1:
            return "hypercube"
        if "redop" not in self.names:
            return "all_gather"
        return "alltoall" if "root" not in self.names else "all_gather_or_alltoall"

    def _quotient(self, place: _Series) -> float:
        """Return the bus bandwidth of the largest size, divided by the other bandwidth."""
        last = self.places[place][-1].values
        return last["bus_bandwidth"] / last["bandwidth"] if last["bandwidth"] else 0

    def _close_run(self) -> None:
        order = [SIZE, *NCCL_COLUMNS.values()]
        tables = []
        for place, rows in self.places.items():
            columns = tuple(column for column in order if column.metric in rows[0].values)
            root = f"root {place.root}" if place.root >= 0 else ""
            groups = f"{len(self.groups)} groups" if len(self.groups) > 1 else ""
            redop = place.redop if place.redop != "none" else ""
            setup = Setup(
                version=self.header.get("version", ""),
                mode=", ".join(filter(None, (redop, root, groups))),
                buffers=place.buffers,
                datatype=place.datatype,
                iterations=self.iterations,
                flags=self.flag_words(),
            )
            test = f"nccl_{self._name(place)}"
            tables.append(
                Table(test, rows[0].line, columns, tuple(rows), setup, self.ranks or None)
            )
        if not self.test:
            self.remark("the log does not name its test: write the command in a line before it")
        self.keep(*tables)
        self.places, self.whole_size = {}, {}
        self.running, self.ready, self.names, self.test = False, False, (), ""
        self.flags = {}

    def end(self) -> None:
        """Check that the last run ended."""
        if self.running:
            raise self.cut_off("Out of bounds values")
        if not self.tables:
            raise self.fail("no run of nccl-tests", CRASHED)
