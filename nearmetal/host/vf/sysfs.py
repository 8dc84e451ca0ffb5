# SPDX-License-Identifier: Apache-2.0
"""Reads of /sys and /proc below a root that tests point at a recorded tree.

What is read is bounded and checked: a name with anything but ordinary characters is refused,
because it would go into messages, paths and the ledger.
"""

from __future__ import annotations

import re
from pathlib import Path

from nearmetal.core.errors import HostError

_LIMIT = 65536
_NAME = re.compile(r"[A-Za-z0-9_.:@+-]{1,128}")


class Sysfs:
    """The files of a kernel. Absent files are "no answer", never an error."""

    def __init__(self, root: Path = Path("/")) -> None:
        """Remember the root; nothing is read yet."""
        self.root = root

    def path(self, name: str) -> Path:
        """Return where a file of the kernel lies, for example `sys/bus/pci/devices`."""
        return self.root / name

    def data(self, name: str, limit: int = _LIMIT) -> bytes:
        """Return at most `limit` bytes of a file; b"" when there are none to read."""
        try:
            with self.path(name).open("rb") as file:
                return file.read(limit)
        except OSError:
            return b""

    def text(self, name: str) -> str:
        """Return a file as one line of printable ASCII; "" when absent; HostError when not."""
        text = self.data(name).decode("ascii", "replace").strip().replace("\n", " ")
        if not text.isprintable() or "\ufffd" in text:
            msg = f"{self.path(name)} holds {text[:40]!r}, which no kernel would write"
            raise HostError(msg, "is /sys really the kernel's?")
        return text

    def number(self, name: str) -> int | None:
        """Return a file as a whole number; None when it is absent or none."""
        text = self.text(name)
        try:
            return int(text, 0) if len(text) < 20 else None  # noqa: PLR2004 - 64 bits
        except ValueError:
            return None

    def names(self, name: str) -> list[str]:
        """Return the entries of a directory, sorted; [] when there is none."""
        try:
            entries = sorted(entry.name for entry in self.path(name).iterdir())
        except OSError:
            return []
        return [_checked(entry, self.path(name)) for entry in entries]

    def target(self, name: str) -> str:
        """Return the last part of what a link points to; "" when there is no link."""
        try:
            return _checked(self.path(name).readlink().name, self.path(name))
        except OSError:
            return ""

    def above(self, name: str) -> list[str]:
        """Return the names of the directories above what a link points to, topmost first."""
        try:
            real = self.path(name).resolve(strict=True).relative_to(self.root.resolve())
        except (OSError, ValueError):
            return []
        return [_checked(part, self.path(name)) for part in real.parent.parts]


def _checked(name: str, where: Path) -> str:
    if not _NAME.fullmatch(name):
        msg = f"{where}: {name[:40]!r} is no name that nearmetal would use"
        raise HostError(msg, "rename the device")
    return name
