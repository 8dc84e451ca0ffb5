# SPDX-License-Identifier: Apache-2.0
"""The RDMA fabric of a cluster that is up: nodes are read, and pairs of them send to each other."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, pairwise

from nearmetal.cluster.backend import Backend
from nearmetal.core.errors import BackendError, CommandError, LaunchError, LogError
from nearmetal.core.process import Command, Completed, Runner
from nearmetal.core.progress import Progress
from nearmetal.evidence import Unit, parse_log
from nearmetal.host.fabric import (
    LEAST_SHARE,
    End,
    FabricFinding,
    FabricSite,
    Level,
    Sends,
    chosen,
    ends_of,
    judge_nodes,
    judge_pair,
    line_rate,
)
from nearmetal.host.parse.ibverbs import MAX_TEXT, SCRIPT, RdmaNode, parse_node
from nearmetal.job.client_server import meet
from nearmetal.job.places import MARKER, new_name

_READ_S = 60.0
_LATENCY_BYTES = 2
_MAX_WORDS = 4096
_TO_GBIT = {Unit.GIGABITS_PER_SECOND: 1.0, Unit.MEBIBYTES_PER_SECOND: 8 * 2**20 / 1e9}
_SENDERS = {"ib_send_bw", "ib_send_lat"}
_BROKEN = (BackendError, CommandError, LaunchError, LogError)

NEXT, ALL, NONE = "next", "all", "none"
PAIRS = (NEXT, ALL, NONE)


@dataclass(frozen=True)
class FabricTest:
    """How the fabric is verified. `device` '': the best active one of each pair."""

    device: str = ""
    pairs: str = NEXT
    size: int = 1 << 16
    """Bytes of a message of the bandwidth."""
    iterations: int = 1000
    least: float = LEAST_SHARE
    timeout_s: float = 60.0
    """Of one measurement."""


@dataclass
class Verified:
    """What was read, measured and found."""

    nodes: dict[str, RdmaNode] = field(default_factory=dict)
    sends: list[tuple[Sends, float]] = field(default_factory=list)
    """Each with the Gbit/s that the pair can reach; 0: not known."""
    findings: list[FabricFinding] = field(default_factory=list)


def read_nodes(backend: Backend, runner: Runner, names: Sequence[str]) -> Verified:
    """Read each node. One that does not answer is a fault of its own."""
    marker = new_name("verify")
    env = {"PATH": "/usr/bin:/bin", MARKER: marker}
    commands = [
        replace(backend.on_node(name, ["/bin/sh", "-c", SCRIPT], env=env), most=MAX_TEXT)
        for name in names
    ]
    fabric = Verified()
    try:
        ends = runner.run_all(commands, timeout_s=_READ_S)
    finally:
        backend.end_marked(f"{MARKER}={marker}")
    for name, ended in zip(names, ends, strict=True):
        if ended.timed_out or "== code" not in ended.text:
            fabric.findings.append(_silent(name, ended))
        else:
            fabric.nodes[name] = parse_node(ended.text)
    return fabric


def _silent(name: str, ended: Completed) -> FabricFinding:
    asked = "== ibv_devinfo" in ended.text
    what = (
        f"ibv_devinfo did not end in {_READ_S:g} s"
        if asked
        else f"it does not answer: {ended.error_tail or 'no word'}"
    )
    remedy = "look for the driver's words in `dmesg`" if asked else "see `nearmetal status`"
    return FabricFinding(name, "node", Level.FAULT, what, remedy)


def pairs_of(names: Sequence[str], which: str) -> list[tuple[str, str]]:
    """Return the pairs to measure, server and client: each node and the next, in a ring; or all."""
    if which == NONE or len(names) < 2:  # noqa: PLR2004 - a pair
        return []
    return list(combinations(names, 2)) if which == ALL else list(pairwise([*names, names[0]]))


def verify(
    backend: Backend,
    runner: Runner,
    names: Sequence[str],
    site: FabricSite,
    test: FabricTest,
    *,
    progress: Progress,
) -> Verified:
    """Read the nodes, measure the pairs that can send, and judge both."""
    fabric = read_nodes(backend, runner, names)
    nodes = {name: chosen(node, test.device) for name, node in fabric.nodes.items()}
    fabric.findings += judge_nodes(nodes, site, test.device)
    able = [name for name, node in nodes.items() if node.tools >= _SENDERS and node.devices]
    listed = pairs_of(able, test.pairs)
    if test.pairs != NONE and not listed:
        what = "nothing was measured: fewer than two nodes can send"
        fabric.findings.append(FabricFinding("all", "sends", Level.OK, what))
    addresses = {status.name: status.address for status in backend.status()} if listed else {}
    progress.begin(len(listed))
    for pair in listed:
        progress.step(" and ".join(pair))
        ends = ends_of(pair, nodes)
        if ends is None:
            what = "no two active ports have the same link layer"
            fabric.findings.append(
                FabricFinding(f"{pair[1]} to {pair[0]}", "sends", Level.OK, f"not measured: {what}")
            )
            continue
        sends = _Measurement(backend, runner, ends, addresses[pair[0]], test).measure()
        fabric.sends.append((sends, line_rate(ends, site)))
        fabric.findings += judge_pair(sends, ends, site, test.least)
    return fabric


@dataclass(frozen=True)
class _Measurement:
    """Two active ports, and how to reach the server."""

    backend: Backend
    runner: Runner
    ends: tuple[End, End]
    address: str
    test: FabricTest

    def measure(self) -> Sends:
        """Measure bandwidth, then latency."""
        server, client = self.ends
        found = Sends(server.node, client.node, client.device.name, self.test.size)
        try:
            gbit = self._send("ib_send_bw", self.test.size, "bandwidth")
            latency = self._send("ib_send_lat", _LATENCY_BYTES, "latency")
        except _BROKEN as error:
            return replace(found, why=error.message)
        return replace(found, gbit=gbit, latency_us=latency)

    def _argv(self, end: End, program: str, size: int) -> list[str]:
        gid = "" if end.gid is None else f" -x {end.gid}"
        place = f"-d {end.device.name} -i {end.port.number}{gid}"
        return f"{program} -F {place} -s {size} -n {self.test.iterations}".split()

    def _send(self, program: str, size: int, metric: str) -> float:
        """Return Gbit/s or µs of one program; raises an error of _BROKEN."""
        env = {"PATH": "/usr/bin:/bin", MARKER: new_name("verify")}
        server, client = (self._argv(end, program, size) for end in self.ends)
        with tempfile.TemporaryFile() as stderr:
            try:
                ended, code = meet(
                    self.backend,
                    self.runner,
                    (self.ends[0].node, self.ends[1].node),
                    (server, client),
                    self.address,
                    env=env,
                    start=self._start,
                    stderr=stderr,
                )
            finally:
                self.backend.end_marked(f"{MARKER}={env[MARKER]}")
            stderr.seek(0)
            words = stderr.read(_MAX_WORDS).decode("utf-8", "replace").strip()
        if ended.timed_out:
            raise LaunchError(f"{program} did not end in {self.test.timeout_s:g} s")
        if ended.code or code:
            raise LaunchError(
                f"{program} failed: client {ended.code}, {ended.error_tail or 'no word'}; "
                f"server {code}, {words or 'no word'}"
            )
        return _figure(ended.text, program, metric)

    def _start(self, client: Command) -> Completed:
        return self.runner.run(replace(client, most=MAX_TEXT), timeout_s=self.test.timeout_s)


def _figure(text: str, program: str, metric: str) -> float:
    for table in parse_log(text, program, "perftest").tables:
        for column in table.columns:
            if column.metric == metric and table.rows and metric in table.rows[-1].values:
                return table.rows[-1].values[metric] * _TO_GBIT.get(column.unit, 1.0)
    raise LogError(f"{program} printed no {metric}")
