# SPDX-License-Identifier: Apache-2.0
"""A process inside a real MPI job replaces the sockets of all ranks and cuts their connections.

It sees every handshake and every window, and it has every address. The job's numbers are right all
the same, and its messages stay in memory.
"""

from collections.abc import Iterator

import pytest

from nearmetal.job.mpi import Mpi
from tests.system.attacks import RUNDIR, endure
from tests.system.local import ROOT
from tests.system.mpi_jobs import INSTALLED, Cluster, two_nodes

pytestmark = [pytest.mark.system, pytest.mark.mpi]

SOURCE = ROOT / "tests" / "system" / "programs" / "mpi_rounds.c"
ADVERSARY = ROOT / "tests" / "system" / "faults" / "adversary.py"


@pytest.fixture(scope="module")
def up() -> Iterator[Cluster]:
    with two_nodes(INSTALLED, SOURCE, 2) as cluster:
        script = cluster.site.directory / ADVERSARY.name
        script.write_text(ADVERSARY.read_text())
        yield cluster


@pytest.mark.parametrize("mpi", list(INSTALLED), ids=lambda mpi: mpi.value)
def test_who_replaces_the_sockets_of_a_job_spoils_nothing(up: Cluster, mpi: Mpi) -> None:
    script = up.site.directory / ADVERSARY.name
    program = up.site.directory / f"attacked-{mpi.value}"
    program.write_text(f"#!/bin/sh\nexec {up.site.directory / mpi.value} attacked={RUNDIR}\n")
    program.chmod(0o755)
    endured = endure(up, mpi, "python3", str(script), RUNDIR, program=program)
    assert endured.job.sent["shm"] > 1000, endured.job.sent
