# SPDX-License-Identifier: Apache-2.0
"""Processes stop, continue, close, join late and come back: nothing is lost, nobody hangs."""

import signal
import time

import pytest

from tests.system.faults.arena import Arena, exchange, open_all
from tests.system.faults.peer import PATIENCE_S, Peer

pytestmark = pytest.mark.system

CHANNELS = ["self,shm", "self,net"]
GONE = {"104", "113"}  # connection reset; no route to it
SIZE = 64 << 20
MIDWAY = 20 << 20

by_channel = pytest.mark.parametrize("channels", CHANNELS, ids=["shm", "net"])


def is_sent(sender: Peer, ident: str, *good: str) -> bool:
    """Wait for one of the words of success, or for an error, at once or later."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if any(sender.happened(word, ident, within_s=0.1) for word in good):
            return True
        for word in ("failed", "error"):
            if sender.happened(word, ident, within_s=0.1):
                assert sender.expect(word, ident)[0] in GONE
                return False
    raise AssertionError(f"no end of {ident}; log:\n{sender.log}")


def expect_unreachable(sender: Peer, ident: str) -> None:
    """A message ends with an error, at once or later."""
    assert not is_sent(sender, ident)


@by_channel
def test_the_peer_dies_before_the_first_message(arena: Arena, channels: str) -> None:
    a, b = arena.pair(CHANNELS=channels, KEEPALIVE_MS="200")
    b.kill()
    a.tell("send", "s", "b", 8, 1)
    expect_unreachable(a, "s")
    arena.remove_socket_of(b)


@pytest.mark.parametrize("channels", ["self,shm", "self,net", "self,shm,net"])
def test_the_peer_dies_in_the_first_handshake(arena: Arena, channels: str) -> None:
    a, b = arena.pair(CHANNELS=channels, KEEPALIVE_MS="200")
    b.signal(signal.SIGSTOP)
    a.tell("send", "s", "b", 100_000, 1)
    time.sleep(0.3)  # a has begun to shake hands with somebody who does not
    b.kill()
    expect_unreachable(a, "s")
    arena.remove_socket_of(b)


def test_a_stopped_peer_is_reached_over_the_network(arena: Arena) -> None:
    a, b = arena.pair(CONNECT_MS="300", LOG="info")
    b.signal(signal.SIGSTOP)
    a.tell("send", "s", "b", 100_000, 1)
    deadline = time.monotonic() + PATIENCE_S
    while "NEARMETAL_CONNECT_MS" not in a.log:
        assert time.monotonic() < deadline, a.log
        time.sleep(0.05)
    b.signal(signal.SIGCONT)
    a.expect("posted", "s")
    b.post("recv", "r", "a", 100_000, 1)
    assert b.expect("done", "r", "recv")[2] == "good"
    a.expect("done", "s")
    exchange(a, b, tag=20)
    a.finish()
    way = a.way_to(b)
    assert way["channel"] == "net"
    assert "no answer within 300 ms" in way["reason"]
    assert any("NEARMETAL_CONNECT_MS" in line for line in a.log_lines), a.log


@by_channel
def test_a_stop_in_the_middle_of_a_message_loses_nothing(arena: Arena, channels: str) -> None:
    a, b = arena.pair(CHANNELS=channels, KEEPALIVE_MS="200")
    b.post("recv", "r", "a", SIZE, 1)
    b.tell("await", "r", MIDWAY)
    a.post("send", "s", "b", SIZE, 1)
    b.expect("midway", "r")
    b.tell("resume")
    for stopped in (a, b):
        stopped.signal(signal.SIGSTOP)
        time.sleep(0.5)
        stopped.signal(signal.SIGCONT)
    assert b.expect("done", "r", "recv")[2] == "good"
    a.expect("done", "s", "send")
    exchange(a, b, tag=20)


@by_channel
def test_unread_messages_outlive_an_orderly_close(arena: Arena, channels: str) -> None:
    a, b = arena.pair(CHANNELS=channels)
    exchange(a, b)
    a.tell("pause")
    a.expect("paused")
    for number in range(30):
        b.post("send", f"s{number}", "a", 3000, number)
        b.expect("done", f"s{number}")
    b.tell("close")
    assert channels != "self,shm" or b.expect("closed") == ["0"]
    a.tell("resume")
    for number in range(30):
        a.post("recv", f"r{number}", "b", 3000, number)
        assert a.expect("done", f"r{number}", "recv") == ["3000", str(number), "good"]
    assert channels == "self,shm" or b.expect("closed") == ["0"]


@by_channel
def test_a_directed_receive_ends_when_its_peer_closes(arena: Arena, channels: str) -> None:
    a, b = arena.pair(CHANNELS=channels)
    exchange(a, b)
    a.post("recv", "r", "b", 8, 1)
    assert b.finish() == 0
    assert a.expect("error", "r")[0] == "104"
    assert not a.log_lines, "an orderly close is nothing to complain about"


@by_channel
def test_a_late_joiner_meets_everybody(arena: Arena, channels: str) -> None:
    a, b = arena.pair(CHANNELS=channels)
    exchange(a, b)
    c = arena.peer("c", CHANNELS=channels).knows(a, b)
    a.knows(c)
    b.knows(c)
    exchange(a, c, tag=20)
    exchange(c, b, tag=30)


@by_channel
@pytest.mark.parametrize("crash", [False, True], ids=["closed", "crashed"])
def test_a_restarted_process_is_somebody_else(arena: Arena, channels: str, crash: bool) -> None:
    a, b = arena.pair(CHANNELS=channels, KEEPALIVE_MS="200")
    exchange(a, b)
    if crash:
        b.kill()
    else:
        assert b.finish() == 0
    again = arena.peer("again", CHANNELS=channels).knows(a)
    a.knows(again)
    a.tell("send", "s", "b", 8, 1)
    is_sent(a, "s", "done")
    a.tell("send", "t", "b", 8, 1)
    expect_unreachable(a, "t")
    exchange(a, again, tag=40)


def test_endpoints_come_and_go_without_a_trace(arena: Arena) -> None:
    a, b = arena.start("a", {}), arena.start("b", {})
    before: list[int] = []
    for _round in range(3):
        open_all(a, b)
        a.knows(b)
        b.knows(a)
        exchange(a, b)
        a.tell("close")
        b.tell("close")
        a.expect("closed")
        b.expect("closed")
        assert not arena.sockets()
        before.append(a.fds())
    # The first round loads libraries and opens what stays open; the others add nothing.
    assert before[1] == before[2]


@pytest.mark.parametrize("limit", [8, 10, 14])
def test_too_few_descriptors_are_an_answer_in_words(arena: Arena, limit: int) -> None:
    b = arena.peer("b", CONNECT_MS="500")
    a = arena.start("a", {}, prefix=("prlimit", f"--nofile={limit}:{limit}")).open().knows(b)
    b.knows(a)
    a.tell("send", "s", "b", 100, 1)
    if is_sent(a, "s", "posted"):
        b.post("recv", "r", "a", 100, 1)
        assert b.expect("done", "r", "recv")[2] == "good"
    assert a.finish() == 0
    assert "Too many open files" in a.log
