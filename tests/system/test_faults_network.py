# SPDX-License-Identifier: Apache-2.0
"""Hosts that vanish from a real network: nobody says goodbye, and no kernel answers any more."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.system.faults.arena import Arena, exchange, open_all
from tests.system.faults.peer import ECONNRESET, PATIENCE_S, PROVIDER_DIR, Peer

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces are made as root"),
]

SIZE = 64 << 20
MIDWAY = 1 << 20
KNOBS = {"CHANNELS": "self,net", "KEEPALIVE_MS": "200", "NET_TIMEOUT_MS": "2000"}


def run(*argv: str) -> None:
    subprocess.run(argv, check=True, capture_output=True, timeout=PATIENCE_S)


@dataclass
class Network:
    """Hosts "a" and "b" on a bridge, each a network namespace that a sleeping process holds."""

    holders: dict[str, subprocess.Popen[bytes]]

    def enter(self, host: str) -> tuple[str, ...]:
        return ("nsenter", f"--net=/proc/{self.holders[host].pid}/ns/net")

    def ip(self, host: str, *words: str) -> None:
        run(*self.enter(host), "ip", *words)

    def cut(self) -> None:
        """Take b off the bridge: links stay up, packets go nowhere."""
        self.ip("bridge", "link", "set", "to-b", "nomaster")

    def mend(self) -> None:
        self.ip("bridge", "link", "set", "to-b", "master", "br0")


@pytest.fixture
def network() -> Iterator[Network]:
    with contextlib.ExitStack() as stack:
        net = Network({})
        for host in ("bridge", "a", "b"):
            holder = subprocess.Popen(
                ["unshare", "--net", "sh", "-c", "echo; exec sleep 600"], stdout=subprocess.PIPE
            )
            stack.callback(holder.wait)
            stack.callback(holder.kill)
            assert holder.stdout
            holder.stdout.readline()
            stack.callback(holder.stdout.close)
            net.holders[host] = holder
            net.ip(host, "link", "set", "lo", "up")
        net.ip("bridge", "link", "add", "br0", "type", "bridge")
        net.ip("bridge", "link", "set", "br0", "up")
        for number, host in enumerate(("a", "b"), start=1):
            pid = str(net.holders[host].pid)
            port = f"to-{host}"
            net.ip("bridge", "link", "add", port, "type", "veth", "peer", "eth0", "netns", pid)
            net.ip("bridge", "link", "set", port, "master", "br0", "up")
            net.ip(host, "address", "add", f"10.99.0.{number}/24", "dev", "eth0")
            net.ip(host, "link", "set", "eth0", "up")
        yield net


def met(network: Network, arena: Arena, knobs: dict[str, str]) -> tuple[Peer, Peer]:
    """Return two peers on two hosts, which have exchanged messages."""
    a = arena.start("a", knobs, prefix=network.enter("a"))
    b = arena.start("b", knobs, prefix=network.enter("b"))
    open_all(a, b)
    a.knows(b)
    b.knows(a)
    exchange(a, b)
    return a, b


@pytest.fixture
def pair(network: Network, arena: Arena) -> tuple[Peer, Peer]:
    return met(network, arena, KNOBS)


def expect_reset(survivor: Peer, ident: str) -> None:
    assert survivor.expect("error", ident)[0] == str(ECONNRESET)
    (line,) = (line for line in survivor.log_lines if " is lost: " in line)
    assert "NEARMETAL_NET_TIMEOUT_MS" in line


def end(*peers: Peer) -> None:
    for peer in peers:
        peer.kill()


def test_a_receive_from_a_host_that_vanishes_ends(
    network: Network, pair: tuple[Peer, Peer]
) -> None:
    a, b = pair
    a.post("recv", "r", "b", 8, 1)
    network.cut()
    expect_reset(a, "r")
    end(a, b)


def test_a_receive_from_anyone_ends_when_a_host_vanishes(
    network: Network, pair: tuple[Peer, Peer]
) -> None:
    a, b = pair
    a.post("recv", "r", "any", 8, 1)
    network.cut()
    expect_reset(a, "r")
    end(a, b)


def test_a_host_that_vanished_before_anyone_asked_is_lost(network: Network, arena: Arena) -> None:
    """Not over TCP, where a lifeline that was never seen to stand would prove nothing."""
    adapter = PROVIDER_DIR.parents[1] / "tests/device"
    knobs = KNOBS | {"NET": "nmadapter", "FI_PROVIDER_PATH": f"{PROVIDER_DIR}:{adapter}"}
    a, b = met(network, arena, knobs)
    network.cut()
    deadline = time.monotonic() + PATIENCE_S
    while lines(network, "a") and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not lines(network, "a")
    a.post("recv", "r", "b", 8, 1)
    expect_reset(a, "r")
    end(a, b)


def lines(network: Network, host: str) -> list[str]:
    """Return the connections with a keepalive that the kernel of a host still believes in."""
    argv = (*network.enter(host), "ss", "-Htno", "state", "established", "dport", "!=", ":0")
    done = subprocess.run(argv, check=True, capture_output=True, text=True, timeout=PATIENCE_S)
    return [line for line in done.stdout.splitlines() if "timer:(keepalive" in line]


def test_a_host_vanishes_with_bytes_on_their_way_to_it(
    network: Network, pair: tuple[Peer, Peer]
) -> None:
    a, b = pair
    b.post("recv", "r", "a", SIZE, 1)
    b.tell("await", "r", MIDWAY)
    a.post("send", "s", "b", SIZE, 1)
    b.expect("midway", "r")
    network.cut()
    b.tell("resume")
    expect_reset(a, "s")
    expect_reset(b, "r")
    end(a, b)


def test_a_host_vanishes_from_under_a_flood_of_small_messages(
    network: Network, pair: tuple[Peer, Peer]
) -> None:
    a, b = pair
    b.tell("pause")
    b.expect("paused")
    a.tell("flood", "b", 512, 10_000_000, 1)
    a.expect("flooding")
    network.cut()
    assert a.expect("flooded")[1] == str(ECONNRESET)
    end(a, b)


def test_a_peer_that_computes_for_longer_than_the_time_out_is_not_lost(
    pair: tuple[Peer, Peer],
) -> None:
    a, b = pair
    a.post("recv", "r", "b", 8, 1)
    b.signal(signal.SIGSTOP)
    assert not a.happened("error", within_s=4.5)
    b.signal(signal.SIGCONT)
    b.post("send", "s", "a", 8, 1)
    assert a.expect("done", "r", "recv")[2] == "good"
    assert not a.log_lines, a.log


def test_a_short_outage_is_survived(network: Network, pair: tuple[Peer, Peer]) -> None:
    a, b = pair
    a.post("recv", "r", "b", 8, 1)
    network.cut()
    assert not a.happened("error", within_s=0.7)
    network.mend()
    assert not a.happened("error", within_s=3)
    b.post("send", "s", "a", 8, 1)
    assert a.expect("done", "r", "recv")[2] == "good"


def test_more_watchers_than_the_queue_of_a_lifeline_holds(network: Network, arena: Arena) -> None:
    run(*network.enter("b"), "sysctl", "-qw", "net.core.somaxconn=4")
    b = arena.start("b", KNOBS, prefix=network.enter("b")).open()
    watchers = [arena.start(f"w{i}", KNOBS, prefix=network.enter("a")) for i in range(6)]
    open_all(*watchers)
    for watcher in watchers:
        watcher.knows(b)
        b.knows(watcher)
        exchange(watcher, b)
        watcher.post("recv", "r", "b", 8, 1)
    for watcher in watchers:
        assert not watcher.happened("error", within_s=1)
    for watcher in watchers:
        b.post("send", f"to-{watcher.name}", watcher.name, 8, 1)
        assert watcher.expect("done", "r", "recv")[2] == "good"


# Connects to a port again and again, and holds what it gets, until its input ends.
STRANGERS = """
import select, socket, sys
held = []
print(flush=True)
while not select.select([sys.stdin], [], [], 0.01)[0]:
    for _ in range(20):
        one = socket.socket()
        one.setblocking(False)
        one.connect_ex((sys.argv[1], int(sys.argv[2])))
        held.append(one)
    held = held[-int(sys.argv[3]):]
