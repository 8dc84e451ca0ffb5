# SPDX-License-Identifier: Apache-2.0
"""The package of the Slurm plugin, built against the headers of this machine and unpacked by dpkg."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.system.local import ROOT
from tests.system.need import lacking

pytestmark = [pytest.mark.system, pytest.mark.full]

SCRIPT = ROOT / "tools/package/slurm.sh"
HEADERS = Path("/usr/include/slurm/spank.h")
ENV = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": "/nonexistent"}

if not HEADERS.exists() or shutil.which("dpkg-deb") is None:
    lacking("no headers of Slurm, or no dpkg")


def build(*words: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [SCRIPT, *words], env=ENV | more, capture_output=True, text=True, check=False, timeout=280
    )


def told(*argv: str) -> str:
    return subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60).stdout


def test_the_package_holds_the_plugin_for_this_slurm_alone(tmp_path: Path) -> None:
    done = build(str(tmp_path / "out"))
    assert (done.returncode, done.stderr) == (0, "")
    (package,) = (tmp_path / "out").iterdir()
    assert done.stdout.strip() == str(package)
    found = told("dpkg-query", "--show", "--showformat", "${Version}", "libslurm-dev")
    release = found.partition("-")[0]
    fields = told("dpkg-deb", "--field", str(package), "Package", "Version", "Depends")
    assert f"+slurm{release}\n" in fields
    assert f"slurm-client (>= {release}), slurm-client (<< " in fields
    upper = fields.rpartition("(<< ")[2].partition(")")[0]
    for version, fits in ((found, True), (f"{release}0-1", False), ("99.11.1-1", False)):
        compared = subprocess.run(["dpkg", "--compare-versions", version, "lt", upper], check=False)
        assert (compared.returncode == 0) is fits
    root = tmp_path / "root"
    told("dpkg-deb", "--extract", str(package), str(root))
    plugin = next(root.glob("usr/lib/*/nearmetal/spank_nearmetal.so"))
    symbols = told("nm", "-D", "--defined-only", str(plugin))
    assert " plugin_version" in symbols
    assert " slurm_spank_task_init_privileged" in symbols
    line = (root / "usr/share/doc/nearmetal-slurm/examples/plugstack.conf").read_text()
    assert f"required /{plugin.relative_to(root)} " in line
    unit = root / "usr/lib/systemd/system/nearmetal-slurm-watchdog.service"
    assert "slurm reclaim --ended --drain" in unit.read_text()
    assert (root / "usr/share/doc/nearmetal-slurm/spank_nearmetal.md").exists()


def test_a_machine_without_headers_is_told_what_is_missing(tmp_path: Path) -> None:
    done = build(str(tmp_path / "out"), CFLAGS="-nostdinc")
    assert done.returncode == 1
    assert "install libslurm-dev" in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("words", [(), ("--depends",), ("a", "b"), ("--what", "a")])
def test_a_wrong_call_is_told_the_right_one(words: tuple[str, ...]) -> None:
    done = build(*words)
    assert done.returncode == 2
    assert "tools/package/slurm.sh FOLDER" in done.stderr
