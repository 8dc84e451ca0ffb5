# SPDX-License-Identifier: Apache-2.0
"""The data path's own conformance suites, with each side in a virtual machine of its own.

The transport suite is that of the unit tests, whose second node is on the other machine: what it
asks for goes there over TCP, what is tested goes through the segment. The fabric suite runs over
libfabric; its ranks find each other by files, and may exchange nothing but through the segment.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from nearmetal.job.stats import read_stats
from tests.system.machines import (
    IVSHMEM,
    ROOT,
    VIRTIO_PMEM,
    Machine,
    Shared,
    Yard,
    built_image,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.system, pytest.mark.full, pytest.mark.timeout(5400)]

NAMES = ("vm1", "vm2")
PART = 64 << 20
BUILD = ROOT / "build/c"
SUITE = BUILD / "tests/unit/test_transport"
OTHER = BUILD / "tests/unit/far_node"
TRAFFIC = BUILD / "tests/fabric/fabric_traffic"
CORNERS = BUILD / "tests/system/fabric_corners"
PORT = 7411
PATIENCE_S = 3000
ONLY = "FI_PROVIDER=nearmetal NEARMETAL_CHANNELS=self,segment"


@dataclass
class Pair:
    yard: Yard
    shared: Shared
    machines: list[Machine]


@pytest.fixture(scope="module", params=[IVSHMEM, VIRTIO_PMEM])
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pair]:
    yard = Yard(tmp_path_factory.mktemp(request.param), built_image())
    shared = Shared.create(yard.memory("segment"), 2, PART, request.param)
    try:
        for part, name in enumerate(NAMES):
            seed = yard.seed(name, NAMES, segment=shared.seed(part))
            yard.start(name, seed, [*shared.devices(part), *yard.share_device()])
        yield Pair(yard, shared, [machine.ready().mount_share() for machine in yard.machines])
    finally:
        yard.end()


def programs(pair: Pair, *paths: Path) -> None:
    for machine in pair.machines:
        for path in paths:
            machine.put(path, f"/tmp/{path.name}")


def test_the_transport_suite(pair: Pair) -> None:
    programs(pair, SUITE, OTHER)
    first, second = pair.machines
    second.tell(
        f"/tmp/far_node {PORT} >/tmp/far.log 2>&1 </dev/null &"
        " until grep -q listens /tmp/far.log; do sleep 0.1; done"
    )
    try:
        cases = [c for c in first.tell("/tmp/test_transport --list").split() if "segment_" in c]
        done = first.run(
            f"NM_TEST_OTHER=10.9.0.12:{PORT} /tmp/test_transport {' '.join(cases)}",
            timeout_s=PATIENCE_S,
        )
        said = done.stdout.decode()
        assert done.returncode == 0, said + done.stderr.decode() + second.tell("cat /tmp/far.log")
        assert len(cases) >= 12
        assert [line for line in said.splitlines() if line.startswith("ok ")] == [
            f"ok {case}" for case in cases
        ]
    finally:
        second.tell("pkill far_node; true")


def counted(folder: Path) -> list[dict[str, Any]]:
    """Return what the endpoints of different processes say of each other."""
    return [
        peer
        for endpoint in read_stats(folder)
        for peer in endpoint["peers"]
        if peer["channel"] != "self"
    ]


def test_the_fabric_suite(pair: Pair) -> None:
    programs(pair, TRAFFIC)
    for name in ("meet", "stats"):
        pair.yard.share_folder(name)

    def run(rank: int) -> str:
        done = pair.machines[rank].run(
            f"{ONLY} NEARMETAL_STATS_DIR=/share/stats /tmp/fabric_traffic -n 2 -r {rank}"
            f" -d /share/meet -m 1500 -w {PATIENCE_S}",
            timeout_s=PATIENCE_S + 60,
        )
        said = done.stdout.decode() + done.stderr.decode()
        assert done.returncode == 0, f"rank {rank}: {said}"
        return said

    with ThreadPoolExecutor() as pool:
        said, _ = pool.map(run, range(2))
    assert "traffic OK: 25 cases, 2 ranks, provider nearmetal" in said
    peers = counted(pair.yard.share / "stats")
    assert peers
    for peer in peers:
        # Who was never sent anything was not looked for.
        if peer["sent_messages"]:
            assert (peer["relation"], peer["channel"]) == ("host", "segment"), peer
        assert set(peer["channels"]) <= {"segment"}, peer
        assert peer["quarantines"] == 0, peer
        assert not peer["fallbacks"], peer
    assert sum(peer["sent_messages"] for peer in peers) > 3000


def test_the_corners_of_libfabric(pair: Pair) -> None:
    """Of one process; its endpoints are neighbours in the segment, for there is no other way."""
    programs(pair, CORNERS)
    done = pair.machines[0].run(f"{ONLY} /tmp/fabric_corners", timeout_s=PATIENCE_S)
    assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()
    assert done.stdout.startswith(b"corners OK: ")


def test_nothing_of_the_suites_is_left_in_the_segment(pair: Pair) -> None:
    for machine in pair.machines:
        told = json.loads(machine.tell("nearmetal-segment show --json /dev/nearmetal/all"))
        states = {slot["state"] for part in told["parts"] for slot in part.get("slots", ())}
        assert "run" not in states, told
