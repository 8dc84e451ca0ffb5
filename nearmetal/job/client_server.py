# SPDX-License-Identifier: Apache-2.0
"""The server of a client-server program on a node: perftest, and programs like it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import IO

from nearmetal.cluster.backend import Backend
from nearmetal.core.process import Completed, Dialogue, Runner

LISTEN_S = 30.0
"""Time that a server gets until it listens."""

_SERVER_S = 10.0
_FAILED_S = 1.0

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


def serve(
    backend: Backend,
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
