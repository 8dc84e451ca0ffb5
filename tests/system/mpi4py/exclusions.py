# SPDX-License-Identifier: Apache-2.0
"""The tests that a stock MPI itself does not pass, and how a run is judged by them."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.system.mpi4py.events import Tally, module_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

FILE = Path(__file__).with_name("exclusions.toml")
HUNG = "hung"
_OPTIONAL = {"skip", "stack", "race"}
_KEYS = {"mpi", "test", "ranks", "reason", "also_fails_on_stock"} | _OPTIONAL


@dataclass(frozen=True)
class Exclusion:
    """One test, or one module, that may fail. `skip`: it must not start: it hangs or crashes."""

    mpi: str
    test: str
    ranks: tuple[int, ...]
    reason: str
    skip: bool = False
    stack: str = "default"
    """the MPI's own stack on which it fails, too: the default one, or the one named"""
    race: bool = False
    """it hangs now and then: it runs, and nothing but a hang is forgiven"""

    def covers(self, test: str) -> bool:
        """Is this about the test?"""
        return self.test in {test, module_of(test)}


def load(path: Path = FILE) -> list[Exclusion]:
    """Read the list; raises ValueError for an entry that does not say all it must."""
    exclusions = []
    for entry in tomllib.loads(path.read_text(encoding="utf-8")).get("exclusion", []):
        unknown, missing = set(entry) - _KEYS, _KEYS - _OPTIONAL - set(entry)
        if unknown or missing:
            msg = f"{path.name}: {entry}: unknown {sorted(unknown)}, missing {sorted(missing)}"
            raise ValueError(msg)
        if entry["also_fails_on_stock"] is not True or not entry["reason"].strip():
            msg = f"{path.name}: {entry['test']}: only what also fails on stock, and says why"
            raise ValueError(msg)
        exclusions.append(
            Exclusion(
                entry["mpi"],
                entry["test"],
                tuple(entry["ranks"]),
                entry["reason"],
                bool(entry.get("skip", False)),
                str(entry.get("stack", "default")),
                bool(entry.get("race", False)),
            )
        )
    return exclusions


def applying(exclusions: list[Exclusion], mpi: str, nr_ranks: int) -> list[Exclusion]:
    """Return those for one MPI and number of ranks."""
    return [e for e in exclusions if e.mpi == mpi and nr_ranks in e.ranks]


@dataclass(frozen=True)
class Verdict:
    """How a run compares with the list."""

    unexpected: tuple[str, ...]
    """failed, hung or crashed, not listed: the run fails"""
    listed: tuple[str, ...]
    """failed as listed"""
    obsolete: tuple[str, ...]
    """listed, ran and passed: the entry may go"""
    damaged: bool
    """events were lost, so the outcome is not known"""

    @property
    def ok(self) -> bool:
        """Nothing failed that is not listed, and everything was seen."""
        return not self.unexpected and not self.damaged


def _named(tests: Iterable[str], exclusions: list[Exclusion]) -> set[str]:
    return {test for test in tests if any(e.covers(test) for e in exclusions)}


def judge(tally: Tally, stopped: Mapping[str, str], exclusions: list[Exclusion]) -> Verdict:
    """Compare what failed, or stopped a launch and how, with what may do so."""
    failed = tally.failed.union(stopped)
    certain = [e for e in exclusions if not e.race]
    hung = {test for test, words in stopped.items() if words == HUNG} - tally.failed
    listed = _named(failed, certain) | _named(hung, [e for e in exclusions if e.race])
    return Verdict(
        unexpected=tuple(sorted(failed - listed)),
        listed=tuple(sorted(listed)),
        obsolete=tuple(sorted(_named(tally.passed - failed, certain))),
        damaged=tally.lost_events > 0,
    )
