# SPDX-License-Identifier: Apache-2.0
"""A job's directories in machines that share no file with this one; a machine is a directory here."""

from __future__ import annotations

import getpass
import gzip
import io
import json
import subprocess
import tarfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nearmetal.cluster.spec import parse_spec
from nearmetal.core.errors import LaunchError
from nearmetal.core.process import Command, Completed, LocalRunner
from nearmetal.job.copies import Staging, unpack
from nearmetal.job.places import MARKER, NodePlaces, Wanted, _answer, end_stale, new_name
from tests.python.counter_files import file_bytes, peer_bytes
from tests.python.fake_backend import FakeBackend

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

NODES = ("n1", "n2", "n3")


@dataclass
class Machines(FakeBackend):
    """Commands for a node run here, in the node's own directory of jobs."""

    top: Path = Path("/nowhere")
    sharing: tuple[str, ...] = ()
    """Nodes that see a directory of this machine."""
    dead: tuple[str, ...] = ()

    shares_files = False

    def on_node(
        self,
        node: str,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        workdir: Path | None = None,
        root: bool = False,
        patience_s: float = 0.0,
    ) -> Command:
        assert root, "only root may make what lies beside jobs' directories"
        del patience_s
        if node in self.dead:
            return Command(("sh", "-c", "exit 255"))
        own = [word.replace(str(self.job_root()), str(self.top / node)) for word in argv]
        return Command(tuple(own), env, workdir)

    def staged(self, node: str) -> Path | None:
        return self.top / "shared" if node in self.sharing else None


@pytest.fixture
def machines(tmp_path: Path) -> Machines:
    for node in NODES:
        (tmp_path / node / "files").mkdir(parents=True)
    return Machines(top=tmp_path)


def places(machines: Machines, job: str = "job-x", nodes: tuple[str, ...] = NODES) -> NodePlaces:
    user = getpass.getuser()
    return NodePlaces(
        machines, nodes, job, LocalRunner(), everyone=NODES, user=user, **own(machines)
    )


def own(machines: Machines) -> dict[str, Path]:
    """What is /tmp and /dev/shm in a node; the nodes have one here."""
    found = {name: machines.top / "own" / name for name in ("tmp", "shm")}
    for path in found.values():
        path.mkdir(parents=True, exist_ok=True)
    return found


def entries(machines: Machines) -> dict[str, list[str]]:
    return {
        node: sorted(
            p.name for p in (*top.iterdir(), *(top / "files").iterdir()) if p.name != "files"
        )
        for node in NODES
        for top in [machines.top / node]
    }


def test_every_node_gets_directories_links_and_what_it_lacks(
    machines: Machines, tmp_path: Path
) -> None:
    program, mpi = tmp_path / "program", tmp_path / "mpi"
    program.write_text("a program")
    (mpi / "lib").mkdir(parents=True)
    (mpi / "lib/libmpi.so").write_text("new")
    # The second has the MPI from an earlier job.
    (machines.top / "n2/files/mpi-1/lib").mkdir(parents=True)
    (machines.top / "n2/files/mpi-1/lib/libmpi.so").write_text("old")
    made = places(machines)
    library = Path("/usr/lib/prov.so")
    made.make(
        Wanted((library,), [Staging(program, "job-x.files"), Staging(mpi, "mpi-1")], (program,))
    )
    for node in NODES:
        here = machines.top / node
        assert (here / "job-x").stat().st_mode & 0o777 == 0o700
        assert (here / "job-x.providers/prov.so").readlink() == library
        assert (here / "files/job-x.files/program").read_text() == "a program"
        assert (here / "files/mpi-1/lib/libmpi.so").read_text() == (
            "old" if node == "n2" else "new"
        )
    made.end()
    assert entries(machines) == {node: ["mpi-1"] for node in NODES}


