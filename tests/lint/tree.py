# SPDX-License-Identifier: Apache-2.0
"""The files of the checkout, and how a finding is written."""

import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
VENV_BIN = Path(sys.executable).parent

C_SUFFIXES = frozenset({".c", ".h"})
SOURCE_SUFFIXES = C_SUFFIXES | {".py", ".sh", ".map", ".build", ".options", ".toml", ".yaml"}
SOURCE_NAMES = frozenset({"Makefile", ".clang-format", ".clang-tidy", ".editorconfig", "run"})


def tracked(root: Path = ROOT) -> list[Path]:
    """Return every file of the checkout that git does not ignore, relative to root."""
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=root,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    names = sorted({name for name in listing.split("\0") if name})
    return [Path(name) for name in names if (root / name).is_file()]


def is_source(path: Path) -> bool:
    """Tell whether a file is code or build description, written by hand."""
    return path.suffix in SOURCE_SUFFIXES or path.name in SOURCE_NAMES


def read(path: Path) -> str | None:
    """Return the text of a file, or None if it is binary (a fuzzer's corpus, a picture)."""
    data = path.read_bytes()
    if b"\0" in data:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def lines(root: Path, paths: Iterable[Path]) -> Iterator[tuple[Path, int, str]]:
    """Yield (path, line number from 1, line) of all text files."""
    for path in paths:
        for number, line in enumerate((read(root / path) or "").splitlines(), start=1):
            yield path, number, line


def finding(path: Path, number: int, what: str) -> str:
    """Write a finding the way compilers do."""
    return f"{path}:{number}: {what}"
