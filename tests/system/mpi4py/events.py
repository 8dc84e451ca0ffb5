# SPDX-License-Identifier: Apache-2.0
"""What the ranks said: reads the events of suite_rank.py and keeps the outcome of every test."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_EVENT = re.compile(r"@suite (\d+) (\d+) (start|ok|skip|fail|error|expected|unexpected|done) (\S+)")
_BAD = frozenset({"fail", "error", "unexpected"})


def module_of(test: str) -> str:
    """Return the module of a test id; ids of failed set-ups look like `setUpClass(mod.Class)`."""
    return test.rpartition("(")[2].split(".", 1)[0]


@dataclass
class RankState:
    """How far one rank has come."""

    next_number: int = 0
    running: str | None = None
    done: bool = False


@dataclass
class Tally:
    """The outcomes of one or several launches of the suite; a failure stays, whatever follows."""

    outcomes: dict[str, dict[int, str]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    lost_events: int = 0
    ranks: dict[int, RankState] = field(default_factory=dict)
    _started: dict[str, float] = field(default_factory=dict)

    def feed(self, line: str, now_s: float) -> bool:
        """Take one line of output; True if it was progress. Foreign text is ignored."""
        match = _EVENT.search(line)
        if match is None:
            return False
        rank, number, what, name = int(match[1]), int(match[2]), match[3], match[4]
        state = self.ranks.setdefault(rank, RankState())
        self.lost_events += max(0, number - state.next_number)
        state.next_number = number + 1
        if what == "done":
            state.done = True
        elif what == "start":
            state.running = name
            self._started.setdefault(name, now_s)
        else:
            state.running = None
            by_rank = self.outcomes.setdefault(name, {})
            if by_rank.get(rank) not in _BAD:
                by_rank[rank] = what
            self.seconds[name] = now_s - self._started.get(name, now_s)
        return True

    def next_launch(self) -> None:
        """Forget how far the ranks came; keep the outcomes."""
        self.ranks = {}
        self._started = {}

    def forget_from(self, test: str) -> None:
        """Forget the outcomes of a test of this launch and of those that began after it."""
        begun = list(self._started)
        for name in begun[begun.index(test) :]:
            self.outcomes.pop(name, None)
            self.seconds.pop(name, None)

    @property
    def last_begun(self) -> str | None:
        """The test of this launch that began last."""
        return next(reversed(self._started), None)

    @property
    def running(self) -> list[str]:
        """The tests that have begun and not ended on some rank, the earliest first."""
        open_tests = {state.running for state in self.ranks.values() if state.running}
        return [test for test in self._started if test in open_tests]

    def complete(self, nr_ranks: int) -> bool:
        """Did every rank of this launch reach the end of the suite?"""
        return len(self.ranks) == nr_ranks and all(state.done for state in self.ranks.values())

    @property
    def failed(self) -> set[str]:
        """The tests that failed on at least one rank."""
        return {t for t, by_rank in self.outcomes.items() if _BAD & set(by_rank.values())}

    @property
    def passed(self) -> set[str]:
        """The tests that ran on at least one rank and failed on none."""
        return {t for t, by_rank in self.outcomes.items() if "ok" in by_rank.values()} - self.failed

    def module_seconds(self) -> dict[str, float]:
        """The time each module took."""
        totals: dict[str, float] = {}
        for test, seconds in self.seconds.items():
            totals[module_of(test)] = totals.get(module_of(test), 0.0) + seconds
        return totals
