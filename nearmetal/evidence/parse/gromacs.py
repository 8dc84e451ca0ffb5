# SPDX-License-Identifier: Apache-2.0
"""GROMACS: the accounting at the end of md.log."""

from __future__ import annotations

import re

from nearmetal.evidence.model import Column, Log, Unit
from nearmetal.evidence.parse.text import Figures, fail, shown, split_lines, walk

COLUMNS = {
    "Core t (s)": Column("core_time", Unit.SECONDS),
    "Wall t (s)": Column("wall_time", Unit.SECONDS),
    "(%)": Column("cpu", Unit.PERCENT),
    "(ns/day)": Column("speed", Unit.NANOSECONDS_PER_DAY),
    "(hour/ns)": Column("hours_per_ns", Unit.HOURS_PER_NANOSECOND),
}

_END = "Finished mdrun"


class _Reader:
    def __init__(self, lines: list[str], file: str) -> None:
        self.lines = lines
        self.file = file
        self.figures = Figures(file)
        self.ranks = 0
        self.ended = 0

    def version(self, _nr: int, match: re.Match[str]) -> None:
        self.figures.header.setdefault("version", match[1])

    def on_ranks(self, _nr: int, match: re.Match[str]) -> None:
        # "On 384 MPI ranks doing PP" and "on 128 MPI ranks doing PME" stand in two lines.
        self.ranks += int(match[1])

    def row(self, nr: int, match: re.Match[str]) -> None:
        """Read the numbers of a line by the words of the header above it."""
        names = re.split(r"\s{2,}", self.lines[nr - 2].strip()) if nr > 1 else []
        for name in names:
            if name not in COLUMNS:
                raise fail(
                    self.file,
                    nr - 1,
                    f"unknown column {shown(name)}",
                    f"known: {', '.join(COLUMNS)}",
                )
        words = match[1].split()
        if len(words) != len(names):
            raise fail(
                self.file,
                nr,
                f"{len(words)} values for {len(names)} columns",
                "the row is cut off or damaged",
            )
        for name, word in zip(names, words, strict=True):
            self.figures.add("gromacs", COLUMNS[name], word, nr)

    def end(self, _nr: int, _match: re.Match[str]) -> None:
        self.ended += 1

    def fatal(self, nr: int, _match: re.Match[str]) -> None:
        raise fail(self.file, nr, "Fatal error", "GROMACS stopped with an error")

    def note(self, nr: int, line: re.Match[str]) -> None:
        self.figures.remarks.append((nr, line.string.strip()))


def parse(text: str, file: str) -> Log:
    """Read one log, or its end; raises LogError when it is cut off or something else."""
    lines = split_lines(text)
    reader = _Reader(lines, file)
    walk(
        lines,
        (
            (re.compile(r"GROMACS version:\s+(?:VERSION )?(\S+)"), reader.version),
            (re.compile(r"[Oo]n (\d+) MPI ranks?\b"), reader.on_ranks),
            (re.compile(r"\s+Time:\s(.*)"), reader.row),
            (re.compile(r"Performance:(.*)"), reader.row),
            (re.compile(_END), reader.end),
            (re.compile(r"Fatal error:"), reader.fatal),
            (re.compile(r"NOTE:"), reader.note),
        ),
    )
    if not reader.figures.has("speed"):
        raise fail(file, len(lines), "no line Performance:", "the run crashed or was cut off")
    if reader.ended != 1:
        why = "the run crashed or was cut off" if not reader.ended else "two runs are in one file"
        raise fail(file, len(lines), f"{reader.ended} lines {_END!r} where one is due", why)
    reader.figures.processes = reader.ranks or None
    return reader.figures.log("gromacs")
