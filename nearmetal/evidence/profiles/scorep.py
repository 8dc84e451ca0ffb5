# SPDX-License-Identifier: Apache-2.0
"""The regions of a Score-P profile as text: `scorep-score -r profile.cubex`.

Score-P keeps the profile in a binary format; this is the text that its own tool prints. It has no
sizes and no number of processes. Times are of all locations, so threads of a rank count too.
"""

from __future__ import annotations

import re

from nearmetal.evidence.parse.reader import on
from nearmetal.evidence.profiles.calls import Profile, SizedCalls, call_name
from nearmetal.evidence.profiles.reader import ProfileReader

_NUMBER = re.compile(r"\d{1,3}(?:,\d{3})*|\d+")
_KNOWN = ("type", "max_buf[B]", "visits", "hits", "time[s]", "time[%]", "time/visit[us]", "region")
_NEEDED = ("type", "visits", "time[s]", "time/visit[us]", "region")
_MARKS = ("+", "-", "*")
_THREADS = frozenset({"OMP", "PTHREAD"})


class ScorePScore(ProfileReader):
    """The output of scorep-score, with regions."""

    format = "scorep"
    head: tuple[str, ...] = ()
    wall: float | None = None
    threads = False

    def take(self, text: str) -> None:
        """Read one line: the header, or a row below it."""
        if not self.head:
            super().take(text)
        elif text.strip():
            self._row(text)

    @on(r"\s*[Ff]lt\s+type\s")
    def _header(self, match: re.Match[str]) -> None:
        words = match.string.split()[1:]
        for word in words:
            self.known(word, _KNOWN, "column")
        for word in _NEEDED:
            if word not in words:
                raise self.fail(f"no column {word}", "the header is damaged")
        if words[-1] != "region" or len(set(words)) != len(words):
            raise self.fail("the last column is not region", "the header is damaged")
        self.head = tuple(words)

    def _row(self, text: str) -> None:
        words = text.split(None, len(self.head))
        words = words[1:] if words[0] in _MARKS else text.split(None, len(self.head) - 1)
        self.same_length(words, self.head)
        row = dict(zip(self.head, words, strict=True))
        region, kind = row["region"].strip(), row["type"]
        self.threads = self.threads or kind in _THREADS
        if region == kind == "ALL":
            self.wall = self.wall or self.number(row["time[s]"])
        elif kind == "MPI" and region.startswith("MPI_"):
            visits = self._visits(row["visits"])
            # The time has two digits after the point; the time of a visit has more.
            seconds = visits * self.number(row["time/visit[us]"]) / 1e6
            size = 0.0 if region == "MPI_Barrier" else None
            self.use(call_name(region), visits, seconds, (SizedCalls(size, visits),))
        else:
            self.count()

    def _visits(self, word: str) -> float:
        if not _NUMBER.fullmatch(word):
            raise self.fail("a number of visits that is none", "the row is damaged")
        return self.number(word.replace(",", ""))

    def end(self) -> None:
        """Check that there are regions."""
        if not self.head:
            raise self.fail(
                "not the output of scorep-score", "the line 'flt type ...' is missing", 1
            )
        if self.wall is None:
            raise self.fail("no time of the whole run", "the row ALL is missing")
        if not self.calls:
            raise self.fail("no region of MPI", "run scorep-score with -r")

    def made(self) -> Profile:
        """Return the profile; with threads, the time of all ranks is not known."""
        remarks = ["scorep-score prints no sizes: every measured size is possible"]
        if self.threads:
            remarks.append("times are of all threads: the run time of the ranks is not known")
        wall = None if self.threads else self.wall
        return Profile(self.file, self.format, None, wall, tuple(self.calls), tuple(remarks))
