# SPDX-License-Identifier: Apache-2.0
"""Jobs of ordinary users in containers as nodes, under a real Slurm: the plugin, launcher, reclaimer."""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nearmetal.job.stats import read_stats
from tests.system.local import ROOT, user_can_read_checkout
from tests.system.mpi_jobs import program
from tests.system.slurm_site import DEBIAN_13, USERS, SlurmSite, need, slurm_site

pytestmark = [
    pytest.mark.system,
    pytest.mark.root,
]

need()
if not user_can_read_checkout():
    pytest.skip("users cannot read the checkout", allow_module_level=True)

IN = "--nm-node=container"
STATE = "/run/nearmetal/slurm"
WATCHDOG = ROOT / "src/spank/systemd/nearmetal-slurm-watchdog.service"


@pytest.fixture(
    scope="module",
    params=[None, pytest.param(DEBIAN_13, marks=[pytest.mark.full, pytest.mark.timeout(1800)])],
)
def up(request: pytest.FixtureRequest) -> Iterator[SlurmSite]:
    with slurm_site(request.param) as place:
        yield place


@pytest.fixture
def slurm(up: SlurmSite) -> Iterator[SlurmSite]:
    """The site, with idle nodes that hold nothing; a test must leave them so."""
    try:
        yield up
        up.assert_clean()
    finally:
        # A test that failed must not fail the next one, too.
        for user in USERS:
            up.run("root", "scancel", "-u", user)


def eventually(look: Callable[[], object], within_s: float = 120) -> None:
    deadline = time.monotonic() + within_s
    while not look():
        assert time.monotonic() < deadline, "it has not happened in time"
        time.sleep(0.1)


def submit(slurm: SlurmSite, user: str, script: str, *options: str) -> int:
    """Hand a batch script in; returns the job."""
    path = slurm.home(user) / "job.sh"
    path.write_text(f"#!/bin/bash\n{script}\n")
    path.chmod(0o755)
    (slurm.home(user) / "out").unlink(missing_ok=True)
    said = slurm.ok(user, "sbatch", "-o", "out", *options, "job.sh", timeout=270)
    return int(said.split()[-1])


def output(slurm: SlurmSite, user: str) -> str:
    path = slurm.home(user) / "out"
    return path.read_text() if path.exists() else ""


def inside(slurm: SlurmSite, job: int, node: str) -> int:
    """Process 1 of a job's container on a node."""
    return int((slurm.state(node) / f"job-{job}" / "holder").read_text().split()[0])


def watchdog(slurm: SlurmSite, node: str) -> tuple[int, str, str]:
    """Run on a node what the unit of the watchdog starts; returns how it ended and what it said."""
    (words,) = re.findall(r"^ExecStart=\S+ (.*)$", WATCHDOG.read_text(), re.MULTILINE)
    done = slurm.on_node(node, slurm.launcher, *words.split())
    return done.returncode, done.stdout, done.stderr


def leave(slurm: SlurmSite, node: str, job: int) -> None:
    """Leave a container on a node of which its slurmd knows nothing."""
    done = slurm.on_node(
        node,
        "env",
        f"SLURMD_NODENAME={node}",
        slurm.launcher,
        "slurm",
        "launch",
        "--job",
        str(job),
        "--uid",
        str(USERS["bob"]),
        "--segment",
        "1048576",
    )
    assert done.returncode == 0, done.stderr


def test_a_step_has_namespaces_and_a_segment_directory_of_its_own(slurm: SlurmSite) -> None:
    script = (
        "echo $$ $(hostname) $(id -un) $PWD; "
        "stat -c '%a %u' /run/nearmetal/job; ls -A /run/nearmetal/job /tmp /dev/shm; "
        "for n in pid mnt ipc uts net; do readlink /proc/self/ns/$n; done"
    )
    theirs = slurm.ok("ann", "srun", "-w", "n1", IN, "bash", "-c", script).splitlines()
    assert theirs[0].split() == ["2", "n1", "ann", str(slurm.home("ann"))]
    assert theirs[1] == "700 64321"
    listed = [line for line in theirs[2:-5] if line]
    assert listed == ["/dev/shm:", "/run/nearmetal/job:", "/tmp:"]
    spaces = slurm.on_node("n1", "bash", "-c", script.rpartition("; for")[2].join(["for", ""]))
    ours = spaces.stdout.splitlines()
    assert [a == b for a, b in zip(theirs[-5:], ours, strict=True)] == [False] * 4 + [True]


