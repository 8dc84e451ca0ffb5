# SPDX-License-Identifier: Apache-2.0
"""The server of a client-server program on a node: perftest, and programs like it."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO, Protocol

from nearmetal.core.process import Command, Completed, Dialogue, Runner

LISTEN_S = 30.0
"""Time that a server gets until it listens."""

_SERVER_S = 10.0
_FAILED_S = 1.0
_REST_S = 1.0
"""Time to read what a program that has ended left in the pipe."""

_SERVE = """
"$@" & server=$!
while kill -0 $server && ! grep -q ':4853 [0-9A-F]*:0000 0A' /proc/net/tcp /proc/net/tcp6; do
  sleep 0.1
done 2>/dev/null
echo ready
wait $server
"""
"""Runs a program, and says when port 18515, that of perftest, listens, or when the program has ended.

A server buffers its own line, that it waits; and a client that starts too early gives up.
"""


class NodeEntrance(Protocol):
    """The part of a backend that programs need which run in nodes as long as their input."""

    def on_node(self, node: str, argv: Sequence[str], *, env: Mapping[str, str]) -> Command:
        """Return the command that runs `argv` in a node."""

    def end_marked(self, marker: str) -> int:
        """Kill every process in the nodes that has `NAME=value` in its environment."""


class FirstWords:
    """Keeps the first bytes of what a program writes, and drops the rest as it comes."""

    def __init__(self, most: int) -> None:
        """Open the pipe."""
        self.most = most
        reading, writing = os.pipe()
        self.stream = os.fdopen(writing, "wb", buffering=0)
        """For the program; its other holders may be slower to close it than it."""
        self._kept = bytearray()
        self._reader = threading.Thread(target=self._keep, args=(reading,), daemon=True)
        self._reader.start()

    def _keep(self, reading: int) -> None:
        with os.fdopen(reading, "rb", buffering=0) as source:
            while piece := source.read(1 << 16):
                self._kept += piece[: self.most - len(self._kept)]

    def text(self) -> str:
        """Return the words of a program that has ended."""
        self.stream.close()
        self._reader.join(_REST_S)
        return bytes(self._kept).decode("utf-8", "replace").strip()


@contextmanager
def first_words(most: int) -> Iterator[FirstWords]:
    """Give a stream for a program's words, of which the first are kept."""
    words = FirstWords(most)
    try:
        yield words
    finally:
        words.stream.close()


def serve(
    backend: NodeEntrance,
    runner: Runner,
    node: str,
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    stderr: IO[bytes] | None,
) -> Dialogue:
    """Start a server. It listens, or has ended, when a line can be received from it.

    A program with another port says so itself, or the caller waits for LISTEN_S. `stderr`: where its
    words go; None: to ours. The caller ends what carries its marker.
    """
    entered = ["/bin/sh", "-c", _SERVE, "sh", *argv]
    return runner.converse(backend.on_node(node, entered, env=env), stderr=stderr)


def patience(client: Completed) -> float:
    """Return how long the server may take to end after its client."""
    if client.timed_out:
        return 0.0
    return _FAILED_S if client.code else _SERVER_S
