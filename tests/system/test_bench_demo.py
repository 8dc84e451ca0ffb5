# SPDX-License-Identifier: Apache-2.0
"""The whole chain on real nodes: measured, proven, reported, and nothing left."""

from __future__ import annotations

import json
import re
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nearmetal.cluster.apply import Cluster, down, up
from nearmetal.cluster.backend import open_backend
from nearmetal.cluster.spec import load_spec
from nearmetal.cluster.store import Store
from nearmetal.core.process import LocalRunner
from nearmetal.evidence import load_run
from nearmetal.job.mpi import Mpi, find_installations
from nearmetal.report.analysis import Evidence
from nearmetal.report.checks import State, run_checks
from nearmetal.report.run_page import render_html
from nearmetal.study.runner.collect import Collector
from nearmetal.study.runner.suite import ARMS, PlannedLaunch, Program, Where
from tests.system.local import ROOT, Site, site
from tests.system.need import need_build, need_mpi, need_root

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

    from nearmetal.evidence import Manifest

pytestmark = [pytest.mark.system, pytest.mark.mpi]

need_root()
need_build()
INSTALLED = find_installations()


@pytest.fixture
def place() -> Iterator[Site]:
    with site() as made:
        yield made


def test_demo_measures_reports_and_leaves_nothing_but_the_run(place: Site) -> None:
    need_mpi(Mpi.OPENMPI5)
    out = place.directory / "demo"
    done = place.run("demo", "--json", "--blocks", "1", "--output", str(out), timeout=240)
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    assert [v["title"] for v in data["verdicts"]] == [
        "latency of 8 bytes",
        "rate of 8-byte messages",
        "bandwidth at 64 KiB",
        "bandwidth at 1 MiB",
    ]
    assert all(v["nearmetal"] and v["limit"] and v["network_only"] for v in data["verdicts"])
    assert {v["ratio"] for v in data["verdicts"]} == {None}
    assert {v["verdict"] for v in data["verdicts"]} == {"too few launches: 1 of at least 6"}
    assert {p["channel"] for p in data["pairs"]} == {"self", "shm"}
    assert "shm" in data["hello"]
    assert Path(data["report"]).read_text().startswith("<!DOCTYPE html>")
    place.assert_no_trace()
    run = load_run(out)
    found = {c.title: c for c in run_checks(Evidence(run))}
    assert found["every launch ended well"].state is State.GOOD
    assert found["nearmetal: the provider carried it"].state is State.GOOD
    assert found["the network was idle under nearmetal"].state is State.GOOD
    assert found["the baseline went over the network"].state is State.GOOD
    assert {"net"} == {
        c
        for launch in run.manifest.launches
        if launch.arm == "net"
        for c in launch.proof.messages
        if c != "self"
    }


