# SPDX-License-Identifier: Apache-2.0
"""A rank that waits in one way does its part for a peer that waits for it in another."""

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

# Open MPI 4's one-sided component over shared memory and TCP crashes by itself, with any pml.
WITH_WINDOWS = [mpi for mpi in INSTALLED if mpi is not Mpi.OPENMPI4]
SOURCE = ROOT / "tests" / "system" / "programs" / "mpi_progress.c"


@pytest.fixture(scope="module")
def near() -> Iterator[Cluster]:
    with site() as place:
        for mpi in WITH_WINDOWS:
            out = place.directory / mpi.value
            subprocess.run([compiler(mpi), "-O1", "-o", out, SOURCE], check=True, timeout=60)
        path = place.write("spec.yaml", f"""\
version: 1
name: progress
backend: local
show: ['{place.directory}']
hosts: [{{name: h, nodes: [{{name: n1}}, {{name: n2}}]}}]
""")  # fmt: skip
        place.ok("up", path)
        yield Cluster(place, path)
        place.look(path)
        place.ok("down", path)
        place.assert_no_trace()


@pytest.mark.parametrize("threads", ["single", "multiple"])
@pytest.mark.parametrize("mpi", WITH_WINDOWS, ids=lambda mpi: mpi.value)
def test_a_blocked_sender_serves_its_window(near: Cluster, mpi: Mpi, threads: str) -> None:
    program = near.site.directory / mpi.value
    job = near.run(mpi.value, 2, program, threads, timeout=90, by="node")
    assert job.code == 0, job.end_of_output()
    assert "progress OK: 20 rounds" in job.output
    assert set(job.sent) <= {"self", "shm"}
    assert job.sent["shm"] > 0
