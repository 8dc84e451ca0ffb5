# SPDX-License-Identifier: Apache-2.0
"""`check performance` of neighbours on real nodes: those that share a limit are named, no others.

Each node has a limit of its own, of processors or of its link. Then two of them share one: alone a
node gets as much as before, and beside its neighbour half of it.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.documents import check_document
from tests.system.check_speed import Blamed, blamed
from tests.system.local import Site, namespaces_of, site
from tests.system.processor_quota import group_with_quota

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

pytestmark = [
    pytest.mark.system,
    pytest.mark.full,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(os.geteuid() != 0, reason="limits are set as root"),
]

CORES = sorted(os.sched_getaffinity(0))
HOSTS = {"h1": ("n1", "n2"), "h2": ("n3", "n4"), "h3": ("n5", "n6"), "h4": ("n7", "n8")}
ONE_HOST = {"h1": ("n1", "n2", "n3", "n4", "n5")}
VICTIMS = ("n1", "n2")
OTHERS = ONE_HOST["h1"][2:]
PERIOD_US = 20_000
"""Short beside a value, which has 30 of these periods."""

LIMIT = ("tbf", "rate", "40mbit", "burst", "16kb", "latency", "50ms")


class NoisyWard:
    """A cluster that is up, and what is measured on it."""

    def __init__(self, place: Site, hosts: Mapping[str, Sequence[str]]) -> None:
        self.place = place
        lines = ["version: 1", "name: noise", "backend: local", "hosts:"]
        for host, nodes in hosts.items():
            lines += [f"  - name: {host}", "    nodes:"]
            lines += [f"      - {{name: {n}, shm: 16 MiB, cpus: {CORES}}}" for n in nodes]
        self.spec = place.write("spec.yaml", "\n".join([*lines, ""]))
        place.ok("up", self.spec)
        place.look(self.spec)
        self.pids = {n["name"]: n["pid"] for n in place.json("status", self.spec)["nodes"]}
        self.last: dict[str, Any] = {}

    def blamed(self, expected: Blamed, measured: str) -> Blamed:
        def run() -> dict[str, Any]:
            words = ("check", "performance", self.spec, "--measure", measured, "--json")
            done = self.place.run(*words, timeout=600)
            assert done.returncode in (0, 4), done.stderr
            self.last = json.loads(done.stdout)
            check_document("check performance", self.last)
            return self.last

        return blamed(run, expected)

    def agents(self, name: str) -> Iterator[str]:
        """Yield the processes of a node without process 1."""
        own = namespaces_of(self.pids[name])
        for entry in Path("/proc").glob("[0-9]*"):
            if int(entry.name) != self.pids[name] and namespaces_of(entry.name) == own:
                yield entry.name

    def enter(self, pid: int, *words: str) -> str:
        argv = ["nsenter", "-t", str(pid), "-n", "--", *words]
        return subprocess.run(argv, check=True, capture_output=True, text=True, timeout=30).stdout

    @contextlib.contextmanager
    def quotas(self, groups: Sequence[Sequence[str]]) -> Iterator[None]:
        """Give each of these groups of nodes a tenth of a processor."""
        ended = threading.Event()

        def move(made: Sequence[Path]) -> None:
            while not ended.wait(0.02):
                for group, nodes in zip(made, groups, strict=True):
                    for pid in [pid for name in nodes for pid in self.agents(name)]:
                        with contextlib.suppress(OSError):
                            (group / "cgroup.procs").write_text(pid)

        with contextlib.ExitStack() as stack:
            made = [
                stack.enter_context(group_with_quota(10, f"-{nodes[0]}", PERIOD_US))
                for nodes in groups
            ]
            mover = threading.Thread(target=move, args=(made,))
            mover.start()
            stack.callback(mover.join)
            stack.callback(ended.set)
            yield


@contextlib.contextmanager
def ward_of(hosts: Mapping[str, Sequence[str]]) -> Iterator[NoisyWard]:
    with site() as place:
        made = NoisyWard(place, hosts)
        yield made
        place.ok("down", "--yes", made.spec)
        place.assert_no_trace()


def test_nodes_that_share_a_quota_are_noisy_neighbours_and_others_are_not() -> None:
    check = "performance.neighbours_processor"
    noisy = {(check, name) for name in VICTIMS}
    with ward_of(ONE_HOST) as ward:
        with ward.quotas([VICTIMS, *([name] for name in OTHERS)]):
            assert ward.blamed(noisy, "neighbours_processor") == noisy
        (finding,) = [f for f in ward.last["findings"] if f["check"] == check]
        assert finding["about"] == "host h1"
        assert "host h1, beside n3, n4, n5; slow in" in finding["reason"]
        with ward.quotas([[name] for name in ONE_HOST["h1"]]):
            assert ward.blamed(set(), "neighbours_processor") == set()


@contextlib.contextmanager
def shared_link(ward: NoisyWard, nodes: Sequence[str]) -> Iterator[None]:
    """Put nodes behind one link of their own, which carries as much as one of them sends."""
    (record,) = ward.place.state.glob("clusters/*/init.json")
    bridge = json.loads(record.read_text())["pid"]

    def ip(*words: str) -> str:
        return ward.enter(bridge, "ip", *words)

    ends = {one["ifindex"]: one["ifname"] for one in json.loads(ip("-json", "link"))}
    ports = []
    for name in nodes:
        (own,) = json.loads(ward.enter(ward.pids[name], "ip", "-json", "link", "show", "eth0"))
        ports.append(ends[own["link_index"]])
    ip("link", "add", "br1", "type", "bridge")
    ip("link", "add", "up1", "type", "veth", "peer", "name", "down1")
    try:
        for link, master in (("up1", "br0"), ("down1", "br1"), *((p, "br1") for p in ports)):
            ip("link", "set", link, "master", master)
        for link in ("br1", "up1", "down1"):
            ip("link", "set", link, "up")
        for link in ("up1", "down1"):
            ward.enter(bridge, "tc", "qdisc", "add", "dev", link, "root", *LIMIT)
        yield
    finally:
        for port in ports:
            ip("link", "set", port, "master", "br0")
        ip("link", "del", "up1")
        ip("link", "del", "br1")


def test_nodes_that_share_a_link_are_noisy_neighbours_and_others_are_not() -> None:
    check = "performance.neighbours_bandwidth"
    noisy = {(check, name) for name in VICTIMS}
    with ward_of(HOSTS) as ward:
        for pid in ward.pids.values():
            ward.enter(pid, "tc", "qdisc", "add", "dev", "eth0", "root", *LIMIT)
        with shared_link(ward, VICTIMS):
            assert ward.blamed(noisy, "neighbours_bandwidth") == noisy
        (finding,) = [f for f in ward.last["findings"] if f["check"] == check]
        assert finding["about"] == "network of h1"
        assert "network of h1, beside each other" in finding["reason"]
        assert ward.blamed(set(), "neighbours_bandwidth") == set()
