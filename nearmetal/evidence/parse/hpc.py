# SPDX-License-Identifier: Apache-2.0
"""HPL, HPCC and HPCG: results that their own check must have passed."""

from __future__ import annotations

import re

from nearmetal.evidence.model import Column, Log, Unit
from nearmetal.evidence.parse.text import Figures, fail, shown, split_lines, walk, whole

GIGAFLOPS = Column("rate", Unit.GIGAFLOPS)
TIME = Column("time", Unit.SECONDS)
BANDWIDTH = Column("bandwidth", Unit.GIGABYTES_PER_SECOND)

HPL_COLUMNS = ("T/V", "N", "NB", "P", "Q", "Time", "Gflops")
_HPL_END = "End of Tests."

# What stands behind the last underscore of a result's name says its unit.
HPCC_UNITS = {
    "_Tflops": Column("rate", Unit.TERAFLOPS),
    "_Gflops": GIGAFLOPS,
    "_GBs": BANDWIDTH,
    "_GUPs": Column("updates", Unit.GIGAUPDATES),
    "_usec": Column("latency", Unit.MICROSECONDS),
    "_GBytes": BANDWIDTH,
}
_HPCC_STREAM = re.compile(r"(?:Star|Single)STREAM_(?:Copy|Scale|Add|Triad)$")
_HPCC_TIMES = {"HPL_time", "PTRANS_time", "MPIRandomAccess_time", "MPIRandomAccess_LCG_time"}

HPCG_FIGURES = {
    "Final Summary::HPCG result is VALID with a GFLOP/s rating of": GIGAFLOPS,
    "GB/s Summary::Raw Total B/W": BANDWIDTH,
} | {
    f"Benchmark Time Summary::{part}": Column(f"time_{part.lower()}", Unit.SECONDS)
    for part in ("DDOT", "WAXPBY", "SpMV", "MG", "Total")
}


class _Hpl:
    def __init__(self, file: str) -> None:
        self.file = file
        self.figures = Figures(file)
        self.columns: list[str] = []
        self.rows = 0
        self.passed = 0

    def version(self, _nr: int, match: re.Match[str]) -> None:
        self.figures.header["version"] = match[1]

    def head(self, nr: int, line: re.Match[str]) -> None:
        self.columns = line.string.split()
        for name in self.columns:
            if name not in HPL_COLUMNS:
                raise fail(
                    self.file,
                    nr,
                    f"unknown column {shown(name)}",
                    f"known: {', '.join(HPL_COLUMNS)}",
                )

    def row(self, nr: int, line: re.Match[str]) -> None:
        words = line.string.split()
        if len(words) != len(self.columns):
            raise fail(
                self.file,
                nr,
                f"{len(words)} values for {len(self.columns)} columns",
                "the row is cut off or damaged",
            )
        by_name = dict(zip(self.columns, words, strict=True))
        variant = " ".join(f"{name}={by_name[name]}" for name in ("N", "NB", "P", "Q"))
        self.figures.add("hpl", TIME, by_name["Time"], nr, variant)
        self.figures.add("hpl", GIGAFLOPS, by_name["Gflops"], nr, variant)
        sides = (whole(by_name[side], self.file, nr) for side in ("P", "Q"))
        self.figures.processes = next(sides) * next(sides)
        self.rows += 1

    def good(self, _nr: int, _line: re.Match[str]) -> None:
        self.passed += 1

    def bad(self, nr: int, _line: re.Match[str]) -> None:
        raise fail(self.file, nr, "the residual check failed", "the run is invalid")


