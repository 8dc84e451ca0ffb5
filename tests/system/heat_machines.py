# SPDX-License-Identifier: Apache-2.0
"""Machines of Heat stacks: their user data, and what those of big-data.yaml install at first.

Java and Spark are installed once, as a layer over the cloud image, by the packages of the template
and by the commands of its unit.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import yaml

from nearmetal.core.resources import share
from tests.system.cloud_images import FOLDER, cloud_image
from tests.system.machines import CACHE

_SCRIPT = Path(__file__).with_name("spark_layer.sh")
_INSTALL_S = 3000


def heat_user_data(**conditions: bool) -> bytes:
    """Return the user data of the templates as Heat makes them, for these conditions."""
    template = yaml.safe_load(share("heat", "cluster.yaml").read_text())

    def resolved(value: Any) -> Any:
        if isinstance(value, list):
            return [resolved(one) for one in value]
        if not isinstance(value, dict):
            return value
        match [*value.items()]:
            case [("if", [condition, yes, no])]:
                return resolved(yes if conditions[condition] else no)
            case [("get_file", name)]:
                return share("heat", name).read_text()
            case [("map_merge", maps)]:
                return {key: one for part in resolved(maps) for key, one in part.items()}
            case [("list_concat", lists)]:
                return [one for part in resolved(lists) for one in part]
        return {key: resolved(one) for key, one in value.items()}

    content = resolved(template["resources"]["setup"]["properties"]["cloud_config"])
    return b"#cloud-config\n" + yaml.safe_dump(content).encode()


def _packages() -> list[str]:
    """Return the Debian packages that the template installs for Spark."""
    text = share("heat", "cluster.yaml").read_text()
    settings = yaml.safe_load(text)["resources"]["setup"]["properties"]["cloud_config"]
    (given,) = (one["if"][1] for one in settings["map_merge"] if "packaged" in one.get("if", ()))
    found: list[Any] = given["packages"]["list_concat"]
    (names,) = (one["if"][1] for one in found if "if" in one)
    return [str(name) for name in names]


def _unit() -> list[str]:
    return share("heat", "nearmetal-spark-install.service").read_text().splitlines()


def spark_layer() -> Path:
    """Return the directory of the layer, made when it is not there."""
    image = cloud_image() / "root.ext4"
    pinned = share("heat", "spark-packages.txt").read_text()
    commands = [line.partition("=")[2] for line in _unit() if line.startswith("ExecStart=")]
    parts = (FOLDER.name, _packages(), pinned, commands, _SCRIPT.read_text())
    folder = CACHE / f"spark-layer-{hashlib.sha256(repr(parts).encode()).hexdigest()[:12]}"
    layer = folder / "layer"
    if layer.exists():
        return layer
    for old in CACHE.glob("spark-layer-*"):
        shutil.rmtree(old)
    folder.mkdir(parents=True)
    (folder / "spark-packages.txt").write_text(pinned)
    (folder / "commands").write_text("".join(f"{command}\n" for command in commands))
    own = ("unshare", "--mount", "--pid", "--fork", "--kill-child")
    done = subprocess.run(
        [*own, "sh", str(_SCRIPT), str(folder), str(image), *_packages()],
        env={**os.environ, "PIP_NO_CACHE_DIR": "1", "TMPDIR": "/var/tmp"},
        capture_output=True,
        text=True,
        timeout=_INSTALL_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    return layer
