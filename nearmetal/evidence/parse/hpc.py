# SPDX-License-Identifier: Apache-2.0
"""HPL, HPCC, HPCG, STREAM, Graph500 and NPB: results that their own check must have passed."""

from __future__ import annotations

import re
from dataclasses import replace

from nearmetal.evidence.model import Column, Setup, Unit
from nearmetal.evidence.parse.reader import CRASHED, TWO_RUNS, Reader, flag, on, setting, stop

GIGAFLOPS = Column("rate", Unit.GIGAFLOPS)
TIME = Column("time", Unit.SECONDS)
BANDWIDTH = Column("bandwidth", Unit.GIGABYTES_PER_SECOND)
WRONG = "the result is wrong"

HPL_COLUMNS = ("T/V", "N", "NB", "P", "Q", "Time", "Gflops")

HPCC_UNITS = {
    "_Tflops": Column("rate", Unit.TERAFLOPS),
    "_Gflops": GIGAFLOPS,
    "_GBs": BANDWIDTH,
    "_GUPs": Column("updates", Unit.GIGAUPDATES),
    "_usec": Column("latency", Unit.MICROSECONDS),
    "_GBytes": BANDWIDTH,
}
"""By the end of a result's name: its unit."""
HPCC_TIMES = {"HPL_time", "PTRANS_time", "MPIRandomAccess_time", "MPIRandomAccess_LCG_time"}
_HPCC_STREAM = re.compile(r"(?:Star|Single)STREAM_(?:Copy|Scale|Add|Triad)$")

_HPCC_STEM = re.compile(r"(?:Star|Single)?(\w+?)(?:_(?:Copy|Scale|Add|Triad))?$")
_HPCC_OPTIONS = (
    *("N", "NB", "n", "nb", "nprow", "npcol", "depth", "nbdiv", "nbmin", "cpfact", "crfact"),
    *("ctop", "order", "VectorSize", "Threads", "TimeBound", "Algorithm"),
)
MOST_WRONG = 0.01
"""The share of wrong updates that the rules of HPCC allow."""

HPCG_FIGURES = {
    "Final Summary::HPCG result is VALID with a GFLOP/s rating of": GIGAFLOPS,
    "GB/s Summary::Raw Total B/W": BANDWIDTH,
} | {
    f"Benchmark Time Summary::{part}": Column(f"time_{part.lower()}", Unit.SECONDS)
    for part in ("DDOT", "WAXPBY", "SpMV", "MG", "Total")
}

HPCG_OPTIONS = (
    *(f"Global Problem Dimensions::Global n{axis}" for axis in "xyz"),
    "Machine Summary::Threads per processes",
)

STREAM_COLUMNS = {
    "Best Rate MB/s": Column("bandwidth", Unit.MEGABYTES_PER_SECOND),
    "Rate (MB/s)": Column("bandwidth", Unit.MEGABYTES_PER_SECOND),
    "Rate (GB/s)": BANDWIDTH,
    "Avg time": Column("time_mean", Unit.SECONDS),
    "Min time": Column("time_min", Unit.SECONDS),
    "Max time": Column("time_max", Unit.SECONDS),
}

GRAPH_KINDS = {"time": Unit.SECONDS, "TEPS": Unit.TRAVERSED_EDGES, "validate": Unit.SECONDS}
_GRAPH_OPTIONS = ("edgefactor", "NBFS")
_GRAPH_SETTINGS = ("SCALE", "edgefactor", "NBFS", "graph_generation", "num_mpi_processes")

NPB_FIGURES = {
    "Time in seconds": TIME,
    "Mop/s total": Column("rate", Unit.MEGAOPS),
    "Mop/s/process": Column("rate_per_process", Unit.MEGAOPS),
    "Mop/s/thread": Column("rate_per_thread", Unit.MEGAOPS),
}


class Hpl(Reader):
    """HPL: every result with its residual check."""

    format = "hpl"
    version = 2
    END = "End of Tests."
    names: tuple[str, ...] = ()
    results = passed = 0

    _version = setting("version", r"HPLinpack (\S+)\s")

    @on(r"T/V .*Gflops")
    def _head(self, match: re.Match[str]) -> None:
        self.names = tuple(match.string.split())
        for name in self.names:
            self.known(name, HPL_COLUMNS, "column")

    @on(r"W[RC]\w{2,}\s")
    def _result(self, match: re.Match[str]) -> None:
        words = match.string.split()
        self.same_length(words, self.names)
        by_name = dict(zip(self.names, words, strict=True))
        variant = " ".join(f"{name}={by_name[name]}" for name in ("N", "NB", "P", "Q"))
        how = by_name["T/V"]
        self.add("hpl", TIME, by_name["Time"], variant, flags=how)
        self.add("hpl", GIGAFLOPS, by_name["Gflops"], variant, flags=how)
        self.processes = self.whole(by_name["P"]) * self.whole(by_name["Q"])
        self.results += 1

    @on(r".*PASSED\s*$")
    def _good(self, _match: re.Match[str]) -> None:
        self.passed += 1

    _bad = stop(r".*FAILED\s*$", "the run is invalid", "the residual check failed")

    def end(self) -> None:
        """Check that there are results, and that they were checked."""
        if not self.results or not any(self.END in line for line in self.lines):
            raise self.cut_off(self.END if self.results else "a result")
        if self.passed < self.results:
            self.remark("not every result was checked")


