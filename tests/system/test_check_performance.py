# SPDX-License-Identifier: Apache-2.0
"""`check performance` on real nodes: what is slowed is named, nobody else is, and the remedy helps.

No time is compared with a limit: each node is compared with the others of the same turn. A finding
about a healthy node is allowed in one of twenty runs, so it counts only if a second run has it too.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.documents import check_document
from tests.system.check_speed import Blamed, blamed
from tests.system.local import Site, site
from tests.system.processor_quota import group_with_quota

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(os.geteuid() != 0, reason="faults are injected as root"),
]

CORES = sorted(os.sched_getaffinity(0))
NODES = ("n1", "n2", "n3", "n4", "n5")
NODE = "n3"
"""The node that gets the faults."""

SPEC = "version: 1\nname: speed\nbackend: local\nhosts:\n  - name: h1\n    nodes:\n" + "".join(
    f"      - {{name: {name}, shm: 16 MiB, slots: {len(CORES)}, cpus: {CORES}}}\n" for name in NODES
)
"""All nodes share all cores: a core that other programs use slows no node more than another."""


@dataclass
class Ward:
    """A cluster, and the processes 1 of its nodes."""

    place: Site
    spec: str
    pids: dict[str, int]
    last: dict[str, Any] = field(default_factory=dict)
    """What the last run printed."""

    def run(self, *options: str) -> dict[str, Any]:
        done = self.place.run("check", "performance", self.spec, "--json", *options, timeout=240)
        assert done.returncode in (0, 4), done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        check_document("check performance", found)
        grave = any(one["severity"] in ("fault", "warning") for one in found["findings"])
        assert (done.returncode == 4) == grave
        self.last = found
        return found

    def blamed(self, expected: Blamed, measured: str, kept: Path | None = None) -> Blamed:
        """Measure, and return what is blamed. `kept`: for the collection of the last run."""

        def run() -> dict[str, Any]:
            if kept is not None:
                shutil.rmtree(kept, ignore_errors=True)
            output = () if kept is None else ("--output", str(kept))
            return self.run("--measure", measured, *output)

        return blamed(run, expected)


@pytest.fixture(scope="module")
def ward() -> Iterator[Ward]:
    with site() as place:
        spec = place.write("spec.yaml", SPEC)
        place.ok("up", spec)
        pids = {node["name"]: node["pid"] for node in place.json("status", spec)["nodes"]}
        place.look(spec)
        yield Ward(place, spec, pids)
        place.ok("down", "--yes", spec)
        place.assert_no_trace()


def of_node(ward: Ward, name: str) -> set[str]:
    """Return the processes of a node that a run has started, without process 1."""
    own = Path(f"/proc/{ward.pids[name]}/ns/pid").readlink()
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != ward.pids[name]:
            with contextlib.suppress(OSError):
                if (entry / "ns/pid").readlink() == own:
                    found.add(entry.name)
    return found


AGENT = b"exec(sys.stdin"
"""In the command line of each agent that measures; those that read facts, before, lack it."""


def agents_of(ward: Ward, name: str) -> set[str]:
    """Return the agents that measure in a node, without the processes that they fork."""
    found = set()
    for pid in of_node(ward, name):
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes()
            parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]
            if AGENT in words and Path(f"/proc/{parent}/cmdline").read_bytes() != words:
                found.add(pid)
    return found


def assert_nothing_left(ward: Ward) -> None:
    """Assert that what a run has started in the nodes ends; its processes may need a moment."""
    deadline = time.monotonic() + 20
    while any(of_node(ward, name) for name in NODES) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert [name for name in NODES if of_node(ward, name)] == []


@contextlib.contextmanager
def quota(ward: Ward, name: str) -> Iterator[None]:
    """Give what runs in a node a small part of a processor."""
    ended = threading.Event()

    def move(group: Path) -> None:
        while not ended.wait(0.02):
            for pid in of_node(ward, name):
                with contextlib.suppress(OSError):
                    (group / "cgroup.procs").write_text(pid)

    with group_with_quota(percent=5) as group:
        mover = threading.Thread(target=move, args=(group,))
        mover.start()
        try:
            yield
        finally:
            ended.set()
            mover.join()


@pytest.mark.full
def test_a_node_with_a_quota_is_named_and_healthy_without_it(ward: Ward) -> None:
    slow = {("performance.processor", NODE)}
    with quota(ward, NODE):
        assert ward.blamed(slow, "processor") == slow
    assert ward.blamed(set(), "processor") == set()


@contextlib.contextmanager
def slow_link(ward: Ward, name: str) -> Iterator[None]:
    """Bound what a node sends."""
    enter = ["nsenter", "-t", str(ward.pids[name]), "-n", "--"]
    shown = subprocess.run(
        [*enter, "ip", "-json", "link"], check=True, capture_output=True, timeout=30
    )
    (link,) = [one["ifname"] for one in json.loads(shown.stdout) if one["link_type"] == "ether"]
    root = ["tc", "qdisc", "add", "dev", link, "root"]
    limit = ["tbf", "rate", "100mbit", "burst", "64kb", "latency", "50ms"]
    subprocess.run([*enter, *root, *limit], check=True, timeout=30)
    try:
        yield
    finally:
        remove = ["tc", "qdisc", "del", "dev", link, "root"]
        subprocess.run([*enter, *remove], check=True, timeout=30)


@pytest.mark.full
def test_a_slow_link_is_named_with_its_direction_and_healthy_after_the_remedy(
    ward: Ward, tmp_path: Path
) -> None:
    slow = {("performance.bandwidth", NODE)}
    kept = tmp_path / "kept"
    with slow_link(ward, NODE):
        assert ward.blamed(slow, "bandwidth", kept) == slow
    found = ward.last["findings"]
    assert "link of the node, sends" in [f["about"] for f in found if f["nodes"] == [NODE]]
    again = ward.place.run("check", "analyse", str(kept), "--json", "--fail-at", "warning")
    assert again.returncode == 4, again.stderr
    analysed = json.loads(again.stdout)["findings"]
    assert [f for f in analysed if f["check"].startswith("performance.")] == found
    assert ward.blamed(set(), "bandwidth") == set()


def test_a_node_that_hangs_costs_one_finding(ward: Ward) -> None:
    ended = threading.Event()
    stopped: set[str] = set()

    def stop() -> None:
        while not ended.wait(0.02):
            for pid in agents_of(ward, NODE):
                with contextlib.suppress(OSError):
                    os.kill(int(pid), signal.SIGSTOP)
                    stopped.add(pid)

    stopper = threading.Thread(target=stop)
    stopper.start()
    try:
        found = ward.run("--measure", "processor")
    finally:
        ended.set()
        stopper.join()
    answers = [f for f in found["findings"] if f["check"] == "performance.answer"]
    assert stopped
    assert [f["nodes"] for f in answers] == [[NODE]]
    assert_nothing_left(ward)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_the_end_of_nearmetal_is_the_end_of_its_agents(ward: Ward, number: int) -> None:
    with ward.place.start("check", "performance", ward.spec) as running:
        try:
            deadline = time.monotonic() + 120
            while not all(agents_of(ward, name) for name in NODES):
                assert running.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.05)
            time.sleep(1.0)
            running.send_signal(number)
            running.communicate(timeout=30)
        finally:
            running.kill()
    assert running.returncode == (130 if number == signal.SIGINT else -9)
    assert_nothing_left(ward)
