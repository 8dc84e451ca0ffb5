# SPDX-License-Identifier: Apache-2.0
"""Programs without MPI on two nodes: a process on each, over libfabric, or client and server."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from nearmetal.cluster.backend import Backend
from nearmetal.cluster.backends.local.driver import MEETING
from nearmetal.cluster.spec import ClusterSpec
from nearmetal.core.errors import LaunchError
from nearmetal.core.process import Runner
from nearmetal.core.resources import provider_library
from nearmetal.core.text import printable
from nearmetal.job.client_server import LISTEN_S, patience, serve
from nearmetal.job.places import MARKER, new_name
from nearmetal.job.run import Output
from nearmetal.job.stats import JobVerdict, Proof, judge, read_stats

_PARTNER_S = 20.0
_SUFFIXES = ("", ".stats", ".addresses")


@dataclass(frozen=True)
class PairResult:
    """The end of a pair. `exit_code` is that of the process that failed first."""

    exit_code: int
    timed_out: bool
    seconds: float
    ranks: tuple[tuple[str, int], ...]
    argv: tuple[str, ...]
    env: dict[str, str]
    proof: Proof
    hung_at: int | None = None
    """The size without an end in time; larger sizes were not tried."""


@contextmanager
def _directories(meeting: Path, job: str) -> Iterator[Path]:
    """Make the directories of a pair, and remove them; yields that of the counters."""
    paths = [meeting / (job + suffix) for suffix in _SUFFIXES]
    try:
        for path in paths:
            path.mkdir(mode=0o700)
        yield paths[1]
    finally:
        for path in paths:
            shutil.rmtree(path, ignore_errors=True)


def pair_of(spec: ClusterSpec) -> tuple[str, str, str]:
    """Return the first host with two nodes, and these nodes; raises LaunchError.

    A pair exchanges addresses through a directory, which only nodes of one host share.
    """
    for host in spec.hosts:
        if len(host.nodes) > 1:
            return host.name, host.nodes[0].name, host.nodes[1].name
    raise LaunchError(
        "no two nodes share a host: a fabric-level pair cannot exchange addresses",
        "put two nodes on one host of the spec",
    )


def run_pair(
    backend: Backend,
    spec: ClusterSpec,
    runner: Runner,
    program: Sequence[str],
    *,
    channels: Sequence[str] | None,
    output: Output,
    timeout_s: float,
    nodes: tuple[str, str] | None = None,
    foreign: bool = False,
    more: Mapping[str, str] | None = None,
) -> PairResult:
    """Run `program -r RANK -d DIRECTORY` on two nodes of one host; keep the output of rank 0.

    `nodes` None: the first two of one host. `foreign`: over the provider of another project.
    `more`: more of the environment.
    """
    host, *two = pair_of(spec)
    if nodes is not None:
        host = next(h.name for h in spec.hosts for n in h.nodes if n.name == nodes[0])
        two = list(nodes)
    job = new_name("fabric")
    env = {
        "PATH": "/usr/bin:/bin",
        MARKER: job,
        "FI_PROVIDER_PATH": str(provider_library().parent),
        "NEARMETAL_RUNDIR": str(MEETING / job),
        "NEARMETAL_STATS_DIR": str(MEETING / f"{job}.stats"),
        **(more or {}),
    }
    if channels is not None:
        env["NEARMETAL_CHANNELS"] = ",".join(channels)
    argv = [[*program, "-r", str(rank), "-d", str(MEETING / f"{job}.addresses")] for rank in (0, 1)]
    commands = [backend.on_node(two[rank], argv[rank], env=env) for rank in (0, 1)]
    with _directories(backend.meeting_directory(host), job) as counters:
        try:
            partner = runner.converse(commands[1], stderr=output.stderr)
            try:
                ended = runner.attach(
                    commands[0], stdout=output.stdout, stderr=output.stderr, timeout_s=timeout_s
                )
            finally:
                other = partner.finish(_PARTNER_S)
            proof = judge(read_stats(counters), 2)
            if foreign:
                proof = Proof(JobVerdict.NOT_ASKED, "the program uses another provider")
        finally:
            backend.end_marked(f"{MARKER}={job}")
    code = _exit_code(ended.code, other)
    if code:
        proof = Proof(JobVerdict.NOT_ASKED, "the pair failed")
    ranks = tuple((name, two.count(name)) for name in dict.fromkeys(two))
    return PairResult(code, ended.timed_out, ended.seconds, ranks, tuple(argv[0]), env, proof)


def require_gpu(backend: Backend, spec: ClusterSpec, runner: Runner, program: Path) -> str:
    """Return the name of the GPU of the pair; raises LaunchError if one of its nodes has none."""
    found = ""
    for node in pair_of(spec)[1:]:
        env = {"PATH": "/usr/bin:/bin", **loader_path()}
        done = runner.run(
            backend.on_node(node, [str(program), "-c"], env=env), timeout_s=_PARTNER_S
        )
        if done.code != 0:
            why = printable((done.error_tail.splitlines() or ["no reason given"])[-1])[:200]
            raise LaunchError(
                f"node {node} has no GPU that programs can use: {why}",
                "run it where `nvidia-smi` shows a GPU; LD_LIBRARY_PATH may name the directory of "
                "libcuda.so.1",
            )
        found = printable(done.text.strip())[:120]
    return found


def loader_path() -> dict[str, str]:
    """Return where the user's programs find the library of the GPU's driver."""
    name = "LD_LIBRARY_PATH"
    return {name: os.environ[name]} if os.environ.get(name) else {}


def _exit_code(*codes: int) -> int:
    """Return the first failure; a signal N is 128 + N, as in a shell."""
    return next((code if code > 0 else 128 - code for code in codes if code), 0)


def first_two(spec: ClusterSpec, chosen: Sequence[str]) -> tuple[str, str]:
    """Return the first two nodes that may take ranks."""
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
    output: Output,
    size_s: float,
) -> PairResult:
    """Run `program -s SIZE` on the first node and `program -s SIZE ADDRESS` on the second.

    Each size is a start of its own with its own time limit, so a hang has an exact size. The output
    of the client is kept. Raises LaunchError if a node is missing.
    """
    addresses = {status.name: status.address for status in backend.status()}
    if nodes[0] not in addresses:
        raise LaunchError(f"node {nodes[0]} is not up", "run `nearmetal up`")
    env = {"PATH": "/usr/bin:/bin", MARKER: new_name("pair")}
    begin, code, hung_at = time.monotonic(), 0, None
    argv: list[str] = []
    for size in sizes:
        served = [*program, "-s", str(size)]
        argv = [*served, addresses[nodes[0]]]
        try:
            server = serve(backend, runner, nodes[0], served, env=env, stderr=output.stderr)
            patience_s = 0.0
            try:
                server.receive(LISTEN_S)
                client = backend.on_node(nodes[1], argv, env=env)
                ended = runner.attach(
                    client, stdout=output.stdout, stderr=output.stderr, timeout_s=size_s
                )
                patience_s = patience(ended)
            finally:
                other = server.finish(patience_s)
        finally:
            backend.end_marked(f"{MARKER}={env[MARKER]}")
        if ended.timed_out:
            hung_at = size
            break
        # The code of the client comes first: a server without a client is ended from here.
        code = _exit_code(ended.code, other)
        if code:
            break
    proof = Proof(JobVerdict.NOT_ASKED, "perftest is not a job of an MPI")
    seconds = time.monotonic() - begin
    ranks, hung = tuple((name, 1) for name in nodes), hung_at is not None
    return PairResult(code, hung, seconds, ranks, tuple(argv), {}, proof, hung_at)
