# SPDX-License-Identifier: Apache-2.0
"""NetPIPE 3.7: the lines it prints while it runs.

It prints no header, so the words around the numbers must be there. Its "Mbps" are 2^20 bits.
"""

from __future__ import annotations

import re

from nearmetal.evidence.model import Column, Log, Row, Table, Unit
from nearmetal.evidence.parse.text import fail, number, shown, split_lines

COLUMNS = (
    Column("size", Unit.BYTES),
    Column("repetitions", Unit.COUNT),
    Column("bandwidth", Unit.MEBIBITS_PER_SECOND),
    Column("time", Unit.MICROSECONDS),
)

_ROW = re.compile(r"\s*(\d+):\s+(\S+) bytes\s+(\S+) times -->\s+(\S+) (\S+) in\s+(\S+) (\S+)\s*$")
_START = "Now starting the main loop"
_ROW_START = re.compile(r"\s*\d+:\s+\d+ bytes")


def _row(line: str, file: str, nr: int, expected: int) -> Row:
    match = _ROW.match(line)
    if match is None:
        raise fail(file, nr, f"{shown(line)} is no row of NetPIPE", "it is cut off or damaged")
    index, size, times, rate, rate_unit, time, time_unit = match.groups()
    if int(index) != expected:
        raise fail(file, nr, f"row {index} where {expected} was due", "rows are missing or mixed")
    if (rate_unit, time_unit) != ("Mbps", "usec"):
        raise fail(
            file, nr, f"units {rate_unit!r} and {time_unit!r}", "Mbps and usec were expected"
        )
    words = (size, times, rate, time)
    values = {c.metric: number(w, file, nr) for c, w in zip(COLUMNS, words, strict=True)}
    return Row(nr, values)


def parse(text: str, file: str) -> Log:
    """Read one output; raises LogError when it is damaged or something else.

    NetPIPE marks no end. Whoever started it knows the largest size and must look for it.
    """
    rows: list[Row] = []
    remarks: list[tuple[int, str]] = []
    started = 0
    lines = split_lines(text)
    for nr, line in enumerate(lines, 1):
        if line.strip() == _START:
            started = nr
        elif started and _ROW_START.match(line):
            rows.append(_row(line, file, nr, len(rows)))
        elif line.strip():
            remarks.append((nr, line.strip()))
    if not started:
        raise fail(file, 1, "not the output of NetPIPE", f"{_START!r} is missing")
    if not rows:
        raise fail(file, len(lines), "NetPIPE printed no row", "the run crashed or was cut off")
    table = Table("PingPong", started, COLUMNS, tuple(rows), processes=2)
    return Log(file, "netpipe", {}, (table,), tuple(remarks))
