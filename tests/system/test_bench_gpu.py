# SPDX-License-Identifier: Apache-2.0
"""The suite `gpu` on two local nodes: without a GPU, and with the stand-in of its driver."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nearmetal.cluster.apply import Cluster, down, up
from nearmetal.cluster.backend import open_backend
from nearmetal.cluster.spec import load_spec
from nearmetal.cluster.store import Store
from nearmetal.core.errors import LaunchError
from nearmetal.core.process import Command, LocalRunner
from nearmetal.core.resources import built_program
from nearmetal.evidence import load_run
from nearmetal.report.run_page import render_html
from nearmetal.study.runner.collect import Collector
from nearmetal.study.runner.suite import GPU_ARMS, SUITES, PlannedLaunch
from tests.system.local import ROOT, Site, site
from tests.system.need import lacking, need_build, need_root

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.system

need_root()
need_build()
STAND_IN = ROOT / "build" / "c" / "tests" / "device"
SPEC = ROOT / "nearmetal/share/examples" / "two-nodes.yaml"
try:
    built_program("fabric_device")
except LaunchError as missing:
    lacking(str(missing))
if not (STAND_IN / "libcuda.so.1").exists():
    lacking(f"{STAND_IN}/libcuda.so.1 is not built")


@pytest.fixture
def place() -> Iterator[Site]:
    with site() as made:
        yield made


def test_without_a_gpu_nothing_is_launched_and_the_reason_is_given(
    place: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = place.directory / "driver"
    empty.mkdir()
    (empty / "libcuda.so.1").write_text("not a library")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(empty))
    place.ok("up", str(SPEC))
    try:
        out = place.directory / "run"
        done = place.run("bench", str(SPEC), "--suite", "gpu", "--output", str(out))
        assert done.returncode == 1
        assert "node n1 has no GPU that programs can use: no driver of NVIDIA" in done.stderr
        assert not out.exists()
        monkeypatch.setenv("LD_LIBRARY_PATH", str(STAND_IN))
        refused = place.run("bench", str(SPEC), "--suite", "gpu", "--arms", "segment")
        assert refused.returncode == 2
        assert "the two nodes share no segment" in refused.stderr
    finally:
        place.ok("down", "--yes", "two-nodes")
    place.assert_no_trace()


def test_each_path_carries_every_size_with_its_limits(
    place: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(STAND_IN))
    spec, store = load_spec(SPEC), Store(place.state)
    cluster = Cluster("two-nodes", open_backend(spec, store, LocalRunner()), store)
    program = replace(SUITES["gpu"].fabric[0], args=("-t", "3", "-x", "1M"))
    arms = [arm for name, arm in GPU_ARMS.items() if name != "segment"]
    steps = [PlannedLaunch(0, program, None, arm) for arm in arms]
    out = place.directory / "run"
    try:
        up(cluster, spec)
        found = Collector(cluster.backend, spec, LocalRunner(), out, "gpu", 1, 2).run(steps)
    finally:
        down(cluster)
    assert [(out / x.stderr).read_text() for x in found.launches if not x.good] == []
    carried = {launch.arm: (set(launch.proof.messages), launch.nodes) for launch in found.launches}
    assert carried == {
        "near": ({"shm"}, "n1:2"),
        "handle": ({"shm"}, "n1:2"),
        "staged": ({"shm"}, "n1:2"),
        "apart": ({"shm"}, "n1:1,n2:1"),
        "net": ({"net"}, "n1:1,n2:1"),
    }
    run = load_run(out)
    tables = {
        f"fabric_device_{pair}{both}" for pair in ("DH", "HD", "DD") for both in ("", "_both")
    }
    sizes = {8 << n for n in range(18)}
    for arm in carried:
        facts = [fact for fact in run.facts if fact.arm == arm]
        assert {fact.test for fact in facts} == tables
        for metric in ("bandwidth_p50", "copy_p50", "pinned_p50", "of_copy", "of_pinned"):
            values = [fact for fact in facts if fact.metric == metric]
            assert {fact.size for fact in values} == sizes
            assert all(fact.value >= 0 for fact in values)
    assert "GPU to GPU" in render_html(run)
    assert json.loads((out / "manifest.json").read_text())["suite"] == "gpu"
    place.assert_no_trace()


def test_the_program_alone_says_why_there_is_no_gpu(tmp_path: Path) -> None:
    program = str(built_program("fabric_device"))
    runner = LocalRunner()
    env = {"PATH": "/usr/bin:/bin", "LD_LIBRARY_PATH": str(STAND_IN), "NM_STAND_IN_GPUS": "0"}
    for words in ([program, "-c"], [program]):
        none = runner.run(Command(tuple(words), env=env), timeout_s=30)
        assert none.code == 1
        assert "shows no GPU" in none.error_tail
    odd = runner.run(Command((program, "-x", "4"), env=env, cwd=tmp_path), timeout_s=30)
    assert odd.code == 2
