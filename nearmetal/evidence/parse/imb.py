# SPDX-License-Identifier: Apache-2.0
"""The Intel MPI Benchmarks."""

from __future__ import annotations

import re

from nearmetal.evidence.model import Column, Setup, Unit
from nearmetal.evidence.parse.reader import Reader, flag, on, options, shown

IMB_COLUMNS = {
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
_IMB_SELECTS = ("-npmin", "-msglog", "-msglen", "-msgsize", "-include", "-exclude", "-input")
"""Options that select benchmarks, sizes and numbers of ranks only."""
_IMB_WRONG = re.compile(r"\d+: Error |.{0,40}Got invalid buffer")
_IMB_TIME_OUT = re.compile(r"\s*\d+ time-out\.;")


class Imb(Reader):
    """Intel MPI Benchmarks: the text of IMB-MPI1 and IMB-RMA."""

    format = "imb"
    version = 2
    END = "# All processes entering MPI_Finalize"
    ended = False
    called = False
    """Whether the command follows."""
    ranks: int | None = None
    setup = Setup()

    def take(self, text: str) -> None:
        """Read one line: a header, a comment, or a row."""
        self._check(text)
        first = text.split(maxsplit=1)[:1]
        head = bool(first and self.test) and first[0] in IMB_COLUMNS
        if head or not first or text.startswith("#"):
            self.close_table(self.setup, self.ranks)
        if head:
            self.open_table(self.columns_of(text.split(), IMB_COLUMNS))
        elif not first or text.startswith("#"):
            super().take(text)
        elif self.columns is None:
            if first[0].startswith("#"):
                self.known(first[0], IMB_COLUMNS, "column")
                raise self.fail("a header without a test", "the output is damaged")
            self.remark(text)
        elif _IMB_TIME_OUT.match(text):
            self.remark(f"{self.test}: {text.strip()}")
        else:
            found = self.row(text.split(), self.columns)
            if found.values.get("defects", 0) > 0:
                why = "the data arrived wrong: the run is invalid"
                raise self.fail(f"{found.values['defects']:g} defects", why)
            self.rows.append(found)

    def aside(self, text: str) -> None:
        """Every rank reports the errors that it finds."""
        self._check(text)
        super().aside(text)

    def _check(self, text: str) -> None:
        if _IMB_WRONG.match(text):
            raise self.fail(shown(text.strip()), "the data arrived wrong: the run is invalid")

    _end = flag("ended", END)

    _sequence = flag("called", r"#\s*Calling sequence was:")

    @on(r"#?\s*(\S*IMB-\S+)(.*)$")
    def _called(self, match: re.Match[str]) -> None:
        if not self.called or self.test:
            return
        for option in options(match[2].split(), _IMB_SELECTS, several=False):
            name, _, value = option.partition(" ")
            if name == "-iter":
                self.setup = self.setup._replace(iterations=value)
            else:
                self.flag(option)

    @on(r"#\s*Benchmarking\s+(\S+)")
    def _benchmark(self, match: re.Match[str]) -> None:
        self.test, self.ranks = match[1], None
        self.setup = self.setup._replace(mode="")

    @on(r"#\s*#processes\s*=\s*(\d+)")
    def _processes(self, match: re.Match[str]) -> None:
        self.ranks = self.whole(match[1])

    @on(r"#\s*\(\s*(\d+) groups of \d+ process(?:es)? each running simultan")
    def _groups(self, match: re.Match[str]) -> None:
        self.setup = self.setup._replace(mode=f"{match[1]} groups")

    @on(r"#\s*MODE:\s*(\S+)")
    def _mode(self, match: re.Match[str]) -> None:
        self.setup = self.setup._replace(mode=match[1].lower())

    @on(r"#\s+Intel\(R\) MPI Benchmarks\s+(.*)$")
    def _title(self, match: re.Match[str]) -> None:
        self.header["title"] = match[1].strip()
        self.header["version"] = match[1].partition(",")[0].removeprefix("Version ").strip()

    @on(r"#\s+([A-Za-z_][A-Za-z_ ]*):(.*)$")
    def _setting(self, match: re.Match[str]) -> None:
        name, value = match[1].rstrip(), match[2].strip()
        if not self.test:
            self.header[name] = value
            if name == "MPI_Datatype":
                self.setup = self.setup._replace(datatype=value)
            elif name.startswith("MPI_"):
                self.flag(f"{name} {value}")

    @on(r"# \(.*additional")
    def _additional(self, match: re.Match[str]) -> None:
        if self.test:
            self.remark(f"{self.test}: {match.string.removeprefix('#').strip()}")

    def end(self) -> None:
        """Close the last table."""
        self.close_table(self.setup, self.ranks)
        if "title" not in self.header:
            raise self.fail(
                "not the output of the Intel MPI Benchmarks", "their title is missing", 1
            )
        if not self.ended:
            raise self.cut_off(self.END.removeprefix("# "))
