# SPDX-License-Identifier: Apache-2.0
"""The counts of Open MPI's monitoring: one file per rank, `NAME.RANK.prof`.

`pml_monitoring_enable` 2 with `pml_monitoring_enable_output` writes them at the end of a run. A line
has the sender, the receiver, bytes, messages, and for the messages of the program (`E`) how many
there are of each power of two: class 0 is empty messages, class k is 2^(k-1) to 2^k - 1 bytes. These
classes also have the messages of collectives (`I`); without `E`, they stand on that line. A profile
has no times and no calls.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from math import exp, log

from nearmetal.core.errors import LogError
from nearmetal.evidence.parse.reader import on
from nearmetal.evidence.profiles.calls import MESSAGES, CallUse, Profile, SizedCalls
from nearmetal.evidence.profiles.reader import ProfileReader

_COUNTS = r"(\d{1,18}) bytes\t(\d{1,18}) msgs sent"
_LINE = re.compile(rf"([EISRC])\t(\d+)\t(\d+)\t{_COUNTS}(?:\t([\d,]+))?$")
_SUM = re.compile(rf"(O2A|A2O|A2A)\t(\d+)\t{_COUNTS}$")
_MAX_CLASSES = 66
_STEPS = 60
TITLE = "# POINT TO POINT"


class Monitoring(ProfileReader):
    """The counts of one rank."""

    format = "openmpi-monitoring"
    started = False
    rank: int | None = None
    world: tuple[int, ...] | None = None

    def __init__(self, text: str, file: str) -> None:
        super().__init__(text, file)
        self.classes = [0] * _MAX_CLASSES
        self.sums = {kind: [0, 0] for kind in "EISRC"}
        """Bytes and messages by kind of line."""

    def take(self, text: str) -> None:
        """Read one line; every line is known."""
        if not text.strip():
            return
        if not self.started:
            if text != TITLE:
                raise self.fail("not a file of Open MPI's monitoring", f"{TITLE!r} is missing")
            self.started = True
        elif text.startswith("D\t"):
            super().take(text)
        elif match := _LINE.match(text):
            self._counts(match)
        elif match := _SUM.match(text):
            self._same_rank(match[2])
        elif not text.startswith("# "):
            raise self.fail("an unknown line", "the file is damaged or cut off")

    @on(r"D\tMPI_COMM_WORLD\tprocs: ([\d,]+)$")
    def _world(self, match: re.Match[str]) -> None:
        words = match[1].split(",")
        self.world = tuple(self.whole(word) for word in words)

    def _same_rank(self, word: str) -> None:
        rank = self.whole(word)
        if self.rank not in (None, rank):
            raise self.fail(
                f"rank {rank} in the file of rank {self.rank}", "two files are in one: split them"
            )
        self.rank = rank

    def _counts(self, match: re.Match[str]) -> None:
        kind, sender, _receiver, nr_bytes, count, classes = match.groups()
        self._same_rank(sender)
        self.count()
        for index, word in enumerate((nr_bytes, count)):
            self.sums[kind][index] += int(word)
        if classes is None:
            return
        words = classes.split(",")
        if kind not in {"E", "I"} or len(words) > _MAX_CLASSES:
            raise self.fail(
                f"{len(words)} classes of sizes", f"at most {_MAX_CLASSES}, of E and I lines"
            )
        for index, word in enumerate(words):
            self.classes[index] += int(self.number(word))

    def end(self) -> None:
        """Check that the file is whole: it ends with the collectives of MPI_COMM_WORLD."""
        if not self.started:
            raise self.fail("not a file of Open MPI's monitoring", f"{TITLE!r} is missing", 1)
        if self.world is None:
            raise self.cut_off("D MPI_COMM_WORLD")
        messages = self.sums["E"][1] + self.sums["I"][1]
        if sum(self.classes) != messages:
            raise self.fail(
                f"{sum(self.classes)} messages in the classes of sizes, {messages} in all",
                "run with pml_monitoring_enable 2, and give unchanged files",
            )

    def made(self) -> Profile:
        """Return the profile of this rank alone."""
        return joined([self])


def _sizes(classes: Sequence[int], nr_bytes: int) -> tuple[SizedCalls, ...]:
    """Return the messages with one size per class, all equally far between its ends in powers.

    The place is such that the bytes of all are those of the profile.
    """
    found = [(k, count) for k, count in enumerate(classes) if count and k]

    def size(k: int, place: float) -> float:
        return exp((k - 1 + place) * log(2))

    low, high = 0.0, 1.0
    for _ in range(_STEPS):
        place = (low + high) / 2
        below = sum(count * size(k, place) for k, count in found) < nr_bytes
        low, high = (place, high) if below else (low, place)
    empty = (SizedCalls(0.0, float(classes[0])),) if classes[0] else ()
    return (*empty, *(SizedCalls(size(k, low), float(count)) for k, count in found))


def joined(readers: Iterable[Monitoring]) -> Profile:
    """Return the profile of all ranks; raises LogError if one is missing or stands twice."""
    read = list(readers)
    by_rank: dict[int | None, Monitoring] = {}
    for one in read:
        if one.rank in by_rank:
            other = by_rank[one.rank].file
            raise LogError(f"{one.file}:1: rank {one.rank} is also in {other}, remove one of them")
        by_rank[one.rank] = one
    first = read[0]
    world = first.world or ()
    if len(read) != len(world):
        raise LogError(
            f"{first.file}:{first.line}: {len(read)} files of {len(world)} ranks, give the directory with "
            "the files of all ranks"
        )
    classes = [sum(numbers) for numbers in zip(*(one.classes for one in read), strict=True)]
    sums = {kind: [sum(one.sums[kind][i] for one in read) for i in (0, 1)] for kind in first.sums}
    nr_bytes = sums["E"][0] + sums["I"][0]
    calls = [CallUse(MESSAGES, float(sum(classes)), None, _sizes(classes, nr_bytes), 1)]
    for kind, call in (("S", "Put"), ("R", "Get")):
        size, count = sums[kind]
        if count:
            calls.append(
                CallUse(call, float(count), None, (SizedCalls(size / count, float(count)),), 1)
            )
    if sums["C"][1] and not sums["I"][1]:
        calls.append(CallUse("collectives without messages", float(sums["C"][1]), None, (), 1))
    remarks = ("the counts have no calls: messages of collectives are counted one by one",)
    return Profile(first.file, first.format, len(read), None, tuple(calls), remarks)
