# SPDX-License-Identifier: Apache-2.0
"""`nearmetal run` with every MPI's own launcher: placement, exit codes, interruption."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nearmetal.job.mpi import Family, Mpi
from tests.system.local import ROOT, Site, site
from tests.system.mpi_jobs import INSTALLED, compile_for, two_nodes_up
from tests.system.need import lacking, need_mpi
from tests.walks import walk

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.system, pytest.mark.mpi]

SOURCE = ROOT / "tests" / "system" / "programs" / "endings.c"


@pytest.fixture(scope="module")
def up() -> Iterator[tuple[Site, str]]:
    with site() as place:
        compile_for(INSTALLED, SOURCE, place.directory)
        with two_nodes_up(place, 2, place.directory) as spec:
            yield place, spec


@pytest.fixture(params=list(Mpi), ids=lambda mpi: mpi.value)
def mpi(request: pytest.FixtureRequest) -> Mpi:
    assert isinstance(request.param, Mpi)
    need_mpi(request.param)
    return request.param


def run(
    up: tuple[Site, str], mpi: Mpi, *args: str, n: int = 4, more: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    place, spec = up
    program = str(place.directory / mpi.value)
    stock = ("--mpi", mpi.value, "--provider", "stock", "--timeout", "50", "-n", str(n))
    return place.run("run", spec, *stock, *more, "--", program, *args, timeout=90)


def hosts(text: str) -> list[str]:
    """Return the host of every rank, by rank."""
    lines = sorted(line for line in text.splitlines() if line.startswith("rank "))
    return [line.split()[5] for line in lines]


def leftovers(up: tuple[Site, str]) -> list[str]:
    """Processes in the cluster besides process 1 of each place, and directories of jobs."""
    place, spec = up
    script = "ls /run/nearmetal; for p in /proc/[0-9]*; do cat $p/cmdline 2>/dev/null | tr '\\0' ' '; echo; done"
    text = place.ok("exec", spec, "n1", "--", "sh", "-c", script)
    return [
        line for line in text.splitlines() if "job-" in line or "mpi" in line or "/proxy" in line
    ]


@pytest.mark.parametrize(
    ("n", "order", "expected"),
    [
        (4, "slot", ["n1", "n1", "n2", "n2"]),
        (4, "node", ["n1", "n2", "n1", "n2"]),
        (3, "slot", ["n1", "n1", "n2"]),
        (3, "node", ["n1", "n2", "n1"]),
        (1, "slot", ["n1"]),
    ],
)
def test_ranks_go_where_they_should(
    up: tuple[Site, str], mpi: Mpi, n: int, order: str, expected: list[str]
) -> None:
    done = run(up, mpi, n=n, more=("--map-by", order))
    assert done.returncode == 0, done.stderr
    assert hosts(done.stdout) == expected
    assert leftovers(up) == []


@pytest.mark.parametrize(
    ("args", "code"), [(("exit", "3"), 3), (("signal", "9"), 137), (("signal", "11"), 139)]
)
def test_the_exit_code_of_the_rank_that_failed(
    up: tuple[Site, str], mpi: Mpi, args: tuple[str, str], code: int
) -> None:
    done = run(up, mpi, *args)
    assert done.returncode == code, done.stderr
    assert f"the job ended with exit code {code}" in done.stderr
    assert leftovers(up) == []
    assert run(up, mpi).returncode == 0


@pytest.mark.parametrize(("mpi", "delay_s"), walk(product(Mpi, (0.5, 1.5, 4.0))), indirect=["mpi"])
def test_interrupted_at_any_time_the_cluster_stays_usable(
    up: tuple[Site, str], mpi: Mpi, delay_s: float
) -> None:
    place, spec = up
    program = str(place.directory / mpi.value)
    argv = ("run", spec, "--mpi", mpi.value, "--provider", "stock", "--", program, "sleep", "60")
    with place.start(*argv) as process:
        time.sleep(delay_s)
        process.send_signal(signal.SIGINT)
        begin = time.monotonic()
        process.communicate(timeout=30)
    assert time.monotonic() - begin < 20
    assert process.returncode in (128 + signal.SIGINT, -signal.SIGINT)
    assert leftovers(up) == []
    assert run(up, mpi).returncode == 0


def test_a_job_past_its_time_is_ended(up: tuple[Site, str], mpi: Mpi) -> None:
    done = run(up, mpi, "sleep", "60", more=("--timeout", "5"))
    assert done.returncode == 124
    assert "it still ran after" in done.stderr
    assert leftovers(up) == []


def test_json_has_everything_and_nothing_else(up: tuple[Site, str], mpi: Mpi) -> None:
    done = run(up, mpi, more=("--json", "--env", "OMP_NUM_THREADS=1"))
    data = json.loads(done.stdout)
    assert data["exit_code"] == 0
    assert data["mpi"] == mpi.value
    assert data["ranks"] == [["n1", 2], ["n2", 2]]
    assert data["proof"]["verdict"] == "not asked"
    assert data["env"]["OMP_NUM_THREADS"] == "1"
    assert hosts(done.stderr) == ["n1", "n1", "n2", "n2"]


def test_what_cannot_run_says_why(up: tuple[Site, str], tmp_path: Path) -> None:
    place, spec = up
    hidden = tmp_path / "hidden"
    hidden.write_text("#!/bin/sh\n")
    hidden.chmod(0o755)
    cases: list[tuple[tuple[str, ...], int, str]] = [
        (("--", "no-such-program"), 1, "looked in /"),
        (("-n", "5", "--", "true"), 2, "pass -n 4 or fewer"),
        (("--mpi", "mvapich", "--", "true"), 2, "known: openmpi5"),
        (("--provider", "stock", "--", str(hidden)), 1, "list its directory under `show:`"),
        (("--env", "novalue", "--", "true"), 2, "not of the form K=V"),
        (("--channels", "shn", "--", "true"), 2, "unknown channel 'shn'"),
        ((), 2, "PROGRAM"),
    ]
    for args, code, words in cases:
        done = place.run("run", spec, *args)
        assert (done.returncode, words in done.stderr) == (code, True), (args, done.stderr)


def test_a_program_of_another_mpi_is_refused(up: tuple[Site, str], mpi: Mpi) -> None:
    other = next((m for m in INSTALLED if m.family is not mpi.family), None)
    if other is None:
        lacking("only one family of MPIs is installed")
    place, spec = up
    program = str(place.directory / mpi.value)
    done = place.run("run", spec, "--mpi", other.value, "--provider", "stock", "--", program)
    assert done.returncode == 1
    library = Family.OPENMPI if mpi.family is Family.OPENMPI else Family.MPICH
    assert f"is linked to {library.value}" in done.stderr


def test_two_jobs_at_once(up: tuple[Site, str]) -> None:
    mpi = next(iter(INSTALLED), None)
    if mpi is None:
        lacking("no MPI is installed")
    place, spec = up
    argv = (
        "run",
        spec,
        "--mpi",
        mpi.value,
        "--provider",
        "stock",
        "-n",
        "2",
        "--map-by",
        "node",
        "--",
        str(place.directory / mpi.value),
        "sleep",
        "1",
    )
    with place.start(*argv) as one, place.start(*argv) as two:
        outputs = [process.communicate(timeout=90)[0] for process in (one, two)]
    assert (one.returncode, two.returncode) == (0, 0)
    assert [hosts(text) for text in outputs] == [["n1", "n2"], ["n1", "n2"]]
