# SPDX-License-Identifier: Apache-2.0
"""Measurements of a whole cluster: matrices of all pairs of ranks, and Intel Cluster Checker."""

from __future__ import annotations

import re

from nearmetal.evidence.model import Column, Row, Setup, Table, Unit
from nearmetal.evidence.parse.reader import MIXED, Reader, on, setting

MATRIX_COLUMNS: dict[str, Column] = {
    "src": Column("source", Unit.COUNT),
    "dst": Column("target", Unit.COUNT),
    "rank_a": Column("source", Unit.COUNT),
    "rank_b": Column("target", Unit.COUNT),
    "lat(us)": Column("latency", Unit.MICROSECONDS),
    "lat_us": Column("latency", Unit.MICROSECONDS),
    "bandwidth((Mbytes/sec)": Column("bandwidth", Unit.MEGABYTES_PER_SECOND),
    "bandwidth(Mbytes/sec)": Column("bandwidth", Unit.MEGABYTES_PER_SECOND),
    "bw_MBs": Column("bandwidth", Unit.MEGABYTES_PER_SECOND),
}
PAIR = ("source", "target")

CLCK_UNITS = {
    "GFLOP/s": Unit.GIGAFLOPS,
    "TFLOP/s": Unit.TERAFLOPS,
    "GB/s": Unit.GIGABYTES_PER_SECOND,
    "MB/s": Unit.MEGABYTES_PER_SECOND,
    "mcseconds": Unit.MICROSECONDS,
    "microseconds": Unit.MICROSECONDS,
}


class Matrix(Reader):
    """All-pairs matrix: one line of comma-separated values per ordered pair of ranks.

    Every rank writes its own lines, so the header may stand anywhere, but exactly once.
    """

    format = "matrix"
    processes = 2

    def __init__(self, text: str, file: str) -> None:
        super().__init__(text, file)
        self.pairs: dict[tuple[int, int], int] = {}
        heads = [n for n, t in enumerate(self.lines, 1) if self._words(t)[0] in MATRIX_COLUMNS]
        if len(heads) != 1:
            line = heads[1] if heads else 1
            raise self.fail(f"{len(heads)} headers", "exactly one must name the columns", line)
        self.opened = heads[0]
        found = self.columns_of(self._words(self.lines[self.opened - 1]), MATRIX_COLUMNS, heads[0])
        if not {column.metric for column in found}.issuperset(PAIR):
            raise self.fail(
                "no columns for both ranks", "rows could not be distinguished", self.opened
            )
        self.heads = found

    @staticmethod
    def _words(text: str) -> list[str]:
        return [word.strip() for word in text.split(",")]

    def take(self, text: str) -> None:
        """Read one pair."""
        if self.line == self.opened or not text.strip():
            return
        words = self._words(text)
        self.same_length(words, self.heads)
        by_name = {c.metric: word for c, word in zip(self.heads, words, strict=True)}
        source, target = (self.whole(by_name[name]) for name in PAIR)
        if (source, target) in self.pairs:
            raise self.fail(
                f"the pair {source}, {target} stands twice",
                f"the other is in line {self.pairs[source, target]}: {MIXED}",
            )
        self.pairs[source, target] = self.line
        columns = tuple(c for c in self.heads if c.unit is not Unit.COUNT)
        row = Row(self.line, {c.metric: self.number(by_name[c.metric]) for c in columns})
        setup = Setup(pair=f"{source} to {target}")
        self.keep(Table("all_pairs", self.line, columns, (row,), setup))

    def end(self) -> None:
        """Check that every ordered pair is there."""
        ranks = {rank for pair in self.pairs for rank in pair}
        due = len(ranks) * (len(ranks) - 1)
        if not due or sum(source != target for source, target in self.pairs) != due:
            raise self.fail(
                f"{len(self.pairs)} pairs of {len(ranks)} ranks",
                f"{due} are needed: the output is cut off",
            )
        self.header["ranks"] = str(len(ranks))


class ClusterChecker(Reader):
    """Intel Cluster Checker: the findings of its report that are measurements, by folded node set."""

    format = "clck"
    NODES = re.compile(r"\]\s*\[nodes:")
    PERFORMANCE = re.compile(r"([A-Z]+)(?: (\d+)-Node)? Performance: (\S+) (\S+?)\.?$")
    PINGPONG = re.compile(r"IMB pingpong bandwidth: (\S+) (\S+) and latency: (\S+) (\S+?)\.?$")

    _title = setting("version", r"\s*Intel(?:\(R\)|®)?\s+Cluster Checker (.+)$")
    _database = setting("database", r"\s*Databases used:(.+)$")

    @on(r"\s*\[.*\]\s*$")
    def _finding(self, match: re.Match[str]) -> None:
        text = match.string.strip()
        middle = self.NODES.search(text)
        if middle is None:
            return
        what, nodes = text[1 : middle.start()], text[middle.end() : -1].lstrip()
        if found := self.PERFORMANCE.fullmatch(what):
            test = f"clck_{found[1].lower()}" + (f"_{found[2]}_node" if found[2] else "")
            self._measured(test, "rate", found[3], found[4], nodes)
        elif found := self.PINGPONG.fullmatch(what):
            self._measured("clck_imb_pingpong", "bandwidth", found[1], found[2], nodes)
            self._measured("clck_imb_pingpong", "latency", found[3], found[4], nodes)
        else:
            self.remark(match.string)

    def _measured(self, test: str, metric: str, word: str, unit: str, nodes: str) -> None:
        self.known(unit, CLCK_UNITS, "unit")
        self.add(test, Column(metric, CLCK_UNITS[unit]), word, nodes)

    def end(self) -> None:
        """Check that this is a report with measurements."""
        if "version" not in self.header:
            raise self.fail("not a report of Intel Cluster Checker", "its title is missing", 1)
        if not self.tables:
            raise self.fail("no measurement", "the report is cut off or holds none")