def test_what_nodes_see_of_this_machine_is_copied_here_alone(
    machines: Machines, tmp_path: Path
) -> None:
    program, shared = tmp_path / "program", tmp_path / "shared"
    program.write_text("a program")
    shared.mkdir()
    machines.sharing = ("n1", "n2")
    for node in machines.sharing:
        (tmp_path / node / "files").rmdir()
        (tmp_path / node / "files").symlink_to(shared)
    made = places(machines)
    made.make(Wanted(files=[Staging(program, "job-x.files"), Staging(program, "mpi-1")]))
    assert (shared / "job-x.files/program").read_text() == "a program"
    assert not (tmp_path / "n3/files").is_symlink()
    assert (tmp_path / "n3/files/job-x.files/program").read_text() == "a program"
    made.end()
    assert [p.name for p in shared.iterdir()] == ["mpi-1"]
    assert entries(machines) == {node: ["mpi-1"] for node in NODES}


def test_a_job_on_some_nodes_makes_nothing_on_the_others(machines: Machines) -> None:
    made = places(machines, nodes=("n2",))
    made.make(Wanted())
    assert entries(machines) == {
        "n1": [],
        "n2": ["job-x", "job-x.providers", "job-x.stats"],
        "n3": [],
    }
    made.end()
    assert entries(machines) == {node: [] for node in NODES}


def test_what_endpoints_of_all_nodes_left_is_read(machines: Machines) -> None:
    made = places(machines)
    made.make(Wanted())
    for node in NODES:
        stats = file_bytes(peer_bytes(), host=node.encode())
        (machines.top / node / "job-x.stats/0.stats").write_bytes(stats)
    assert [one["host"] for one in made.stats()] == list(NODES)
    assert entries(machines) == {node: [] for node in NODES}, "what was read is removed"
    assert made.first_failure() is None
    made.end()


def test_a_node_that_died_under_a_failed_job_has_no_counters(machines: Machines) -> None:
    made = places(machines)
    made.make(Wanted())
    for node in NODES:
        stats = file_bytes(peer_bytes(), host=node.encode())
        (machines.top / node / "job-x.stats/0.stats").write_bytes(stats)
    (machines.top / "n3/job-x.stats/exit.1").write_text("7\n")
    machines.dead = ("n2",)
    assert [one["host"] for one in made.stats(required=False)] == ["n1", "n3"]
    failure = made.first_failure()
    assert failure is not None
    assert failure.code == 7
    made.end()


def test_all_counters_of_a_job_that_succeeded_are_required(machines: Machines) -> None:
    made = places(machines)
    made.make(Wanted())
    machines.dead = ("n2",)
    with pytest.raises(LaunchError, match="node n2: cannot read its counters"):
        made.stats()
    made.end()


def test_the_failure_that_came_first_is_told(machines: Machines) -> None:
    made = places(machines)
    made.make(Wanted())
    (machines.top / "n3/job-x.stats/exit.1").write_text("7\n")
    failure = made.first_failure()
    assert failure is not None
    assert failure.code == 7
    made.end()


def guard(made: NodePlaces, deadline_s: float | None = None) -> subprocess.Popen[bytes]:
    """Start the guard of one node."""
    command = made.guards(deadline_s, 30.0)[0]
    pipe = subprocess.PIPE
    started = subprocess.Popen(command.argv, env=command.env, stdin=pipe, stdout=pipe, stderr=pipe)
    assert started.stdout is not None
    assert json.loads(started.stdout.readline()) == {"pid": started.pid}
    return started


def sleeper(made: NodePlaces) -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sleep", "600"], env={MARKER: made.job})


@pytest.mark.parametrize("deadline_s", [None, 1.0])
def test_a_job_ends_with_its_run_or_with_its_time(
    machines: Machines, deadline_s: float | None
) -> None:
    made = places(machines, new_name("job"), ("n1",))
    made.make(Wanted())
    (made.tmp / "file").touch()
    with sleeper(made) as rank, guard(made, deadline_s) as watch:
        assert watch.stdin is not None
        assert watch.stderr is not None
        if deadline_s is None:
            watch.stdin.close()
        assert rank.wait(30) == -9
        assert watch.wait(30) == 0
        assert b"a job is ended" in watch.stderr.read()
    assert entries(machines)["n1"] == []
    assert list((machines.top / "own/tmp").iterdir()) == []


