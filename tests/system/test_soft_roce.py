# SPDX-License-Identifier: Apache-2.0
"""RDMA without an adapter: two virtual machines with soft-RoCE devices, and verbs between them.

MPI goes over the network channel with `verbs;ofi_rxm` inside; perftest over the devices themselves.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from nearmetal.check.performance.run import Order
from nearmetal.check.rdma import RdmaMeasurement
from nearmetal.cli.arguments import open_target
from nearmetal.cluster.ssh_nodes import Nodes
from nearmetal.core.process import LocalRunner
from nearmetal.core.progress import Silent
from nearmetal.evidence import read_manifest
from nearmetal.study.store import Study
from tests.system import hypervisors
from tests.system.faults.peer import ECONNRESET, EHOSTUNREACH, PROGRAM, Peer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nearmetal.core.ssh import Login
    from tests.system.faults.arena import Arena

ROOT = Path(__file__).parents[2]
PROGRAMS = ROOT / "build" / "programs"
CACHE = ROOT / "build" / "image-cache"
HANG_S = 300.0
"""Ends a wait that hangs: the machines are emulated, and may be slow."""

pytestmark = [
    pytest.mark.system,
    pytest.mark.root,
    pytest.mark.timeout(3000),
]

hypervisors.need()

SPEC = """\
version: 1
name: roce
backend: libvirt
accel: tcg
network: {{subnet: 10.83.0.0/24, bridge: {bridge}}}
hosts:
  - {{name: h1, uri: "{first}", nodes: [{{name: n1, memory: 1 GiB, soft_roce: true}}]}}
  - {{name: h2, uri: "{second}", nodes: [{{name: n2, memory: 1 GiB, soft_roce: true}}]}}
"""

ADDRESSES = {"n1": "10.83.0.11", "n2": "10.83.0.12"}
NODES = tuple(ADDRESSES)
VERBS = ("--env", "NEARMETAL_NET=verbs")
SENT = "/sys/class/infiniband/rxe_eth0/ports/1/hw_counters/sent_pkts"

STUDY = """\
format: 1
name: roce
arms:
  roce:
    cluster: {spec}
    platform: virtual machine
    fabric: soft-RoCE
    placement: one rank per node
workloads:
  latency: {{use: perftest-write-lat, args: [-F, -n, "5"]}}
  writes: {{use: perftest-write-bw, args: [-F, -n, "5"]}}
launches: {{least: 1, most: 1}}
"""


@dataclass
class Site:
    """A cluster that is up, and the command line on it."""

    spec: Path
    state: Path
    second: hypervisors.Hypervisor

    @property
    def env(self) -> dict[str, str]:
        mine = ("NEARMETAL_", "OMPI_", "FI_")
        env = {k: v for k, v in os.environ.items() if not k.startswith(mine)}
        return env | {
            "NEARMETAL_STATE_DIR": str(self.state),
            "NEARMETAL_CACHE_DIR": str(CACHE),
            "PYTHONPATH": str(ROOT),
        }

    def argv(self, *args: str) -> list[str]:
        return [sys.executable, "-m", "nearmetal", *args]

    def run(
        self, *args: str, stdin: bytes = b"", timeout: float = 900
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            self.argv(*args),
            env=self.env,
            cwd=ROOT,
            check=False,
            input=stdin,
            capture_output=True,
            timeout=timeout,
        )
        out, err = (stream.decode(errors="replace") for stream in (done.stdout, done.stderr))
        return subprocess.CompletedProcess(done.args, done.returncode, out, err)

    def ok(self, *args: str, stdin: bytes = b"") -> str:
        done = self.run(*args, stdin=stdin)
        assert done.returncode == 0, f"{args}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def tell(self, node: str, script: str, stdin: bytes = b"") -> str:
        return self.ok("exec", str(self.spec), node, "--", "sh", "-c", script, stdin=stdin).strip()

    def as_root(self, node: str, script: str) -> None:
        """Run a shell script as root of a node; the user of jobs is not."""
        where: dict[str, tuple[str, Login | None]] = {node: (ADDRESSES[node], None)}
        nodes = Nodes(self.state / "clusters" / "roce", where, LocalRunner())
        nodes.check(node, "a change", ["sh", "-c", script])

    def job(self, *words: str) -> dict[str, Any]:
        """Run a job that must end well; returns the answer of `run`."""
        answer: dict[str, Any] = json.loads(self.ok("run", "--json", str(self.spec), *words))
        return answer

    def sent(self) -> int:
        """Return how many packets both devices have sent, as the kernels count them."""
        return sum(int(self.tell(node, f"cat {SENT}")) for node in NODES)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Two machines on two hosts, so that nothing but the network leads from one to the other."""
    before = hypervisors.machine_things("roce")
    directory = tmp_path_factory.mktemp("roce")
    with hypervisors.bridged() as (first, second, bridge):
        spec = directory / "roce.yaml"
        spec.write_text(SPEC.format(bridge=bridge, first=first.uri, second=second.uri))
        place = Site(spec, directory / "state", second)
        try:
            place.ok("up", str(spec))
            yield place
        finally:
            done = place.run("down", "--yes", str(spec))
        assert done.returncode == 0, done.stderr
    assert hypervisors.traces("roce", before, place.state) == []


