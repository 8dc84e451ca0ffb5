# SPDX-License-Identifier: Apache-2.0
"""STREAM, Graph500 and the NAS Parallel Benchmarks: short outputs of names and values."""

from __future__ import annotations

import re

from nearmetal.evidence.model import Column, Log, Unit
from nearmetal.evidence.parse.text import Figures, fail, shown, split_lines, walk, whole

STREAM_COLUMNS = {
    "Best Rate MB/s": Column("bandwidth", Unit.MEGABYTES_PER_SECOND),
    "Rate (MB/s)": Column("bandwidth", Unit.MEGABYTES_PER_SECOND),
    "Rate (GB/s)": Column("bandwidth", Unit.GIGABYTES_PER_SECOND),
    "Avg time": Column("time_mean", Unit.SECONDS),
    "Min time": Column("time_min", Unit.SECONDS),
    "Max time": Column("time_max", Unit.SECONDS),
}

GRAPH_KINDS = {
    "time": Unit.SECONDS,
    "TEPS": Unit.TRAVERSED_EDGES,
    "validate": Unit.SECONDS,
}
_GRAPH_LINE = re.compile(r"(?:(bfs|sssp)\s+)?([A-Za-z_]+):\s*!?\s*(\S+)\s*$")
_GRAPH_SETTINGS = ("SCALE", "edgefactor", "NBFS", "graph_generation", "num_mpi_processes")

_NPB_TITLE = re.compile(r"\s*NAS Parallel Benchmarks (?:\(NPB)?(\S+?)\)?\s.*?(\w\w) Benchmark")
_NPB_FIELD = re.compile(r"\s*([A-Z][\w/. ]*?)\s*=\s*(.*?)\s*$")
NPB_FIGURES = {
    "Time in seconds": Column("time", Unit.SECONDS),
    "Mop/s total": Column("rate", Unit.MEGAOPS),
    "Mop/s/process": Column("rate_per_process", Unit.MEGAOPS),
    "Mop/s/thread": Column("rate_per_thread", Unit.MEGAOPS),
}


class _Stream:
    def __init__(self, file: str) -> None:
        self.file = file
        self.figures = Figures(file)
        self.columns: list[Column] = []
        self.valid = False
        self._variant = ""

    def head(self, nr: int, line: re.Match[str]) -> None:
        if self.columns:
            raise fail(self.file, nr, "a second table", "two outputs are in one file")
        for name in re.split(r"\s{2,}", line.string.strip())[1:]:
            if name not in STREAM_COLUMNS:
                raise fail(
                    self.file,
                    nr,
                    f"unknown column {shown(name)}",
                    f"known: {', '.join(STREAM_COLUMNS)}",
                )
            self.columns.append(STREAM_COLUMNS[name])

    def row(self, nr: int, match: re.Match[str]) -> None:
        words = match[2].split()
        if len(words) != len(self.columns):
            raise fail(
                self.file,
                nr,
                f"{len(words)} values for {len(self.columns)} columns",
                "the row is cut off or damaged",
            )
        for column, word in zip(self.columns, words, strict=True):
            self.figures.add(f"stream_{match[1].lower()}", column, word, nr, self._variant)

    def threads(self, _nr: int, match: re.Match[str]) -> None:
        self._variant = f"{match[1]} threads"

    def version(self, _nr: int, match: re.Match[str]) -> None:
        self.figures.header["version"] = match[1]

    def size(self, _nr: int, match: re.Match[str]) -> None:
        self.figures.header["array size"] = match[1]

    def validates(self, _nr: int, _match: re.Match[str]) -> None:
        self.valid = True


