# SPDX-License-Identifier: Apache-2.0
"""The profiles of IPM: its XML file, and the banner that it prints.

The XML file has a line for each call and size (`hent`, with `IPM_LOG=full`), or for each call
(`func`). The banner has no sizes. IPM writes one element per line; no XML parser reads the file, so
no entity of it is expanded.
"""

from __future__ import annotations

import re

from nearmetal.evidence.parse.reader import TWO_RUNS, on
from nearmetal.evidence.profiles.calls import Profile, SizedCalls, call_name
from nearmetal.evidence.profiles.reader import ProfileReader

_ATTRIBUTE = re.compile(r'(?<!\w)(\w{1,40})="([^"]*)"')
_PARTS = frozenset({"alltoallv", "alltoallw"})
"""Of these, IPM counts only the bytes from each rank to itself."""


def _size(call: str, size: float) -> float | None:
    return None if call.removeprefix("I").lower() in _PARTS else size


class IpmXml(ProfileReader):
    """The XML file of one run."""

    format = "ipm-xml"
    ended = False
    tasks = 0

    def __init__(self, text: str, file: str) -> None:
        super().__init__(text, file)
        self.wall = 0.0
        self.hashed: dict[tuple[str, float], tuple[float, float, int]] = {}
        self.summed: dict[str, tuple[float, float, float, int]] = {}

    def _attributes(self, text: str, *names: str) -> list[str]:
        found = dict(_ATTRIBUTE.findall(text))
        for name in names:
            if name not in found:
                raise self.fail(f"no attribute {name}", "the line is damaged")
        return [found[name] for name in names]

    @on(r"<task ([^<>]*)>")
    def _task(self, match: re.Match[str]) -> None:
        (word,) = self._attributes(match[1], "mpi_size")
        size = self.whole(word)
        if self.processes not in (None, size):
            raise self.fail(f"a task of {size} ranks", TWO_RUNS)
        self.processes = size
        self.tasks += 1

    @on(r"<perf ([^<>]*)>")
    def _perf(self, match: re.Match[str]) -> None:
        (word,) = self._attributes(match[1], "wtime")
        self.wall += self.number(word)

    @on(r"<func ([^<>]*)>([^<]*)</func>")
    def _func(self, match: re.Match[str]) -> None:
        name, *words = self._attributes(match[1], "name", "count", "bytes")
        self.count()
        count, size = map(self.number, words)
        seconds = self.number(match[2].strip())
        before = self.summed.get(call_name(name), (0.0, 0.0, 0.0, self.line))
        if name.startswith("MPI_"):
            self.summed[call_name(name)] = (
                before[0] + count,
                before[1] + size,
                before[2] + seconds,
                before[3],
            )

    @on(r"<hent ([^<>]*)>([^<]*)</hent>")
    def _hent(self, match: re.Match[str]) -> None:
        name, *words = self._attributes(match[1], "call", "bytes", "count")
        self.count()
        size, count = map(self.number, words)
        times = match[2].split()
        if not times:
            raise self.fail("an entry without a time", "the line is damaged")
        key = (call_name(name), size)
        before = self.hashed.get(key, (0.0, 0.0, self.line))
        if name.startswith("MPI_"):
            self.hashed[key] = (before[0] + count, before[1] + self.number(times[0]), before[2])

    @on(r"</ipm_job_profile>")
    def _end(self, _match: re.Match[str]) -> None:
        self.ended = True

    def end(self) -> None:
        """Check that all tasks are there; make the calls."""
        if not self.ended:
            raise self.cut_off("</ipm_job_profile>")
        if self.tasks != self.processes:
            raise self.fail(
                f"{self.tasks} tasks of {self.processes or 0} ranks", "the file is cut or damaged"
            )
        for (call, size), (count, seconds, line) in self.hashed.items():
            self.use(call, count, seconds, (SizedCalls(_size(call, size), count),), line)
        for call, (count, total, seconds, line) in self.summed.items():
            if not self.hashed and count:
                mean = _size(call, total / count)
                self.use(call, count, seconds, (SizedCalls(mean, count),), line)

    def made(self) -> Profile:
        """Return the profile."""
        return Profile(self.file, self.format, self.processes, self.wall, tuple(self.calls))


class IpmBanner(ProfileReader):
    """The banner of one run, also within other output."""

    format = "ipm"
    within = ended = False
    wall: float | None = None

    def take(self, text: str) -> None:
        """Read one line of the banner, or look for its first line."""
        if text.startswith("##IPM"):
            if self.within or self.ended:
                raise self.fail("a second banner", TWO_RUNS)
            self.within = True
        elif self.within and text.startswith("####"):
            self.within, self.ended = False, True
        elif self.within:
            super().take(text)

    @on(r"# mpi_tasks\s*:\s*(\d+) on \d+ nodes")
    def _tasks(self, match: re.Match[str]) -> None:
        self.processes = self.whole(match[1])

    @on(r"# wallclock\s*:\s*(\S+)\s+\S+\s+\S+\s+\S+\s*$")
    def _wallclock(self, match: re.Match[str]) -> None:
        self.wall = self.number(match[1])

    @on(r"#\s+(MPI_\w+)\s+(\S+)\s+(\S+)\s+\S+\s*$")
    def _call(self, match: re.Match[str]) -> None:
        count = self.number(match[3])
        size = 0.0 if match[1] == "MPI_Barrier" else None
        messages = (SizedCalls(size, count),)
        self.use(call_name(match[1]), count, self.number(match[2]), messages)

    def end(self) -> None:
        """Check that the banner is whole."""
        if not self.ended:
            raise self.cut_off("####")
        if self.processes is None:
            raise self.fail("no line mpi_tasks", "the banner is damaged")
        if not self.calls or self.wall is None:
            raise self.fail("no calls in the banner", "run with IPM_REPORT=full")

    def made(self) -> Profile:
        """Return the profile."""
        remarks = ("the banner has no sizes: every measured size is possible",)
        calls = tuple(self.calls)
        return Profile(self.file, self.format, self.processes, self.wall, calls, remarks)
