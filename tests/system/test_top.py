# SPDX-License-Identifier: Apache-2.0
"""A running job watched from outside: what it sends is seen, and its end and its death too."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from typing import TYPE_CHECKING, Any

import pytest

from nearmetal.core.resources import PROVIDER, built_places
from nearmetal.job.stats import read_counters
from tests.system.local import ROOT
from tests.system.need import lacking

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = [pytest.mark.system]

PROGRAM = ROOT / "build" / "c" / "benchmarks" / "fabric_pingpong"
LIBRARY = built_places(PROVIDER)[0]
if not PROGRAM.exists() or not LIBRARY.exists():
    lacking("the programs over libfabric are not built")

PATIENCE_S = 120.0


class Job:
    """Two ranks in one node, in a process group of their own."""

    def __init__(self, segment: Path, **knobs: str) -> None:
        segment.mkdir(mode=0o700, exist_ok=True)
        env = {k: v for k, v in os.environ.items() if not k.startswith("NEARMETAL_")}
        env |= {"FI_PROVIDER_PATH": str(LIBRARY.parent), "NEARMETAL_RUNDIR": str(segment)}
        self.process = subprocess.Popen(
            [str(PROGRAM), "-t", "4000", "-x", "262144"],
            env={**env, **knobs},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    def kill(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    jobs: list[Job] = []

    def begin(**knobs: str) -> Job:
        jobs.append(Job(tmp_path / "segment", **knobs))
        return jobs[-1]

    yield begin
    for job in jobs:
        if job.process.poll() is None:
            job.kill()


def top(directory: Path, *words: str) -> list[dict[str, Any]]:
    argv = [
        str(ROOT / "build/venv/bin/python"),
        "-m",
        "nearmetal",
        "top",
        "--once",
        "--json",
        "--interval",
        "0.3",
        "--dir",
        str(directory),
        *words,
    ]
    done = subprocess.run(
        argv, cwd=ROOT, capture_output=True, text=True, check=True, timeout=PATIENCE_S
    )
    return list(json.loads(done.stdout)["endpoints"])


def until(what: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not what():
        assert time.monotonic() < deadline, "nothing was seen"
        time.sleep(0.05)


def sent(directory: Path) -> int:
    return sum(p.total.sent_messages for s in read_counters(directory) for p in s.counters.peers)


def test_a_running_job_is_watched_and_leaves_nothing(
    start: Callable[..., Job], tmp_path: Path
) -> None:
    job = start()
    segment = tmp_path / "segment"
    until(lambda: sent(segment) > 1000)
    endpoints = top(segment)
    assert len(endpoints) == 2
    assert {e["pid"] for e in endpoints} != {job.process.pid}
    for endpoint in endpoints:
        assert endpoint["state"] == "running"
        (peer,) = endpoint["peers"]
        assert peer["channel"] == "shm"
        assert set(peer["channels"]) == {"shm"}
        assert "sealed window" in peer["reason"]
        (rate,) = endpoint["rates"]
        assert rate["channel"] == "shm"
    before = sent(segment)
    until(lambda: sent(segment) > before)
    assert [oct(p.stat().st_mode & 0o777) for p in segment.glob("*.stats")] == ["0o600"] * 2
    _, err = job.process.communicate(timeout=PATIENCE_S)
    assert job.process.returncode == 0, err
    assert list(segment.iterdir()) == []


def test_what_the_dead_leave_is_skipped_and_removed_by_the_next(
    start: Callable[..., Job], tmp_path: Path
) -> None:
    segment = tmp_path / "segment"
    job = start()
    until(lambda: sent(segment) > 0)
    job.kill()
    left = {p.name for p in segment.glob("*.stats")}
    assert len(left) == 2
    assert top(segment) == []
    assert len(top(segment, "--all")) == 2
    start()
    until(lambda: {p.name for p in segment.glob("*.stats")}.isdisjoint(left))


def test_statistics_that_were_asked_for_stay(start: Callable[..., Job], tmp_path: Path) -> None:
    stats = tmp_path / "stats"
    stats.mkdir()
    job = start(NEARMETAL_STATS_DIR=str(stats), PMI_RANK="3", NEARMETAL_JOB="my-job")
    until(lambda: sent(stats) > 0)
    _, err = job.process.communicate(timeout=PATIENCE_S)
    assert job.process.returncode == 0, err
    found = [seen.counters for seen in read_counters(stats)]
    assert [(c.state, c.rank, c.job) for c in found] == [("closed", 3, "my-job")] * 2
    totals = [c.peers[0].total for c in found]
    assert totals[0].sent_messages == totals[1].received_messages > 0
    assert totals[0].received_bytes == totals[1].sent_bytes > 0


def test_a_file_that_is_cut_short_does_not_stop_the_job(
    start: Callable[..., Job], tmp_path: Path
) -> None:
    segment = tmp_path / "segment"
    job = start()
    until(lambda: sent(segment) > 0)
    for path in segment.glob("*.stats"):
        with path.open("r+b") as file:
            file.truncate(0)
    until(lambda: sent(segment) > 0)
    _, err = job.process.communicate(timeout=PATIENCE_S)
    assert job.process.returncode == 0, err