def channels(directory: Path) -> dict[str, int]:
    """Messages sent, by channel, of all endpoints that left statistics."""
    sent: dict[str, int] = {}
    for endpoint in read_stats(directory):
        for peer in endpoint["peers"]:
            for name, traffic in peer["channels"].items():
                sent[name] = sent.get(name, 0) + int(traffic["sent_messages"])
    return {name: count for name, count in sent.items() if count and name != "self"}


@pytest.mark.parametrize(
    ("nodes", "per_node", "expected"), [(1, 2, {"shm"}), (2, 1, {"net"}), (2, 2, {"shm", "net"})]
)
@pytest.mark.mpi
def test_mpi_takes_memory_inside_a_host_and_the_network_across(
    slurm: SlurmSite, nodes: int, per_node: int, expected: set[str]
) -> None:
    stats = slurm.home("ann") / f"stats.{nodes}.{per_node}"
    stats.mkdir(mode=0o700)
    os.chown(stats, USERS["ann"], USERS["ann"])
    traffic = [str(program("openmpi4", "mpi_traffic")), "-n", "2000", "-b", "20M"]
    hello = [str(program("openmpi4", "mpi_hello"))]
    told = slurm.ok(
        "ann",
        "srun",
        f"-N{nodes}",
        f"--ntasks-per-node={per_node}",
        "--mpi=pmix",
        IN,
        *(traffic if len(expected) > 1 else hello),
        env={"NEARMETAL_STATS_DIR": str(stats)},
        timeout=240,
    )
    assert ("traffic OK" if len(expected) > 1 else "every token came back") in told
    assert set(channels(stats)) == expected


@pytest.mark.mpi
def test_tasks_make_containers_of_their_own_without_the_plugin(slurm: SlurmSite) -> None:
    stats = slurm.home("ann") / "stats.task"
    stats.mkdir(mode=0o700)
    os.chown(stats, USERS["ann"], USERS["ann"])
    told = slurm.ok(
        "ann",
        "srun",
        "-N2",
        "--ntasks-per-node=2",
        "--mpi=pmix",
        slurm.launcher,
        "slurm",
        "task",
        "--mpi",
        slurm.mpi,
        "--",
        str(program("openmpi4", "mpi_traffic")),
        "-n",
        "2000",
        "-b",
        "20M",
        env={"NEARMETAL_STATS_DIR": str(stats)},
        timeout=240,
    )
    assert "traffic OK" in told
    assert set(channels(stats)) == {"shm", "net"}
    for node in ("n1", "n2"):
        assert not list(slurm.state(node).glob("job-*"))
    # Ended by Slurm, not by themselves.
    job = submit(slurm, "ann", f"srun {slurm.launcher} slurm task -- sleep 876543", "-w", "n1")
    eventually(lambda: slurm.run("root", "pgrep", "-x", "-f", "sleep 876543").stdout)
    slurm.ok("ann", "scancel", str(job))
    eventually(lambda: not slurm.run("root", "pgrep", "-x", "-f", "sleep 876543").stdout)


@pytest.mark.mpi
def test_a_batch_job_is_inside_with_its_steps_and_its_mpirun(slurm: SlurmSite) -> None:
    hello = program("openmpi4", "mpi_hello")
    script = f"""\
#SBATCH -N2 --ntasks-per-node=2 {IN} --nm-segment=16M
echo pid $$
df --output=size /run/nearmetal/job | tail -1
srun --mpi=pmix {hello}
mpirun {hello}
srun -N2 -n2 --nm-node=none ls -d /run/nearmetal/job
true"""
    submit(slurm, "ann", script, "-W")
    told = output(slurm, "ann")
    assert told.split()[:3] == ["pid", "2", "16384"]
    assert told.count("every token came back") == 2
    assert told.count("cannot access '/run/nearmetal/job'") == 2


