# SPDX-License-Identifier: Apache-2.0
"""Jobs of ordinary users in virtual machines under a real Slurm: two nodes with two machines each."""

from __future__ import annotations

import re
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.system.slurm_site import PROGRAMS_HERE, USERS, SlurmSite, need, slurm_site

pytestmark = [
    pytest.mark.system,
    pytest.mark.root,
    pytest.mark.full,
    pytest.mark.timeout(1800),
]

need()

HOLD = """\
#!/bin/bash
#SBATCH -N2 --ntasks-per-node=2 --nm-node=vm --nm-vms-per-node=2
echo $(hostname) $(id -un)
srun ./where.sh 4 >inside
srun -o stopped.%t ./wait.sh
echo ended with $?
sleep 3000
"""
WHERE = """\
#!/bin/sh
# A program of the user's own, and the words it was given.
echo $SLURM_PROCID of $SLURM_NTASKS/$1 on $(hostname)
"""
WAIT = """\
#!/bin/bash
trap 'echo got' USR1
trap 'echo last; exit 3' TERM
echo ready
while :; do sleep 0.1; done
"""
MEET = """\
#!/bin/sh
# Each of 4 tasks asks who meets whom.
d=$HOME/meet me=$SLURM_PROCID
mkfifo /tmp/meet.$me
nearmetal-info meet </tmp/meet.$me >"$d/out.$me" &
exec 3>/tmp/meet.$me
for p in 0 1 2 3; do until [ -s "$d/out.$p" ]; do sleep 0.2; done; done
for p in 0 1 2 3; do
	echo "$(sed -n '1s/.*"address": "\\([^"]*\\)".*/\\1/p' "$d/out.$p") $p" >&3
done
until [ "$(wc -l <"$d/out.$me")" = 5 ]; do sleep 0.2; done
: >"$d/done.$me"
for p in 0 1 2 3; do until [ -e "$d/done.$p" ]; do sleep 0.2; done; done
exec 3>&-
wait
sed "1d;s/^/$me /" "$d/out.$me"
"""
ASK = """\
# Sends into a job's network, as if from a machine there, the question who has the address of n1-vm0: who
# hears it notes who asked.
import socket, struct, sys
port, network, asker = int(sys.argv[1]), int(sys.argv[2]), socket.inet_aton(sys.argv[3])
mac = bytes.fromhex("525400ff0001")
ask = bytes.fromhex("0001080006040001") + mac + asker + bytes(6) + socket.inet_aton("10.208.0.1")
frame = bytes([8, 0, 0, 0]) + network.to_bytes(3, "big") + bytes(1) + bytes([255] * 6) + mac
datagram = frame + bytes([8, 6]) + ask + bytes(18)
if port:
    # The kernel's tunnel has this port, so the header is our own; its checksum may be left out.
    sender = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_UDP)
    datagram = struct.pack("!4H", port, 252, 8 + len(datagram), 0) + datagram
else:
    sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sender.sendto(datagram, ("10.78.0.1", 252))
"""
NAMES = ["n1-vm0", "n1-vm1", "n2-vm0", "n2-vm1"]


@pytest.fixture(scope="module")
def site() -> Iterator[SlurmSite]:
    with slurm_site(machines=True) as place:
        yield place


def put(site: SlurmSite, user: str, name: str, text: str) -> Path:
    path = site.home(user) / name
    path.write_text(text)
    path.chmod(0o755)
    return path


@dataclass(frozen=True)
class Held:
    """An allocation that stays, so that many tests pay for one boot."""

    site: SlurmSite
    job: int
    user: str

    def argv(self, *words: str) -> list[str]:
        return [
            "srun",
            f"--jobid={self.job}",
            "--overlap",
            "--mpi=none",
            "--nm-node=vm",
            "--nm-vms-per-node=2",
            *words,
        ]

    def ok(self, *words: str, timeout: float = 600) -> str:
        return self.site.ok(self.user, *self.argv(*words), timeout=timeout)

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self.site.run(self.user, *self.argv(*words), timeout=600)


@pytest.fixture(scope="module")
def held(site: SlurmSite) -> Iterator[Held]:
    for name, text in (("hold.sh", HOLD), ("where.sh", WHERE), ("wait.sh", WAIT)):
        put(site, "ann", name, text)
    said = site.ok("ann", "sbatch", "-o", "held", "hold.sh", timeout=600)
    held = Held(site, int(said.split()[-1]), "ann")
    try:
        # Steps of a job that is pending are refused.
        deadline = time.monotonic() + 600
        while not (site.home("ann") / "held").exists():
            assert time.monotonic() < deadline, site.logs()
            time.sleep(0.2)
        yield held
        site.ok("ann", "scancel", str(held.job))
        site.assert_clean()
    finally:
        site.run("root", "scancel", "-u", "ann")


