# SPDX-License-Identifier: Apache-2.0
"""Measuring for `check performance`: real agents on this machine, each on an address of its own."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from nearmetal.check import measure, mpi_job
from nearmetal.check.collect import Gathered
from nearmetal.check.measure import Agents, measure_cluster
from nearmetal.check.performance.classes import NodeClasses
from nearmetal.check.performance.run import BY_MPI, MEASURED, PERFORMANCE, Order, run_text
from nearmetal.cli.main import main
from nearmetal.cluster.backend import Backend
from nearmetal.cluster.model import ClusterSpec
from nearmetal.core.errors import BackendError
from nearmetal.core.process import Command, LocalRunner
from nearmetal.core.progress import Silent
from nearmetal.core.resources import share
from nearmetal.job.places import MARKER
from tests.python.check_nodes import content_of, facts_of
from tests.python.check_performance_clusters import measure as measured
from tests.python.check_performance_clusters import names

NAMES = ("n1", "n2", "n3")


@dataclass
class Here:
    """A backend whose nodes are this machine. `odd`: what runs in a node in place of the agent."""

    odd: dict[str, Sequence[str]] = field(default_factory=dict)
    swept: list[str] = field(default_factory=list)

    def status(self) -> list[Any]:
        return [
            SimpleNamespace(name=name, address=f"127.0.0.{number}", host="h1")
            for number, name in enumerate(NAMES, 1)
        ]

    def on_node(self, node: str, argv: Sequence[str], *, env: dict[str, str]) -> Command:
        if node == "dead":
            raise BackendError("node dead is not up")
        return Command(tuple(self.odd.get(node, argv)), env)

    def end_marked(self, marker: str) -> int:
        self.swept.append(marker)
        return 0


def spec_of(names: Sequence[str]) -> ClusterSpec:
    """Return what measuring needs of a spec: nodes with their slots."""
    nodes = [(None, SimpleNamespace(name=name, slots=1)) for name in names]
    return cast(ClusterSpec, SimpleNamespace(nodes=nodes, slots=len(nodes)))


def agents(backend: Here, names: Sequence[str] = NAMES, limit_s: float = 5.0) -> Agents:
    at = {name: f"127.0.0.{number}" for number, name in enumerate(names, 1)}
    return Agents(cast(Backend, backend), LocalRunner(), at, Silent(), limit_s)


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    """No agent of this process outlives a test."""
    yield
    deadline = time.monotonic() + 5
    while (left := marked()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert left == []


def marked(pid: int | None = None) -> list[str]:
    """Return the processes that a run of this process has marked."""
    word = f"{MARKER}=check-{pid or os.getpid()}-".encode()
    found = []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if any(one.startswith(word) for one in environ.read_bytes().split(b"\0")):
                found.append(environ.parent.name)
    return found


def test_every_quantity_has_a_possible_value() -> None:
    backend = Here()
    with agents(backend) as running:
        for name in ("memory", "processor"):
            turn = running.ask(Order(name, (("n1",), ("n2",))))
            assert set(turn.values) == {("n1",), ("n2",)}
            assert all(value > 0.01 for value in turn.values.values())
        for name in ("latency", "bandwidth"):
            turn = running.ask(Order(name, (("n1", "n2"),)))
            assert set(turn.values) == {("n1", "n2"), ("n2", "n1")}
            assert all(value > 0.1 for value in turn.values.values())
    assert running.failures == {}
    assert backend.swept == []


def test_a_node_that_cannot_be_entered_costs_its_own_values() -> None:
    backend = Here(odd={"n2": ("sh", "-c", "echo no way in >&2; exit 127")})
    with agents(backend, ("n1", "n2", "dead")) as running:
        assert running.failures == {("n2",): "no way in", ("dead",): "node dead is not up"}
        assert set(running.ask(Order("memory", (("n1",), ("n2",)))).values) == {("n1",)}
    assert len(backend.swept) == 1


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("not json", "not valid JSON"),
        ("[1]", "not a JSON object"),
        ('{"version": 1, "port": true}', "no port"),
        ('{"version": 1, "port": 70000}', "no port"),
        ('{"version": 2, "port": 7000}', "no port"),
        ('{"version": 1, "port": 7, "x": "' + "y" * 5000 + '"}', "larger"),
    ],
)
def test_a_hostile_agent_is_given_up(said: str, why: str) -> None:
    backend = Here(odd={"n2": ("sh", "-c", 'echo "$1"; exec sleep 60', "sh", said)})
    with agents(backend) as running:
        assert why in running.failures["n2",]
        assert set(running.ask(Order("memory", (("n1",), ("n2",)))).values) == {("n1",)}


HELLO = '{"version": 1, "port": 9}'


@pytest.mark.parametrize("value", ["1e400", "NaN"])
def test_a_number_that_is_not_finite_costs_only_its_node(value: str) -> None:
    script = f"read a; echo '{HELLO}'; cat | while read b; do echo '{{\"value\": {value}}}'; done"
    with agents(Here(odd={"n2": ("sh", "-c", script)})) as running:
        turn = running.ask(Order("memory", (("n1",), ("n2",))))
    assert set(turn.values) == {("n1",)}
    assert ("n2",) in running.failures


def test_a_node_that_hangs_is_given_up_and_the_others_go_on() -> None:
    backend = Here(odd={"n3": ("sh", "-c", f"echo '{HELLO}'; exec sleep 300")})
    begin = time.monotonic()
    with agents(backend, limit_s=1.0) as running:
        turn = running.ask(Order("latency", (("n1", "n3"),)))
        assert turn.values == {}
        assert set(running.ask(Order("latency", (("n1", "n2"), ("n3",)))).values) == {
            ("n1", "n2"),
            ("n2", "n1"),
        }
    assert list(running.failures) == [("n3",)]
    assert "no answer in 4 s" in running.failures["n3",]
    assert time.monotonic() - begin < 30
    assert len(backend.swept) == 1


@pytest.mark.parametrize("first", ["exec sleep 300", f"echo '{HELLO}'; exec sleep 300"])
def test_a_node_that_hangs_first_takes_no_other_along(first: str) -> None:
    hanging = agents(Here(odd={"n3": ("sh", "-c", first)}), ("n3", "n1", "n2"), 3.0)
    hanging.start_s = 3.0
    with hanging as running:
        turn = running.ask(Order("processor", (("n3",), ("n1",), ("n2",))))
    assert set(turn.values) == {("n1",), ("n2",)}
    assert list(running.failures) == [("n3",)]


def test_a_pair_without_a_connection_keeps_its_reason() -> None:
    late = '{"why": "a wall", "number": 1}'
    script = f"echo '{HELLO}'; sleep 0.3; echo '{late}'; exec sleep 60"
    with agents(Here(odd={"n3": ("sh", "-c", script)}), limit_s=1.0) as running:
        assert running.ask(Order("bandwidth", (("n1", "n3"),))).values == {}
    assert set(running.failures) == {("n1", "n3"), ("n3", "n1")}
    assert "bandwidth: a wall" in running.failures.values()
    assert "bandwidth: Connection refused" in running.failures.values()


def order(agent: subprocess.Popen[bytes], words: dict[str, Any]) -> None:
    assert agent.stdin is not None
    agent.stdin.write(json.dumps(words).encode() + b"\n")
    agent.stdin.flush()


@contextlib.contextmanager
def agent_that_listens() -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Run an agent alone, and yield it with its port."""
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-B", share("check", "measure.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as agent:
        try:
            assert agent.stdout is not None
            order(agent, {"address": "127.0.0.1"})
            yield agent, json.loads(agent.stdout.readline())["port"]
        finally:
            agent.kill()