class Hpcc(Reader):
    """HPCC: the summary of hpccoutf.txt."""

    format = "hpcc"
    version = 3
    inside = ended = False

    @on(r"This is the DARPA/DOE HPC Challenge Benchmark version (\S+)")
    def _version(self, match: re.Match[str]) -> None:
        if "version" in self.header:
            raise self.fail(
                "a second start of HPCC", "hpccoutf.txt was appended to: two runs are in one file"
            )
        self.header["version"] = match[1]

    _begin = flag("inside", r"Begin of Summary section")
    _bad = stop(r".*(?:FAILED|\(failed\)\.?)\s*$", WRONG, "a check of HPCC failed")
    _residuals = stop(r"\s*0*[1-9]\d* tests? completed and failed", WRONG)

    @on(r"End of Summary section")
    def _end(self, _match: re.Match[str]) -> None:
        self.inside, self.ended = False, True

    @on(r"([A-Za-z]\w*)=(\S*)\s*$")
    def _value(self, match: re.Match[str]) -> None:
        name, word = match.groups()
        if not self.inside:
            return
        ending = next((e for e in HPCC_UNITS if name.endswith(e)), None)
        if name in HPCC_TIMES:
            self.add(name.removesuffix("_time"), TIME, word)
        elif _HPCC_STREAM.match(name):
            self.add(name, BANDWIDTH, word)
        elif ending is not None:
            self.add(name.removesuffix(ending), HPCC_UNITS[ending], word)
        else:
            self.header[name] = word

    def end(self) -> None:
        """Check that HPCC ended with success."""
        if not self.ended:
            raise self.cut_off("End of Summary section")
        if self.header.get("Success") != "1":
            raise self.fail("Success is not 1", "a test of HPCC failed")
        for name, word in self.header.items():
            if name.endswith("_ErrorsFraction") and self.number(word) > MOST_WRONG:
                raise self.fail(f"{name}={word}", f"{WRONG}: at most {MOST_WRONG} is allowed")
        if "CommWorldProcs" in self.header:
            self.processes = self.whole(self.header["CommWorldProcs"])
        self.tables = [
            replace(table, setup=Setup(flags=self._options(table.test))) for table in self.tables
        ]

    def _options(self, test: str) -> str:
        """Return the options of one of the tests."""
        stem = _HPCC_STEM.match(test)
        names = [f"{stem[1]}_{option}" for option in _HPCC_OPTIONS] if stem else []
        names.append("omp_get_max_threads")
        return "; ".join(f"{name}={self.header[name]}" for name in names if name in self.header)


class Hpcg(Reader):
    """HPCG: HPCG-Benchmark_*.txt."""

    format = "hpcg"

    def __init__(self, text: str, file: str) -> None:
        super().__init__(text, file)
        self.values: dict[str, tuple[str, int]] = {}

    def take(self, text: str) -> None:
        """Keep the first value of each name."""
        name, equals, word = text.strip().partition("=")
        if equals:
            self.values.setdefault(name, (word, self.line))
            if "suboptimal" in word or "QuickPath" in name:
                self.remark(text.strip().removeprefix("Final Summary::"))

    def end(self) -> None:
        """Add the figures."""
        for name, column in HPCG_FIGURES.items():
            if name in self.values:
                word, line = self.values[name]
                self.add("hpcg", column, word, line=line)
        if not self.has("rate"):
            raise self.fail("no valid result", "the run is invalid, crashed or was cut off")
        for name in HPCG_OPTIONS:
            if name in self.values:
                self.flag(f"{name.rpartition('::')[2]} {self.values[name][0]}")
        self.header["version"] = self.values.get("version", ("", 0))[0]
        if processes := self.values.get("Machine Summary::Distributed Processes"):
            self.processes = self.whole(*processes)


