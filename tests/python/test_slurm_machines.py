# SPDX-License-Identifier: Apache-2.0
"""Virtual machines of Slurm jobs, before any is started: what they are told, and what is refused."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
from pathlib import Path

import pytest

from nearmetal.cluster.backends.libvirt.build import Layout
from nearmetal.core.errors import SlurmError
from nearmetal.core.process import Command, Completed, LocalRunner
from nearmetal.image import Cache
from nearmetal.slurm import machines, network, queue
from nearmetal.slurm.container import ContainerRequest, MachineRequest, Machines, RefusedError
from nearmetal.slurm.machines import (
    BootFiles,
    Job,
    JobKey,
    check_allocated,
    check_node,
    members,
    part_size,
    qemu_words,
    seed_of,
    user_of,
)
from nearmetal.slurm.queue import Allocated
from nearmetal.slurm.vm import boot_of, derive, pair, prepare, read_site_key
from tests.python.seeds import PRIVATE, PUBLIC, SECRET

ROOT = Path(__file__).parents[2]
MIB = 1 << 20
WANTED = MachineRequest("default", 2, 1, 512 * MIB, 64 * MIB, ("/srv", "/scratch"), "tcg")
BOOT = BootFiles("/i/vmlinux", "/i/initrd", "/i/root", "console=ttyS0 quiet")
LAYOUT = Layout("0123456789abcdef" * 2, 2, 16 * MIB, 4096, 64 * MIB)


def job(nodes: tuple[str, ...] = ("n1", "n2")) -> Job:
    keys = JobKey(PRIVATE, PUBLIC)
    user = user_of("ann", 64321, 64322, "/srv/ann")
    return Job(7, members(nodes, WANTED.nr), WANTED, user, keys, keys, 1450)


class Scontrol(LocalRunner):
    """Answers as scontrol does."""

    def __init__(self, **told: str) -> None:
        self.told = told

    def run(self, command: Command, *, timeout_s: float) -> Completed:
        assert timeout_s > 0
        assert command.argv[:2] == ("scontrol", "show")
        what = command.argv[2]
        text = self.told.get(what, "")
        if what == "hostnames":
            text = command.argv[3].replace(",", "\n")
        return Completed(command, 0, text.encode(), b"", 0.0)


def test_every_node_comes_to_the_same_machines() -> None:
    everyone = members(["n1", "n2"], 2)
    assert [(m.name, m.node, m.address) for m in everyone] == [
        ("n1-vm0", "n1", "10.208.0.1"),
        ("n1-vm1", "n1", "10.208.0.2"),
        ("n2-vm0", "n2", "10.208.0.3"),
        ("n2-vm1", "n2", "10.208.0.4"),
    ]
    assert len({m.mac for m in everyone}) == 4


def test_names_of_nodes_become_names_of_hosts() -> None:
    assert members(["Rack_1.Node-2"], 1)[0].name == "rack-1-node-2-vm0"
    assert members(["7"], 1)[0].name == "n7-vm0"
    # Two that are alike afterwards.
    assert [m.name for m in members(["a.b", "a_b"], 1)] == ["vm0", "vm1"]
    longest = members(["x" * 200], 200)
    assert max(len(m.name) for m in longest) <= 31


def test_too_many_machines_are_refused() -> None:
    with pytest.raises(RefusedError, match="200 machines are the most"):
        members([f"n{i}" for i in range(101)], 2)


@pytest.mark.parametrize(
    ("nr", "segment", "part"),
    [(1, 64, 0), (2, 64, 16), (2, 8, 2), (3, 64, 16), (4, 64, 8), (2, 100, 16), (7, 1024, 128)],
)
def test_parts_fill_the_segment(nr: int, segment: int, part: int) -> None:
    wanted = dataclasses.replace(WANTED, nr=nr, segment_bytes=segment * MIB)
    assert part_size(wanted) == part * MIB


def test_a_segment_too_small_for_its_machines_is_refused() -> None:
    with pytest.raises(RefusedError, match="--nm-segment: 4 virtual machines need 16M at least"):
        part_size(dataclasses.replace(WANTED, nr=4, segment_bytes=8 * MIB))


def test_more_than_the_job_has_is_refused() -> None:
    for enough in (Allocated(), Allocated(2, 1408 * MIB), Allocated(64, 0)):
        check_allocated(WANTED, enough, "n1")
    with pytest.raises(RefusedError, match=r"of 512M need 1408M on node n1, .* --mem=1408M"):
        check_allocated(WANTED, Allocated(2, 1407 * MIB), "n1")
    with pytest.raises(RefusedError, match="need 2 processors on node n1, and the job has 1"):
        check_allocated(WANTED, Allocated(1, 0), "n1")


def test_more_than_the_node_has_is_refused() -> None:
    """Where Slurm counts no memory, QEMU would not start, and the node be blamed for it."""
    check_node(WANTED, 1408 * MIB, "n1")
    with pytest.raises(RefusedError, match="need 1408M, and node n1 has 1407M"):
        check_node(WANTED, 1407 * MIB, "n1")


def test_a_user_whom_no_machine_can_have_is_refused() -> None:
    assert user_of("ann", 64321, 64322, "/srv/ann").gid == 64322
    for name, home, words in (
        ("CORP\\ann", "/srv/ann", "name"),
        ("ann", "/", "home '/' cannot"),
        ("ann", "/srv/a nn", "home '/srv/a nn' cannot"),
        ("ann", "/srv/../etc", "home "),
    ):
        with pytest.raises(RefusedError, match=words):
            user_of(name, 64321, 64322, home)


def test_a_seed_tells_a_machine_its_user_its_shares_and_its_part() -> None:
    one = job()
    seed = seed_of(one, one.members[3], 1, LAYOUT)
    assert (seed.name, [n.name for n in seed.nodes][-1], seed.nodes[0].host) == (
        "n2-vm1",
        "n2-vm1",
        "n1",
    )
    assert seed.user is not None
    assert (seed.user.name, seed.user.uid, seed.user.gid) == ("ann", 64321, 64322)
    assert [s.path for s in seed.shares] == ["/run/nearmetal/job", "/srv", "/scratch"]
    assert seed.segment is not None
    assert seed.segment.part == 1
    # Nobody's key but the job's opens it, and root's account none.
    assert seed.ssh.authorized_keys == []
    assert SECRET not in repr(one)


def test_two_machines_write_their_own_parts_only() -> None:
    one = job()
    words = [" ".join(qemu_words(one, one.members[i], i, BOOT, LAYOUT)) for i in (0, 1)]
    for number, text in enumerate(words):
        assert f'"offset": {4096 + number * 16 * MIB}, "size": {16 * MIB}' in text
        assert text.count('"readonly": true') == 1
        assert f"ifname=vm{number}," in text
        assert f"file=/run/nearmetal/vm/n1-vm{number}.seed" in text
        assert "path=/scratch,security_model=none" in text
        assert SECRET not in text
    assert "ivshmem" not in " ".join(qemu_words(one, one.members[0], 0, BOOT, None))


def test_guests_and_plugin_look_where_files_are() -> None:
    header = (ROOT / "src/spank/guest.h").read_text()
    assert f'#define NM_SPANK_MACHINES "{machines.PLACE}"' in header
    assert f'#define NM_SPANK_JOB "{machines.JOB}"' in header
    assert f"job={machines.JOB}\n" in (ROOT / "nearmetal/share/guest/unit/task").read_text()
    assert '#define IN_GUEST "/usr/lib/nearmetal/task"' in (ROOT / "src/spank/guest.c").read_text()


def test_a_network_of_two_nodes_knows_who_is_where() -> None:
    wires = network.Wires(
        7, 64321, "n2", {"n1": "10.0.0.1", "n2": "10.0.0.2"}, members(["n1", "n2"], 2)
    )
    links = network.links(wires, 1450).splitlines()
    assert "address add 10.216.0.2/12 dev nm0" in links
    assert "tuntap add dev vm1 mode tap user 64321 vnet_hdr" in links
    assert "link set nmx mtu 1450 master nm0 up" in links
    ways = network.forwarding(wires)
    assert ways.count("dst 10.0.0.1") == 4
    assert "dst 10.0.0.2" not in ways
    assert "add 52:54:00:00:00:00 " in ways
    assert "add 52:54:00:00:00:02 " not in ways
    alone = network.Wires(7, 64321, "n1", {"n1": ""}, members(["n1"], 1))
    assert "nmx" not in network.links(alone, 1500)


def test_what_a_job_has_on_a_node() -> None:
    text = "JobId=7 NodeList=n[1-2]   Nodes=n1,n2 CPU_IDs=0-2,7 Mem=512 GRES=   Nodes=n3 CPU_IDs=0 Mem=0 GRES="
    runner = Scontrol(job=text)
    assert queue.allocated(runner, 7, "n2") == Allocated(4, 512 * MIB)
    assert queue.allocated(runner, 7, "n3") == Allocated(1, 0)
    with pytest.raises(SlurmError, match="what job 7 has on node n4"):
        queue.allocated(runner, 7, "n4")
    with pytest.raises(SlurmError, match="what job 7 has on node n1"):
        queue.allocated(Scontrol(job="Nodes=n1 CPU_IDs=x Mem=0"), 7, "n1")


@pytest.mark.parametrize(
    "name",
    [
        "Nodes=n2 CPU_IDs=0-999 Mem=999999",
        "Nodes=n2 CPU_IDs= Mem=0",
        "Nodes=n2 CPU_IDs=9-0 Mem=0",
        "Nodes=n2 CPU_IDs=x Mem=1",
        "Nodes=--help CPU_IDs=0 Mem=1",
        "Nodes=n[1-999999999][1-999999999] CPU_IDs=0 Mem=1",
        "Nodes=n[1- CPU_IDs=0 Mem=1",
        "x\nJobId=8 JobName=y",
        f"Nodes=n2 CPU_IDs={'9' * 5000} Mem={'9' * 5000}",
    ],
)
def test_what_a_user_calls_a_job_gives_it_no_more(name: str) -> None:
    """Nor does it keep the node from telling what the job has, which would drain it."""
    real = "UserId=ann(1)   Nodes=n[1-2] CPU_IDs=0-2,7 Mem=512 GRES= Command=/x"
    for text in (f"JobId=7 JobName={name} {real}", f"JobId=7 {real} WorkDir={name}"):
        assert queue.allocated(Scontrol(job=text), 7, "n2") == Allocated(4, 512 * MIB)


@pytest.mark.parametrize(
    ("names", "there", "not_there"),
    [
        ("n[1-2,10],m", ("n1", "n2", "n10", "m"), ("n3", "n01", "n", "m1", "xn1")),
        ("rack-1.n[08-12]", ("rack-1.n08", "rack-1.n12"), ("rack-1.n8", "rack-1xn08")),
        ("n[98-101]", ("n98", "n101"), ("n098", "n102")),
        ("a[1-2]b[3-4]-ib", ("a2b3-ib",), ("a3b3-ib", "a2b3")),
    ],
)
def test_nodes_as_slurm_writes_them(
    names: str, there: tuple[str, ...], not_there: tuple[str, ...]
) -> None:
    for node in (*there, *not_there):
        text = f"Nodes={names} CPU_IDs=0 Mem=1"
        if node in there:
            assert queue.allocated(Scontrol(job=text), 7, node) == Allocated(1, MIB)
        else:
            with pytest.raises(SlurmError, match=f"on node {node}"):
                queue.allocated(Scontrol(job=text), 7, node)


def test_a_launcher_that_is_told_no_nodes_guesses_none() -> None:
    wish = ContainerRequest(7, 64321, MIB, MIB, "r", "n1")
    asked = Machines(WANTED, "", Path("/nowhere"))
    with pytest.raises(SlurmError, match="job 7: slurmd does not name its nodes"):
        prepare(wish, asked, Path("/nowhere"), Scontrol())


def test_where_nodes_are() -> None:
    text = (
        "NodeName=n1 Arch=x NodeAddr=127.0.0.1 NodeHostName=n1\nNodeName=n2 NodeAddr=127.0.0.2 X=\n"
    )
    runner = Scontrol(node=text)
    assert queue.node_addresses(runner, ["n1", "n2"]) == {"n1": "127.0.0.1", "n2": "127.0.0.2"}
    with pytest.raises(SlurmError, match="the address of node n3"):
        queue.node_addresses(runner, ["n1", "n3"])


def test_an_unknown_image_is_the_users_fault(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    for name in ("0123456789abcdef", "debian", "..", "0123456789abcdefg"):
        with pytest.raises(RefusedError, match="no such image on this node; there are: default"):
            boot_of(name, Cache(tmp_path))


def test_a_derived_key_is_what_ssh_reads(tmp_path: Path) -> None:
    secret = derive(b"k" * 64, "host", 7, 1000, "n[1-2]")
    made = pair(secret, "host", LocalRunner())
    path = tmp_path / "key"
    path.write_text(made.private)
    path.chmod(0o600)
    argv = ("ssh-keygen", "-y", "-f", str(path))
    assert LocalRunner().check(Command(argv), timeout_s=60).text.strip() == made.public
    assert pair(secret, "host", LocalRunner()) == made
    others = [
        derive(b"j" * 64, "host", 7, 1000, "n[1-2]"),
        derive(b"k" * 64, "node", 7, 1000, "n[1-2]"),
        derive(b"k" * 64, "host", 8, 1000, "n[1-2]"),
        derive(b"k" * 64, "host", 7, 1001, "n[1-2]"),
        derive(b"k" * 64, "host", 7, 1000, "n[1-3]"),
    ]
    assert len({secret, *others}) == 6


def test_the_key_of_the_site_is_roots_alone(tmp_path: Path) -> None:
    path = tmp_path / "slurm.key"
    with pytest.raises(SlurmError, match="No such file") as caught:
        read_site_key(path)
    assert "/dev/urandom" in caught.value.hint
    path.write_bytes(b"x" * 31)
    path.chmod(0o600)
    with pytest.raises(SlurmError, match="31 bytes are not enough"):
        read_site_key(path)
    path.write_bytes(b"x" * 32)
    assert read_site_key(path) == b"x" * 32
    path.chmod(0o640)
    with pytest.raises(SlurmError, match="others than its owner"):
        read_site_key(path)
    path.unlink()
    os.mkfifo(path, 0o600)
    with pytest.raises(SlurmError, match="others than its owner"):
        read_site_key(path)


def test_signals_are_caught_and_not_ignored_before_a_task() -> None:
    """What the runner of a task ignored, the task would ignore, too."""
    text = (ROOT / "nearmetal/share/guest/unit/task").read_text()
    caught = re.search(r"^\ttrap : (.*)$", text, re.MULTILINE)
    assert caught is not None
    sent = set(re.findall(r'\{SIG\w+, "(\w+)"\}', (ROOT / "src/spank/guest.c").read_text()))
    assert sent - set(caught[1].split()) == {"TSTP", "CONT", "URG"}


def test_a_task_comes_with_its_control_which_then_takes_signals(tmp_path: Path) -> None:
    text = (ROOT / "nearmetal/share/guest/unit/task").read_text()
    runner = tmp_path / "task"
    runner.write_text(text.replace(f"job={machines.JOB}\n", f"job={tmp_path}\n"))
    script = b"trap 'echo got; exit 5' USR1\necho ready\nwhile :; do sleep 0.05; done\n"
    words, pipe = ("sh", str(runner)), subprocess.PIPE
    begin = (*words, "control", "0.1", str(len(script)))
    with subprocess.Popen(begin, stdin=pipe, stdout=pipe) as control:
        assert control.stdin is not None
        assert control.stdout is not None
        # What follows the script is not a part of it.
        control.stdin.write(script + b"CONT\n")
        control.stdin.flush()
        assert control.stdout.readline() == b"there\n"
        sent = tmp_path / "task.0.1"
        assert sent.read_bytes() == script
        assert sent.stat().st_mode & 0o777 == 0o600
        argv = (*words, "run", "0.1")
        with subprocess.Popen(argv, stdout=pipe, start_new_session=True) as run:
            assert run.stdout is not None
            assert run.stdout.readline() == b"ready\n"
            control.stdin.write(b"USR1\n")
            control.stdin.flush()
            assert run.stdout.read() == b"got\n"
        assert run.returncode == 5
        control.stdin.close()
    assert control.returncode == 0
    assert [path.name for path in tmp_path.iterdir()] == ["task"]
