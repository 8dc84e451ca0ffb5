# SPDX-License-Identifier: Apache-2.0
"""Real MPIs on isolated nodes: what they send arrives, in order, by the channel it should take."""

from __future__ import annotations

import re
import shutil
from typing import TYPE_CHECKING

import pytest

from tests.system.local import site
from tests.system.mpi_jobs import MPIS, NEAR, NEAR_FAR, PREFIXES, Cluster, program
from tests.system.need import lacking

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.system, pytest.mark.mpi, pytest.mark.timeout(420)]

MISSING = [str(p) for m in MPIS for p in [program(m, "mpi_traffic")] if not p.exists()]
if MISSING:
    lacking(f"run make setup: no {', '.join(MISSING)}")

NETPIPE = shutil.which("NPopenmpi")
IMB = PREFIXES / "impi" / "bin"
IMB_MPI1 = (
    "PingPong",
    "PingPing",
    "Uniband",
    "Biband",
    "Sendrecv",
    "Exchange",
    "Bcast",
    "Allreduce",
    "Reduce",
    "Allgather",
    "Alltoall",
    "Alltoallv",
    "Barrier",
)
PATTERNS = 13
# Open MPI 4's one-sided component over shared memory and TCP crashes by itself, with any pml.
WITH_WINDOWS = ("openmpi5", "mpich5", "impi")


def up(spec: str) -> Iterator[Cluster]:
    with site() as place:
        path = place.write("spec.yaml", spec)
        place.ok("up", path)
        yield Cluster(place, path)
        place.look(path)
        place.ok("down", "--yes", path)
        place.assert_no_trace()


@pytest.fixture(scope="module")
def near() -> Iterator[Cluster]:
    """Two nodes of one host."""
    yield from up(NEAR)


@pytest.fixture(scope="module")
def near_far() -> Iterator[Cluster]:
    """Two hosts of two nodes each."""
    yield from up(NEAR_FAR)


@pytest.mark.parametrize("mpi", MPIS)
def test_hello(near_far: Cluster, mpi: str) -> None:
    job = near_far.ok(mpi, 4, program(mpi, "mpi_hello"), timeout=60)
    assert "hello from 4 ranks: every token came back" in job.output
    assert {"shm", "net"} <= set(job.sent)


@pytest.mark.parametrize("mpi", MPIS)
def test_only_the_allowed_channel_carries(near_far: Cluster, mpi: str) -> None:
    options = ("--channels", "self,net")
    job = near_far.ok(mpi, 4, program(mpi, "mpi_hello"), timeout=60, options=options)
    assert set(job.sent) <= {"self", "net"}
    assert job.sent["net"] > 0


@pytest.mark.parametrize("mpi", MPIS)
def test_patterns(near: Cluster, mpi: str) -> None:
    job = near.ok(mpi, 4, program(mpi, "mpi_patterns"), "-c", "-M", "1M", timeout=180, by="node")
    assert len(re.findall(r"^# verified ", job.output, re.MULTILINE)) == PATTERNS
    assert set(job.sent) <= {"self", "shm"}


@pytest.mark.full
@pytest.mark.parametrize("mpi", MPIS)
def test_patterns_far_to_4_mib(near_far: Cluster, mpi: str) -> None:
    job = near_far.ok(mpi, 4, program(mpi, "mpi_patterns"), "-c", timeout=300)
    assert len(re.findall(r"^# verified ", job.output, re.MULTILINE)) == PATTERNS
    assert {"shm", "net"} <= set(job.sent)


@pytest.mark.parametrize("mpi", WITH_WINDOWS)
def test_windows(near: Cluster, mpi: str) -> None:
    job = near.ok(mpi, 2, program(mpi, "mpi_window"), "-c", "-M", "64K", timeout=120, by="node")
    assert "# done window" in job.output
    assert job.sent["shm"] > 0


@pytest.mark.parametrize("mpi", MPIS)
def test_random_traffic_near_and_far(near_far: Cluster, mpi: str) -> None:
    job = near_far.ok(mpi, 4, program(mpi, "mpi_traffic"), "-n", "10000", "-s", "7", timeout=240)
    found = re.search(r"traffic OK: (\d+) messages", job.output)
    assert found is not None, job.end_of_output()
    assert int(found[1]) >= 10000
    assert job.sent["shm"] > 1000
    assert job.sent["net"] > 1000


def imb_tables(output: str) -> set[str]:
    return set(re.findall(r"^# Benchmarking (\w+)", output, re.MULTILINE))


@pytest.mark.parametrize("mpi", ["mpich5", "impi"])
def test_imb_mpi1_to_4_mib(near: Cluster, mpi: str) -> None:
    job = near.ok(
        mpi,
        4,
        IMB / "IMB-MPI1",
        "-npmin",
        "4",
        "-msglog",
        "22",
        "-iter",
        "30",
        "-time",
        "0.1",
        *IMB_MPI1,
        timeout=300,
        by="node",
    )
    assert imb_tables(job.output) == set(IMB_MPI1)
    assert set(job.sent) <= {"self", "shm"}


@pytest.mark.parametrize("mpi", ["mpich5", "impi"])
def test_imb_rma_to_4_mib(near: Cluster, mpi: str) -> None:
    job = near.ok(
        mpi,
        2,
        IMB / "IMB-RMA",
        "-npmin",
        "2",
        "-msglog",
        "22",
        "-iter",
        "20",
        "-time",
        "0.05",
        timeout=300,
        by="node",
    )
    assert {"Unidir_put", "Unidir_get", "All_put_all", "Accumulate"} <= imb_tables(job.output)
    assert job.sent["shm"] > 0


@pytest.mark.parametrize("mpi", ["openmpi4", "openmpi5"])
def test_netpipe(near: Cluster, mpi: str) -> None:
    if NETPIPE is None:
        lacking("NetPIPE (netpipe-openmpi) is not installed")
    job = near.ok(
        mpi, 2, str(NETPIPE), "-u", "4194304", "-n", "20", "-o", "/dev/null", timeout=180, by="node"
    )
    assert "4194307 bytes" in job.output, job.end_of_output()
    assert job.sent["shm"] > 1000
