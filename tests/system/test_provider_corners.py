# SPDX-License-Identifier: Apache-2.0
"""Corners of the libfabric interface, over every libfabric that is here."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.system.faults.peer import BUILD
from tests.system.test_faults_loading import LIBFABRICS, library_of
from tests.system.test_provider_traffic import provider_path

pytestmark = pytest.mark.system


LINE = re.compile(
    r"endpoint [0-9a-f]{12}: (no )?shm[^;]*; no segment: [^;]*; (no net: not allowed|[^;]+ on [^;]+);"
    r" channels allowed: self,(shm|net)$"
)


def corners(name: str, channels: str, tmp_path: Path, *words: str) -> list[str]:
    """Run the program; return what the provider said."""
    library = library_of(name)
    meet = tmp_path / "meet"
    meet.mkdir(mode=0o700)
    env = {
        "PATH": os.environ["PATH"],
        "FI_PROVIDER": "nearmetal",
        "FI_PROVIDER_PATH": str(provider_path(name, tmp_path)),
        "NEARMETAL_SEGMENT_DIR": str(meet),
        "NEARMETAL_CHANNELS": channels,
        "NEARMETAL_LOG": "info",
        **library.environment(),
    }
    done = subprocess.run(
        [*library.prefix(), str(BUILD / "tests/system/fabric_corners"), *words],
        env=env,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("corners OK: ")
    assert not list(meet.iterdir())
    return done.stderr.splitlines()


def check_first_lines(said: list[str]) -> None:
    """Every endpoint says once what was found, what not and why, and what may be used."""
    told = [x for x in said if "channels allowed" in x]
    assert told
    assert all(LINE.search(x) for x in told), told
    assert len({x.split()[3] for x in told}) == len(told), "one line for each endpoint"


@pytest.mark.parametrize("name", LIBFABRICS)
def test_corners_over_every_libfabric(name: str, tmp_path: Path) -> None:
    said = corners(name, "self,shm", tmp_path)
    check_first_lines(said)
    words = "\n".join(said)
    assert "FI_HMEM asked for; no interface to device memory is built in" in words
    assert "memory of a device (interface 1)" in words
    assert "there is no memory interface 1000" in words


@pytest.mark.parametrize("name", LIBFABRICS)
def test_the_inner_provider_is_told_of_peers_on_first_use(name: str, tmp_path: Path) -> None:
    check_first_lines(corners(name, "self,net", tmp_path, "inner addresses"))
