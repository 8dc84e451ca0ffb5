# SPDX-License-Identifier: Apache-2.0
"""Jobs that get no servers, under a real Slurm and real services of OpenStack.

Nova's hypervisors are fakes, so no guest boots. What is made for a job, and that all of it goes, is
real.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

pytest.importorskip("openstack")

from tests.system.openstack_cloud import QUIET, RealCloud, objects, running_cloud
from tests.system.slurm_cloud import joined, keepers, last_look, on_record, settle
from tests.system.slurm_site import SlurmSite, need, slurm_site

pytestmark = [
    pytest.mark.system,
    pytest.mark.root,
    pytest.mark.full,
    pytest.mark.timeout(900),
    *QUIET,
]

need()

LATE = "guests do not answer after 10 s"


@dataclass(frozen=True)
class Lab:
    """A Slurm beside a cloud, and what the cloud had before."""

    slurm: SlurmSite
    cloud: RealCloud
    before: dict[str, list[str]]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    folder = tmp_path_factory.mktemp("cloud")
    with running_cloud(folder) as cloud, slurm_site() as slurm, joined(slurm, cloud):
        settle(slurm, "hpc", subnet="10.83.0.0/24", most=8, boot=10)
        yield Lab(slurm, cloud, objects(cloud))


def test_a_job_says_why_it_has_no_servers_and_leaves_nothing(lab: Lab) -> None:
    slurm = lab.slurm
    for words, reason in (
        ((), LATE),
        (("--nm-vms-per-node=9",), "--nm-vms-per-node: this site allows 8 servers at most"),
        (("-N2",), "give -N1, and --nm-vms-per-node for more servers"),
        (("--nm-image=huge",), "--nm-image=huge: no such image for servers; there are: default"),
    ):
        done = slurm.run("ann", "srun", "--nm-node=openstack", *words, "hostname", timeout=120)
        assert done.returncode != 0
        assert reason in done.stderr, done.stderr + slurm.logs()
    slurm.assert_clean()
    assert on_record(slurm) == []
    assert objects(lab.cloud) == lab.before


def test_a_job_whose_keeper_is_killed_says_so_and_leaves_nothing(lab: Lab) -> None:
    slurm = lab.slurm
    with slurm.start("ann", "srun", "--nm-node=openstack", "hostname") as job:
        for _ in lab.cloud.waiting("the task, which waits for its server"):
            if keepers(slurm) and slurm.run("root", "pgrep", "nm-task").stdout:
                break
        slurm.ok("root", "kill", "-9", *map(str, keepers(slurm)))
        _, said = job.communicate(timeout=120)
    assert job.returncode != 0
    reason = r"server job-\d+-0 does not run: its keeper on this node was killed"
    assert re.search(reason, said), said
    slurm.assert_clean()
    last_look(slurm)
    assert objects(lab.cloud) == lab.before


def test_an_exhausted_quota_is_the_reason_of_a_job_and_no_fault_of_the_node(lab: Lab) -> None:
    admin, project = lab.cloud.connected("admin"), lab.cloud.connected().current_project_id
    admin.set_compute_quotas(project, instances=1)
    try:
        words = ("--nm-node=openstack", "--nm-vms-per-node=2", "hostname")
        done = lab.slurm.run("ann", "srun", *words, timeout=120)
    finally:
        admin.delete_compute_quotas(project)
    assert done.returncode != 0
    assert "2 servers are needed: the quota of the" in done.stderr, done.stderr
    assert "project leaves 1 (0 of 1 in use)" in done.stderr
    lab.slurm.assert_clean()
    assert objects(lab.cloud) == lab.before
