# SPDX-License-Identifier: Apache-2.0
"""Base of the readers of profiles: one pass over the lines, with the checks of all readers."""

from __future__ import annotations

from abc import ABC, abstractmethod

from nearmetal.evidence.parse.reader import Reader
from nearmetal.evidence.profiles.calls import CallUse, Profile, SizedCalls


class ProfileReader(Reader, ABC):
    """One pass over one profile. Every method that reads raises LogError for damaged input."""

    def __init__(self, text: str, file: str) -> None:
        super().__init__(text, file)
        self.calls: list[CallUse] = []

    def run(self) -> None:
        """Read all lines, then check the whole."""
        for line, text in enumerate(self.lines, 1):
            self.line = line
            self.take(text)
        self.end()

    @abstractmethod
    def made(self) -> Profile:
        """Return the profile, after the last line."""

    def use(
        self,
        call: str,
        count: float,
        seconds: float | None,
        messages: tuple[SizedCalls, ...] = (),
        line: int | None = None,
    ) -> None:
        """Keep a call."""
        self.count()
        self.calls.append(
            CallUse(call, count, seconds, messages, self.line if line is None else line)
        )


def spread(call: str, size: float | None, ranks: int | None) -> float | None:
    """Return the size for each pair of ranks of a call whose profile has the sum of all pairs."""
    if call.removeprefix("I").lower() in {"alltoallv", "alltoallw", "scatterv"}:
        return size / ranks if size is not None and ranks else None
    return size
