# SPDX-License-Identifier: Apache-2.0
"""A server on one node and its client on another: perftest, and programs like it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import IO

from nearmetal.cluster.backend import Backend
from nearmetal.core.process import Command, Completed, Runner

_SERVER_S = 10.0
_LINE_S = 1.0
_LISTEN_S = 30.0

# Port 18515 of perftest in the state LISTEN; with another port, this only waits.
_LISTENS = (
    "until grep -q ':4853 [0-9A-F]*:0000 0A' /proc/net/tcp /proc/net/tcp6 2>/dev/null; "
    "do sleep 0.1; done"
)


def meet(
    backend: Backend,
    runner: Runner,
    nodes: tuple[str, str],
    programs: tuple[Sequence[str], Sequence[str]],
    address: str,
    *,
    env: Mapping[str, str],
    start: Callable[[Command], Completed],
    stderr: IO[bytes] | None,
) -> tuple[Completed, int]:
    """Run the first program on the first node, and the second one, with its address, on the other.

    `start` runs the client to its end. `stderr`: where the words of the server go; None: to ours.
    Returns the end of the client and the exit code of the server, which ends with it. The caller
    ends what carries its marker.
    """
    server = runner.converse(backend.on_node(nodes[0], programs[0], env=env), stderr=stderr)
    patience = 0.0
    try:
        begin = time.monotonic()
        # A server buffers the line that it waits. A client that starts too early gives up. Without a
        # server, which may have ended at once, it gives up, too.
        if server.receive(_LINE_S) is None and time.monotonic() - begin >= _LINE_S:
            asked = backend.on_node(nodes[0], ["/bin/sh", "-c", _LISTENS], env=env)
            runner.run(asked, timeout_s=_LISTEN_S)
        ended = start(backend.on_node(nodes[1], [*programs[1], address], env=env))
        patience = 0.0 if ended.timed_out or ended.code else _SERVER_S
    finally:
        code = server.finish(patience)
    return ended, code
