# SPDX-License-Identifier: Apache-2.0
"""MPIs and OpenSHMEM over the transport for UCX, between two sealed nodes, by `nearmetal run`."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from nearmetal.job.mpi import Mpi
from tests.system.local import ROOT, Site, site
from tests.system.mpi_jobs import PROGRAMS, two_nodes_up
from tests.system.need import lacking, need_build, need_mpi, need_ucx

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.system, pytest.mark.mpi]

need_build()
need_mpi(Mpi.OPENMPI4, Mpi.OPENMPI5, Mpi.MPICH5)
need_ucx()

UCX = (ROOT / "build/ucx").resolve()

TRAFFIC = ("mpi_traffic", "-n", "600", "-b", "20M", "-s", "7")
# MPICH's ch4:ucx stalls in mpi_traffic, over its own UCX and shared memory as well.
JOBS = {
    "openmpi4": (TRAFFIC, "traffic OK"),
    "openmpi5": (TRAFFIC, "traffic OK"),
    "mpich5": (("mpi_hello",), "every token came back"),
}


@pytest.fixture(scope="module")
def up() -> Iterator[tuple[Site, str]]:
    with site() as place, two_nodes_up(place, 2, UCX, ROOT, place.directory) as spec:
        yield place, spec


def job(up: tuple[Site, str], mpi: str, *words: str, ranks: int = 2) -> tuple[str, dict[str, Any]]:
    place, spec = up
    options = ["--fabric", "ucx", "--mpi", mpi, "-n", str(ranks), "--map-by", "node", "--json"]
    done = place.run("run", spec, *options, "--", *words, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stderr, json.loads(done.stdout)


def assert_carried(answer: dict[str, Any], least: int) -> None:
    """The counters show that only this transport was used, and between both nodes."""
    assert {endpoint["interface"] for endpoint in answer["stats"]} == {"ucx"}
    assert {endpoint["host"] for endpoint in answer["stats"]} == {"n1", "n2"}
    assert answer["proof"]["verdict"] == "proven"
    assert answer["proof"]["messages"]["shm"] >= least


@pytest.mark.parametrize("mpi", JOBS)
def test_mpi_between_nodes(up: tuple[Site, str], mpi: str) -> None:
    (program, *args), words = JOBS[mpi]
    output, answer = job(up, mpi, str(PROGRAMS / mpi / program), *args)
    assert words in output
    assert_carried(answer, 5 if mpi == "mpich5" else 600)


def test_windows_of_mpich_between_nodes(up: tuple[Site, str]) -> None:
    output, answer = job(up, "mpich5", str(PROGRAMS / "mpich5/mpi_window"))
    assert "# done window" in output
    assert_carried(answer, 1000)


@pytest.mark.parametrize("ranks", [2, 4])
def test_openshmem_between_nodes(up: tuple[Site, str], ranks: int) -> None:
    if not shutil.which("oshcc"):
        lacking("Debian's OpenSHMEM is missing")
    place, _ = up
    program: Path = place.directory / "openshmem"
    source = ROOT / "tests/system/programs/openshmem.c"
    subprocess.run(["oshcc", "-O2", "-Wall", "-Werror", source, "-o", program], check=True)
    output, answer = job(up, "openmpi4", str(program), ranks=ranks)
    assert f"OpenSHMEM OK: {ranks} PEs" in output
    assert_carried(answer, 300)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--mpi", "impi"), "Intel MPI has no transport over UCX"),
        (("--mpi", "openmpi4", "--provider", "stock"), "exclude each other"),
    ],
)
def test_what_cannot_use_ucx_is_refused(
    up: tuple[Site, str], options: tuple[str, ...], words: str
) -> None:
    place, spec = up
    mpi = options[1]
    program = str(PROGRAMS / mpi / "mpi_hello")
    done = place.run("run", spec, "--fabric", "ucx", *options, "-n", "2", "--", program)
    assert done.returncode != 0
    assert words in done.stderr
