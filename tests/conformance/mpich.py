# SPDX-License-Identifier: Apache-2.0
"""Runs MPICH's own test suite, from a tree where it is built, under any launcher.

    python -m tests.conformance.mpich --tree DIR --record FILE.jsonl --launch 'mpiexec -n {n}'

DIR is a built test/mpi. The testlist files of its directories contain the tests, and how each is
judged. {n} is the number of ranks, at most --max-ranks. Variables of a test are put into the
environment, or given to a launcher that has an option for them (--env-option=--env). An interrupted
run resumes; --again fail,timeout repeats these results. A test that nearmetal did not carry is
`unproven` (tests/conformance/attest.py).
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.conformance.attest import Expected, add_arguments, attested, run_all
from tests.conformance.launch import Launcher, add_launch_arguments, launcher_of
from tests.conformance.outcomes import Outcome

SUITES = ("pt2pt", "comm", "datatype", "coll", "rma")
_NO_ERRORS = re.compile(r"^\s*No [Ee]rrors\s*$")
_SKIPPED = re.compile(r"^\s*Test Skipped\s*$", re.MULTILINE)
_WARNING = re.compile(r"^(MPICH: |WARNING: |(Abort.*)?application called MPI_Abort)")


@dataclass(frozen=True)
class Entry:
    """One line of a testlist."""

    program: str
    ranks: int
    args: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    judge: str = "TestNormal"
    xfail: bool = False

    @property
    def name(self) -> str:
        """Return what tells it from the others of its directory."""
        return " ".join((self.program, str(self.ranks), *self.args, *self.env))


def read_line(line: str) -> Entry | None:
    """Read a line of a testlist; None for comments and tests of accelerators."""
    words = line.split("#", 1)[0].split()
    if not words or words[0].startswith("@"):
        return None
    ranks = int(words[1]) if len(words) > 1 and words[1].isdigit() else 2
    options = [word.partition("=")[::2] for word in words[1:] if "=" in word]
    keys = [key for key, _ in options]
    if "hasgpu" in keys or "mem" in keys:
        return None
    values = {key: value for key, value in options if key not in {"arg", "env"}}
    return Entry(
        words[0],
        ranks,
        tuple(value for key, value in options if key == "arg"),
        tuple(value for key, value in options if key == "env"),
        values.get("resultTest", "TestNormal"),
        "xfail" in values,
    )


def judge(entry: Entry, code: int, output: str) -> tuple[str, str]:
    """Judge by the rule that the testlist names; returns result and the reason of a failure."""
    if _SKIPPED.search(output):
        return "notrun", ""
    if entry.judge == "TestErrFatal":
        return ("pass", "") if code else ("fail", "exit code 0, a fatal error was expected")
    lines = [line for line in output.splitlines() if line]
    said = any(_NO_ERRORS.match(line) for line in lines)
    stray = [line for line in lines if not _NO_ERRORS.match(line)]
    if entry.judge == "TestAllowWarnings":
        stray = [line for line in stray if not _WARNING.match(line)]
    if entry.judge in {"TestStatus", "TestBench"}:
        said, stray = True, []
    if entry.judge == "TestStatusNoErrors":
        return ("pass", "") if code and said else ("fail", f"exit code {code}")
    if code or not said or stray:
        return "fail", f"exit code {code}; {' | '.join(stray)[:300]}"
    return "pass", ""


def entries(tree: Path, suite: str, *, first: bool) -> list[Entry]:
    """Return the tests of a suite; `first`: each program once. Raises OSError."""
    text = (tree / suite / "testlist").read_text(encoding="utf-8")
    found = [entry for entry in map(read_line, text.splitlines()) if entry and not entry.xfail]
    programs: dict[str, Entry] = {}
    for entry in found:
        programs.setdefault(entry.program, entry)
    return list(programs.values()) if first else found


def try_one(suite: str, entry: Entry, launcher: Launcher, tree: Path, ranks: int) -> Outcome:
    """Run one test in its directory."""
    program = tree / suite / entry.program
    if not program.is_file():
        return Outcome(suite, entry.name, "missing", 0, f"{program} is not built")
    settings = dict(pair.split("=", 1) for pair in entry.env)
    done = launcher.run([str(program), *entry.args], ranks, program.parent, settings)
    result, note = ("timeout", "") if done.code is None else judge(entry, done.code, done.output)
    if ranks < entry.ranks:
        note = f"on {ranks} ranks; {note}"
    expected = Expected(launcher.provider, ranks, messages=ranks > 1)
    return attested(Outcome(suite, entry.name, result, done.seconds, note), done.proof, expected)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; 0 if every test passed or does not apply, and the provider is proven."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False, description=__doc__.split("\n")[0] if __doc__ else None
    )
    add_arguments(parser, SUITES)
    add_launch_arguments(parser)
    parser.add_argument("--first", action="store_true", help="each program once, as listed first")
    parser.add_argument("--max-ranks", type=int, default=4)
    options = parser.parse_args(argv)
    tree: Path = options.tree.resolve()
    launcher = launcher_of(options)

    def attempt(suite: str, entry: Entry) -> Outcome:
        ranks = min(entry.ranks, options.max_ranks)
        return try_one(suite, entry, launcher, tree, ranks)

    try:
        found = [
            (suite, entry)
            for suite in options.suites.split(",")
            for entry in entries(tree, suite, first=options.first)
        ]
    except OSError as error:
        parser.exit(1, f"error: {error}: --tree must be a configured and built test/mpi\n")
    tests = [(suite, entry.name, partial(attempt, suite, entry)) for suite, entry in found]
    return run_all(options, tests)


if __name__ == "__main__":
    sys.exit(main())