def peers_over_net(answer: dict[str, Any]) -> list[dict[str, Any]]:
    found = [
        peer
        for endpoint in answer["stats"]
        for peer in endpoint["peers"]
        if "net" in peer["channels"]
    ]
    assert found
    return found


def carried_by(answer: dict[str, Any]) -> set[str]:
    """Return the inner providers that carried messages between the nodes, as endpoints told it."""
    return {peer["reason"].partition(" on ")[0] for peer in peers_over_net(answer)}


@pytest.mark.full
def test_random_traffic_goes_over_verbs(site: Site) -> None:
    before = site.sent()
    answer = site.job(
        *VERBS,
        "-n",
        "2",
        "--",
        str(PROGRAMS / "openmpi5" / "mpi_traffic"),
        "-n",
        "300",
        "-s",
        "7",
        "-b",
        "10M",
        "-w",
        "300",
    )
    assert carried_by(answer) == {"verbs;ofi_rxm"}
    messages = sum(peer["sent_messages"] for peer in peers_over_net(answer))
    assert messages >= 300
    assert site.sent() - before >= messages


@pytest.mark.full
def test_verbs_is_what_auto_takes_where_there_is_a_device(site: Site) -> None:
    answer = site.job("-n", "2", "--", str(PROGRAMS / "openmpi5" / "mpi_hello"))
    assert carried_by(answer) == {"verbs;ofi_rxm"}
    # By hand in the first node, as a person would who logs in there.
    hello = (PROGRAMS / "openmpi5" / "mpi_hello").read_bytes()
    for node in NODES:
        site.tell(node, "cat >/tmp/hello && chmod 755 /tmp/hello", stdin=hello)
    before = site.sent()
    told = site.tell("n1", ". /etc/profile.d/nearmetal.sh; mpirun -n 2 --map-by node /tmp/hello")
    assert "hello from 2 ranks: every token came back" in told
    assert site.sent() > before


WITH_VERBS = (
    ". /etc/profile.d/nearmetal.sh; "
    "export NEARMETAL_CHANNELS=self,net NEARMETAL_NET=verbs NEARMETAL_LOG=info "
    "NEARMETAL_KEEPALIVE_MS=200"
)


@pytest.fixture(scope="module")
def peers(site: Site) -> Site:
    """The same machines, each with a program that does what one command line after the other says."""
    for node in NODES:
        site.tell(
            node, "cat >/tmp/fabric_peer && chmod 755 /tmp/fabric_peer", stdin=PROGRAM.read_bytes()
        )
    return site


def endpoint(site: Site, node: str, script: str, *commands: str) -> tuple[str, str]:
    """Return what an endpoint said that was set up so, and its log."""
    done = site.run(
        "exec",
        str(site.spec),
        node,
        "--",
        "sh",
        "-c",
        f"{WITH_VERBS}; {script}; exec /tmp/fabric_peer",
        stdin="".join(f"{line}\n" for line in commands).encode(),
    )
    return done.stdout, done.stderr


