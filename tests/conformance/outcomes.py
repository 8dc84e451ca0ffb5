# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: T201 - a command of its own
"""Outcomes of foreign conformance tests: one JSON line each, so that a run can be resumed.

    python -m tests.conformance.outcomes REFERENCE.jsonl OTHER.jsonl...

prints a Markdown table of counts per suite, then every test whose outcome is not the reference's,
then the builds of nearmetal that each record proves.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

RESULTS = ("pass", "fail", "timeout", "notrun", "missing", "unproven")
"""notrun: the test says that it cannot run; missing: not built; unproven: not by the provider."""

BAD = ("fail", "timeout", "missing", "unproven")
_END_S = 3.0
_SHORT = 12


@dataclass(frozen=True)
class Outcome:
    """How one test went."""

    suite: str
    test: str
    result: str
    seconds: float
    note: str = ""
    provider: str = ""
    """SHA-256 of the build of nearmetal that the test's processes loaded."""
    endpoints: int = 0
    sent: dict[str, int] = field(default_factory=dict)
    """Messages that nearmetal sent, by channel."""
    accessed: dict[str, int] = field(default_factory=dict)
    """Puts, gets and atomics on other processes, by way."""

    def __post_init__(self) -> None:
        if self.result not in RESULTS:
            raise ValueError(f"{self.test}: result {self.result!r} is none of {RESULTS}")


class Record:
    """The outcomes of one run, in a file that grows by a line per test."""

    def __init__(self, path: Path, again: Sequence[str] = ()) -> None:
        self.path = path
        self.outcomes = {key: o for key, o in load(path).items() if o.result not in again}

    def add(self, outcome: Outcome) -> None:
        """Remember and store one outcome; the last line of a test counts."""
        self.outcomes[outcome.suite, outcome.test] = outcome
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(outcome)) + "\n")
        words = f"{outcome.result:8}{outcome.seconds:6.1f} s  {outcome.suite}: {outcome.test}"
        print(f"{words}  {outcome.note}".rstrip(), flush=True)


def load(path: Path) -> dict[tuple[str, str], Outcome]:
    """Read a record; empty when there is none. A line cut short by a kill is left out."""
    found: dict[tuple[str, str], Outcome] = {}
    if not path.exists():
        return found
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            outcome = Outcome(**json.loads(line))
        except (json.JSONDecodeError, TypeError, ValueError):
            continue
        found[outcome.suite, outcome.test] = outcome
    return found


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process and all of its group."""
    for signum in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, signum)
            process.wait(_END_S)
        except ProcessLookupError:
            break
        except subprocess.TimeoutExpired:
            continue
    process.wait()


def counts(outcomes: Mapping[tuple[str, str], Outcome], suite: str) -> Counter[str]:
    """Count the results of one suite."""
    return Counter(o.result for (s, _), o in outcomes.items() if s == suite)


def builds(outcomes: Iterable[Outcome]) -> Counter[str]:
    """Count the tests of each build of nearmetal."""
    return Counter(outcome.provider for outcome in outcomes if outcome.provider)


def shortfalls(outcomes: Sequence[Outcome], suites: Sequence[str], *, ours: bool) -> list[str]:
    """Return what keeps the outcomes of a run from being a result, in words."""
    found = []
    ran = Counter(o.suite for o in outcomes if o.result not in {"notrun", "missing"})
    missing = sum(o.result == "missing" for o in outcomes)
    if not ran:
        found.append(f"no test ran; {missing} of {len(outcomes)} are not built")
    else:
        found += [f"no test of {suite} ran" for suite in suites if not ran[suite]]
    if ours:
        bare = sum(o.result in {"pass", "notrun"} and not o.provider for o in outcomes)
        if bare:
            found.append(f"{bare} outcomes have no proof: start a new record")
        counted = builds(outcomes)
        if len(counted) > 1:
            words = ", ".join(f"{nr} by {name[:_SHORT]}" for name, nr in counted.items())
            found.append(f"more than one build of nearmetal: {words}: start a new record")
    return found


def finish(outcomes: Sequence[Outcome], suites: Sequence[str], *, ours: bool) -> int:
    """Print the counts, and what is wrong with the run; return the exit code."""
    numbers = Counter(outcome.result for outcome in outcomes)
    words = ", ".join(f"{numbers[result]} {result}" for result in RESULTS if numbers[result])
    print(f"{len(outcomes)} tests: {words or 'none'}")
    for name, number in builds(outcomes).items():
        print(f"nearmetal {name}: {number} tests")
    wrong = shortfalls(outcomes, suites, ours=ours)
    for line in wrong:
        print(f"error: {line}")
    return 1 if wrong or any(numbers[result] for result in BAD) else 0


def compare(runs: Mapping[str, Mapping[tuple[str, str], Outcome]]) -> str:
    """Return the counts of every run and what differs from the first one, in Markdown."""
    names = list(runs)
    suites = list(dict.fromkeys(suite for run in runs.values() for suite, _ in run))
    lines = ["| suite | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    for suite in suites:
        cells = [counts(runs[name], suite) for name in names]
        texts = [", ".join(f"{c[r]} {r}" for r in RESULTS if c[r]) or "-" for c in cells]
        lines.append(f"| {suite} | " + " | ".join(texts) + " |")
    lines.append("")
    for key in dict.fromkeys(key for run in runs.values() for key in run):
        results = [run[key].result if key in run else "-" for run in runs.values()]
        if len(set(results)) > 1:
            lines.append(f"* {key[0]}: `{key[1]}`: " + ", ".join(results))
    for name, run in runs.items():
        lines += [f"* {name}: nearmetal {b}, {nr} tests" for b, nr in builds(run.values()).items()]
    return "\n".join(lines)


if __name__ == "__main__":
    print(compare({Path(arg).stem: load(Path(arg)) for arg in sys.argv[1:]}))
