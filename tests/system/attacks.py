# SPDX-License-Identifier: Apache-2.0
"""Run an MPI job beside an adversary in the same job, and demand that the job does not suffer.

An adversary is a program that runs in a node: it says `ready`, attacks until the file `stop` lies
in the rundir, and then prints one line of JSON: an object whose `done` counts what it did.
"""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from nearmetal.job.mpi import Mpi
    from tests.system.mpi_jobs import Cluster, Job

RUNDIR = "/run/nearmetal"
RANKS = 4
CONNECT_S = 5
"""NEARMETAL_CONNECT_MS, unless a job sets it: no message may take longer than this.

Waits for a processor are not counted (programs/starved.h)."""


@dataclass(frozen=True)
class Endured:
    """A job that ended well, and what its adversary says of itself."""

    job: Job
    adversary: dict[str, Any]
    slowest_s: float


@contextlib.contextmanager
def under_attack(cluster: Cluster, node: str, *argv: str) -> Iterator[dict[str, Any]]:
    """Run the adversary ARGV in a node; the mapping has its report after the end."""
    stop = f"{RUNDIR}/stop"
    left = [stop, f"{RUNDIR}/go", *(f"{RUNDIR}/at-{rank}" for rank in range(RANKS))]
    cluster.site.ok("exec", cluster.spec, node, "--", "rm", "-f", *left)
    report: dict[str, Any] = {}
    with cluster.site.start("exec", cluster.spec, node, "--", *argv) as process:
        try:
            assert process.stdout is not None
            first = process.stdout.readline().strip()
            assert first == "ready", f"{argv}: {first}\n{process.communicate(timeout=30)[1]}"
            yield report
        finally:
            cluster.site.ok("exec", cluster.spec, node, "--", "touch", stop)
            try:
                told, errors = process.communicate(timeout=30)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
    assert told.startswith("{"), f"{argv}: {told}\n{errors} rc={process.returncode}"
    report.update(json.loads(told))


def endure(
    cluster: Cluster,
    mpi: Mpi,
    *argv: str,
    node: str = "n1",
    options: tuple[str, ...] = (),
    program: Path | None = None,
    beside: Cluster | None = None,
) -> Endured:
    """Run mpi_rounds on 4 ranks beside an adversary; all its numbers must be right, and in time.

    BESIDE: the same cluster, for commands of the adversary.
    """
    program = program or cluster.site.directory / mpi.value
    with under_attack(beside or cluster, node, *argv) as report:
        job = cluster.ok(mpi.value, RANKS, program, timeout=150, options=options)
    assert "every number was right" in job.output, job.end_of_output()
    slowest = re.search(r"slowest round: ([0-9.]+) s", job.output)
    assert slowest is not None, job.end_of_output()
    assert float(slowest[1]) < CONNECT_S, job.end_of_output()
    assert report["done"] > 0, f"{argv} did nothing: {report}"
    return Endured(job, report, float(slowest[1]))
