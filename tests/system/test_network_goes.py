# SPDX-License-Identifier: Apache-2.0
"""The device of a node's network is removed and made anew while an MPI job runs over it.

Each node is alone on its host, so /run/nearmetal is its own, as in a machine, and the real guest
unit asks its processes for the network.
"""

from __future__ import annotations

import json
import re
import subprocess
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from nearmetal.core.resources import share
from tests.system.local import site
from tests.system.mpi_jobs import Cluster, program
from tests.system.test_segment_leave import within

if TYPE_CHECKING:
    from collections.abc import Iterator
    from subprocess import Popen

pytestmark = [pytest.mark.system, pytest.mark.mpi, pytest.mark.timeout(240)]

MPI = "openmpi5"
SPEC = """\
version: 1
name: goes
backend: local
hosts: [{name: h1, nodes: [{name: n1}]}, {name: h2, nodes: [{name: n2}]},
        {name: h3, nodes: [{name: n3}]}]
"""
END = "/run/end"
TRAFFIC = ("-n", "6000", "-s", "7", "-b", "130M", "-e", END)
LIMIT_S = 30.0
GONE_S = 0.3
TIMES = 4


def run(*argv: str) -> str:
    return subprocess.run(argv, check=True, capture_output=True, text=True, timeout=30).stdout


def ip(pid: int, *words: str) -> str:
    return run("nsenter", f"--net=/proc/{pid}/ns/net", "ip", *words)


@dataclass
class Wire:
    """The device of a node, which goes and comes back with its addresses."""

    launcher: int
    node: int
    port: str
    mac: str
    address: str

    @classmethod
    def of(cls, cluster: Cluster, name: str) -> Wire:
        nodes = {node["name"]: node for node in cluster.site.json("status", cluster.spec)["nodes"]}
        (record,) = cluster.site.state.glob("clusters/*/init.json")
        (eth0,) = json.loads(ip(nodes[name]["pid"], "-j", "address", "show", "eth0"))
        (inet,) = (each for each in eth0["addr_info"] if each["family"] == "inet")
        return cls(
            launcher=json.loads(record.read_text())["pid"],
            node=nodes[name]["pid"],
            port=f"again-{name}",
            mac=eth0["address"],
            address=f"{inet['local']}/{inet['prefixlen']}",
        )

    def remove(self) -> None:
        ip(self.node, "link", "del", "eth0")
        assert "eth0" not in ip(self.node, "link")

    def make(self) -> None:
        end = ["peer", "name", "eth0", "address", self.mac, "netns", str(self.node)]
        ip(self.launcher, "link", "add", self.port, "type", "veth", *end)
        ip(self.launcher, "link", "set", self.port, "master", "br0", "up")
        ip(self.node, "address", "add", self.address, "dev", "eth0")
        ip(self.node, "link", "set", "eth0", "up")


LEAVE = 'users=$(leave_users); leave_machine --network 30; echo "users: $users"'
RETURN = """leave_stay
turns=150
while [ -z "$(leave_users)" ] && [ "$turns" -gt 0 ]; do sleep 0.2; turns=$((turns - 1)); done
echo "users: $(leave_users)"
"""


def guest(cluster: Cluster, node: str, text: str) -> str:
    """What words of the guest unit say at its node."""
    unit = share("guest", "unit") / "leave.sh"
    argv = ("exec", cluster.spec, node, "--", "sh", "-c", f"run=/run/nearmetal; . {unit}; {text}")
    return cluster.site.ok(*argv, timeout=LIMIT_S + 30)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with site() as place:
        path = place.write("spec.yaml", SPEC)
        place.ok("up", path)
        cluster = Cluster(place, path)
        for node in ("n1", "n2", "n3"):
            guest(cluster, node, "leave_prepare")
        yield cluster
        place.look(path)
        place.ok("down", "--yes", path)
        place.assert_no_trace()


def endpoints(cluster: Cluster) -> list[dict[str, Any]]:
    top = cluster.site.ok("top", cluster.spec, "--once", "--json", "--interval", "0.2")
    found: list[dict[str, Any]] = json.loads(top)["endpoints"]
    return found


def taken(cluster: Cluster) -> int:
    """The messages that arrived over the network."""
    channels = [peer["channels"] for end in endpoints(cluster) for peer in end["peers"]]
    return sum(found.get("net", {}).get("received_messages", 0) for found in channels)


@contextmanager
def traffic(cluster: Cluster) -> Iterator[Popen[str]]:
    """A job that checks bytes, order and number of all messages itself, until END is there."""
    argv = ["run", "--json", cluster.spec, "--mpi", MPI, "-n", "3", "--timeout", "200"]
    argv += ["--map-by", "node", "--channels", "self,net", "--", str(program(MPI, "mpi_traffic"))]
    with cluster.site.start(*argv, *TRAFFIC) as job:
        try:
            within(job, lambda: taken(cluster) > 0)
            yield job
        except BaseException:
            job.kill()
            raise


def test_a_device_is_made_anew_under_a_job(cluster: Cluster) -> None:
    wire = Wire.of(cluster, "n2")
    with traffic(cluster) as job:
        for _ in range(TIMES):
            told = guest(cluster, "n2", LEAVE)
            assert re.fullmatch(r"segment: none\nnetwork: left\nusers: (\d+ )+\n", told), told
            wire.remove()
            time.sleep(GONE_S)
            wire.make()
            told = guest(cluster, "n2", RETURN)
            assert re.fullmatch(r"users: (\d+ )+\n", told), told
        cluster.site.ok("exec", cluster.spec, "n1", "--", "touch", END)
        out, err = job.communicate(timeout=120)
    assert job.returncode == 0, out + err
    assert re.search(r"traffic OK: \d+ messages", out + err), out + err
    for end in json.loads(out)["stats"]:
        for peer in end["peers"]:
            assert peer["quarantines"] == 0, peer
            # A rank that ends first says so.
            assert not peer["down"] or peer["down_reason"].endswith("closed its endpoint"), peer
