# SPDX-License-Identifier: Apache-2.0
"""Quantum ESPRESSO: the clocks of its programs. They round long times to minutes, and are flagged."""

from __future__ import annotations

import re

from nearmetal.evidence.model import Column, Log, Unit
from nearmetal.evidence.parse.text import Figures, fail, number, shown, split_lines, walk

TIMES = (Column("cpu_time", Unit.SECONDS), Column("wall_time", Unit.SECONDS))

_TOTAL = re.compile(
    r"\s*(PWSCF|CP|PHONON)\s*:\s*([\dhdms. ]+?)\s*CPU(?: time)?\s*,?\s*([\dhdms. ]+?)"
    r"\s*(?:WALL|wall time)\s*$"
)
_TIME = re.compile(r"(?:(\d+)d)?\s*(?:(\d+)h)?\s*(?:(\d+)m)?\s*(?:([\d.]+)s)?")


def seconds(text: str, file: str, line: int) -> tuple[float, bool]:
    """Return a time such as `2h 9m` or `1m23.45s`, and whether it has seconds."""
    match = _TIME.fullmatch(text.strip())
    if match is None or not text.strip():
        raise fail(file, line, f"{shown(text)} is no time", "the line is damaged")
    days, hours, minutes = (int(part or 0) for part in match.groups()[:3])
    rest = number(match[4], file, line) if match[4] else 0.0
    return ((days * 24 + hours) * 60 + minutes) * 60 + rest, match[4] is not None


class _Reader:
    def __init__(self, file: str) -> None:
        self.file = file
        self.figures = Figures(file)
        self.found = 0

    def total(self, nr: int, match: re.Match[str]) -> None:
        self.found += 1
        test = match[1].lower()
        for column, words in zip(TIMES, (match[2], match[3]), strict=True):
            value, exact = seconds(words, self.file, nr)
            self.figures.add(test, column, value, nr)
            if not exact:
                self.figures.remarks.append((nr, f"{column.metric} is rounded to a minute"))

    def version(self, _nr: int, match: re.Match[str]) -> None:
        self.figures.header["version"] = match[1]

    def ranks(self, _nr: int, match: re.Match[str]) -> None:
        self.figures.processes = int(match[1] or match[2])

    def not_converged(self, nr: int, line: re.Match[str]) -> None:
        self.figures.remarks.append((nr, line.string.strip()))

    def error(self, nr: int, line: re.Match[str]) -> None:
        raise fail(self.file, nr, line.string.strip(), "Quantum ESPRESSO stopped with an error")


def parse(text: str, file: str) -> Log:
    """Read one output, or its end; raises LogError when it is cut off or something else."""
    lines = split_lines(text)
    reader = _Reader(file)
    walk(
        lines,
        (
            (_TOTAL, reader.total),
            (re.compile(r"\s*Program \S+ v\.?(\S+) starts"), reader.version),
            (
                re.compile(r"\s*Number of MPI processes:\s+(\d+)|\s*running on\s+(\d+) processors"),
                reader.ranks,
            ),
            (re.compile(r".*convergence NOT achieved"), reader.not_converged),
            (re.compile(r".*Error in routine"), reader.error),
        ),
    )
    if reader.found != 1:
        why = "the run crashed or was cut off" if not reader.found else "two runs are in one file"
        raise fail(file, len(lines), f"{reader.found} total times where one is due", why)
    return reader.figures.log("qe")
