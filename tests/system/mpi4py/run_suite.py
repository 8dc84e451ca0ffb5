# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: T201 - a command of its own
"""Runs mpi4py's own test suite on a cluster and compares what fails with exclusions.toml.

    python -m tests.system.mpi4py.run_suite --mpi mpich5 --ranks 2 --launch 'PREFIX' --log DIR

PREFIX starts a program on all ranks, for example `nearmetal run SPEC --mpi mpich5 -n 2 --`. A test
that neither ends nor lets another one end for --stall seconds is named, its job killed, and the
suite goes on behind it. Where the launcher lost a daemon of its own, which says nothing of the test
that ran, the suite goes on with that test; the third loss of a run is a failure. With --verify-exclusions only the listed tests run, each in a job of its
own, and each must fail; a stall is no failure but "unproven", save where the entry says that the test
races: that one is launched until it stalls. PREFIX then has to be the MPI's own
stack, the default one or the one that --stack names.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import selectors
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.system.mpi4py import exclusions as listed
from tests.system.mpi4py.events import Tally, module_of

ROOT = Path(__file__).resolve().parents[3]
SUITE = ROOT / "build/mpi4py/src/test"
PYTHON = ROOT / "build/venv/bin/python"
RANK_PROGRAM = Path(__file__).with_name("suite_rank.py")
LIBMPI = {
    "openmpi5": ROOT / "build/mpi/openmpi5/lib/libmpi.so.40",
    "mpich5": ROOT / "build/mpi/mpich5/lib/libmpi.so.12",
}
POINT_TO_POINT_AND_COLLECTIVES = r"test_(p2p|cco|msgspec|msgzero|pack|request|status|util_pkl5)"
MAX_LAUNCHES = 8
MAX_LOSSES = 2
RACE_LAUNCHES = 200
_LOST_DAEMON = b"PRTE has lost communication with a remote daemon"
_END_S = 5.0


@dataclass
class Job:
    """How to start the suite, and where its output goes."""

    launch: Sequence[str]
    nr_ranks: int
    log: Path
    stall_s: float
    env: dict[str, str] = field(default_factory=dict)
    suite_options: Sequence[str] = ()

    @property
    def logs(self) -> tuple[Path, Path]:
        """Where standard output and error go."""
        return self.log.with_suffix(".out"), self.log.with_suffix(".err")


@dataclass(frozen=True)
class End:
    """How a launch ended. `code`: None when it stalled and was killed."""

    code: int | None
    lost_daemon: bool = False
    """The launcher said so before it was killed."""

    @property
    def words(self) -> str:
        """Say it."""
        if self.lost_daemon:
            return "the launcher lost its daemon"
        return listed.HUNG if self.code is None else f"crashed (exit code {self.code})"


@dataclass
class Result:
    """The outcomes of all launches of one run."""

    tally: Tally = field(default_factory=Tally)
    stopped: dict[str, str] = field(default_factory=dict)
    """What a launch did not get past, and how that ended it."""
    losses: list[str] = field(default_factory=list)
    """Where the launcher lost its daemon, and the suite was run again."""
    launches: int = 0
    seconds: float = 0.0


def suite_modules(pattern: str = "") -> list[str]:
    """Return the suite's modules in the order in which unittest runs them."""
    names = sorted(path.name for path in SUITE.glob("test_*.py"))
    return [name.removesuffix(".py") for name in names if re.search(pattern, name)]


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a launcher, politely first, so that it can clean its nodes."""
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signum)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_END_S)
            break
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _lines_until_stall(
    process: subprocess.Popen[bytes], stall_s: float, tally: Tally, log: Path
) -> bool:
    """Feed the tally with the job's output; False when no test ended for stall_s seconds."""
    assert process.stdout is not None
    pending, last = b"", time.monotonic()
    with selectors.DefaultSelector() as selector, log.open("ab") as copy:
        selector.register(process.stdout, selectors.EVENT_READ)
        while time.monotonic() - last < stall_s:
            if not selector.select(timeout=1.0):
                continue
            chunk = os.read(process.stdout.fileno(), 65536)
            if not chunk:
                return True
            copy.write(chunk)
            copy.flush()
            *lines, pending = (pending + chunk).split(b"\n")
            for line in lines:
                if tally.feed(line.decode("utf-8", "replace"), time.monotonic()):
                    last = time.monotonic()
    return False