def parse_hpl(text: str, file: str) -> Log:
    """Read one output of HPL; raises LogError when a residual failed or the end is missing."""
    reader = _Hpl(file)
    lines = split_lines(text)
    walk(
        lines,
        (
            (re.compile(r"HPLinpack (\S+)\s"), reader.version),
            (re.compile(r"T/V .*Gflops"), reader.head),
            (re.compile(r"W[RC]\w{2,}\s"), reader.row),
            (re.compile(r".*PASSED\s*$"), reader.good),
            (re.compile(r".*FAILED\s*$"), reader.bad),
        ),
    )
    if not reader.rows or _HPL_END not in text:
        raise fail(
            file,
            len(lines),
            "the output stops before its end",
            f"no result, or no {_HPL_END!r}: the run crashed or was cut off",
        )
    if reader.passed < reader.rows:
        reader.figures.remarks.append((len(lines), "not every result was checked"))
    return reader.figures.log("hpl")


class _Hpcc:
    def __init__(self, file: str) -> None:
        self.file = file
        self.figures = Figures(file)
        self.inside = self.ended = False

    def version(self, nr: int, match: re.Match[str]) -> None:
        if "version" in self.figures.header:
            raise fail(
                self.file,
                nr,
                "a second start of HPCC",
                "hpccoutf.txt was appended to: two runs are in one file",
            )
        self.figures.header["version"] = match[1]

    def begin(self, _nr: int, _match: re.Match[str]) -> None:
        self.inside = True

    def end(self, _nr: int, _match: re.Match[str]) -> None:
        self.inside, self.ended = False, True

    def value(self, nr: int, match: re.Match[str]) -> None:
        name, word = match.groups()
        if not self.inside:
            return
        ending = next((e for e in HPCC_UNITS if name.endswith(e)), None)
        if name in _HPCC_TIMES:
            self.figures.add(name.removesuffix("_time"), TIME, word, nr)
        elif _HPCC_STREAM.match(name):
            self.figures.add(name, BANDWIDTH, word, nr)
        elif ending is not None:
            self.figures.add(name.removesuffix(ending), HPCC_UNITS[ending], word, nr)
        else:
            self.figures.header[name] = word


def parse_hpcc(text: str, file: str) -> Log:
    """Read hpccoutf.txt: its summary. Raises LogError without success or without its end."""
    reader = _Hpcc(file)
    lines = split_lines(text)
    walk(
        lines,
        (
            (
                re.compile(r"This is the DARPA/DOE HPC Challenge Benchmark version (\S+)"),
                reader.version,
            ),
            (re.compile(r"Begin of Summary section"), reader.begin),
            (re.compile(r"End of Summary section"), reader.end),
            (re.compile(r"([A-Za-z]\w*)=(\S*)\s*$"), reader.value),
        ),
    )
    if not reader.ended:
        raise fail(
            file,
            len(lines),
            "the output stops before its end",
            "the summary is missing: the run crashed or was cut off",
        )
    header = reader.figures.header
    if header.get("Success") != "1":
        raise fail(file, len(lines), "Success is not 1", "a test of HPCC failed")
    if "CommWorldProcs" in header:
        reader.figures.processes = whole(header["CommWorldProcs"], file, len(lines))
    return reader.figures.log("hpcc")


def parse_hpcg(text: str, file: str) -> Log:
    """Read HPCG-Benchmark_*.txt; raises LogError when the result is not valid."""
    figures = Figures(file)
    lines = split_lines(text)
    values: dict[str, tuple[str, int]] = {}
    for nr, line in enumerate(lines, 1):
        name, equals, word = line.strip().partition("=")
        if equals:
            values.setdefault(name, (word, nr))
            if "suboptimal" in word or "QuickPath" in name:
                figures.remarks.append((nr, line.strip().removeprefix("Final Summary::")))
    for name, column in HPCG_FIGURES.items():
        if name in values:
            figures.add("hpcg", column, *values[name])
    if not figures.has("rate"):
        raise fail(
            file, len(lines), "no valid result", "the run is invalid, crashed or was cut off"
        )
    figures.header["version"] = values.get("version", ("", 0))[0]
    processes = values.get("Machine Summary::Distributed Processes")
    figures.processes = whole(processes[0], file, processes[1]) if processes else None
    return figures.log("hpcg")
