# SPDX-License-Identifier: Apache-2.0
"""The report of mpiP.

The statistics of all callsites are read if they are there, else the aggregates of the first twenty;
the time of the other callsites is then a call without a name. Times of callsites are in milliseconds.
"""

from __future__ import annotations

import re

from nearmetal.evidence.parse.reader import TWO_RUNS, on
from nearmetal.evidence.profiles.calls import Profile, SizedCalls, call_name
from nearmetal.evidence.profiles.reader import ProfileReader, spread

_TIME = "MPI Time"
_ALL_TIMES = "Callsite Time statistics"
_ALL_SIZES = "Callsite Message Sent statistics"
_SOME_TIMES = "Aggregate Time"
_SOME_SIZES = "Aggregate Sent Message Size"
_COLUMNS = {
    _TIME: {"Task", "AppTime", "MPITime", "MPI%"},
    _ALL_TIMES: {"Name", "Site", "Rank", "Count", "Max", "Mean", "Min", "App%", "MPI%"},
    _ALL_SIZES: {"Name", "Site", "Rank", "Count", "Max", "Mean", "Min", "Sum"},
    _SOME_TIMES: {"Call", "Site", "Time", "App%", "MPI%", "Count", "COV"},
    _SOME_SIZES: {"Call", "Site", "Count", "Total", "Avrg", "Sent%"},
}
_CONCISE = {"Name", "Site", "Tasks", "Max", "Mean", "Min", "MaxRnk", "MinRnk"}
"""Columns of a concise report, which has no numbers of calls: its aggregates are read."""
_OPTIONAL = {"Count", "COV"}
_ALL = "*"
REST = "callsites beyond the first twenty"
Site = tuple[str, str]


class MpiP(ProfileReader):
    """One report."""

    format = "mpip"
    started = ended = False
    section = ""
    head: tuple[str, ...] = ()
    total: tuple[float, float] | None = None
    """Run time and time in MPI of all ranks, in seconds."""

    def __init__(self, text: str, file: str) -> None:
        super().__init__(text, file)
        self.nr_ranks = 0
        self.rows: dict[str, dict[Site, tuple[int, dict[str, str]]]] = {}  # type: ignore[assignment]

    def take(self, text: str) -> None:
        """Read one line: a section, a setting, a header, or a row."""
        if text.startswith("@"):
            super().take(text)
        elif self.section and text.strip() and not text.startswith("---"):
            self._row(text.split())

    @on(r"@ mpiP$")
    def _title(self, _match: re.Match[str]) -> None:
        if self.started:
            raise self.fail("a second title", TWO_RUNS)
        self.started = True

    @on(r"@ MPI Task Assignment\s+:\s+\d+\s")
    def _task(self, _match: re.Match[str]) -> None:
        self.nr_ranks += 1

    @on(r"@--- End of Report")
    def _end(self, _match: re.Match[str]) -> None:
        self.ended, self.section = True, ""

    @on(r"@--- (.*)")
    def _section(self, match: re.Match[str]) -> None:
        self.head = ()
        self.section = next((name for name in _COLUMNS if match[1].startswith(name)), "")

    def _row(self, words: list[str]) -> None:
        known = _COLUMNS[self.section]
        if not self.head:
            if set(words) <= _CONCISE and self.section in (_ALL_TIMES, _ALL_SIZES):
                self.section = ""
                return
            for word in words:
                self.known(word, sorted(known), "column")
            if missing := known - _OPTIONAL - set(words):
                raise self.fail(f"no column {min(missing)}", "the header is damaged")
            self.head = tuple(words)
            return
        self.same_length(words, self.head)
        self.count()
        row = dict(zip(self.head, words, strict=True))
        if self.section == _TIME:
            if row["Task"] == _ALL:
                self.total = (self.number(row["AppTime"]), self.number(row["MPITime"]))
        elif row.get("Rank", _ALL) == _ALL:
            site = (call_name(row.get("Name") or row["Call"]), row["Site"])
            self.rows.setdefault(self.section, {})[site] = (self.line, row)

    def end(self) -> None:
        """Make the calls of the sites."""
        if not self.started:
            raise self.fail("not a report of mpiP", "its title is missing", 1)
        if not self.ended:
            raise self.cut_off("@--- End of Report")
        if self.total is None:
            raise self.fail("no time of all ranks", "the section 'MPI Time' is missing")
        if not self.nr_ranks:
            raise self.fail("no ranks", "the lines 'MPI Task Assignment' are missing")
        everything = _ALL_TIMES in self.rows
        times = self.rows.get(_ALL_TIMES if everything else _SOME_TIMES, {})
        sizes = self.rows.get(_ALL_SIZES, {}) or self.rows.get(_SOME_SIZES, {})
        if not times and self.total[1] > 0:
            raise self.fail("no times of callsites", "run mpiP without -t")
        listed = 0.0
        for site, (line, row) in times.items():
            seconds = self._seconds(row, line)
            listed += seconds
            self._use(site, (line, row), sizes.get(site), seconds)
        rest = self.total[1] - listed
        # Times are printed with three digits.
        if not everything and rest > 0.01 * self.total[1]:
            self.use(REST, 0.0, rest)

    def _seconds(self, row: dict[str, str], line: int) -> float:
        if "Time" in row:
            return self.number(row["Time"], line) / 1e3
        return self.number(row["Count"], line) * self.number(row["Mean"], line) / 1e3

    def _use(
        self,
        site: Site,
        timed: tuple[int, dict[str, str]],
        sized: tuple[int, dict[str, str]] | None,
        seconds: float,
    ) -> None:
        """Keep the calls of one site; those without bytes are empty messages."""
        line, row = timed
        messages: list[SizedCalls] = []
        sent = 0.0
        if sized is not None:
            at, sizes = sized
            sent = self.number(sizes["Count"], at)
            size = self.number(sizes.get("Mean") or sizes["Avrg"], at)
            messages.append(SizedCalls(spread(site[0], size, self.nr_ranks), sent))
        count = self.number(row["Count"], line) if "Count" in row else sent
        if count > sent:
            messages.append(SizedCalls(0.0, count - sent))
        self.use(site[0], count, seconds, tuple(messages), line)

    def made(self) -> Profile:
        """Return the profile."""
        assert self.total is not None  # noqa: S101 - end() checks it
        return Profile(self.file, self.format, self.nr_ranks, self.total[0], tuple(self.calls))
