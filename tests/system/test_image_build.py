# SPDX-License-Identifier: Apache-2.0
"""Builds that cannot end well, with the real tools: they say why, and leave nothing."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.machines import ROOT
from tests.system.need import lacking

pytestmark = [pytest.mark.system, pytest.mark.timeout(1200)]

NOWHERE = "http://127.0.0.1:9/debian"
"""Nobody listens at the port `discard`."""


@pytest.fixture(autouse=True)
def tools() -> None:
    for program in ("mmdebstrap", "tar2sqfs"):
        if shutil.which(program) is None:
            lacking(f"no {program}: run `make setup-vm`")


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own with little room."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    place = tmp_path / "small"
    place.mkdir()
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=20m", "none", place], check=True, timeout=60
    )
    try:
        yield place
    finally:
        subprocess.run(["umount", place], check=True, timeout=60)


def start(cache: Path, *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "nearmetal", "image", "build", "--cache", str(cache), *options],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def files_in(cache: Path) -> list[str]:
    return [str(p.relative_to(cache)) for p in cache.rglob("*") if p.is_file() and p.name != "lock"]


def processes_with(text: str) -> list[str]:
    """Return the command lines of running processes that hold a text."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = entry.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if text in line:
            found.append(line)
    return found


def test_an_unreachable_mirror_is_named(tmp_path: Path) -> None:
    _, words = (build := start(tmp_path, "--mirror", NOWHERE)).communicate(timeout=900)
    assert build.returncode == 1
    assert f"mmdebstrap failed: E: Failed to fetch {NOWHERE}/dists/trixie/InRelease" in words
    assert files_in(tmp_path) == []


def test_a_full_disk_is_named(small: Path) -> None:
    _, words = (build := start(small)).communicate(timeout=900)
    assert build.returncode == 1
    fault = next(line for line in words.splitlines() if "error: " in line)
    assert "No space left on device" in fault
    assert files_in(small) == []


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_build_is_cleaned_up_after(tmp_path: Path, signum: signal.Signals) -> None:
    build = start(tmp_path)
    deadline = time.monotonic() + 300
    while not (logs := list(tmp_path.glob("fresh/*/build.log"))) or not logs[0].stat().st_size:
        assert build.poll() is None, build.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    build.send_signal(signum)
    build.communicate(timeout=120)
    while left := processes_with(str(tmp_path)):
        assert time.monotonic() < deadline, left
        time.sleep(0.1)
    # The next build removes what is left, even one that comes to nothing itself.
    start(tmp_path, "--mirror", NOWHERE).communicate(timeout=900)
    assert files_in(tmp_path) == []
