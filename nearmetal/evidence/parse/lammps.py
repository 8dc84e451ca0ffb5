# SPDX-License-Identifier: Apache-2.0
"""LAMMPS: what it prints after every run. A file may hold several runs."""

from __future__ import annotations

import re

from nearmetal.evidence.model import Column, Log, Unit
from nearmetal.evidence.parse.text import Figures, fail, number, shown, split_lines, walk

LOOP = Column("loop_time", Unit.SECONDS)
RATES = {
    "ns/day": (Column("speed", Unit.NANOSECONDS_PER_DAY), 1.0),
    "hours/ns": (Column("hours_per_ns", Unit.HOURS_PER_NANOSECOND), 1.0),
    "timesteps/s": (Column("steps", Unit.STEPS_PER_SECOND), 1.0),
    "tau/day": (Column("tau_per_day", Unit.COUNT), 1.0),
    "atom-step/s": (Column("atom_steps", Unit.MEGAOPS), 1e-6),
    "katom-step/s": (Column("atom_steps", Unit.MEGAOPS), 1e-3),
    "Matom-step/s": (Column("atom_steps", Unit.MEGAOPS), 1.0),
    "Gatom-step/s": (Column("atom_steps", Unit.MEGAOPS), 1e3),
}
"""By the unit that stands behind the number, and what a number is multiplied by."""

_LOOP = re.compile(r"Loop time of (\S+) on (\d+) procs for (\d+) steps with (\d+) atoms")
_RATE = re.compile(r"\s*(\S+) (\S+)\s*")


class _Reader:
    def __init__(self, lines: list[str], file: str) -> None:
        self.file = file
        self.figures = Figures(file)
        self.ended = False
        self.loops = [nr for nr, line in enumerate(lines, 1) if line.startswith("Loop time of ")]
        self._variant = ""

    def version(self, nr: int, match: re.Match[str]) -> None:
        if "version" in self.figures.header:
            raise fail(self.file, nr, "a second start of LAMMPS", "two outputs are in one file")
        self.figures.header["version"] = match[1]

    def loop(self, nr: int, line: re.Match[str]) -> None:
        match = _LOOP.match(line.string)
        if match is None:
            raise fail(
                self.file, nr, f"{shown(line.string)} is no loop time", "it is cut off or damaged"
            )
        which = f", run {self.loops.index(nr) + 1}" if len(self.loops) > 1 else ""
        self._variant = f"{match[4]} atoms, {match[3]} steps{which}"
        self.figures.add("lammps", LOOP, match[1], nr, self._variant)
        self.figures.processes = int(match[2])

    def rates(self, nr: int, line: re.Match[str]) -> None:
        for part in line[1].split(","):
            match = _RATE.fullmatch(part)
            if match is None or match[2] not in RATES:
                raise fail(
                    self.file,
                    nr,
                    f"unknown rate {shown(part.strip())}",
                    f"known: {', '.join(RATES)}",
                )
            column, scale = RATES[match[2]]
            value = number(match[1], self.file, nr) * scale
            self.figures.add("lammps", column, value, nr, self._variant)

    def end(self, _nr: int, match: re.Match[str]) -> None:
        self.figures.header["total wall time"] = match[1]
        self.ended = True

    def error(self, nr: int, line: re.Match[str]) -> None:
        raise fail(self.file, nr, shown(line.string), "LAMMPS stopped with an error")

    def remark(self, nr: int, line: re.Match[str]) -> None:
        self.figures.remarks.append((nr, line.string.strip()))


def parse(text: str, file: str) -> Log:
    """Read one output; raises LogError when it is damaged, cut off, or something else."""
    lines = split_lines(text)
    reader = _Reader(lines, file)
    walk(
        lines,
        (
            (re.compile(r"LAMMPS \((.+?)\)\s*$"), reader.version),
            (re.compile(r"Loop time of "), reader.loop),
            (re.compile(r"Performance:(.*)"), reader.rates),
            (re.compile(r"Total wall time: (\d+:\d\d:\d\d)"), reader.end),
            (re.compile(r"ERROR"), reader.error),
            (re.compile(r".*WARNING|Defaulted container"), reader.remark),
        ),
    )
    if "version" not in reader.figures.header and not reader.loops:
        raise fail(file, 1, "not the output of LAMMPS", "it names no version and no loop time")
    if not reader.loops or not reader.ended:
        raise fail(
            file,
            len(lines),
            "the output stops before its end",
            "'Total wall time' is missing: the run crashed or was cut off",
        )
    return reader.figures.log("lammps")
