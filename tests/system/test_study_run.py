# SPDX-License-Identifier: Apache-2.0
"""A study on real nodes: killed in the middle, gone on with, imported, judged and reported."""

from __future__ import annotations

import json
import re
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nearmetal.evidence import read_manifest
from nearmetal.job.mpi import Mpi
from tests.system.browser import browser, find_browser
from tests.system.local import ROOT, Site, site
from tests.system.need import lacking, need_build, need_mpi, need_root
from tests.system.page import WINDOWS, assert_good_page

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

pytestmark = [pytest.mark.system, pytest.mark.mpi, pytest.mark.timeout(1800)]

need_root()
need_build()
need_mpi(Mpi.MPICH5)

STUDY = ROOT / "nearmetal/share/examples" / "studies" / "near-or-tcp.yaml"
ARMS, WORKLOADS, BLOCKS = ("one-node", "near", "tcp"), ("pingpong", "allreduce", "netpipe"), 6


@pytest.fixture
def place() -> Iterator[Site]:
    with site() as made:
        yield made


def manifest_after(output: Path, launches: int, process: subprocess.Popen[str]) -> None:
    """Wait until so many launches are recorded."""
    deadline = time.monotonic() + 900
    while time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()
        if (output / "manifest.json").exists() and len(read_manifest(output).launches) >= launches:
            return
        time.sleep(0.05)
    pytest.fail(f"fewer than {launches} launches in a quarter of an hour")


def test_a_study_is_killed_resumed_imported_and_reported(place: Site) -> None:
    for spec in ("one-node", "two-nodes"):
        done = place.run("up", f"examples/{spec}.yaml", timeout=60)
        assert done.returncode == 0, done.stderr
    output = place.directory / "run"
    words = ("study", "run", str(STUDY), "--output", str(output), "--json")

    process = place.start(*words)
    manifest_after(output, 5, process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    before = read_manifest(output).launches
    assert len(before) < BLOCKS * len(ARMS) * len(WORKLOADS)

    done = place.run(*words, timeout=1500)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["launches"], told["failed"]) == (54, 0)
    manifest = read_manifest(output)
    # What was done stays as it was, and everything was launched once in every block.
    assert manifest.launches[: len(before)] == before
    made = [(launch.block, launch.program, launch.arm) for launch in manifest.launches]
    assert sorted(made) == sorted((b, w, a) for b in range(BLOCKS) for w in WORKLOADS for a in ARMS)
    carried = {launch.arm: launch.proof.verdict for launch in manifest.launches}
    assert carried["near"] == "proven", carried
    # With counters or with the reason why there are none.
    assert all(launch.facts["energy"] for launch in manifest.launches)

    again = place.run(*words, timeout=60)
    assert json.loads(again.stdout)["launches"] == 54
    assert read_manifest(output).launches == manifest.launches

    study = place.directory / "study"
    done = place.run("study", "import", str(output), "--output", str(study), timeout=60)
    assert done.returncode == 0, done.stderr
    done = place.run(
        "study",
        "report",
        str(study),
        "one-node",
        "near",
        "tcp",
        "--json",
        "--margin",
        "20",
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert set(told["verdicts"]) == {"near", "tcp"}
    page = Path(told["report"])
    text = page.read_text()
    head = re.search(r"<h1>Against one-node, [12] of 2 arms ", text)
    assert head is not None
    assert head.start() < text.index('id="testbed"')
    assert "Records of the launches" in text
    for said in ("shm (counted)", "n1: cores", "MPICH 5.", "Open MPI 5."):
        assert said in text
    if find_browser() is None:
        lacking("all but the page in Chromium, which is not installed")
    with browser() as window:
        for name in WINDOWS:
            assert_good_page(window, page, name)
    for spec in ("one-node", "two-nodes"):
        assert place.run("down", "--yes", spec, timeout=60).returncode == 0
    place.assert_no_trace()


def test_another_study_file_is_not_mixed_in(place: Site) -> None:
    for spec in ("one-node", "two-nodes"):
        assert place.run("up", f"examples/{spec}.yaml", timeout=60).returncode == 0
    output = place.directory / "run"
    process = place.start("study", "run", str(STUDY), "--output", str(output))
    manifest_after(output, 0, process)
    second = place.run("study", "run", str(STUDY), "--output", str(output), timeout=60)
    assert second.returncode == 1
    assert "is in use by process" in second.stderr
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    other = place.directory / "other.yaml"
    other.write_text(STUDY.read_text() + "# another\n")
    third = place.run("study", "run", str(other), "--output", str(output), timeout=60)
    assert third.returncode == 1
    assert "has launches of another study file" in third.stderr
    for spec in ("one-node", "two-nodes"):
        assert place.run("down", "--yes", spec, timeout=60).returncode == 0
    place.assert_no_trace()
