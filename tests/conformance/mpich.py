# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: T201 - a command of its own
"""Runs MPICH's own test suite, from a tree where it is built, under any launcher.

    python -m tests.conformance.mpich --tree DIR --record FILE.jsonl --launch 'mpiexec -n {n}'

DIR is a built test/mpi. What there is to run, and how it is judged, stands in the testlist files
of its directories. {n} is the number of ranks, at most --max-ranks. Variables of a test are put
into the environment, or given to a launcher that has an option for them (--env-option=--env). A run
that was cut short goes on where it was; --again fail,timeout repeats what did not pass.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.conformance.outcomes import Outcome, Record, end

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


@dataclass(frozen=True)
class Start:
    """How one test is started."""

    command: Sequence[str]
    directory: Path
    env: dict[str, str]


def try_one(suite: str, entry: Entry, start: Start, timeout_s: float) -> Outcome:
    """Run one test in its directory."""
    begin = time.monotonic()
    process = subprocess.Popen(
        start.command,
        cwd=start.directory,
        env=start.env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=timeout_s)
        result, note = judge(entry, process.returncode, output.decode("utf-8", "replace"))
    except subprocess.TimeoutExpired:
        result, note = "timeout", ""
    finally:
        if process.poll() is None:
            end(process)
        if process.stdout is not None:
            process.stdout.close()
    return Outcome(suite, entry.name, result, round(time.monotonic() - begin, 1), note)


def command_of(
    entry: Entry, launch: Sequence[str], ranks: int, env_option: str, program: Path
) -> list[str]:
    """Return the command that starts one test."""
    words = [word.replace("{n}", str(ranks)) for word in launch]
    cut = words.index("--") if "--" in words else len(words)
    given = [word for pair in entry.env for word in (env_option, pair)] if env_option else []
    return [*words[:cut], *given, *words[cut:], str(program), *entry.args]


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; 0 when nothing failed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--tree", type=Path, required=True)
    parser.add_argument("--record", type=Path, required=True)
    parser.add_argument("--launch", required=True, help="launcher, with {n} for the ranks")
    parser.add_argument("--env-option", default="", help="the launcher's option for K=V")
    parser.add_argument("--suites", default=",".join(SUITES))
    parser.add_argument("--only", default="", help="regular expression")
    parser.add_argument("--again", default="", help="results to repeat, comma list")
    parser.add_argument("--first", action="store_true", help="each program once, as listed first")
    parser.add_argument("--max-ranks", type=int, default=4)
    parser.add_argument("--timeout", type=float, default=90, help="seconds per test")
    options = parser.parse_args(argv)
    tree: Path = options.tree.resolve()
    options.record.parent.mkdir(parents=True, exist_ok=True)
    record = Record(options.record, [r for r in options.again.split(",") if r])
    for suite in options.suites.split(","):
        seen: set[str] = set()
        for line in (tree / suite / "testlist").read_text(encoding="utf-8").splitlines():
            entry = read_line(line)
            if entry is None or entry.xfail or (options.first and entry.program in seen):
                continue
            seen.add(entry.program)
            if (suite, entry.name) in record.outcomes:
                continue
            program = tree / suite / entry.program
            if not re.search(options.only, entry.name):
                continue
            if not program.is_file():
                record.add(Outcome(suite, entry.name, "notrun", 0, "not built"))
                continue
            command = command_of(
                entry,
                shlex.split(options.launch),
                min(entry.ranks, options.max_ranks),
                options.env_option,
                program,
            )
            env = dict(os.environ)
            if not options.env_option:
                env |= dict(pair.split("=", 1) for pair in entry.env)
            start = Start(command, program.parent, env)
            record.add(try_one(suite, entry, start, options.timeout))
    bad = [o for o in record.outcomes.values() if o.result in {"fail", "timeout"}]
    print(f"{len(record.outcomes)} tests, {len(bad)} failed")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
