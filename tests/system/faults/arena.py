# SPDX-License-Identifier: Apache-2.0
"""A place for endpoints to meet in, which insists on being left clean."""

import os
import stat
from collections.abc import Mapping
from pathlib import Path

from tests.system.faults.peer import PROVIDER_DIR, Node, Peer

DEFAULT_LIBFABRIC = "/usr/lib/x86_64-linux-gnu"


class Arena:
    """Starts peers with an environment of ours alone; ends them and looks for what they left."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.segment = root / "segment"
        self.segment.mkdir(mode=0o700)
        self.stats = root / "stats"
        self.stats.mkdir()
        self.peers: list[Peer] = []

    def environment(self, **knobs: str) -> dict[str, str]:
        """Return the environment of a peer; a knob may be given without NEARMETAL_."""
        env = {
            "PATH": os.environ["PATH"],
            "LC_ALL": "C.UTF-8",
            "FI_PROVIDER_PATH": str(PROVIDER_DIR),
            "NEARMETAL_RUNDIR": str(self.segment),
            "NEARMETAL_STATS_DIR": str(self.stats),
        }
        for name, value in knobs.items():
            env[
                name if "_" in name and name.startswith(("FI_", "LD_")) else f"NEARMETAL_{name}"
            ] = value
        return env

    def start(
        self,
        name: str,
        knobs: Mapping[str, str],
        *,
        node: Node | None = None,
        without: tuple[str, ...] = (),
        prefix: tuple[str, ...] = (),
    ) -> Peer:
        """Start a peer whose endpoint is not open yet."""
        env = self.environment(**knobs)
        for variable in without:
            del env[variable]
        log = self.root / f"{name}.{len(self.peers)}.log"
        peer = Peer(name, log, env, node=node, prefix=prefix)
        peer.knobs = dict(knobs)
        self.peers.append(peer)
        return peer

    def peer(self, name: str, *, node: Node | None = None, **knobs: str) -> Peer:
        """Start a peer and open its endpoint."""
        return self.start(name, knobs, node=node).open()

    def pair(self, **knobs: str) -> tuple[Peer, Peer]:
        """Return two open peers that know each other."""
        a, b = self.start("a", knobs), self.start("b", knobs)
        open_all(a, b)
        a.knows(b)
        b.knows(a)
        return a, b

    def sockets(self, directory: Path | None = None) -> list[str]:
        """Return the names of the sockets where neighbours meet."""
        return sorted(
            path.name
            for path in (directory or self.segment).iterdir()
            if stat.S_ISSOCK(path.lstat().st_mode)
        )

    def remove_socket_of(self, peer: Peer) -> None:
        """Tidy up after a process that died before anyone had met it."""
        (self.segment / peer.identity).unlink(missing_ok=True)

    def close(self) -> None:
        """End every peer in order; all that were not killed must end well and leave nothing."""
        codes = {peer.name: peer.finish() for peer in self.peers if not peer.killed}
        assert all(code == 0 for code in codes.values()), f"exit codes {codes}"
        assert not self.sockets(), "sockets are left over"

    def abandon(self) -> None:
        """End every peer in any case."""
        for peer in self.peers:
            peer.abandon()


def open_all(*peers: Peer) -> None:
    """Open endpoints at the same time."""
    for peer in peers:
        peer.tell("open")
    for peer in peers:
        peer.opened()


def exchange(a: Peer, b: Peer, size: int = 100_000, tag: int = 7) -> None:
    """Send one message each way and check every byte."""
    for sender, receiver, number in ((a, b, tag), (b, a, tag + 1)):
        receiver.post("recv", f"r{number}", sender.name, size, number)
        sender.post("send", f"s{number}", receiver.name, size, number)
        assert receiver.expect("done", f"r{number}", "recv") == [str(size), str(number), "good"]
        sender.expect("done", f"s{number}", "send")
