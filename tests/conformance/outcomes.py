# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: T201 - a command of its own
"""Outcomes of foreign conformance tests: one JSON line each, so that a run can be resumed.

    python -m tests.conformance.outcomes REFERENCE.jsonl OTHER.jsonl...

prints a Markdown table of counts per suite, then every test whose outcome is not the reference's.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

RESULTS = ("pass", "fail", "timeout", "notrun")
_END_S = 3.0


@dataclass(frozen=True)
class Outcome:
    """How one test went."""

    suite: str
    test: str
    result: str
    seconds: float
    note: str = ""

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
        except (json.JSONDecodeError, TypeError):
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
    return "\n".join(lines)


if __name__ == "__main__":
    print(compare({Path(arg).stem: load(Path(arg)) for arg in sys.argv[1:]}))
