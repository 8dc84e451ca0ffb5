# SPDX-License-Identifier: Apache-2.0
"""Processes that join a running job: they meet, exchange, leave, and others take their places."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from nearmetal.job.mpi import Mpi
from tests.system.local import ROOT
from tests.system.mpi_jobs import INSTALLED, Cluster, two_nodes

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.system, pytest.mark.mpi, pytest.mark.timeout(240)]

# Across nodes Open MPI 5 does this on no stack of its own: over TCP, without nearmetal, 6 of 6 jobs
# lost a daemon of the launcher, stalled, or did not find the addresses of the children.
SPAWNING = [mpi for mpi in INSTALLED if mpi is not Mpi.OPENMPI5]
SOURCE = ROOT / "tests" / "system" / "programs" / "mpi_spawn.c"


@pytest.fixture(scope="module")
def near() -> Iterator[Cluster]:
    with two_nodes(SPAWNING, SOURCE, slots=4) as cluster:
        yield cluster


@pytest.mark.parametrize("mpi", SPAWNING, ids=lambda mpi: mpi.value)
def test_children_come_and_go(near: Cluster, mpi: Mpi) -> None:
    program = near.site.directory / mpi.value
    job = near.run(mpi.value, 2, program, "3", timeout=90, by="node")
    assert job.code == 0, job.end_of_output()
    assert "spawn OK: 3 generations" in job.output
    assert set(job.sent) <= {"self", "shm"}
    assert job.sent["shm"] > 0
