# SPDX-License-Identifier: Apache-2.0
"""perftest: a server on one node, a client on the other, one start per message size.

Each size has a time-out of its own, so that a hang is told with the size at which it happened.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

from nearmetal.core.errors import LaunchError
from nearmetal.job.places import MARKER, new_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nearmetal.cluster.backend import Backend
    from nearmetal.cluster.spec import ClusterSpec
    from nearmetal.core.process import Runner

_SERVER_S = 10.0
_LINE_S = 1.0
_LISTEN_S = 30.0

# Port 18515 of perftest, in the state LISTEN; with another port this only takes its time.
_LISTENS = (
    "until grep -q ':4853 [0-9A-F]*:0000 0A' /proc/net/tcp /proc/net/tcp6 2>/dev/null; "
    "do sleep 0.1; done"
)


@dataclass(frozen=True)
class PairResult:
    """How the sizes went. `hung_at`: the size that had no end in time; the rest was not tried."""

    exit_code: int
    hung_at: int | None
    seconds: float
    nodes: tuple[str, str]
    argv: tuple[str, ...]


def first_two(spec: ClusterSpec, chosen: Sequence[str]) -> tuple[str, str]:
    """Return the nodes of the pair: the first two that may take ranks."""
    names = [node.name for _, node in spec.nodes if node.name in chosen or not chosen]
    if len(names) < 2:  # noqa: PLR2004 - a pair
        raise LaunchError("a pair needs two nodes", "give an arm with two nodes or more")
    return names[0], names[1]


def run_sizes(
    backend: Backend,
    runner: Runner,
    nodes: tuple[str, str],
    program: Sequence[str],
    sizes: Sequence[int],
    *,
    output: tuple[IO[bytes], IO[bytes]],
    size_s: float,
) -> PairResult:
    """Run `program -s SIZE` on the first node and `program -s SIZE ADDRESS` on the second, by size.

    The client's output counts. Raises LaunchError when a node is not there.
    """
    addresses = {status.name: status.address for status in backend.status()}
    if nodes[0] not in addresses:
        raise LaunchError(f"no node {nodes[0]}", "is the cluster up?")
    env = {"PATH": "/usr/bin:/bin", MARKER: new_name("pair")}
    begin, code, hung_at = time.monotonic(), 0, None
    stdout, stderr = output
    argv: list[str] = []
    for size in sizes:
        served = [*program, "-s", str(size)]
        argv = [*served, addresses[nodes[0]]]
        try:
            server = runner.converse(backend.on_node(nodes[0], served, env=env), stderr=stderr)
            patience = 0.0
            try:
                # Into a pipe it says that it waits for its client when all is over. A client that
                # comes too soon gives up at once.
                if server.receive(_LINE_S) is None:
                    asked = backend.on_node(nodes[0], ["/bin/sh", "-c", _LISTENS], env=env)
                    runner.run(asked, timeout_s=_LISTEN_S)
                ended = runner.attach(
                    backend.on_node(nodes[1], argv, env=env),
                    stdout=stdout,
                    stderr=stderr,
                    timeout_s=size_s,
                )
                patience = 0.0 if ended.timed_out or ended.code else _SERVER_S
            finally:
                other = server.finish(patience)
        finally:
            backend.end_marked(f"{MARKER}={env[MARKER]}")
        if ended.timed_out:
            hung_at = size
            break
        # A client that failed leaves its server waiting: what ended the server says nothing then.
        code = next((c if c >= 0 else 128 - c for c in (ended.code, other) if c), 0)
        if code:
            break
    return PairResult(code, hung_at, time.monotonic() - begin, nodes, tuple(argv))
