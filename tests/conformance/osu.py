# SPDX-License-Identifier: Apache-2.0
"""Runs the OSU micro-benchmarks as a test: with validation of what arrived, for correctness only.

    python -m tests.conformance.osu --tree DIR --record FILE.jsonl --launch 'mpiexec -n {n}'

DIR is a built tree of version 7. Its programs below c/mpi are the tests, and their directories are
the suites. {n} is 2 for pt2pt, otherwise --ranks. A program that does not validate is
`notrun`. An interrupted run resumes; --again fail,timeout repeats these results. A test that
nearmetal did not carry is `unproven` (tests/conformance/attest.py).
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from tests.conformance.attest import Expected, add_arguments, attested, run_all
from tests.conformance.launch import Launcher, add_launch_arguments, launcher_of
from tests.conformance.outcomes import Outcome

SUITES = ("pt2pt", "collective")
"""The one-sided programs of version 7.4 do not validate."""

_ROW = re.compile(r"^\d+\s.*?(\S+)\s*$", re.MULTILINE)
_REFUSED = re.compile(r"^Invalid option \[-c\]", re.MULTILINE)
_VALIDATES = re.compile(r"^# Size.*\bValidation\b", re.MULTILINE)


def programs(tree: Path, suite: str) -> list[str]:
    """Return the sources of a suite, without their suffix, relative to the tree."""
    top = tree / "c" / "mpi" / suite
    sources = [path for path in top.rglob("osu_*.c") if path.parent.name != "utils"]
    return sorted(str(path.relative_to(tree).with_suffix("")) for path in sources)


def judge(code: int, output: str) -> tuple[str, str]:
    """Judge by the validation of every size; returns result and reason."""
    said = " | ".join(output.split("\n"))[-300:]
    found = _ROW.findall(output)
    if _REFUSED.search(output) or (found and not _VALIDATES.search(output)):
        return "notrun", "the program does not validate"
    if code or not found or set(found) != {"Pass"}:
        return "fail", f"exit code {code}; {said}"
    return "pass", f"{len(found)} sizes"


def try_one(
    launcher: Launcher, tree: Path, test: tuple[str, str], words: Sequence[str], ranks: int
) -> Outcome:
    """Run one program, (suite, name), with these words after it."""
    suite, name = test
    program = tree / name
    if not os.access(program, os.X_OK):
        return Outcome(suite, name, "missing", 0, f"{program} is not built")
    done = launcher.run([str(program), *words], ranks, tree, {})
    result, note = ("timeout", "") if done.code is None else judge(done.code, done.output)
    expected = Expected(launcher.provider, ranks, messages=True)
    return attested(Outcome(suite, name, result, done.seconds, note), done.proof, expected)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; 0 if every test passed or does not apply, and the provider is proven."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False, description=__doc__.split("\n")[0] if __doc__ else None
    )
    add_arguments(parser, SUITES)
    add_launch_arguments(parser)
    parser.add_argument("--ranks", type=int, default=4, help="of collectives")
    parser.add_argument("--options", default="-c -i 20 -x 2", help="of the programs")
    options = parser.parse_args(argv)
    tree: Path = options.tree.resolve()
    launcher = launcher_of(options)
    words = options.options.split()

    def attempt(suite: str, name: str) -> Outcome:
        ranks = 2 if suite == "pt2pt" else options.ranks
        return try_one(launcher, tree, (suite, name), words, ranks)

    found = [(suite, name) for suite in options.suites.split(",") for name in programs(tree, suite)]
    return run_all(options, [(*test, partial(attempt, *test)) for test in found])


if __name__ == "__main__":
    sys.exit(main())
