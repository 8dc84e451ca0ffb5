# SPDX-License-Identifier: Apache-2.0
"""Any process of a job is killed: the job ends, with a message, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nearmetal.cluster.backends.local.confine import start_time
from nearmetal.job.mpi import Mpi
from tests.system.local import ROOT, Site, site
from tests.system.mpi_jobs import INSTALLED, compile_for
from tests.system.need import need_mpi
from tests.walks import walk

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator

pytestmark = [pytest.mark.system, pytest.mark.mpi]

SOURCE = ROOT / "tests" / "system" / "programs" / "endings.c"
MPIS = (Mpi.OPENMPI5, Mpi.MPICH5, Mpi.IMPI)
END_S = 20.0
"""A job must have ended by then: none of the processes that it waits for sleeps as long."""

KILLED = 128 + signal.SIGKILL


@pytest.fixture(scope="module")
def up() -> Iterator[tuple[Site, str]]:
    with site() as place:
        compile_for(INSTALLED, SOURCE, place.directory)
        spec = place.write(
            "spec.yaml",
            f"""\
version: 1
name: kills
backend: local
show: ['{place.directory}']
hosts:
  - {{name: h, nodes: [{{name: n1, slots: 2}}, {{name: n2, slots: 2}}]}}
  - {{name: far, nodes: [{{name: n3, slots: 2, pids: cluster}}]}}
""",
        )
        place.ok("up", spec)
        yield place, spec
        place.look(spec)
        place.ok("down", "--yes", spec)
        place.assert_no_trace()


@pytest.fixture
def mpi(request: pytest.FixtureRequest) -> Mpi:
    assert isinstance(request.param, Mpi)
    need_mpi(request.param)
    return request.param


@dataclass(frozen=True)
class Process:
    """A process of this machine."""

    pid: int
    words: tuple[str, ...]

    @property
    def name(self) -> str:
        return Path(self.words[0]).name if self.words else ""


def processes(place: Site) -> list[Process]:
    """Every process of the site's jobs and their supervisors, in any namespace."""
    found = []
    home = f"HOME={place.directory}".encode()
    shown = f'"{place.directory}"'  # in the supervisor's CONFIG; other sites may have jobs, too
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if not entry.name.isdigit():
                continue
            words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
            environ = (entry / "environ").read_bytes().split(b"\0")
            own = home in environ and any(e.startswith(b"NEARMETAL_JOB=job-") for e in environ)
            supervises = any(word.endswith("/local/job.py") for word in words)
            if own or (supervises and any(shown in word for word in words)):
                found.append(Process(int(entry.name), tuple(words)))
    return found


def is_launcher(process: Process) -> bool:
    return process.name in ("mpirun", "prterun", "mpiexec.hydra")


def is_daemon(process: Process) -> bool:
    return process.name in ("prted", "hydra_pmi_proxy")


def is_rank(process: Process) -> bool:
    return process.words[1:] == ("sleep", "600")


def is_agent(process: Process) -> bool:
    return "--rank" in process.words and process.words[-2:] == ("sleep", "600")


def is_remote_shell(process: Process) -> bool:
    """The shells that the launcher started to reach a node, and the programs that wait for it."""
    return any(word.endswith("/confine.py") for word in process.words)


def is_supervisor(process: Process) -> bool:
    return process.name.startswith("python") and "job.py" in " ".join(process.words[:4])


@contextlib.contextmanager
def job(up: tuple[Site, str], mpi: Mpi, *more: str, n: int = 4) -> Iterator[subprocess.Popen[str]]:
    """A job whose ranks all sleep, on n1 and n2 (and n3 with more ranks)."""
    place, spec = up
    program = str(place.directory / mpi.value)
    argv = ("run", spec, "--mpi", mpi.value, "--provider", "stock", "-n", str(n), *more)
    with place.start(*argv, "--", program, "sleep", "600") as process:
        assert process.stdout is not None
        try:
            for _ in range(n):
                assert process.stdout.readline().startswith("rank "), f"ended: {process.poll()}"
            yield process
        finally:
            process.kill()


