# SPDX-License-Identifier: Apache-2.0
"""Slurm 24.11 in a virtual machine with cgroup v2 and an SR-IOV adapter: limits hold, VFs come back."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.system.local import ROOT
from tests.system.machines import CACHE, Yard, built_image
from tests.system.slurm_site import PLUGIN
from tests.system.sriov_lab import PF, Host, start_host

pytestmark = [
    pytest.mark.system,
    pytest.mark.full,
    pytest.mark.root,
    pytest.mark.timeout(2400),
]

IN = "srun --nm-node=container"
ADDRESS = "10.9.0.11"
IMAGES = [
    "-fsdev",
    f"local,id=images,path={CACHE},security_model=none,readonly=on",
    "-device",
    "virtio-9p-pci,fsdev=images,mount_tag=images",
]
MOUNT = (
    "modprobe -a 9pnet_virtio 9p && mkdir -p /var/cache/nearmetal && "
    "mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000,ro"
)


def package(image: dict[str, str], folder: Path) -> Path:
    """Build the package of the plugin in the image's tree, on this machine: as its owner would."""
    here = ROOT / "tests/system/slurm"
    done = subprocess.run(
        [
            "unshare",
            "-m",
            "-p",
            "--fork",
            "--kill-child",
            "--mount-proc",
            "--propagation",
            "private",
            "--",
            "bash",
            str(here / "tree.sh"),
            image["root"],
            str(folder),
            str(ROOT),
            str(ROOT / "tools/package/slurm.sh"),
            str(folder),
        ],
        stdout=subprocess.PIPE,
        text=True,
        timeout=600,
        check=True,
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
    )
    return Path(done.stdout.strip())


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    image = built_image("slurm")
    folder = tmp_path_factory.mktemp("guest")
    built = package(image, folder)
    yard = Yard(folder, image)
    try:
        machine = start_host(yard, "on", memory_mib=2560, cpus=2, devices=IMAGES)
        machine.tell(f"{MOUNT} images /var/cache/nearmetal")
        machine.carry({"tests/system/slurm/guest.sh": "guest.sh"})
        name = f"/opt/nm/{built.name}"
        machine.machine.tell(f"cat >{name}", "root", built.read_bytes())
        machine.tell(f"sh /opt/nm/guest.sh {ADDRESS}")
        eventually(lambda: machine.tell("sinfo -h -o %t") == "idle")
        yield machine
    finally:
        yard.end()


def eventually(look: Callable[[], object], within_s: float = 240) -> None:
    deadline = time.monotonic() + within_s
    while not look():
        assert time.monotonic() < deadline, "it has not happened in time"
        time.sleep(1)


def idle(host: Host) -> None:
    """Nothing of any job is left, and the node is in service."""
    left = (
        "ls /run/nearmetal/slurm | grep -v lock; grep /run/nearmetal/ /proc/mounts; squeue -h; "
        "ls -d /sys/fs/cgroup/nearmetal"
    )
    eventually(lambda: host.machine.run(left, "root").stdout == b"")
    eventually(lambda: host.tell("sinfo -h -o %t") == "idle")


@pytest.fixture
def slurm(host: Host) -> Iterator[Host]:
    yield host
    # What a test that failed left would keep the next ones waiting.
    host.tell("scancel --user=mpi")
    idle(host)


def user(host: Host, command: str) -> subprocess.CompletedProcess[bytes]:
    return host.machine.run(command, "mpi", timeout_s=900)


def tell(host: Host, command: str) -> str:
    done = user(host, command)
    assert done.returncode == 0, done.stderr.decode() + host.tell("tail -n 30 /var/log/slurm/*")
    return done.stdout.decode().strip()


def test_it_is_another_release_with_cgroup_v2(slurm: Host) -> None:
    assert re.fullmatch(r"slurm-wlm 24\.11\.[0-9]+", slurm.tell("slurmd -V"))
    assert slurm.tell("stat -f -c %T /sys/fs/cgroup") == "cgroup2fs"
    assert "nm-vf" in tell(slurm, "srun --help")


