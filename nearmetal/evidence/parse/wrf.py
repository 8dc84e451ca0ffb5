# SPDX-License-Identifier: Apache-2.0
"""WRF: rsl.error.0000 or rsl.out.0000. The first step of each domain is kept apart."""

from __future__ import annotations

import re
from statistics import fmean

from nearmetal.evidence.model import Column, Log, Unit
from nearmetal.evidence.parse.text import Figures, fail, number, split_lines, walk

FIRST = Column("first_step", Unit.SECONDS)
MEAN = Column("step_mean", Unit.SECONDS)
TOTAL = Column("step_total", Unit.SECONDS)

_MAIN = re.compile(r"Timing for main: time \S+ on domain\s+(\d+):\s+(\S+) elapsed seconds\s*$")
_END = "SUCCESS COMPLETE WRF"


class _Reader:
    def __init__(self, file: str) -> None:
        self.file = file
        self.figures = Figures(file)
        self.steps: dict[str, list[tuple[int, float]]] = {}
        self.ended = False

    def step(self, nr: int, line: re.Match[str]) -> None:
        match = _MAIN.match(line.string)
        if match is None:
            raise fail(self.file, nr, "a damaged step", "it is cut off, or two are mixed")
        self.steps.setdefault(match[1], []).append((nr, number(match[2], self.file, nr)))

    def tasks(self, _nr: int, match: re.Match[str]) -> None:
        self.figures.processes = int(match[1]) * int(match[2])

    def version(self, _nr: int, match: re.Match[str]) -> None:
        self.figures.header["version"] = match[1]

    def end(self, _nr: int, _match: re.Match[str]) -> None:
        self.ended = True

    def add(self, domain: str, timed: list[tuple[int, float]]) -> None:
        variant = f"domain {domain}"
        nr, first = timed[0]
        self.figures.add("wrf", FIRST, first, nr, variant)
        if len(timed) > 1:
            # Sums over lines: the last of them stands for all.
            nr, rest = timed[-1][0], [seconds for _, seconds in timed[1:]]
            self.figures.add("wrf", MEAN, fmean(rest), nr, variant)
            self.figures.add("wrf", TOTAL, sum(rest), nr, variant)
        self.figures.header[f"steps of {variant}"] = str(len(timed))


def parse(text: str, file: str) -> Log:
    """Read one log; raises LogError when it is cut off or something else."""
    lines = split_lines(text)
    reader = _Reader(file)
    walk(
        lines,
        (
            (re.compile(r"Timing for main"), reader.step),
            (re.compile(r"\s*Ntasks in X\s+(\d+)\s*,\s*ntasks in Y\s+(\d+)"), reader.tasks),
            (re.compile(r"\s*WRF V(\S+) MODEL"), reader.version),
            (re.compile(f".*{_END}"), reader.end),
        ),
    )
    if not reader.steps:
        raise fail(file, len(lines), "no line 'Timing for main'", "WRF made no step")
    if not reader.ended:
        raise fail(
            file,
            len(lines),
            "the output stops before its end",
            f"{_END!r} is missing: the run crashed or was cut off",
        )
    for domain, timed in reader.steps.items():
        reader.add(domain, timed)
    return reader.figures.log("wrf")