def test_an_allocation_is_asked_for_containers_not_its_steps(slurm: SlurmSite) -> None:
    look = ("srun", "ls", "-d", "/run/nearmetal/job")
    assert slurm.ok("ann", "salloc", "-N2", IN, *look).split() == ["/run/nearmetal/job"] * 2
    late = slurm.run("ann", "salloc", "srun", IN, "true")
    assert late.returncode == 1
    assert "was the allocation created without --nm-node?" in late.stderr
    other = slurm.run("ann", "salloc", IN, "srun", "--nm-segment=2M", "true")
    assert other.returncode == 1
    assert "options of the step differ from those of the allocation" in other.stderr


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((IN, "--nm-image=default"), "--nm-image needs --nm-node=vm"),
        (("--nm-node=\x1b[31m",), "--nm-node=?[31m: must be container, vm, openstack or none"),
        (("--nm-node=" + "x" * 5000,), "must be container, vm, openstack or none"),
        ((IN, "--nm-segment=129M"), "this site allows 128M at most"),
        ((IN, "--nm-segment=-1"), "give a size of at least 1M"),
        ((IN, "--nm-segment=99999999999999999999G"), "give a size of at least 1M"),
        (("--nm-segment=2M",), "--nm-segment needs --nm-node=container"),
        (("--nm-profile=far",), "unknown profile; known profiles: mpich near"),
        (("-psmall", IN, "--nm-segment=17M"), "partition small allows 16M at most"),
        (
            ("--part=debug,small", "--nm-profile=near"),
            "--nm-profile: partition small forbids this option",
        ),
    ],
)
@pytest.mark.parametrize("verb", ["srun", "sbatch", "salloc"])
def test_bad_options_are_refused_where_they_are_typed(
    up: SlurmSite, verb: str, options: tuple[str, ...], words: str
) -> None:
    more = ("--wrap=true",) if verb == "sbatch" else ("true",)
    done = up.run("ann", verb, *options, *more)
    assert done.returncode not in (0, -11)
    assert words in done.stderr
    assert up.ok("ann", "squeue", "-h") == ""


def test_a_limit_passed_by_with_settings_of_ones_own_fails_the_job_not_the_node(
    slurm: SlurmSite,
) -> None:
    home = slurm.home("ann")
    etc = slurm.directory / "etc/slurm"
    (home / "own.toml").write_text('[limits]\nsegment = "100G"\n')
    stack = (etc / "plugstack.conf").read_text()
    (home / "plugstack.conf").write_text(
        stack.replace(str(etc / "nearmetal.toml"), str(home / "own.toml"))
    )
    conf = (etc / "slurm.conf").read_text()
    (home / "slurm.conf").write_text(
        conf.replace(str(etc / "plugstack.conf"), str(home / "plugstack.conf"))
    )
    done = slurm.run(
        "ann", "srun", IN, "--nm-segment=90G", "true", env={"SLURM_CONF": str(home / "slurm.conf")}
    )
    assert done.returncode == 1
    assert "this site allows 128M at most" in done.stderr


def test_a_partition_in_a_script_or_a_variable_is_known_at_submission(up: SlurmSite) -> None:
    path = up.home("ann") / "small.sh"
    path.write_text("#!/bin/bash\n#SBATCH -p small --nm-profile=near\n")
    script = up.run("ann", "sbatch", "small.sh")
    variable = up.run(
        "ann", "salloc", "--nm-profile=near", "true", env={"SALLOC_PARTITION": "small"}
    )
    for done in (script, variable):
        assert done.returncode == 1
        assert "--nm-profile: partition small forbids this option: leave it out" in done.stderr
    assert up.ok("ann", "squeue", "-h") == ""


def test_a_partition_lowers_what_nobody_asked_for(slurm: SlurmSite) -> None:
    size = ("df", "--output=size", "/run/nearmetal/job")
    told = slurm.ok("ann", "srun", "-p", "small", IN, *size)
    assert told.split() == ["1K-blocks", "16384"]
    refused = slurm.run("ann", "salloc", "-p", "small", IN, "srun", "--nm-profile=near", "true")
    assert refused.returncode == 1
    assert "--nm-profile: partition small forbids this option" in refused.stderr


