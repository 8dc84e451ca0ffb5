# SPDX-License-Identifier: Apache-2.0
"""What the guest unit says about the segment, by its own shell functions."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

UNIT = Path(__file__).parents[2] / "nearmetal" / "share" / "guest" / "unit"


@pytest.mark.parametrize(("slots", "told"), [(1, "1"), (20, "20"), (256, "256"), (4096, "256")])
def test_a_part_has_room_for_an_endpoint_of_each_slot(
    tmp_path: Path, slots: int, told: str
) -> None:
    (tmp_path / "nodes").write_text(
        f"n1 10.0.0.1 7 h ssh-ed25519 AAAA\nn2 10.0.0.2 {slots} h ssh-ed25519 AAAA\n"
    )
    done = subprocess.run(
        ["sh", "-euc", '. "$0/segment.sh"; segment_endpoints; echo "$endpoints"', str(UNIT)],
        env={"PATH": "/usr/bin:/bin", "run": str(tmp_path), "node": "n2"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{told}\n", "")
