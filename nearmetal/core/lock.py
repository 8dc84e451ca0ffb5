# SPDX-License-Identifier: Apache-2.0
"""One lock between processes: a file that the kernel locks, with the pid of its holder."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from nearmetal.core.errors import LockedError

HINT = "wait until that process ends, or stop it; its work can be resumed"

_POLL_S = 0.02


@contextlib.contextmanager
def locked(
    path: Path,
    what: str,
    *,
    hint: str = HINT,
    wait_s: float | None = 0.0,
    waiting: Callable[[], None] | None = None,
) -> Iterator[None]:
    """Hold the lock at `path` during the block; raises LockedError that names the holder.

    `what` is the subject of the message, for example "cluster demo". `wait_s`: how long to wait for
    another holder (None: without limit). `waiting` is called once before a wait begins. Raises
    OSError if the lock cannot be opened, before the block begins.

    The kernel releases the lock when its holder dies, so no lock is ever stale. The directory is
    made if necessary, and the file is removed at the end. A process that opened the file before
    that finds its inode gone and opens the new one.
    """
    deadline = None if wait_s is None else time.monotonic() + wait_s
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    mine = False
    # A signal may raise anywhere, and must leave neither the file nor the lock.
    while not mine:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            descriptor = os.open(path, flags, 0o600)
        except FileNotFoundError:
            continue  # the last holder has just removed the directory
        except OSError:
            raise
        except BaseException:
            _remove(path)
            raise
        try:
            while not _take(descriptor):
                if deadline is not None and time.monotonic() >= deadline:
                    raise LockedError(_busy(descriptor, what, wait_s or 0), hint)
                if waiting is not None:
                    waiting()
                    waiting = None
                time.sleep(_POLL_S)
            mine = _is_at(path, descriptor)
            if mine:
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
                yield
        finally:
            try:
                _release(path, descriptor)
            except BaseException:
                # The signal may have come before the file was removed.
                _release(path, descriptor)
                raise
            finally:
                os.close(descriptor)


def _remove(path: Path) -> None:
    """Remove the file at `path` if no process holds its lock."""
    with contextlib.suppress(FileNotFoundError):
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            _release(path, descriptor)
        finally:
            os.close(descriptor)


def _release(path: Path, descriptor: int) -> None:
    """Remove the file at `path`, unless another process holds its lock or has recreated it."""
    if _take(descriptor) and _is_at(path, descriptor):
        path.unlink(missing_ok=True)


def _take(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _busy(descriptor: int, what: str, wait_s: float) -> str:
    holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
    text = f"{what} is in use by process {holder or '(starting)'}"
    return f"{text}, after a wait of {wait_s:g} s" if wait_s else text


def _is_at(path: Path, descriptor: int) -> bool:
    """Whether the locked file is still the one at its path."""
    try:
        return path.stat().st_ino == os.fstat(descriptor).st_ino
    except FileNotFoundError:
        return False
