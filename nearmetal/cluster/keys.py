# SPDX-License-Identifier: Apache-2.0
"""The ssh keys of a cluster whose nodes are machines.

They are made here, before a machine gets any of them: nothing is ever trusted on first use.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from nearmetal.core.errors import BackendError, CommandError
from nearmetal.core.files import move, read_regular
from nearmetal.core.process import Command, Runner
from nearmetal.image.seed import SeedSsh

_STEP_S = 30.0
_MAX_TEXT = 1 << 16


@dataclass(frozen=True)
class KeyPair:
    """A private key and its public half, as text."""

    private: str
    public: str


@dataclass(frozen=True)
class KeyRing:
    """The directory of a cluster's keys, 0700; every file has mode 0600.

    One key opens the nodes for us, one opens them for each other, and each node has a host key.
    """

    directory: Path
    runner: Runner

    def pair(self, name: str) -> KeyPair:
        """Return a key pair, which is made if it is not complete."""
        path = self.directory / name
        public = path.with_name(f"{name}.pub")
        if not (path.exists() and public.exists()):
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            fresh = path.with_name(f"{name}.new")
            fresh_public = path.with_name(f"{name}.new.pub")
            for leftover in (fresh, fresh_public):
                leftover.unlink(missing_ok=True)
            argv = ("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(fresh))
            try:
                self.runner.check(Command(argv), timeout_s=_STEP_S)
            except CommandError as error:
                raise BackendError(
                    f"cannot make the ssh key {name}: {error.hint or error.message}",
                    "check that openssh-client is installed",
                ) from error
            move(fresh_public, public)
            move(fresh, path)
        private, public_half = (read_regular(p, _MAX_TEXT).decode("ascii") for p in (path, public))
        return KeyPair(private, public_half.strip())

    def host_keys(self, nodes: Iterable[str]) -> dict[str, str]:
        """Return the public key of each node's sshd."""
        return {node: self.pair(f"host.{node}").public for node in nodes}

    def seed_ssh(self, node: str) -> SeedSsh:
        """Return the keys that a node gets, with private ones."""
        node_key = self.pair("node")
        return SeedSsh(
            authorized_keys=[self.pair("client").public],
            host_key=self.pair(f"host.{node}").private,
            node_key=node_key.private,
            node_key_public=node_key.public,
        )


def known_hosts(keys: Mapping[str, str]) -> str:
    """Return the lines of known_hosts for public keys by the names of nodes. Pure."""
    return "".join(f"{name} {' '.join(key.split()[:2])}\n" for name, key in keys.items())
