# SPDX-License-Identifier: Apache-2.0
"""The network of a job's machines between two nodes: frames of others do not come in."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.system.local import ROOT, UID
from tests.system.need import lacking

pytestmark = [pytest.mark.system, pytest.mark.root, pytest.mark.timeout(120)]

if os.geteuid() != 0:
    pytest.skip("needs root: networks of its own", allow_module_level=True)
if shutil.which("nft", path="/usr/sbin:/usr/bin") is None:
    lacking("no nft: run `make setup-slurm`")

JOB = 16777293
"""The number of its network is 77."""

PREPARED = """\
import socket, sys
from pathlib import Path
from nearmetal.core.errors import SlurmError
from nearmetal.core.process import LocalRunner
from nearmetal.slurm import network
from nearmetal.slurm.reclaim import reclaim
from nearmetal.slurm.backend import ThisNode
from nearmetal.slurm.machines import members
job, state = int(sys.argv[1]), Path(sys.argv[2])
node = sys.argv[3]
wires = network.Wires(job, 0, node, {"n1": "10.79.0.1", "n2": "10.79.0.2"}, members(["n1", "n2"], 1))
"""
LISTEN = """\
network.make(wires, state / f"job-{job}", LocalRunner())
taken = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x88B5))
print("ready", flush=True)
while True:
    print(taken.recv(2048)[14:].rstrip(bytes(1)).decode(), flush=True)
"""
TALK = """\
network.make(wires, state / f"job-{job}", LocalRunner())
peer = ("10.216.0.1", 9999)
server = socket.create_server(peer) if node == "n1" else None
print("ready", flush=True)
if server:
    taken, _ = server.accept()
    print(sum(len(piece) for piece in iter(lambda: taken.recv(1 << 20), b"")), flush=True)
else:
    sys.stdin.readline()
    with socket.create_connection(peer, timeout=30) as way:
        way.sendall(bytes(20 << 20))
"""
TRY = """\
try:
    network.make(wires, state / f"job-{job}", LocalRunner())
except SlurmError as error:
    print(error.message, "|", error.hint)
