# SPDX-License-Identifier: Apache-2.0
"""Tasks in containers under control groups, as most sites have them: limits, signals and ends."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.local import user_can_read_checkout
from tests.system.slurm_site import CONTROLLERS, HIERARCHIES, SlurmSite, need, slurm_site

pytestmark = [
    pytest.mark.system,
    pytest.mark.full,
    pytest.mark.root,
]

need()
if not user_can_read_checkout():
    pytest.skip("users cannot read the checkout", allow_module_level=True)
if not all((HIERARCHIES / name / "tasks").exists() for name in CONTROLLERS):
    pytest.skip("no control groups of version 1", allow_module_level=True)

IN = ("srun", "-w", "n1", "-n1", "--nm-node=container")


@pytest.fixture(scope="module")
def slurm() -> Iterator[SlurmSite]:
    with slurm_site(limits=True) as place:
        yield place
        place.assert_clean()


def test_a_task_has_the_cores_of_its_job(slurm: SlurmSite) -> None:
    for nr in (1, 2):
        assert slurm.ok("ann", *IN, f"-c{nr}", "nproc").split() == [str(nr)]


def test_a_task_is_in_the_control_groups_of_its_job(slurm: SlurmSite) -> None:
    groups = slurm.ok("ann", *IN, "cat", "/proc/self/cgroup")
    for controller in ("memory", "cpuset"):
        assert re.search(rf"^[0-9]+:{controller}:/.*/job_[0-9]+/step_0", groups, re.MULTILINE)


def test_a_signal_arrives_once(slurm: SlurmSite) -> None:
    """proctrack/cgroup signals no process but the children of slurmstepd."""
    script = (
        "trap 'echo got' USR1; trap 'echo last; exit 3' TERM; "
        "trap 'echo group' USR2; kill -USR2 0; echo ready; "
        "while :; do sleep 0.1; done"
    )
    out = slurm.home("ann") / "out"
    argv = [*IN, "-o", "out", "bash", "-c", script]
    with slurm.start("ann", *argv) as step:
        try:
            said(out, "ready")
            job = slurm.ok("ann", "squeue", "-h", "-o", "%i").strip()
            slurm.ok("ann", "scancel", "-s", "USR1", job)
            said(out, "got")
            slurm.ok("ann", "scancel", job)
            step.wait(60)
        finally:
            step.kill()
    lines = out.read_text().splitlines()
    assert [lines.count(word) for word in ("got", "last", "group")] == [1, 1, 1], lines


def said(path: Path, word: str) -> None:
    deadline = time.monotonic() + 60
    while not (path.exists() and word in path.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.parametrize(
    "eat", ["x = b'x' * (200 << 20)", "open('/dev/shm/x', 'wb').write(b'x' * (60 << 20))"]
)
def test_a_task_has_the_memory_of_its_job(slurm: SlurmSite, eat: str) -> None:
    """Files in the container's memory count, too: they are charged to who writes them."""
    command = ("python3", "-c", eat)
    slurm.ok("ann", *IN, "--mem=400", *command)
    refused = slurm.run("ann", *IN, "--mem=40", *command)
    assert refused.returncode != 0
    assert re.search("oom.?kill|out of memory", refused.stderr, re.IGNORECASE), refused.stderr
