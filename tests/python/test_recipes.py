# SPDX-License-Identifier: Apache-2.0
"""The recipes of CONTRIBUTING, followed in a copy of the sources."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from nearmetal.core.errors import ExitCode
from nearmetal.evidence.counters import channel_names

ROOT = Path(__file__).resolve().parents[2]
RECIPES = ROOT / "tests/recipes"
LAST_CHANNEL = "\tX(NET, net, net, FABRIC)"
LINE = "\tX(EMPTY, empty, empty, CORE)"


def run(*argv: str | Path, cwd: Path, status: int = 0, **env: str) -> str:
    """Return what a command printed; another exit status fails the test with its output."""
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
    assert done.returncode == status, done.stdout
    return done.stdout


def test_a_fifth_transport_is_a_directory_and_a_line(tmp_path: Path) -> None:
    """The empty transport: one line in base/channel.h beside its own directory, nothing else."""
    for name in (
        "src",
        "benchmarks",
        *(
            f"tests/{kind}"
            for kind in ("device", "unit", "fabric", "heap", "system", "conformance")
        ),
    ):
        shutil.copytree(ROOT / name, tmp_path / name)
    for name in ("meson.build", "meson.options"):
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "nearmetal").mkdir()
    shutil.copy(ROOT / "nearmetal/__init__.py", tmp_path / "nearmetal")
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

    printed = run(build / "src/tools/nearmetal-info", "--abi", cwd=tmp_path)
    assert channel_names(printed) == ("self", "shm", "segment", "net", "empty")
    abi = json.loads(printed)
    assert abi["channels"] == ["none", "self", "shm", "segment", "net", "empty"]
    knob = next(knob for knob in abi["knobs"] if knob["name"] == "NEARMETAL_CHANNELS")
    assert knob["default"] == "self,shm,segment,net,empty"
    run(build / "tests/unit/test_select", cwd=tmp_path)


EMPTY_SPEC = """\
version: 1
name: paper
backend: empty
hosts:
  - name: h1
    nodes:
      - {name: n1, slots: 2}
      - {name: n2, slots: 3}
"""


def test_a_fourth_backend_is_a_directory(tmp_path: Path) -> None:
    """The empty backend: its own directory, not one line anywhere else."""
    shutil.copytree(
        ROOT / "nearmetal", tmp_path / "nearmetal", ignore=shutil.ignore_patterns("__pycache__")
    )
    shutil.copytree(RECIPES / "backend", tmp_path / "nearmetal/cluster/backends/empty")
    spec = tmp_path / "spec.yaml"
    nearmetal = (sys.executable, "-m", "nearmetal", "plan")
    env = {"PYTHONPATH": str(tmp_path), "HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path)}

    spec.write_text(EMPTY_SPEC)
    printed = run(*nearmetal, spec, cwd=tmp_path, status=ExitCode.CHANGES, **env)
    assert "+ cluster paper" in printed
    assert "slots: 5" in printed
    assert "plan: 1 to make, 0 to change, 0 to remove" in printed

    spec.write_text(EMPTY_SPEC.replace("slots: 3", "colour: red"))
    printed = run(*nearmetal, spec, cwd=tmp_path, status=ExitCode.ERROR, **env)
    assert f"{spec}:8:" in printed
    assert "unknown key 'hosts[0].nodes[1].colour'" in printed

    spec.write_text(EMPTY_SPEC.replace("backend: empty", "backend: emtpy"))
    printed = run(*nearmetal, spec, cwd=tmp_path, status=ExitCode.ERROR, **env)
    assert f"{spec}:3:" in printed
    assert "'empty' or 'libvirt' or 'local' or 'openstack' or 'vsphere'" in printed

    schema = json.loads(run(*nearmetal, "--schema", cwd=tmp_path, status=ExitCode.DONE, **env))
    assert "empty" in schema["discriminator"]["mapping"]
