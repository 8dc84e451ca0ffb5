# SPDX-License-Identifier: Apache-2.0
"""The nodes of the ranks, where a launcher or a program prints them into the log. Pure.

A log may hold several runs, each with its own map: the first line of a map after rows of a table
starts a new map. Where a log names its pairs or its map, that decides.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import NamedTuple

from nearmetal.evidence.model import IN_ONE_NODE, PARTLY_IN_ONE_NODE, Table

MAX_RANKS = 1 << 20
"""Ranks of one map; further ranks are not read."""

MAX_PAIRED = 4096
"""Ranks of which all pairs are looked at."""

ACROSS_HALVES = ("osu_mbw_mr", "osu_multi_lat", "Uniband", "Biband")
"""Tests in which rank i of the first half communicates with rank i of the second half."""

_LINES = (
    # Intel MPI, I_MPI_DEBUG
    r"\[0\] MPI startup\(\): {1,20}(?P<a>\d+) +\d+ +(?P<A>\S+) +\{",
    # Open MPI, --report-bindings
    r"\[(?P<B>[\w.-]+):\d+\] (?:MCW )?[Rr]ank (?P<b>\d+)(?:\[\d+\])? (?:is )?(?:not )?bound\b",
    # Open MPI, --display-map: a line of the node, then one of each rank
    r" {0,8}Data for node: (?P<node>\S+)",
    r"[ \t]{0,8}Process .{0,120}?Process rank: (?P<c>\d+)",
    # programs that greet: "Process 0 of 2 is on node-1"
    r"#? {0,8}(?:[Pp]rocess|[Rr]ank) (?P<e>\d+)\b.{0,40}? on (?:node |host )?(?P<E>[\w.-]{1,255})$",
    # a script that names a pair: "# pair: node-1 node-2"
    (
        r"[#= -]{0,16}(?:[Nn]ode )?[Pp]air(?: of nodes)? ?[:=] ?(?P<F>[\w.-]{1,255})"
        r"(?: and | <-> | -> | ?, ?| )(?P<G>[\w.-]{1,255})[ =]{0,16}$"
    ),
)
_LINE = re.compile("|".join(f"(?:{line})" for line in _LINES))
_HINTS = ("MPI startup", "ound", "node", "ank ", "ocess ", "air")


class RankMap:
    """The node of each rank, from the lines of one log."""

    def __init__(self) -> None:
        self._hosts: dict[int, str] = {}
        self._next: dict[int, str] = {}
        """The map of the run after the table that is open."""
        self._node = ""
        self._closed = False

        self.busy = False
        """Whether a table with rows is open."""

    def take(self, text: str) -> None:
        """Read one line; most lines are none of a map."""
        if not any(hint in text for hint in _HINTS):
            return
        match = _LINE.match(text)
        if match is None:
            return
        found = {name: word for name, word in match.groupdict().items() if word}
        if "node" in found:
            self._node = found["node"]
        elif "F" in found:
            self.put(0, found["F"])
            self.put(1, found["G"])
        else:
            rank = next(name for name in found if name.islower())
            host = found.get(rank.upper(), self._node)
            if host:
                self.put(int(found[rank][:9]), host)

    def put(self, rank: int, host: str) -> None:
        """Note the node of a rank; after a table, in a new map."""
        if self._closed and not self.busy:
            self._hosts, self._closed = {}, False
        if rank < MAX_RANKS:
            (self._next if self.busy else self._hosts)[rank] = host

    @property
    def size(self) -> int:
        """The number of ranks in the map."""
        return len(self._hosts)

    def close(self) -> Mapping[int, str]:
        """Return the map of the table that ends here."""
        hosts, self._closed = self._hosts, not self._next
        if self._next:
            self._hosts, self._next = self._next, {}
        return hosts


class MapSummary(NamedTuple):
    """What a map says about its first ranks, whatever their number."""

    known: int
    """Ranks from 0 on whose nodes are all known."""
    same: int
    """Ranks from 0 on that are in the node of rank 0."""
    nodes: int

    @classmethod
    def of(cls, hosts: Mapping[int, str]) -> MapSummary:
        """Return the summary of a map."""
        known = next(rank for rank in count() if rank not in hosts)
        same = next((rank for rank in range(known) if hosts[rank] != hosts[0]), known)
        return cls(known, same, len(set(hosts.values())))


class Locator:
    """Adds the parts of a setup that a log names once for all its tables."""

    def __init__(self, version: str, processes: int | None, flags: str) -> None:
        self._version, self._processes, self._flags = version, processes, flags
        self._summaries: dict[int, MapSummary] = {}
        """By the identity of a map: a log may have a million tables."""

    def locate(self, table: Table, hosts: Mapping[int, str]) -> Table:
        """Return the table with version, options, placement and the number of nodes."""
        if id(hosts) not in self._summaries:
            self._summaries[id(hosts)] = MapSummary.of(hosts)
        summary = self._summaries[id(hosts)]
        ranks = table.processes or self._processes
        shown = ranks or len(hosts)
        whole = 1 < shown <= summary.known
        placement = ""
        if whole and summary.nodes > 1:  # in a map of one node, no rank can be elsewhere
            placement = _placement(table.test, hosts, shown, summary)
        setup = table.setup._replace(
            version=table.setup.version or self._version,
            flags=table.setup.flags or self._flags,
            placement=placement or table.setup.placement,
        )
        nodes = summary.nodes if whole else table.nodes
        return replace(table, setup=setup, processes=ranks, nodes=nodes)


def _placement(test: str, hosts: Mapping[int, str], ranks: int, summary: MapSummary) -> str:
    """Return whether the ranks that communicate are in one node."""
    if test not in ACROSS_HALVES or ranks > MAX_PAIRED:
        return IN_ONE_NODE if ranks <= summary.same else ""
    half = ranks // 2
    near = sum(hosts[rank] == hosts[rank + half] for rank in range(half))
    return IN_ONE_NODE if near == half else PARTLY_IN_ONE_NODE if near else ""


def told_apart(tables: Sequence[Table], places: Sequence[Mapping[int, str]]) -> list[Table]:
    """Return tables of which no two have one setup: a repeated test is not one launch of its mean.

    The nodes of a pair distinguish them if the log names them, else the number of the table.
    """
    keys = [(t.test, t.setup, t.processes, t.columns, t.launch) for t in tables]
    pairs = [
        " and ".join(hosts[rank] for rank in (0, 1) if rank in hosts)
        if table.processes == 2  # noqa: PLR2004 - a pair
        else ""
        for table, hosts in zip(tables, places, strict=True)
    ]
    total, alike = Counter(keys), Counter(zip(keys, pairs, strict=True))
    seen: Counter[object] = Counter()
    found = []
    for table, key, pair in zip(tables, keys, pairs, strict=True):
        seen[key, pair] += 1
        if total[key] > 1:
            number = f"table {seen[key, pair]} of {alike[key, pair]}"
            named = pair and alike[key, pair] == 1
            parts = (table.setup.pair, pair, "" if named else number)
            words = ", ".join(filter(None, parts))
            table = replace(table, setup=table.setup._replace(pair=words))  # noqa: PLW2901 - renamed
        found.append(table)
    return found