def kill(place: Site, chosen: Callable[[Process], bool]) -> None:
    victims = [process.pid for process in processes(place) if chosen(process)]
    assert victims
    for pid in victims:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def assert_ended(place: Site) -> None:
    """No process of a job is left, in any node."""
    deadline = time.monotonic() + END_S
    while left := processes(place):
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


def assert_clean(up: tuple[Site, str], *nodes: str) -> None:
    """No file of a job is left, in any node or beside the launcher."""
    place, spec = up
    assert_ended(place)
    listed = "/dev/shm /tmp /run/job /run/nearmetal /run/nearmetal-cluster/jobs"
    script = f"cd / && find {listed} -mindepth 1 -maxdepth 1 2>/dev/null"
    for node in nodes or ("n1", "n2", "n3", "launcher"):
        done = place.run("exec", spec, node, "--", "sh", "-c", script)
        shown = (str(ROOT), str(place.directory))
        files = [line for line in done.stdout.splitlines() if not any(line in s for s in shown)]
        assert files == [], node


VICTIMS = {
    "launcher": is_launcher,
    "daemon": is_daemon,
    "rank": is_rank,
    "agent": is_agent,
    "remote shell": is_remote_shell,
    "supervisor": is_supervisor,
    "supervisor and launcher": lambda p: is_supervisor(p) or is_launcher(p),
    "all but ranks": lambda p: not is_rank(p),
}


@pytest.mark.parametrize(("victim", "mpi"), walk(product(VICTIMS, MPIS)), indirect=["mpi"])
def test_a_killed_process_ends_its_job(up: tuple[Site, str], mpi: Mpi, victim: str) -> None:
    place, _ = up
    with job(up, mpi) as process:
        kill(place, VICTIMS[victim])
        _, words = process.communicate(timeout=END_S)
    assert process.returncode == KILLED, words
    assert f"the job ended with exit code {KILLED}" in words
    assert_clean(up)


@pytest.mark.parametrize("mpi", [Mpi.OPENMPI5, Mpi.MPICH5], indirect=True)
def test_a_killed_run_takes_its_job_with_it(up: tuple[Site, str], mpi: Mpi) -> None:
    with job(up, mpi, "--timeout", "600", n=6) as process:
        process.kill()
        _, words = process.communicate(timeout=END_S)
        assert "is ended: `nearmetal run` has ended" in words
        assert_clean(up)


@pytest.mark.parametrize("mpi", [Mpi.MPICH5], indirect=True)
def test_run_and_supervisor_killed_together(up: tuple[Site, str], mpi: Mpi) -> None:
    """The ranks end; what is left of the rundir is removed by the next run."""
    place, spec = up
    with job(up, mpi) as process:
        process.kill()
        kill(place, is_supervisor)
        process.communicate(timeout=END_S)
        assert_ended(place)
    program = str(place.directory / mpi.value)
    place.ok("run", spec, "--mpi", mpi.value, "--provider", "stock", "--", program)
    assert_clean(up)


HIDDEN = "setsid env -i sleep 601 </dev/null >/dev/null 2>&1 & echo rank hidden; exec sleep 600"


@pytest.mark.parametrize("mpi", [Mpi.MPICH5], indirect=True)
def test_a_hidden_process_ends_with_the_supervisor(up: tuple[Site, str], mpi: Mpi) -> None:
    """It has left the session of its rank and has no variable; n3 has no PID namespace."""
    place, spec = up
    argv = ("run", spec, "--mpi", mpi.value, "--provider", "stock", "-n", "6")
    with place.start(*argv, "--", "/bin/sh", "-c", HIDDEN) as process:
        assert process.stdout is not None
        try:
            for _ in range(6):
                assert process.stdout.readline().startswith("rank "), f"ended: {process.poll()}"
            # The processes 1 of the job are its children, and have the same words.
            family = [one.pid for one in processes(place) if is_supervisor(one)]
            os.kill(min(family, key=start_time), signal.SIGKILL)
            process.communicate(timeout=END_S)
        finally:
            process.kill()
    deadline = time.monotonic() + END_S
    while is_running("sleep", "601"):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert_clean(up)


