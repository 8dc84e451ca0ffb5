# SPDX-License-Identifier: Apache-2.0
"""The directory where neighbours meet is missing, foreign, unsafe or full."""

import os
import socket
from pathlib import Path

import pytest

from tests.system.faults.arena import Arena, exchange, open_all
from tests.system.faults.peer import Node, Peer

pytestmark = pytest.mark.system

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to others")


def run_pair(arena: Arena, directory: Path, node: Node | None = None) -> tuple[Peer, Peer]:
    knobs = {"RUNDIR": str(directory)}
    a, b = arena.start("a", knobs, node=node), arena.start("b", knobs, node=node)
    open_all(a, b)
    a.knows(b)
    b.knows(a)
    exchange(a, b)
    assert a.finish() == 0
    assert b.finish() == 0
    return a, b


def expect_net_with_warning(a: Peer, b: Peer, path: Path, *words: str) -> None:
    for one, other in ((a, b), (b, a)):
        assert one.way_to(other)["channel"] == "net"
        assert len(one.log_lines) == 1, one.log
        assert str(path)[:80] in one.log_lines[0]
        for word in words:
            assert word in one.log_lines[0]


def test_a_missing_directory_is_made(arena: Arena) -> None:
    directory = arena.root / "made"
    a, b = run_pair(arena, directory)
    assert a.way_to(b)["channel"] == "shm"
    assert directory.stat().st_mode & 0o7777 == 0o700
    assert not arena.sockets(directory)
    assert not a.log_lines


def test_a_missing_parent_directory_is_not(arena: Arena) -> None:
    directory = arena.root / "no" / "parent"
    a, b = run_pair(arena, directory)
    expect_net_with_warning(a, b, directory, "NEARMETAL_RUNDIR")
    assert not directory.parent.exists()


def test_a_very_long_path_works(arena: Arena) -> None:
    directory = arena.root / ("d" * (250 - len(str(arena.root))))
    a, b = run_pair(arena, directory)
    assert a.way_to(b)["channel"] == "shm"
    assert b.way_to(a)["channel"] == "shm"


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o1777])
def test_others_may_write(arena: Arena, mode: int) -> None:
    arena.segment.chmod(mode)
    a, b = run_pair(arena, arena.segment)
    expect_net_with_warning(a, b, arena.segment, "chmod 700")


@as_root
def test_it_belongs_to_somebody_else(arena: Arena) -> None:
    os.chown(arena.segment, 65534, -1)
    a, b = run_pair(arena, arena.segment)
    expect_net_with_warning(a, b, arena.segment, "65534", "NEARMETAL_RUNDIR")


def test_it_is_a_file(arena: Arena) -> None:
    path = arena.root / "file"
    path.touch()
    a, b = run_pair(arena, path)
    expect_net_with_warning(a, b, path, "NEARMETAL_RUNDIR")


def test_it_is_a_symbolic_link(arena: Arena) -> None:
    path = arena.root / "link"
    path.symlink_to(arena.segment)
    a, b = run_pair(arena, path)
    expect_net_with_warning(a, b, path, "NEARMETAL_RUNDIR")


@pytest.mark.parametrize(
    ("mount", "word"),
    [
        ("mount -t tmpfs -o mode=0700,nr_inodes=1 tmpfs", "No space left"),
        ("mount -t tmpfs -o mode=0700,ro tmpfs", "Read-only"),
    ],
    ids=["full", "read-only"],
)
def test_nothing_can_be_made_in_it(arena: Arena, mount: str, word: str) -> None:
    node = Node("n1", f"{mount} {arena.segment}", own_pids=False)
    a, b = run_pair(arena, arena.segment, node)
    expect_net_with_warning(a, b, arena.segment, word, "NEARMETAL_RUNDIR")


def test_a_full_dev_shm_keeps_nobody_from_sharing_memory(arena: Arena) -> None:
    full = "mount -t tmpfs -o size=4k tmpfs /dev/shm; ! cat /dev/zero >/dev/shm/full 2>&1"
    node = Node("n1", f"{full}; mkdir -m 700 /dev/shm/meet", own_pids=False)
    a = arena.start("a", {"RUNDIR": "/dev/shm/meet"}, node=node)
    a.open()
    b = arena.start("b", {"RUNDIR": f"/proc/{a.pid}/root/dev/shm/meet"}).open()
    a.knows(b)
    b.knows(a)
    exchange(a, b, size=1 << 20)
    assert a.finish() == 0
    assert b.finish() == 0
    assert a.way_to(b)["channel"] == "shm"
    assert not a.log_lines


def test_an_unusable_directory_for_statistics_stops_nothing(arena: Arena) -> None:
    a = arena.peer("a", STATS_DIR=str(arena.root / "missing"))
    b = arena.peer("b").knows(a)
    a.knows(b)
    exchange(a, b)
    assert a.finish() == 0
    assert any(str(arena.root / "missing") in line for line in a.log_lines), a.log


def test_sockets_of_a_dead_job_are_removed_and_do_no_harm(arena: Arena) -> None:
    a, b = arena.pair()
    a.kill()
    b.kill()
    assert len(arena.sockets()) == 2
    not_ours = "another-program"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as dead:
        dead.bind(str(arena.segment / not_ours))
    for name in arena.sockets():
        old = (arena.segment / name).lstat().st_mtime - 3600
        os.utime(arena.segment / name, (old, old), follow_symlinks=False)
    c, d = arena.peer("c"), arena.peer("d")
    assert arena.sockets() == sorted([c.identity, d.identity, not_ours])
    (arena.segment / not_ours).unlink()
    c.knows(d)
    d.knows(c)
    exchange(c, d)


@as_root
def test_a_default_name_that_another_user_has_taken(arena: Arena) -> None:
    taken = f"/dev/shm/nearmetal-{os.geteuid()}"
    script = f"mount -t tmpfs tmpfs /dev/shm; mkdir {taken}; chown 65534 {taken}"
    node = Node("n1", script, own_pids=False)
    without = ("NEARMETAL_RUNDIR",)
    a = arena.start("a", {}, node=node, without=without).open()
    shared = f"nsenter --mount=/proc/{a.pid}/ns/mnt".split()
    b = arena.start("b", {}, prefix=tuple(shared), without=without).open()
    a.knows(b)
    b.knows(a)
    exchange(a, b)
    for one, other in ((a, b), (b, a)):
        assert one.finish() == 0
        assert one.way_to(other)["channel"] == "shm"
        (line,) = one.log_lines
        assert f"user 65534 has taken the name {taken}: the rundir is {taken}." in line


@pytest.mark.parametrize("limit", [65536, 4096])
def test_a_limit_of_files_is_no_end(arena: Arena, limit: int) -> None:
    prefix = ("prlimit", f"--fsize={limit}:{limit}")
    a, b = arena.start("a", {}, prefix=prefix), arena.start("b", {})
    open_all(a, b)
    a.knows(b)
    b.knows(a)
    exchange(a, b)
    assert a.finish() == 0
    assert b.finish() == 0
    assert b.way_to(a)["channel"] == "net"