def test_a_plugin_built_for_another_release_is_refused_by_slurm(slurm: Host) -> None:
    slurm.machine.tell("cat >/opt/nm/other.so", "root", PLUGIN.read_bytes())
    other = (
        "echo 'required /opt/nm/other.so' >/tmp/plugstack.conf; sed "
        "s,/etc/slurm/plugstack.conf,/tmp/plugstack.conf, /etc/slurm/slurm.conf >/tmp/slurm.conf; "
        "SLURM_CONF=/tmp/slurm.conf srun true"
    )
    done = user(slurm, other)
    assert done.returncode != 0
    assert "Incompatible" in done.stderr.decode()


def test_a_container_has_the_cores_of_its_job(slurm: Host) -> None:
    for nr in (1, 2):
        assert tell(slurm, f"{IN} -n1 -c{nr} nproc") == str(nr)
    # The task is in the job's control group, and process 1 of the container is not.
    look = "cat /proc/self/cgroup /proc/1/cgroup"
    task, one = tell(slurm, f"{IN} -n1 sh -c '{look}'").splitlines()
    assert re.search(r"/job_[0-9]+/step_", task)
    assert "/job_" not in one


@pytest.mark.parametrize(
    "eat", ["x = b'x' * (300 << 20)", "open('/dev/shm/x', 'wb').write(b'x' * (150 << 20))"]
)
def test_a_container_has_the_memory_of_its_job(slurm: Host, eat: str) -> None:
    """Its files in memory count, too: they are charged to who writes them."""
    command = f'python3 -c "{eat}"'
    tell(slurm, f"{IN} -n1 --mem=700 {command}")
    refused = user(slurm, f"{IN} -n1 --mem=100 {command}")
    assert refused.returncode != 0
    assert re.search(r"oom.kill", refused.stderr.decode(), re.IGNORECASE), refused.stderr


def test_vfs_come_to_a_job_and_go_back_as_found(slurm: Host) -> None:
    before = slurm.as_found()
    look = (
        "echo $NM_JOB_VFS $NM_JOB_VF_INTERFACES; for i in $(echo $NM_JOB_VF_INTERFACES | tr , ' '); "
        "do cat /sys/class/net/$i/flags; basename $(readlink /sys/class/net/$i/device/driver); done"
    )
    told = tell(slurm, f"{IN} --nm-vf=2 --gres=vf:2 -n1 sh -c {shlex.quote(look)}").split()
    assert len(set(told[0].split(","))) == len(set(told[1].split(","))) == 2
    for flags, driver in (told[2:4], told[4:6]):
        assert int(flags, 16) & 1, "it is up"
        assert driver == "igbvf"
    idle(slurm)
    assert slurm.as_found() == before
    slurm.tell("test ! -e /var/lib/nearmetal/host")


def start(host: Host, options: str) -> int:
    """Hand in a job that waits; returns it."""
    command = (
        f"sbatch -o out-%j --nm-node=container -n1 {options} --wrap 'echo $NM_JOB_VFS; sleep 900'"
    )
    return int(tell(host, command).split()[-1])


def output(host: Host, job: int) -> str:
    return user(host, f"cat out-{job}").stdout.decode()


def test_two_jobs_want_the_last_vf(slurm: Host) -> None:
    one = start(slurm, "--mem=50 --nm-vf=6 --gres=vf:6")
    eventually(lambda: output(slurm, one).count(",") == 5)
    # Without --gres Slurm knows nothing of it, and the node says so in the job's own output.
    two = start(slurm, "--mem=50 --nm-vf=2")
    eventually(lambda: "2 VFs are wanted on this node and 1 could be had" in output(slurm, two))
    # Of the refused one there are words until its epilog has come.
    eventually(lambda: slurm.machine.run("nearmetal slurm status", "root").returncode == 0)
    shown = json.loads(slurm.tell("nearmetal slurm status --json"))
    assert [(c["job"], len(c["vfs"])) for c in shown["containers"]] == [(one, 6)]
    assert shown["count"] == {"offered": 7, "for_jobs": 7, "others": [], "gres": 7}
    # With it, it waits.
    three = start(slurm, "--mem=50 --nm-vf=2 --gres=vf:2")
    eventually(lambda: "Resources" in tell(slurm, f"squeue -h -j {three} -o %r"))
    tell(slurm, f"scancel {one}")
    eventually(lambda: output(slurm, three).count(",") == 1)
    tell(slurm, f"scancel {three}")


