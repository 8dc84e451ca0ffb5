# SPDX-License-Identifier: Apache-2.0
"""Performance logs of ReFrame: the figures of many jobs, one job after another."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from nearmetal.evidence.model import Column, Row, Setup, Table, Unit
from nearmetal.evidence.parse.reader import MAX_FLAGS, MIXED, Reader, shown

REFRAME_UNITS = {
    **dict.fromkeys(("s", "sec", "second", "seconds"), Unit.SECONDS),
    **dict.fromkeys(("us", "usec", "microseconds"), Unit.MICROSECONDS),
    **dict.fromkeys(("MB/s", "MB/sec"), Unit.MEGABYTES_PER_SECOND),
    **dict.fromkeys(("GB/s", "GB/sec"), Unit.GIGABYTES_PER_SECOND),
    "MiB/s": Unit.MEBIBYTES_PER_SECOND,
    **dict.fromkeys(("Gb/s", "Gbit/s"), Unit.GIGABITS_PER_SECOND),
    **dict.fromkeys(
        ("GFLOPS", "Gflops", "GFLOP/s", "Gflop/s", "Gflops/s", "Gflops/seconds"), Unit.GIGAFLOPS
    ),
    **dict.fromkeys(("TFLOPS", "Tflops", "TFLOP/s", "Tflop/s", "Tflops/s"), Unit.TERAFLOPS),
    "ns/day": Unit.NANOSECONDS_PER_DAY,
    **dict.fromkeys(("hour/ns", "hours/ns", "h/ns"), Unit.HOURS_PER_NANOSECOND),
    **dict.fromkeys(("day/ns", "days/ns"), Unit.DAYS_PER_NANOSECOND),
    **dict.fromkeys(("steps/s", "timesteps/s"), Unit.STEPS_PER_SECOND),
    **dict.fromkeys(("messages/s", "msg/s"), Unit.MESSAGES_PER_SECOND),
    "%": Unit.PERCENT,
}
"""By the word that a test gave its unit. Other units are not compared."""

OF_THE_JOB = re.compile(
    r"result|job_\w+|jobid|descr|hashcode|version|info|(?:\w+_)?name|tags|maintainers|environ|system|"
    r"partition|num_tasks|(?:output|stage|sources)dir|prefix|sourcepath|(?:keep|readonly)_files|"
    r"(?:build_)?time_limit|max_pending_time|valid_\w+|strict_check|build_locally|local"
)
"""Columns that describe one job, its place or its reporting; the others are options."""

UNSET = ("", "null", "None", "{}", "[]")
LIMITS = ("_ref", "_lower_thres", "_upper_thres")
_HEADER = re.compile(r"(?:result\|)?job_completion_time\|")
_FIGURE = re.compile(r"([^=|]{1,255})=([-+.\d][-+.\deE]{0,40}|nan|inf|null|None)")


class Identity(NamedTuple):
    """What ran, and where. Parts that are not known are empty."""

    test: str = ""
    parameters: str = ""
    place: str = ""
    environment: str = ""

    @classmethod
    def of(cls, info: str) -> Identity:
        """Read `TEST on SYSTEM:PARTITION using ENV`, or `TEST %P=1 /HASH @SYSTEM:PARTITION+ENV`."""
        left, old, environment = info.strip().rpartition(" using ")
        if old:
            name, _, place = left.rpartition(" on ")
        else:
            name, _, right = info.strip().rpartition(" @")
            place, _, environment = right.partition("+")
        test, *rest = name.split() or [""]
        parameters = " ".join(word for word in rest if not word.startswith("/"))
        return cls(test, parameters, place, environment)


class ReframeJob(NamedTuple):
    """One job of a test: a launch, from 0 in the order of the log."""

    test: str
    setup: Setup
    launch: int
    ranks: int | None


class Reframe(Reader):
    """ReFrame 3 (a line of each figure) and 4 (a header, then a line of each job).

    Each job is a launch. A job that failed its check of the output is left out, with a remark. One
    that only missed its reference is a measurement like the others.
    """

    format = "reframe"

    def __init__(self, text: str, file: str) -> None:
        super().__init__(text, file)
        self.names: tuple[str, ...] = ()
        self.jobs: dict[tuple[str, str], int] = {}
        self.seen: dict[tuple[ReframeJob, str], int] = {}
        self.place = ""

    def take(self, text: str) -> None:
        """Read one line."""
        if not text.strip():
            return
        fields = text.rstrip().split("|")
        if _HEADER.match(text):
            self._head(fields)
        elif self.names:
            self._job(fields)
        elif len(fields) > 1 and fields[1].startswith("reframe "):
            self._figure_of_3(fields)
        else:
            raise self.fail(f"{shown(text)} is no line of a performance log", MIXED)

    def _head(self, fields: list[str]) -> None:
        self.names = tuple(fields)
        if len(set(self.names)) < len(self.names):
            raise self.fail("a column stands twice", "the header is damaged")
        if not any(name.endswith("_value") for name in self.names):
            raise self.fail("no column of a figure", "a name that ends in _value is expected")

    def _launch(self, time: str, job: str) -> int:
        return self.jobs.setdefault((time, job), len(self.jobs))

    def _at(self, place: str) -> None:
        """Refuse a second partition: its numbers would be those of another arm."""
        if self.place not in ("", place):
            raise self.fail(
                f"{place} after {self.place}", "two partitions are in one file: split it"
            )
        self.place = place
        self.header["partition"] = place

    def _keep(self, job: ReframeJob, name: str, word: str, unit: str) -> None:
        if unit not in REFRAME_UNITS:
            self.remark(f"{name}: the unit {unit!r} is not known, left out")
            return
        if word in UNSET:
            self.remark(f"{name}: no value, left out")
            return
        before = self.seen.setdefault((job, name), self.line)
        if before != self.line:
            raise self.fail(f"{name} stands twice", f"the other is in line {before}: {MIXED}")
        self.count()
        column = Column(name, REFRAME_UNITS[unit])
        row = Row(self.line, {name: self.number(word)})
        table = Table(
            job.test, self.line, (column,), (row,), job.setup, job.ranks, launch=job.launch
        )
        self.keep(table)

    def _figure_of_3(self, fields: list[str]) -> None:
        """Read a line such as `TIME|reframe 3.1|TEST on SYSTEM:PART using ENV|jobid=1|VAR=2|s|...`."""
        who = Identity.of(fields[2] if len(fields) > 2 else "")  # noqa: PLR2004 - TIME, version, test
        job = next((f for f in fields if f.startswith("jobid=")), "")
        if not who.test or not who.place or not job:
            raise self.fail("no test and job in the line", "the line is cut off or damaged")
        self.header["reframe"] = fields[1].split()[1]
        figure, unit, tags = None, "", []
        ranks = None
        for field in (f.strip() for f in fields[3:]):
            if field == job or field.startswith("ref="):
                continue
            if field.startswith("num_tasks="):
                ranks = self.whole(field.partition("=")[2])
            elif figure is None and (match := _FIGURE.fullmatch(field)):
                figure = match
            elif field in REFRAME_UNITS and not unit:
                unit = field
            elif field:
                tags += field.split(",")  # in any order
        if figure is None:
            raise self.fail("no figure in the line", "the line is cut off or damaged")
        made = ReframeJob(who.test, self._setup(who, tags), self._launch(fields[0], job), ranks)
        self._keep(made, figure[1].strip(), figure[2], unit)

    def _setup(self, who: Identity, options: Sequence[str]) -> Setup:
        """Return the configuration of a job; refuses another partition."""
        self._at(who.place)
        if len(options) > MAX_FLAGS:
            raise self.fail(f"more than {MAX_FLAGS} options", "set ignore_keys in ReFrame")
        environment = f"environment {who.environment}" if who.environment else ""
        return Setup(version=environment, mode=who.parameters, flags="; ".join(sorted(options)))

    def _job(self, fields: list[str]) -> None:
        self.same_length(fields, self.names)
        by_name = dict(zip(self.names, fields, strict=True))
        figures = [name.removesuffix("_value") for name in self.names if name.endswith("_value")]
        job = by_name.get("jobid", "")
        if by_name.get("result", "pass") != "pass":
            if not any(self._misses(by_name, figure) for figure in figures):
                self.remark(f"job {job} failed: left out")
                return
            self.remark(f"job {job} missed its reference: it counts like the others")
        left_out = {f + end for f in figures for end in ("_value", "_unit", *LIMITS)}
        options = [
            f"{name}={value}"
            for name, value in by_name.items()
            if name not in left_out and value not in UNSET and not OF_THE_JOB.fullmatch(name)
        ]
        who = self._identity(by_name)
        setup = self._setup(who, options)
        launch = self._launch(by_name["job_completion_time"], job)
        tasks = by_name.get("num_tasks", "null")
        ranks = None if tasks in UNSET else self.whole(tasks)
        made = ReframeJob(who.test, setup, launch, ranks)
        for figure in figures:
            self._keep(made, figure, by_name[f"{figure}_value"], by_name.get(f"{figure}_unit", ""))

    def _identity(self, by_name: Mapping[str, str]) -> Identity:
        info = Identity.of(by_name.get("info", ""))
        names = (by_name.get(name, "") for name in ("display_name", "name", "short_name"))
        named = next((name for name in names if name not in UNSET), "")
        test, _, parameters = named.partition(" ")
        if not test and not info.test:
            raise self.fail("no column names the test", "add %(check_name)s to the format")
        columns = [by_name[name] for name in ("system", "partition") if name in by_name]
        return Identity(
            test or info.test,
            parameters.strip() if test else info.parameters,
            ":".join(columns) or info.place,
            by_name.get("environ", "") or info.environment,
        )

    def _misses(self, by_name: Mapping[str, str], figure: str) -> bool:
        """Return whether a figure is outside the limits of its reference."""
        words = [by_name.get(figure + end, "") for end in ("_value", *LIMITS)]
        if words[0] in UNSET or words[1] in UNSET:
            return False
        value, reference = (self.number(word) for word in words[:2])
        low, high = (
            None if word in UNSET else float(reference) * (1 + self._signed(word))
            for word in words[2:]
        )
        return (low is not None and value < low) or (high is not None and value > high)

    def _signed(self, word: str) -> float:
        sign = -1 if word.startswith("-") else 1
        return sign * self.number(word.removeprefix("-"))

    def end(self) -> None:
        """Check that there are figures."""
        if not self.tables:
            raise self.fail("no figure of a job", "all failed, or have no known unit")
        self.header["jobs"] = str(len(self.jobs))
