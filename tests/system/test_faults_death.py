# SPDX-License-Identifier: Apache-2.0
"""A process dies without a word: whoever deals with it gets an error, in seconds, by name."""

import pytest

from tests.system.faults.arena import Arena, exchange
from tests.system.faults.peer import ECONNRESET, EHOSTUNREACH, Peer

pytestmark = pytest.mark.system

CHANNELS = ["self,shm", "self,net"]
SIZE = 64 << 20
MIDWAY = 20 << 20


@pytest.fixture(params=CHANNELS, ids=["shm", "net"])
def pair(request: pytest.FixtureRequest, arena: Arena) -> tuple[Peer, Peer]:
    return arena.pair(CHANNELS=request.param, KEEPALIVE_MS="200")


def expect_reset(survivor: Peer, ident: str) -> None:
    assert survivor.expect("error", ident)[0] == str(ECONNRESET)


def expect_named_once(survivor: Peer, dead_pid: int) -> None:
    lines = [line for line in survivor.log_lines if " is lost: " in line]
    assert len(lines) == 1, survivor.log
    assert f"pid {dead_pid})" in lines[0]
    assert lines[0].partition(" is lost: ")[2].strip()


def test_death_ends_a_receive_from_it(pair: tuple[Peer, Peer]) -> None:
    a, b = pair
    exchange(a, b)
    a.post("recv", "r", "b", 8, 1)
    pid = b.pid
    b.kill()
    expect_reset(a, "r")
    expect_named_once(a, pid)


def test_death_ends_receives_from_anyone(pair: tuple[Peer, Peer]) -> None:
    a, b = pair
    exchange(a, b)
    a.post("recv", "tagged", "any", 8, "any")
    a.post("recv", "untagged", "any", 8, "-")
    pid = b.pid
    b.kill()
    expect_reset(a, "tagged")
    expect_reset(a, "untagged")
    expect_named_once(a, pid)


def test_death_of_the_sender_in_the_middle_of_a_message(pair: tuple[Peer, Peer]) -> None:
    a, b = pair
    a.post("recv", "r", "b", SIZE, 1)
    a.tell("await", "r", MIDWAY)
    b.post("send", "s", "a", SIZE, 1)
    a.expect("midway", "r")
    pid = b.pid
    b.kill()
    a.tell("resume")
    expect_reset(a, "r")
    expect_named_once(a, pid)


def test_death_of_the_receiver_in_the_middle_of_a_message(pair: tuple[Peer, Peer]) -> None:
    a, b = pair
    b.post("recv", "r", "a", SIZE, 1)
    b.tell("await", "r", MIDWAY)
    a.post("send", "s", "b", SIZE, 1)
    b.expect("midway", "r")
    pid = b.pid
    b.kill()
    expect_reset(a, "s")
    expect_named_once(a, pid)


def test_death_of_a_receiver_that_has_stopped_taking_messages(pair: tuple[Peer, Peer]) -> None:
    a, b = pair
    exchange(a, b)
    b.tell("pause")
    b.expect("paused")
    a.tell("flood", "b", 512, 10_000_000, 1)
    a.expect("flooding")
    pid = b.pid
    b.kill()
    assert a.expect("flooded")[1] == str(ECONNRESET)
    expect_named_once(a, pid)


def test_death_of_somebody_who_was_only_listened_to(pair: tuple[Peer, Peer]) -> None:
    a, b = pair
    a.post("recv", "first", "b", 100, 1)
    b.post("send", "s", "a", 100, 1)
    assert a.expect("done", "first", "recv")[2] == "good"
    a.post("recv", "r", "any", 8, "any")
    pid = b.pid
    b.kill()
    expect_reset(a, "r")
    expect_named_once(a, pid)


def test_death_of_somebody_who_never_spoke(arena: Arena, pair: tuple[Peer, Peer]) -> None:
    a, b = pair
    a.post("recv", "r", "b", 8, 1)
    b.kill()
    assert a.expect("error", "r")[0] in {str(ECONNRESET), str(EHOSTUNREACH)}
    assert sum(" is lost: " in line for line in a.log_lines) == 1, a.log
    arena.remove_socket_of(b)


def test_death_of_one_leaves_the_others_alone(arena: Arena, pair: tuple[Peer, Peer]) -> None:
    a, b = pair
    c = arena.start("c", a.knobs).open().knows(a, b)
    a.knows(c)
    b.knows(c)
    exchange(a, c, tag=30)
    b.post("recv", "r", "a", SIZE, 1)
    a.post("send", "s", "b", SIZE, 1)
    c.kill()
    assert b.expect("done", "r", "recv")[2] == "good"
    a.expect("done", "s", "send")
    exchange(a, b, tag=40)
    a.post("recv", "any", "any", 8, "any")
    expect_reset(a, "any")
    exchange(a, b, tag=50)
