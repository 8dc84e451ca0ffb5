# SPDX-License-Identifier: Apache-2.0
"""The parts of a wheel that are not Python: provider, tools, measuring programs, manual pages.

Environment: WHEEL_MESON, more arguments for `meson setup`; WHEEL_PLATFORM, the platform that
the wheel names (default: this machine's, which no other machine needs to be like).
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

INSIDE = "nearmetal/share/built"
TOOLS = ("nearmetal-info", "nearmetal-segment")


class NearmetalBuildHook(BuildHookInterface[Any]):
    """Builds the C code with Meson, and adds what it installs."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the files, unless the wheel only links to a checkout, which has a build of its own."""
        if version == "editable":
            return
        self._work = Path(tempfile.mkdtemp(prefix="nearmetal-wheel-"))
        prefix = self._work / "installed"
        _compile(Path(self.root), self._work / "c", prefix)
        _write_manual(Path(self.root), prefix / "man", self.metadata.version)
        built = sorted((prefix / "lib/nearmetal").iterdir())
        built += [prefix / "bin" / name for name in TOOLS]
        build_data["force_include"] |= {str(path): f"{INSIDE}/{path.name}" for path in built}
        build_data["shared_scripts"] |= {str(prefix / "bin" / name): name for name in TOOLS}
        build_data["shared_data"][str(prefix / "man")] = "share/man"
        build_data["pure_python"] = False
        here = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["tag"] = f"py3-none-{os.environ.get('WHEEL_PLATFORM', here)}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the build."""
        del version, build_data, artifact_path
        shutil.rmtree(getattr(self, "_work", ""), ignore_errors=True)


def _compile(root: Path, build: Path, prefix: Path) -> None:
    """Build and install; no byte may depend on where that happens."""
    flags = [f"-ffile-prefix-map={path}=." for path in (root, os.path.relpath(root, build))]
    # Meson ignores the variable if it gets the option.
    flags += [os.environ.get("CFLAGS", "")]
    setup = ["meson", "setup", f"--prefix={prefix}", "--libdir=lib", "-Dspank=disabled"]
    setup += ["-Dprovider=enabled", f"-Dc_args={' '.join(flags)}"]
    # Without the interpreter's own directory, an environment for builds does not find its programs.
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    for argv in (
        [*setup, *shlex.split(os.environ.get("WHEEL_MESON", "")), str(build), str(root)],
        ["ninja", "-C", str(build), "packaged"],
        [
            *("meson", "install", "-C", str(build), "--no-rebuild", "--strip", "--quiet"),
            *("--tags", "nearmetal"),
        ],
    ):
        done = subprocess.run(
            argv,
            env=os.environ | {"PATH": path},
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if done.returncode != 0:
            sys.exit(f"{done.stdout[-4000:]}\n{shlex.join(argv[:3])} failed")


def _write_manual(root: Path, folder: Path, version: str) -> None:
    spec = importlib.util.spec_from_file_location("man", root / "tools/package/man.py")
    assert spec is not None and spec.loader is not None  # noqa: PT018, S101 - a file with a name
    man = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(man)
    man.main(folder, version)
