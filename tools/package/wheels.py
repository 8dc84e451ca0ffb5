# SPDX-License-Identifier: Apache-2.0
"""The Python packages that nearmetal imports, for packages of distributions.

    wheels.py fetch FOLDER            download them, for every Python of PYTHONS
    wheels.py unpack FOLDER BASE STUDY   unpack them below BASE, and those of studies below STUDY

Versions and hashes are those of tools/setup/requirements.txt; the environment of set-up, which has
all of them, says which ones nearmetal needs. An extension module has the release of Python in its
name, so those for several releases lie side by side.
"""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from collections.abc import Collection
from importlib import metadata
from pathlib import Path, PurePosixPath

PYTHONS = ("3.11", "3.13")
"""The Python of Debian 12 and of Debian 13."""

LOCK = Path(__file__).resolve().parents[2] / "tools/setup/requirements.txt"
_PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")
_STUDY = {"duckdb"}
_EXTRAS = ("duckdb", "pyvmomi")


def normal(name: str) -> str:
    """Return the name of a package in the form of the lock file."""
    return re.sub(r"[-_.]+", "-", name).lower()


def needed(names: list[str], pinned: Collection[str]) -> set[str]:
    """Return these packages and all that they need here; what is not pinned is for other systems."""
    found: set[str] = set()
    while names:
        name = normal(names.pop())
        if name not in found and name in pinned:
            found.add(name)
            words = metadata.distribution(name).requires or []
            names += [re.split(r"[^A-Za-z0-9._-]", w)[0] for w in words if "extra ==" not in w]
    return found


def locked() -> dict[str, str]:
    """Return the lines of the lock file that pin each package, with their hashes."""
    entries = re.split(r"^(?=[a-z0-9][a-z0-9.-]*==)", LOCK.read_text("utf-8"), flags=re.MULTILINE)
    return {entry.partition("==")[0]: entry for entry in entries if "==" in entry.split("\n")[0]}


def ours() -> list[str]:
    """Return the packages that nearmetal imports, with its extras, sorted."""
    project = (LOCK.parents[2] / "pyproject.toml").read_text("utf-8")
    listed = re.search(r"^dependencies = \[(.*)\]$", project, re.MULTILINE)
    assert listed is not None  # noqa: S101 - a line of our own
    names = [re.split(r"[^\w-]", word)[0] for word in re.findall(r'"([^"]+)"', listed[1])]
    return sorted(needed([*names, *_EXTRAS], locked()))


def fetch(folder: Path) -> None:
    """Download every wheel; pip checks the hashes."""
    folder.mkdir(parents=True, exist_ok=True)
    pins = locked()
    wanted = folder / "requirements.txt"
    wanted.write_text("".join(pins[name] for name in ours()), "utf-8")
    for python in PYTHONS:
        words = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        words += ["--require-hashes", "--only-binary", ":all:", "--python-version", python]
        words += [word for platform in _PLATFORMS for word in ("--platform", platform)]
        subprocess.run([*words, "-d", str(folder), "-r", str(wanted)], check=True)


def unpack(folder: Path, base: Path, study: Path) -> None:
    """Unpack every wheel. Files are the same for all releases of Python, or have it in their names."""
    for path in sorted(folder.glob("*.whl")):
        place = study if normal(path.name.split("-")[0]) in _STUDY else base
        with zipfile.ZipFile(path) as wheel:
            for item in wheel.infolist():
                name = PurePosixPath(item.filename)
                if (
                    item.is_dir()
                    or ".data" in name.parts[0]
                    or name.is_absolute()
                    or ".." in name.parts
                ):
                    continue
                target = place / name
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(wheel.read(item))
                target.chmod(0o644)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["fetch", to]:
            fetch(Path(to))
        case ["unpack", source, to, studies]:
            unpack(Path(source), Path(to), Path(studies))
        case _:
            sys.exit(__doc__)
