# SPDX-License-Identifier: Apache-2.0
"""Machines that run nearmetal itself have the Python packages for it: hosts, and sites of Slurm."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOADED = """
import ast, importlib, sys
from pathlib import Path
from nearmetal.cli.verbs import VERBS

def imports(name):
    tree = ast.parse(Path(importlib.import_module(name).__file__).read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module.startswith("nearmetal."):
            yield node.module

# Verbs import in their functions what is slow to load.
for verb in {verbs}:
    for name, entry in VERBS.items():
        if name.split()[0] == verb and entry.module:
            for module in imports("nearmetal.cli." + entry.module):
                importlib.import_module(module)
print(*sys.modules)
"""


@pytest.mark.parametrize(
    ("extra", "verbs"),
    [
        ("hypervisor", ("down", "exec", "host", "plan", "run", "status", "up")),
        ("slurm", ("host", "slurm")),
    ],
)
def test_machines_have_what_their_commands_import(extra: str, verbs: tuple[str, ...]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = {
        re.split(r"[<>=]", one)[0].lower().removeprefix("py") for one in project["dependencies"]
    }
    done = subprocess.run(
        [sys.executable, "-c", LOADED.format(verbs=verbs)],
        stdout=subprocess.PIPE,
        check=True,
        text=True,
        cwd=ROOT,
        timeout=120,
    )
    modules = {module.split(".")[0].lower().removeprefix("py") for module in done.stdout.split()}
    needed = names & modules
    assert "dantic" in needed
    listed = (ROOT / f"nearmetal/share/guest/packages-{extra}.txt").read_text().lower().split()
    given = {line.removeprefix("python3-").removeprefix("py") for line in listed}
    assert needed <= given
