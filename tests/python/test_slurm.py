# SPDX-License-Identifier: Apache-2.0
"""Launcher, reclaimer and status of containers under Slurm, without a Slurm."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from nearmetal.cli.slurm import show_status
from nearmetal.cli.verbs import build_parser
from nearmetal.cli.view import View
from nearmetal.core.errors import NearmetalError, SlurmError, UsageError
from nearmetal.core.process import Command, Completed, LocalRunner
from nearmetal.host.vf import Ledger, VfHost
from nearmetal.job.mpi.settings import as_variables
from nearmetal.slurm.backend import ThisNode, reclaim_ended
from nearmetal.slurm.container import ContainerRequest, environment, launch
from nearmetal.slurm.holder import be_ordinary, start_ticks
from nearmetal.slurm.queue import known_jobs, parse
from nearmetal.slurm.reclaim import reclaim
from nearmetal.slurm.records import STATE, VFS, containers, locked, of_job
from nearmetal.slurm.servers import STORE
from nearmetal.slurm.vfs import JobVfs
from tests.python.sriov_tree import FakeKernel, Tree
from tests.system.local import user_can_read_checkout

ROOT = Path(__file__).parents[2]
WISH = ContainerRequest(job=7, uid=1000, segment_bytes=1 << 20, scratch_bytes=1 << 20, request="r")


class Slurm(LocalRunner):
    """Answers as squeue, sinfo and scontrol would: `jobs` by node, and the state of the node."""

    def __init__(self, jobs: dict[str, str], code: int = 0, state: str = "idle") -> None:
        self.jobs, self.code, self.state = jobs, code, state
        self.asked: list[tuple[str, ...]] = []
        self.broken: set[str] = set()

    def run(self, command: Command, *, timeout_s: float) -> Completed:
        assert timeout_s > 0
        assert command.env is not None
        assert not {"SQUEUE_USERS", "SINFO_PARTITION", "SLURM_CLUSTERS"} & command.env.keys()
        assert "PATH" in command.env
        program, *arguments = command.argv
        self.asked.append(command.argv)
        told = {"squeue": self._queue(arguments), "sinfo": self.state, "scontrol": ""}[program]
        code = self.code or int(program in self.broken)
        return Completed(command, code, told.encode(), b"no controller", 0.0)

    def _queue(self, arguments: list[str]) -> str:
        names = [a.partition("=")[2] for a in arguments if a.startswith("--nodelist=")]
        return "".join(text for node, text in self.jobs.items() if not names or node in names)


def no_vfs(directory: Path) -> JobVfs:
    """The VFs of a machine that has none."""
    tree = Tree(directory / "machine")
    if not tree.root.exists():
        tree.make()
    ledger = Ledger(directory / "ledger")
    return JobVfs(lambda: VfHost(FakeKernel(tree), ledger, privileged=True), ledger.path)


def record(state: Path, job: int, *, holder: str | None = None, about: str | None = None) -> Path:
    directory = state / f"job-{job}"
    directory.mkdir(parents=True)
    if holder is not None:
        (directory / "holder").write_text(holder)
    text = json.dumps({"uid": 1000, "node": "n1", "since": 5, "request": "r"})
    (directory / "about").write_text(text if about is None else about)
    return directory


def test_the_state_is_where_the_plugin_looks() -> None:
    header = (ROOT / "src/spank/container.h").read_text()
    assert f'#define NM_SPANK_STATE "{STATE}"' in header


def test_the_plugin_types_what_the_command_line_takes() -> None:
    words = set(re.findall(r'"(--[a-z]+)"', (ROOT / "src/spank/launcher.c").read_text()))
    told = "".join(
        subprocess.run(
            [sys.executable, "-m", "nearmetal", "slurm", verb, "--help"],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout
        for verb in ("launch", "reclaim")
    )
    assert words == {
        "--job",
        "--uid",
        "--segment",
        "--scratch",
        "--request",
        "--mpi",
        "--channels",
        "--partition",
        "--vfs",
        "--vms",
        "--servers",
        "--cloud",
        "--vcpus",
        "--memory",
        "--image",
        "--shares",
        "--accel",
        "--nodes",
        "--key",
    }
    assert all(word in told for word in words)


@pytest.mark.parametrize("verb", ["launch --job 1 --uid 1", "task"])
@pytest.mark.parametrize("size", ["2097152", "2MiB", "2 MiB"])
def test_both_verbs_take_sizes_in_bytes_and_with_a_unit(verb: str, size: str) -> None:
    words = ["slurm", *verb.split(), "--segment", size, "--scratch", size]
    args = build_parser().parse_args([*words, *(["app"] if verb == "task" else [])])
    given = vars(args)
    found = [given.get(f"{name}_bytes", given.get(name)) for name in ("segment", "scratch")]
    assert found == [2 << 20, 2 << 20]


def test_a_prolog_waits_for_no_module_that_it_does_not_need() -> None:
    script = (
        "import sys; from nearmetal.cli.verbs import build_parser\n"
        "for words in (['launch', '--job', '1', '--uid', '1', '--segment', '1'],"
        " ['reclaim', '--job', '1'], ['task', 'app']):\n"
        " build_parser().parse_args(['slurm', *words])\n"
        "print(*sorted({'pydantic', 'nearmetal.cluster.spec', 'nearmetal.host.vf'} & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        cwd=ROOT,
    )
    assert done.stdout.strip() == ""


def test_jobs_that_may_have_something_on_a_node() -> None:
    text = "1 R\n2 CG\n3 CD\n4 PD\n5 S\n6 NF\n7 CF\n7 R\n"
    assert parse(text) == {1, 2, 5, 7}
    assert parse("") == frozenset()


@pytest.mark.parametrize("text", ["1\n", "x R\n", "1 R extra\n", "slurm_load_jobs error\n"])
def test_anything_else_of_squeue_is_refused(text: str) -> None:
    with pytest.raises(SlurmError, match="squeue wrote"):
        parse(text)


def test_no_answer_makes_no_leak(tmp_path: Path) -> None:
    with pytest.raises(SlurmError, match="no controller") as caught:
        known_jobs(Slurm({}, 1), "n1")
    assert "slurmctld" in caught.value.hint
    record(tmp_path, 5)
    for judge in (
        lambda: show_status(Slurm({}, 1), ThisNode(tmp_path), View(as_json=True), no_vfs(tmp_path)),
        lambda: reclaim_ended(Slurm({}, 1), ThisNode(tmp_path), drains=True),
    ):
        with pytest.raises(SlurmError):
            judge()
    assert (tmp_path / "job-5").is_dir()


def test_records_are_read_whatever_is_in_them(tmp_path: Path) -> None:
    own = f"{os.getpid()} {start_ticks(os.getpid())}\n"
    record(tmp_path, 12, holder=own)
    record(tmp_path, 3, holder="x y", about="[1]")
    record(tmp_path, 4, about="{")
    record(tmp_path, 5, holder=f"{os.getpid()} 1\n")
    (tmp_path / "lock").touch()
    (tmp_path / "job-x").mkdir()
    found = {c.job: c for c in containers(tmp_path)}
    assert list(found) == [3, 4, 5, 12]
    assert [c.lives() for c in found.values()] == [False, False, False, True]
    assert (found[12].uid, found[12].node, found[12].since, found[12].request) == (
        1000,
        "n1",
        5.0,
        "r",
    )
    assert (found[3].uid, found[4].pid) == (-1, 0)
    assert of_job(99, tmp_path) is None
    assert containers(tmp_path / "nowhere") == ()


def test_what_a_dead_slurmstepd_left_outside_goes_with_the_job(tmp_path: Path) -> None:
    uid = os.geteuid() or 65534
    about = json.dumps({"uid": uid, "node": "n1", "since": 5, "request": "r"})
    record(tmp_path, 77001, about=about)

    def start(job: int, node: str) -> subprocess.Popen[bytes]:
        env = {"SLURM_JOB_ID": str(job), "SLURMD_NODENAME": node}
        return subprocess.Popen(["/bin/sleep", "600"], env=env, user=uid)

    its, others = start(77001, "n1"), [start(77001, "n2"), start(7700, "n1"), start(77001, "")]
    try:
        assert reclaim(77001, tmp_path, vfs=no_vfs(tmp_path))
        assert its.wait(60) == -9
        assert [other.poll() for other in others] == [None] * 3
    finally:
        for process in (its, *others):
            process.kill()
            process.wait()


def control_group(job: int) -> Path:
    """A control group with the name that Slurm gives that of a job."""
    mounts = (Path("/sys/fs/cgroup/freezer"), Path("/sys/fs/cgroup"))
    mount = next((m for m in mounts if (m / "cgroup.procs").exists()), None)
    if mount is None or not os.access(mount, os.W_OK):
        pytest.skip("no control groups to make")
    place = mount / f"job_{job}"
    place.mkdir()
    return place


@contextlib.contextmanager
def in_group(group: Path, env: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """A process of user 65534 in a control group."""
    enter = f"echo $$ >{group}/cgroup.procs; exec setpriv --reuid=65534 sleep 600"
    with subprocess.Popen(["/bin/sh", "-c", enter], env=env) as process:
        try:
            while Path(f"/proc/{process.pid}/comm").read_text() != "sleep\n":
                assert process.poll() is None
            yield process
        finally:
            process.kill()
            process.wait()
            group.rmdir()


@pytest.mark.skipif(os.geteuid() != 0, reason="makes a control group, which needs root")
def test_what_a_control_group_says_is_another_jobs_stays(tmp_path: Path) -> None:
    about = json.dumps({"uid": 65534, "node": "n1", "since": 5, "request": "r"})
    record(tmp_path, 77002, about=about)
    record(tmp_path, 77003, about=about)
    env = {"SLURM_JOB_ID": "77002", "SLURMD_NODENAME": "n1"}
    with in_group(control_group(77003), env) as process:
        assert reclaim(77002, tmp_path, vfs=no_vfs(tmp_path))
        assert process.poll() is None
        assert reclaim(77003, tmp_path, vfs=no_vfs(tmp_path))
        assert process.wait(60) == -9


@pytest.mark.skipif(os.geteuid() != 0, reason="freezes a control group, which needs root")
def test_what_goes_on_outside_fails_no_reclaim(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    about = json.dumps({"uid": 65534, "node": "n1", "since": 5, "request": "r"})
    record(tmp_path, 77004, about=about)
    group = control_group(77004)
    state = group / "freezer.state"
    if not state.exists():
        group.rmdir()
        pytest.skip("the kernel kills what is frozen in a group of version 2")
    with in_group(group, {"SLURMD_NODENAME": "n1"}) as process:
        state.write_text("FROZEN")
        try:
            assert reclaim(77004, tmp_path, vfs=no_vfs(tmp_path))
            assert "job 77004: " in capsys.readouterr().err
        finally:
            state.write_text("THAWED")
        assert process.wait(60) == -9
    assert not (tmp_path / "job-77004").exists()


def test_a_record_whose_process_is_somebody_elses_kills_nobody(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as other:
        record(tmp_path, 5, holder=f"{other.pid} 1\n")
        assert reclaim(5, tmp_path)
        assert other.poll() is None
        other.kill()
    assert not (tmp_path / "job-5").exists()
    assert not reclaim(5, tmp_path)


def test_status_tells_leaks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record(tmp_path, 1)
    record(tmp_path, 2)
    slurm = Slurm({"n1": "1 R\n3 R\n"})
    assert show_status(slurm, ThisNode(tmp_path), View(as_json=False), no_vfs(tmp_path)) == 4
    told = capsys.readouterr()
    assert "job 2 has ended and its container is here" in told.err
    assert "its process 1 has died" in told.out
    assert show_status(slurm, ThisNode(tmp_path), View(as_json=True), no_vfs(tmp_path)) == 4
    data = json.loads(capsys.readouterr().out)
    assert [(c["job"], c["leak"]) for c in data["containers"]] == [(1, False), (2, True)]


def test_status_without_containers_does_not_ask_slurm(tmp_path: Path) -> None:
    slurm = Slurm({}, 1)
    assert show_status(slurm, ThisNode(tmp_path), View(as_json=True), no_vfs(tmp_path)) == 0
    assert reclaim_ended(slurm, ThisNode(tmp_path), drains=True) == ()
    assert slurm.asked == []


def test_the_watchdog_ends_what_no_job_of_this_node_has(tmp_path: Path) -> None:
    record(tmp_path, 1)
    record(tmp_path, 2)
    # Put back into the queue when this node was lost, and running on another one.
    record(tmp_path, 3)
    # Cut short before it wrote whose it is: in use as long as the job is anywhere.
    record(tmp_path, 4, about="")
    record(tmp_path, 5, about="")
    slurm = Slurm({"n1": "1 R\n", "n2": "3 R\n4 R\n"})
    assert reclaim_ended(slurm, ThisNode(tmp_path), drains=True) == (2, 3, 5)
    assert [c.job for c in containers(tmp_path)] == [1, 4]
    assert {words[0] for words in slurm.asked} == {"squeue"}


def test_a_job_waits_for_itself_alone(tmp_path: Path) -> None:
    took: queue.SimpleQueue[int] = queue.SimpleQueue()

    def take(job: int) -> None:
        with locked(tmp_path, job):
            took.put(job)

    def wants(job: int) -> threading.Thread:
        thread = threading.Thread(target=take, args=(job,))
        thread.start()
        return thread

    with locked(tmp_path, 1):
        for job in (0, 2, (1 << 32) - 1, VFS):
            wants(job).join(60)
            assert took.get(timeout=0) == job
        waiting = wants(1)
        with pytest.raises(queue.Empty):
            took.get(timeout=0.3)
    waiting.join(60)
    assert took.get(timeout=0) == 1


def test_the_watchdog_waits_for_no_job(tmp_path: Path) -> None:
    record(tmp_path, 1)
    record(tmp_path, 2)
    with locked(tmp_path, 1):
        assert reclaim_ended(Slurm({}), ThisNode(tmp_path), drains=True) == (2,)
    assert reclaim_ended(Slurm({}), ThisNode(tmp_path), drains=True) == (1,)


def test_a_container_made_after_the_verdict_stays(tmp_path: Path) -> None:
    record(tmp_path, 5, holder="99999998 1\n")
    (judged,) = containers(tmp_path)
    (tmp_path / "job-5" / "holder").write_text("99999999 2\n")
    assert not reclaim(5, tmp_path, only=judged)
    assert (tmp_path / "job-5").is_dir()
    (now,) = containers(tmp_path)
    assert reclaim(5, tmp_path, only=now)


@pytest.mark.parametrize(
    ("state", "drains", "updates"),
    [("idle", True, 1), ("draining", True, 0), ("drained*", True, 0), ("idle", False, 0)],
)
def test_what_stays_drains_the_node_and_stops_nothing_else(
    tmp_path: Path, state: str, *, drains: bool, updates: int
) -> None:
    record(tmp_path / "elsewhere", 1)
    (tmp_path / "job-1").symlink_to(tmp_path / "elsewhere" / "job-1")
    record(tmp_path, 2)
    slurm = Slurm({}, state=state)
    with pytest.raises(SlurmError, match=r"job 1: .*symbolic link"):
        reclaim_ended(slurm, ThisNode(tmp_path), drains=drains)
    assert [c.job for c in containers(tmp_path)] == [1]
    told = [words for words in slurm.asked if words[0] == "scontrol"]
    assert len(told) == updates
    for words in told:
        assert words[1:4] == ("update", "NodeName=n1", "State=DRAIN")
        assert words[4].startswith("Reason=nearmetal: job 1: ")


def test_a_node_that_cannot_be_drained_hides_neither_the_fault_nor_other_leaks(
    tmp_path: Path,
) -> None:
    record(tmp_path / "elsewhere", 1)
    (tmp_path / "job-1").symlink_to(tmp_path / "elsewhere" / "job-1")
    record(tmp_path, 2)
    slurm = Slurm({})
    slurm.broken = {"scontrol"}
    with pytest.raises(SlurmError, match=r"job 1: .*; node n1 cannot be drained: no controller"):
        reclaim_ended(slurm, ThisNode(tmp_path), drains=True)
    assert [c.job for c in containers(tmp_path)] == [1]


def test_who_may_not_reclaim_drains_nothing(tmp_path: Path) -> None:
    record(tmp_path, 1)
    (tmp_path / "lock").mkdir()
    slurm = Slurm({})
    with pytest.raises(SlurmError) as caught:
        reclaim_ended(slurm, ThisNode(tmp_path), drains=True)
    assert caught.value.hint == "run this as root"
    assert slurm.asked == []


def test_what_the_caller_asks_of_slurm_narrows_no_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SQUEUE_USERS", "SINFO_PARTITION", "SLURM_CLUSTERS"):
        monkeypatch.setenv(name, "other")
    record(tmp_path / "elsewhere", 1)
    (tmp_path / "job-1").symlink_to(tmp_path / "elsewhere" / "job-1")
    slurm = Slurm({})
    with pytest.raises(SlurmError, match="job 1"):
        reclaim_ended(slurm, ThisNode(tmp_path), drains=True)
    assert [words[0] for words in slurm.asked] == ["squeue", "sinfo", "scontrol"]


def test_the_unit_of_the_watchdog_says_what_the_command_line_takes() -> None:
    unit = ROOT / "src/spank/systemd/nearmetal-slurm-watchdog.service"
    (line,) = re.findall(r"^ExecStart=(.*)$", unit.read_text(), re.MULTILINE)
    path, *words = line.split()
    assert path == "/usr/bin/nearmetal"
    args = build_parser().parse_args(words)
    assert (args.ended, args.drain, args.job) == (True, True, None)
    places = (f"{STATE}/job-*", f"{STORE}/jobs/*")
    assert all(f"ConditionPathExistsGlob=|{place}\n" in unit.read_text() for place in places)
    timer = unit.with_suffix(".timer").read_text()
    assert "WantedBy=timers.target" in timer


def test_draining_goes_with_the_watchdog_alone() -> None:
    args = build_parser().parse_args(["slurm", "reclaim", "--job", "7", "--drain"])
    with pytest.raises(UsageError, match="--drain needs --ended"):
        args.handler(args, View(as_json=True))


@pytest.mark.parametrize(
    ("before", "after"), [("-1000\n", "0"), ("0\n", "0\n"), ("300\n", "300\n")]
)
def test_what_slurmd_is_spared_its_jobs_are_not(tmp_path: Path, before: str, after: str) -> None:
    own = tmp_path / "oom_score_adj"
    own.write_text(before)
    be_ordinary(own)
    assert own.read_text() == after


def test_options_of_open_mpi_become_variables() -> None:
    options = ("--mca", "pml", "cm", "--bind-to", "none", "--mca", "mtl", "ofi", "--mca")
    assert as_variables(options) == {"OMPI_MCA_pml": "cm", "OMPI_MCA_mtl": "ofi"}


def test_the_environment_of_tasks() -> None:
    env, providers = environment(
        ContainerRequest(7, 1000, 1 << 20, 1 << 20, "r", channels="self,shm")
    )
    assert env == {
        "NEARMETAL_RUNDIR": "/run/nearmetal/job",
        "NEARMETAL_CHANNELS": "self,shm",
        "PMIX_MCA_gds": "hash",
    }
    assert providers == ()
    env, providers = environment(ContainerRequest(7, 1000, 1 << 20, 1 << 20, "r", mpi="openmpi4"))
    assert env["FI_PROVIDER_PATH"] == "/run/nearmetal/providers"
    assert env["OMPI_MCA_mtl_ofi_provider_include"] == "nearmetal"
    assert [path.name for path in providers] == ["libnearmetal-fi.so"]
    assert not any("ROOT" in name for name in env)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"uid": -1}, "no user has the number -1"),
        ({"segment_bytes": 5}, "segment of 5 bytes"),
        ({"scratch_bytes": 0}, "scratch of 0 bytes"),
        ({"request": "a\nb"}, "control characters"),
        ({"partition": "a\nb"}, "control characters"),
        ({"mpi": "lam"}, "unknown MPI 'lam'"),
    ],
)
def test_a_wrong_wish_makes_nothing(
    tmp_path: Path, change: dict[str, str | int], words: str
) -> None:
    wish = ContainerRequest(**(vars(WISH) | change))
    with pytest.raises(NearmetalError, match=re.escape(words)):
        launch(wish, tmp_path / "state")
    assert not (tmp_path / "state").exists()


@pytest.mark.skipif(
    os.geteuid() == 0 and not user_can_read_checkout(),
    reason="an ordinary user cannot read this checkout",
)
def test_who_may_not_make_namespaces_is_told_so_and_leaves_nothing() -> None:
    script = (
        "import sys; from pathlib import Path; from nearmetal.slurm.container import ContainerRequest, launch\n"
        "from nearmetal.core.errors import SlurmError\n"
        "try: launch(ContainerRequest(7, 1000, 1 << 20, 1 << 20, 'r'), Path(sys.argv[1]) / 's')\n"
        "except SlurmError as error: print(error.message, '|', error.hint)\n"
    )
    user = ["setpriv", "--reuid=64321", "--regid=64321", "--clear-groups"]
    start = user if os.geteuid() == 0 else []
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o777)
        done = subprocess.run(
            [*start, sys.executable, "-c", script, directory],
            cwd=ROOT,
            timeout=60,
            capture_output=True,
            text=True,
            check=False,
        )
        assert "make namespaces: Operation not permitted | run this as root" in done.stdout
        assert not (Path(directory) / "s" / "job-7").exists()