def test_steps_go_by_the_partition_on_record(slurm: SlurmSite) -> None:
    # srun tells a step the true partition, so here the record is what lies.
    go = slurm.home("ann") / "go"
    go.unlink(missing_ok=True)
    script = "echo ready; until [ -e go ]; do sleep 0.1; done; srun true"
    job = submit(slurm, "ann", script, "-p", "small", "-w", "n1", IN)
    eventually(lambda: "ready" in output(slurm, "ann"))
    (slurm.state("n1") / f"job-{job}/partition").write_text("debug\n")
    go.touch()
    eventually(lambda: "differ from those of the allocation" in output(slurm, "ann"))


def test_a_partition_that_only_nodes_know_fails_the_job_not_the_node(slurm: SlurmSite) -> None:
    job = submit(slurm, "ann", "true", "--hold", "--nm-profile=near")
    slurm.ok("ann", "scontrol", "update", f"JobId={job}", "Partition=small")
    slurm.ok("ann", "scontrol", "release", str(job))
    eventually(lambda: slurm.ok("ann", "squeue", "-h") == "")
    assert "--nm-profile: partition small forbids this option" in output(slurm, "ann")


def test_a_profile_sets_what_it_says(slurm: SlurmSite) -> None:
    told = slurm.ok(
        "ann",
        "srun",
        "--nm-profile=near",
        "bash",
        "-c",
        "echo $NEARMETAL_CHANNELS; df --output=size /run/nearmetal/job",
    )
    assert told.split() == ["self,shm", "1K-blocks", "32768"]


def test_users_reach_neither_segments_nor_processes_of_others(slurm: SlurmSite) -> None:
    secret = "echo secret > /run/nearmetal/job/mine; echo secret > /tmp/mine; sleep 300"
    job = submit(slurm, "ann", secret, IN, "-w", "n1")
    pid = 0

    def is_there() -> bool:
        nonlocal pid
        with contextlib.suppress(FileNotFoundError):
            pid = inside(slurm, job, "n1")
        path = f"/proc/{pid}/root/run/nearmetal/job/mine"
        return bool(pid) and slurm.on_node("n1", "cat", path).stdout == "secret\n"

    eventually(is_there)
    look = (
        f"find /run/nearmetal /tmp /dev/shm -name mine; ls {STATE}; "
        f"ls /proc/{pid}/root; ls -d /proc/[0-9]*/root"
        "/run/nearmetal/job/mine; "
        "cat /run/nearmetal/job/mine; ps -eo user= | sort -u"
    )
    within = slurm.run("bob", "srun", "-w", "n1", IN, "bash", "-c", look)
    assert set(within.stdout.split()) == {"bob", "root"}
    assert "secret" not in within.stdout + within.stderr
    outside = slurm.run(
        "bob",
        "srun",
        "-w",
        "n1",
        "bash",
        "-c",
        f"cat /proc/{pid}/root/run/nearmetal/job/mine; kill -9 {pid}; "
        f"nsenter -t {pid} -m cat /run/nearmetal/job/mine",
    )
    assert "secret" not in outside.stdout
    # Which of the two is said of namespaces depends on the release of nsenter.
    assert len(re.findall("Permission denied|Operation not permitted", outside.stderr)) == 3
    assert slurm.on_node("n1", "test", "-d", f"/proc/{pid}").returncode == 0
    slurm.ok("ann", "scancel", str(job))


@pytest.mark.parametrize(("end", "code"), [("exit 7", 7), ("kill -SEGV $$", 139)])
def test_the_end_of_a_task_is_told_as_it_was(slurm: SlurmSite, end: str, code: int) -> None:
    assert slurm.run("ann", "srun", IN, "bash", "-c", end).returncode == code


