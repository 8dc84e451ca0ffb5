# SPDX-License-Identifier: Apache-2.0
"""A process dies without a word: whoever deals with it gets an error, in seconds, by name."""

import pytest

from tests.system.faults.arena import Arena, exchange
from tests.system.faults.peer import ECONNRESET, Peer

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