@pytest.mark.full
@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("export FI_UNIVERSE_SIZE=1024", "set FI_UNIVERSE_SIZE to the number of processes"),
        ("ulimit -l 64", "raise the limit of locked memory (ulimit -l)"),
        ("export FI_PROVIDER=nearmetal,tcp", "set FI_PROVIDER=nearmetal,verbs"),
        ("export FI_VERBS_IFACE=none", "verbs;ofi_rxm: no usable device"),
    ],
)
def test_a_wrong_setup_is_told_with_what_to_do(peers: Site, script: str, words: str) -> None:
    _, log = endpoint(peers, "n1", script, "open")
    assert "network channel unavailable" in log
    assert words in log


@pytest.mark.full
def test_an_endpoint_over_tcp_is_refused_not_waited_for(peers: Site) -> None:
    told, log = endpoint(peers, "n2", "export NEARMETAL_NET=tcp", "open")
    assert "tcp on eth0 (10.83.0.12)" in log
    address = told.split("ready ")[1].split()[0]
    told, log = endpoint(peers, "n1", ":", "open", f"insert n2 {address}", "send s n2 8 1")
    assert "verbs;ofi_rxm on rxe_eth0 (10.83.0.11)" in log
    assert f"failed s {EHOSTUNREACH}" in told or f"error s {EHOSTUNREACH}" in told
    assert "set FI_PROVIDER and NEARMETAL_NET alike everywhere" in log


def remote_peer(site: Site, arena: Arena, node: str) -> Peer:
    script = f"{WITH_VERBS}; exec /tmp/fabric_peer"
    prefix = site.argv("exec", str(site.spec), node, "--", "sh", "-c", script)
    knobs = {"STATE_DIR": str(site.state), "CACHE_DIR": str(CACHE)}
    return arena.start(node, knobs, prefix=tuple(prefix))


@pytest.mark.full
def test_who_waits_for_a_peer_that_dies_is_told(peers: Site, arena: Arena) -> None:
    """Nothing is on its way then, and the layer over verbs says nothing of a broken connection."""
    a, b = (remote_peer(peers, arena, node) for node in NODES)
    for peer in (a, b):
        peer.tell("open")
    for peer in (a, b):
        (peer.address,) = peer.expect("ready", within_s=HANG_S)
        assert len(bytes.fromhex(peer.address)) == 64
    for peer, other in ((a, b), (b, a)):
        peer.tell("insert", other.name, other.address)
        peer.expect("inserted", other.name, within_s=HANG_S)
    for sender, receiver in ((a, b), (b, a)):
        receiver.tell("recv", "r", sender.name, 100_000, 7)
        sender.tell("send", "s", receiver.name, 100_000, 7)
        told = receiver.expect("done", "r", "recv", within_s=HANG_S)
        assert told == ["100000", "7", "good"]
        sender.expect("done", "s", "send", within_s=HANG_S)
    a.tell("recv", "last", "n2", 8, 9)
    a.expect("posted", "last", within_s=HANG_S)
    peers.tell("n2", "pkill -KILL -x fabric_peer")
    b.killed = True
    assert a.expect("error", "last", within_s=HANG_S)[0] == str(ECONNRESET)
    assert a.process.stdin is not None
    a.process.stdin.close()
    assert a.process.wait(HANG_S) == 0
    assert any(" is lost: " in line for line in a.log_lines), a.log


def test_the_fabric_is_verified(site: Site) -> None:
    """With the MTU of the guests' interfaces, RoCE packets are small, which is a warning."""
    answer = json.loads(site.ok("host", "verify", str(site.spec), "--iterations", "20", "--json"))
    for name in NODES:
        (device,) = answer["nodes"][name]["devices"]
        assert (device["name"], device["is_software"]) == ("rxe_eth0", True)
        (port,) = device["ports"]
        assert (port["state"], port["link_layer"]) == ("PORT_ACTIVE", "Ethernet")
        assert [interface["name"] for interface in port["interfaces"]] == ["eth0"]
    assert [(s["client"], s["server"]) for s in answer["sends"]] == [("n2", "n1"), ("n1", "n2")]
    for sends in answer["sends"]:
        assert sends["gbit"] > 0
        assert sends["latency_us"] > 0
        assert sends["line_gbit"] == 0
    assert [f for f in answer["findings"] if f["severity"] == "fault"] == []
    warned = {f["what"] for f in answer["findings"] if f["severity"] == "warning"}
    assert "RoCE packets carry 1024 bytes of an interface MTU of 1500" in warned


