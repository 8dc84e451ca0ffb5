# SPDX-License-Identifier: Apache-2.0
"""Jobs that start once and then measure in turns of some milliseconds.

A virtual processor moves between cache domains at any time, so compared values must be measured
close together. Every job waits on a pipe for its turn (benchmarks/mpi/turns.h). Before and after
each turn, the limits program measures the raw cache-line ping-pong of the same cores, which gives
the placement of the turn.
"""

from __future__ import annotations

import contextlib
import os
import random
import select
import shutil
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from benchmarks.promises.single import PINNED, calm, hurry
from nearmetal.cluster.backends.local.driver import MEETING
from nearmetal.core.errors import LaunchError, NearmetalError
from nearmetal.core.process import Command
from nearmetal.evidence import WARM_UP
from nearmetal.job.mpi import MapBy, Provider
from nearmetal.job.places import new_name
from nearmetal.job.run import JobRequest, Output, run_job
from nearmetal.study.runner.collect import (
    Ended,
    RawLaunch,
    beside_fields,
    first_cores,
    job_fields,
    program_path,
    title,
)
from nearmetal.study.runner.suite import PlannedLaunch
from nearmetal.study.runner.two_nodes import run_pair

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from nearmetal.cluster.backend import Backend
    from nearmetal.cluster.spec import ClusterSpec
    from nearmetal.core.process import Runner
    from nearmetal.evidence import Launch

_TURN_S = 60.0
"""Time limit of a turn; the first turn includes the start of the job."""

_JOB_S = 7200.0
_PROBE = "cacheline:8"


@dataclass(frozen=True)
class Seat:
    """A launch that takes turns, its ranks, and the tests of each turn."""

    step: PlannedLaunch
    ranks: int
    tests: tuple[str, ...]


class Pipes:
    """The pipes that give one job its turns."""

    def __init__(self, directory: Path, ranks: int) -> None:
        """Make the directory and the pipes; this process holds both ends, so no open() blocks."""
        self._directory = directory
        self._orders: list[int] = []
        self._answer = -1
        directory.mkdir(mode=0o700)
        for rank in range(ranks):
            self._orders.append(self._make(f"order.{rank}"))
        self._answer = self._make("answer")

    def _make(self, name: str) -> int:
        path = self._directory / name
        os.mkfifo(path, mode=0o600)
        return os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)

    def order(self, line: str) -> None:
        """Write to every rank; raises LaunchError if a rank does not read."""
        for pipe in self._orders:
            try:
                os.write(pipe, line.encode() + b"\n")
            except BlockingIOError:
                raise LaunchError("a job does not take its turns", "check that it runs") from None

    def answered(self, number: int, wait_s: float) -> bool:
        """Whether the job reported the end of the turn within the time."""
        if not select.select([self._answer], [], [], wait_s)[0]:
            return False
        words = os.read(self._answer, 4096).split()
        return bool(words) and words[-1] == str(number).encode()

    def close(self) -> None:
        """Close and remove the pipes; a rank that still reads sees the end."""
        for pipe in (*self._orders, self._answer):
            with contextlib.suppress(OSError):
                os.close(pipe)
        shutil.rmtree(self._directory, ignore_errors=True)


@dataclass
class _Job:
    """A running launch."""

    seat: Seat
    raw: RawLaunch
    pipes: Pipes
    thread: threading.Thread | None = None
    ended: Ended | None = None
    error: str = ""
    out: bool = False
    """Whether the job failed; it gets no more turns."""

    @property
    def alive(self) -> bool:
        return self.thread is not None and self.thread.is_alive()


