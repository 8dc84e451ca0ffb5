# SPDX-License-Identifier: Apache-2.0
"""Files that are whole after any crash: the old content or the new one, never a part."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from nearmetal.core.errors import HostError

if TYPE_CHECKING:
    from pathlib import Path


def replace_file(path: Path, content: bytes) -> None:
    """Replace a file (mode 0600), or make it; on disk when this returns.

    What an earlier call left beside it when it was cut short is removed. The caller holds a lock:
    of two at a time one fails with FileExistsError. Raises OSError; then the old file is as it was.
    """
    beside = path.with_suffix(".new")
    beside.unlink(missing_ok=True)
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    beside.rename(path)
    _sync(path.parent)


def read_tables(path: Path, hint: str) -> dict[str, dict[str, Any]]:
    """Return the JSON object of objects that a file holds; {} where there is no file.

    Raises HostError with the hint when it holds anything else; OSError when it cannot be read.
    """
    try:
        found: Any = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except ValueError:
        found = None
    if not isinstance(found, dict) or not all(isinstance(v, dict) for v in found.values()):
        raise HostError(f"{path} is damaged", hint)
    return found


def replace_tables(path: Path, content: dict[str, dict[str, Any]]) -> None:
    """As `replace_file`, for what `read_tables` reads."""
    replace_file(path, json.dumps(content, indent=1).encode())


def remove_file(path: Path) -> None:
    """Remove a file, for good when this returns; no error where there is none. Raises OSError."""
    try:
        path.unlink()
    except FileNotFoundError:
        return
    _sync(path.parent)


def _sync(path: Path) -> None:
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
