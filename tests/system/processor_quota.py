# SPDX-License-Identifier: Apache-2.0
"""Control groups with a part of a processor, of version 1 or 2."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

_PERIOD_US = 100_000
_PLACES = (
    ("/sys/fs/cgroup", {"cpu.max": "{quota} {period}"}),
    ("/sys/fs/cgroup/cpu", {"cpu.cfs_period_us": "{period}", "cpu.cfs_quota_us": "{quota}"}),
)
_END_S = 10.0


@contextlib.contextmanager
def group_with_quota(percent: int, name: str = "", period_us: int = _PERIOD_US) -> Iterator[Path]:
    """Give a control group with this part of one core. Without one, the test is skipped.

    `name`: of one of several groups.

    Set-up cannot bring it: the kernel gives it to root, but not in every container.
    """
    missing = []
    for base, files in _PLACES:
        group = Path(base, f"nearmetal-quota-{os.getpid()}{name}")
        try:
            group.mkdir()
        except OSError as error:
            missing.append(f"{base}: {error.strerror}")
            continue
        try:
            words = {"quota": percent * period_us // 100, "period": period_us}
            why = "".join(_limited(group / f, text.format(**words)) for f, text in files.items())
            if not why:
                yield group
                return
            missing.append(f"{base}: {why}")
        finally:
            _remove(group)
    pytest.skip(f"no control group can limit a processor ({', '.join(missing)})")


def _limited(file: Path, words: str) -> str:
    """Write a limit; return why it cannot be written."""
    try:
        with file.open("r+") as stream:
            stream.write(words)
    except OSError as error:
        return f"{file.name}: {error.strerror}"
    return ""


def _remove(group: Path) -> None:
    """Remove a group; its last process may need a moment to end."""
    deadline = time.monotonic() + _END_S
    while True:
        try:
            group.rmdir()
        except OSError:
            if time.monotonic() >= deadline:
                raise
            time.sleep(0.05)
        else:
            return