@dataclass
class Turns:
    """Starts jobs and gives them turns, block by block."""

    backend: Backend
    spec: ClusterSpec
    runner: Runner
    directory: Path
    limits: Seat
    tell: Callable[[str], None] = lambda _text: None
    seconds: float = 0.012
    """Time for one test of a turn."""
    first_number: int = 1
    """Number of the first launch."""
    alone: bool = False
    """Whether other processes on these cores wait during a turn (real-time scheduling)."""
    turn: int = WARM_UP
    """Number of the last turn; another part of the same run continues from it."""
    launches: list[Launch] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    _jobs: list[_Job] = field(default_factory=list)

    def run(self, seats: Sequence[Seat], *, blocks: int, seconds: float, seed: int) -> int:
        """Start all jobs and give turns until the blocks or the time end; return the blocks.

        The time begins after the start of all jobs. Each block has a new random order.
        """
        dice = random.Random(seed)  # noqa: S311 - an order, no secret
        done = 0
        before: tuple[int, os.sched_param] | None = None
        try:
            self._start(self.limits)
            for seat in seats:
                self._start(seat)
            ruler, *jobs = self._jobs
            if ruler.out:
                raise LaunchError("the limits program failed", ruler.error)
            until = time.monotonic() + seconds
            before = hurry(2) if self.alone else None
            while done < blocks and time.monotonic() < until:
                self.tell(f"block {done + 1}")
                self._give(ruler, self.limits.tests)
                for job in dice.sample(jobs, len(jobs)):
                    if not job.out:
                        self._give(job, job.seat.tests)
                        self._give(ruler, (_PROBE,))
                done += 1
        finally:
            calm(before)
            self._finish()
        return done

    def _start(self, seat: Seat) -> None:
        """Start a job; its first turn is the warm-up and does not count."""
        number = self.first_number + len(self._jobs)
        self.tell(f"start {title(seat.step)}")
        host = self.spec.hosts[0].name
        name = new_name("turns")
        pipes = Pipes(self.backend.meeting_directory(host) / name, seat.ranks)
        job = _Job(seat, RawLaunch(self.directory, number, seat.step), pipes)
        self._jobs.append(job)
        job.thread = threading.Thread(target=self._run, args=(job, name), daemon=True)
        job.thread.start()
        self._give(job, seat.tests, warm_up=True)

    def _run(self, job: _Job, name: str) -> None:
        """Run one job; each job has a thread."""
        try:
            with job.raw.streams() as output:
                job.ended = self._launch(job.seat, name, output)
        except (NearmetalError, OSError) as error:
            job.error = str(error)

    def _launch(self, seat: Seat, name: str, output: Output) -> Ended:
        step, arm = seat.step, seat.step.arm
        path = program_path(step.program, step.mpi)
        if arm is None:
            places = self.backend.meeting_directory(self.spec.hosts[0].name) / name
            first, second = first_cores(self.backend)
            argv = (str(path), "-a", str(first), "-b", str(second), "-T", str(places))
            return beside_fields(
                self.runner.attach(
                    Command(argv), stdout=output.stdout, stderr=output.stderr, timeout_s=_JOB_S
                )
            )
        inside = str(MEETING / name)
        ours = arm.provider is Provider.NEARMETAL
        if step.mpi is None:
            program = (str(path), *step.program.args, "-w", str(int(_JOB_S)), "-T", inside)
            nodes = (arm.nodes[0], arm.nodes[-1])
            return job_fields(
                run_pair(
                    self.backend,
                    self.spec,
                    self.runner,
                    program,
                    channels=arm.channels,
                    output=output,
                    timeout_s=_JOB_S,
                    nodes=nodes,
                    foreign=not ours,
                ),
                2,
            )
        request = JobRequest(
            program=str(program_path(PINNED, None)),
            args=(str(path), inside),
            mpi=step.mpi.value,
            ranks=seat.ranks,
            map_by=MapBy.NODE,
            channels=arm.channels,
            provider=arm.provider,
            timeout_s=_JOB_S,
            nodes=arm.nodes,
            stack=arm.stack,
        )
        result = run_job(self.backend, self.spec, request, self.runner, output)
        return job_fields(result, seat.ranks)

    def _give(self, job: _Job, tests: Sequence[str], *, warm_up: bool = False) -> None:
        """Give one turn. A job that does not end its turn gets no more turns."""
        self.turn += 0 if warm_up else 1
        number = WARM_UP if warm_up else self.turn
        # During its start, a job must leave the core to its launcher.
        how = "alone" if self.alone and not warm_up else "shared"
        job.pipes.order(f"{number} {self.seconds:.4f} {how} {','.join(tests)}")
        deadline = time.monotonic() + _TURN_S
        while not job.pipes.answered(number, 0.1):
            late = time.monotonic() > deadline
            if late or not job.alive:
                job.out = True
                job.error = job.error or ("no answer in time" if late else "ended early")
                return

    def _finish(self) -> None:
        """End all jobs and record them."""
        for job in self._jobs:
            with contextlib.suppress(LaunchError, OSError):
                job.pipes.order("end")
        deadline = time.monotonic() + _TURN_S
        for job in self._jobs:
            if job.thread is not None:
                job.thread.join(max(0.0, deadline - time.monotonic()) if not job.out else 1.0)
            job.pipes.close()
        for job in self._jobs:
            self._record(job)

    def _record(self, job: _Job) -> None:
        if job.ended is None:
            self.skipped.append(f"{title(job.seat.step)}: {job.error or 'did not end'}")
            return
        if job.error:
            self.skipped.append(f"{title(job.seat.step)}: {job.error}")
        self.launches.append(job.raw.record(job.ended))
