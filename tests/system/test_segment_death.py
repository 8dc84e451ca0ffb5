# SPDX-License-Identifier: Apache-2.0
"""The only process of a machine dies in a segment: no other one there can report it."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.system.faults.arena import exchange, open_all
from tests.system.faults.peer import BUILD, ECONNRESET

if TYPE_CHECKING:
    from tests.system.faults.arena import Arena

pytestmark = [pytest.mark.system, pytest.mark.timeout(120)]

TOOL = BUILD / "src/tools/nearmetal-segment"
KNOBS = {"SEGMENT_LEASE_MS": "2000", "NET_TIMEOUT_MS": "2000", "KEEPALIVE_MS": "200"}
ENDS = {
    "tcp": "its network address is closed",
    "udp;ofi_rxd": "neither its heartbeat nor the network",
    "": "its lease expired",
}
"""How the death is found, by network; ofi_rxd over UDP finds none."""


def machine(arena: Arena, part: int) -> str:
    """Describe a part of the common segment; returns the path."""
    shared = arena.root / "machines.segment"
    if not shared.exists():
        sizes = ("--parts", "2", "--part-size", "16M")
        subprocess.run([TOOL, "create", shared, *sizes], check=True, timeout=30)
    shown = subprocess.run(
        [TOOL, "show", "--json", shared], check=True, timeout=30, capture_output=True
    )
    path = arena.root / f"{part}.conf"
    path.write_text(
        f"version = 1\ndevice = dax\nall = {shared}\npart = {part}\n"
        f"token = {json.loads(shown.stdout)['token']}\nlock = {arena.root / f'{part}.lock'}\n"
    )
    return str(path)


@pytest.mark.parametrize("net", ENDS, ids=["tcp", "rxd", "no network"])
def test_death_is_found_on_every_network(arena: Arena, net: str) -> None:
    knobs = {**KNOBS, "CHANNELS": "self,segment,net" if net else "self,segment"}
    if net:
        knobs["NET"] = net
    a, b = (
        arena.start(name, {**knobs, "SEGMENT": machine(arena, part)})
        for part, name in enumerate("ab")
    )
    open_all(a, b)
    a.knows(b)
    b.knows(a)
    exchange(a, b)
    a.post("recv", "r", "b", 8, 1)
    b.kill()
    assert a.expect("error", "r")[0] == str(ECONNRESET)
    assert ENDS[net] in a.log
    assert a.finish() == 0
    assert a.way_to(b)["channel"] == "segment"
