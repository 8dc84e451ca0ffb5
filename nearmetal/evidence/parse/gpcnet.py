# SPDX-License-Identifier: Apache-2.0
"""GPCNet: a network alone, and a network under congestion."""

from __future__ import annotations

import re
from collections.abc import Sequence

from nearmetal.evidence.model import Column, Row, Setup, Table, Unit
from nearmetal.evidence.parse.reader import CRASHED, TWO_RUNS, Reader, on, shown

ISOLATED, LOADED = "isolated", "with congestors"
SECTIONS = {
    "Isolated Network Tests": ISOLATED,
    "Isolated Congestion Tests": "congestors alone",
    "Network Tests running with Congestion Tests": LOADED,
    "Network Tests running with Congestion Tests - Key Results": LOADED,
}
GPCNET_UNITS = {
    "usec": ("latency", Unit.MICROSECONDS),
    "MiB/s/rank": ("bandwidth", Unit.MEBIBYTES_PER_SECOND),
}
STATISTICS = {
    "Avg": "",
    "Min": "_min",
    "Max": "_max",
    "Avg(Worst)": "_worst",
    "99%": "_p99",
    "99.9%": "_p999",
}
IMPACT = "Congestion Impact Factor"
SIZE = Column("size", Unit.BYTES)
_NAME = re.compile(r"(\S.{0,60}) \(\s*(\d{1,12}) B\)")
_WITH = re.compile(r"(.{1,60}?) ?\( *(\S.{0,40}?) Network Test\)")


class GpcNet(Reader):
    """GPCNet's network_test and network_load_test, in both of its widths.

    A bar follows each row, so a row without it is cut off.
    """

    format = "gpcnet"
    load = False
    nodes: int | None = None
    mode = ""
    statistics: tuple[str, ...] = ()
    impact = due = False
    """Whether the table has the quotients; whether a bar is due."""

    @on(r"Network(Load)? Tests v(\d+\.\d+)\s*$")
    def _title(self, match: re.Match[str]) -> None:
        if "version" in self.header:
            raise self.fail("a second start of GPCNet", TWO_RUNS)
        self.header["version"], self.load = match[2], bool(match[1])

    @on(r"\s+Test with (\d+) MPI ranks \((\d+) nodes\)")
    def _scale(self, match: re.Match[str]) -> None:
        self.processes, self.nodes = self.whole(match[1]), self.whole(match[2])

    @on(r"\s+(\d+) nodes running (Network|Congestion) Tests")
    def _share(self, match: re.Match[str]) -> None:
        self.flag(f"{self.whole(match[1])} nodes running {match[2].lower()} tests")

    @on(r"\+[-+]+\s*$")
    def _bar(self, _match: re.Match[str]) -> None:
        self.due = False

    @on(r"\|(.*)\|\s*$")
    def _line(self, match: re.Match[str]) -> None:
        cells = [cell.strip() for cell in match[1].split("|")]
        if len(cells) == 1:
            self._section(cells[0])
        elif cells == ["Name", IMPACT]:
            self.impact, self.statistics = True, ()
        elif cells[0] == "Name" or (self.impact and not cells[0]):
            units = cells[-1:] == ["Units"]
            self.statistics = tuple(cells[1:-1] if units else cells[1:])
            for name in self.statistics:
                self.known(name, STATISTICS, "column")
            if units == self.impact or len(set(self.statistics)) < len(self.statistics):
                raise self.fail(f"header {shown(match.string)}", "the columns are damaged")
        else:
            self._row(cells)

    @on(r"\|")
    def _cut(self, match: re.Match[str]) -> None:
        raise self.fail(shown(match.string.strip()), f"the row has no end: {CRASHED}")

    def _section(self, title: str) -> None:
        match = _WITH.fullmatch(title)
        name, network = (match[1].strip(), match[2]) if match else (title, "")
        self.known(name, SECTIONS, "part")
        self.mode = ", ".join(filter(None, (SECTIONS[name], network)))
        self.statistics, self.impact = (), False

    def _row(self, cells: Sequence[str]) -> None:
        match = _NAME.fullmatch(cells[0])
        if not self.statistics or match is None:
            raise self.fail(
                f"row {shown(cells[0])}", "no header names its columns, or it is damaged"
            )
        self.due = True
        if self.impact:
            self.same_length(cells[1:], self.statistics)
            if not all(word.endswith("X") for word in cells[1:]):
                raise self.fail(f"factors {shown(' '.join(cells[1:]))}", "they must end in X")
            metric, unit = "impact", Unit.COUNT
            words = [word.removesuffix("X") for word in cells[1:]]
        else:
            self.same_length(cells[1:-1], self.statistics)
            self.known(cells[-1], GPCNET_UNITS, "unit")
            (metric, unit), words = GPCNET_UNITS[cells[-1]], list(cells[1:-1])
        self.count()
        columns = [Column(metric + STATISTICS[name], unit) for name in self.statistics]
        values = {c.metric: self.number(w) for c, w in zip(columns, words, strict=True)}
        row = Row(self.line, {"size": self.number(match[2]), **values})
        slug = re.sub(r"[^a-z0-9+]+", "_", match[1].lower()).strip("_")
        setup = Setup(mode=self.mode)
        table = Table(
            f"gpcnet_{slug}", self.line, (SIZE, *columns), (row,), setup, self.processes, self.nodes
        )
        self.keep(table)

    def end(self) -> None:
        """Check that the last table is whole."""
        if "version" not in self.header:
            raise self.fail("not the output of GPCNet", "its title is missing", 1)
        if not self.tables or self.due:
            raise self.cut_off("the bar after the last row")
        if self.load and not self.impact:
            raise self.cut_off("Key Results")
