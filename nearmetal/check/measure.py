# SPDX-License-Identifier: Apache-2.0
"""Measures the nodes of a cluster and the traffic between them, by one agent in each node.

The agents live as long as the run. They get their text and their orders on standard input, so they
end with us in any case, and no file of them is left. A node that hangs is given up after the limit
of one order; the others go on.
"""

from __future__ import annotations

import errno
import ipaddress
import json
import re
import secrets
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any, Self, TypeGuard

from nearmetal.check.collect import python_argv
from nearmetal.check.hpl import HplMeasurement
from nearmetal.check.mpi_job import MpiMeasurement
from nearmetal.check.performance.classes import NodeClasses
from nearmetal.check.performance.neighbours import why_not
from nearmetal.check.performance.procedure import perform
from nearmetal.check.performance.run import (
    BY_HPL,
    BY_MPI,
    BY_RDMA,
    LIMIT_S,
    MAX_TEXT,
    NOISE,
    QUANTITIES,
    Item,
    MeasuredTurn,
    Order,
    PerformanceRun,
    is_possible,
)
from nearmetal.check.rdma import RdmaMeasurement
from nearmetal.check.snapshot import load_bounded
from nearmetal.check.ssh_hosts import SshHosts
from nearmetal.check.unmeasured import Unmeasured
from nearmetal.cluster.backend import Backend
from nearmetal.cluster.model import ClusterSpec
from nearmetal.core.errors import BackendError, CommandError, LogError
from nearmetal.core.process import AT_ONCE, Dialogue, Runner
from nearmetal.core.progress import Progress
from nearmetal.core.resources import share
from nearmetal.core.text import printable
from nearmetal.job.client_server import FirstWords, NodeEntrance, first_words
from nearmetal.job.places import MARKER, new_name

_SETUP: Mapping[str, str] = {
    "memory": "copies of 16 MiB by one process on each core, bytes read and written",
    "processor": "SHA-256 by one process on each core",
    "latency": "half a round trip of 8 bytes over TCP, the median",
    "bandwidth": "one TCP connection, messages of 128 KiB",
}
_NOISE_SETUP = "{0}: the time beside all nodes of the host or adapter, over alone"

VERSION = 1
"""Of the agent's answers."""

_SECONDS = {"memory": 0.3, "processor": 0.3, "latency": 0.1, "bandwidth": 0.1}
"""Of one value. A quota of a control group has periods of 0.1 s: a node gets several of them."""

_GRACE_S = 3.0
"""Time after the limit of an order in which an agent says that it was late."""

_START_S = 60.0
"""Time in which an agent must start: an emulated machine takes seconds to log in, and for Python."""

_REST_S = 0.5
"""Time to read an answer that came while another node hung."""

_READ_S = 0.5
"""Time in which an agent that waits for orders reads one; its pipe has room for hundreds."""

_FILES, _OWN_FILES = 4, 64
"""Open files for each agent: its input, its output, and both ends of its words; and others."""

_OURS = (errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM)
"""Errors of this machine when it starts a process."""

_MOST_WORDS = 4096
_MOST_ANSWER = 4096
_MOST_ADDRESS = 61
"""Bytes of an IPv6 address, %, and the longest name of an interface."""

_LOADER = "import sys; exec(sys.stdin.buffer.read(int(sys.stdin.buffer.readline())))"


def measure_cluster(
    backend: Backend,
    spec: ClusterSpec,
    runner: Runner,
    quantities: Sequence[str],
    classes: NodeClasses,
    *,
    limit_s: float = LIMIT_S,
    progress: Progress,
) -> PerformanceRun:
    """Measure the nodes of a cluster until all suspicions are settled.

    `limit_s`: of one measurement; a node that takes longer is given up.
    """
    names = [node.name for _, node in spec.nodes]
    found = {status.name: status for status in backend.status() if status.name in names}
    at = {name: (found[name].address or None) if name in found else None for name in names}
    hosts = {name: status.host for name, status in found.items() if status.host}
    agents = Agents(backend, runner, at, progress, limit_s)
    with (
        MpiMeasurement(backend, spec, runner, progress, limit_s) as job,
        HplMeasurement(backend, spec, runner, progress, limit_s) as hpl,
    ):
        return _measure(agents, quantities, classes, hosts, job=job, hpl=hpl)


