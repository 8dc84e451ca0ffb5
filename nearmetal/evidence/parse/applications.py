# SPDX-License-Identifier: Apache-2.0
"""Applications: GROMACS, LAMMPS, NAMD, OpenFOAM, Quantum ESPRESSO, WRF."""

from __future__ import annotations

import re
from statistics import fmean

from nearmetal.evidence.model import Column, Unit
from nearmetal.evidence.parse.reader import (
    CRASHED,
    MIXED,
    TWO_RUNS,
    Reader,
    flag,
    on,
    remark,
    setting,
    shown,
    stop,
)

WALL = Column("wall_time", Unit.SECONDS)
CPU = Column("cpu_time", Unit.SECONDS)
SPEED = Column("speed", Unit.NANOSECONDS_PER_DAY)
HOURS = Column("hours_per_ns", Unit.HOURS_PER_NANOSECOND)
ATOM_STEPS = Column("atom_steps", Unit.MEGAOPS)

GROMACS_COLUMNS = {
    "Core t (s)": Column("core_time", Unit.SECONDS),
    "Wall t (s)": WALL,
    "(%)": Column("cpu", Unit.PERCENT),
    "(ns/day)": SPEED,
    "(hour/ns)": HOURS,
}

LAMMPS_RATES = {
    "ns/day": (SPEED, 1.0),
    "hours/ns": (HOURS, 1.0),
    "timesteps/s": (Column("steps", Unit.STEPS_PER_SECOND), 1.0),
    "tau/day": (Column("tau_per_day", Unit.COUNT), 1.0),
    "atom-step/s": (ATOM_STEPS, 1e-6),
    "katom-step/s": (ATOM_STEPS, 1e-3),
    "Matom-step/s": (ATOM_STEPS, 1.0),
    "Gatom-step/s": (ATOM_STEPS, 1e3),
}
"""By the unit after the number: the column, and the factor for the number."""

NAMD_SPEEDS = {
    "days/ns": Column("days_per_ns", Unit.DAYS_PER_NANOSECOND),
    "ns/day": SPEED,
    "ns/days": SPEED,
}


class Gromacs(Reader):
    """GROMACS: the accounting at the end of md.log."""

    format = "gromacs"
    END = "Finished mdrun"
    ended = 0

    _version = setting("version", r"GROMACS version:\s+(?:VERSION )?(\S+)", first=True)
    _fatal = stop(r"Fatal error:", "GROMACS stopped with an error", "Fatal error")
    _stopped = stop(r"Received the \w+ signal, stopping", "the run was ended early")
    _note = remark(r"NOTE:")

    @on(r"[Oo]n (\d+) MPI ranks?\b")
    def _ranks(self, match: re.Match[str]) -> None:
        # "On 384 MPI ranks doing PP" and "on 128 MPI ranks doing PME" stand in two lines.
        self.processes = (self.processes or 0) + self.whole(match[1])

    @on(r"(?:\s+Time:\s|Performance:)(.*)")
    def _row(self, match: re.Match[str]) -> None:
        names = re.split(r"\s{2,}", self.before.strip())
        for name in names:
            self.known(name, GROMACS_COLUMNS, "column", self.line - 1)
        words = match[1].split()
        self.same_length(words, names)
        for name, word in zip(names, words, strict=True):
            self.add("gromacs", GROMACS_COLUMNS[name], word)

    @on(END)
    def _end(self, _match: re.Match[str]) -> None:
        self.ended += 1

    def end(self) -> None:
        """Check that one run has ended."""
        if not self.has("speed"):
            raise self.fail("no line Performance:", CRASHED)
        if self.ended != 1:
            why = "two runs are in one file" if self.ended else CRASHED
            raise self.fail(f"{self.ended} lines {self.END!r}, one is expected", why)
        self.processes = self.processes or None