def test_steps_of_a_script_have_its_options_and_its_signals(held: Held) -> None:
    site, home = held.site, held.site.home("ann")
    files = [home / f"stopped.{i}" for i in range(4)]

    def until(words: list[str]) -> None:
        deadline = time.monotonic() + 600
        # Slurm itself may write there that the step is cancelled.
        while not all(
            f.exists() and re.findall("^(?:ready|got|last)$", f.read_text(), re.MULTILINE) == words
            for f in files
        ):
            assert time.monotonic() < deadline, [f.read_text() for f in files if f.exists()]
            time.sleep(0.2)

    until(["ready"])
    assert sorted((home / "inside").read_text().splitlines()) == [
        f"{i} of 4/4 on {name}" for i, name in enumerate(NAMES)
    ]
    for nr in (1, 2):
        site.ok("ann", "scancel", "-s", "USR1", str(held.job))
        until(["ready", *["got"] * nr])
    site.ok("ann", "scancel", "-s", "TERM", str(held.job))
    until(["ready", "got", "got", "last"])
    deadline = time.monotonic() + 120
    while "ended with 3" not in (home / "held").read_text():
        assert time.monotonic() < deadline, (home / "held").read_text()
        time.sleep(0.2)


def test_every_task_is_in_a_machine_of_its_own_node(held: Held) -> None:
    said = held.ok(
        "-N2",
        "-n4",
        "bash",
        "-c",
        "echo $SLURM_PROCID $(hostname) $(id -un) $(id -u) $PWD; touch seen.$SLURM_PROCID",
    )
    lines = sorted(line.split() for line in said.splitlines())
    home = held.site.home("ann")
    expected = [[str(i), name, "ann", str(USERS["ann"]), str(home)] for i, name in enumerate(NAMES)]
    assert lines == expected
    assert all((home / f"seen.{i}").stat().st_uid == USERS["ann"] for i in range(4))


def test_the_script_of_the_job_is_on_its_node(held: Held) -> None:
    assert (held.site.home("ann") / "held").read_text().split()[:2] == ["n1", "ann"]


def test_streams_and_exit_codes_are_the_tasks(held: Held) -> None:
    argv = held.site.command(
        "ann", *held.argv("-w", "n1", "-N1", "-n1", "sh", "-c", "cat; echo words >&2; exit 7")
    )
    done = subprocess.run(
        argv,
        input="a\n b\0c",
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env=held.site.environment("ann"),
    )
    assert (done.returncode, done.stdout) == (7, "a\n b\0c")
    # What srun says of the end may come first.
    assert "words" in done.stderr.splitlines()
    assert held.run("-N1", "-n1", "sh", "-c", "kill -SEGV $$").returncode == 139
    missing = held.run("-N1", "-n1", "no-such-program")
    assert missing.returncode == 127
    assert re.search("no-such-program.*: No such file", missing.stderr)


def test_the_environment_arrives_and_stands_on_no_command_line(held: Held) -> None:
    words = "it's $(odd)\n=2"
    argv = held.argv("-w", "n1", "-N1", "-n1", "sh", "-c", "ps -eo args; printf '%s' \"$WORDS\"")
    said = held.site.ok("ann", *argv, env={"WORDS": words}, timeout=300)
    assert said.endswith(words)
    assert said.count("it's") == 1


def step_of(held: Held, name: str) -> str:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        told = held.site.ok("ann", "squeue", "-h", "-s", "-j", str(held.job), "-o", "%i %j")
        for line in told.splitlines():
            if line.split()[1] == name:
                return line.split()[0]
        time.sleep(0.2)
    raise AssertionError(name)


def test_a_cancelled_step_ends_in_its_machine(held: Held) -> None:
    script = "echo ready; for i in $(seq 6000); do sleep 0.1; done"
    log = held.site.home("ann") / "counted"
    argv = held.argv(
        "-J", "counting", "-w", "n1", "-N1", "-n1", "-o", "counted", "sh", "-c", script
    )
    with held.site.start("ann", *argv) as step:
        try:
            deadline = time.monotonic() + 300
            while not (log.exists() and "ready" in log.read_text()):
                assert step.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.2)
            held.site.ok("ann", "scancel", step_of(held, "counting"))
            step.wait(120)
        finally:
            step.kill()
    deadline = time.monotonic() + 60
    while held.run("-w", "n1", "-N1", "-n1", "pgrep", "-f", "[s]eq 6000").returncode == 0:
        assert time.monotonic() < deadline, "the task outlives its step"