def measure_hosts(
    hosts: SshHosts,
    quantities: Sequence[str],
    classes: NodeClasses,
    *,
    limit_s: float = LIMIT_S,
    progress: Progress,
) -> PerformanceRun:
    """Measure hosts that the user's own ssh reaches. Each agent finds out its own address."""
    agents = Agents(hosts, hosts.runner, dict.fromkeys(hosts.names, ""), progress, limit_s)
    return _measure(agents, quantities, classes, {})


def _measure(
    agents: Agents,
    quantities: Sequence[str],
    classes: NodeClasses,
    hosts: Mapping[str, str],
    *,
    job: MpiMeasurement | None = None,
    hpl: HplMeasurement | None = None,
) -> PerformanceRun:
    taken, names = time.time(), list(agents.at)
    rdma = RdmaMeasurement(
        agents.entrance,
        agents.runner,
        names,
        agents.addresses,
        agents.progress,
        agents.limit_s,
    )

    def ask(order: Order) -> MeasuredTurn:
        if order.quantity in BY_RDMA:
            return rdma.ask(order)
        if hpl and order.quantity in BY_HPL:
            return hpl.ask(order)
        return job.ask(order) if job and order.quantity in BY_MPI else agents.ask(order)

    with agents:
        known = classes.in_run(hosts, agents.software)
        lacking = {q: why_not(q, names, known) for q in quantities if QUANTITIES[q].noise_of}
        lacking = {quantity: why for quantity, why in lacking.items() if why}
        able = [quantity for quantity in quantities if quantity not in lacking]
        run = perform(names, able, ask, known, taken=taken)
    if hpl and "hpl" in able:
        hpl.measure_cluster()
        lacking |= hpl.lacking
    noise = {q: _NOISE_SETUP.format(_SETUP[QUANTITIES[q].noise_of]) for q in NOISE}
    setup = {**_SETUP, **noise, **rdma.setup}
    setup |= {**(job.setup if job else {}), **(hpl.setup if hpl else {})}
    lacking |= rdma.lacking
    lacking |= {n: why for n, why in job.lacking.items() if n in quantities} if job else {}
    return replace(
        run,
        setup={name: setup[name] for name in quantities if name in setup},
        failures=_together(agents.failures, rdma.failures, hpl.failures if hpl else {}),
        wrong=hpl.wrong if hpl else {},
        hosts=hosts,
        software=agents.software,
        lacking=lacking,
    )


def _together(*failures: Mapping[Item, str]) -> dict[Item, str]:
    """Return all reasons; an item may have some of each."""
    items = dict.fromkeys(item for found in failures for item in found)
    return {
        item: "; ".join(found[item] for found in failures if item in found)[:MAX_TEXT]
        for item in items
    }


_ADDRESS = re.compile(r"[0-9A-Fa-f:.]{2,45}(%[0-9A-Za-z_-]+(\.[0-9A-Za-z_-]+)*)?")


def _is_address(value: object) -> TypeGuard[str]:
    """Whether another agent can take it: the name of an interface is looked up as that of a host."""
    try:
        return (
            isinstance(value, str)
            and len(value) <= _MOST_ADDRESS
            and _ADDRESS.fullmatch(value) is not None
            and bool(ipaddress.ip_address(value))
        )
    except ValueError:
        return False


@dataclass
class _Agent:
    """An agent that runs. `address` and `port`: where the other agents reach it.

    `orders`: the number of the last order.
    """

    dialogue: Dialogue
    words: FirstWords
    address: str
    port: int = 0
    orders: int = 0