DIGEST = hashlib.sha256(b"k" * 32).hexdigest().encode()


def greet(link: socket.socket) -> None:
    """Show the key, and end our own messages before they begin."""
    link.sendall(b"k" * 32 + b"\1" * 8)
    assert link.recv(len(DIGEST), socket.MSG_WAITALL) == DIGEST


@pytest.mark.parametrize("said", [b"k" * 64, b"220 ready\r\n", DIGEST.swapcase()])
def test_another_program_at_the_address_of_a_partner_gets_the_key_alone(said: bytes) -> None:
    """A hostile agent may name any address: its partner must not send data there."""
    with agent_that_listens() as (agent, _), socket.create_server(("127.0.0.1", 0)) as other:
        words = {"measure": "bandwidth", "seconds": 0.05, "limit": 2, "key": "k" * 32}
        order(agent, words | {"peer": ["127.0.0.1", other.getsockname()[1]]})
        link = other.accept()[0]
        with link:
            link.settimeout(9)
            link.sendall(said)
            assert b"".join(iter(lambda: link.recv(1 << 16), b"")) == b"k" * 32
        assert agent.stdout is not None
        why = json.loads(agent.stdout.readline())["why"]
        late = "no result in 2 s" if len(said) < len(DIGEST) else "another program listens"
        assert why.startswith(late) or why == "timed out"
        agent.communicate()
    assert agent.returncode == 0


