# SPDX-License-Identifier: Apache-2.0
"""Machines that are hosts run nearmetal itself, with the Python packages of `--with hypervisor`."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
LOADED = """
import sys
from nearmetal.cli.verbs import build_parser
for verb in ("down", "exec", "host", "plan", "run", "status", "up"):
    build_parser(verb)
print(*sys.modules)
"""


def test_hosts_have_what_their_commands_import() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = {
        re.split(r"[<>=]", one)[0].lower().removeprefix("py") for one in project["dependencies"]
    }
    done = subprocess.run(
        [sys.executable, "-c", LOADED], stdout=subprocess.PIPE, check=True, text=True, cwd=ROOT,
        timeout=120,
    )  # fmt: skip
    modules = {module.split(".")[0].lower().removeprefix("py") for module in done.stdout.split()}
    needed = names & modules
    assert {"clustershell", "yaml"} <= needed
    listed = (ROOT / "guest/packages-hypervisor.txt").read_text().lower().split()
    given = {line.removeprefix("python3-").removeprefix("py") for line in listed}
    assert needed <= given
