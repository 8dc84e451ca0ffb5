# SPDX-License-Identifier: Apache-2.0
"""NAMD: its benchmark lines and the wall clock at its end."""

from __future__ import annotations

import re

from nearmetal.evidence.model import Column, Log, Unit
from nearmetal.evidence.parse.text import Figures, fail, shown, split_lines

SPEEDS = {
    "days/ns": Column("days_per_ns", Unit.DAYS_PER_NANOSECOND),
    "ns/day": Column("speed", Unit.NANOSECONDS_PER_DAY),
    "ns/days": Column("speed", Unit.NANOSECONDS_PER_DAY),
}

STEP = Column("step_time", Unit.SECONDS)
WALL = Column("wall_time", Unit.SECONDS)
CPU = Column("cpu_time", Unit.SECONDS)

_VERSION = re.compile(r"Info: NAMD (\S+) for (\S+)")
_RUNNING = re.compile(r"Info: Running on (\d+) processors?(?:, (\d+) nodes?)?")
_BENCHMARK = re.compile(
    r"Info: Benchmark time: (\d+) CPUs (\S+) s/step (\S+) (\S+?)(?: (\S+) MB memory)?\s*$"
)
_END = re.compile(r"WallClock: (\S+)\s+CPUTime: (\S+)\s+Memory: (\S+) MB")


def parse(text: str, file: str) -> Log:
    """Read one output; raises LogError when it is damaged, cut off, or something else."""
    figures = Figures(file)
    lines = split_lines(text)
    ended, benchmarks = False, 0
    for nr, line in enumerate(lines, 1):
        if match := _VERSION.match(line):
            figures.header["version"] = match[1]
        elif match := _RUNNING.match(line):
            figures.processes = int(match[1])
        elif line.startswith("Info: Benchmark time:"):
            match = _BENCHMARK.match(line)
            if match is None or match[4] not in SPEEDS:
                raise fail(
                    file,
                    nr,
                    f"{shown(line)} is no benchmark line",
                    f"known rates: {', '.join(SPEEDS)}",
                )
            # The first of them comes while the load is still being balanced; all are kept.
            benchmarks += 1
            variant = f"sample {benchmarks}"
            figures.add("namd", STEP, match[2], nr, variant)
            figures.add("namd", SPEEDS[match[4]], match[3], nr, variant)
            figures.processes = figures.processes or int(match[1])
        elif match := _END.match(line):
            figures.add("namd", WALL, match[1], nr)
            figures.add("namd", CPU, match[2], nr)
            ended = True
        elif line.startswith("FATAL ERROR"):
            raise fail(file, nr, shown(line), "NAMD stopped with an error")
    if not ended and not benchmarks and "version" not in figures.header:
        raise fail(file, 1, "not the output of NAMD", "it names no version and no wall clock")
    if not ended:
        raise fail(
            file,
            len(lines),
            "the output stops before its end",
            "'WallClock:' is missing: the run crashed or was cut off",
        )
    return figures.log("namd")