def faults(done: subprocess.CompletedProcess[str]) -> list[tuple[str, str]]:
    """Return node and fault of each, of a `host verify --json` that found some."""
    assert done.returncode == 4, done.stderr
    found = json.loads(done.stdout)["findings"]
    return [(f["node"], f["what"]) for f in found if f["severity"] == "fault"]


def test_a_device_and_a_program_that_are_gone_are_faults(site: Site) -> None:
    """The programs of the pair are not started then."""
    verify = ("host", "verify", str(site.spec), "--json")
    site.as_root("n2", "rdma link delete rxe_eth0 && mv /usr/bin/ib_send_lat /run/")
    try:
        done = site.run(*verify)
    finally:
        add = "rdma link add rxe_eth0 type rxe netdev eth0"
        site.as_root("n2", f"{add} && cp /run/ib_send_lat /usr/bin/ && rm /run/ib_send_lat")
    assert faults(done) == [("n2", "ib_send_lat: missing"), ("n2", "no RDMA device")]
    assert json.loads(done.stdout)["sends"] == []
    assert site.run(*verify, "--pairs", "none").returncode == 0


@pytest.mark.full
def test_a_machine_that_stands_still_is_a_fault_in_bounded_time(site: Site) -> None:
    (machine,) = site.second.machines()
    os.kill(machine, signal.SIGSTOP)
    try:
        begin = time.monotonic()
        done = site.run("host", "verify", str(site.spec), "--json")
        assert time.monotonic() - begin < 150
    finally:
        os.kill(machine, signal.SIGCONT)
    ((node, what),) = faults(done)
    assert node == "n2"
    assert what.startswith("it does not answer")
    assert list(json.loads(done.stdout)["nodes"]) == ["n1"]


def test_writes_of_pairs_are_measured_for_the_check_of_performance(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The verb compares four nodes or more: its measurement is asked for this pair alone."""
    for name, value in site.env.items():
        monkeypatch.setenv(name, value)
    cluster, _ = open_target(str(site.spec))
    before = site.sent()
    rdma = RdmaMeasurement(
        cluster.backend, LocalRunner(), NODES, lambda: ADDRESSES, Silent(), limit_s=HANG_S
    )
    for quantity, least in (("rdma_latency", 1.0), ("rdma_bandwidth", 0.01)):
        values = rdma.ask(Order(quantity, (NODES,))).values
        assert rdma.failures == {}
        assert set(values) == {NODES, NODES[::-1]}
        assert all(least < value < 1e6 for value in values.values())
    # Each direction: 1000 writes and answers of 2 bytes, and 1000 of 64 KiB in packets of 1 KiB.
    assert site.sent() - before > 2 * 64 * 1000
    assert rdma.lacking == {}


@pytest.mark.full
def test_perftest_is_measured_and_read(site: Site, tmp_path: Path) -> None:
    """Writes only: over soft-RoCE five sends of 8 MiB took over a minute, those of 4 MiB seconds."""
    study, run, target = tmp_path / "study.yaml", tmp_path / "run", tmp_path / "study"
    study.write_text(STUDY.format(spec=site.spec))
    site.ok("study", "run", str(study), "--output", str(run))
    launches = read_manifest(run).launches
    assert [launch.good for launch in launches] == [True] * 2
    for launch in launches:
        assert launch.facts["carried_by"] == "verbs (as configured; not counted)"
        assert "-n 5" in " ".join(launch.argv)
        # The device has no rate to judge by: what its file says is a constant of the driver.
        assert "rxe_eth0 software" in launch.facts["functions"]
        assert "link" not in launch.facts
    site.ok("study", "import", str(run), "--output", str(target))
    cells = Study(target).cells()
    found = {(cell.point.test, cell.point.metric, cell.point.size) for cell in cells}
    for test, metric in (("rdma_write_latency", "latency"), ("rdma_write_bw", "bandwidth")):
        assert {size for t, m, size in found if (t, m) == (test, metric)} >= {2, 1 << 23}