@pytest.mark.parametrize(
    ("script", "how"),
    [
        ("exec srun bash -c '{}'", ()),
        ("{}", ("--batch",)),
    ],
)
def test_a_signal_arrives_once(slurm: SlurmSite, script: str, how: tuple[str, ...]) -> None:
    counting = 'trap "echo got" USR1; echo ready; for i in {1..600}; do sleep 0.1; done'
    job = submit(slurm, "ann", script.format(counting), IN)
    eventually(lambda: "ready" in output(slurm, "ann"))
    slurm.ok("ann", "scancel", "-s", "USR1", *how, str(job))
    eventually(lambda: "got" in output(slurm, "ann"))
    time.sleep(1)
    assert output(slurm, "ann").split().count("got") == 1
    slurm.ok("ann", "scancel", str(job))


def test_killed_slurmstepds_leave_nothing_after_scancel(slurm: SlurmSite) -> None:
    job = submit(slurm, "ann", "srun sleep 654321", "-N2", IN)

    def sleepers() -> str:
        return slurm.run("root", "pgrep", "-x", "-f", ".*/sleep 654321").stdout

    eventually(lambda: len(sleepers().split()) == 2)
    slurm.ok("root", "pkill", "-KILL", "slurmstepd")
    assert len(sleepers().split()) == 2, "tasks outlive their slurmstepd"
    slurm.ok("ann", "scancel", str(job))
    slurm.assert_clean()
    assert sleepers() == ""


def test_scancel_right_after_submission(slurm: SlurmSite) -> None:
    for delay_s in (0.0, 0.3, 1.0):
        job = submit(slurm, "ann", "srun sleep 300", "-N3", IN)
        time.sleep(delay_s)
        slurm.ok("ann", "scancel", str(job))
    slurm.assert_clean()


def test_a_job_whose_container_is_killed_fails(slurm: SlurmSite) -> None:
    job = submit(slurm, "ann", "echo ready; sleep 300", "-w", "n2", IN)
    eventually(lambda: "ready" in output(slurm, "ann"))
    slurm.on_node("n2", "kill", "-9", str(inside(slurm, job, "n2")))
    eventually(lambda: slurm.ok("ann", "squeue", "-h") == "")
    assert "JobState=FAILED" in slurm.ok("root", "scontrol", "show", "job", str(job))


def test_status_shows_who_is_here_and_finds_leaks(slurm: SlurmSite) -> None:
    job = submit(slurm, "ann", "echo ready; sleep 300", "-w", "n3", IN)
    eventually(lambda: "ready" in output(slurm, "ann"))
    one = slurm.on_node("n3", slurm.launcher, "slurm", "status", "--json")
    (entry,) = json.loads(one.stdout)["containers"]
    assert (entry["job"], entry["uid"], entry["leak"]) == (job, USERS["ann"], False)
    assert one.returncode == 0
    # What a node is left with whose epilog never ran.
    leave(slurm, "n3", 999999)
    two = slurm.on_node("n3", slurm.launcher, "slurm", "status")
    assert two.returncode == 4
    assert "job 999999 has ended and its container is here" in two.stderr
    assert watchdog(slurm, "n3") == (0, "job 999999: reclaimed\n", "")
    three = slurm.on_node("n3", slurm.launcher, "slurm", "status")
    assert three.returncode == 0
    assert re.search(rf"^{job} .* in use ", three.stdout, re.MULTILINE)
    slurm.ok("ann", "scancel", str(job))


def test_another_job_of_the_user_keeps_no_memory_of_a_container(slurm: SlurmSite) -> None:
    job = submit(slurm, "ann", "head -c 8M /dev/zero > /dev/shm/big; sleep 300", IN, "-w", "n1")
    eventually(lambda: bool(slurm.on_node("n1", "pgrep", "-u", "ann", "-x", "sleep").stdout))
    (inner,) = slurm.on_node("n1", "pgrep", "-u", "ann", "-x", "sleep").stdout.split()[:1]
    hold = (
        f"exec 9<>/proc/{inner}/root/dev/shm/big 8</proc/{inner}/ns/mnt; echo holding; "
        "while [ -e /proc/$$ ]; do sleep 1; stat -L -c %b /proc/$$/fd/9; done"
    )
    other = submit(slurm, "ann", hold, "-w", "n1")
    eventually(lambda: "holding" in output(slurm, "ann"))
    slurm.ok("ann", "scancel", str(job))

    def held() -> list[int]:
        told = slurm.on_node("n1", slurm.launcher, "slurm", "status", "--json")
        return [one["job"] for one in json.loads(told.stdout)["holders"]]

    eventually(lambda: job in held())
    eventually(lambda: output(slurm, "ann").splitlines()[-1] == "0")
    slurm.ok("ann", "scancel", str(other))
    eventually(lambda: held() == [])


