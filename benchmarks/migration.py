# SPDX-License-Identifier: Apache-2.0
"""Measure what a move of a machine costs a job that talks and computes.

    python -m benchmarks.migration SPEC NODE --to HOST --back HOST --output DIR

The cluster is up, and NODE is not the first node, whose rank measures. Four jobs of
`mpi/mpi_moved.c` do the same work: a block of rounds of messages, a computation, and another block.
NODE begins at the host of --back and goes to and fro, so each host should have another node: then
the work is the same in both directions.

    no migration  nothing moves
    PE            NODE moves when the computation begins; the program makes progress itself
    MT worst      NODE moves when the first block begins, so nothing overlaps; with a thread
    MT typical    NODE moves when the computation begins; with a thread (NEARMETAL_MOVE_THREAD=on)

DIR gets moves.json and report.html: the time of each action, the wall times, the longest gap
between two messages of each pair, and the bandwidth over time. A short job first finds the work
that takes --seconds in each of the three phases, which should be longer than a move. Each job has
one launch, so differences of a few percent mean nothing.

Another way to move is a command of --by, which gets the host as its last word: a script that takes
a node of `backend: local` from one segment to another one, for example. Then moves.json has no
actions.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

from nearmetal.cli.arguments import open_target
from nearmetal.cluster.move.history import past_moves
from nearmetal.core.errors import NearmetalError
from nearmetal.report.move_page import JobTrace, MoveStory, write_story

ROOT = Path(__file__).parents[1]
NEARMETAL = (sys.executable, "-m", "nearmetal")
LIMIT_S = 600
MIN_RANKS = 2
SEED = "7"


@dataclass(frozen=True)
class Kind:
    """One of the four jobs. `at`: the mark of the program at which the move begins."""

    name: str
    thread: str
    at: str = ""


KINDS = (
    Kind("no migration", "off"),
    Kind("PE", "off", "compute"),
    Kind("MT worst", "on", "talk"),
    Kind("MT typical", "on", "compute"),
)


@dataclass(frozen=True)
class Work:
    """What a job does: rounds per block, and million steps of its computation."""

    block: int
    steps: int

    @property
    def words(self) -> list[str]:
        """The options of the program."""
        return ["-n", str(2 * self.block), "-b", str(self.block), "-w", str(self.steps)]


SHORT = Work(20, 5)


@dataclass(frozen=True)
class Lab:
    """A cluster that is up, and how its jobs are started."""

    spec: str
    node: str
    first: str
    by: tuple[str, ...]
    job: tuple[str, ...]
    """The job without its own options."""
    marks: str

    def ok(self, *words: str) -> str:
        """Run a command of nearmetal, which must end well; return its output."""
        return finished(nearmetal(*words), " ".join(words))

    def move(self, host: str) -> float:
        """Move the node; return the seconds that this took."""
        began = time.monotonic()
        if self.by:
            subprocess.run([*self.by, host], check=True, timeout=LIMIT_S)
        else:
            self.ok("migrate", self.spec, self.node, "--to", host, "--yes")
        return time.monotonic() - began

    def wait_for(self, mark: str, job: subprocess.Popen[str]) -> None:
        """Wait for a file in the first node."""
        test = [*NEARMETAL, "exec", self.spec, self.first, "--", "test", "-e", mark]
        while subprocess.run(test, cwd=ROOT, check=False, capture_output=True).returncode:
            if job.poll() is not None:
                raise SystemExit(f"the job ended before {mark}: {job.communicate()[0]}")

    def measure(self, kind: Kind, work: Work, host: str) -> JobTrace:
        """Run one job, and move the node to HOST meanwhile if its kind says so."""
        took, early = None, False
        head, tail = self.job[: self.job.index("--")], self.job[self.job.index("--") :]
        words = [*head, "--env", f"NEARMETAL_MOVE_THREAD={kind.thread}", *tail, *work.words]
        job = nearmetal(*words, "-m", self.marks, str(LIMIT_S), SEED)
        try:
            if kind.at:
                self.wait_for(f"{self.marks}.{kind.at}", job)
                took = self.move(host)
                early = job.poll() is not None
            out = finished(job, kind.name)
        except BaseException:
            job.terminate()
            raise
        if early:
            raise SystemExit(f"{kind.name}: the job ended before the move: give more --seconds")
        self.ok(
            "exec", self.spec, self.first, "--", "rm", f"{self.marks}.talk", f"{self.marks}.compute"
        )
        return trace_of(kind.name, out, took)

    def calibrate(self, seconds: float) -> Work:
        """Return the work whose phases take so long."""
        out = finished(nearmetal(*self.job, *SHORT.words, str(LIMIT_S), SEED), "the short job")
        began, ended = found_in(out)["computing_s"]
        steps = SHORT.steps * seconds / max(ended - began, 0.001)
        return Work(max(1, round(SHORT.block * seconds / began)), max(1, round(steps)))


def nearmetal(*words: str) -> subprocess.Popen[str]:
    """Start a command."""
    return subprocess.Popen(
        [*NEARMETAL, *words],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )


def finished(process: subprocess.Popen[str], name: str) -> str:
    """Return the output of a process that must end well."""
    out = process.communicate(timeout=LIMIT_S)[0]
    if process.returncode:
        raise SystemExit(f"{name}: exit code {process.returncode}\n{out}")
    return out


def found_in(output: str) -> dict[str, Any]:
    """Return what a job printed in its line of JSON."""
    lines = re.findall(r'\{"wall_s".*\}', output)
    if len(lines) != 1:
        raise SystemExit(f"the job printed {len(lines)} lines of figures instead of one\n{output}")
    found: dict[str, Any] = json.loads(lines[0])
    return found


def trace_of(name: str, output: str, move_s: float | None) -> JobTrace:
    """Return the trace of a job with this output."""
    found = found_in(output)
    return JobTrace(
        name,
        found["wall_s"],
        tuple((sender, receiver, gap) for sender, receiver, gap in found["gaps"]),
        found["interval_s"],
        tuple(found["bytes"]),
        move_s,
    )


def load_note(before: float) -> str:
    """Return how busy this machine was."""
    return (
        f"{os.cpu_count()} processors; load of one minute: {before:.1f} before, "
        f"{os.getloadavg()[0]:.1f} after"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and write the report."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False, description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument("spec", help="specification of a cluster that is up")
    parser.add_argument("node", help="node that moves")
    parser.add_argument("--to", required=True, help="host to which it moves first")
    parser.add_argument("--back", required=True, help="host at which it is")
    parser.add_argument("--output", required=True, type=Path, help="directory of the report")
    parser.add_argument("--first", default="n1", help="node of the first rank (default: n1)")
    parser.add_argument("--mpi", default="openmpi5", help="MPI of the jobs (default: openmpi5)")
    parser.add_argument("--ranks", default=3, type=int, help="one per node (default: 3)")
    parser.add_argument("--seconds", default=40.0, type=float, help="of a phase (default: 40)")
    parser.add_argument("--program", type=Path, help="mpi_moved, if it is not in build/programs")
    parser.add_argument("--by", default="", help="command that moves NODE to the host it gets")
    parser.add_argument(
        "--marks",
        default="/tmp/migration",  # noqa: S108 - in a node of the user's
        help="begin of the names of two files in the first node (default: /tmp/migration)",
    )
    parser.add_argument(
        "--run", default=[], action="append", metavar="WORD", help="option of `nearmetal run`"
    )
    args = parser.parse_args(arguments)
    if not 0 < args.seconds <= LIMIT_S:
        parser.error(f"--seconds: more than 0 and at most {LIMIT_S}")
    if args.ranks < MIN_RANKS:
        parser.error(f"--ranks: at least {MIN_RANKS}, so that messages cross nodes")
    if args.node == args.first:
        parser.error(f"{args.node} has the first rank, which measures: move another node")
    if args.to == args.back:
        parser.error("--to and --back are one host")
    program = args.program or ROOT / "build/programs" / args.mpi / "mpi_moved"
    words = ["run", args.spec, "--mpi", args.mpi, "-n", str(args.ranks), "--map-by", "node"]
    words += ["--timeout", str(LIMIT_S), *args.run, "--", str(program)]
    by = tuple(shlex.split(args.by))
    lab = Lab(args.spec, args.node, args.first, by, tuple(words), args.marks)

    try:
        cluster, _ = open_target(args.spec)
    except NearmetalError as error:
        parser.error(str(error))
    began, load = time.time(), os.getloadavg()[0]
    work, jobs, goals = lab.calibrate(args.seconds), list[JobTrace](), cycle((args.to, args.back))
    for kind in KINDS:
        jobs.append(lab.measure(kind, work, next(goals) if kind.at else ""))
        print(f"{kind.name}: {jobs[-1].wall_s:.1f} s", file=sys.stderr, flush=True)
        moves = [m for m in past_moves(cluster.journal.read()) if m.actions[0].began >= began]
        notes = [
            f"Command: {shlex.join(sys.argv)}",
            f"{args.ranks} ranks; 2 blocks of {work.block} rounds, and {work.steps} million steps.",
            *(f"{j.name}: the move took {j.move_s:.1f} s." for j in jobs if j.move_s is not None),
            load_note(load),
        ]
        # An interrupted run keeps what it measured.
        page = write_story(MoveStory(cluster.name, moves, jobs, notes), args.output)
    print(page)


if __name__ == "__main__":
    main()
