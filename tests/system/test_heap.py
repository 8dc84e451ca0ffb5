# SPDX-License-Identifier: Apache-2.0
"""Real MPIs between sealed nodes with libnearmetal-heap.so: one copy, right bytes, counted."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.system.local import ROOT
from tests.system.mpi_jobs import INSTALLED, MPIS, NEAR, Cluster, Job, program, two_nodes
from tests.system.need import lacking
from tests.system.test_mpi_programs import WITH_WINDOWS, up

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.system, pytest.mark.mpi, pytest.mark.timeout(420)]

MISSING = [str(p) for m in MPIS for p in [program(m, "mpi_patterns")] if not p.exists()]
if MISSING:
    lacking(f"run make setup: no {', '.join(MISSING)}")


LIBRARY = ROOT / "build/c/src/heap/libnearmetal-heap.so"
INPUTS = ROOT / "nearmetal/study/runner/workloads/inputs"
GET_ALONE = ROOT / "tests/system/programs/mpi_get_alone.c"
POOL = """\
import multiprocessing, os, sys

large = bytearray(b"x") * (8 << 20)

def look(data):
    before = large[5], len(data), data.count(b"y")
    large[:5] = b"child"
    return before, data + b"z" * 300000

if __name__ == "__main__":
    assert "memfd:nearmetal-heap" in open("/proc/self/maps").read()
    with multiprocessing.get_context(sys.argv[1]).Pool(2) as pool:
        for seen, back in pool.map(look, [b"y" * 200000] * 6):
            assert seen == (ord("x"), 200000, 200000), seen
            assert len(back) == 500000 and back.count(b"z") == 300000
    assert large == b"x" * (8 << 20)
"""


@pytest.mark.parametrize("how", ["fork", "spawn", "forkserver"])
def test_multiprocessing_keeps_its_meaning(how: str, tmp_path: Path) -> None:
    script = tmp_path / "pool.py"
    script.write_text(POOL)
    subprocess.run(
        [sys.executable, script, how],
        env=os.environ | {"LD_PRELOAD": str(LIBRARY)},
        check=True,
        timeout=100,
    )


@pytest.fixture(scope="module")
def near() -> Iterator[Cluster]:
    """Two nodes of one host."""
    yield from up(NEAR)


def by_protocol(job: Job, name: str) -> int:
    """Bytes of large messages that the ranks got in one way."""
    return sum(
        int(peer["protocols"].get(name, 0))
        for endpoint in job.answer["stats"]
        for peer in endpoint["peers"]
    )


@pytest.mark.parametrize("mpi", MPIS)
def test_messages_between_sealed_nodes_are_read_from_the_heap(near: Cluster, mpi: str) -> None:
    # It checks the bytes of each pattern and size before it times it.
    argv = (
        program(mpi, "mpi_patterns"),
        "-p",
        "pingpong,uniband,alltoall",
        "-m",
        "64K",
        "-M",
        "1M",
    )
    job = near.ok(mpi, 2, *argv, by="node", timeout=180, options=("--heap",))
    assert by_protocol(job, "heap") > 10 << 20, job.end_of_output()
    assert by_protocol(job, "pull") == by_protocol(job, "both halves") == 0
    assert set(job.sent) == {"shm"}


@pytest.mark.parametrize("mpi", MPIS)
def test_random_traffic_of_four_ranks(near: Cluster, mpi: str) -> None:
    job = near.ok(mpi, 4, program(mpi, "mpi_traffic"), timeout=180, options=("--heap",))
    assert "error" not in job.output.lower(), job.end_of_output()
    assert set(job.sent) <= {"shm", "self"}


def test_no_heap_without_the_option(near: Cluster) -> None:
    argv = (program("mpich5", "mpi_patterns"), "-p", "pingpong", "-m", "64K", "-c")
    job = near.ok("mpich5", 2, *argv, by="node", timeout=180)
    assert by_protocol(job, "heap") == 0


@pytest.fixture(scope="module")
def alone() -> Iterator[Cluster]:
    """Two nodes that see the program whose target computes."""
    with two_nodes(INSTALLED, GET_ALONE, 1) as cluster:
        yield cluster


@pytest.mark.parametrize("window", ["allocate", "create", "alloc_mem"])
@pytest.mark.parametrize("mpi", WITH_WINDOWS)
def test_gets_need_no_processor_of_the_target(alone: Cluster, mpi: str, window: str) -> None:
    argv = (alone.site.directory / mpi, window)
    job = alone.ok(mpi, 2, *argv, by="node", timeout=100, options=("--heap",))
    assert "the gets ended while the target computed" in job.output, job.end_of_output()
    got = sum(
        int(peer["accesses"].get("direct", {}).get("get", {}).get("bytes", 0))
        for endpoint in job.answer["stats"]
        for peer in endpoint["peers"]
    )
    assert got >= 20 << 20, job.end_of_output()


def test_gets_wait_for_the_target_without_the_heap(alone: Cluster) -> None:
    argv = (alone.site.directory / "mpich5", "allocate")
    job = alone.ok("mpich5", 2, *argv, by="node", timeout=100)
    assert "the gets waited for the target" in job.output, job.end_of_output()


IN_HEAP = ("--heap", "--env", "NEARMETAL_HEAP_MIN=4096")
"""Applications of this size have few large allocations."""


def same(near: Cluster, pattern: str, *argv: str | Path, options: tuple[str, ...] = ()) -> None:
    """Run an application with and without the heap; what it printed at PATTERN is the same."""
    found = []
    for heap in ((), IN_HEAP):
        job = near.ok("openmpi4", 4, *argv, by="node", timeout=180, options=(*options, *heap))
        text = re.search(pattern, job.output, re.DOTALL | re.MULTILINE)
        assert text is not None, job.end_of_output()
        assert heap or by_protocol(job, "heap") == 0
        found.append(text[1])
    assert found[0] == found[1]


@pytest.mark.full
def test_lammps_computes_the_same(near: Cluster) -> None:
    if shutil.which("lmp") is None:
        lacking("lmp is not installed")
    same(near, "^Step (.*?)^Loop time", "lmp", "-in", INPUTS / "lammps/in.liquid", "-log", "none")


@pytest.mark.full
def test_gromacs_computes_the_same(tmp_path: Path) -> None:
    if shutil.which("gmx_mpi") is None:
        lacking("gmx_mpi is not installed")
    shutil.copytree(INPUTS / "gromacs", tmp_path, dirs_exist_ok=True)
    for words in (
        "solvate -cs spc216.gro -box 3 3 3 -o conf.gro -p topol.top",
        "grompp -f water.mdp -c conf.gro -p topol.top -o topol.tpr",
    ):
        subprocess.run(["gmx", *words.split()], cwd=tmp_path, check=True, timeout=100)
    options = ("-ntomp", "1", "-nb", "cpu", "-notunepme", "-dlb", "no", "-reprod")
    files = ("-s", tmp_path / "topol.tpr", "-g", "/dev/stdout")
    with contextlib.contextmanager(up)(f"{NEAR}show: ['{tmp_path}']\n") as near:
        same(near, "Energies.*?Energies(.*?)Constr", "gmx_mpi", "mdrun", *files, *options)
