# SPDX-License-Identifier: Apache-2.0
"""ssh keys of one cluster: ours into its nodes, the nodes' among themselves, each node's own.

All are made here before the first boot, so nothing is ever trusted on first use.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nearmetal.core.errors import BackendError, CommandError
from nearmetal.core.process import Command

if TYPE_CHECKING:
    from nearmetal.core.process import Runner

_STEP_S = 30.0


@dataclass(frozen=True)
class Pair:
    """A private key and its public half, as text."""

    private: str
    public: str


@dataclass(frozen=True)
class KeyRing:
    """The directory of a cluster's keys, 0700; every file 0600."""

    directory: Path
    runner: Runner

    @property
    def client(self) -> Path:
        """The file of our own private key."""
        return self.directory / "client"

    def pair(self, name: str) -> Pair:
        """Return a key pair, made when it is not there yet; one cut short is made anew."""
        path = self.directory / name
        public = path.with_name(f"{name}.pub")
        if not (path.exists() and public.exists()):
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            fresh = path.with_name(f"{name}.new")
            for left in (fresh, fresh.with_name(f"{name}.new.pub")):
                left.unlink(missing_ok=True)
            argv = ("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(fresh))
            try:
                self.runner.check(Command(argv), timeout_s=_STEP_S)
            except CommandError as error:
                msg = f"cannot make the ssh key {name}: {error.hint or error.message}"
                raise BackendError(msg, "is openssh-client installed?") from error
            fresh.with_name(f"{name}.new.pub").rename(public)
            fresh.rename(path)
        return Pair(path.read_text(encoding="ascii"), public.read_text(encoding="ascii").strip())

    def forget(self, name: str) -> None:
        """Remove a key pair; no error when it is not there."""
        for path in (self.directory / name, self.directory / f"{name}.pub"):
            path.unlink(missing_ok=True)
