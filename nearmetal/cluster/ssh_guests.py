# SPDX-License-Identifier: Apache-2.0
"""Machines that become nodes by a login as root, which brings guest unit, provider and seed.

`guests.json` in the directory of the cluster says which machine got what.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import stat
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from pydantic import ValidationError

from nearmetal.cluster.keys import KeyRing
from nearmetal.cluster.ssh_nodes import OTHER_KEY, Nodes, machine_agent
from nearmetal.config.model import Model
from nearmetal.core.errors import BackendError
from nearmetal.core.files import read_json, replace_file
from nearmetal.core.process import Command, Runner
from nearmetal.image import GUEST_AGENT, parts_here
from nearmetal.image.parts import GuestFile, foreign_tar, tar_of
from nearmetal.image.seed import Seed

LOOK_S = 1.0
LOGIN_S = 60.0

NEVER = "it is not prepared for jobs"
OTHER = "its provider, guest unit, keys or list of nodes have changed"

REFUSALS = ("Permission denied", OTHER_KEY)
"""Answers that do not change by waiting."""

_RECORD = "guests.json"
_SEED = "etc/nearmetal/seed.json"
_DELIVER_S = 600.0
# Archives that follow each other are one. A seed may be of an earlier delivery.
UNPACK = (
    "tar --directory / --extract --gzip --ignore-zeros --no-same-owner --file - && "
    "exec sh /usr/lib/nearmetal/become-node"
)
"""The command for root of a machine that takes a delivery and becomes a node."""


class GuestNode(Model):
    """A machine that was prepared: its identity, its address, a digest of what it got.

    `through`: the node by which it is reached. `first_key`: the key of its sshd before that.
    """

    machine: str
    address: str
    digest: str
    through: str = ""
    first_key: str = ""


@dataclass(frozen=True)
class GuestRecords:
    """The prepared machines of the cluster with this directory, by node."""

    directory: Path

    def read(self) -> dict[str, GuestNode]:
        """Return the records; a file that is damaged has none."""
        data = read_json(self.directory / _RECORD)
        try:
            return {str(name): GuestNode.model_validate(one) for name, one in data.items()}
        except (AttributeError, ValidationError):
            return {}

    def write(self, records: Mapping[str, GuestNode]) -> None:
        """Replace the records."""
        text = json.dumps({name: one.model_dump() for name, one in records.items()}, indent=1)
        replace_file(self.directory / _RECORD, text + "\n")

    def drop(self, node: str) -> None:
        """Forget a machine."""
        records = self.read()
        if records.pop(node, None) is not None:
            self.write(records)


class SshGuests:
    """The machines of a cluster that become nodes: their keys, their records, what they get."""

    def __init__(self, directory: Path, runner: Runner) -> None:
        self._directory, self._runner = directory, runner
        self._keys = KeyRing(directory / "keys", runner)
        self._records = GuestRecords(directory)

    @cached_property
    def _parts(self) -> bytes:
        """What every guest gets."""
        return guest_parts()

    @cached_property
    def _common(self) -> bytes:
        return hashlib.sha256(self._parts).digest()

    def _digest_of(self, nodes: Iterable[tuple[str, str, int]], address: str, mac: str) -> str:
        """Return a digest of what a guest gets. `nodes`: names, addresses and slots of all nodes."""
        text = json.dumps([sorted(nodes), address, mac])
        return hashlib.sha256(self._common + text.encode()).hexdigest()

    def forget(self, node: str) -> None:
        """Forget a machine that is removed."""
        self.close(node)
        self._records.drop(node)

    def close(self, node: str = "*") -> None:
        """End kept connections to a guest that goes off, or to all."""
        Nodes(self._directory, {}, self._runner).close(node)


def guest_parts() -> bytes:
    """Return the archive that every guest gets."""
    agent = GuestFile(GUEST_AGENT[1:], stat.S_IFREG | 0o755, machine_agent())
    return foreign_tar(parts_here()) + tar_of([agent])


def delivery(seed: Seed, packed: bytes) -> bytes:
    """Return what UNPACK reads: the compressed parts, and the seed of one machine."""
    content = seed.secret_json().encode()
    return packed + gzip.compress(tar_of([GuestFile(_SEED, stat.S_IFREG | 0o600, content)]))


def deliver(nodes: Nodes, identity: str, seeds: Mapping[str, Seed], parts: bytes) -> None:
    """Bring unit, provider and seed to machines that root enters by a key, and start the unit."""
    packed = gzip.compress(parts, 6)
    commands = {
        node: Command(nodes.first_login(node, identity).argv(UNPACK), stdin=delivery(seed, packed))
        for node, seed in seeds.items()
    }
    nodes.run_all(commands, "cannot be prepared by ssh as root", timeout_s=_DELIVER_S)
    # As jobs do.
    last = {node: nodes.command(node, ["true"], root=True) for node in seeds}
    until_entered(nodes, last, "cannot be entered by ssh with the key of the cluster")


def until_entered(nodes: Nodes, logins: Mapping[str, Command], what: str) -> None:
    """Log in to each; a sshd that starts refuses connections for a moment."""
    deadline = time.monotonic() + LOGIN_S
    while True:
        try:
            nodes.run_all(logins, what)
        except BackendError as error:
            if any(word in error.message for word in REFUSALS) or time.monotonic() > deadline:
                raise
            time.sleep(LOOK_S)
        else:
            return
