# SPDX-License-Identifier: Apache-2.0
"""Both agents of `check` on the Pythons of other Debians, each unpacked from the archive."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from nearmetal.core.process import LocalRunner
from nearmetal.image import machine_mirror
from tests.python.test_check_agents_everywhere import measure_all, trial
from tests.system.need import lacking

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.system, pytest.mark.full, pytest.mark.root, pytest.mark.timeout(900)]

IN_ROOT = (
    'mount --rbind -o ro /sys "$0/sys"; mount --rbind /proc "$0/proc"; '
    'exec chroot "$0" /usr/bin/python3 "$@"'
)


@pytest.mark.parametrize(("suite", "version"), [("bullseye", "3.9"), ("trixie", "3.13")])
def test_both_agents_run_on_the_python_of_a_debian(
    suite: str, version: str, tmp_path: Path
) -> None:
    if os.geteuid() != 0:
        pytest.skip("another root needs root")
    if shutil.which("mmdebstrap") is None:
        lacking("no mmdebstrap: run `make setup-vm`")
    root = tmp_path / "root"
    argv = ["mmdebstrap", "--mode=root", "--variant=extract", "--include=python3,base-files"]
    mirror = machine_mirror(LocalRunner()).sources(suite)
    subprocess.run(
        [*argv, "--format=directory", suite, root, *mirror],
        check=True,
        capture_output=True,
        timeout=600,
    )
    for name in ("sys", "proc"):
        (root / name).mkdir(exist_ok=True)
    python = ["unshare", "-m", "--propagation", "private", "sh", "-ec", IN_ROOT, str(root)]
    snapshot = json.loads(trial(python))
    assert snapshot["facts"]["software"]["python"].startswith(f"{version}.")
    assert snapshot["facts"]["system"]["kernel"] == os.uname().release
    assert set(snapshot["unseen"]) <= {"names"}
    measure_all(python, python)
