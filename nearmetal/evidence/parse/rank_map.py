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

from nearmetal.evidence.model import IN_ONE_NODE, PARTLY_IN_ONE_NODE, Table

MAX_RANKS = 1 << 20
"""Ranks of one map; further ranks are not read."""

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


def located(
    table: Table, version: str, processes: int | None, flags: str, hosts: Mapping[int, str]
) -> Table:
    """Return a table with the parts of its setup that its log names once for all tables."""
    ranks = table.processes or processes
    used = [hosts[rank] for rank in range(min(ranks or MAX_RANKS, len(hosts))) if rank in hosts]
    whole = len(used) == (ranks or len(hosts)) and len(used) > 1
    nodes = len(set(hosts.values())) if whole else None
    setup = table.setup._replace(
        version=table.setup.version or version,
        flags=table.setup.flags or flags,
        # One node says it all: no rank can be elsewhere.
        placement=_placement(table.test, used) if nodes and nodes > 1 else "",
    )
    return replace(table, setup=setup, processes=ranks, nodes=nodes)


def _placement(test: str, hosts: Sequence[str]) -> str:
    """Return whether the ranks that communicate are in one node."""
    half = len(hosts) // 2
    if test in ACROSS_HALVES:
        near = sum(a == b for a, b in zip(hosts[:half], hosts[half:], strict=False))
        return IN_ONE_NODE if near == half else PARTLY_IN_ONE_NODE if near else ""
    return IN_ONE_NODE if len(set(hosts)) == 1 else ""


def told_apart(tables: Sequence[Table], places: Sequence[Mapping[int, str]]) -> list[Table]:
    """Return tables of which no two have one setup: a repeated test is not one launch of its mean.

    The nodes of a pair distinguish them if the log names them, else the number of the table.
    """
    keys = [(t.test, t.setup, t.processes, t.columns) for t in tables]
    pairs = [
        " and ".join(hosts[rank] for rank in (0, 1) if rank in hosts)
        if table.processes == 2  # noqa: PLR2004 - a pair
        else ""
        for table, hosts in zip(tables, places, strict=True)
    ]
    count, alike = Counter(keys), Counter(zip(keys, pairs, strict=True))
    seen: Counter[object] = Counter()
    found = []
    for table, key, pair in zip(tables, keys, pairs, strict=True):
        seen[key, pair] += 1
        if count[key] > 1:
            number = f"table {seen[key, pair]} of {alike[key, pair]}"
            named = pair and alike[key, pair] == 1
            parts = (table.setup.pair, pair, "" if named else number)
            words = ", ".join(filter(None, parts))
            table = replace(table, setup=table.setup._replace(pair=words))  # noqa: PLW2901 - renamed
        found.append(table)
    return found