class Lammps(Reader):
    """LAMMPS: the lines after every run. A file may hold several runs."""

    format = "lammps"
    LOOP = Column("loop_time", Unit.SECONDS)
    RATE = re.compile(r"\s*(\S+) (\S+)\s*")
    ended = False
    loops = 0
    variant = ""

    def __init__(self, text: str, file: str) -> None:
        super().__init__(text, file)
        self.several = sum(line.startswith("Loop time of ") for line in self.lines) > 1

    @on(r"LAMMPS \((.+?)\)\s*$")
    def _version(self, match: re.Match[str]) -> None:
        if "version" in self.header:
            raise self.fail("a second start of LAMMPS", TWO_RUNS)
        self.header["version"] = match[1]

    @on(r"Loop time of (\S+) on (\d+) procs for (\d+) steps with (\d+) atoms")
    def _loop(self, match: re.Match[str]) -> None:
        self.loops += 1
        which = f", run {self.loops}" if self.several else ""
        self.variant = f"{match[4]} atoms, {match[3]} steps{which}"
        self.add("lammps", self.LOOP, match[1], self.variant)
        self.processes = self.whole(match[2])

    @on(r"Loop time of ")
    def _damaged_loop(self, match: re.Match[str]) -> None:
        raise self.fail(f"{shown(match.string)} is not a loop time", "it is cut off or damaged")

    @on(r"Performance:(.*)")
    def _rates(self, match: re.Match[str]) -> None:
        for part in match[1].split(","):
            rate = self.RATE.fullmatch(part)
            if rate is None or rate[2] not in LAMMPS_RATES:
                raise self.fail(
                    f"unknown rate {shown(part.strip())}", f"known: {', '.join(LAMMPS_RATES)}"
                )
            column, factor = LAMMPS_RATES[rate[2]]
            self.add("lammps", column, self.number(rate[1]) * factor, self.variant)

    @on(r"Total wall time: (\d+:\d\d:\d\d)")
    def _end(self, match: re.Match[str]) -> None:
        self.header["total wall time"] = match[1]
        self.ended = True

    _error = stop(r"ERROR", "LAMMPS stopped with an error")
    _remark = remark(r".*WARNING|Defaulted container")

    def end(self) -> None:
        """Check that the last run has ended."""
        if "version" not in self.header and not self.loops:
            raise self.fail(
                "not the output of LAMMPS", "it does not name a version or a loop time", 1
            )
        if not self.loops or not self.ended:
            raise self.cut_off("Total wall time")


class Namd(Reader):
    """NAMD: its benchmark lines, and the wall clock at its end."""

    format = "namd"
    STEP = Column("step_time", Unit.SECONDS)
    ended = False
    benchmarks = 0

    _version = setting("version", r"Info: NAMD (\S+) for (\S+)")
    _fatal = stop(r"FATAL ERROR", "NAMD stopped with an error")

    @on(r"Info: Running on (\d+) processors?(?:, (\d+) nodes?)?")
    def _processors(self, match: re.Match[str]) -> None:
        self.processes = self.whole(match[1])

    @on(r"Info: Benchmark time:(?: (\d+) CPUs (\S+) s/step (\S+) (\S+?)(?: (\S+) MB memory)?\s*$)?")
    def _benchmark(self, match: re.Match[str]) -> None:
        if match[4] not in NAMD_SPEEDS:
            raise self.fail(
                f"{shown(match.string)} is not a benchmark line",
                f"known rates: {', '.join(NAMD_SPEEDS)}",
            )
        # NAMD still balances the load during the first samples; all samples are kept.
        self.benchmarks += 1
        variant = f"sample {self.benchmarks}"
        self.add("namd", self.STEP, match[2], variant)
        self.add("namd", NAMD_SPEEDS[match[4]], match[3], variant)
        self.processes = self.processes or self.whole(match[1])

    @on(r"WallClock: (\S+)\s+CPUTime: (\S+)\s+Memory: (\S+) MB")
    def _end(self, match: re.Match[str]) -> None:
        self.add("namd", WALL, match[1])
        self.add("namd", CPU, match[2])
        self.ended = True

    def end(self) -> None:
        """Check that the run has ended."""
        if not self.ended and not self.benchmarks and "version" not in self.header:
            raise self.fail(
                "not the output of NAMD", "it does not name a version or a wall clock", 1
            )
        if not self.ended:
            raise self.cut_off("WallClock:")


class OpenFoam(Reader):
    """OpenFOAM: the times that a solver prints every step; the last one before its end counts.

    A file may hold several programs one after another, such as a mesher and a solver.
    """

    format = "openfoam"
    TIMES = (Column("execution_time", Unit.SECONDS), Column("clock_time", Unit.SECONDS))
    program = ""
    execution = -1.0
    last: tuple[int, tuple[str, str]] | None = None

    @on(r"ExecutionTime(?: = (\S+) s\s+ClockTime = (\S+) s\s*$)?")
    def _times(self, match: re.Match[str]) -> None:
        if match[1] is None:
            raise self.fail("a damaged line of times", "it is cut off, or two lines are mixed")
        execution = self.number(match[1])
        if execution < self.execution:
            raise self.fail("the time runs backwards", MIXED)
        self.execution, self.last = execution, (self.line, (match[1], match[2]))

    @on(r"Exec\s*:\s*(\S+)")
    def _program(self, match: re.Match[str]) -> None:
        self.program = match[1]

    @on(r"nProcs\s*:\s*(\S+)")
    def _processes(self, match: re.Match[str]) -> None:
        self.processes = self.whole(match[1])

    _version = setting("version", r"(?:Build|Version)\s*:\s*(\S+)", first=True)
    _fatal = stop(
        r"--> FOAM FATAL (?:IO )?ERROR", "the solver stopped with an error", "FOAM FATAL ERROR"
    )

    _signal = stop(r".*Foam::sig(?:Fpe|Segv)::", "the solver was ended by a signal")

    @on(r"End\s*$")
    def _end(self, _match: re.Match[str]) -> None:
        if self.last is not None:
            line, words = self.last
            for column, word in zip(self.TIMES, words, strict=True):
                self.add("openfoam", column, word, self.program, line)
        self.last, self.execution = None, -1.0

    def end(self) -> None:
        """Check that the last program has ended."""
        if self.last is not None:
            raise self.cut_off("End")
        if not self.has("execution_time"):
            raise self.fail("no line ExecutionTime", "not the log of an OpenFOAM solver")