def _ended(process: subprocess.Popen[bytes], job: Job, tally: Tally) -> int | None:
    """Wait for the end of a launch; returns its exit code, None when it stalls."""
    try:
        ended = _lines_until_stall(process, job.stall_s, tally, job.logs[0])
        return process.wait(job.stall_s) if ended else None
    except subprocess.TimeoutExpired:
        return None


def launch_once(job: Job, tally: Tally, arguments: Iterable[str]) -> End:
    """Start the suite once and see how it ends; what stalls is killed."""
    argv = [*job.launch, str(PYTHON), str(RANK_PROGRAM), str(SUITE), *job.suite_options, *arguments]
    tally.next_launch()
    with job.logs[1].open("ab") as errors:
        errors.write(f"$ {shlex.join(argv)}\n".encode())
        errors.flush()
        before = {path: path.stat().st_size for path in job.logs if path.exists()}
        process = subprocess.Popen(
            argv,
            env={**os.environ, **job.env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
        )
        try:
            code = _ended(process, job, tally)
            # Read before what stalled is killed: that loses daemons, too.
            said = [path.read_bytes()[before.get(path, 0) :] for path in job.logs]
            return End(code, code != 0 and any(_LOST_DAEMON in words for words in said))
        finally:
            if process.poll() is None:
                _end(process)
            if process.stdout is not None:
                process.stdout.close()


def _culprit(tally: Tally, end: End) -> str:
    """Name the test that a launch did not get past, or say how it ended without one."""
    if tally.running:
        return tally.running[0]
    if end.lost_daemon:
        return tally.last_begun or "<no test>"
    return "<the job hung outside any test>" if end.code is None else f"<exit code {end.code}>"


def run_suite(job: Job, modules: Sequence[str], skip: Iterable[str]) -> Result:
    """Run the modules; what hangs or crashes is noted, left out, and the rest goes on."""
    result, left_out, todo = Result(), set(skip), list(modules)
    tally = result.tally
    begin = time.monotonic()
    while todo and result.launches < MAX_LAUNCHES:
        include = r"^(" + "|".join(todo) + r")\.py$"
        exclude = [word for test in sorted(left_out) for word in ("-x", test)]
        end = launch_once(job, tally, ["-i", include, *exclude])
        result.launches += 1
        complete = end.code is not None and tally.complete(job.nr_ranks)
        if complete and (end.code == 0 or (tally.failed and not end.lost_daemon)):
            break
        culprit = _culprit(tally, end)
        module = module_of(culprit)
        if end.lost_daemon and len(result.losses) < MAX_LOSSES:
            result.losses.append(culprit)
            if tally.last_begun:
                tally.forget_from(culprit)
        else:
            result.stopped[culprit] = end.words
            left_out.add(culprit)
            if complete or module not in todo:
                break
        todo = todo[todo.index(module) :] if module in todo else todo
    result.seconds = time.monotonic() - begin
    return result


def judge_alone(tally: Tally, end: End, nr_ranks: int) -> str:
    """Say what a launch of one listed test proved.

    A stall proves nothing: the machine may be slow, and the stall is not the failure that the
    entry tells of. Neither does a launcher's own failure, or a job that never came to the test.
    """
    if end.lost_daemon:
        return f"unproven: {end.words}"
    if tally.failed:
        return "fails"
    if end.code is None:
        return "unproven: it stalled"
    if not (tally.running or tally.outcomes):
        return f"unproven: it never began (exit code {end.code})"
    if tally.complete(nr_ranks):
        return "passes"
    return f"fails: it ended the job (exit code {end.code})"


def run_alone(job: Job, test: str) -> str:
    """Say what one launch of one listed test, or module, proved."""
    tally = Tally()
    return judge_alone(tally, launch_once(job, tally, [test]), job.nr_ranks)


def run_race(job: Job, test: str, launches: int = RACE_LAUNCHES) -> str:
    """Launch what hangs now and then until it does; here it is the stall that is the proof."""
    for nr in range(1, launches + 1):
        tally = Tally()
        end = launch_once(job, tally, [test])
        if end.code is None and tally.running and not tally.failed and not end.lost_daemon:
            return f"fails: {tally.running[0]} {end.words} in launch {nr}"
    return f"unproven: {launches} launches without a stall"


def verify_exclusions(job: Job, entries: Iterable[listed.Exclusion]) -> list[str]:
    """Run each listed test alone; return those that were not seen to fail there."""
    wrong = []
    for entry in entries:
        found = run_race(job, entry.test) if entry.race else run_alone(job, entry.test)
        print(f"{entry.test}: {found}", flush=True)
        if not found.startswith("fails"):
            wrong.append(entry.test)
    return wrong


def report(result: Result, verdict: listed.Verdict) -> str:
    """Say what a run showed."""
    tally = result.tally
    counts = f"{len(tally.outcomes)} tests, {len(tally.failed)} failed, {len(result.stopped)}"
    lines = [f"{counts} hung or crashed, {result.launches} launches, {result.seconds:.0f} s"]
    lines += [
        f"RUN AGAIN {test}: the launcher lost its daemon, which says nothing of the test"
        for test in result.losses
    ]
    for head, tests in (("NOT LISTED", verdict.unexpected), ("as listed", verdict.listed)):
        lines += [f"{head} {test}: {result.stopped.get(test, 'failed')}" for test in tests]
    lines += [f"listed, but passes: {test}" for test in verdict.obsolete]
    if verdict.damaged:
        lines.append(f"{tally.lost_events} events were lost: the outcome is not known")
    slow = sorted(tally.module_seconds().items(), key=lambda item: -item[1])[:6]
    lines.append("slowest: " + ", ".join(f"{name} {seconds:.1f} s" for name, seconds in slow))
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; 0 when nothing failed that is not listed."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False, description=__doc__.split("\n")[0] if __doc__ else None
    )
    parser.add_argument("--mpi", required=True, choices=sorted(LIBMPI))
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument(
        "--launch", required=True, help="command that starts a program on the ranks"
    )
    parser.add_argument("--log", type=Path, required=True, help="path stem of the output files")
    parser.add_argument("--modules", default="", help="regular expression; default: all of them")
    parser.add_argument("--stall", type=float, default=60.0, help="seconds without a finished test")
    parser.add_argument("--verify-exclusions", action="store_true")
    parser.add_argument("--stack", default="default", help="of the entries to verify")
    parser.add_argument("--no-exclusions", action="store_true", help="skip nothing")
    options = parser.parse_args(argv)
    job = Job(shlex.split(options.launch), options.ranks, options.log, options.stall)
    job.env["MPI4PY_LIBMPI"] = str(LIBMPI[options.mpi])
    job.log.parent.mkdir(parents=True, exist_ok=True)
    entries = listed.applying(listed.load(), options.mpi, options.ranks)
    if options.verify_exclusions:
        on_stack = [e for e in entries if e.stack == options.stack]
        return 1 if verify_exclusions(job, on_stack) else 0
    if options.no_exclusions:
        entries = []
    skip = {e.test for e in entries if e.skip}
    modules = [name for name in suite_modules(options.modules) if name not in skip]
    result = run_suite(job, modules, skip.difference(suite_modules()))
    verdict = listed.judge(result.tally, result.stopped, entries)
    print(report(result, verdict))
    return 0 if verdict.ok else 1


if __name__ == "__main__":
    sys.exit(main())