def wait_for(path: Path, process: subprocess.Popen[str], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not path.exists() and time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    assert path.exists()


@pytest.mark.parametrize("moment", ["state/clusters", "demo/raw", "demo/raw/0002*.out"])
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_takes_its_cluster_down(
    place: Site, moment: str, signum: signal.Signals
) -> None:
    out = place.directory / "demo"
    with place.start("demo", "--blocks", "1", "--output", str(out)) as process:
        deadline = time.monotonic() + 60
        while not list(place.directory.glob(moment)) and time.monotonic() < deadline:
            assert process.poll() is None, process.communicate()
            time.sleep(0.01)
        process.send_signal(signum)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + signum, err
    assert "interrupted" in err
    place.assert_no_trace()


def test_a_demo_that_was_killed_is_cleared_by_down(place: Site) -> None:
    out = place.directory / "demo"
    with place.start("demo", "--blocks", "1", "--output", str(out)) as process:
        wait_for(out / "raw", process)
        process.kill()
        process.communicate(timeout=30)
    assert place.state.exists()
    place.ok("down", "--yes", "demo")
    (place.state / "locks" / "demo-verb").unlink(missing_ok=True)
    for path in (place.state / "locks", place.state / "clusters", place.state):
        if path.exists():
            path.rmdir()
    place.assert_no_trace()


def test_a_cluster_of_the_user_stays(place: Site) -> None:
    spec = place.directory / "mine.yaml"
    spec.write_text(
        "version: 1\nname: demo\nbackend: local\nhosts: [{name: h1, nodes: [{name: a}]}]\n"
    )
    place.ok("up", str(spec))
    try:
        refused = place.run("demo", "--output", str(place.directory / "demo"))
        assert refused.returncode == 1
        assert "there is a cluster 'demo'" in refused.stderr
        assert place.ok("exec", "demo", "a", "--", "echo", "here").strip().endswith("here")
    finally:
        place.ok("down", "--yes", "demo")


def test_two_demos_do_not_tread_on_each_other(place: Site) -> None:
    first_out, second_out = place.directory / "demo", place.directory / "second"
    with place.start("demo", "--blocks", "1", "--output", str(first_out)) as process:
        wait_for(first_out / "raw", process)
        second = place.run("demo", "--output", str(second_out))
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert second.returncode == 1
    assert "is in use by process" in second.stderr
    assert not second_out.exists()


def test_a_run_directory_is_never_overwritten(place: Site) -> None:
    out = place.directory / "demo"
    out.mkdir()
    done = place.run("demo", "--output", str(out))
    assert done.returncode == 2
    assert " exists" in done.stderr


def measure(place: Site, steps: list[PlannedLaunch]) -> Manifest:
    """Run steps on two nodes of their own."""
    spec = load_spec(ROOT / "nearmetal/share/examples" / "two-nodes.yaml")
    store = Store(place.state)
    cluster = Cluster("two-nodes", open_backend(spec, store, LocalRunner()), store)
    out = place.directory / "run"
    try:
        up(cluster, spec)
        manifest = Collector(cluster.backend, spec, LocalRunner(), out, "own", 1, 2).run(steps)
    finally:
        down(cluster)
    errors = [(out / x.stderr).read_text() for x in manifest.launches if not x.good]
    assert errors == []
    assert manifest.skipped == ()
    return manifest


def test_libfabric_alone_between_two_nodes(place: Site) -> None:
    program = Program("fabric", "fabric_pingpong", Where.BENCHMARKS, ("-t", "10", "-x", "64K"))
    steps = [PlannedLaunch(0, program, None, ARMS[arm]) for arm in ("auto", "net")]
    auto, net = measure(place, steps).launches
    assert set(auto.proof.messages) == {"shm"}
    assert set(net.proof.messages) == {"net"}
    assert auto.wire_bytes is not None
    assert net.wire_bytes is not None
    assert auto.wire_bytes < net.wire_bytes // 100
    page = render_html(load_run(place.directory / "run"))
    assert "Latency of libfabric alone" in page
    place.assert_no_trace()


IMB = ("-npmin", "{ranks}", "-msglog", "3:12", "-iter", "20", "-time", "0.5")
THIRD_PARTY = [
    (
        Mpi.MPICH5,
        Program("IMB-MPI1", "IMB-MPI1", Where.IMPI, (*IMB, "PingPong", "Allreduce"), "imb"),
    ),
    (Mpi.IMPI, Program("IMB-RMA", "IMB-RMA", Where.IMPI, (*IMB, "Unidir_put"), "imb")),
    (
        Mpi.OPENMPI5,
        Program(
            "NetPIPE",
            "NPopenmpi",
            Where.SYSTEM,
            ("-o", "/dev/null", "-u", "4096", "-n", "20"),
            "netpipe",
            log="stderr",
            last_size=4096,
            max_ranks=2,
        ),
    ),
]


@pytest.mark.parametrize(("mpi", "program"), THIRD_PARTY, ids=lambda p: getattr(p, "label", p))
def test_third_party_benchmarks_are_run_read_and_shown(
    place: Site, mpi: Mpi, program: Program
) -> None:
    need_mpi(mpi)
    manifest = measure(
        place, [PlannedLaunch(0, program, mpi, ARMS[arm]) for arm in ("auto", "stock")]
    )
    assert manifest.launches[0].proof.verdict == "proven"
    run = load_run(place.directory / "run")
    facts = [f for f in run.facts if f.size == 64 and f.arm == "auto"]
    assert facts
    page = render_html(run)
    assert f"{program.label}: as it prints them" in page
    assert re.search(r'<td><a href="#f\d+-l\d+">', page)
    place.assert_no_trace()
