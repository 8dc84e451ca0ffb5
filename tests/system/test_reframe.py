# SPDX-License-Identifier: Apache-2.0
"""The checks for ReFrame, by ReFrame itself, on a real cluster of two nodes."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from nearmetal.core.resources import share
from nearmetal.job.mpi import Mpi
from tests.system.local import ROOT, Site, site
from tests.system.need import lacking, need_build, need_mpi, need_root

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.system, pytest.mark.mpi, pytest.mark.full, pytest.mark.timeout(900)]

need_root()
need_build()
need_mpi(Mpi.MPICH5)

REFRAME = Path(os.environ.get("REFRAME", ROOT / "build/reframe/bin/reframe"))
CHECKS = share("reframe", "nearmetal_checks.py")
SPEC = "examples/two-nodes.yaml"


@pytest.fixture(scope="module")
def place() -> Iterator[Site]:
    if not REFRAME.exists():
        lacking("ReFrame is not installed")
    with site() as made:
        made.ok("up", SPEC)
        yield made
        made.ok("down", "--yes", SPEC)
        made.assert_no_trace()


def program(place: Site, name: str, text: str) -> Path:
    path = place.directory / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def nearmetal(place: Site) -> Path:
    """The command line on the state of the test; ReFrame starts jobs with few variables."""
    words = [f"{name}={shlex.quote(value)}" for name, value in place.environment().items()]
    return program(
        place,
        "near metal",
        f'exec env -u TMPDIR {" ".join(words)} {sys.executable} -m nearmetal "$@"',
    )


def reframe(place: Site, check: str, tmp_path: Path, *more: str, start: Path | None = None) -> Any:
    """Run one check; return its case in the report of ReFrame."""
    report = tmp_path / "report.json"
    argv = [str(REFRAME), "-c", str(CHECKS), "-n", check, "-r", f"--prefix={tmp_path / 'rfm'}"]
    argv += [f"--report-file={report}", "-S", f"program={start or nearmetal(place)}"]
    # ReFrame leaves its log in the directory of temporary files.
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [*argv, "-S", f"spec={SPEC}", *more],
        env=env,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert report.exists(), done.stdout + done.stderr
    (case,) = json.loads(report.read_text())["runs"][0]["testcases"]
    assert (done.returncode == 0) == (case["result"] == "pass"), done.stdout
    return case


def why(case: Any) -> str:
    return str(case["fail_info"]["exc_value"])


def test_two_nodes_of_a_host_meet_in_memory(place: Site, tmp_path: Path) -> None:
    assert reframe(place, "NearmetalChannels", tmp_path)["result"] == "pass"


def test_a_channel_that_the_site_does_not_expect_fails_with_the_reason(
    place: Site, tmp_path: Path
) -> None:
    case = reframe(place, "NearmetalChannels", tmp_path, "-S", "channels=net")
    assert case["result"] == "fail"
    assert why(case).startswith("n1 to n2: shm (each side sees the other's sealed window, ")
    assert why(case).endswith("), expected net")


def test_a_cluster_that_is_down_fails_with_the_error(place: Site, tmp_path: Path) -> None:
    other = ("-S", "spec=examples/near-far.yaml")
    case = reframe(place, "NearmetalChannels", tmp_path, *other)
    assert case["result"] == "fail"
    assert "nearmetal: cluster near-far is not up" in why(case)


def test_the_ping_pong_is_right_and_faster_than_the_network_of_the_same_job(
    place: Site, tmp_path: Path
) -> None:
    case = reframe(place, "NearmetalPingPong", tmp_path, "-S", "mpi=mpich5")
    assert case["result"] == "pass", case
    found = {name.rpartition(":")[2]: values for name, values in case["perfvalues"].items()}
    assert set(found) == {"short", "short_high", "long", "long_high"}
    for size in ("short", "long"):
        ratio, high = found[size][0], found[f"{size}_high"][0]
        assert 0 < ratio <= high <= 1


def test_a_ratio_that_no_machine_reaches_fails(place: Site, tmp_path: Path) -> None:
    limit = ("-S", "most_ratio=0.0001")
    case = reframe(place, "NearmetalPingPong", tmp_path, "-S", "mpi=mpich5", *limit)
    assert case["result"] == "fail"
    assert case["fail_phase"] == "performance"


def test_too_few_launches_for_an_interval_fail(place: Site, tmp_path: Path) -> None:
    """ReFrame itself leaves out a performance variable that has no value."""
    few = ("-S", "launches=2")
    case = reframe(place, "NearmetalPingPong", tmp_path, "-S", "mpi=mpich5", *few)
    assert (case["result"], case["fail_phase"]) == ("fail", "sanity")
    assert why(case).startswith("8 bytes: INCONCLUSIVE: too few launches for an interval")


def test_a_job_whose_network_arm_used_memory_fails(place: Site, tmp_path: Path) -> None:
    """The counters decide, and not what the study asked for."""
    change = shlex.quote('s/"way": "net"/"way": "auto"/')
    forge = f"[ ! -e study.yaml ] || sed -i {change} study.yaml"
    start = program(place, "liar", f'{forge}; exec {shlex.quote(str(nearmetal(place)))} "$@"')
    case = reframe(place, "NearmetalPingPong", tmp_path, "-S", "mpi=mpich5", start=start)
    assert case["result"] == "fail"
    assert "(net) used ['shm']" in why(case)