def is_running(*words: str) -> bool:
    """Whether any process of the machine has these words."""
    wanted = b"".join(word.encode() + b"\0" for word in words)
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and (entry / "cmdline").read_bytes() == wanted:
                return True
    return False


@pytest.mark.parametrize("mpi", [Mpi.OPENMPI5], indirect=True)
@pytest.mark.parametrize("node", ["n2", "n3"])
def test_a_dead_node_ends_the_job(up: tuple[Site, str], mpi: Mpi, node: str) -> None:
    """n3 has no PID namespace, so its processes outlive its process 1."""
    place, spec = up
    (pid,) = [n["pid"] for n in place.json("status", spec)["nodes"] if n["name"] == node]
    try:
        with job(up, mpi, n=6) as process:
            os.kill(pid or process_1_of(place, spec, node), signal.SIGKILL)
            _, words = process.communicate(timeout=END_S)
        assert process.returncode == KILLED, words
        assert f"is ended: process 1 of node {node}, or of the job in it, has ended" in words
        assert_ended(place)
    finally:
        place.ok("up", spec)
    assert_clean(up)


def process_1_of(place: Site, spec: str, node: str) -> int:
    """The process that a command in a node without a PID namespace finds as the oldest."""
    own = place.ok("exec", spec, node, "--", "readlink", "/proc/self/ns/mnt").strip()
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and str((entry / "ns/mnt").readlink()) == own:
                return int(entry.name)
    raise AssertionError(node)


@pytest.mark.full
@pytest.mark.parametrize("mpi", [Mpi.MPICH5], indirect=True)
def test_a_run_that_stands_still_does_not_stop_the_clock(up: tuple[Site, str], mpi: Mpi) -> None:
    place, _ = up
    with job(up, mpi, "--timeout", "20") as process:
        process.send_signal(signal.SIGSTOP)
        deadline = time.monotonic() + 3 * END_S
        while any(is_rank(p) for p in processes(place)):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        process.send_signal(signal.SIGCONT)
        _, words = process.communicate(timeout=END_S)
        assert "is ended: it still runs after 30 s" in words
    assert_clean(up)


@pytest.mark.parametrize("mpi", [Mpi.MPICH5], indirect=True)
@pytest.mark.parametrize("count", [3, pytest.param(100, marks=pytest.mark.full)])
def test_killed_jobs_leave_no_files(up: tuple[Site, str], mpi: Mpi, count: int) -> None:
    place, _ = up
    for _ in range(count):
        with job(up, mpi) as process:
            kill(place, is_rank)
            process.kill()
            process.communicate(timeout=END_S)
    assert_clean(up)


LOOK = """
cd $TMPDIR && touch $1.$(hostname) /tmp/$1 /dev/shm/$1
until [ $(ls $TMPDIR | wc -l) = 2 ]; do sleep 0.05; done
sleep 1
ls $TMPDIR /tmp /dev/shm
"""


@pytest.mark.parametrize("mpi", [Mpi.OPENMPI5, Mpi.MPICH5], indirect=True)
def test_jobs_have_files_of_their_own(up: tuple[Site, str], mpi: Mpi) -> None:
    place, spec = up
    argv = ("run", spec, "--mpi", mpi.value, "--provider", "stock", "--timeout", "60", "-n", "2")
    script = ("--map-by", "node", "--", "/bin/sh", "-c", LOOK, "sh")
    with (
        place.start(*argv, *script, "first") as first,
        place.start(*argv, *script, "second") as second,
    ):
        one, words = first.communicate(timeout=90)
        two, more = second.communicate(timeout=90)
    assert (first.returncode, second.returncode) == (0, 0), words + more
    for text, own, other in ((one, "first", "second"), (two, "second", "first")):
        assert text.count(f"{own}.n1") == 2, "TMPDIR is shared by the nodes of a job"
        assert text.split().count(own) == 4, "/tmp and /dev/shm of each node"
        assert other not in text
    assert_clean(up)
