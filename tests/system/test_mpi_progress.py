# SPDX-License-Identifier: Apache-2.0
"""A rank that waits in one way does its part for a peer that waits for it in another."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from nearmetal.job.mpi import Mpi
from tests.system.local import ROOT
from tests.system.mpi_jobs import INSTALLED, Cluster, two_nodes

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.system, pytest.mark.mpi, pytest.mark.timeout(240)]

# Open MPI 4's one-sided component over shared memory and TCP crashes by itself, with any pml.
WITH_WINDOWS = [mpi for mpi in INSTALLED if mpi is not Mpi.OPENMPI4]
SOURCE = ROOT / "tests" / "system" / "programs" / "mpi_progress.c"


@pytest.fixture(scope="module")
def near() -> Iterator[Cluster]:
    with two_nodes(WITH_WINDOWS, SOURCE, slots=1) as cluster:
        yield cluster


@pytest.mark.parametrize("threads", ["single", "multiple"])
@pytest.mark.parametrize("mpi", WITH_WINDOWS, ids=lambda mpi: mpi.value)
def test_a_blocked_sender_serves_its_window(near: Cluster, mpi: Mpi, threads: str) -> None:
    program = near.site.directory / mpi.value
    job = near.run(mpi.value, 2, program, threads, timeout=90, by="node")
    assert job.code == 0, job.end_of_output()
    assert "progress OK: 20 rounds" in job.output
    assert set(job.sent) <= {"self", "shm"}
    assert job.sent["shm"] > 0
