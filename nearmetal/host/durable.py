# SPDX-License-Identifier: Apache-2.0
"""Files that are whole after any crash: the old content or the new one, never a part."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

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
