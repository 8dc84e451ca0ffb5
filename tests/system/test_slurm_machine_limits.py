# SPDX-License-Identifier: Apache-2.0
"""A job's machines are held to what the job has: a real Slurm, and control groups of version 1."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator

import pytest

from tests.system.slurm_site import CONTROLLERS, HIERARCHIES, SlurmSite, need, slurm_site

pytestmark = [
    pytest.mark.system,
    pytest.mark.full,
    pytest.mark.root,
    pytest.mark.timeout(1800),
]

need()
if not all((HIERARCHIES / name / "tasks").exists() for name in CONTROLLERS):
    pytest.skip("no control groups of version 1", allow_module_level=True)

MACHINE = ("--nm-node=vm", "--nm-segment=512M")
FILL = "dd if=/dev/zero of=/run/nearmetal/job/fill bs=1M count="
"""What is there is memory of the QEMU that writes it."""


@pytest.fixture(scope="module")
def slurm() -> Iterator[SlurmSite]:
    with slurm_site(limits=True, machines=True) as place:
        yield place
        place.assert_clean()


@pytest.fixture(scope="module")
def job(slurm: SlurmSite) -> Iterator[int]:
    said = slurm.ok(
        "ann",
        "sbatch",
        "--parsable",
        "-w",
        "n1",
        "-n1",
        "-c1",
        "--mem=680",
        *MACHINE,
        "--wrap",
        "sleep 3000",
    )
    number = int(said)
    deadline = time.monotonic() + 300
    while slurm.ok("root", "squeue", "-h", "-j", str(number), "-o", "%t").strip() != "R":
        assert time.monotonic() < deadline, slurm.logs()
        time.sleep(0.2)
    yield number
    slurm.ok("root", "scancel", str(number))


def step(slurm: SlurmSite, job: int, *argv: str) -> subprocess.CompletedProcess[str]:
    return slurm.run(
        "ann",
        "srun",
        f"--jobid={job}",
        "--overlap",
        "--mpi=none",
        *MACHINE,
        "-n1",
        *argv,
        timeout=900,
    )


def test_a_machine_is_in_control_groups_of_its_job(slurm: SlurmSite, job: int) -> None:
    assert step(slurm, job, "true").returncode == 0, slurm.logs()
    (machine,) = slurm.ok("root", "pgrep", "-f", "^qemu-system-x86_64 .*name job-").split()
    inside = slurm.ok("root", "cat", f"/proc/{machine}/cgroup")
    for controller in ("memory", "cpu"):
        assert f":{controller}:/{slurm.directory.name}/nearmetal/job-{job}.n1\n" in inside


def test_it_has_the_time_of_its_jobs_processors(slurm: SlurmSite, job: int) -> None:
    """Two that are always busy have no more than one between them."""
    group = slurm.group("cpu") / f"nearmetal/job-{job}.n1"
    spin = f"echo 0 >{group}/cgroup.procs; (while :; do :; done) & while :; do :; done"
    with subprocess.Popen(["sh", "-c", spin], start_new_session=True) as loops:
        try:
            deadline = time.monotonic() + 300
            while "\nnr_throttled 0\n" in (group / "cpu.stat").read_text():
                assert time.monotonic() < deadline, "nothing holds them back"
                time.sleep(0.2)
        finally:
            subprocess.run(["pkill", "-KILL", "-s", str(loops.pid)], check=True)


def test_it_ends_when_it_takes_more_memory_and_its_user_is_told(slurm: SlurmSite, job: int) -> None:
    small = step(slurm, job, "sh", "-c", f"{FILL}50 && rm /run/nearmetal/job/fill")
    assert small.returncode == 0, small.stderr
    large = step(slurm, job, "sh", "-c", f"{FILL}500")
    assert large.returncode != 0
    assert "virtual machine n1-vm0 ended while the task ran: out of memory" in large.stderr
    later = step(slurm, job, "true")
    assert "virtual machine n1-vm0 does not run: it has ended: out of memory" in later.stderr
    assert slurm.ok("root", "squeue", "-h", "-j", str(job), "-o", "%t").strip() == "R"