def test_a_stranger_without_the_key_is_turned_away() -> None:
    with agent_that_listens() as (agent, port):
        assert agent.stdout is not None
        order(agent, {"measure": "latency", "seconds": 0.05, "limit": 9, "key": "k" * 32})
        address = ("127.0.0.1", port)
        with (
            socket.create_connection(address),
            socket.create_connection(address) as wrong,
            socket.create_connection(address) as right,
        ):
            wrong.sendall(b"x" * 32)
            greet(right)
            wrong.settimeout(9)
            assert wrong.recv(1) == b""
            while (got := right.recv(8)) != b"\1" * 8:
                right.sendall(got)
        assert json.loads(agent.stdout.readline())["value"] > 0
        agent.communicate()
    assert agent.returncode == 0


def drip(link: socket.socket) -> None:
    """Send a byte now and then, until the other side has enough."""
    with contextlib.suppress(OSError):
        while True:
            link.sendall(b"x")
            time.sleep(0.3)


@pytest.mark.parametrize("callers", [12, 100])
def test_no_caller_holds_up_another(callers: int) -> None:
    with agent_that_listens() as (agent, port), contextlib.ExitStack() as stack:
        order(agent, {"measure": "latency", "seconds": 0.05, "limit": 5, "key": "k" * 32})
        silent = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port), 5))
            for _ in range(callers)
        ]
        dripper = threading.Thread(target=drip, args=(silent[0],))
        dripper.start()
        with socket.create_connection(("127.0.0.1", port), 9) as right:
            greet(right)
            while (got := right.recv(8)) not in (b"\1" * 8, b""):
                right.sendall(got)
        assert agent.stdout is not None
        assert "value" in json.loads(agent.stdout.readline())
        agent.communicate()
        dripper.join()


def test_a_caller_has_one_second_for_all_of_its_key() -> None:
    with agent_that_listens() as (agent, port):
        order(agent, {"measure": "latency", "seconds": 0.05, "limit": 8, "key": "k" * 32})
        with socket.create_connection(("127.0.0.1", port), 9) as link:
            begin = time.monotonic()
            drip(link)
            assert time.monotonic() - begin < 5
        agent.communicate()


def test_a_limit_ends_an_order_and_not_the_agent() -> None:
    with agent_that_listens() as (agent, _):
        assert agent.stdout is not None
        order(agent, {"measure": "latency", "seconds": 0.05, "limit": 0.3, "key": "k"})
        assert json.loads(agent.stdout.readline())["why"] == "no result in 0.3 s"
        order(agent, {"measure": "memory", "seconds": 30, "limit": 0.5, "key": "k"})
        assert json.loads(agent.stdout.readline())["why"] == "no result in 0.5 s"
        order(agent, {"measure": "processor", "seconds": 0.05, "limit": 9, "key": "k"})
        assert json.loads(agent.stdout.readline())["value"] > 0
        agent.communicate()
    assert agent.returncode == 0


def children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


@pytest.mark.parametrize("name", ["memory", "latency", "bandwidth"])
def test_the_end_of_the_input_ends_an_order(name: str) -> None:
    with agent_that_listens() as (agent, port), contextlib.ExitStack() as stack:
        order(agent, {"measure": name, "seconds": 60, "limit": 60, "key": "k"})
        if name == "bandwidth":  # the other node says nothing more
            link = stack.enter_context(socket.create_connection(("127.0.0.1", port), 9))
            link.sendall(b"k")
        time.sleep(1.0)
        started = children(agent.pid)
        assert bool(started) == (name == "memory")
        assert agent.stdin is not None
        agent.stdin.close()
        assert agent.wait(10) == 0
        assert [pid for pid in started if Path("/proc", pid).exists()] == []


