# SPDX-License-Identifier: Apache-2.0
"""The files of segments: made, given to QEMU's user, zeroed and removed."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Iterable
from pathlib import Path

from nearmetal.cluster.backends.libvirt.build import Layout
from nearmetal.cluster.backends.libvirt.hosts import MEMORY, TOOL, read_layout
from nearmetal.computed.holdings import GroupSegment
from nearmetal.core.errors import BackendError
from nearmetal.core.process import Command, Runner
from nearmetal.core.resources import tool

PREFIX = "nearmetal-computed-"
PART_OFF = 2 << 20
"""Where the first part begins: the layout has no other place for it."""

_STEP_S = 60.0
_PIECE = 1 << 20


def new_name() -> str:
    """Return a name that no other user can guess and take first."""
    return PREFIX + secrets.token_hex(8)


class SegmentFiles:
    """The files of all segments of the service, in memory."""

    def __init__(self, runner: Runner, directory: Path = Path(MEMORY)) -> None:
        self._runner = runner
        self._directory = directory

    def path(self, segment: GroupSegment) -> Path:
        """Return the path of a segment."""
        return self._directory / segment.name

    def ready(self, segment: GroupSegment, owner: tuple[int, int]) -> Layout:
        """Return the layout of a segment, which is made if missing; it belongs to `owner`."""
        path = self.path(segment)
        if not path.exists():
            size = {"parts": segment.nr_parts, "part-size": segment.part_size}
            options = [word for key, value in size.items() for word in (f"--{key}", str(value))]
            argv = (str(tool(TOOL)), "create", str(path), *options)
            self._runner.check(Command(argv), timeout_s=_STEP_S)
        descriptor = self._open(segment, os.O_RDONLY)
        try:
            found = os.fstat(descriptor)
            if (found.st_uid, found.st_gid) != owner:
                os.fchown(descriptor, *owner)
        finally:
            os.close(descriptor)
        argv = (str(tool(TOOL)), "show", str(path), "--json")
        text = self._runner.check(Command(argv), timeout_s=_STEP_S).text
        layout = read_layout(text, found.st_size, str(path))
        shape = (layout.nr_parts, layout.part_size, layout.part_off)
        if shape != (segment.nr_parts, segment.part_size, PART_OFF):
            raise BackendError(f"{path} has another layout than its record")
        return layout

    def exists(self, segment: GroupSegment) -> bool:
        """Whether the file of a segment is there."""
        return self.path(segment).exists()

    def _open(self, segment: GroupSegment, flags: int) -> int:
        path = self.path(segment)
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or stat.S_IMODE(found.st_mode) & 0o077:
            os.close(descriptor)
            raise BackendError(f"{path} is not a file for one user alone")
        return descriptor

    def clean(self, segment: GroupSegment, part: int) -> None:
        """Zero a part, its header first: from then on its neighbours take nothing of it."""
        try:
            descriptor = self._open(segment, os.O_RDWR)
        except FileNotFoundError:
            return
        try:
            start = PART_OFF + part * segment.part_size
            zeros = bytes(_PIECE)
            for offset in range(start, start + segment.part_size, _PIECE):
                if os.pwrite(descriptor, zeros, offset) != _PIECE:
                    raise BackendError(f"no memory to zero part {part} of {self.path(segment)}")
        finally:
            os.close(descriptor)

    def remove(self, segment: GroupSegment) -> None:
        """Remove the file of a segment."""
        self.path(segment).unlink(missing_ok=True)

    def remove_others(self, segments: Iterable[GroupSegment]) -> None:
        """Remove files that no record names: a service was killed before it wrote one."""
        known = {segment.name for segment in segments}
        for path in self._directory.glob(PREFIX + "*"):
            if path.name not in known:
                # Every user may make a directory there, and that is none of ours.
                with contextlib.suppress(OSError):
                    path.unlink()