def test_who_meets_whom(held: Held) -> None:
    place = held.site.home("ann") / "meet"
    place.mkdir()
    place.chmod(0o777)
    put(held.site, "ann", "meet.sh", MEET)
    told = held.ok("-N2", "-n4", "./meet.sh")
    found = re.findall(
        r'^(\d) .*"peer": "(\d)".*"channel": "(\w+)", "integrity": "([^"]*)"', told, re.MULTILINE
    )
    channels = {
        (int(me), int(peer)): (channel, integrity) for me, peer, channel, integrity in found
    }
    assert len(channels) == 16, told
    for (me, peer), (channel, integrity) in channels.items():
        same_node = me // 2 == peer // 2
        assert channel == ("self" if me == peer else "segment" if same_node else "net")
        assert integrity == ("enforced" if channel == "segment" else "-")


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (("mpi_traffic", "-n", "300", "-s", "7", "-b", "20M", "-w", "600"), "traffic OK"),
        (
            (
                "mpi_patterns",
                "-p",
                "pingpong,allreduce",
                "-m",
                "8",
                "-M",
                "1K",
                "-t",
                "0.02",
                "-n",
                "1",
            ),
            "# done",
        ),
    ],
)
def test_mpirun_in_the_first_machine_starts_ranks_in_all(
    held: Held, program: tuple[str, ...], words: str
) -> None:
    name, *arguments = program
    told = held.ok(
        "-N1",
        "-n1",
        "mpirun",
        "-n",
        "4",
        "--map-by",
        "slot",
        "sh",
        "-c",
        'echo rank on $(hostname); exec "$0" "$@"',
        str(PROGRAMS_HERE / "openmpi5" / name),
        *arguments,
        timeout=900,
    )
    assert words in told
    hosts = Counter(re.findall(r"^rank on (\S+)$", told, re.MULTILINE))
    assert hosts == Counter(NAMES)


def test_another_user_reaches_neither_machines_nor_segments(held: Held) -> None:
    site = held.site
    holder = (site.state("n1") / f"job-{held.job}" / "holder").read_text().split()[0]
    knock = (
        'for i in 1 2 3 4; do timeout 20 bash -c "</dev/tcp/10.208.0.$i/22" && echo open $i; done; '
    )
    look = (
        f"cat /proc/{holder}/root/run/nearmetal/vm/key /run/nearmetal/vm/key; "
        f"ls /proc/{holder}/root/run/nearmetal/segment; "
        f"nsenter -t {holder} -n true; {knock} pkill qemu-system; "
        "find /run /tmp /dev/shm -name file -o -name '*.seed'; true"
    )
    done = site.run("bob", "srun", "-w", "n1", "bash", "-c", look)
    told = done.stdout + done.stderr
    assert "PRIVATE KEY" not in told
    assert ".seed" not in told
    assert told.count("Permission denied") >= 2
    assert re.findall(r"^open \d", told, re.MULTILINE) == []
    # From inside a machine of his own, whose network has the same addresses.
    inside = (
        f"ip -o -4 address; {knock}"
        "ls /run/nearmetal/job /dev/nearmetal; "
        f"ls {site.home('ann')}; true"
    )
    done = site.run(
        "bob", "salloc", "-w", "n1", "--nm-node=vm", "srun", "bash", "-c", inside, timeout=900
    )
    told = done.stdout + done.stderr
    assert "10.208.0.1/12" in told
    assert re.findall(r"^open (\d)", told, re.MULTILINE) == ["1"], "its own, and nobody else's"
    assert "Permission denied" in told
    assert "segment" not in told
    assert held.ok("-N2", "-n4", "hostname").split().count("n1-vm0") == 1, "all are well"


def test_a_user_of_another_node_sends_nothing_into_the_network_of_a_job(held: Held) -> None:
    held.ok("-N2", "-n4", "true")
    ask = ("/usr/bin/python3", "-c", ASK)
    job = str(held.job)
    held.site.ok("bob", "srun", "-w", "n2", *ask, "0", job, "10.208.9.9")
    # From where only root of a node can send: that the question is well put is seen by its answer.
    asked = held.site.on_node("n2", *ask, "252", job, "10.208.9.10")
    assert asked.returncode == 0, asked.stderr
    heard = held.ok("-w", "n1", "-N1", "-n1", "ip", "-4", "neighbour", "show")
    assert "10.208.9.10 " in heard
    assert "10.208.9.9 " not in heard


def test_a_machine_that_is_killed_fails_its_task_and_not_its_node(held: Held) -> None:
    site = held.site
    held.ok("-w", "n2", "-N1", "-n2", "true", timeout=900)
    argv = held.argv("-K", "-w", "n2", "-N1", "-n2", "sleep", "900")
    with site.start("ann", *argv) as step:
        time.sleep(5)
        holder = (site.state("n2") / f"job-{held.job}" / "holder").read_text().split()[0]
        killed = site.on_node(
            "n2", "nsenter", "-t", holder, "-m", "-p", "pkill", "-KILL", "-f", "name job-.*-n2-vm1 "
        )
        assert killed.returncode == 0, killed.stderr
        _, said = step.communicate(timeout=300)
    assert step.returncode != 0
    assert "virtual machine n2-vm1 ended while the task ran" in said
    later = held.run("-w", "n2", "-N1", "-n2", "true")
    assert "virtual machine n2-vm1 does not run: it has ended" in later.stderr
    assert site.ok("root", "sinfo", "-h", "-n", "n2", "-o", "%t").split()[0] in ("mix", "alloc")
