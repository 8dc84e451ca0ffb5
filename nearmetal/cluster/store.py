# SPDX-License-Identifier: Apache-2.0
"""The records of clusters on this machine: one private directory per user."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from nearmetal.cluster.model import ClusterSpec
from nearmetal.cluster.registration import from_canonical
from nearmetal.core.errors import StateError
from nearmetal.core.files import MAX_STATE, read_regular, replace_file

SPEC = "spec.json"
"""The file of a cluster's canonical spec, in its directory."""


def state_directory(environ: Mapping[str, str] | None = None, uid: int | None = None) -> Path:
    """Return $NEARMETAL_STATE_DIR, else /var/lib/nearmetal for root, else the user's own."""
    variables = os.environ if environ is None else environ
    given = variables.get("NEARMETAL_STATE_DIR")
    if given:
        return Path(given).absolute()
    if (os.geteuid() if uid is None else uid) == 0:
        return Path("/var/lib/nearmetal")
    base = variables.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base) / "nearmetal"


@dataclass(frozen=True)
class Store:
    """The state directory: `clusters/NAME/` per cluster, `locks/NAME` while one is changed."""

    root: Path

    def cluster(self, name: str) -> Path:
        """Return the directory of one cluster; it need not exist."""
        return self.root / "clusters" / name

    def lock(self, name: str) -> Path:
        """Return the lock file of one cluster; it need not exist."""
        return self.root / "locks" / name

    def names(self) -> list[str]:
        """Return the names of all recorded clusters."""
        try:
            return sorted(entry.name for entry in (self.root / "clusters").iterdir())
        except FileNotFoundError:
            return []

    def recorded(self, name: str) -> ClusterSpec | None:
        """Return the spec that made a cluster; None if there is no such cluster.

        Raises StateError if the record is not readable.
        """
        try:
            content = read_regular(self.cluster(name) / SPEC, MAX_STATE)
        except OSError:
            return None
        try:
            return from_canonical(content.decode("utf-8"))
        except ValueError as error:  # pydantic's ValidationError is one
            raise StateError(
                f"cluster {name} has no readable record of its spec",
                "give the spec file instead of the name",
            ) from error

    def record(self, spec: ClusterSpec) -> None:
        """Record the spec of a cluster, whose directory is there."""
        replace_file(self.cluster(spec.name) / SPEC, spec.canonical())

    def digest(self, name: str) -> str:
        """Return the SHA-256 of the record of a cluster's spec; "" if there is none."""
        try:
            content = read_regular(self.cluster(name) / SPEC, MAX_STATE)
        except OSError:
            return ""
        return hashlib.sha256(content).hexdigest()

    def prepare(self) -> None:
        """Make the directories, 0700; raises StateError if another user owns or may write them."""
        try:
            for path in (self.root, self.root / "clusters", self.root / "locks"):
                path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise StateError(
                f"cannot make the state directory {self.root}: {error.strerror}",
                "set NEARMETAL_STATE_DIR to a directory that you may write",
            ) from error
        status = self.root.stat()
        if status.st_uid != os.geteuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise StateError(
                f"the state directory {self.root} is not yours alone",
                f"chown and chmod 0700 {self.root}, or set NEARMETAL_STATE_DIR",
            )

    def tidy(self) -> None:
        """Remove empty directories, so that an unused nearmetal leaves no trace."""
        for path in (self.root / "clusters", self.root / "locks", self.root):
            with contextlib.suppress(OSError):
                path.rmdir()
