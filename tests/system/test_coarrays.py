# SPDX-License-Identifier: Apache-2.0
"""Coarrays of Fortran between two sealed nodes: OpenCoarrays over Open MPI, by libfabric and UCX."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nearmetal.job.mpi import Mpi
from tests.system.local import ROOT, Site, site
from tests.system.mpi_jobs import two_nodes_up
from tests.system.need import lacking, need_build, need_mpi, need_ucx

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.system, pytest.mark.mpi, pytest.mark.full]

need_build()
need_mpi(Mpi.OPENMPI4, Mpi.OPENMPI5)

UCX = (ROOT / "build/ucx").resolve()


@pytest.fixture(scope="module")
def up() -> Iterator[tuple[Site, str]]:
    libraries = sorted(Path("/usr/lib").glob("*/open-coarrays/openmpi/lib/libcaf_openmpi.a"))
    if not libraries:
        lacking("Debian's OpenCoarrays is missing: tools/setup/setup.sh --apps installs it")
    with site() as place:
        source = ROOT / "tests/system/programs/coarrays.f90"
        link = subprocess.run(
            ["mpicc.openmpi", "--showme:link"], capture_output=True, text=True, check=True
        )
        words = ["gfortran-12", "-O2", "-Wall", "-Werror", "-fcoarray=lib", str(source)]
        made = ["-o", str(place.directory / "coarrays"), str(libraries[0]), *link.stdout.split()]
        subprocess.run([*words, *made], check=True, cwd=place.directory)
        with two_nodes_up(place, 2, UCX, ROOT, place.directory) as spec:
            yield place, spec


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize(
    ("mpi", "fabric"), [("openmpi4", "ofi"), ("openmpi5", "ofi"), ("openmpi5", "ucx")]
)
def test_images_exchange_coarrays(up: tuple[Site, str], mpi: str, fabric: str, ranks: int) -> None:
    if fabric == "ucx":
        need_ucx()
    place, spec = up
    options = ("--mpi", mpi, "--fabric", fabric, "-n", str(ranks), "--map-by", "node", "--json")
    program = str(place.directory / "coarrays")
    done = place.run("run", spec, *options, "--timeout", "100", "--", program, timeout=130)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"coarrays OK: {ranks} images" in done.stderr
    answer = json.loads(done.stdout)
    assert answer["proof"]["verdict"] == "proven"
    assert {endpoint["host"] for endpoint in answer["stats"]} == {"n1", "n2"}
    assert answer["proof"]["messages"]["shm"] > 100
