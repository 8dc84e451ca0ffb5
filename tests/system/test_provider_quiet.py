# SPDX-License-Identifier: Apache-2.0
"""A small message through memory costs no system call, no allocation and no lock."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.system.faults.peer import BUILD, PROVIDER_DIR

pytestmark = pytest.mark.system

PROGRAM = BUILD / "tests/system/fabric_quiet"
SLIPS = ("syscall", "allocation", "lock")


def counts(tmp_path: Path, channels: str, *args: str, **knobs: str) -> dict[str, int]:
    """Run the counting program and return what it counted."""
    if not PROGRAM.exists():
        pytest.skip("built on x86-64 only")
    meet = tmp_path / "meet"
    meet.mkdir(mode=0o700)
    env = {
        "PATH": os.environ["PATH"],
        "FI_PROVIDER_PATH": str(PROVIDER_DIR),
        "NEARMETAL_RUNDIR": str(meet),
        "NEARMETAL_CHANNELS": channels,
        "NEARMETAL_STATS_MS": "0",
        **{f"NEARMETAL_{name}": value for name, value in knobs.items()},
    }
    done = subprocess.run(
        [PROGRAM, "5000", *args],
        env=env,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if done.returncode == 77:
        pytest.skip(done.stderr.strip())
    assert (done.returncode, done.stderr) == (0, "")
    words = done.stdout.split()
    return {name: int(value) for name, value in zip(words[::2], words[1::2], strict=True)}


def test_a_small_message_costs_nothing_but_itself(tmp_path: Path) -> None:
    seen = counts(tmp_path, "self,shm")
    assert seen["messages"] == 20000
    assert {slip: seen[f"{slip}s"] for slip in SLIPS} == dict.fromkeys(SLIPS, 0)
    # Statistics are due by the clock, which is looked at in one of 1024 reads.
    assert seen["clocks"] <= seen["reads"] / 1000


@pytest.mark.parametrize("slip", SLIPS)
def test_the_counters_see_a_single_one(slip: str, tmp_path: Path) -> None:
    seen = counts(tmp_path, "self,shm", slip)
    assert {name: seen[f"{name}s"] for name in SLIPS} == {name: int(name == slip) for name in SLIPS}


def test_only_a_message_to_somebody_asleep_costs_a_system_call(tmp_path: Path) -> None:
    """One of the 20001 goes to a thread that sleeps, whose bell is rung; the others ring nobody."""
    seen = counts(tmp_path, "self,shm", "ring", SLEEP_MS="60000")
    assert {slip: seen[f"{slip}s"] for slip in SLIPS} == {"syscall": 1, "allocation": 0, "lock": 0}


def test_a_thread_that_moves_channels_sleeps_and_needs_the_lock(tmp_path: Path) -> None:
    seen = counts(tmp_path, "self,shm", MOVE_THREAD="on")
    assert seen["locks"] >= seen["messages"]
    assert (seen["syscalls"], seen["allocations"]) == (0, 0)


def test_the_counters_see_the_locks_of_a_thread_safe_domain(tmp_path: Path) -> None:
    seen = counts(tmp_path, "self,shm", "safe")
    assert seen["locks"] >= seen["messages"]
    assert (seen["syscalls"], seen["allocations"]) == (0, 0)


def test_an_idle_network_is_looked_at_now_and_then(tmp_path: Path) -> None:
    """With the network open beside it: at most one look in 64 reads, of a few calls each."""
    seen = counts(tmp_path, "self,shm,net")
    assert 0 < seen["clocks"] <= seen["reads"] / 16 + 4
    assert seen["syscalls"] <= seen["reads"] / 64 + 1
    assert seen["allocations"] == 0
