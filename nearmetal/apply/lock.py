# SPDX-License-Identifier: Apache-2.0
"""One nearmetal at a time changes a cluster."""

from __future__ import annotations

import contextlib
import fcntl
import os
from typing import TYPE_CHECKING

from nearmetal.errors import LockedError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextlib.contextmanager
def locked(path: Path, cluster: str) -> Iterator[None]:
    """Hold the cluster's lock; raises LockedError that names the holder.

    The kernel drops the lock when its holder dies, so none is ever stale. The file is removed
    at the end; who opened it before that finds its inode gone and opens the new one.
    """
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
            os.close(descriptor)
            msg = f"cluster {cluster} is being changed by process {holder or '(starting)'}"
            raise LockedError(msg, "wait for it, or end it; its work can be taken up") from None
        try:
            if path.stat().st_ino == os.fstat(descriptor).st_ino:
                break
        except FileNotFoundError:
            pass
        os.close(descriptor)
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)
