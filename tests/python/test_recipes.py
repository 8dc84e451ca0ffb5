# SPDX-License-Identifier: Apache-2.0
"""The recipes of CONTRIBUTING, followed in a copy of the sources."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RECIPES = ROOT / "tests/recipes"
LAST_CHANNEL = "\tX(NET, net, net, FABRIC)"
LINE = "\tX(EMPTY, empty, empty, CORE)"


def run(*argv: str | Path, cwd: Path, **env: str) -> str:
    """Return what a command printed; a command that fails fails the test with its output."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        argv,
        cwd=cwd,
        env={**os.environ, "PATH": path, **env},
        text=True,
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_a_fifth_transport_is_a_directory_and_a_line(tmp_path: Path) -> None:
    """The empty transport: one line in base/channel.h beside its own directory, nothing else."""
    for name in ("src", "benchmarks", "tests/unit", "tests/fabric", "tests/system"):
        shutil.copytree(ROOT / name, tmp_path / name)
    for name in ("meson.build", "meson.options"):
        shutil.copy(ROOT / name, tmp_path / name)
    shutil.copytree(RECIPES / "transport", tmp_path / "src/transport/empty")
    channels = tmp_path / "src/base/channel.h"
    text = channels.read_text()
    assert LAST_CHANNEL in text
    channels.write_text(text.replace(LAST_CHANNEL, f"{LAST_CHANNEL} \\\n{LINE}"))

    build = tmp_path / "build"
    run(
        "meson",
        "setup",
        "-Dwerror=true",
        "-Dprovider=disabled",
        "-Dspank=disabled",
        "-Dbuildtype=debug",
        build,
        cwd=tmp_path,
    )
    run("ninja", "-C", build, "src/tools/nearmetal-info", "tests/unit/test_select", cwd=tmp_path)

    abi = json.loads(run(build / "src/tools/nearmetal-info", "--abi", cwd=tmp_path))
    assert abi["channels"] == ["none", "self", "shm", "segment", "net", "empty"]
    knob = next(knob for knob in abi["knobs"] if knob["name"] == "NEARMETAL_CHANNELS")
    assert knob["default"] == "self,shm,segment,net,empty"
    run(build / "tests/unit/test_select", cwd=tmp_path)
