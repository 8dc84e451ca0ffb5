# SPDX-License-Identifier: Apache-2.0
"""The table of figures on real nodes: jobs take turns, what failed is told, nothing is left."""

from __future__ import annotations

import json
import os
import signal
import time
from typing import TYPE_CHECKING

import pytest

from benchmarks.promises.samples import LIMITS, Samples, What, Who
from nearmetal.evidence import load_run
from nearmetal.job.mpi import Mpi
from tests.system.local import Site, site
from tests.system.need import need_build, need_mpi, need_root

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.system, pytest.mark.mpi]

need_root()
if len(os.sched_getaffinity(0)) < 2:
    pytest.skip("two cores are needed", allow_module_level=True)
need_build()
need_mpi(Mpi.OPENMPI5)


@pytest.fixture
def place() -> Iterator[Site]:
    with site() as made:
        made.program = "benchmarks.promises"
        yield made
        made.program = "nearmetal"


def test_jobs_take_turns_and_every_sample_is_kept(place: Site) -> None:
    out = place.directory / "out"
    done = place.run(
        "--only",
        "fabric-latency,openmpi-latency",
        "--seconds",
        "0.3",
        "--output",
        str(out),
        "--json",
        timeout=240,
    )
    assert done.returncode in (0, 4), done.stderr
    data = json.loads(done.stdout)
    assert data == json.loads((out / "figures.json").read_text())
    assert [f["name"] for f in data["figures"]] == ["fabric-latency", "openmpi-latency"]
    run = load_run(next(out.glob("run-*")))
    assert run.manifest.skipped == ()
    assert all(launch.good for launch in run.manifest.launches)
    proofs = {x.arm: x.proof for x in run.manifest.launches if x.mpi == "openmpi5"}
    assert proofs["sealed"].verdict == "proven"
    assert set(proofs["sealed"].messages) == {"shm"}
    samples = Samples(run)
    latency = What("pingpong", 8)
    # The cores may have moved all the time: then nothing is judged, but everything was taken.
    if samples.unsettled == 0:
        who = samples.who(latency)
        assert {Who("", "sealed"), Who("", "shm"), Who("openmpi5", "sm")} <= set(who)
    assert What("cacheline", 8) in samples.whats(Who(*LIMITS))


def test_an_interrupted_run_leaves_no_cluster(place: Site) -> None:
    out = place.directory / "out"
    with place.start("--only", "openmpi-latency", "--output", str(out)) as process:
        deadline = time.monotonic() + 60
        while not list(out.glob("run-*/raw/*sm*")) and time.monotonic() < deadline:
            time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=90)
    assert process.returncode != 0
    assert not list(place.state.rglob("init.json")), "the cluster is still there"
