# SPDX-License-Identifier: Apache-2.0
"""Runs UCX's gtest suite, from a tree where it is built, over a transport of UCX.

    python -m tests.conformance.ucx --tree DIR --suites nearmetal,nearcma --record FILE.jsonl

DIR is a source tree of UCX in which `test/gtest/gtest` is built. A suite is an instance of its
parameterized tests, which is the part of a name before the first slash. A process runs up to 40
cases of one class, within --timeout; after a case that ends it, another one runs the rest. An
interrupted run resumes; --again fail,timeout repeats these results. A case in a process without the
library of nearmetal is `unproven` (tests/conformance/attest.py). With --provider other than
nearmetal, the suites are a reference that must not use it.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path

from tests.conformance.attest import Expected, add_arguments, attested, place_of, run_all
from tests.conformance.launch import Done, Launcher
from tests.conformance.outcomes import Outcome

SUITES = ("nearmetal", "nearcma", "ucp_nearmetal")
_MOST = 40
"""Cases of one process."""

_BEGIN = re.compile(r"^.*?\[ RUN      \] ([^\s,]+).*\n", re.MULTILINE)
_END = re.compile(r"^.*?\[(       OK |  FAILED  )\] (\S+?)(?:,.*)? \((\d+) ms\)", re.MULTILINE)
_SKIPPED = re.compile(r"\[ +SKIP \] *(.*)$", re.MULTILINE)
_FAILURE = re.compile(r"^.*(?:: Failure|Assertion|Fatal|Caught signal).*\n?.*", re.MULTILINE)


def cases(listed: str) -> Iterator[tuple[str, str]]:
    """Yield suite and name of each case that --gtest_list_tests names."""
    group = ""
    for line in listed.splitlines():
        words = line.split("#")[0].rstrip()
        if words.startswith("  "):
            suite, _, rest = group.partition("/")
            yield suite, f"{rest}{words.strip()}"
        else:
            group = words


def kind(case: tuple[str, str]) -> tuple[str, str]:
    """Return suite and class of a case."""
    return case[0], case[1].partition(".")[0]


def judge(text: str, code: int | None) -> tuple[str, float, str]:
    """Return result, seconds and note of a case, from what was printed since its begin.

    CODE is that of its process, None if the time limit ended it.
    """
    end = _END.search(text)
    skipped = _SKIPPED.search(text)
    if end and end[1].strip() == "OK":
        return ("notrun" if skipped else "pass"), int(end[3]) / 1000, skipped[1] if skipped else ""
    if not end and code is None:
        return "timeout", 0, ""
    found = _FAILURE.search(text)
    said = " | ".join((found[0] if found else text[-200:]).split("\n"))[:300]
    seconds = int(end[3]) / 1000 if end else 0
    return "fail", seconds, said if end else f"ended its process, exit code {code}; {said}"


class Batch:
    """Cases of one class; asking for the first runs all, in as few processes as they allow."""

    def __init__(
        self, launcher: Launcher, program: Path, log: Path, found: Sequence[tuple[str, str]]
    ) -> None:
        self._launcher, self._program, self._log = launcher, program, log
        self._found = list(found)
        self._ready: dict[tuple[str, str], Outcome] = {}

    def outcome(self, suite: str, name: str) -> Outcome:
        """Return the outcome of a case."""
        if (suite, name) not in self._ready:
            first = self._found.index((suite, name))
            self._run(self._found[first : first + _MOST])
        return self._ready[suite, name]

    def _run(self, wanted: Sequence[tuple[str, str]]) -> None:
        """Run cases in one process. Some may be left; the first is not."""
        chosen = ":".join("/".join(case) for case in wanted)
        words = [str(self._program), f"--gtest_filter={chosen}"]
        done = self._launcher.run(words, 1, self._program.parent, {"UCX_HANDLE_ERRORS": "bt"})
        begins = list(_BEGIN.finditer(done.output))
        ends = [*(begin.start() for begin in begins), len(done.output)][1:]
        for begin, end in zip(begins, ends, strict=True):
            suite, _, name = begin[1].partition("/")
            self._add(suite, name, done.output[begin.end() : end], done)
        if wanted[0] not in self._ready:
            self._add(*wanted[0], done.output, done)

    def _add(self, suite: str, name: str, text: str, done: Done) -> None:
        result, seconds, note = judge(text, done.code)
        if result in {"fail", "timeout"}:
            (self._log / re.sub(r"[^\w.-]+", "_", f"{suite}.{name}")).write_text(text)
        outcome = Outcome(suite, name, result, seconds, note)
        expected = Expected(self._launcher.provider, 0, messages=False)
        self._ready[suite, name] = attested(outcome, done.proof, expected)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; 0 if every case passed or does not apply, and the library is proven."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False, description=__doc__.split("\n")[0] if __doc__ else None
    )
    add_arguments(parser, SUITES)
    options = parser.parse_args(argv)
    program = options.tree.resolve() / "test/gtest/gtest"
    log = options.record.with_suffix(".log")
    log.mkdir(parents=True, exist_ok=True)
    launcher = Launcher((), "", options.provider, place_of(options), options.timeout)
    suites = options.suites.split(",")
    try:
        done = subprocess.run(
            [str(program), "--gtest_list_tests"], check=True, capture_output=True, text=True
        )
    except (OSError, subprocess.CalledProcessError) as error:
        parser.exit(1, f"error: {error}: --tree must be a tree of UCX with a built test/gtest\n")
    listed = [case for case in cases(done.stdout) if case[0] in suites]
    found = [case for case in listed if re.search(options.only, case[1])]
    tests = []
    for _, group in groupby(found, kind):
        members = list(group)
        attempt = Batch(launcher, program, log, members).outcome
        tests += [(*case, partial(attempt, *case)) for case in members]
    return run_all(options, tests)


if __name__ == "__main__":
    sys.exit(main())
