# SPDX-License-Identifier: Apache-2.0
"""A job of an ordinary user in servers that boot for real: Slurm over Nova's libvirt driver."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

pytest.importorskip("openstack")

from tests.system.machines import CACHE
from tests.system.openstack_cloud import QUIET, ROOT, RealCloud, objects, running_cloud
from tests.system.openstack_guests import guest_bridge, ports_of
from tests.system.slurm_cloud import doors, joined, on_record, settle
from tests.system.slurm_site import NODES, USERS, SlurmSite, need, slurm_site
from tests.system.virtual_clusters import CommandLine

pytestmark = [
    pytest.mark.system,
    pytest.mark.root,
    pytest.mark.full,
    pytest.mark.timeout(1800),
    *QUIET,
]

need()

SUBNET = "10.85.0.0/24"
PROGRAM = ROOT / "build/programs/openmpi5/mpi_traffic"
SERVERS = ("--nm-node=openstack", "--nm-vms-per-node=2", "--mpi=none")
CARRY = """\
#!/bin/sh
# In the first server: takes a program, gives it to all, and runs it there.
cat >/tmp/program
for host in $(cut -d' ' -f1 /etc/nearmetal/hostfile); do
	[ "$host" = "$(hostname)" ] || scp -q /tmp/program "$host:/tmp/program"
	ssh "$host" chmod 755 /tmp/program
done
exec mpirun --map-by node -n 2 /tmp/program -n 100 -s 7 -b 20M -w 300
"""


@dataclass(frozen=True)
class Held:
    """An allocation whose servers are up."""

    slurm: SlurmSite
    cloud: RealCloud
    job: str

    def argv(self, *words: str) -> list[str]:
        return ["srun", f"--jobid={self.job}", "--overlap", *SERVERS, *words]

    def ok(self, *words: str) -> str:
        return self.slurm.ok("ann", *self.argv(*words), timeout=300)


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Held]:
    folder = tmp_path_factory.mktemp("slurm")
    with (
        guest_bridge("10.85.0.1/24") as bridge,
        running_cloud(folder, bridge=bridge) as cloud,
        slurm_site() as slurm,
        joined(slurm, cloud),
        doors(slurm, [22]),
    ):
        for node in NODES:
            # Connections to a guest stay in the node, where a door takes them.
            done = slurm.on_node(node, "ip", "route", "add", "local", SUBNET, "dev", "lo")
            assert done.returncode == 0, done.stderr
        disk = folder / "disk.raw"
        CommandLine(folder).ok("image", "build", "--cache", str(CACHE), "--disk", str(disk))
        # openstacksdk does not close a file that it opens by its name.
        with disk.open("rb") as stream:
            image = cloud.connected().image.create_image(
                "node",
                data=stream,
                disk_format="raw",
                container_format="bare",
                hw_disk_bus="virtio",
                hw_machine_type="q35",
                hw_vif_model="virtio",
            )
        settle(slurm, image.name, subnet=SUBNET, most=8, boot=300)
        before = objects(cloud)
        words = ("-n2", "--nm-node=openstack", "--nm-vms-per-node=2", "--wrap=sleep 3000")
        job = slurm.ok("ann", "sbatch", "--parsable", *words).strip()
        for _ in cloud.waiting("the start of the job"):
            if slurm.ok("ann", "squeue", "-h", "-j", job, "-o", "%t").strip() == "R":
                break
        yield Held(slurm, cloud, job)
        slurm.ok("ann", "scancel", job)
        slurm.assert_clean()
        assert on_record(slurm) == []
        assert objects(cloud) == before
        assert ports_of(bridge) == []


def test_tasks_run_in_the_servers_as_their_user(held: Held) -> None:
    said = held.ok("-n2", "sh", "-c", 'echo "$(hostname) $(id -u) $SLURM_PROCID"')
    uid = USERS["ann"]
    assert sorted(said.splitlines()) == [
        f"job-{held.job}-0 {uid} 0",
        f"job-{held.job}-1 {uid} 1",
    ]
    done = held.slurm.run("ann", *held.argv("-n1", "sh", "-c", "exit 7"))
    assert done.returncode == 7, done.stderr


def test_nobody_but_root_sees_credentials_or_the_state_of_servers(held: Held) -> None:
    etc, own = held.slurm.directory / "etc/slurm", "/var/lib/nearmetal/slurm/jobs"
    outside = ("srun", f"--jobid={held.job}", "--overlap", "-n1", "--nm-node=none")
    for words in (["cat", etc / "clouds.yaml"], ["cat", etc / "slurm-openstack.yaml"], ["ls", own]):
        done = held.slurm.run("ann", *outside, *map(str, words))
        assert "Permission denied" in done.stderr, done.stdout + done.stderr
    # The key of tasks opens their user alone.
    root = ("ssh", "-o", "BatchMode=yes", f"root@job-{held.job}-0", "true")
    assert "Permission denied" in held.slurm.run("ann", *held.argv("-n1", *root)).stderr


def test_an_mpi_job_runs_between_the_servers_of_a_job(held: Held) -> None:
    step = shlex.join(held.argv("-n1", "sh", "-c", CARRY))
    said = held.slurm.ok("ann", "sh", "-c", f"{step} <{PROGRAM} 2>&1", timeout=300)
    assert "traffic OK" in said, said


def test_a_signal_reaches_a_task_in_a_server(held: Held) -> None:
    script = "trap 'echo got; exit 3' USR1; echo ready; while :; do sleep 0.1; done"
    with held.slurm.start("ann", *held.argv("-n1", "sh", "-c", script)) as task:
        assert task.stdout is not None
        assert task.stdout.readline() == "ready\n"
        step = f"{held.job}.{_step(held)}"
        for _ in held.cloud.waiting("the end of a task that gets a signal"):
            # It may have ended since the last look.
            held.slurm.run("ann", "scancel", "--signal=USR1", step)
            if task.poll() is not None:
                break
        assert task.stdout.read() == "got\n"
    assert task.returncode == 3


def _step(held: Held) -> str:
    steps = held.slurm.ok("ann", "squeue", "-h", "-s", "-j", held.job, "-o", "%i").split()
    return max((s.partition(".")[2] for s in steps if s.partition(".")[2].isdigit()), key=int)
