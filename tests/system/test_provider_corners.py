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
    r"^nearmetal: info: endpoint ([0-9a-f]{12}): (no )?(self|shm|segment|net)(:)? \S+"
)
CHANNELS = {"self", "shm", "segment", "net"}


def corners(name: str, channels: str, tmp_path: Path, *words: str) -> list[str]:
    """Run the program; return what the provider said."""
    library = library_of(name)
    meet = tmp_path / "meet"
    meet.mkdir(mode=0o700)
    env = {
        "PATH": os.environ["PATH"],
        "FI_PROVIDER": "nearmetal",
        "FI_PROVIDER_PATH": str(provider_path(name, tmp_path)),
        "NEARMETAL_RUNDIR": str(meet),
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


def check_first_lines(said: list[str], allowed: set[str]) -> None:
    """Every endpoint reports each channel once: what it opened, or why it is absent."""
    lines: dict[str, list[tuple[str, bool]]] = {}
    for match in filter(None, map(LINE.search, said)):
        assert bool(match[2]) == bool(match[4]), match.string
        lines.setdefault(match[1], []).append((match[3], not match[2]))
    assert lines
    for told in lines.values():
        assert len(told) == len(CHANNELS), "one line for each channel"
        assert {name for name, _ in told} == CHANNELS
        assert {name for name, opened in told if opened} == allowed


@pytest.mark.parametrize("name", LIBFABRICS)
def test_corners_over_every_libfabric(name: str, tmp_path: Path) -> None:
    said = corners(name, "self,shm", tmp_path)
    check_first_lines(said, {"self", "shm"})
    words = "\n".join(said)
    assert "FI_HMEM requested, but there is no device" in words
    assert "device memory (interface 1)" in words
    assert "memory interface 1000 does not exist" in words


@pytest.mark.parametrize("name", LIBFABRICS)
def test_the_inner_provider_is_told_of_peers_on_first_use(name: str, tmp_path: Path) -> None:
    check_first_lines(corners(name, "self,net", tmp_path, "inner addresses"), {"self", "net"})
