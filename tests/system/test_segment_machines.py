# SPDX-License-Identifier: Apache-2.0
"""Memory between two real virtual machines over one virtio-pmem region that both write to.

The same over two ivshmem devices each: test_image_boot.py, whose machines have them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.system import segment_checks as segment
from tests.system.machines import ROOT, VIRTIO_PMEM, Machine, Shared, Yard, built_image

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.system, pytest.mark.timeout(2400)]

NAMES = ("vm1", "vm2")
PART = 16 << 20
POKE = ROOT / "build/c/tests/system/segment_poke"


class Pair:
    """Two machines, and what they share."""

    def __init__(self, yard: Yard) -> None:
        self.shared = Shared.create(yard.memory("segment"), 2, PART, VIRTIO_PMEM)
        for part, name in enumerate(NAMES):
            seed = yard.seed(name, NAMES, segment=self.shared.seed(part))
            yard.start(name, seed, self.shared.devices(part))
        self.machines: list[Machine] = [machine.ready() for machine in yard.machines]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    yard = Yard(tmp_path_factory.mktemp("pmem"), built_image())
    try:
        yield Pair(yard)
    finally:
        yard.end()


def test_the_unit_offers_one_region_for_reading_and_writing(pair: Pair) -> None:
    first, second = pair.machines
    told = first.tell("cat /run/nearmetal/segment.conf").splitlines()
    assert {"device = dax", "integrity = convention", "part = 0"} <= set(told)
    assert not any(line.startswith("own") for line in told)
    for machine in (first, second):
        assert machine.tell("stat -L -c '%F %a %G' /dev/nearmetal/all") == (
            "character special file 660 nearmetal"
        )
        machine.put(POKE, "/tmp/poke")
    options = first.tell("nearmetal-guest container", "root").splitlines()
    device = first.tell("readlink -f /dev/nearmetal/all")
    assert f"--device={device}:/dev/nearmetal/all:rw" in options
    assert not any(":/dev/nearmetal/own" in option for option in options)
    inside = pair.shared.offset(0) + PART - 64
    first.tell(f"/tmp/poke write /dev/nearmetal/all {inside} 4711")
    assert second.tell(f"/tmp/poke read /dev/nearmetal/all {inside}") == "4711"


def test_the_mapping_is_measured_and_taken(pair: Pair) -> None:
    segment.is_measured_and_taken(pair.machines, pair.shared)


def test_nobody_says_that_the_hypervisor_keeps_writers_apart(pair: Pair) -> None:
    segment.tries_what_the_hypervisor_does(pair.machines[0], pair.shared)


def test_two_machines_meet_in_the_segment(pair: Pair) -> None:
    segment.is_where_they_meet(pair.machines, pair.shared)


def test_random_traffic_goes_through_the_segment(pair: Pair) -> None:
    segment.carries_random_traffic(pair.machines)
