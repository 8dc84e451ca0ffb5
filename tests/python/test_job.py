# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import os
import re
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import pytest

from nearmetal.cluster.backend import NodeStatus
from nearmetal.cluster.model import ClusterSpec
from nearmetal.cluster.registration import desired
from nearmetal.cluster.resource import Facts, Kind
from nearmetal.cluster.spec import parse_spec
from nearmetal.core.errors import CommandError, LaunchError, UsageError
from nearmetal.core.process import Command, Completed
from nearmetal.core.resources import PROVIDER, built_places, heap_library, provider_library
from nearmetal.job.copies import is_local
from nearmetal.job.locality import measure_locality
from nearmetal.job.mpi import MapBy, Mpi, Placement, Provider
from nearmetal.job.places import is_stale, new_name, surely
from nearmetal.job.run import JobRequest, crowded, find_job_program, run_job
from nearmetal.job.stats import JobVerdict
from tests.python.counter_files import file_bytes, peer_bytes
from tests.python.fake_backend import FakeBackend
from tests.python.test_mpi import install

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nearmetal.core.process import Dialogue

UNKNOWN = sys.maxsize

SPEC = """\
version: 1
name: c
backend: local
hosts: [{name: h, nodes: [{name: n1}, {name: n2}]}, {name: far, nodes: [{name: n3}]}]
"""


@dataclass
class FakeGuard:
    """The supervisor of a job: answers once, and remembers what it got."""

    command: Command
    answer: str | None
    got: list[str] = field(default_factory=list)
    code: int = 0

    def send(self, line: str, timeout_s: float = 0.0) -> None:  # noqa: ARG002 - no pipe
        self.got.append(line)

    def receive(self, timeout_s: float) -> str | None:
        assert timeout_s > 0
        return self.answer

    def finish(self, timeout_s: float) -> int:
        assert timeout_s > 0
        self.got.append("end")
        return self.code


@dataclass
class FakeRunner:
    """Probes succeed; the job is a function; dialogues are answered from a table."""

    job: Callable[[Command], int] = lambda _: 0
    probe_code: int = 0
    abi: str = '{"channels": ["none", "self", "shm", "segment", "net"]}'
    commands: list[Command] = field(default_factory=list)
    talk: Callable[[str], Dialogue] | None = None
    guard_says: str | None = '{"pid": 7}'
    guards: list[FakeGuard] = field(default_factory=list)

    def run(self, command: Command, *, timeout_s: float) -> Completed:
        assert timeout_s > 0
        if command.argv[1:] == ("--abi",):
            return Completed(command, 0, self.abi.encode(), b"", 0.0)
        return Completed(command, self.probe_code, b"", b"", 0.0)

    def run_all(
        self,
        commands: Sequence[Command],
        *,
        timeout_s: float,
        ended: Callable[[int, Completed], None] | None = None,
    ) -> list[Completed]:
        assert ended is None
        return [self.run(command, timeout_s=timeout_s) for command in commands]

    def check(self, command: Command, *, timeout_s: float) -> Completed:
        return self.run(command, timeout_s=timeout_s)

    def attach(
        self,
        command: Command,
        *,
        stdin: IO[bytes] | None = None,
        stdout: IO[bytes] | None = None,
        stderr: IO[bytes] | None = None,
        timeout_s: float | None = None,
        idle_s: float | None = None,
        foreground: bool = False,
    ) -> Completed:
        assert not foreground
        assert idle_s is None
        assert (stdin, stdout, stderr) == (None, None, None)
        self.commands.append(command)
        return Completed(command, self.job(command), b"", b"", 0.5, timeout_s == 0.0)

    def converse(self, command: Command, *, stderr: IO[bytes] | None = None) -> Dialogue:
        assert stderr is None
        if command.argv[0] == "supervise":
            self.guards.append(FakeGuard(command, self.guard_says))
            return self.guards[-1]
        assert self.talk is not None
        self.commands.append(command)
        return self.talk(command.argv[1])


@pytest.fixture
def spec() -> ClusterSpec:
    return parse_spec(SPEC)


