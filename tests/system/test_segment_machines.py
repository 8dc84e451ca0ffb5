# SPDX-License-Identifier: Apache-2.0
"""Memory between two real virtual machines: two ivshmem devices each, or one virtio-pmem region."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from tests.system.machines import ROOT, Machine, Shared, Yard, built_image

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.system, pytest.mark.timeout(2400)]

NAMES = ("vm1", "vm2")
MIB = 1 << 20
PART = 16 * MIB
TRAFFIC = ROOT / "build/programs/openmpi5/mpi_traffic"
TOOL = ROOT / "build/c/src/tools/nearmetal-segment"
DEVICES = ("ivshmem", "virtio-pmem")


@dataclass(frozen=True)
class Region:
    """A segment in one virtio-pmem region that every machine maps read-write."""

    path: Path
    token: str

    def seed(self, part: int) -> dict[str, Any]:
        return {"device": "dax", "token": self.token, "nr_parts": 2, "part": part,
                "part_size": PART, "size": self.path.stat().st_size}  # fmt: skip

    def devices(self, _part: int) -> list[str]:
        size = self.path.stat().st_size
        return [
            "-m", "slots=2,maxmem=4G",
            "-object", f"memory-backend-file,id=pmem,mem-path={self.path},share=on,size={size}",
            "-device", "virtio-pmem-pci,memdev=pmem",
        ]  # fmt: skip


def region(path: Path) -> Region:
    token = "5e6" + "0" * 29
    subprocess.run(
        [TOOL, "create", path, "--parts", "2", "--part-size", str(PART), "--lead", "2M",
         "--token", token],
        check=True, timeout=60,
    )  # fmt: skip
    return Region(path, token)


@dataclass
class Pair:
    device: str
    path: Path
    machines: list[Machine]


@pytest.fixture(scope="module", params=DEVICES)
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp(request.param)
    yard = Yard(folder, built_image())
    path = folder / "segment"
    shared = Shared.create(path, 2, PART) if request.param == "ivshmem" else region(path)
    try:
        machines = [
            yard.start(name, yard.seed(name, NAMES, segment=shared.seed(part)), shared.devices(part),
                       append="no_timer_check")
            for part, name in enumerate(NAMES)
        ]  # fmt: skip
        yield Pair(request.param, path, [machine.ready() for machine in machines])
    finally:
        yard.end()


def test_the_mapping_is_measured_and_taken(pair: Pair) -> None:
    for part, machine in enumerate(pair.machines):
        told = json.loads(machine.tell("nearmetal-info --json"))["segment"]
        assert told["usable"], told
        assert (told["part"], told["nr_parts"], told["part_size"]) == (part, 2, PART)
        assert told["mapping"].startswith("write-back: a load ")
        enforced = pair.device == "ivshmem"
        assert told["integrity"] == ("enforced" if enforced else "by convention")


def test_the_dropped_write_is_tried_where_that_is_allowed(pair: Pair) -> None:
    """Root may open the whole for writing, so it finds out by itself what the hypervisor does."""
    machine = pair.machines[0]
    conf = "/tmp/root.conf"
    machine.tell(f"sed 's,^lock = .*,lock = /tmp/root.lock,; /^integrity/d'"
                 f" /run/nearmetal/segment.conf >{conf}; chmod 0644 {conf};"
                 " chmod 0660 $(readlink -f /dev/nearmetal/all)", "root")  # fmt: skip
    try:
        told = machine.tell(f"NEARMETAL_SEGMENT={conf} nearmetal-info --json", "root")
    finally:
        mode = "0440" if pair.device == "ivshmem" else "0660"
        machine.tell(f"chmod {mode} $(readlink -f /dev/nearmetal/all)", "root")
    segment = json.loads(told)["segment"]
    expected = {
        "ivshmem": ("enforced", "a write through the mapping of the whole was dropped"),
        "virtio-pmem": ("by convention", "one region for all: every machine can write all of it"),
    }
    assert (segment["integrity"], segment["integrity_reason"]) == expected[pair.device]


def begin_to_meet(machine: Machine) -> str:
    """Make an endpoint in the background; returns its address."""
    machine.tell(
        "rm -f /tmp/in /tmp/out; mkfifo /tmp/in; (sleep 600 >/tmp/in 2>/dev/null </dev/null &"
        " nearmetal-info meet </tmp/in >/tmp/out 2>/tmp/err &); until [ -s /tmp/out ]; do sleep 0.1; done"
    )
    address: str = json.loads(machine.tell("head -n 1 /tmp/out"))["address"]
    return address


def test_two_machines_meet_in_the_segment(pair: Pair) -> None:
    addresses = [begin_to_meet(machine) for machine in pair.machines]
    try:
        for machine, address in zip(pair.machines, reversed(addresses), strict=True):
            machine.tell(f"echo '{address} peer' >/tmp/in;"
                         " until [ $(wc -l </tmp/out) = 2 ]; do sleep 0.1; done")  # fmt: skip
            met = json.loads(machine.tell("tail -n 1 /tmp/out"))
            assert (met["relation"], met["channel"]) == ("host", "segment"), met
            enforced = pair.device == "ivshmem"
            assert met["integrity"] == ("enforced" if enforced else "by convention")
        shown = subprocess.run(
            [TOOL, "show", "--json", pair.path], check=True, timeout=60, capture_output=True
        )
        parts = json.loads(shown.stdout)["parts"]
        assert [slot["state"] for part in parts for slot in part["slots"]] == ["run", "run"]
    finally:
        for machine in pair.machines:
            machine.tell("pkill sleep; pkill nearmetal-info; true")


def test_random_traffic_goes_through_the_segment(pair: Pair) -> None:
    for machine in pair.machines:
        machine.put(TRAFFIC, "/tmp/traffic")
    # No network among the channels: what the segment does not carry does not arrive.
    told = pair.machines[0].tell(
        "mpirun -n 2 --map-by node -x NEARMETAL_CHANNELS=self,segment"
        " /tmp/traffic -n 400 -s 11 -b 8M -w 200"
    )
    assert "traffic OK: " in told, told
