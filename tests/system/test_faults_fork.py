# SPDX-License-Identifier: Apache-2.0
"""A program forks: its child holds nothing of the parent's endpoint and tears nothing down."""

import os
import signal
import time

import pytest

from tests.system.faults.arena import Arena, exchange
from tests.system.faults.peer import ECONNRESET

pytestmark = pytest.mark.system

by_channel = pytest.mark.parametrize("channels", ["self,shm", "self,net"], ids=["shm", "net"])


@by_channel
@pytest.mark.parametrize(("how", "thread"), [("exit", "off"), ("exec", "off"), ("exit", "on")])
def test_a_child_that_ends_changes_nothing(
    arena: Arena, channels: str, how: str, thread: str
) -> None:
    # Nobody watches anybody meanwhile: that would take a descriptor, once.
    a, b = arena.pair(CHANNELS=channels, KEEPALIVE_MS="600000", MOVE_THREAD=thread)
    exchange(a, b)
    sockets, fds = arena.sockets(), a.fds()
    b.post("recv", "r", "a", 64 << 20, 1)
    a.post("send", "s", "b", 64 << 20, 1)
    a.tell("fork", how)
    (child,) = a.expect("forked")
    assert a.expect("child", child) == ["0"]
    assert b.expect("done", "r", "recv")[2] == "good"
    a.expect("done", "s", "send")
    assert arena.sockets() == sockets
    assert a.fds() == fds
    exchange(a, b, tag=20)
    assert not b.log_lines, b.log


@by_channel
def test_a_child_that_lives_on_does_not_hide_the_death_of_its_parent(
    arena: Arena, channels: str
) -> None:
    a, b = arena.pair(CHANNELS=channels, KEEPALIVE_MS="200")
    exchange(a, b)
    a.tell("fork", "stay")
    (child,) = a.expect("forked")
    b.post("recv", "r", "a", 8, 1)
    try:
        a.kill()
        assert b.expect("error", "r")[0] == str(ECONNRESET)
        os.kill(int(child), 0)
    finally:
        os.kill(int(child), signal.SIGKILL)
    left = [b.identity] if "shm" in channels else []
    deadline = time.monotonic() + 5
    while arena.sockets() != left and time.monotonic() < deadline:
        time.sleep(0.05)
    assert arena.sockets() == left