class Stream(Reader):
    """STREAM."""

    format = "stream"
    kinds: tuple[Column, ...] = ()
    valid = False
    variant = ""

    @on(r"Function ")
    def _head(self, match: re.Match[str]) -> None:
        if self.kinds:
            raise self.fail("a second table", TWO_RUNS)
        for name in re.split(r"\s{2,}", match.string.strip())[1:]:
            self.known(name, STREAM_COLUMNS, "column")
            self.kinds += (STREAM_COLUMNS[name],)

    @on(r"(Copy|Scale|Add|Triad):\s+(.*)$")
    def _rate(self, match: re.Match[str]) -> None:
        words = match[2].split()
        self.same_length(words, self.kinds)
        for column, word in zip(self.kinds, words, strict=True):
            self.add(f"stream_{match[1].lower()}", column, word, self.variant)

    @on(r"Number of Threads counted = (\d+)")
    def _threads(self, match: re.Match[str]) -> None:
        self.variant = f"{match[1]} threads"

    _version = setting("version", r"STREAM version \$Revision: (\S+) \$")

    @on(r"Array size = (\d+)")
    def _size(self, match: re.Match[str]) -> None:
        self.flag(f"array size {match[1]}")

    _validates = flag("valid", r"Solution Validates")

    def end(self) -> None:
        """Check that STREAM validated its result."""
        if not self.has("bandwidth"):
            raise self.fail("no table of STREAM", CRASHED)
        if not self.valid:
            raise self.fail("no line 'Solution Validates'", f"{WRONG}, or the output is cut off")


class Graph500(Reader):
    """Graph500: the figures that the reference program prints last."""

    format = "graph500"
    scale = ""
    _invalid = stop(r".*(?:[Vv]alidation failed|failed validation|No results printed)", WRONG)

    @on(r"(?:(bfs|sssp)\s+)?([A-Za-z_]+):(.*)$")
    def _value(self, match: re.Match[str]) -> None:
        test, name, rest = match.groups()
        words = rest.strip().removeprefix("!").split()
        if len(words) != 1:
            return
        word = words[0]
        if name == "SCALE":
            if self.scale:
                raise self.fail("a second result", TWO_RUNS)
            self.scale = f"scale {word}"
        if not self.scale:
            return
        if not test and (name.endswith("_nedge") or name in _GRAPH_SETTINGS):
            self.header[name] = word
            if name in _GRAPH_OPTIONS:
                self.flag(f"{name} {word}")
            return
        kind = name.rpartition("_")[2]
        if kind not in GRAPH_KINDS:
            raise self.fail(f"unknown figure {name!r}", f"known endings: {', '.join(GRAPH_KINDS)}")
        column = Column(name.lower(), GRAPH_KINDS[kind])
        self.add(f"graph500_{test or 'graph'}", column, word, self.scale)

    def end(self) -> None:
        """Check that the last figure is there."""
        if not self.has("harmonic_mean_teps"):
            raise self.fail(
                "no harmonic_mean_TEPS", "the run crashed, was cut off, or is something else"
            )
        if ranks := self.header.get("num_mpi_processes"):
            self.processes = self.whole(ranks)


class Npb(Reader):
    """NAS Parallel Benchmarks: the result of one program."""

    format = "npb"
    version_in_title = ""
    completed = False

    def __init__(self, text: str, file: str) -> None:
        super().__init__(text, file)
        self.fields: dict[str, tuple[str, int]] = {}

    @on(r"\s*NAS Parallel Benchmarks (?:\(NPB)?(\S+?)\)?\s.*?(\w\w) Benchmark")
    def _title(self, match: re.Match[str]) -> None:
        if self.test:
            raise self.fail("a second benchmark", TWO_RUNS)
        self.version_in_title, self.test = match[1], f"npb_{match[2].lower()}"

    _complete = flag("completed", r".*Benchmark Completed")

    @on(r"\s*([A-Z][\w/. \t]*)=(.*)$")
    def _field(self, match: re.Match[str]) -> None:
        if self.completed:
            self.fields.setdefault(match[1].rstrip(), (match[2].strip(), self.line))

    def end(self) -> None:
        """Check the verification, and add the figures."""
        if not self.test or not self.completed:
            raise self.cut_off("Benchmark Completed")
        verification, line = self.fields.get("Verification", ("missing", self.line))
        if verification != "SUCCESSFUL":
            raise self.fail(f"verification: {verification}", WRONG, line)
        variant = f"class {self.fields['Class'][0]}" if "Class" in self.fields else ""
        for name in (name for name in NPB_FIGURES if name in self.fields):
            word, line = self.fields[name]
            self.add(self.test, NPB_FIGURES[name], word, variant, line)
        self.header["version"] = self.fields.get("Version", (self.version_in_title, 0))[0]
        if processes := self.fields.get("Total processes"):
            self.processes = self.whole(*processes)
