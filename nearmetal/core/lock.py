# SPDX-License-Identifier: Apache-2.0
"""One nearmetal at a time changes a cluster."""

from __future__ import annotations

import contextlib
import fcntl
import os
from typing import TYPE_CHECKING

from nearmetal.core.errors import LockedError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextlib.contextmanager
def locked(path: Path, cluster: str) -> Iterator[None]:
    """Hold the cluster's lock; raises LockedError that names the holder.

    The kernel drops the lock when its holder dies, so none is ever stale. The file is removed
    at the end; who opened it before that finds its inode gone and opens the new one.
    """
    mine = False
    while not mine:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        # From here on a signal may raise anywhere, and must not leave the lock held.
        try:
            _take(descriptor, cluster)
            mine = _is_at(path, descriptor)
            if mine:
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
                yield
        finally:
            if mine:
                path.unlink(missing_ok=True)
            os.close(descriptor)


def _take(descriptor: int, cluster: str) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
        msg = f"cluster {cluster} is being changed by process {holder or '(starting)'}"
        raise LockedError(msg, "wait for it, or end it; its work can be taken up") from None


def _is_at(path: Path, descriptor: int) -> bool:
    """Whether the file that was locked is still the one at its path."""
    try:
        return path.stat().st_ino == os.fstat(descriptor).st_ino
    except FileNotFoundError:
        return False