"""
SEND = """\
import socket, sys
address, port, network, words = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sender.bind((address, port))
frame = b"\\xff" * 6 + bytes.fromhex("525400ff0001") + b"\\x88\\xb5" + words.encode().ljust(46, b"\\0")
sender.sendto(b"\\x08\\0\\0\\0" + network.to_bytes(3, "big") + b"\\0" + frame, ("10.79.0.1", 252))
"""


@dataclass
class Nodes:
    """Two nodes with a cable between them: a process in the network of each."""

    one: int
    two: int
    state: Path

    def on(self, pid: int, *argv: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["nsenter", "-t", str(pid), "-n", *argv],
            timeout=60,
            check=True,
            capture_output=True,
            text=True,
            cwd=ROOT,
        )

    def python(self, script: str, path: str = "") -> str:
        """Run our own code on the first node."""
        search = ["env", f"PATH={path}"] if path else []
        argv = (sys.executable, "-c", PREPARED + script, str(JOB), str(self.state), "n1")
        return self.on(self.one, *search, *argv).stdout

    def rules(self) -> str:
        return self.on(self.one, "nft", "list", "ruleset").stdout

    def send(
        self,
        words: str,
        *,
        address: str = "10.79.0.2",
        port: int = 252,
        network: int = 77,
        user: bool = False,
        own: bool = False,
    ) -> None:
        """Send a frame into the network of a job, from the other node unless it is our `own`."""
        who = ("setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups") if user else ()
        self.on(
            self.one if own else self.two,
            *who,
            "/usr/bin/python3",
            "-c",
            SEND,
            address,
            str(port),
            str(network),
            words,
        )


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    here = Path("/proc/self/ns/net").readlink()
    spaces = [subprocess.Popen(["unshare", "--net", "sleep", "600"]) for _ in range(2)]
    try:
        for space in spaces:
            while Path(f"/proc/{space.pid}/ns/net").readlink() == here:
                time.sleep(0.01)
        place = Nodes(spaces[0].pid, spaces[1].pid, tmp_path)
        (tmp_path / f"job-{JOB}").mkdir()
        place.on(
            place.one,
            "ip",
            "link",
            "add",
            "eth0",
            "type",
            "veth",
            "peer",
            "name",
            "eth0",
            "netns",
            str(place.two),
        )
        for pid, addresses in ((place.one, ("1",)), (place.two, ("2", "3"))):
            for last in addresses:
                place.on(pid, "ip", "address", "add", f"10.79.0.{last}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                place.on(pid, "ip", "link", "set", device, "up")
        yield place
    finally:
        for space in spaces:
            space.kill()
            space.wait()


@pytest.fixture
def job(nodes: Nodes) -> Iterator[subprocess.Popen[str]]:
    """The network of the job on the first node; it tells each frame that comes in."""
    argv = [
        "nsenter",
        "-t",
        str(nodes.one),
        "-n",
        sys.executable,
        "-uc",
        PREPARED + LISTEN,
        str(JOB),
        str(nodes.state),
        "n1",
    ]
    with subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert next_of(process) == "ready"
            yield process
        finally:
            process.kill()


def next_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_only_the_jobs_other_nodes_can_send_into_its_network(
    nodes: Nodes, job: subprocess.Popen[str]
) -> None:
    nodes.send("a user of the other node", user=True, port=0)
    nodes.send("a user of this node", user=True, port=0, address="10.79.0.1", own=True)
    nodes.send("root of what is no node", address="10.79.0.3")
    nodes.send("into another job's network", network=78)
    nodes.send("the other node")
    assert next_of(job) == "the other node"


def test_what_the_jobs_own_nodes_send_each_other_comes_through(nodes: Nodes) -> None:
    """In the kernel's own packets, many of which come as one."""
    (nodes.state / f"2/job-{JOB}").mkdir(parents=True)
    with contextlib.ExitStack() as running:
        ends = []
        for pid, state, name in (
            (nodes.one, nodes.state, "n1"),
            (nodes.two, nodes.state / "2", "n2"),
        ):
            argv = [
                "nsenter",
                "-t",
                str(pid),
                "-n",
                sys.executable,
                "-uc",
                PREPARED + TALK,
                str(JOB),
                str(state),
                name,
            ]
            ends.append(
                running.enter_context(
                    subprocess.Popen(
                        argv, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
                    )
                )
            )
            running.callback(ends[-1].kill)
            assert next_of(ends[-1]) == "ready"
        ends[1].communicate("go\n", timeout=60)
        assert next_of(ends[0]) == str(20 << 20)


def test_a_firewall_that_is_loaded_anew_opens_it_until_the_watchdog_comes(
    nodes: Nodes, job: subprocess.Popen[str]
) -> None:
    # What keeps the frames of the test above out is the guard, and nothing else.
    nodes.on(nodes.one, "nft", "flush", "ruleset")
    nodes.send("a user", user=True, port=0)
    assert next_of(job) == "a user"
    nodes.python("ThisNode(state).guard(LocalRunner())")
    nodes.send("a user", user=True, port=0)
    nodes.send("the other node")
    assert next_of(job) == "the other node"


def test_the_guard_ends_with_the_last_job_that_needs_it(
    nodes: Nodes, job: subprocess.Popen[str]
) -> None:
    del job
    (nodes.state / "job-8").mkdir()
    nodes.python('network.admit(state / "job-8", 8, ["10.79.0.9"], LocalRunner())')
    assert nodes.rules().count(" accept comment ") == 2
    nodes.python("assert reclaim(job, state)")
    assert '"job 8"' in nodes.rules()
    assert str(JOB) not in nodes.rules()
    nodes.python("assert reclaim(8, state)")
    assert nodes.rules() == ""


def test_a_node_that_cannot_guard_it_takes_no_part(nodes: Nodes) -> None:
    told = nodes.python(TRY, path="/nowhere:/usr/bin")
    assert "UDP port 252 is not guarded against this cluster's users" in told
    assert "package nftables" in told
    nodes.on(nodes.one, "sysctl", "-q", "net.ipv4.ip_unprivileged_port_start=100")
    told = nodes.python(TRY)
    assert "any user of this node may send from UDP port 252" in told
    assert "sysctl net.ipv4.ip_unprivileged_port_start=253 or more; it is 100" in told
    assert "nmx" not in nodes.on(nodes.one, "ip", "link").stdout
