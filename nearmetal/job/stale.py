# SPDX-License-Identifier: Apache-2.0
"""Jobs whose `nearmetal run` was killed outright: found by their names, ended, removed."""

from __future__ import annotations

import os
import re
import secrets
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

MARKER = "NEARMETAL_JOB"
"""The variable that every process of a job carries."""

_NAME = re.compile(r"[a-z]{1,16}-([0-9]{1,20})-([0-9]{1,20})-[0-9a-f]{6}")
"""Machines tell us such names, and we remove what is called so: hence no other characters."""


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
    found = _NAME.fullmatch(name.partition(".")[0])
    return found is not None and _started(int(found[1])) != int(found[2])