def test_the_watchdog_ends_what_a_killed_slurmd_leaves(slurm: SlurmSite) -> None:
    job = submit(slurm, "ann", "srun sleep 765432", "-w", "n2", "--no-requeue", IN)

    def sleepers() -> list[str]:
        return slurm.run("root", "pgrep", "-x", "-f", ".*/sleep 765432").stdout.split()

    eventually(lambda: len(sleepers()) == 1)
    daemon = (slurm.directory / "spool/slurmd.n2.pid").read_text().strip()
    assert slurm.on_node("n2", "kill", "-9", daemon).returncode == 0
    slurm.ok("root", "pkill", "-KILL", "slurmstepd")
    assert watchdog(slurm, "n2") == (0, "no job has left anything here\n", ""), "the job runs"
    slurm.ok("root", "scontrol", "update", "NodeName=n2", "State=DOWN", "Reason=lost")
    eventually(lambda: slurm.ok("ann", "squeue", "-h") == "")
    assert len(sleepers()) == 1, "nobody else ends it"
    assert watchdog(slurm, "n2") == (0, f"job {job}: reclaimed\n", "")
    assert sleepers() == []
    assert slurm.on_node("n2", "slurmd", "-N", "n2").returncode == 0, "and the node comes back"


def test_a_job_that_runs_elsewhere_has_nothing_here(slurm: SlurmSite) -> None:
    job = submit(slurm, "ann", "echo ready; sleep 300", "-w", "n1", IN)
    eventually(lambda: "ready" in output(slurm, "ann"))
    leave(slurm, "n3", job)
    assert watchdog(slurm, "n3") == (0, f"job {job}: reclaimed\n", "")
    assert watchdog(slurm, "n1") == (0, "no job has left anything here\n", "")
    assert "JobState=RUNNING" in slurm.ok("root", "scontrol", "show", "job", str(job))
    assert slurm.on_node("n1", "test", "-d", f"/proc/{inside(slurm, job, 'n1')}").returncode == 0
    slurm.ok("ann", "scancel", str(job))


def test_what_cannot_be_ended_drains_its_node(slurm: SlurmSite) -> None:
    leave(slurm, "n3", 999998)
    busy = f"{STATE}/job-999998/busy"
    slurm.on_node("n3", "mkdir", busy)
    assert slurm.on_node("n3", "mount", "-t", "tmpfs", "tmpfs", busy).returncode == 0
    code, _, said = watchdog(slurm, "n3")
    assert code == 1
    assert "job 999998: " in said
    state = slurm.ok("root", "sinfo", "-h", "-n", "n3", "-o", "%T %E")
    assert re.match(r"drained nearmetal: job 999998: .*busy", state)
    slurm.on_node("n3", "umount", busy)
    assert watchdog(slurm, "n3") == (0, "job 999998: reclaimed\n", "")
    slurm.ok("root", "scontrol", "update", "NodeName=n3", "State=RESUME")


def test_a_prolog_run_again_makes_the_container_anew(slurm: SlurmSite) -> None:
    argv = [
        slurm.launcher,
        "slurm",
        "launch",
        "--job",
        "7777",
        "--uid",
        "1000",
        "--segment",
        "1048576",
    ]
    assert slurm.on_node("n1", *argv).returncode == 0
    first = inside(slurm, 7777, "n1")
    assert slurm.on_node("n1", *argv).returncode == 0
    assert inside(slurm, 7777, "n1") != first
    assert slurm.on_node("n1", "test", "-d", f"/proc/{first}").returncode == 1
    for expected in ("reclaimed", "nothing is here"):
        done = slurm.on_node("n1", slurm.launcher, "slurm", "reclaim", "--job", "7777")
        assert done.stdout == f"job 7777: {expected}\n"
