# SPDX-License-Identifier: Apache-2.0
"""Launches without turns: programs that measure once and end."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nearmetal.cluster.backends.local.driver import MEETING
from nearmetal.core.errors import LaunchError
from nearmetal.core.resources import provider_library
from nearmetal.job.mpi import MapBy
from nearmetal.job.run import JobRequest, Output, run_job
from nearmetal.study.runner.collect import (
    Ended,
    RawLaunch,
    beside_fields,
    job_fields,
    program_path,
    title,
)
from nearmetal.study.runner.suite import Program, Where

if TYPE_CHECKING:
    from pathlib import Path

    from nearmetal.cluster.backend import Backend
    from nearmetal.cluster.spec import ClusterSpec
    from nearmetal.core.process import Runner
    from nearmetal.evidence import Launch
    from nearmetal.study.runner.suite import PlannedLaunch

PINNED = Program("pinned", "pinned", Where.BENCHMARKS, ())


def hurry(priority: int) -> tuple[int, os.sched_param] | None:
    """Take real-time priority; returns the former scheduling, None: not allowed."""
    before = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(priority))
    except OSError:
        return None
    return before


def calm(before: tuple[int, os.sched_param] | None) -> None:
    """Restore the scheduling from before `hurry`."""
    if before is not None:
        os.sched_setscheduler(0, *before)


def may_hurry() -> bool:
    """Whether the kernel allows real-time priority."""
    before = hurry(1)
    calm(before)
    return before is not None


@dataclass
class Single:
    """Makes launches one after another; a failed launch is recorded."""

    backend: Backend
    spec: ClusterSpec
    runner: Runner
    directory: Path
    next_number: int
    alone: bool = False
    """Whether programs without MPI get real-time priority, if it is allowed."""
    launches: list[Launch] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)

    def run(self, step: PlannedLaunch, ranks: int) -> None:
        """Make one launch: of an MPI program pinned to cores, or in the first node without MPI."""
        try:
            path = program_path(step.program, step.mpi)
            raw = RawLaunch(self.directory, self.next_number, step)
            with raw.streams() as output:
                ended = (
                    self._job(step, path, ranks, output)
                    if step.mpi
                    else self._in_node(step, path, output)
                )
        except LaunchError as error:
            self.skipped.append(f"{title(step)}: {error.message}")
            return
        self.next_number += 1
        self.launches.append(raw.record(ended))

    def _job(self, step: PlannedLaunch, path: Path, ranks: int, output: Output) -> Ended:
        assert step.arm is not None and step.mpi is not None  # noqa: S101, PT018 - see the caller
        request = JobRequest(
            program=str(program_path(PINNED, None)),
            args=(str(path), *step.program.args),
            mpi=step.mpi.value,
            ranks=ranks,
            map_by=MapBy.NODE,
            channels=step.arm.channels,
            provider=step.arm.provider,
            timeout_s=step.program.timeout_s,
            nodes=step.arm.nodes,
            stack=step.arm.stack,
        )
        return job_fields(run_job(self.backend, self.spec, request, self.runner, output), ranks)

    def _in_node(self, step: PlannedLaunch, path: Path, output: Output) -> Ended:
        assert step.arm is not None  # noqa: S101 - see the plan
        env = {
            "PATH": "/usr/bin:/bin",
            "FI_PROVIDER_PATH": str(provider_library().parent),
            "NEARMETAL_RUNDIR": str(MEETING),
        }
        first = ["chrt", "--rr", "1"] if self.alone and may_hurry() else []
        argv = [*first, str(path), *step.program.args]
        command = self.backend.on_node(step.arm.nodes[0], argv, env=env)
        return beside_fields(
            self.runner.attach(
                command,
                stdout=output.stdout,
                stderr=output.stderr,
                timeout_s=step.program.timeout_s,
            )
        )
