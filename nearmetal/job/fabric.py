# SPDX-License-Identifier: Apache-2.0
"""The RDMA fabric of a cluster that is up: nodes are read, and pairs of them send to each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations, pairwise

from nearmetal.cluster.backend import Backend
from nearmetal.core.errors import LaunchError, LogError
from nearmetal.core.process import Runner
from nearmetal.core.progress import Progress
from nearmetal.evidence import Unit, parse_log
from nearmetal.host.fabric import LEAST_SHARE, FabricFinding, Sends, chosen, judge_nodes, judge_pair
from nearmetal.host.parse.ibverbs import SCRIPT, RdmaDevice, RdmaNode, RdmaPort, parse_node
from nearmetal.job.client_server import meet
from nearmetal.job.places import MARKER, new_name

_READ_S = 60.0
_LATENCY_BYTES = 2
_TO_GBIT = {Unit.GIGABITS_PER_SECOND: 1.0, Unit.MEBIBYTES_PER_SECOND: 8 * 2**20 / 1e9}

NEXT, ALL, NONE = "next", "all", "none"
PAIRS = (NEXT, ALL, NONE)


@dataclass(frozen=True)
class FabricTest:
    """How the fabric is verified. `device` '': the first active one of each node."""

    device: str = ""
    pairs: str = NEXT
    size: int = 1 << 16
    """Bytes of a message of the bandwidth."""
    iterations: int = 1000
    least: float = LEAST_SHARE
    timeout_s: float = 60.0
    """Of one measurement."""


@dataclass(frozen=True)
class _End:
    """One side of a pair."""

    node: str
    device: RdmaDevice
    port: RdmaPort

    def argv(self, program: str, size: int, iterations: int) -> list[str]:
        """Return a command line of perftest."""
        gid = "" if self.port.roce_gid is None else f" -x {self.port.roce_gid}"
        place = f"-d {self.device.name} -i {self.port.number}{gid}"
        return f"{program} -F {place} -s {size} -n {iterations}".split()


def read_nodes(backend: Backend, runner: Runner, names: Sequence[str]) -> dict[str, RdmaNode]:
    """Return what each node shows; raises LaunchError for a node that does not answer."""
    commands = [backend.on_node(name, ["/bin/sh", "-c", SCRIPT]) for name in names]
    ends = runner.run_all(commands, timeout_s=_READ_S)
    for name, ended in zip(names, ends, strict=True):
        if ended.timed_out or "== ibv_devinfo" not in ended.text:
            raise LaunchError(
                f"node {name} does not answer: {ended.error_tail or 'it printed nothing'}",
                "`nearmetal status` shows its health",
            )
    return {name: parse_node(ended.text) for name, ended in zip(names, ends, strict=True)}


def pairs_of(names: Sequence[str], which: str) -> list[tuple[str, str]]:
    """Return the pairs to measure: `next` each node and the next one, in a ring; `all`; `none`."""
    if which == NONE or len(names) < 2:  # noqa: PLR2004 - a pair
        return []
    both = list(combinations(names, 2))
    return both if which == ALL or len(both) == 1 else list(pairwise([*names, names[0]]))


@dataclass(frozen=True)
class _Measurement:
    """Two active ports, and how to reach the server."""

    backend: Backend
    runner: Runner
    server: _End
    client: _End
    address: str
    wanted: FabricTest

    def measure(self) -> Sends:
        """Measure bandwidth, then latency."""
        pair, size = (self.server.node, self.client.node), self.wanted.size
        try:
            gbit = self._send("ib_send_bw", size, "bandwidth")
            latency = self._send("ib_send_lat", _LATENCY_BYTES, "latency")
        except (LaunchError, LogError) as error:
            return Sends(*pair, size, None, None, error.message)
        return Sends(*pair, size, gbit, latency)

    def _send(self, program: str, size: int, metric: str) -> float:
        """Return Gbit/s or µs of one program; raises LaunchError or LogError."""
        env = {"PATH": "/usr/bin:/bin", MARKER: new_name("verify")}
        server, client = (
            end.argv(program, size, self.wanted.iterations) for end in (self.server, self.client)
        )
        try:
            ended, _ = meet(
                self.backend,
                self.runner,
                (self.server.node, self.client.node),
                (server, client),
                self.address,
                env=env,
                start=partial(self.runner.run, timeout_s=self.wanted.timeout_s),
            )
        finally:
            self.backend.end_marked(f"{MARKER}={env[MARKER]}")
        if ended.timed_out:
            raise LaunchError(f"{program} did not end in {self.wanted.timeout_s:g} s")
        if ended.code:
            raise LaunchError(f"{program} ended with {ended.code}: {ended.error_tail}")
        return _figure(ended.text, program, metric)


def _figure(text: str, program: str, metric: str) -> float:
    for table in parse_log(text, program, "perftest").tables:
        for column in table.columns:
            if column.metric == metric and table.rows and metric in table.rows[-1].values:
                return table.rows[-1].values[metric] * _TO_GBIT.get(column.unit, 1.0)
    raise LogError(f"{program} printed no {metric}")


def _end(name: str, node: RdmaNode, device: str) -> _End | None:
    active = (
        _End(name, d, p)
        for d in chosen(node, device).devices
        for p in d.ports
        if p.state == "PORT_ACTIVE"
    )
    return next(active, None)


def verify(
    backend: Backend, runner: Runner, names: Sequence[str], wanted: FabricTest, progress: Progress
) -> tuple[dict[str, RdmaNode], list[FabricFinding]]:
    """Read the nodes, measure the pairs whose ports are active, and judge both."""
    nodes = read_nodes(backend, runner, names)
    found = judge_nodes(nodes, wanted.device)
    addresses = {status.name: status.address for status in backend.status()}
    listed = pairs_of(names, wanted.pairs)
    progress.begin(len(listed))
    for pair in listed:
        progress.step(" and ".join(pair))
        server, client = (_end(name, nodes[name], wanted.device) for name in pair)
        if server is None or client is None:
            continue  # the node's own finding says why
        address = addresses[server.node]
        measured = _Measurement(backend, runner, server, client, address, wanted).measure()
        software = server.device.is_software or client.device.is_software
        found += judge_pair(measured, server.port, software=software, least=wanted.least)
    return nodes, found