def test_a_run_that_ends_well_ends_its_job_itself(machines: Machines) -> None:
    made = places(machines, new_name("job"), ("n1",))
    made.make(Wanted())
    with guard(made, 600.0) as watch, sleeper(made) as rank:
        assert watch.communicate(b"done\n", timeout=20) == (b"", b"")
        assert rank.poll() is None
        assert entries(machines)["n1"] == [made.job, f"{made.job}.providers", f"{made.job}.stats"]
        rank.kill()
    made.end()
    assert list((machines.top / "own/tmp").iterdir()) == []


def test_files_of_a_killed_job_leave_shared_memory(machines: Machines) -> None:
    shm = own(machines)["shm"]
    (shm / "of-an-earlier-job").touch()
    time.sleep(0.02)
    made = places(machines, new_name("job"))
    made.make(Wanted())
    time.sleep(0.02)
    (shm / "a folder").mkdir()
    for name in ("segment", "used", "a folder/of the job"):
        (shm / name).touch()
    with (
        (shm / "used").open("rb") as used,
        subprocess.Popen(["sleep", "600"], stdin=used) as other,
    ):
        made.end()
        left = {path.name for path in shm.rglob("*") if path.is_file()}
        assert left == {"of-an-earlier-job", "used"}
        other.kill()


def test_what_still_runs_of_a_job_is_ended_with_it(machines: Machines) -> None:
    made = places(machines, new_name("job"))
    made.make(Wanted())
    left = subprocess.Popen(["sleep", "600"], env={"NEARMETAL_JOB": made.job})
    other = subprocess.Popen(["sleep", "600"], env={"NEARMETAL_JOB": made.job + "x"})
    try:
        made.end()
        assert left.wait(10) == -9
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()
        left.kill()


def test_the_node_that_fails_is_named(machines: Machines) -> None:
    (machines.top / "n2/job-x").write_text("no directory")
    made = places(machines)
    with pytest.raises(LaunchError, match=r"node n2: cannot make the job's directories: .*exists"):
        made.make(Wanted())
    made.end()
    assert entries(machines) == {node: [] for node in NODES}


def test_a_node_without_the_program_is_named(machines: Machines) -> None:
    made = places(machines)
    with pytest.raises(LaunchError, match="node n1 has no /no/such/program"):
        made.make(Wanted(seen=(Path("/no/such/program"),)))
    made.end()
    assert entries(machines) == {node: [] for node in NODES}


def test_jobs_whose_owner_has_gone_are_removed_everywhere(machines: Machines) -> None:
    gone, alive = "job-1-1-abcdef", new_name("job")
    for node, name in (
        ("n1", alive),
        ("n2", gone),
        ("n3", f"{gone}.stats"),
        ("n3", f"files/{gone}.files"),
        ("shared", f"{gone}.new"),
        ("shared", "mpi-1"),
    ):
        (machines.top / node / name).mkdir(parents=True)
    machines.sharing = ("n2",)
    (machines.top / "n2/files").rmdir()
    (machines.top / "n2/files").symlink_to(machines.top / "shared")
    made = places(machines)
    made.make(Wanted())
    assert [p.name for p in (machines.top / "shared").iterdir()] == ["mpi-1"]
    assert entries(machines)["n3"] == ["job-x", "job-x.providers", "job-x.stats"]
    made.end()
    assert entries(machines) == {"n1": [alive], "n2": ["mpi-1"], "n3": []}


