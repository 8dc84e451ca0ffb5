# SPDX-License-Identifier: Apache-2.0
"""Calls that block sleep in the kernel, and are woken: nothing is lost, nobody hangs."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.system.faults.peer import BUILD, PROVIDER_DIR

pytestmark = pytest.mark.system

PROGRAM = BUILD / "tests/system/fabric_sleep"
LONGER_THAN_THE_TEST_MS = "60000"
"""With it, whoever is not woken is ended by the program's alarm; no test looks at a clock."""


def sleep(tmp_path: Path, case: str, channels: str, **knobs: str) -> None:
    """Run one case of the program."""
    meet = tmp_path / "meet"
    meet.mkdir(mode=0o700)
    env = {
        "PATH": os.environ["PATH"],
        "FI_PROVIDER_PATH": str(PROVIDER_DIR),
        "NEARMETAL_SEGMENT_DIR": str(meet),
        "NEARMETAL_CHANNELS": channels,
        **{f"NEARMETAL_{name}": value for name, value in knobs.items()},
    }
    done = subprocess.run(
        [PROGRAM, case],
        env=env,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, f"ok {case}\n"), done.stderr


@pytest.mark.parametrize(
    "case",
    [
        "visit",
        "signal",
        "completed-by-another",
        "counted-by-another",
        "left-by-another",
        "time-out",
    ],
)
def test_a_sleeper_is_woken_by_whatever_happens(case: str, tmp_path: Path) -> None:
    sleep(tmp_path, case, "self,shm", SLEEP_MS=LONGER_THAN_THE_TEST_MS)


def test_the_death_of_a_neighbour_wakes_who_waits_for_it(tmp_path: Path) -> None:
    """By its hangup, and not when the sleep is over."""
    sleep(tmp_path, "death", "self,shm", SLEEP_MS=LONGER_THAN_THE_TEST_MS)


@pytest.mark.parametrize("channels", ["self,shm", "self,net", "self,shm,net"])
@pytest.mark.parametrize("case", ["messages", "death"])
def test_nothing_is_lost_and_nobody_hangs(case: str, channels: str, tmp_path: Path) -> None:
    sleep(tmp_path, case, channels, KEEPALIVE_MS="200")


def test_two_threads_sleep_at_two_endpoints_of_a_domain(tmp_path: Path) -> None:
    sleep(tmp_path, "two-sleepers", "self,shm")


@pytest.mark.parametrize("case", ["messages", "death", "signal"])
def test_sleeping_can_be_turned_off(case: str, tmp_path: Path) -> None:
    sleep(tmp_path, case, "self,shm", SLEEP_MS="0")
