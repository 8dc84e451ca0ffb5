# SPDX-License-Identifier: Apache-2.0
"""Processes that join a running job: they meet, exchange, leave, and others take their places."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from nearmetal.mpi import Mpi
from tests.system.local import ROOT, site
from tests.system.mpi_jobs import Cluster
from tests.system.test_local_run import INSTALLED, compiler

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.system, pytest.mark.mpi, pytest.mark.timeout(240)]

# Across nodes Open MPI 5 does this on no stack of its own: over TCP, without nearmetal, 6 of 6 jobs
# lost a daemon of the launcher, stalled, or did not find the addresses of the children.
SPAWNING = [mpi for mpi in INSTALLED if mpi is not Mpi.OPENMPI5]
SOURCE = ROOT / "tests" / "system" / "programs" / "mpi_spawn.c"


@pytest.fixture(scope="module")
def near() -> Iterator[Cluster]:
    with site() as place:
        for mpi in SPAWNING:
            out = place.directory / mpi.value
            subprocess.run([compiler(mpi), "-O1", "-o", out, SOURCE], check=True, timeout=60)
        path = place.write("spec.yaml", f"""\
version: 1
name: spawn
backend: local
show: ['{place.directory}']
hosts: [{{name: h, nodes: [{{name: n1, slots: 4}}, {{name: n2, slots: 4}}]}}]
""")  # fmt: skip
        place.ok("up", path)
        yield Cluster(place, path)
        place.look(path)
        place.ok("down", path)
        place.assert_no_trace()


@pytest.mark.parametrize("mpi", SPAWNING, ids=lambda mpi: mpi.value)
def test_children_come_and_go(near: Cluster, mpi: Mpi) -> None:
    program = near.site.directory / mpi.value
    job = near.run(mpi.value, 2, program, "3", timeout=90, by="node")
    assert job.code == 0, job.end_of_output()
    assert "spawn OK: 3 generations" in job.output
    assert set(job.sent) <= {"self", "shm"}
    assert job.sent["shm"] > 0
