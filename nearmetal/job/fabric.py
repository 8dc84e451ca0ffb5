# SPDX-License-Identifier: Apache-2.0
"""The RDMA fabric of a cluster that is up: nodes are read, and pairs of them send to each other.

Pairs without a common host send side by side. A pair that reaches too little beside others is
measured again alone, because they may share a link.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import combinations, pairwise

from nearmetal.cluster.backend import SWEEP, Backend
from nearmetal.core.errors import BackendError, CommandError, LogError
from nearmetal.core.process import AT_ONCE, Command, Completed, Runner
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
    falls_short,
    judge_nodes,
    judge_pair,
    line_rate,
)
from nearmetal.host.parse.ibverbs import MAX_TEXT, SCRIPT, RdmaNode, parse_node
from nearmetal.job.client_server import LISTEN_S, NodeEntrance, first_words, patience, serve
from nearmetal.job.places import MARKER, new_name

_CLEAR_S = 30.0
_PATH = "/usr/bin:/bin"
_LATENCY_BYTES = 2
_MAX_WORDS = 4096
_TO_GBIT = {Unit.GIGABITS_PER_SECOND: 1.0, Unit.MEBIBYTES_PER_SECOND: 8 * 2**20 / 1e9}
_BANDWIDTH, _LATENCY = "ib_send_bw", "ib_send_lat"
_SENDERS = {_BANDWIDTH, _LATENCY}
_METRICS = {"bw": ("bandwidth",), "lat": ("latency",)}
TYPICAL = {"bw": ("bandwidth",), "lat": ("latency_typical", "latency")}
"""The figures of a program by the end of its name, the best first: of latencies, the median."""

_BROKEN = (BackendError, CommandError)

_UNMEASURED = (
    "compare `nearmetal status` and ibv_devinfo of both nodes; `--pairs none` leaves this check out"
)

NEXT, ALL, NONE = "next", "all", "none"


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
    read_s: float = 60.0
    """Time limit of reading a node."""


@dataclass
class Verified:
    """What was read, measured and found."""

    nodes: dict[str, RdmaNode] = field(default_factory=dict)
    sends: list[tuple[Sends, float]] = field(default_factory=list)
    """Each with the Gbit/s that the pair can reach; 0: not known."""
    findings: list[FabricFinding] = field(default_factory=list)


@dataclass(frozen=True)
class FabricNodes:
    """The nodes, and the mark of all that is started in them."""

    backend: NodeEntrance
    runner: Runner
    marker: str = field(default_factory=lambda: new_name("verify"))

    @property
    def env(self) -> dict[str, str]:
        """The environment of programs in the nodes."""
        return {"PATH": _PATH, MARKER: self.marker}

    def ask(
        self, argv: Sequence[str], names: Sequence[str], env: Mapping[str, str], timeout_s: float
    ) -> dict[str, Completed | str]:
        """Run a program in each of these nodes, side by side; returns its end, or why it has none."""
        found: dict[str, Completed | str] = {}
        commands: dict[str, Command] = {}
        for name in names:
            try:
                commands[name] = replace(self.backend.on_node(name, argv, env=env), most=MAX_TEXT)
            except BackendError as error:
                found[name] = error.message
        try:
            ends = self.runner.run_all(list(commands.values()), timeout_s=timeout_s)
            found |= dict(zip(commands, ends, strict=True))
        except CommandError:
            # The error does not name its node: each command is run alone.
            for name, command in commands.items():
                try:
                    found[name] = self.runner.run(command, timeout_s=timeout_s)
                except CommandError as error:
                    found[name] = error.message
        return {name: found[name] for name in names}

    def clear(self, names: Sequence[str]) -> list[FabricFinding]:
        """End what was started in these nodes; returns a finding for each that may have a rest."""
        argv = ["/bin/sh", "-c", f'marker=$1{SWEEP}[ -z "$found" ]', "sh"]
        argv.append(f"{MARKER}={self.marker}")
        ends = self.ask(argv, list(dict.fromkeys(names)), {"PATH": _PATH}, _CLEAR_S)
        what = "programs of this check may still run in it"
        remedy = "end perftest (ib_*) in it, for example with `nearmetal exec`"
        return [
            FabricFinding(name, "node", Level.WARNING, what, remedy)
            for name, ended in ends.items()
            if isinstance(ended, str) or ended.timed_out or ended.code
        ]


def read_nodes(nodes: FabricNodes, names: Sequence[str], limit_s: float) -> Verified:
    """Read each node. One that does not answer is a fault of its own."""
    fabric = Verified()
    ends = nodes.ask(["/bin/sh", "-c", SCRIPT], names, nodes.env, limit_s)
    hanging = []
    for name, ended in ends.items():
        if isinstance(ended, Completed) and not ended.timed_out and "== code" in ended.text:
            fabric.nodes[name] = parse_node(ended.text)
            continue
        fabric.findings.append(_silent(name, ended, limit_s))
        if isinstance(ended, Completed) and ended.text:
            hanging.append(name)
    fabric.findings += nodes.clear(hanging) if hanging else []
    return fabric


def _silent(name: str, ended: Completed | str, limit_s: float) -> FabricFinding:
    remedy = "see `nearmetal status`"
    if isinstance(ended, str):
        what = ended
    elif "== ibv_devinfo" in ended.text:
        what = f"ibv_devinfo did not end in {limit_s:g} s"
        remedy = "look for the driver's words in `dmesg`"
    elif ended.timed_out:
        what = f"it does not answer in {limit_s:g} s"
    else:
        what = f"it does not answer: {ended.error_tail or 'no word'}"
    return FabricFinding(name, "node", Level.FAULT, what, remedy)


def pairs_of(names: Sequence[str], which: str) -> list[tuple[str, str]]:
    """Return the pairs to measure, server and client: each node and the next, in a ring; or all."""
    if which == NONE or len(names) < 2:  # noqa: PLR2004 - a pair
        return []
    return list(combinations(names, 2)) if which == ALL else list(pairwise([*names, names[0]]))


@dataclass(frozen=True)
class FabricPair:
    """Two active ports, server and client, and how the client reaches the server."""

    ends: tuple[End, End]
    address: str

    @property
    def names(self) -> tuple[str, str]:
        """The nodes."""
        return self.ends[0].node, self.ends[1].node


def rounds_of(pairs: Sequence[FabricPair], hosts: Mapping[str, str]) -> list[list[FabricPair]]:
    """Return all pairs in rounds, whose pairs have no host in common."""
    rounds: list[tuple[list[FabricPair], set[str]]] = []
    for pair in pairs:
        used = {hosts[name] for name in pair.names}
        for members, busy in rounds:
            if len(members) < AT_ONCE and not busy & used:
                members.append(pair)
                busy.update(used)
                break
        else:
            rounds.append(([pair], used))
    return [members for members, _ in rounds]


@dataclass
class FabricMeasurement:
    """Measures pairs. `rests`: the nodes that may have programs left."""

    nodes: FabricNodes
    test: FabricTest
    metrics: Mapping[str, Sequence[str]] = field(default_factory=lambda: _METRICS)
    rests: list[FabricFinding] = field(default_factory=list)

    def measure(self, pairs: Sequence[FabricPair]) -> list[Sends]:
        """Measure the bandwidth of all pairs side by side, then their latency."""
        found = [Sends(*p.names, p.ends[1].device.name, self.test.size) for p in pairs]
        for program, size in ((_BANDWIDTH, self.test.size), (_LATENCY, _LATENCY_BYTES)):
            able = [n for n, sends in enumerate(found) if not sends.why]
            figures = self.figures([pairs[n] for n in able], program, size)
            for number, figure in zip(able, figures, strict=True):
                sends = found[number]
                if isinstance(figure, str):
                    found[number] = replace(sends, why=figure)
                elif program == _BANDWIDTH:
                    found[number] = replace(sends, gbit=figure)
                else:
                    found[number] = replace(sends, latency_us=figure)
        return found

    def figures(self, pairs: Sequence[FabricPair], program: str, size: int) -> list[float | str]:
        """Return Gbit/s or µs of each pair, or why there is none."""
        figures: list[float | str] = []
        try:
            figures = self._send(pairs, program, size)
        except _BROKEN as error:
            # The error does not name its pair: below, each pair is measured alone.
            if len(pairs) == 1:
                return [error.message]
        finally:
            failed = [
                name
                for number, pair in enumerate(pairs)
                if number >= len(figures) or isinstance(figures[number], str)
                for name in pair.names
            ]
            self.rests += self.nodes.clear(failed) if failed else []
        return figures or [one for pair in pairs for one in self.figures([pair], program, size)]

    def _send(self, pairs: Sequence[FabricPair], program: str, size: int) -> list[float | str]:
        backend, runner, env = self.nodes.backend, self.nodes.runner, self.nodes.env
        with ExitStack() as stack:
            servers, words = [], []
            for pair in pairs:
                words.append(stack.enter_context(first_words(_MAX_WORDS)))
                argv = self._argv(pair.ends[0], program, size)
                stderr = words[-1].stream
                server = serve(backend, runner, pair.names[0], argv, env=env, stderr=stderr)
                stack.callback(server.finish, 0.0)
                servers.append(server)
            deadline = time.monotonic() + LISTEN_S
            for server in servers:
                server.receive(max(0.0, deadline - time.monotonic()))
            clients = [
                backend.on_node(
                    pair.names[1], [*self._argv(pair.ends[1], program, size), pair.address], env=env
                )
                for pair in pairs
            ]
            ends = runner.run_all(
                [replace(client, most=MAX_TEXT) for client in clients],
                timeout_s=self.test.timeout_s,
            )
            codes = [
                server.finish(patience(end)) for server, end in zip(servers, ends, strict=True)
            ]
            said = [one.text() for one in words]
        return [self._figure(program, *found) for found in zip(ends, codes, said, strict=True)]

    def _argv(self, end: End, program: str, size: int) -> list[str]:
        gid = "" if end.gid is None else f" -x {end.gid}"
        place = f"-d {end.device.name} -i {end.port.number}{gid}"
        return f"{program} -F {place} -s {size} -n {self.test.iterations}".split()

    def _figure(self, program: str, client: Completed, code: int, words: str) -> float | str:
        """Return the figure of one program from the ends of both sides, or why there is none."""
        if client.timed_out:
            return f"{program} did not end in {self.test.timeout_s:g} s"
        if client.code or code:
            return (
                f"{program} failed: client {client.code}, {client.error_tail or 'no word'}; "
                f"server {code}, {words or 'no word'}"
            )
        try:
            tables = parse_log(client.text, program, "perftest").tables
        except LogError as error:
            return error.message
        wanted = self.metrics[program.rpartition("_")[2]]
        for metric in wanted:
            for table in tables:
                for column in table.columns:
                    if column.metric == metric and table.rows and metric in table.rows[-1].values:
                        return table.rows[-1].values[metric] * _TO_GBIT.get(column.unit, 1.0)
        return f"{program} printed no {wanted[-1]}"


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
    entered = FabricNodes(backend, runner)
    fabric = read_nodes(entered, names, test.read_s)
    nodes = {name: chosen(node, test.device) for name, node in fabric.nodes.items()}
    fabric.findings += judge_nodes(nodes, site, test.device)
    able = [name for name, node in nodes.items() if node.tools >= _SENDERS and node.devices]
    listed = pairs_of(able, test.pairs)
    if test.pairs != NONE and not listed:
        what = "nothing was measured: fewer than two nodes can send"
        fabric.findings.append(FabricFinding("all", "sends", Level.OK, what))
    places = {status.name: status for status in backend.status()} if listed else {}
    pairs = []
    for two in listed:
        ends, address = ends_of(two, nodes), places[two[0]].address if two[0] in places else ""
        if ends is None or not address:
            why = f"{two[0]} has no address" if ends else "no two active ports have one link layer"
            what, about = f"not measured: {why}", f"{two[1]} to {two[0]}"
            # A check that was asked for and did not run is not passed.
            fabric.findings.append(FabricFinding(about, "sends", Level.FAULT, what, _UNMEASURED))
        else:
            pairs.append(FabricPair(ends, address))
    hosts = {name: "" if site.shares_devices else place.host for name, place in places.items()}
    measurement = FabricMeasurement(entered, test)
    found: dict[tuple[str, str], Sends] = {}
    progress.begin(len(pairs))
    for group in rounds_of(pairs, hosts):
        for pair in group:
            progress.step(" and ".join(pair.names))
        for pair, sends in zip(group, measurement.measure(group), strict=True):
            found[pair.names] = sends
        for pair in group if len(group) > 1 else ():
            if falls_short(found[pair.names], pair.ends, site, test.least):
                (found[pair.names],) = measurement.measure([pair])
    for pair in pairs:
        sends = found[pair.names]
        fabric.sends.append((sends, line_rate(pair.ends, site)))
        fabric.findings += judge_pair(sends, pair.ends, site, test.least)
    fabric.findings += dict.fromkeys(measurement.rests)
    return fabric
