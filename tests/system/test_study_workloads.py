# SPDX-License-Identifier: Apache-2.0
"""Workload modules on real nodes: real programs on small inputs, their figures read back."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nearmetal.evidence import read_manifest
from nearmetal.job.mpi import Mpi, find_installations
from nearmetal.study.runner.workloads import WORKLOADS
from nearmetal.study.store import Study
from tests.system.local import ROOT, Site, site
from tests.system.need import lacking, need_build, need_mpi, need_root

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nearmetal.evidence import Launch

pytestmark = [pytest.mark.system, pytest.mark.mpi, pytest.mark.timeout(1800)]

need_root()
need_build()

STUDY = """\
format: 1
name: workload
arms:
  near: {{cluster: examples/two-nodes.yaml, platform: container, fabric: nearmetal, placement: near}}
workloads:
  it: {{use: {name}}}
launches: {{least: 1, most: 1}}
"""


@pytest.fixture(scope="module")
def place() -> Iterator[Site]:
    with site() as made:
        assert made.run("up", "examples/two-nodes.yaml", timeout=60).returncode == 0
        yield made
        assert made.run("down", "--yes", "two-nodes", timeout=60).returncode == 0


@pytest.fixture
def output(place: Site) -> Path:
    return Path(tempfile.mkdtemp(prefix="study-", dir=place.directory)) / "run"


def launched(place: Site, output: Path, text: str, code: int = 0) -> Launch:
    """Make the one launch of a study; returns its record."""
    study = place.write("study.yaml", text)
    done = place.run("study", "run", study, "--output", str(output), "--json", timeout=1500)
    assert done.returncode == code, done.stderr
    (launch,) = read_manifest(output).launches
    return launch


def figures(place: Site, output: Path) -> dict[tuple[str, str], int]:
    """Import a run; returns how many numbers there are by test and metric."""
    target = output.with_name("study")
    done = place.run("study", "import", str(output), "--output", str(target), timeout=120)
    assert done.returncode == 0, done.stderr
    found: dict[tuple[str, str], int] = {}
    for cell in Study(target).cells():
        key = (cell.point.test, cell.point.metric)
        found[key] = found.get(key, 0) + len(cell.values)
        assert min(cell.values) >= 0
    return found


def need(name: str) -> None:
    program = WORKLOADS[name].program
    if program.where.value in {"PATH", "/usr/bin"} and shutil.which(program.file) is None:
        lacking(f"{program.file} is not installed")
    if program.mpis and not set(program.mpis) & set(find_installations()):
        lacking("no MPI for it is installed")


@pytest.mark.parametrize(
    ("name", "test", "metric", "least"),
    [
        ("imb-put", "Unidir_put", "bandwidth", 20),
        ("imb-get", "Unidir_get", "bandwidth", 20),
        ("imb-multi-pingpong", "PingPong", "time_mean", 20),
        ("imb-alltoallv", "Alltoallv", "time_mean", 15),
        ("netpipe-quick", "PingPong", "bandwidth", 40),
        ("hpcc", "HPL", "rate", 1),
        ("lammps", "lammps", "loop_time", 1),
        pytest.param("gromacs", "gromacs", "speed", 1, marks=pytest.mark.full),
        pytest.param("openfoam", "openfoam", "clock_time", 1, marks=pytest.mark.full),
        pytest.param("quantum-espresso", "pwscf", "wall_time", 1, marks=pytest.mark.full),
    ],
)
def test_a_workload_runs_and_its_figures_are_read(  # noqa: PLR0917 - parameters
    place: Site, output: Path, name: str, test: str, metric: str, least: int
) -> None:
    need(name)
    launch = launched(place, output, STUDY.format(name=name))
    assert launch.good
    assert launch.proof.verdict == "proven"
    assert launch.facts["carried_by"] == "shm (counted)"
    assert launch.facts["ranks_per_node"] == "1"
    assert launch.facts["mpi"].startswith(("Open MPI 4.1", "Open MPI 5.", "MPICH 5."))
    assert not list(output.glob("work/*")), "what a good launch leaves is in raw/ only"
    assert figures(place, output)[test, metric] >= least


def test_perftest_says_that_there_is_no_adapter(place: Site, output: Path) -> None:
    need("perftest-write-bw")
    if list(Path("/sys/class").glob("infiniband/*")):
        pytest.skip("there is an adapter")
    launch = launched(place, output, STUDY.format(name="perftest-write-bw"), code=1)
    assert launch.exit_code != 0
    assert (launch.timed_out, launch.hung_at) == (False, None)
    told = (output / launch.stderr).read_text() + (output / launch.stdout).read_text()
    assert "Did not detect devices" in told


def test_a_launcher_of_the_site_starts_it_too(place: Site, output: Path) -> None:
    need("netpipe-quick")
    need_mpi(Mpi.OPENMPI4)
    start = (
        "[/usr/bin/env, OMPI_ALLOW_RUN_AS_ROOT=1, OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1, "
        "mpirun.openmpi, --oversubscribe, -n, '@ranks@']"
    )
    text = STUDY.format(name="netpipe-quick").replace(
        "cluster: examples/two-nodes.yaml", f"start: {start}"
    )
    launch = launched(place, output, text)
    assert launch.good
    assert launch.argv[3] == "mpirun.openmpi"
    assert launch.facts["processor"]
    assert figures(place, output)["PingPong", "bandwidth"] >= 40


def test_a_program_that_falls_silent_is_told_with_its_size(place: Site, output: Path) -> None:
    # Nodes see nothing of our /tmp.
    program = ROOT / "build" / f"talks-{output.parent.name}"
    program.write_text(
        "#!/bin/sh\necho '# OSU MPI Latency Test v7.4'\n"
        "echo '# Size          Latency (us)'\n"
        'for s in 1 2 4 8; do echo "$s 1.$s"; done\nsleep 600\n'
    )
    program.chmod(0o755)
    text = STUDY.format(name="x").replace(
        "{use: x}", f"{{program: {program}, log_format: osu, timeout_s: 15, mpi: openmpi5}}"
    )
    try:
        launch = launched(place, output, text, code=1)
    finally:
        program.unlink()
    assert launch.timed_out
    done = place.run(
        "study", "import", str(output), "--output", str(output) + ".s", "--json", timeout=60
    )
    assert done.returncode == 1
    (reason,) = json.loads(done.stdout)["refused"].values()
    assert "no end in time" in reason
