# SPDX-License-Identifier: Apache-2.0
"""Who is near whom, in real namespaces. The network is shared by all, and says nothing about it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.system.faults.arena import Arena, exchange, open_all
from tests.system.faults.hello import rundir_number
from tests.system.faults.peer import PATIENCE_S, REPOSITORY, Node, Peer

pytestmark = pytest.mark.system

ABSENT = "does not listen in"


def hidden(arena: Arena) -> str:
    """Give a node a segment directory of its own, in the place of the common one."""
    return f"mount -t tmpfs -o mode=0700 tmpfs {arena.segment}"


def pair_on(arena: Arena, one: Node, other: Node) -> tuple[Peer, Peer]:
    a, b = arena.start("a", {}, node=one), arena.start("b", {}, node=other)
    open_all(a, b)
    a.knows(b)
    b.knows(a)
    exchange(a, b, size=1 << 20)
    return a, b


def expect(a: Peer, b: Peer, channel: str, relation: str, words: str) -> None:
    assert a.finish() == 0
    assert b.finish() == 0
    for one, other in ((a, b), (b, a)):
        way = one.way_to(other)
        assert (way["channel"], way["relation"]) == (channel, relation), way
        assert words in way["reason"]
        assert way["integrity"] == ("enforced" if channel == "shm" else "-")


def test_different_host_names_on_one_host_are_near(arena: Arena) -> None:
    a, b = pair_on(arena, Node("n1"), Node("n2"))
    expect(a, b, "shm", "host", "another PID namespace")


def test_two_processes_of_one_node_are_near(arena: Arena) -> None:
    a, b = pair_on(arena, Node("n1", own_pids=False), Node("n2", own_pids=False))
    expect(a, b, "shm", "node", "one PID namespace")


def test_one_host_name_on_two_hosts_is_far(arena: Arena) -> None:
    a, b = pair_on(arena, Node("same", hidden(arena)), Node("same", hidden(arena)))
    expect(a, b, "net", "network", ABSENT)


def test_clones_that_share_nothing_are_far(arena: Arena) -> None:
    # Host name, machine id, boot id, user, paths and pid are equal; only the bytes are not shared.
    clone = Node("clone", f"{hidden(arena)}; mount -t tmpfs tmpfs /dev/shm")
    a, b = pair_on(arena, clone, clone)
    assert a.own_number == b.own_number == 1
    expect(a, b, "net", "network", ABSENT)


def test_clones_that_share_the_directory_are_near(arena: Arena) -> None:
    a, b = pair_on(arena, Node("clone"), Node("clone"))
    assert a.own_number == b.own_number == 1
    expect(a, b, "shm", "host", "sealed window")


def test_a_directory_that_one_side_has_is_not_shared(arena: Arena) -> None:
    a, b = pair_on(arena, Node("n1"), Node("n2", hidden(arena)))
    expect(a, b, "net", "network", ABSENT)


def test_the_default_directory_is_shared_as_dev_shm_is(arena: Arena) -> None:
    private = Node("n1", "mount -t tmpfs tmpfs /dev/shm")
    a = arena.start("a", {}, node=private, without=("NEARMETAL_RUNDIR",)).open()
    b = arena.start("b", {}, node=private, without=("NEARMETAL_RUNDIR",)).open()
    a.knows(b)
    b.knows(a)
    exchange(a, b)
    expect(a, b, "net", "network", f"/dev/shm/nearmetal-{os.geteuid()}")


def test_a_socket_that_only_one_side_sees_serves_no_side(arena: Arena) -> None:
    own = arena.root / "own"
    a, b = arena.peer("a", RUNDIR=str(own)), arena.peer("b")
    a.knows(b)
    b.knows(a)
    (own / b.identity).hardlink_to(arena.segment / b.identity)
    exchange(a, b, size=1 << 20)
    (own / b.identity).unlink()
    assert a.finish() == 0
    assert b.finish() == 0
    # b's address names a window in another rundir, and b could not find a. Both are right.
    assert a.way_to(b)["channel"] == "net"
    assert "belongs to another endpoint" in a.way_to(b)["reason"]
    assert b.way_to(a)["channel"] == "net"
    assert ABSENT in b.way_to(a)["reason"]


def test_a_socket_in_the_place_of_another_is_found_out(arena: Arena) -> None:
    # None notices in time that its socket was replaced.
    a, b, c = (arena.start(name, {"LEASE_MS": "60000"}) for name in "abc")
    open_all(a, b, c)
    a.knows(b)
    b.knows(a)
    (arena.segment / b.identity).unlink()
    (arena.segment / b.identity).hardlink_to(arena.segment / c.identity)
    exchange(a, b)
    assert a.finish() == 0
    assert b.finish() == 0
    assert a.way_to(b)["channel"] == "net"
    assert "asked for another endpoint" in a.way_to(b)["reason"]
    assert b.way_to(a)["channel"] == "shm"
    (arena.segment / b.identity).unlink()


def test_other_users_are_strangers(arena: Arena) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can start a process of another user")
    b = arena.peer("b")
    fd = os.open(arena.segment, os.O_PATH)
    code = (
        "import os,socket,sys; os.setgid(65534); os.setuid(65534);"
        "s=socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); s.connect(sys.argv[1])"
    )
    path = f"/proc/self/fd/{fd}/{b.identity}"
    done = subprocess.run(
        [sys.executable, "-c", code, path],
        pass_fds=[fd],
        capture_output=True,
        timeout=PATIENCE_S,
        check=False,
    )
    os.close(fd)
    assert b"PermissionError" in done.stderr


@pytest.mark.parametrize("elsewhere", [False, True], ids=["same node", "other node"])
def test_nobody_can_write_into_a_neighbours_window(arena: Arena, elsewhere: bool) -> None:
    a, b = arena.start("a", {}, node=Node("n1")), arena.start("b", {}, node=Node("n2"))
    open_all(a, b)
    a.knows(b)
    b.knows(a)
    exchange(a, b)
    before = window_header(b)
    where = str(arena.segment), str(rundir_number(b))
    argv = [sys.executable, "-m", "tests.system.faults.intruder", *where, b.address]
    argv = [*Node("n3").argv(), *argv, "0"] if elsewhere else [*argv, str(b.pid)]
    done = subprocess.run(
        argv, cwd=REPOSITORY, capture_output=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    tried: dict[str, str] = json.loads(done.stdout)
    assert len(tried) == (10 if elsewhere else 16), tried
    assert all(outcome.startswith("refused: ") for outcome in tried.values()), tried
    assert window_header(b) == before
    exchange(a, b, tag=20)


def window_header(owner: Peer) -> bytes:
    """Read the lines of a window that its owner writes once."""
    (path,) = (
        path
        for path in Path(f"/proc/{owner.pid}/fd").iterdir()
        if "nearmetal-window" in str(path.readlink())
    )
    with path.open("rb") as file:
        return file.read(128)
