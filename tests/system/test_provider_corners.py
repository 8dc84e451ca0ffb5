# SPDX-License-Identifier: Apache-2.0
"""Corners of the libfabric interface, over every libfabric that is here."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.system.faults.peer import BUILD
from tests.system.test_faults_loading import LIBFABRICS, library_of
from tests.system.test_provider_traffic import provider_path

pytestmark = pytest.mark.system


@pytest.mark.parametrize("name", LIBFABRICS)
def test_corners_over_every_libfabric(name: str, tmp_path: Path) -> None:
    library = library_of(name)
    meet = tmp_path / "meet"
    meet.mkdir(mode=0o700)
    env = {
        "PATH": os.environ["PATH"],
        "FI_PROVIDER": "nearmetal",
        "FI_PROVIDER_PATH": str(provider_path(name, tmp_path)),
        "NEARMETAL_SEGMENT_DIR": str(meet),
        "NEARMETAL_CHANNELS": "self,shm",
        **library.environment(),
    }
    done = subprocess.run(
        [*library.prefix(), str(BUILD / "tests/system/fabric_corners")],
        env=env, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("corners OK: ")
    assert not list(meet.iterdir())
