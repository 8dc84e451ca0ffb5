# SPDX-License-Identifier: Apache-2.0
"""Jobs whose `nearmetal run` was killed outright: found by their names, ended, removed."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

MARKER = "NEARMETAL_JOB"
"""The variable that every process of a job carries."""

_PARTS = 4


def _started(pid: int) -> int | None:
    """Return when a process of this machine started, in ticks since boot; None: it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
        return int(text.rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return None


def surely(clear: Callable[[], None]) -> None:
    """Clean up, from the start again when a signal comes in between: only the first one raises."""
    try:
        clear()
    except BaseException:
        clear()
        raise


def new_name(kind: str) -> str:
    """Return a fresh name that says whose job it is: kind, our pid, our start, chance."""
    return f"{kind}-{os.getpid()}-{_started(os.getpid()) or 0}-{secrets.token_hex(3)}"


def is_stale(name: str) -> bool:
    """Whether this is the name of a job whose owner is gone; other names are never stale."""
    parts = name.partition(".")[0].split("-")
    if len(parts) != _PARTS or not (parts[1].isdigit() and parts[2].isdigit()):
        return False
    return _started(int(parts[1])) != int(parts[2])
