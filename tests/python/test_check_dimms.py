# SPDX-License-Identifier: Apache-2.0
"""Modules of memory in the tables of firmware: published listings of servers, and odd tables."""

from __future__ import annotations

import struct
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nearmetal.check.expect import Expectations
from nearmetal.check.families.memory import CHECKS
from nearmetal.check.snapshot import Snapshot
from tests.python.pci_tree import put
from tests.python.test_check_agent import agent as _agent
from tests.python.test_check_agent import facts

agent = _agent
"""The fixture of these tests."""

LISTED = (Path(__file__).parents[1] / "data" / "check" / "memory.txt").read_text()
DIMM_CHECKS = ("memory.speed", "memory.sizes", "memory.spread")
DDR4, FLASH, LOGICAL = 0x1A, 0x09, 0x1F
DRAM, OPTANE = 3, 7


def device(
    size: int,
    slot: str,
    bank: str = "",
    *,
    array: int = 0x1000,
    speeds: tuple[int, int] = (3200, 3200),
    kind: int = DDR4,
    technology: int = DRAM,
) -> bytes:
    """Return a structure of type 17 of SMBIOS 3.2. `size` in MiB; 0: no module."""
    body = bytearray(0x54)
    struct.pack_into("<BBHH", body, 0, 17, 0x54, 0x1100, array)
    struct.pack_into("<H", body, 0x0C, min(0x7FFF, size))
    struct.pack_into("<I", body, 0x1C, size)
    body[0x10], body[0x11], body[0x12], body[0x28] = 1, 2 if bank else 0, kind, technology
    struct.pack_into("<H", body, 0x15, speeds[0])
    struct.pack_into("<H", body, 0x20, speeds[1])
    texts = [slot, bank, "SERIAL"] if bank else [slot, "SERIAL"]
    return bytes(body) + b"\0".join(text.encode() for text in texts) + b"\0\0"


def listing(name: str) -> list[bytes]:
    """Return the memory devices of a server."""
    lines = LISTED.split(f"[{name}]\n")[1].split("\n\n")[0].splitlines()
    made = []
    for line in lines:
        array, size, slot, bank, speed, running, technology = line.split("; ")
        speeds = (int(speed), int(running))
        where, how = int(array, 16), int(technology)
        made.append(device(int(size), slot, bank, array=where, speeds=speeds, technology=how))
    return made


def memory(agent: ModuleType, place: Path, table: bytes) -> dict[str, Any]:
    put(place, {"sys/firmware/dmi/tables/DMI": table + bytes([127, 4, 0, 0, 0, 0])})
    found: dict[str, Any] = facts(agent, "modules_of_memory")["memory"]
    return found


def findings(found: dict[str, Any]) -> dict[str, list[str]]:
    """Return the values that each check of one node finds."""
    node, wanted = Snapshot("n", {"memory": found}), Expectations({}, {})
    judged = {check.name: check.judge for check in CHECKS if check.name in DIMM_CHECKS}
    spotted = {
        name: [s.value for s in judge(node, wanted)] for name, judge in judged.items() if judge
    }
    return {name: values for name, values in spotted.items() if values}


@pytest.mark.parametrize(
    ("name", "slots", "groups"),
    [
        ("sm_clx", (16, 4), {"processor 1": "98304 MiB in 6 of 8 slots"}),
        ("sm_icx", (16, 0), {"processor 2": "131072 MiB in 8 of 8 slots"}),
        ("sm_spr", (16, 0), {"processor 1": "262144 MiB in 8 of 8 slots"}),
        ("sm_zn2", (8, 0), {"array 1": "262144 MiB in 8 of 8 slots"}),
        ("ami_alt", (32, 16), {"array 2": "65536 MiB in 8 of 16 slots"}),
    ],
)
def test_published_listings_have_no_finding_as_they_are(
    agent: ModuleType,
    tmp_path: Path,
    name: str,
    slots: tuple[int, int],
    groups: dict[str, str],
) -> None:
    found = memory(agent, tmp_path, b"".join(listing(name)))
    assert found["slots"] == {"all": slots[0], "empty": slots[1]}
    assert len(found["modules"]) == slots[0] - slots[1]
    assert groups.items() <= found["groups"].items()
    assert findings(found) == {}