@pytest.fixture
def backend(tmp_path: Path, spec: ClusterSpec) -> FakeBackend:
    made = FakeBackend(cpus=(0, 1, 2), meeting=tmp_path / "meet")
    for item in desired(spec, Facts((0, 1, 2))).resources:
        made.there[item.key] = item
        if item.key.kind is Kind.HOST:
            (made.meeting / item.key.name).mkdir(parents=True)
    return made


@pytest.fixture(autouse=True)
def mpich(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEARMETAL_MPI_PATH", str(tmp_path))
    install(tmp_path, Mpi.MPICH5)
    library = tmp_path / "libnearmetal-fi.so"
    library.touch()
    monkeypatch.setenv("NEARMETAL_PROVIDER_LIB", str(library))


def mpich_job(**options: Any) -> JobRequest:
    return JobRequest("true", mpi="mpich5", **options)


def near_stats(command: Command, messages: int) -> None:
    assert command.env is not None
    meet = Path(os.environ["TEST_MEETING"])
    name = Path(command.env["NEARMETAL_STATS_DIR"]).name
    peer = peer_bytes(traffic={"shm": (messages, 8 * messages, 0, 0)})
    (meet / "h" / name / "0.stats").write_bytes(file_bytes(peer))


def test_a_job_is_started_collected_and_cleared(
    backend: FakeBackend, spec: ClusterSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEST_MEETING", str(backend.meeting))

    def job(command: Command) -> int:
        near_stats(command, 5)
        modes = {p.stat().st_mode & 0o777 for p in (backend.meeting / "h").iterdir()}
        assert modes == {0o700}
        return 0

    runner = FakeRunner(job)
    request = JobRequest(
        "/bin/true", ("x y",), mpi="mpich5", env={"K": "V"}, channels=("shm", "net"), ranks=2
    )
    result = run_job(backend, spec, request, runner)
    assert (result.exit_code, result.mpi, result.ranks) == (0, "mpich5", (("n1", 1), ("n2", 1)))
    assert result.proof.verdict is JobVerdict.PROVEN
    assert result.proof.messages == {"shm": 5}
    assert result.proof.bytes == {"shm": 40}
    command = runner.commands[0]
    assert command.argv[-2:] == ("/bin/true", "x y")
    assert command.env is not None
    assert command.env["K"] == "V"
    assert command.env["NEARMETAL_CHANNELS"] == "shm,net"
    assert command.env["NEARMETAL_RUNDIR"] == f"/run/nearmetal/{result.job}"
    assert command.env["TMPDIR"] == "/run/job"
    (guard,) = runner.guards
    assert guard.command.argv == ("supervise", result.job, "None", "n1", "n2")
    assert guard.got == ["done", "end"]
    assert backend.steps == ["sweep NEARMETAL_JOB"]
    assert list((backend.meeting / "h").iterdir()) == []
    # A host without a rank was not touched.
    assert list((backend.meeting / "far").iterdir()) == []


@pytest.mark.parametrize(("given", "behind"), [({}, ""), ({"LD_PRELOAD": "/own.so"}, ":/own.so")])
def test_a_heap_is_preloaded_before_other_libraries(
    backend: FakeBackend, spec: ClusterSpec, given: dict[str, str], behind: str
) -> None:
    runner = FakeRunner(lambda _: 0)
    result = run_job(backend, spec, mpich_job(heap=True, env=given), runner)
    assert result.env["LD_PRELOAD"] == f"{heap_library()}{behind}"
    assert runner.commands[0].env is not None
    assert runner.commands[0].env["LD_PRELOAD"] == f"{heap_library()}{behind}"
    assert "LD_PRELOAD" not in run_job(backend, spec, mpich_job(), runner).env


def test_a_heap_needs_nearmetal(backend: FakeBackend, spec: ClusterSpec) -> None:
    request = mpich_job(heap=True, provider=Provider.STOCK)
    with pytest.raises(UsageError, match="serves nearmetal only"):
        run_job(backend, spec, request, FakeRunner())


@pytest.mark.parametrize(
    ("asked", "flat"),
    [
        ({"nodes": ("n1", "n2")}, True),
        ({"nodes": ("n1", "n2"), "channels": ("shm", "net")}, True),
        ({"nodes": ("n1", "n2"), "channels": ("self", "segment", "net")}, True),
        ({"nodes": ("n1", "n2"), "channels": ("self", "net")}, False),
        ({"nodes": ("n1", "n3")}, False),
    ],
)
def test_open_mpi_5_gets_flat_collectives_where_all_meet_in_memory(
    backend: FakeBackend, spec: ClusterSpec, tmp_path: Path, asked: dict[str, Any], flat: bool
) -> None:
    install(tmp_path, Mpi.OPENMPI5)
    runner = FakeRunner()
    run_job(backend, spec, JobRequest("true", mpi="openmpi5", **asked), runner)
    env = runner.commands[0].env
    assert env is not None
    assert env.get("OMPI_MCA_coll") == ("^han" if flat else None)


def test_nodes_that_share_no_memory_get_no_flat_collectives(
    backend: FakeBackend, spec: ClusterSpec, tmp_path: Path
) -> None:
    install(tmp_path, Mpi.OPENMPI5)
    backend.apart = "there is no common memory"
    for nodes, flat in ((("n1", "n2"), None), (("n1",), "^han")):
        runner = FakeRunner()
        run_job(backend, spec, JobRequest("true", mpi="openmpi5", nodes=nodes), runner)
        env = runner.commands[0].env
        assert env is not None
        assert env.get("OMPI_MCA_coll") == flat


@dataclass
class OwnCpus(FakeBackend):
    """Nodes with processors of their own, as on vSphere: the cores of the host are not known."""

    own: int = 0

    def status(self) -> list[NodeStatus]:
        return [replace(node, cpus=(), own_cpus=self.own) for node in super().status()]


@pytest.mark.parametrize(("own", "expected"), [(0, True), (1, False), (2, False)])
def test_processors_of_a_node_alone_are_not_crowded(
    backend: FakeBackend, spec: ClusterSpec, own: int, expected: bool
) -> None:
    ranks = Placement((("n1", 1), ("n2", 1), ("n3", 1)), MapBy.SLOT)
    assert crowded(spec, OwnCpus(there=backend.there, own=own), ranks) == expected


def test_what_is_set_for_speed_only_yields_to_the_caller_s_own(
    backend: FakeBackend, spec: ClusterSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, Mpi.OPENMPI5)
    monkeypatch.setenv("OMPI_MCA_coll", "^tuned")
    runner = FakeRunner()
    result = run_job(backend, spec, JobRequest("true", mpi="openmpi5", nodes=("n1", "n2")), runner)
    env = runner.commands[0].env
    assert env is not None
    assert env["OMPI_MCA_coll"] == "^tuned"
    assert result.env["OMPI_MCA_coll"] == "^tuned"


def test_a_job_that_another_stack_carried_is_told(backend: FakeBackend, spec: ClusterSpec) -> None:
    assert run_job(backend, spec, mpich_job(), FakeRunner()).proof.verdict is JobVerdict.ABSENT
    stock = mpich_job(provider=Provider.STOCK)
    assert run_job(backend, spec, stock, FakeRunner()).proof.verdict is JobVerdict.NOT_ASKED


def test_statistics_that_the_user_keeps_prove_nothing_here(
    backend: FakeBackend, spec: ClusterSpec
) -> None:
    job = mpich_job(env={"NEARMETAL_STATS_DIR": "/kept"})
    proof = run_job(backend, spec, job, FakeRunner()).proof
    assert (proof.verdict, "/kept" in proof.reason) == (JobVerdict.NOT_ASKED, True)


def test_the_rank_that_failed_first_decides(backend: FakeBackend, spec: ClusterSpec) -> None:
    def job(command: Command) -> int:
        assert command.env is not None
        name = Path(command.env["NEARMETAL_STATS_DIR"]).name
        for when, host, code in ((2, "far", 143), (1, "h", 3)):
            path = backend.meeting / host / name / f"exit.{code}"
            path.write_text(f"{code}\n")
            os.utime(path, (when, when))
        return 255

    assert run_job(backend, spec, mpich_job(), FakeRunner(job)).exit_code == 3


@pytest.mark.parametrize(("name", "code"), [("exit.0", 137), ("lost.n2", 139)])
def test_a_launcher_killed_by_a_signal(
    backend: FakeBackend, spec: ClusterSpec, name: str, code: int
) -> None:
    def job(command: Command) -> int:
        assert command.env is not None
        stats = Path(command.env["NEARMETAL_STATS_DIR"]).name
        (backend.meeting / "h" / stats / name).write_text("139\n")
        return -9

    assert run_job(backend, spec, mpich_job(), FakeRunner(job)).exit_code == code
    assert run_job(backend, spec, mpich_job(), FakeRunner(lambda _: -9)).exit_code == 137


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("lost.n2", "137", "the MPI's own process on node n2 ended with exit code 137"),
        ("lost.n2", "255", "the launcher has lost node n2"),
        ("exit.3.n2.7", "", "a rank was killed together with the shell that watched it"),
    ],
)
def test_a_job_that_lost_a_daemon_is_no_success(
    backend: FakeBackend, spec: ClusterSpec, name: str, text: str, words: str
) -> None:
    def job(command: Command) -> int:
        assert command.env is not None
        stats = Path(command.env["NEARMETAL_STATS_DIR"]).name
        (backend.meeting / "h" / stats / name).write_text(f"{text}\n")
        return 0

    result = run_job(backend, spec, mpich_job(), FakeRunner(job))
    assert (result.exit_code, result.lost) == (int(text or 137), words)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ('{"error": "node n1 is not up"}', "node n1 is not up"),
        (None, "no answer"),
        ("[1]", "no answer"),
        ("nsenter: no", "no answer"),
    ],
)
def test_no_job_starts_without_its_supervisor(
    backend: FakeBackend, spec: ClusterSpec, answer: str | None, words: str
) -> None:
    runner = FakeRunner(guard_says=answer)
    with pytest.raises(LaunchError, match=f"the job cannot be supervised: {words}"):
        run_job(backend, spec, mpich_job(timeout_s=5.0), runner)
    assert runner.commands == []
    assert runner.guards[0].command.argv[2] == "15.0", "its deadline comes after ours"
    assert runner.guards[0].got[-1] == "end"
    assert list((backend.meeting / "h").iterdir()) == []


