# SPDX-License-Identifier: Apache-2.0
"""`check performance` on virtual machines: the agents go there by ssh, and the slow one is named.

The machines are emulated and share the cores of this one. A quota of the control group slows the
QEMU of one of them, so its kernel sees nothing but time that passes.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.documents import check_document
from tests.system import hypervisors
from tests.system.check_speed import Blamed, blamed
from tests.system.processor_quota import group_with_quota
from tests.system.virtual_clusters import Place, places

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.system,
    pytest.mark.full,
    pytest.mark.root,
    pytest.mark.timeout(1800),
]

hypervisors.need()

NAMES = ("n1", "n2", "n3", "n4")
NODE = "n2"
"""The machine that is slowed."""

EACH = ", ".join(f"{{name: {name}, memory: 768 MiB, cpus: none}}" for name in NAMES)
SLOW_S = "200"
"""Limit of a measurement: emulated machines may need seconds to answer."""


@dataclass
class Ward:
    """A cluster of machines that is up."""

    place: Place
    spec: str

    def run(self, *options: str) -> dict[str, Any]:
        words = ("check", "performance", self.spec, "--timeout", SLOW_S, "--json", *options)
        with self.place.start(*words) as process:
            out, err = process.communicate(timeout=900)
        assert process.returncode in (0, 4), err
        found: dict[str, Any] = json.loads(out)
        check_document("check performance", found)
        return found

    def blamed(self, expected: Blamed, measured: str) -> Blamed:
        return blamed(lambda: self.run("--measure", measured), expected)

    def qemu(self, node: str) -> int:
        """Return the process of a machine."""
        (found,) = [
            pid
            for pid in self.place.host.machines()
            if f"guest=nearmetal.f.{node},".encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
        ]
        return found


@pytest.fixture(scope="module")
def ward(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ward]:
    with places(tmp_path_factory.mktemp("speed")) as place:
        spec = place.write(place.spec(f"segment: {{part: 2 MiB}}, nodes: [{EACH}]"))
        code, words = place.run("up", spec)
        assert code == 0, words
        yield Ward(place, spec)
        code, words = place.run("down", "--yes", spec)
        assert code == 0, words


def test_a_machine_with_a_quota_is_named_and_healthy_without_it(ward: Ward) -> None:
    slow = {("performance.processor", NODE)}
    with group_with_quota(percent=5) as group:
        (group / "cgroup.procs").write_text(str(ward.qemu(NODE)))
        try:
            assert ward.blamed(slow, "processor") == slow
        finally:
            (group.parent / "cgroup.procs").write_text(str(ward.qemu(NODE)))
    assert ward.blamed(set(), "processor") == set()


def test_pairs_of_machines_are_measured_and_kept_with_their_host(
    ward: Ward, tmp_path: Path
) -> None:
    kept = tmp_path / "kept"
    ward.run("--measure", "latency,bandwidth", "--output", str(kept))
    run = json.loads((kept / "performance.json").read_text())
    assert run["hosts"] == dict.fromkeys(NAMES, "h1")
    assert set(run["software"]) == set(NAMES)
    assert len(set(run["software"].values())) == 1
    for quantity in ("latency", "bandwidth"):
        turns = [turn for turn in run["screening"] if turn["quantity"] == quantity]
        met = {(a, b) for turn in turns for a, b, _ in turn["values"]}
        assert met == set(permutations(range(len(NAMES)), 2))
    again, words = ward.place.run("check", "analyse", str(kept), "--json", "--fail-at", "fault")
    assert again in (0, 4), words


def test_the_end_of_nearmetal_is_the_end_of_the_agents_in_machines(ward: Ward) -> None:
    with ward.place.start("check", "performance", ward.spec, "--timeout", SLOW_S) as running:
        try:
            deadline = time.monotonic() + 240
            while not left(ward) and time.monotonic() < deadline:
                time.sleep(0.5)
            assert left(ward)
        finally:
            running.kill()
            running.communicate(timeout=30)
    deadline = time.monotonic() + 120
    while (agents := left(ward)) and time.monotonic() < deadline:
        time.sleep(1.0)
    assert agents == ""


def left(ward: Ward) -> str:
    """Return the process numbers of the agents that measure in the first machine."""
    search = ("pgrep", "-f", "exec.sys.stdin")
    words = ward.place.run("exec", ward.spec, NAMES[0], "--", *search)[1].split()
    return " ".join(word for word in words if word.isdigit())
