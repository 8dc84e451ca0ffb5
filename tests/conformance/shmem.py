# SPDX-License-Identifier: Apache-2.0
"""Runs the tests of Sandia OpenSHMEM, from a tree where they are built, under any launcher.

    python -m tests.conformance.shmem --tree DIR --record FILE.jsonl --launch 'mpiexec -n {n}'

DIR is the directory `test` of the built tests. The Makefiles of its directories list the programs,
and a program passes if its exit code is 0. {n} is --ranks. An interrupted run resumes; --again
fail,timeout repeats these results. A test that nearmetal did not carry is `unproven`
(tests/conformance/attest.py).
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from tests.conformance.attest import Expected, add_arguments, attested, run_all
from tests.conformance.launch import Launcher, add_launch_arguments, launcher_of
from tests.conformance.outcomes import Outcome

SUITES = ("unit", "shmemx", "spec-example")
_SKIPPED = 77
"""Exit code by which a program says that it does not apply, as automake has it."""

_SILENT = frozenset({"global_exit"})
"""Programs that end without a message."""

_PRINT = "nearmetal-tests: ; @echo $(TESTS)"


def programs(tree: Path, suite: str) -> list[str]:
    """Return the tests that the Makefile of a suite lists. Raises OSError, CalledProcessError."""
    argv = ["make", "--silent", "--eval", _PRINT, "nearmetal-tests"]
    done = subprocess.run(argv, cwd=tree / suite, check=True, capture_output=True, text=True)
    return done.stdout.split()


def try_one(launcher: Launcher, tree: Path, ranks: int, suite: str, name: str) -> Outcome:
    """Run one program in its directory."""
    program = tree / suite / name
    if not os.access(program, os.X_OK):
        return Outcome(suite, name, "missing", 0, f"{program} is not built")
    done = launcher.run([str(program)], ranks, program.parent, {})
    if done.code is None:
        result, note = "timeout", ""
    elif done.code in {0, _SKIPPED}:
        result, note = ("pass" if done.code == 0 else "notrun"), ""
    else:
        said = " | ".join(done.output.strip().splitlines())[-300:]
        result, note = "fail", f"exit code {done.code}; {said}"
    messages = ranks > 1 and name not in _SILENT
    expected = Expected(launcher.provider, ranks, messages)
    return attested(Outcome(suite, name, result, done.seconds, note), done.proof, expected)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; 0 if every test passed or does not apply, and the provider is proven."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False, description=__doc__.split("\n")[0] if __doc__ else None
    )
    add_arguments(parser, SUITES)
    add_launch_arguments(parser)
    parser.add_argument("--ranks", type=int, default=2)
    options = parser.parse_args(argv)
    tree: Path = options.tree.resolve()
    attempt = partial(try_one, launcher_of(options), tree, options.ranks)
    try:
        found = [(s, name) for s in options.suites.split(",") for name in programs(tree, s)]
    except (OSError, subprocess.CalledProcessError) as error:
        parser.exit(1, f"error: {error}: --tree must be a built directory `test`\n")
    return run_all(options, [(*test, partial(attempt, *test)) for test in found])


if __name__ == "__main__":
    sys.exit(main())
