# SPDX-License-Identifier: Apache-2.0
"""Nodes of this machine are confined: what a hostile program tries, as root and as a user."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nearmetal.job.mpi import Mpi
from tests.system.local import ROOT, UID, Site, site, user_can_read_checkout
from tests.system.mpi_jobs import compile_for
from tests.system.need import need_build, need_mpi
from tests.system.programs import escapes

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.system

SPEC = """\
version: 1
name: confined
backend: local
hosts: [{name: h, nodes: [{name: n1}, {name: n2, pids: cluster}, {name: n3, pids: cluster}]}]
"""
RECORDS = "/run/nearmetal-cluster"
AGENT = f"{RECORDS}/agent"
SPAWN = ROOT / "tests" / "system" / "programs" / "mpi_spawn_at.c"
WALLS = "grep -E '^(Cap|NoNewPrivs|Seccomp:)' /proc/{}/status; readlink /proc/self/ns/user"


@dataclass(frozen=True)
class Prison:
    """A cluster, and a directory of the machine that its nodes see and its user may write."""

    place: Site
    spec: str
    outside: Path

    def node(self, *argv: str, name: str = "n1") -> str:
        return self.place.ok("exec", self.spec, name, "--", *argv)

    def by_shell(self, text: str, name: str = "n1") -> str:
        """As the launchers of MPIs enter."""
        return self.place.ok("exec", self.spec, "launcher", "--", AGENT, name, text)


@contextlib.contextmanager
def prison(uid: int) -> Iterator[Prison]:
    outside = Path(tempfile.mkdtemp(prefix="nearmetal-test-", dir="/var/tmp"))
    outside.chmod(0o755)
    if uid:
        os.chown(outside, uid, uid)
    try:
        with site(uid) as place:
            spec = place.write("spec.yaml", SPEC)
            place.ok("up", spec)
            yield Prison(place, spec, outside)
            place.look(spec)
            place.ok("down", "--yes", spec)
            place.assert_no_trace()
    finally:
        shutil.rmtree(outside)


@pytest.fixture(scope="module", params=["root", "user"])
def inside(request: pytest.FixtureRequest) -> Iterator[Prison]:
    if os.geteuid() != 0 and request.param == "root":
        pytest.skip("the tests do not run as root")
    uid = UID if request.param == "user" and os.geteuid() == 0 else 0
    if uid and not user_can_read_checkout():
        pytest.skip("an ordinary user cannot read this checkout")
    with prison(uid) as made:
        yield made


@pytest.fixture(scope="module")
def outcomes(inside: Prison) -> dict[str, dict[str, str]]:
    """How every attempt ended, by the way in."""
    argv = ["/usr/bin/python3", "-I", escapes.__file__, str(inside.outside)]
    answers = {
        "exec": inside.node(*argv),
        "remote shell": inside.by_shell(" ".join(argv)),
        "exec, one PID namespace": inside.node(*argv, name="n2"),
    }
    return {way: json.loads(answer) for way, answer in answers.items()}


@pytest.mark.parametrize("attempt", list(escapes.ATTEMPTS))
def test_an_escape_is_refused(outcomes: dict[str, dict[str, str]], attempt: str) -> None:
    assert {way: ends[attempt] for way, ends in outcomes.items()} == dict.fromkeys(
        outcomes, "refused"
    )


@pytest.mark.mpi
@pytest.mark.parametrize("mpi", [Mpi.MPICH5, Mpi.IMPI], ids=lambda mpi: mpi.value)
@pytest.mark.parametrize("host", ["localhost", "launcher"])
def test_a_rank_has_the_launcher_start_no_escape(inside: Prison, mpi: Mpi, host: str) -> None:
    """Open MPI starts children in the nodes of the job only."""
    need_mpi(mpi)
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        seen = Path(name)
        seen.chmod(0o755)
        compile_for([mpi], SPAWN, seen)
        attempt = f"exec /usr/bin/python3 -I {escapes.__file__} {inside.outside}"
        options = ("--mpi", mpi.value, "--provider", "stock", "-n", "1", "--timeout", "40")
        argv = (str(seen / mpi.value), host, f"cat /proc/sys/kernel/hostname; {attempt}")
        words = inside.place.ok("run", inside.spec, *options, "--", *argv)
    where, answer = words.splitlines()[-2:]
    assert where == "launcher"
    ends = json.loads(answer)
    assert ends == dict.fromkeys(escapes.ATTEMPTS, "refused")
    assert list(inside.outside.iterdir()) == []


def test_nothing_was_made_outside(inside: Prison, outcomes: dict[str, dict[str, str]]) -> None:
    assert outcomes
    assert list(inside.outside.iterdir()) == []


def test_every_way_in_has_the_same_walls(inside: Prison) -> None:
    walls = inside.node("sh", "-c", WALLS.format("self"))
    assert "NoNewPrivs:\t1\nSeccomp:\t2\n" in walls
    assert [line.split()[1] for line in walls.splitlines() if line.startswith("CapB")] == [
        f"{4:016x}"
    ]
    assert inside.by_shell(WALLS.format("self")) == walls
    assert inside.node("sh", "-c", WALLS.format("self"), name="n2") == walls
    assert inside.node("sh", "-c", WALLS.format("1")) == walls
    outer = ("exec", inside.spec, "launcher", "--")
    assert inside.place.ok(*outer, "readlink", "/proc/self/ns/user") not in walls
    # The interpreter is in reach for a moment, so it is read-only even where it starts.
    assert inside.place.run(*outer, "test", "-w", f"{RECORDS}/python").returncode == 1


def test_a_node_reads_what_its_user_reads(inside: Prison) -> None:
    own, foreign = inside.outside / "own", inside.outside / "foreign"
    try:
        for path, owner in ((own, inside.place.uid), (foreign, UID + 1)):
            path.write_text("secret")
            path.chmod(0o600)
            if os.geteuid() == 0:
                os.chown(path, owner, owner)
        assert inside.node("cat", str(own)) == "secret"
        done = inside.place.run("exec", inside.spec, "n1", "--", "cat", str(foreign))
        # A job of root reads what root reads; another user's node does not.
        assert done.stdout == ("" if inside.place.uid else "secret")
    finally:
        own.unlink()
        foreign.unlink()


def test_ranks_copy_directly_where_they_share_pids(inside: Prison) -> None:
    need_build()
    pairs = inside.place.json("locality", inside.spec)["pairs"]
    copies = {(pair["node"], pair["peer"]) for pair in pairs if pair["direct_copies"]}
    assert copies == {("n2", "n3"), ("n3", "n2")}
    assert {pair["channel"] for pair in pairs} == {"self", "shm"}


def test_a_node_keeps_what_jobs_need(inside: Prison) -> None:
    probe = (
        "import ctypes, multiprocessing, os, socket;"
        "socket.create_server(('', 80)); os.memfd_create('x');"
        "open('/proc/self/oom_score_adj', 'w').write('500');"
        "multiprocessing.Value('i'); os.openpty();"
        "open('/dev/null', 'w').write('x'); open('/proc/cpuinfo').read(9);"
        "os.listdir('/sys/devices/system/node');"
        "print(ctypes.CDLL(None).personality(0xffffffff))"
    )
    assert inside.node("python3", "-c", probe) == "0\n"
    # The way in leaves no mark on the program: no variable, no ignored signal, its end as it is.
    assert "LC_CTYPE" not in inside.node("env", "-u", "LC_CTYPE", "env")
    state = inside.node("grep", "SigIgn", "/proc/self/status")
    ours = re.search(r"SigIgn:\s*(\w+)", Path("/proc/self/status").read_text())
    assert ours is not None
    assert not int(state.split()[1], 16) & ~int(ours[1], 16)
    done = inside.place.run("exec", inside.spec, "launcher", "--", AGENT, "n1", "kill -9 $$")
    assert done.returncode in (-9, 137)


NESTED = """\
echo 0 >/proc/sys/user/max_user_namespaces &&
"$@" up $SPEC && "$@" exec $SPEC n1 -- sh -c "$PROBE" && "$@" down --yes $SPEC
"""


def test_without_user_namespaces_two_walls_remain_and_up_says_so() -> None:
    """Root of a user namespace that allows no others stands for root of such a kernel."""
    with site() as place:
        spec = place.write("spec.yaml", SPEC)
        argv = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-ec", NESTED, "sh"]
        escapes_in = f"/usr/bin/python3 -I {escapes.__file__} /var/tmp"
        done = subprocess.run(
            [*argv, sys.executable, "-m", "nearmetal"],
            env=place.environment() | {"SPEC": spec, "PROBE": escapes_in},
            cwd=ROOT,
            check=False,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        assert "lack one of three walls" in done.stderr
        ends = json.loads(next(line for line in done.stdout.splitlines() if line[0] == "{"))
        assert set(ends.values()) == {"refused"}
        place.assert_no_trace()
