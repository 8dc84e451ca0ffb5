# SPDX-License-Identifier: Apache-2.0
"""The MPI programs notice what they are there to notice: one spoilt message among thousands."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from nearmetal.evidence import parse_log
from tests.system.local import ROOT
from tests.system.need import lacking

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.system, pytest.mark.mpi]

PROGRAMS = ROOT / "build" / "programs" / "openmpi4"
LIMITS = ROOT / "build" / "c" / "benchmarks" / "limits"
MPICC, MPIRUN = shutil.which("mpicc.openmpi"), shutil.which("mpirun.openmpi")
if MPICC is None or MPIRUN is None or not (PROGRAMS / "mpi_traffic").exists():
    lacking("Open MPI 4 or its programs are not here: run make setup")

TRAFFIC = ("mpi_traffic", "-n", "2000", "-b", "20M", "-w", "3")


@pytest.fixture(scope="module")
def spoiler(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("spoiler") / "mpi_corrupt.so"
    source = ROOT / "tests" / "system" / "programs" / "mpi_corrupt.c"
    subprocess.run(
        [str(MPICC), "-shared", "-fPIC", "-O1", str(source), "-o", str(made)], check=True
    )
    return made


def run(
    *program: str,
    preload: Path | None = None,
    how: str = "",
    at: int = 0,
    ranks: int = 2,
    options: tuple[str, ...] = (),
) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    words = [
        str(MPIRUN),
        "--oversubscribe",
        "--mca",
        "mpi_yield_when_idle",
        "1",
        "-np",
        str(ranks),
        *options,
    ]
    if preload is not None:
        for name, value in (("LD_PRELOAD", preload), ("SPOIL", how), ("SPOIL_AT", at)):
            words += ["-x", f"{name}={value}"]
    argv = [str(w) for w in (*words, PROGRAMS / program[0], *program[1:])]
    return subprocess.run(argv, env=env, capture_output=True, text=True, timeout=120, check=False)


def test_traffic_without_faults_passes(spoiler: Path) -> None:
    done = run(*TRAFFIC, preload=spoiler)
    assert done.returncode == 0, done.stderr
    assert "traffic OK: " in done.stdout
    parse_log(done.stdout, "traffic", "nearmetal-bench")


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("flip", "is 0x"),
        ("shorten", "bytes, expected"),
        ("retag", "FAILED rank"),
        ("twice", "FAILED rank"),
        ("drop", "FAILED rank"),
    ],
)
@pytest.mark.parametrize("at", [1, 200])
def test_traffic_notices_one_spoilt_message(
    spoiler: Path, how: str, expected: str, at: int
) -> None:
    done = run(*TRAFFIC, preload=spoiler, how=how, at=at)
    assert done.returncode != 0
    assert expected in done.stderr
    assert "traffic OK" not in done.stdout


def test_traffic_says_where_each_rank_is_stuck(spoiler: Path) -> None:
    done = run(*TRAFFIC, preload=spoiler, how="hang", at=50)
    assert done.returncode != 0
    assert "STUCK rank 0 of 2" in done.stderr
    assert "STUCK rank 1 of 2" in done.stderr


@pytest.mark.parametrize(
    ("pattern", "ranks"),
    [("pingping", 2), ("uniband", 2), ("biband", 2), ("exchange", 3)],
)
def test_patterns_notice_one_spoilt_message(spoiler: Path, pattern: str, ranks: int) -> None:
    arguments = ("mpi_patterns", "-c", "-p", pattern, "-M", "64K")
    assert run(*arguments, preload=spoiler, ranks=ranks).returncode == 0
    done = run(*arguments, preload=spoiler, how="flip", at=9, ranks=ranks)
    assert done.returncode != 0
    assert f"{pattern}: byte" in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("mpi_traffic", "-n", "x"),
        ("mpi_traffic", "-b", "10"),
        ("mpi_patterns", "-p", "pong"),
        ("mpi_patterns", "-m", "8K", "-M", "4K"),
        ("mpi_window", "-M", "-1"),
        ("mpi_window", "more"),
    ],
)
def test_wrong_arguments_are_refused(words: tuple[str, ...]) -> None:
    done = run(*words, ranks=1)
    assert done.returncode != 0
    assert "usage: " in done.stderr or "do not fit" in done.stderr


@pytest.mark.parametrize("name", ["mpi_patterns", "mpi_traffic", "mpi_window"])
def test_help_ends_well_and_is_said_once(name: str) -> None:
    done = run(name, "--help", ranks=2)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(f"usage: {name} ") == 1


def test_window_operations_are_right_with_three_ranks() -> None:
    # osc/rdma over btl/vader crashes in Open MPI 4.1.4's own emulation of remote memory access.
    done = run("mpi_window", "-c", "-M", "64K", ranks=3, options=("--mca", "osc", "pt2pt"))
    assert done.returncode == 0, done.stderr
    assert "# verified window" in done.stdout


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two cores are needed")
def test_limits_says_what_two_cores_can_do() -> None:
    done = subprocess.run(
        [LIMITS, "-t", "0.005"], capture_output=True, text=True, timeout=60, check=True
    )
    log = parse_log(done.stdout, "limits", "nearmetal-bench")
    assert [t.test for t in log.tables][:5] == [
        "cacheline",
        "slots",
        "memcpy",
        "one_copy",
        "two_copy",
    ]
    assert log.header["placement"].split()[0] in ("near", "far")


@pytest.mark.parametrize("words", [("-a", "0"), ("-a", "0", "-b", "0"), ("-t", "-1"), ("x",)])
def test_limits_refuses_wrong_arguments(words: tuple[str, ...]) -> None:
    done = subprocess.run([LIMITS, *words], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("usage: limits")