def test_an_interrupted_job_is_cleared(backend: FakeBackend, spec: ClusterSpec) -> None:
    def job(_: Command) -> int:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_job(backend, spec, mpich_job(), FakeRunner(job))
    assert backend.steps == ["sweep NEARMETAL_JOB"]
    assert list((backend.meeting / "h").iterdir()) == []


def test_little_of_our_environment_reaches_a_job(
    backend: FakeBackend, spec: ClusterSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET", "x")
    monkeypatch.setenv("FI_PROVIDER", "sockets")
    monkeypatch.setenv("FI_LOG_LEVEL", "warn")
    monkeypatch.setenv("NEARMETAL_SHM_EAGER_MAX", "4096")
    runner = FakeRunner()
    run_job(backend, spec, mpich_job(), runner)
    env = runner.commands[0].env
    assert env is not None
    assert "AWS_SECRET" not in env
    assert "NEARMETAL_PROVIDER_LIB" not in env
    assert env["FI_PROVIDER"] == "nearmetal,tcp"
    assert (env["FI_LOG_LEVEL"], env["NEARMETAL_SHM_EAGER_MAX"]) == ("warn", "4096")


def test_what_cannot_be_started(backend: FakeBackend, spec: ClusterSpec, tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.touch()
    cases: list[tuple[JobRequest, type[Exception], str]] = [
        (JobRequest("no-such-program"), LaunchError, "no program no-such-program: looked in /"),
        (JobRequest("./no-such"), LaunchError, "no-such does not exist"),
        (JobRequest(str(plain)), LaunchError, "is not an executable program"),
        (mpich_job(ranks=9), UsageError, "9 ranks are more than the 3 slots"),
        (JobRequest("true", mpi="mvapich"), UsageError, "unknown MPI 'mvapich'"),
        (JobRequest("true", channels=("shn",)), UsageError, "unknown channel 'shn'"),
    ]
    for request, kind, words in cases:
        with pytest.raises(kind, match=words):
            run_job(backend, spec, request, FakeRunner())
    with pytest.raises(LaunchError, match="is not visible in node n1") as caught:
        run_job(backend, spec, mpich_job(), FakeRunner(probe_code=1))
    assert "show:" in caught.value.hint
    assert backend.steps == []


def test_a_channel_is_known_by_the_list_of_the_provider(
    backend: FakeBackend, spec: ClusterSpec, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    request = mpich_job(channels=("self", "fifth"))
    with pytest.raises(UsageError, match="unknown channel 'fifth'") as refused:
        run_job(backend, spec, request, FakeRunner())
    assert refused.value.hint == "use a list of self,shm,segment,net"
    newer = FakeRunner(abi='{"channels": ["none", "self", "fifth"]}')
    run_job(backend, spec, request, newer)
    assert (newer.commands[0].env or {})["NEARMETAL_CHANNELS"] == "self,fifth"
    for output in ("", "{}", '{"channels": [1]}'):
        run_job(backend, spec, request, FakeRunner(abi=output))
    monkeypatch.setenv("NEARMETAL_INFO", str(tmp_path / "missing"))
    run_job(backend, spec, request, FakeRunner())


def test_a_job_of_a_killed_run_is_ended_first(backend: FakeBackend, spec: ClusterSpec) -> None:
    meet = backend.meeting / "h"
    mine, foreign = new_name("job"), "something-else"
    gone = f"job-{os.getpid()}-1-abcdef"
    for name in (mine, foreign, gone, f"{gone}.stats"):
        (meet / name).mkdir()
    assert [is_stale(name) for name in (mine, foreign, gone, f"{gone}.stats", "a-b-c-d")] == [
        False,
        False,
        True,
        True,
        False,
    ]
    run_job(backend, spec, mpich_job(), FakeRunner())
    assert sorted(path.name for path in meet.iterdir()) == sorted((mine, foreign))
    assert backend.steps == ["sweep NEARMETAL_JOB"] * 2


def test_a_dead_node_is_named(backend: FakeBackend, spec: ClusterSpec) -> None:
    key = next(key for key in backend.there if key.name == "n2")
    backend.broken.add(key)
    with pytest.raises(LaunchError, match="node n2: dead"):
        run_job(backend, spec, mpich_job(), FakeRunner())


def test_a_provider_that_is_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NEARMETAL_PROVIDER_LIB", str(tmp_path / "none.so"))
    with pytest.raises(LaunchError, match=r"none\.so: no such file"):
        provider_library()


def test_the_provider_is_looked_for_where_it_is_installed_to(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    recipe = (root / "src/provider/meson.build").read_text()
    (directory,) = re.findall(r"install_dir : get_option\('libdir'\) / '(\w+)'", recipe)
    for libdir in (tmp_path, tmp_path / "x86_64-linux-gnu"):
        installed = libdir / directory / "libnearmetal-fi.so"
        installed.parent.mkdir(parents=True)
        installed.touch()
        assert installed in built_places(PROVIDER, [tmp_path])
    assert built_places(PROVIDER, [tmp_path])[0].is_relative_to(root / "build")


def test_programs_by_name_and_path() -> None:
    assert find_job_program("true").name == "true"
    assert find_job_program("/bin/sh") == Path("/bin/sh")


def test_a_program_of_the_nodes_own_has_an_absolute_path() -> None:
    assert is_local("true")
    assert is_local("/bin/sh")
    assert not is_local("/no/such/program")
    with pytest.raises(LaunchError, match=r"no program bin/x: /.*/bin/x is not a file") as refused:
        is_local("bin/x")
    assert "absolute" in refused.value.hint


@dataclass
class FakeProbe:
    """nearmetal-info meet in one node: near on one host, far otherwise."""

    node: str
    answers: list[str] = field(default_factory=list)
    garbage: str | None = None

    def __post_init__(self) -> None:
        address = {"n1": "a1", "n2": "a2", "n3": "a3"}[self.node]
        self.answers.append(self.garbage or json.dumps({"address": address, "node": self.node}))

    def send(self, line: str, timeout_s: float = 0.0) -> None:  # noqa: ARG002 - no pipe
        address, peer = line.split()
        near = {address, self.node} & {"a3", "n3"} in ({"a3", "n3"}, set())
        relation = "self" if address[1] == self.node[1] else "host" if near else "network"
        channel = {"self": "self", "host": "shm", "network": "net"}[relation]
        reason = f"{self.node} met {peer}"
        words = {
            "relation": relation,
            "channel": channel,
            "integrity": "-",
            "reason": reason,
            "direct_copies": relation == "host",
            "copy_reason": "because",
        }
        self.answers.append(json.dumps(words | {"peer": peer}))

    def receive(self, timeout_s: float) -> str | None:
        assert timeout_s > 0
        return self.answers.pop(0) if self.answers else None

    def finish(self, timeout_s: float) -> int:
        assert timeout_s > 0
        return 0


@pytest.fixture
def info(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nearmetal-info"
    tool.touch(mode=0o755)
    monkeypatch.setenv("NEARMETAL_INFO", str(tool))


@pytest.mark.usefixtures("info")
def test_every_node_meets_every_node(backend: FakeBackend, spec: ClusterSpec) -> None:
    runner = FakeRunner(talk=FakeProbe)
    meetings = measure_locality(backend, spec, runner)
    assert {m.copy_reason for m in meetings} == {"because"}
    assert all(m.direct_copies == (m.relation == "host") for m in meetings)
    matrix = {(m.node, m.peer): m.channel for m in meetings}
    assert len(matrix) == 9
    assert {pair for pair, channel in matrix.items() if channel == "shm"} == {
        ("n1", "n2"),
        ("n2", "n1"),
    }
    assert matrix["n3", "n3"] == "self"
    assert matrix["n1", "n3"] == "net"
    assert runner.commands[0].argv[-2] == "--rundir"
    assert list((backend.meeting / "h").iterdir()) == []


@pytest.mark.usefixtures("info")
def test_nodes_of_one_host_without_common_memory_are_explained(
    backend: FakeBackend, spec: ClusterSpec
) -> None:
    class Far(FakeProbe):
        def send(self, line: str, timeout_s: float = 0.0) -> None:  # noqa: ARG002 - no pipe
            super().send(line)
            words = json.loads(self.answers.pop())
            if words["relation"] == "host":
                words |= {"relation": "network", "channel": "net"}
            self.answers.append(json.dumps(words))

    backend.apart = "there is no common memory"
    found = measure_locality(backend, spec, FakeRunner(talk=Far))
    explained = {
        (m.node, m.peer) for m in found if m.reason.endswith("; there is no common memory")
    }
    assert explained == {("n1", "n2"), ("n2", "n1")}


@pytest.mark.usefixtures("info")
@pytest.mark.parametrize("garbage", ["", "no json", "[1]", '{"address": "a b"}', '{"a": 1}'])
def test_a_probe_that_talks_nonsense(backend: FakeBackend, spec: ClusterSpec, garbage: str) -> None:
    runner = FakeRunner(talk=lambda node: FakeProbe(node, garbage=garbage or "{"))
    with pytest.raises(LaunchError, match="nearmetal-info in node n1"):
        measure_locality(backend, spec, runner)
    assert backend.steps == ["sweep NEARMETAL_JOB"]


@pytest.mark.usefixtures("info")
def test_a_probe_that_ends_early(backend: FakeBackend, spec: ClusterSpec) -> None:
    class Gone(FakeProbe):
        def send(self, line: str, timeout_s: float = 0.0) -> None:  # noqa: ARG002 - no pipe
            raise CommandError(f"gone before {line}")

    with pytest.raises(LaunchError, match="node n1: gone"):
        measure_locality(backend, spec, FakeRunner(talk=Gone))


def test_a_clean_up_that_is_interrupted_is_done_again() -> None:
    begun: list[int] = []

    def clear() -> None:
        begun.append(len(begun))
        if len(begun) == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        surely(clear)
    assert begun == [0, 1]
    surely(clear)
    assert begun == [0, 1, 2]
