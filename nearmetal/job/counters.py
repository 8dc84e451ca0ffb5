# SPDX-License-Identifier: Apache-2.0
"""Finds and reads statistics files of endpoints, of running ones too, without disturbing them.

The files come from the jobs' processes, so they are hostile until checked: only regular files of
limited size and number, opened for reading without following links, and never removed here.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import struct
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nearmetal.evidence.counters import (
    MAX_BYTES,
    SUFFIX,
    EndpointCounters,
    TornError,
    parse_counters,
)

if TYPE_CHECKING:
    from pathlib import Path

MAX_FILES = 4096
_TRIES = 5
_WAIT_S = 0.002
_FLOCK = struct.Struct("hhqqi")
"""struct flock: type, whence, start, length, pid."""


@dataclass(frozen=True)
class Seen:
    """One file: what it says, and whether the process that writes it lives."""

    file: str
    alive: bool
    counters: EndpointCounters


def _is_locked(descriptor: int) -> bool:
    """Whether the owner holds its lock: it does as long as it lives, whatever its namespaces."""
    question = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    answer = fcntl.fcntl(descriptor, fcntl.F_GETLK, question)
    kind = _FLOCK.unpack(answer)[0]
    return bool(kind != fcntl.F_UNLCK)


def _read(top: int, name: str) -> Seen | None:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(name, flags, dir_fd=top)
    except OSError:
        return None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid not in {os.geteuid(), 0, _owner(top)}:
            return None
        for _ in range(_TRIES):
            alive = _is_locked(descriptor)
            content = os.pread(descriptor, MAX_BYTES, 0)
            with contextlib.suppress(TornError):
                return Seen(name, alive, parse_counters(content))
            time.sleep(_WAIT_S)
    except (ValueError, OSError):
        return None
    finally:
        os.close(descriptor)
    return None


def _owner(top: int) -> int:
    return os.fstat(top).st_uid


def read_counters(directory: Path) -> list[Seen]:
    """Return every sound statistics file of a directory; [] when there is no directory."""
    found = []
    try:
        top = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return []
    try:
        for name in sorted(n for n in os.listdir(top) if n.endswith(SUFFIX))[:MAX_FILES]:  # noqa: PTH208
            seen = _read(top, name)
            if seen is not None:
                found.append(seen)
    finally:
        os.close(top)
    return found