def test_a_launcher_and_a_reclaimer_that_are_killed_lose_no_vf(slurm: Host) -> None:
    before = slurm.as_found()
    launch = "SLURMD_NODENAME=vm1 nearmetal slurm launch --job 77777 --uid 1000 --segment 1048576 --vfs 3"
    died = 0
    for delay in ("1.5", "2.5", "4", "6"):
        done = slurm.machine.run(f"timeout -s KILL {delay} {launch}", "root")
        died += done.returncode != 0
        slurm.machine.run(f"timeout -s KILL {delay} nearmetal slurm reclaim --job 77777", "root")
    assert died
    slurm.tell("nearmetal slurm reclaim --ended --drain")
    assert slurm.as_found() == before
    slurm.tell("test ! -e /var/lib/nearmetal/host")


def test_status_says_where_gres_conf_is_wrong(slurm: Host) -> None:
    asked = slurm.vfs("take", ["n1"])
    said = slurm.machine.run("nearmetal slurm status", "root")
    assert said.returncode == 4
    assert "gres.conf promises 7 VFs of this node, and jobs can have 6 of its 7" in (
        said.stderr.decode()
    )
    assert asked[0]["address"] in said.stderr.decode()
    slurm.vfs("give", ["n1"])
    assert slurm.tell(f"cat {PF}/sriov_numvfs") == "0"


def test_machines_have_the_processors_and_the_memory_of_their_job(slurm: Host) -> None:
    """Machines in this machine, by nested KVM. How one ends for want of memory is shown elsewhere
    (test_slurm_machine_limits.py): this emulated host went down with one, once.
    """
    key = built_image()["key"]
    options = f"--nm-node=vm --nm-segment=512M --nm-memory=512M --nm-image={key} -n1"
    job = int(tell(slurm, f"sbatch --parsable -c1 --mem=640 {options} --wrap 'sleep 3000'"))
    eventually(lambda: tell(slurm, f"squeue -h -j {job} -o %t") == "R")
    step = f"srun --jobid={job} --overlap --mpi=none {options}"
    assert tell(slurm, f"{step} hostname") == "vm1-vm0"
    own = f"nearmetal/job-{job}.vm1"
    group = f"/sys/fs/cgroup/{own}"
    assert slurm.tell("cat /proc/$(pgrep qemu-system)/cgroup") == f"0::/{own}"
    limits = slurm.tell(f"cd {group} && cat memory.max memory.swap.max cpu.max").splitlines()
    assert limits == [str(640 << 20), "0", "100000 100000"]
    # Two that are always busy have no more than one processor between them.
    before = throttled(slurm, group)
    slurm.tell(
        f"sh -c 'echo 0 >{group}/cgroup.procs; for i in 1 2; do "
        'timeout -s KILL 100 sh -c "while :; do :; done" & done\' >/dev/null 2>&1'
    )
    eventually(lambda: throttled(slurm, group) > before + 10)
    slurm.tell("pkill -KILL -f '[w]hile :'")
    # What the job's own directory holds counts, as memory of the QEMU that writes it.
    had = int(slurm.tell(f"cat {group}/memory.current"))
    tell(slurm, f"{step} dd if=/dev/zero of=/run/nearmetal/job/fill bs=1M count=100")
    assert int(slurm.tell(f"cat {group}/memory.current")) > had + (90 << 20)
    tell(slurm, f"scancel {job}")


def throttled(host: Host, group: str) -> int:
    """In how many periods a control group was held back."""
    return int(host.tell(f"sed -n 's/^nr_throttled //p' {group}/cpu.stat"))
