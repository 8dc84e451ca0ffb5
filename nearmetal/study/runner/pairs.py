# SPDX-License-Identifier: Apache-2.0
"""Programs without MPI on two nodes: a process on each, over libfabric, or client and server."""

from __future__ import annotations

import shutil
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

from nearmetal.cluster.backends.local.driver import MEETING
from nearmetal.core.errors import LaunchError
from nearmetal.core.resources import provider_library
from nearmetal.job.places import MARKER, new_name
from nearmetal.job.stats import JobVerdict, Proof, judge, read_stats

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from nearmetal.cluster.backend import Backend
    from nearmetal.cluster.spec import ClusterSpec
    from nearmetal.core.process import Runner

_PARTNER_S = 20.0
_SUFFIXES = ("", ".stats", ".providers", ".addresses")


@dataclass(frozen=True)
class FabricResult:
    """How the pair ended. `exit_code`: the first process's, else the second's."""

    exit_code: int
    timed_out: bool
    seconds: float
    ranks: tuple[tuple[str, int], ...]
    argv: tuple[str, ...]
    env: dict[str, str]
    proof: Proof


@contextmanager
def _directories(meeting: Path, job: str, library: Path) -> Iterator[Path]:
    """Make what the pair shares, and remove it; yields where the counters are left."""
    paths = [meeting / (job + suffix) for suffix in _SUFFIXES]
    try:
        for path in paths:
            path.mkdir(mode=0o700)
        (paths[2] / library.name).symlink_to(library)
        yield paths[1]
    finally:
        for path in paths:
            shutil.rmtree(path, ignore_errors=True)


def pair_of(spec: ClusterSpec) -> tuple[str, str, str]:
    """Return the first host with two nodes, and these; raises LaunchError when there is none.

    The two exchange addresses through a directory, which only nodes of one host share.
    """
    for host in spec.hosts:
        if len(host.nodes) > 1:
            return host.name, host.nodes[0].name, host.nodes[1].name
    raise LaunchError(
        "no two nodes share a host, so a fabric-level pair cannot exchange addresses",
        "put two nodes on one host of the spec",
    )


def run_pair(
    backend: Backend,
    spec: ClusterSpec,
    runner: Runner,
    program: Sequence[str],
    *,
    channels: Sequence[str] | None,
    output: tuple[IO[bytes], IO[bytes]],
    timeout_s: float,
    nodes: tuple[str, str] | None = None,
    foreign: bool = False,
) -> FabricResult:
    """Run `program -r RANK -d DIRECTORY` on two nodes of one host; the first one's output counts.

    `nodes` None: the first two of one host. `foreign`: over another provider than ours.
    """
    host, first, second = pair_of(spec)
    if nodes is not None:
        host = next(h.name for h in spec.hosts for n in h.nodes if n.name == nodes[0])
        first, second = nodes
    job = new_name("fabric")
    env = {
        "PATH": "/usr/bin:/bin",
        MARKER: job,
        "FI_PROVIDER_PATH": str(MEETING / f"{job}.providers"),
        "NEARMETAL_RUNDIR": str(MEETING / job),
        "NEARMETAL_STATS_DIR": str(MEETING / f"{job}.stats"),
    }
    if channels is not None:
        env["NEARMETAL_CHANNELS"] = ",".join(channels)
    argv = [[*program, "-r", str(rank), "-d", str(MEETING / f"{job}.addresses")] for rank in (0, 1)]
    stdout, stderr = output
    with _directories(backend.meeting_directory(host), job, provider_library()) as counters:
        try:
            partner = runner.converse(backend.on_node(second, argv[1], env=env), stderr=stderr)
            try:
                ended = runner.attach(
                    backend.on_node(first, argv[0], env=env),
                    stdout=stdout,
                    stderr=stderr,
                    timeout_s=timeout_s,
                )
            finally:
                other = partner.finish(_PARTNER_S)
            codes = [c if c >= 0 else 128 - c for c in (ended.code, other)]
            proof = judge(read_stats(counters), 2)
            if foreign:
                proof = Proof(JobVerdict.NOT_ASKED, "another provider was requested")
        finally:
            backend.end_marked(f"{MARKER}={job}")
    code = codes[0] or codes[1]
    if code:
        proof = Proof(JobVerdict.NOT_ASKED, "the pair failed")
    ranks = ((first, 1), (second, 1))
    return FabricResult(code, ended.timed_out, ended.seconds, ranks, tuple(argv[0]), env, proof)


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