def test_a_missing_module_of_a_published_listing_is_found(
    agent: ModuleType, tmp_path: Path
) -> None:
    for name in ("sm_clx", "sm_icx", "sm_spr", "ami_alt"):
        devices = listing(name)
        removed = device(0, "P1-DIMMA1") if name != "ami_alt" else device(0, "DIMM 1", array=0x20)
        found = findings(memory(agent, tmp_path, removed + b"".join(devices[1:])))
        assert list(found) == ["memory.spread"], name
    slower = device(16384, "P1-DIMMA1", array=0x33, speeds=(3200, 2400))
    found = findings(memory(agent, tmp_path, slower + b"".join(listing("sm_icx")[1:])))
    assert found == {"memory.speed": ["2400 MT/s"]}
    larger = device(32768, "P1-DIMMA1", array=0x33)
    found = findings(memory(agent, tmp_path, larger + b"".join(listing("sm_icx")[1:])))
    assert found["memory.sizes"] == ["16 GiB, 32 GiB"]


def test_slots_that_are_counted_by_channel_are_told_apart(
    agent: ModuleType, tmp_path: Path
) -> None:
    table = device(8192, "DIMM 0", "P0 CHANNEL A") + device(8192, "DIMM 0", "P0 CHANNEL B")
    found = memory(agent, tmp_path, table)
    assert set(found["modules"]) == {"P0 CHANNEL A DIMM 0", "P0 CHANNEL B DIMM 0"}


def test_flash_of_firmware_is_no_module_and_persistent_memory_has_another_size(
    agent: ModuleType, tmp_path: Path
) -> None:
    table = device(16, "SYSTEM ROM", array=9, kind=FLASH)
    table += device(65536, "DIMMA1") + device(258048, "DIMMA2", technology=OPTANE)
    table += device(0, "DIMMB1", technology=OPTANE) + device(4096, "DIMMB2", kind=LOGICAL)
    found = memory(agent, tmp_path, table)
    assert found == {
        "modules": {"DIMMA1": "65536 MiB, 3200 MT/s of 3200"},
        "persistent": {"DIMMA2": "258048 MiB", "DIMMB2": "4096 MiB"},
        "groups": {"array 1": "65536 MiB in 1 of 4 slots"},
        "slots": {"all": 4, "empty": 1},
    }
    assert findings(found) == {}


@pytest.mark.parametrize(
    ("size", "extended", "shown"),
    [(0x4000, 0, "16384 MiB"), (0x8000 | 2048, 0, "2 MiB"), (0x7FFF, 0x80010000, "65536 MiB")],
)
def test_sizes_have_three_units(
    agent: ModuleType, tmp_path: Path, size: int, extended: int, shown: str
) -> None:
    body = bytearray(device(1, "A1"))
    struct.pack_into("<H", body, 0x0C, size)
    struct.pack_into("<I", body, 0x1C, extended)
    found = memory(agent, tmp_path, bytes(body))
    assert found["modules"]["A1"].startswith(f"{shown}, ")
    struct.pack_into("<H", body, 0x0C, 0xFFFF)
    assert memory(agent, tmp_path, bytes(body))["slots"] == {"all": 1, "empty": 1}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
@given(st.binary(max_size=300))
def test_hostile_tables_are_read_to_an_end(agent: ModuleType, rest: bytes) -> None:
    for table in (rest, b"\x11\x17" + rest, b"\x11\x54" + rest, device(1, "A")[:40] + rest):
        for kind, fields, texts in agent.structures(table):
            if kind == 17 and len(fields) >= 0x17:
                assert agent.Module(fields, texts).size >= 0