class QuantumEspresso(Reader):
    """Quantum ESPRESSO: the clocks of its programs. Long times are rounded to minutes: a remark."""

    format = "qe"
    version = 2
    TIME = re.compile(r"(?:(\d{1,9})d)? ?(?:(\d{1,9})h)? ?(?:(\d{1,9})m)? ?(?:([\d.]+)s)?")
    totals = 0
    done = old = False
    """Whether the program reported its end, and whether its version reports none."""

    _done = flag("done", r"\s*JOB DONE\.")
    _early = stop(r".*Maximum CPU time exceeded", "the run was ended early")

    @on(
        r"\s*(PWSCF|CP|PHONON)\s*:([\s\dhdms.]+)CPU(?: time)?([\s\dhdms.,]+)"
        r"(?:WALL|wall time)\s*$"
    )
    def _total(self, match: re.Match[str]) -> None:
        self.totals += 1
        self.old = match[0].rstrip().endswith("wall time")
        for column, words in ((CPU, match[2]), (WALL, match[3].strip().removeprefix(","))):
            value, exact = self.seconds(words)
            self.add(match[1].lower(), column, value)
            if not exact:
                self.remark(f"{column.metric} is rounded to a minute")

    _version = setting("version", r"\s*Program \S+ v\.?(\S+) starts")
    _not_converged = remark(r".*convergence NOT achieved")
    _error = stop(r".*Error in routine", "Quantum ESPRESSO stopped with an error")

    @on(r"\s*Number of MPI processes:\s+(\d+)|\s*running on\s+(\d+) processors")
    def _ranks(self, match: re.Match[str]) -> None:
        self.processes = self.whole(match[1] or match[2])

    def seconds(self, text: str) -> tuple[float, bool]:
        """Return a time such as `2h 9m` or `1m23.45s`, and whether it has seconds."""
        match = self.TIME.fullmatch(" ".join(text.split()))
        if match is None or not text.strip():
            raise self.fail(f"{shown(text)} is not a time", "the line is damaged")
        days, hours, minutes = (int(part or 0) for part in match.groups()[:3])
        rest = self.number(match[4]) if match[4] else 0.0
        return ((days * 24 + hours) * 60 + minutes) * 60 + rest, match[4] is not None

    def end(self) -> None:
        """Check that one run has ended."""
        if self.totals != 1:
            why = "two runs are in one file" if self.totals else CRASHED
            raise self.fail(f"{self.totals} total times, one is expected", why)
        before = self.header.get("version", "").split(".")[0] in ("", "1", "2", "3")
        if not self.done and not (self.old and before):
            raise self.cut_off("JOB DONE.")


class Wrf(Reader):
    """WRF: rsl.error.0000 or rsl.out.0000. The first step of each domain is kept apart."""

    format = "wrf"
    FIRST = Column("first_step", Unit.SECONDS)
    MEAN = Column("step_mean", Unit.SECONDS)
    TOTAL = Column("step_total", Unit.SECONDS)
    END = "SUCCESS COMPLETE WRF"
    ended = False

    def __init__(self, text: str, file: str) -> None:
        super().__init__(text, file)
        self.steps: dict[str, list[tuple[int, float]]] = {}

    @on(r"Timing for main(?:: time \S+ on domain\s+(\d+):\s+(\S+) elapsed seconds\s*$)?")
    def _step(self, match: re.Match[str]) -> None:
        if match[1] is None:
            raise self.fail("a damaged step", "it is cut off, or two lines are mixed")
        self.steps.setdefault(match[1], []).append((self.line, self.number(match[2])))

    @on(r"\s*Ntasks in X\s+(\d+)\s*,\s*ntasks in Y\s+(\d+)")
    def _tasks(self, match: re.Match[str]) -> None:
        self.processes = self.whole(match[1]) * self.whole(match[2])

    _version = setting("version", r"\s*WRF V(\S+) MODEL")
    _fatal = stop(r".*FATAL CALLED FROM FILE", "WRF stopped with an error")
    _end = flag("ended", f".*{END}")

    def end(self) -> None:
        """Add the figures of each domain."""
        if not self.steps:
            raise self.fail("no line 'Timing for main'", "WRF made no step")
        if not self.ended:
            raise self.cut_off(self.END)
        for domain, timed in self.steps.items():
            variant = f"domain {domain}"
            line, first = timed[0]
            self.add("wrf", self.FIRST, first, variant, line)
            if len(timed) > 1:
                # These are sums over lines: the last line stands for all of them.
                line, rest = timed[-1][0], [seconds for _, seconds in timed[1:]]
                self.add("wrf", self.MEAN, fmean(rest), variant, line)
                self.add("wrf", self.TOTAL, sum(rest), variant, line)
            self.header[f"steps of {variant}"] = str(len(timed))
