# SPDX-License-Identifier: Apache-2.0
"""OpenFOAM: the times a solver prints every step; the last one before its end counts.

A file may hold several programs one after another, as a mesher and a solver.
"""

from __future__ import annotations

import re

from nearmetal.evidence.model import Column, Log, Unit
from nearmetal.evidence.parse.text import Figures, fail, number, split_lines, walk, whole

EXECUTION = Column("execution_time", Unit.SECONDS)
CLOCK = Column("clock_time", Unit.SECONDS)

_TIME = re.compile(r"ExecutionTime = (\S+) s\s+ClockTime = (\S+) s\s*$")


class _Reader:
    def __init__(self, file: str) -> None:
        self.file = file
        self.figures = Figures(file)
        self.last: tuple[int, str, str] | None = None
        self._program = ""
        self._execution = -1.0

    def program(self, _nr: int, match: re.Match[str]) -> None:
        self._program = match[1]

    def processes(self, nr: int, match: re.Match[str]) -> None:
        self.figures.processes = whole(match[1], self.file, nr)

    def version(self, _nr: int, match: re.Match[str]) -> None:
        self.figures.header.setdefault("version", match[1])

    def times(self, nr: int, line: re.Match[str]) -> None:
        match = _TIME.match(line.string)
        if match is None:
            raise fail(self.file, nr, "a damaged line of times", "it is cut off, or two are mixed")
        execution = number(match[1], self.file, nr)
        if execution < self._execution:
            raise fail(self.file, nr, "the time runs backwards", "two outputs are mixed")
        self._execution = execution
        self.last = (nr, match[1], match[2])

    def end(self, _nr: int, _line: re.Match[str]) -> None:
        if self.last is not None:
            nr, execution, clock = self.last
            self.figures.add("openfoam", EXECUTION, execution, nr, self._program)
            self.figures.add("openfoam", CLOCK, clock, nr, self._program)
        self.last, self._execution = None, -1.0

    def fatal(self, nr: int, _line: re.Match[str]) -> None:
        raise fail(self.file, nr, "FOAM FATAL ERROR", "the solver stopped with an error")


def parse(text: str, file: str) -> Log:
    """Read one log, or its end; raises LogError when it is cut off or something else."""
    lines = split_lines(text)
    reader = _Reader(file)
    walk(
        lines,
        (
            (re.compile(r"ExecutionTime"), reader.times),
            (re.compile(r"Exec\s*:\s*(\S+)"), reader.program),
            (re.compile(r"nProcs\s*:\s*(\S+)"), reader.processes),
            (re.compile(r"(?:Build|Version)\s*:\s*(\S+)"), reader.version),
            (re.compile(r"End\s*$"), reader.end),
            (re.compile(r"--> FOAM FATAL (?:IO )?ERROR"), reader.fatal),
        ),
    )
    if reader.last is not None:
        raise fail(
            file,
            len(lines),
            "the output stops before its end",
            "'End' is missing: the run crashed or was cut off",
        )
    if not reader.figures.has("execution_time"):
        raise fail(file, len(lines), "no line ExecutionTime", "not the log of an OpenFOAM solver")
    return reader.figures.log("openfoam")
