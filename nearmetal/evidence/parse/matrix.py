# SPDX-License-Identifier: Apache-2.0
"""All-pairs matrices: one line of comma-separated values per ordered pair of ranks.

Every rank writes its own lines, so the header may stand anywhere, but exactly once.
"""

from __future__ import annotations

from nearmetal.evidence.model import Column, Log, Row, Table, Unit
from nearmetal.evidence.parse.text import fail, number, shown, split_lines, whole

COLUMNS: dict[str, Column] = {
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


def _header(lines: list[str], file: str) -> tuple[int, tuple[Column, ...]]:
    found = [n for n, line in enumerate(lines, 1) if line.split(",")[0].strip() in COLUMNS]
    if len(found) != 1:
        raise fail(
            file,
            found[1] if found else 1,
            f"{len(found)} headers",
            "exactly one must name the columns",
        )
    names = [name.strip() for name in lines[found[0] - 1].split(",")]
    for name in names:
        if name not in COLUMNS:
            raise fail(
                file, found[0], f"unknown column {shown(name)}", f"known: {', '.join(COLUMNS)}"
            )
    columns = tuple(COLUMNS[name] for name in names)
    if len({column.metric for column in columns}) != len(columns):
        raise fail(file, found[0], "a column stands twice", "the header is damaged")
    if {"source", "target"} - {column.metric for column in columns}:
        raise fail(file, found[0], "no columns for both ranks", "rows could not be told apart")
    return found[0], columns


def parse(text: str, file: str) -> Log:
    """Read one matrix; raises LogError unless every ordered pair is there exactly once."""
    lines = split_lines(text)
    header, columns = _header(lines, file)
    tables: dict[tuple[int, int], Table] = {}
    for nr, line in enumerate(lines, 1):
        if nr == header or not line.strip():
            continue
        words = [word.strip() for word in line.split(",")]
        if len(words) != len(columns):
            raise fail(
                file,
                nr,
                f"{len(words)} values for {len(columns)} columns",
                "the row is cut off or damaged",
            )
        by_name = {c.metric: word for c, word in zip(columns, words, strict=True)}
        pair = (whole(by_name["source"], file, nr), whole(by_name["target"], file, nr))
        if pair in tables:
            raise fail(
                file,
                nr,
                f"the pair {pair[0]}, {pair[1]} stands twice",
                f"the other is in line {tables[pair].line}: two outputs are mixed",
            )
        shown_columns = tuple(c for c in columns if c.unit is not Unit.COUNT)
        values = {c.metric: number(by_name[c.metric], file, nr) for c in shown_columns}
        tables[pair] = Table(
            "all_pairs", nr, shown_columns, (Row(nr, values),), f"{pair[0]} to {pair[1]}", 2
        )
    ranks = {rank for pair in tables for rank in pair}
    due = len(ranks) * (len(ranks) - 1)
    if len(ranks) < 2 or len([p for p in tables if p[0] != p[1]]) != due:  # noqa: PLR2004 - a pair
        raise fail(
            file,
            len(lines),
            f"{len(tables)} pairs of {len(ranks)} ranks",
            f"{due} are needed: the output is cut off",
        )
    return Log(file, "matrix", {"ranks": str(len(ranks))}, tuple(tables.values()), ())
