# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C, kills and a full disk in the verbs that work on a cluster: nothing stays behind.

`up` and `exec` are in test_local_faults.py, `run` in test_local_run.py, `demo` in
test_bench_demo.py.
"""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nearmetal.evidence import load_run
from nearmetal.job.mpi import Mpi
from nearmetal.report.analysis import Evidence
from nearmetal.report.checks import State, run_checks
from tests.system.local import Site, site
from tests.system.need import need_build, need_mpi, need_root

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.system

need_root()
need_build()

SPEC = """\
version: 1
name: interrupts
backend: local
hosts: [{name: h, nodes: [{name: n1}, {name: n2}]}]
"""
INTERRUPTED = (128 + signal.SIGINT, -signal.SIGINT)


@pytest.fixture
def up() -> Iterator[tuple[Site, str]]:
    with site() as place:
        spec = place.write("spec.yaml", SPEC)
        place.ok("up", spec)
        place.look(spec)
        yield place, spec


def left_by_jobs(place: Site, spec: str) -> list[str]:
    """Directories and processes of jobs that are still in the nodes."""
    script = "ls /run/nearmetal; for p in /proc/[0-9]*; do tr '\\0' ' ' <$p/cmdline; echo; done"
    words = ("job-", "probe-", "nearmetal-info", "mpirun", "mpiexec", "mpi_patterns")
    text = "".join(place.ok("exec", spec, n, "--", "sh", "-c", script) for n in ("n1", "n2"))
    return [line for line in text.splitlines() if any(word in line for word in words)]


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.parametrize("delay_ms", [0, 20])
def test_down_ended_at_any_time(
    up: tuple[Site, str], delay_ms: int, signum: signal.Signals
) -> None:
    place, spec = up
    lock = place.state / "locks" / "interrupts"
    with place.start("down", "--yes", spec) as process:
        while not lock.exists() and process.poll() is None:
            time.sleep(0.001)
        time.sleep(delay_ms / 1000)
        process.send_signal(signum)
        _, words = process.communicate(timeout=30)
    assert process.returncode in (0, -signum, 128 + signum), words
    assert "Traceback" not in words
    place.ok("down", "--yes", spec)
    place.assert_no_trace()


@pytest.mark.parametrize("delay_ms", [0, 100])
def test_locality_interrupted_at_any_time(up: tuple[Site, str], delay_ms: int) -> None:
    place, spec = up
    (node, _) = place.json("status", spec)["nodes"]
    meeting = Path(f"/proc/{node['pid']}/root/run/nearmetal")
    with place.start("locality", spec) as process:
        while not list(meeting.iterdir()) and process.poll() is None:
            time.sleep(0.001)
        time.sleep(delay_ms / 1000)
        process.send_signal(signal.SIGINT)
        _, words = process.communicate(timeout=30)
    assert process.returncode in (0, *INTERRUPTED), words
    assert "Traceback" not in words
    assert left_by_jobs(place, spec) == []
    pairs = place.json("locality", spec)["pairs"]
    assert {p["channel"] for p in pairs} == {"self", "shm"}
    place.ok("down", "--yes", spec)
    place.assert_no_trace()


def bench_until(place: Site, spec: str, output: Path, moment: str) -> tuple[int, str]:
    argv = ("bench", spec, "--mpi", "openmpi5", "--blocks", "1", "-n", "2", "--output", str(output))
    with place.start(*argv) as process:
        deadline = time.monotonic() + 60
        while not list(output.glob(moment)) and time.monotonic() < deadline:
            assert process.poll() is None, process.communicate()
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, words = process.communicate(timeout=60)
    return process.returncode, words


@pytest.mark.mpi
@pytest.mark.parametrize("moment", ["raw", "raw/0002*.out"])
def test_bench_interrupted_leaves_the_cluster_usable(up: tuple[Site, str], moment: str) -> None:
    need_mpi(Mpi.OPENMPI5)
    place, spec = up
    output = place.directory / "bench"
    code, words = bench_until(place, spec, output, moment)
    assert code in INTERRUPTED, words
    assert "interrupted" in words
    assert left_by_jobs(place, spec) == []
    # What was measured until then is kept, and its report says that it is not all.
    if (output / "manifest.json").exists():
        checks = {check.title: check for check in run_checks(Evidence(load_run(output)))}
        assert checks["the run was interrupted"].state is State.BAD
    else:
        assert moment == "raw"
    place.ok("down", "--yes", spec)
    place.assert_no_trace()


@pytest.mark.mpi
def test_bench_on_a_full_disk_says_so(up: tuple[Site, str]) -> None:
    need_mpi(Mpi.OPENMPI5)
    place, spec = up
    disk = place.directory / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(disk)]
    subprocess.run(mount, check=True, timeout=20)
    try:
        argv = ("--mpi", "openmpi5", "--blocks", "1", "-n", "2", "--output", str(disk / "run"))
        done = place.run("bench", spec, *argv, timeout=120)
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True, timeout=20)
    assert done.returncode == 1
    assert "No space left on device" in done.stderr
    assert "Traceback" not in done.stderr
    assert left_by_jobs(place, spec) == []
    place.ok("down", "--yes", spec)
    place.assert_no_trace()