def test_a_dead_node_without_ranks_harms_no_job(machines: Machines) -> None:
    machines.dead = ("n3",)
    made = places(machines, nodes=("n1", "n2"))
    made.make(Wanted())
    (machines.top / "n2/job-x.stats/exit.1").write_text("7\n")
    failure = made.first_failure()
    assert failure is not None
    assert failure.code == 7
    made.end()
    with pytest.raises(LaunchError, match="node n3: cannot make"):
        places(machines, nodes=("n1", "n3")).make(Wanted())


def test_counters_are_read_when_nobody_writes_them_any_more(machines: Machines) -> None:
    made = places(machines, new_name("job"))
    made.make(Wanted())
    grows = machines.top / f"n2/{made.job}.stats/0.log"
    script = 'while head -c 262144 /dev/zero >>"$0"; do :; done'
    writer = subprocess.Popen(
        ["sh", "-c", script, grows], env={"PATH": "/usr/bin:/bin", "NEARMETAL_JOB": made.job}
    )
    try:
        while not grows.exists():
            assert writer.poll() is None
        # tar is not content with a file that grows.
        assert made.first_failure() is None
        assert writer.wait(10) == -9
    finally:
        writer.kill()
        made.end()


def test_copies_that_fail_or_come_second_leave_nothing(machines: Machines, tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text("a program")
    faster, files = machines.top / "n1/files/mpi-1", machines.top / "n1/files"
    one, other = places(machines, "job-x"), places(machines, "job-y")
    one.make(Wanted())
    # Between the look and the copy the other job brings the same.
    answers = {node: _answer("lacks mpi-1") for node in NODES}
    other._bring(Wanted(files=[Staging(program, "mpi-1")]), answers)
    faster.joinpath("program").write_text("theirs")
    one._bring(Wanted(files=[Staging(program, "mpi-1")]), answers)
    assert faster.joinpath("program").read_text() == "theirs"
    assert [path.name for path in files.iterdir()] == ["mpi-1"]
    # One that was cut short goes with its job.
    for name in ("job-x.new", "job-x.files"):
        (files / name).mkdir()
    one.end()
    assert entries(machines) == {node: ["mpi-1"] for node in NODES}


def test_what_a_first_try_made_is_no_obstacle(machines: Machines) -> None:
    wanted = Wanted((Path("/usr/lib/prov.so"),))
    places(machines).make(wanted)
    made = places(machines)
    made.make(wanted)
    link = machines.top / "n1/job-x.providers/prov.so"
    assert link.readlink() == Path("/usr/lib/prov.so")
    made.end()


@dataclass
class Interrupted(LocalRunner):
    """A runner during which Ctrl-C comes."""

    left: int = 1

    def run_all(
        self,
        commands: Sequence[Command],
        *,
        timeout_s: float,
        ended: Callable[[int, Completed], None] | None = None,
    ) -> list[Completed]:
        if self.left:
            self.left -= 1
            raise KeyboardInterrupt
        return super().run_all(commands, timeout_s=timeout_s, ended=ended)


def test_a_signal_leaves_no_copies_in_the_share(machines: Machines) -> None:
    machines.sharing = NODES
    copy = machines.top / "shared/job-x.files"
    copy.mkdir(parents=True)
    (machines.top / "n1/job-x").mkdir()
    user = getpass.getuser()
    made = NodePlaces(
        machines, NODES, "job-x", Interrupted(), everyone=(), user=user, **own(machines)
    )
    with pytest.raises(KeyboardInterrupt):
        made.end()
    assert not copy.exists()
    assert (machines.top / "n1/job-x").exists()
    made.end()
    assert not (machines.top / "n1/job-x").exists(), "what was cut short is done again"


@pytest.mark.parametrize("name", ["app", "bench.a", "x.la", "include"])
def test_a_program_is_brought_whatever_its_name(
    machines: Machines, tmp_path: Path, name: str
) -> None:
    real, program = tmp_path / "app-1.0", tmp_path / "bin" / name
    real.write_text("a program")
    real.chmod(0o700)
    program.parent.mkdir()
    program.symlink_to("../app-1.0")
    machines.sharing = ("n1",)
    made = places(machines)
    (machines.top / "shared").mkdir()
    (machines.top / "n1/files").rmdir()
    (machines.top / "n1/files").symlink_to(machines.top / "shared")
    made.make(Wanted(files=[Staging(program, "job-x.files")]))
    for node in NODES:
        there = machines.top / node / "files/job-x.files" / name
        assert there.read_text() == "a program"
        assert not there.is_symlink()
        assert there.stat().st_mode & 0o777 == 0o755
    made.end()


@dataclass
class Counting(LocalRunner):
    """A runner that counts rounds of commands."""

    rounds: int = 0

    def run_all(
        self,
        commands: Sequence[Command],
        *,
        timeout_s: float,
        ended: Callable[[int, Completed], None] | None = None,
    ) -> list[Completed]:
        self.rounds += 1
        return super().run_all(commands, timeout_s=timeout_s, ended=ended)


def test_names_that_a_node_invents_cost_one_command_and_have_a_limit(machines: Machines) -> None:
    for number in range(100):
        (machines.top / f"n2/job-1-1-{number:06x}.stats").mkdir()
    left = [
        subprocess.Popen(["sleep", "600"], env={"NEARMETAL_JOB": f"job-1-1-{number:06x}"})
        for number in (3, 4)
    ]
    runner = Counting()
    try:
        user = getpass.getuser()
        made = NodePlaces(machines, NODES, "job-x", runner, everyone=(), user=user, **own(machines))
        made.make(Wanted())
        assert runner.rounds == 2
        assert [one.wait(10) for one in left] == [-9, -9]
        made.end()
        assert len(entries(machines)["n2"]) == 36
    finally:
        for one in left:
            one.kill()


def test_names_in_a_rundir_that_a_node_invents_have_a_limit(tmp_path: Path) -> None:
    """A file with such a name is removed as well: it would cost each later job a step."""
    spec = parse_spec("version: 1\nname: s\nbackend: local\nhosts: [{name: h, nodes: [{name: n}]}]")
    rundir = tmp_path / "h"
    for number in range(0, 100, 2):
        (rundir / f"job-1-1-{number:06x}").mkdir(parents=True)
        (rundir / f"job-1-1-{number + 1:06x}").touch()
    (rundir / new_name("job")).mkdir()
    backend = FakeBackend(meeting=tmp_path)
    end_stale(backend, spec, LocalRunner())
    assert backend.steps == ["sweep NEARMETAL_JOB"] * 64
    assert len(list(rundir.iterdir())) == 37
    end_stale(backend, spec, LocalRunner())
    assert [path.is_dir() for path in rundir.iterdir()] == [True]


def archive(*, name: str = "0.stats", mtime: str = "1", size: int = 3, count: int = 1) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:", format=tarfile.PAX_FORMAT) as content:
        for number in range(count):
            member = tarfile.TarInfo(f"{number or ''}{name}")
            member.size, member.pax_headers = size, {"mtime": mtime}
            content.addfile(member, io.BytesIO(bytes(size)))
    return stream.getvalue()


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"no archive" * 100,
        archive()[:1030],
        gzip.compress(archive()),
        archive(mtime="nan"),
        archive(mtime="inf"),
        archive(mtime="1e300"),
        archive(name="x" * 300),
    ],
)
def test_damaged_counters_are_an_error_in_words(tmp_path: Path, sent: bytes) -> None:
    with pytest.raises(LaunchError, match="a node sent damaged counters"):
        unpack(sent, tmp_path / "there")


def test_counters_of_a_node_have_limits(tmp_path: Path) -> None:
    unpack(archive(size=33 << 20, count=2), tmp_path / "large")
    assert [path.name for path in (tmp_path / "large").iterdir()] == ["0.stats"]
    unpack(archive(size=0, count=16400), tmp_path / "many")
    assert len(list((tmp_path / "many").iterdir())) == 16384
