# SPDX-License-Identifier: Apache-2.0
"""The benchmark of starts under Slurm, run briefly: what it prints, and that all kinds have their turns."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.system.local import ROOT, user_can_read_checkout
from tests.system.slurm_site import need

pytestmark = [
    pytest.mark.system,
    pytest.mark.root,
]

need()
if not user_can_read_checkout():
    pytest.skip("users cannot read the checkout", allow_module_level=True)


def test_every_kind_has_its_turns() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.slurm_start", "--rounds", "2"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    launches = re.findall(r"^(\w+) \d+\.\d+$", done.stdout, re.MULTILINE)
    assert sorted(launches) == ["container"] * 2 + ["outside"] * 2
    rows = re.findall(r"^# (\w+) +2( +\d+\.\d+){3}$", done.stdout, re.MULTILINE)
    assert [row[0] for row in rows] == ["outside", "container"]
    assert re.search(r"^# container adds -?\d", done.stdout, re.MULTILINE)