"""


@contextlib.contextmanager
def strangers_at_the_lifeline(network: Network, peer: Peer, nr: int = 200) -> Iterator[None]:
    """Fill the queue of the lifeline of a peer on host b, and keep it full."""
    address = bytes.fromhex(peer.address)
    inner = address[16 : 16 + address[1]]
    host, port = socket.inet_ntoa(inner[4:8]), str(int.from_bytes(inner[-2:], "big"))
    with subprocess.Popen(
        [*network.enter("a"), sys.executable, "-c", STRANGERS, host, port, str(nr)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as flood:
        assert flood.stdin
        assert flood.stdout
        flood.stdout.readline()
        try:
            yield
        finally:
            flood.stdin.close()


@pytest.fixture
def crowded(network: Network, arena: Arena) -> Iterator[tuple[Peer, Peer]]:
    """Yield a pair of which b is stopped, with strangers who fill the queue of its lifeline."""
    run(*network.enter("b"), "sysctl", "-qw", "net.core.somaxconn=4")
    a = arena.start("a", KNOBS, prefix=network.enter("a"))
    b = arena.start("b", KNOBS, prefix=network.enter("b"))
    open_all(a, b)
    a.knows(b)
    b.knows(a)
    exchange(a, b)
    b.signal(signal.SIGSTOP)
    with strangers_at_the_lifeline(network, b):
        time.sleep(1)  # they are there before a
        a.post("recv", "r", "b", 8, 1)
        yield a, b


def test_strangers_at_a_lifeline_end_no_peer_that_computes(crowded: tuple[Peer, Peer]) -> None:
    a, b = crowded
    assert not a.happened("error", within_s=6)
    b.signal(signal.SIGCONT)
    b.post("send", "s", "a", 8, 1)
    assert a.expect("done", "r", "recv")[2] == "good"
    assert not a.log_lines, a.log


def test_a_host_that_vanishes_behind_strangers_is_lost(
    network: Network, crowded: tuple[Peer, Peer]
) -> None:
    a, b = crowded
    assert not a.happened("error", within_s=1)
    network.cut()
    expect_reset(a, "r")
    end(a, b)


def test_a_process_that_dies_behind_strangers_is_lost(crowded: tuple[Peer, Peer]) -> None:
    a, b = crowded
    assert not a.happened("error", within_s=1)
    b.kill()
    assert a.expect("error", "r")[0] == str(ECONNRESET)
    end(a)


def test_strangers_at_a_lifeline_leave_descriptors_to_the_program(
    network: Network, arena: Arena
) -> None:
    run(*network.enter("b"), "sysctl", "-qw", "net.core.somaxconn=16")
    limit = 96
    few = ("prlimit", f"--nofile={limit}:{limit}")
    a = arena.start("a", KNOBS, prefix=network.enter("a"))
    b = arena.start("b", KNOBS, prefix=(*network.enter("b"), *few))
    open_all(a, b)
    a.knows(b)
    b.knows(a)
    exchange(a, b)
    before = b.fds()
    seen: list[int] = []
    deadline = time.monotonic() + PATIENCE_S
    with strangers_at_the_lifeline(network, b, 800):
        # It takes connections out of the queue while it makes progress, and then goes on.
        while len(seen) < 100 and time.monotonic() < deadline:
            exchange(a, b, size=1 << 20)
            held = b.fds() - before
            seen += [held] if held > 0 else []
    assert seen, "no stranger was taken out of the queue"
    # It may have opened its own lifeline meanwhile.
    assert max(seen) <= limit // 8 + 1