PROGRAM = """
import signal
import sys
sys.path.insert(0, {root!r})
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
from tests.python.test_check_measure import *
with agents(Here()) as running:
    print("begins", flush=True)
    while True:
        running.ask(Order("memory", (("n1",), ("n2",))))
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_kill_leaves_nothing(number: int) -> None:
    root = str(Path(__file__).parents[2])
    with subprocess.Popen(
        [sys.executable, "-B", "-c", PROGRAM.format(root=root)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as program:
        try:
            assert program.stdout is not None
            program.stdout.readline()
            time.sleep(0.5)
            assert len(marked(program.pid)) >= len(NAMES)
            program.send_signal(number)
            program.wait(20)
        finally:
            program.kill()
    deadline = time.monotonic() + 10
    while (left := marked(program.pid)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert left == []


def test_a_whole_run_keeps_how_it_was_measured_and_what_failed() -> None:
    backend = Here(odd={"n3": ("sh", "-c", "echo no way in >&2; exit 1")})
    run = measure_cluster(
        cast(Backend, backend),
        spec_of((*NAMES, "n9")),
        LocalRunner(),
        ("processor", "latency"),
        NodeClasses(),
        limit_s=5.0,
        progress=Silent(),
    )
    assert list(run.setup) == ["processor", "latency"]
    assert run.failures == {("n3",): "no way in", ("n9",): "it is not up"}
    met = [item for turn in run.screening if turn.quantity == "latency" for item in turn.values]
    assert met.count(("n1", "n2")) == met.count(("n2", "n1")) == 3


def test_the_text_of_every_quantity_is_kept_with_a_run() -> None:
    assert set(measure._SETUP) == set(measure._SECONDS) == set(MEASURED)
    assert set(mpi_job.ORDERS) == set(mpi_job._SECONDS) == set(BY_MPI)


EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize(
    ("spec", "options", "why"),
    [
        ("two-nodes.yaml", (), "a cluster of 2 nodes has no majority"),
        ("vms-two.yaml", (), "a cluster of 2 nodes has no majority"),
        ("two-by-two.yaml", ("--measure", "luck"), "unknown measurement 'luck'"),
        (
            "two-by-two.yaml",
            ("--timeout", "0.1"),
            "--timeout: '0.1' is not a number of seconds from 2 to 3600",
        ),
        (
            "two-by-two.yaml",
            ("--timeout", "inf"),
            "--timeout: 'inf' is not a number of seconds from 2 to 3600",
        ),
        (
            "two-by-two.yaml",
            ("--timeout", "1e10"),
            "--timeout: '1e10' is not a number of seconds from 2 to 3600",
        ),
        ("two-by-two.yaml", ("--output", "."), ". exists"),
        ("two-by-two.yaml", ("--output", "no/where"), "no is no directory"),
    ],
)
def test_what_the_verb_refuses(
    spec: str, options: Sequence[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", "performance", str(EXAMPLES / spec), *options]) == 2
    assert why in capsys.readouterr().err


def test_a_collection_with_a_run_is_judged_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = measured(names(5), lambda q, i: 1.5 if q == "memory" and "n1" in i else 1.0)
    gathered = Gathered({name: content_of(facts_of(1)) for name in run.names})
    gathered.clocks = dict.fromkeys(run.names, (0.0, 0.0))
    for folder in ("one", "two"):
        gathered.write(tmp_path / folder, {PERFORMANCE: run_text(run)})
    found = main(["check", "analyse", "--json", "--fail-at", "warning", str(tmp_path / "one")])
    seen = json.loads(capsys.readouterr().out)
    assert found == 4
    assert ("performance.memory", ["n1"]) in [(f["check"], f["nodes"]) for f in seen["findings"]]
    assert "performance.latency" in seen["checks"]
    assert main(["check", "analyse", str(tmp_path / "one"), str(tmp_path / "two")]) == 2
    assert "a second run of `check performance`" in capsys.readouterr().err