@dataclass
class Agents:
    """The agents of a cluster, as a context.

    `at`: the address of each node; "": its agent finds it out; None: the node is not up.
    """

    entrance: NodeEntrance
    runner: Runner
    at: Mapping[str, str | None]
    progress: Progress
    limit_s: float = LIMIT_S
    start_s: float = _START_S
    software: dict[str, str] = field(default_factory=dict)
    """What each node measures with: its Python, whose speed is part of the values."""
    _unmeasured: Unmeasured = field(init=False)
    _running: dict[str, _Agent] = field(default_factory=dict)
    _stack: ExitStack = field(default_factory=ExitStack)
    _quantity: str = ""
    _marker: str = field(default_factory=lambda: new_name("check"))

    def __post_init__(self) -> None:
        """Nothing has failed yet."""
        self._unmeasured = Unmeasured(len(self.at))

    def __enter__(self) -> Self:
        try:
            names = list(self.at)
            for first in range(0, len(names), AT_ONCE):
                some = names[first : first + AT_ONCE]
                for name in some:
                    self._start(name)
                deadline = time.monotonic() + max(self.start_s, self.limit_s + _GRACE_S)
                for name in some:
                    self._greet(name, deadline)
        except BaseException:
            self._close(broken=True)
            raise
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._close(broken=kind is not None or self._unmeasured.any_given_up)

    def addresses(self) -> dict[str, str]:
        """Return where each agent that runs can be reached."""
        return {name: agent.address for name, agent in self._running.items()}

    @property
    def failures(self) -> dict[Item, str]:
        """Nodes and pairs without a value, and why."""
        return self._unmeasured.reasons()

    def ask(self, order: Order) -> MeasuredTurn:
        """Measure side by side. What fails has no value, and its reason is kept.

        What has had several time-outs is not measured again.
        """
        quantity = QUANTITIES[order.quantity]
        if order.quantity != self._quantity:
            self._quantity = order.quantity
            self.progress.step(f"measures {quantity.title}")
        items = [
            item
            for item in order.items
            if all(name in self._running for name in item)
            and not self._unmeasured.is_left_out(order.quantity, item)
        ]
        begin = time.monotonic()
        deadline = begin + self.limit_s + _GRACE_S
        values: dict[Item, float] = {}
        for item in items:
            self._send(order, item)
        for item in items:
            # Of a pair, the first node measures the way there or its own round trips.
            answers = [self._value(name, deadline) for name in item]
            if order.quantity == "bandwidth":
                answers.reverse()  # the receiver knows
            ways = [item, item[::-1]] if quantity.of_pairs else [item]
            for way, found in zip(ways, answers, strict=True):
                if isinstance(found, float):
                    values[way] = found
                    self._unmeasured.succeed(order.quantity, way)
                elif all(name in self._running for name in item):
                    self._unmeasured.fail(order.quantity, way, found)
            failed = any(isinstance(found, str) for found in answers)
            failed &= all(name in self._running for name in item)
            # What failed early in a turn that another delays counts as late too: it has no value.
            if failed and time.monotonic() - begin >= self.limit_s:
                self._unmeasured.was_late(order.quantity, item)
        return MeasuredTurn(order.quantity, values)

    def _start(self, name: str) -> None:
        address = self.at[name]
        if address is None:
            self._give_up(name, "it is not up")
            return
        try:
            env = {"PATH": "/usr/bin:/bin", MARKER: self._marker}
            command = self.entrance.on_node(name, python_argv("-c", _LOADER), env=env)
            words = self._stack.enter_context(first_words(_MOST_WORDS))
            dialogue = self.runner.converse(command, stderr=words.stream)
            agent = self._running[name] = _Agent(dialogue, words, address)
            text = share("check", "measure.py").read_text(encoding="utf-8")
            dialogue.send(str(len(text.encode())), self.limit_s)
            dialogue.send(text.removesuffix("\n"), self.limit_s)
            dialogue.send(json.dumps({"address": agent.address}), self.limit_s)
        except OSError as error:
            raise self._too_small(error) from error
        except (BackendError, CommandError) as error:
            if isinstance(error.__cause__, OSError) and error.__cause__.errno in _OURS:
                raise self._too_small(error.__cause__) from error
            self._give_up(name, error.message)

    def _too_small(self, error: OSError) -> CommandError:
        """Return the error of a lack on this machine, which says nothing about a node."""
        need = _OWN_FILES + _FILES * len(self.at)
        return CommandError(
            f"this machine cannot run {len(self.at)} agents: {error.strerror}",
            f"ulimit -n {need}; if that is so already, the machine has too many processes",
        )

    def _greet(self, name: str, deadline: float) -> None:
        if name not in self._running:
            return
        hello = self._answer(name, deadline, "its agent does not start in time")
        if hello is None:
            return
        port, address = hello.get("port"), hello.get("address", self._running[name].address)
        if hello.get("version") != VERSION or type(port) is not int or not 0 < port < 1 << 16:
            self._give_up(name, "its agent gives no port")
        elif not _is_address(address):
            self._give_up(name, "its agent gives no address")
        else:
            self._running[name].address, self._running[name].port = address, port
            self.software[name] = printable(str(hello.get("software", "")))[:MAX_TEXT]

    def _send(self, order: Order, item: Item) -> None:
        """Give an order to a node, or to both of a pair: the first one connects to the second."""
        words: dict[str, Any] = {
            "measure": order.quantity,
            "seconds": _SECONDS[order.quantity] * order.times,
            "limit": self.limit_s,
            "key": secrets.token_hex(16),
        }
        for number, name in enumerate(item):
            if name not in self._running:
                continue
            peer = self._running.get(item[1 - number]) if number == 0 and len(item) > 1 else None
            agent = self._running[name]
            agent.orders += 1
            try:
                own = words | {"number": agent.orders}
                own |= {"peer": [peer.address, peer.port]} if peer else {}
                agent.dialogue.send(json.dumps(own), _READ_S)
            except CommandError as error:
                self._give_up(name, error.message)

    def _value(self, name: str, deadline: float) -> float | str:
        """Return the value that an agent answers, or why there is none."""
        late = f"no answer in {self.limit_s + _GRACE_S:g} s"
        found = self._answer(name, deadline, late) if name in self._running else None
        if found is not None and found.get("number") != self._running[name].orders:
            self._give_up(name, "it answers another order")
        elif found is not None:
            value, why = found.get("value"), found.get("why")
            if value is None and isinstance(why, str):
                return printable(why)[:MAX_TEXT]
            if is_possible(value):
                return float(value)
            self._give_up(name, "its value is not possible")
        return "it does not answer"

    def _answer(self, name: str, deadline: float, why: str) -> dict[str, Any] | None:
        """Return what an agent says; an agent that is silent or confused is given up.

        `why`: the reason if it is silent.
        """
        agent = self._running[name]
        try:
            line = agent.dialogue.receive(max(_REST_S, deadline - time.monotonic()))
            if line is not None:
                return load_bounded(line.encode(), name, most_bytes=_MOST_ANSWER)
        except (CommandError, LogError) as error:
            why = error.message
        self._give_up(name, why)
        return None

    def _give_up(self, name: str, why: str) -> None:
        """End the agent of a node, and keep the reason."""
        agent = self._running.get(name)
        if agent is not None:
            # After its end and not before: a signal in between leaves it to _close().
            agent.dialogue.finish(0.0)
            del self._running[name]
            said = agent.words.text().splitlines()
            why = said[-1] if said else why
        self._unmeasured.give_up(name, why)

    def _close(self, *, broken: bool) -> None:
        """End all agents. What may have outlived its way into a node is looked for there."""
        try:
            # Together: an agent that ignores the signal to end takes a while to be killed.
            with ThreadPoolExecutor(AT_ONCE) as pool:
                list(pool.map(lambda agent: agent.dialogue.finish(0.0), self._running.values()))
        finally:
            self._running.clear()
            self._stack.close()
            if broken:
                try:
                    self.entrance.end_marked(f"{MARKER}={self._marker}")
                except BackendError as error:
                    # The values, or what ended the run, say more than a cluster that went down.
                    self.progress.step(f"agents may be left in nodes: {error.message}")