def parse_stream(text: str, file: str) -> Log:
    """Read one output of STREAM; raises LogError when it did not validate."""
    reader = _Stream(file)
    lines = split_lines(text)
    walk(
        lines,
        (
            (re.compile(r"Function "), reader.head),
            (re.compile(r"(Copy|Scale|Add|Triad):\s+(.*)$"), reader.row),
            (re.compile(r"Number of Threads counted = (\d+)"), reader.threads),
            (re.compile(r"STREAM version \$Revision: (\S+) \$"), reader.version),
            (re.compile(r"Array size = (\d+)"), reader.size),
            (re.compile(r"Solution Validates"), reader.validates),
        ),
    )
    if not reader.figures.has("bandwidth"):
        raise fail(file, len(lines), "no table of STREAM", "the run crashed or was cut off")
    if not reader.valid:
        raise fail(
            file,
            len(lines),
            "no line 'Solution Validates'",
            "the result is wrong, or the output is cut off",
        )
    return reader.figures.log("stream")


class _Graph:
    def __init__(self, file: str) -> None:
        self.file = file
        self.figures = Figures(file)
        self._scale = ""

    def value(self, nr: int, match: re.Match[str]) -> None:
        test, name, word = match[1], match[2], match[3]
        if name == "SCALE":
            if self._scale:
                raise fail(self.file, nr, "a second result", "two outputs are in one file")
            self._scale = f"scale {word}"
        if not self._scale:
            return
        if not test and (name.endswith("_nedge") or name in _GRAPH_SETTINGS):
            self.figures.header[name] = word
            return
        kind = name.rpartition("_")[2]
        if kind not in GRAPH_KINDS:
            raise fail(
                self.file,
                nr,
                f"unknown figure {shown(name)}",
                f"known endings: {', '.join(GRAPH_KINDS)}",
            )
        column = Column(name.lower(), GRAPH_KINDS[kind])
        self.figures.add(f"graph500_{test or 'graph'}", column, word, nr, self._scale)


def parse_graph500(text: str, file: str) -> Log:
    """Read the figures that the Graph500 reference prints last."""
    reader = _Graph(file)
    lines = split_lines(text)
    walk(lines, ((_GRAPH_LINE, reader.value),))
    if not reader.figures.has("harmonic_mean_teps"):
        raise fail(
            file,
            len(lines),
            "no harmonic_mean_TEPS",
            "the run crashed, was cut off, or is something else",
        )
    ranks = reader.figures.header.get("num_mpi_processes")
    reader.figures.processes = whole(ranks, file, len(lines)) if ranks else None
    return reader.figures.log("graph500")


class _Npb:
    def __init__(self, file: str) -> None:
        self.file = file
        self.name = self.version = ""
        self.completed = False
        self.fields: dict[str, tuple[str, int]] = {}

    def title(self, nr: int, match: re.Match[str]) -> None:
        if self.name:
            raise fail(self.file, nr, "a second benchmark", "two outputs are in one file")
        self.version, self.name = match[1], match[2].lower()

    def complete(self, _nr: int, _match: re.Match[str]) -> None:
        self.completed = True

    def field(self, nr: int, match: re.Match[str]) -> None:
        if self.completed:
            self.fields.setdefault(match[1], (match[2], nr))


def parse_npb(text: str, file: str) -> Log:
    """Read one output of an NPB program; raises LogError when its verification failed."""
    reader = _Npb(file)
    lines = split_lines(text)
    walk(
        lines,
        (
            (_NPB_TITLE, reader.title),
            (re.compile(r".*Benchmark Completed"), reader.complete),
            (_NPB_FIELD, reader.field),
        ),
    )
    fields = reader.fields
    if not reader.name or not reader.completed:
        raise fail(
            file,
            len(lines),
            "the output stops before its end",
            "'Benchmark Completed' is missing: the run crashed or was cut off",
        )
    verification, nr = fields.get("Verification", ("missing", len(lines)))
    if verification != "SUCCESSFUL":
        raise fail(file, nr, f"verification: {verification}", "the result is wrong")
    figures = Figures(file)
    variant = f"class {fields['Class'][0]}" if "Class" in fields else ""
    for name in (name for name in NPB_FIGURES if name in fields):
        figures.add(f"npb_{reader.name}", NPB_FIGURES[name], *fields[name], variant)
    figures.header["version"] = fields.get("Version", (reader.version, 0))[0]
    if "Total processes" in fields:
        figures.processes = whole(fields["Total processes"][0], file, fields["Total processes"][1])
    return figures.log("npb")
