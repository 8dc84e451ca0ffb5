# SPDX-License-Identifier: Apache-2.0
"""What holds of memory between two machines, whatever device shows it."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING

from tests.system.machines import ROOT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.system.machines import Machine, Shared

TRAFFIC = ROOT / "build/programs/openmpi5/mpi_traffic"
TOOL = ROOT / "build/c/src/tools/nearmetal-segment"


def integrity(shared: Shared) -> str:
    return "enforced" if shared.ivshmem else "by convention"


def is_measured_and_taken(machines: Sequence[Machine], shared: Shared) -> None:
    for part, machine in enumerate(machines):
        told = json.loads(machine.tell("nearmetal-info --json"))["segment"]
        assert told["usable"], told
        assert (told["part"], told["nr_parts"]) == (part, shared.nr_parts)
        assert told["part_size"] == shared.part_size
        assert told["mapping"].startswith("write-back: a load ")
        assert told["integrity"] == integrity(shared)


def tries_what_the_hypervisor_does(machine: Machine, shared: Shared) -> None:
    """Root may open the whole for writing, so it finds out by itself what becomes of a write."""
    conf = "/tmp/root.conf"
    machine.tell(
        f"sed 's,^lock = .*,lock = /tmp/root.lock,; /^integrity/d'"
        f" /run/nearmetal/segment.conf >{conf}; chmod 0644 {conf};"
        " chmod 0660 $(readlink -f /dev/nearmetal/all)",
        "root",
    )
    try:
        told = machine.tell(f"NEARMETAL_SEGMENT={conf} nearmetal-info --json", "root")
    finally:
        mode = "0440" if shared.ivshmem else "0660"
        machine.tell(f"chmod {mode} $(readlink -f /dev/nearmetal/all)", "root")
    segment = json.loads(told)["segment"]
    assert segment["integrity"] == integrity(shared)
    assert segment["integrity_reason"] == (
        "a write through the mapping of the whole was dropped"
        if shared.ivshmem
        else "one region for all: every machine can write all of it"
    )


def _begin_to_meet(machine: Machine) -> str:
    """Make an endpoint in the background; returns its address."""
    machine.tell(
        "rm -f /tmp/in /tmp/out; mkfifo /tmp/in; (sleep 600 >/tmp/in 2>/dev/null </dev/null &"
        " nearmetal-info meet </tmp/in >/tmp/out 2>/tmp/err &); until [ -s /tmp/out ]; do sleep 0.1; done"
    )
    address: str = json.loads(machine.tell("head -n 1 /tmp/out"))["address"]
    return address


def is_where_they_meet(machines: Sequence[Machine], shared: Shared) -> None:
    addresses = [_begin_to_meet(machine) for machine in machines]
    try:
        for machine, address in zip(machines, reversed(addresses), strict=True):
            machine.tell(
                f"echo '{address} peer' >/tmp/in;"
                " until [ $(wc -l </tmp/out) = 2 ]; do sleep 0.1; done"
            )
            met = json.loads(machine.tell("tail -n 1 /tmp/out"))
            assert (met["relation"], met["channel"]) == ("host", "segment"), met
            assert met["integrity"] == integrity(shared)
        shown = subprocess.run(
            [TOOL, "show", "--json", shared.path], check=True, timeout=60, capture_output=True
        )
        parts = json.loads(shown.stdout)["parts"]
        assert [slot["state"] for part in parts for slot in part.get("slots", ())] == ["run", "run"]
    finally:
        for machine in machines:
            machine.tell("pkill sleep; pkill nearmetal-info; true")


def carries_random_traffic(machines: Sequence[Machine]) -> None:
    """Without the network among the channels: what the segment does not carry does not arrive."""
    for machine in machines:
        machine.put(TRAFFIC, "/tmp/traffic")
    told = machines[0].tell(
        "mpirun -n 2 --map-by node -x NEARMETAL_CHANNELS=self,segment"
        " /tmp/traffic -n 400 -s 11 -b 8M -w 200"
    )
    assert "traffic OK: " in told, told
