# SPDX-License-Identifier: Apache-2.0
"""A running cluster that changes: nodes come and go, are hurt, and are taken up, under jobs."""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nearmetal.cluster.backends.libvirt.hosts import ssh_login
from nearmetal.cluster.backends.libvirt.spec import LibvirtSpec
from nearmetal.cluster.model import addresses
from nearmetal.cluster.spec import load_spec
from nearmetal.cluster.ssh_nodes import Nodes
from nearmetal.core.process import LocalRunner
from tests.system import hypervisors
from tests.system.virtual_clusters import Place, places

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
PROGRAMS = ROOT / "build" / "programs" / "openmpi5"

pytestmark = [
    pytest.mark.system,
    pytest.mark.full,
    pytest.mark.root,
    pytest.mark.timeout(2400),
]

hypervisors.need()

HANG_S = 900
"""Ends a test that hangs."""


@dataclass
class Site:
    """A cluster whose spec is written anew now and then."""

    place: Place

    def write(self, *nodes: str) -> str:
        listed = ", ".join(f"{{name: {name}, memory: 512 MiB}}" for name in nodes)
        spec = self.place.spec(f"segment: {{part: 16 MiB, parts: 4}}, nodes: [{listed}]")
        return self.place.write(spec)

    def ok(self, *args: str) -> str:
        code, words = self.place.run(*args)
        assert code == 0, f"{args}: {code}\n{words}"
        return words

    def as_root(self, node: str, script: str) -> None:
        """Run a shell script as root of a node; the user of jobs is not."""
        spec = load_spec(Path(self.write("n1", "n2")))
        assert isinstance(spec, LibvirtSpec)
        where = {node: (addresses(spec)[1][node], ssh_login(spec.hosts[0].uri))}
        nodes = Nodes(self.place.state / "clusters" / "f", where, LocalRunner())
        nodes.check(node, "panic", ["sh", "-c", script])

    def boot(self, spec: str, node: str) -> str:
        """Which boot of a node it is: another one for a machine that was made anew."""
        told = self.ok("exec", spec, node, "--", "cat", "/proc/sys/kernel/random/boot_id")
        return told.split()[0]

    def job(self, spec: str, node: str, nr: int) -> subprocess.Popen[str]:
        """Start a job that goes on until it is told to end; returns when it runs in `node`."""
        program = str(PROGRAMS / "mpi_traffic")
        job = self.place.start(
            "run", spec, "-n", str(nr), "--", program, "-n", "1000000", "-b", "1G"
        )
        deadline = time.monotonic() + HANG_S
        while not self.runs(spec, node):
            assert job.poll() is None, job.communicate()
            assert time.monotonic() < deadline, "the job never started"
            time.sleep(1)
        return job

    def runs(self, spec: str, node: str) -> bool:
        """Whether the job's program runs in a node."""
        code, words = self.place.run("exec", spec, node, "--", "pgrep", "mpi_traffic")
        assert code in {0, 1}, words
        return code == 0

    def changes(self, spec: str) -> set[str]:
        """What `plan` would change, as "create node n1"."""
        code, words = self.place.run("plan", "--json", spec)
        assert code in {0, 3}, words
        plan = json.loads(words[words.index("{") : words.rindex("}") + 1])
        return {
            f"{c['action']} {c['kind']} {c['name']}"
            for c in plan["changes"]
            if c["action"] != "none"
        }


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with places(tmp_path) as place:
        yield Site(place)


def test_nodes_come_and_go_under_a_job(site: Site) -> None:
    spec = site.write("n1", "n2")
    site.ok("up", spec)
    boots = {name: site.boot(spec, name) for name in ("n1", "n2")}
    with site.job(spec, "n2", 2) as job:
        # In front of the others, and behind them.
        spec = site.write("n0", "n1", "n2", "n3")
        assert site.changes(spec) == {"create node n0", "create node n3"}
        site.ok("up", spec)
        assert job.poll() is None, job.communicate()
        assert site.runs(spec, "n2")
        os.killpg(job.pid, signal.SIGINT)
        job.communicate(timeout=HANG_S)
    assert {name: site.boot(spec, name) for name in boots} == boots
    assert site.changes(spec) == set()

    told = site.ok(
        "exec",
        spec,
        "n1",
        "--",
        "sh",
        "-c",
        "getent hosts n0 n3; cat /etc/nearmetal/hostfile; ssh n3 hostname; ssh n0 ssh n2 hostname",
    )
    assert [line.split()[-1] for line in told.splitlines()[:2]] == ["n0", "n3"]
    assert [line.split()[0] for line in told.splitlines()[2:6]] == ["n0", "n1", "n2", "n3"]
    assert told.splitlines()[6:8] == ["n3", "n2"]
    pairs = json.loads(site.ok("locality", "--json", spec))["pairs"]
    others = {p["channel"] for p in pairs if p["node"] != p["peer"]}
    assert others == {"segment"}
    hello = str(PROGRAMS / "mpi_hello")
    assert "carried by nearmetal: 4 endpoints" in site.ok("run", spec, "-n", "4", "--", hello)

    spec = site.write("n0", "n2", "n3")
    assert site.changes(spec) == {"delete node n1"}
    code, words = site.place.run("up", spec)
    assert code == 1
    assert "- node n1" in words
    assert "up --replace" in words
    rest = {
        name: site.boot(site.write("n0", "n1", "n2", "n3"), name) for name in ("n0", "n2", "n3")
    }
    spec = site.write("n0", "n2", "n3")
    site.ok("up", "--yes", "--replace", spec)
    assert len(site.place.host.machines()) == 3
    assert {name: site.boot(spec, name) for name in rest} == rest
    assert site.place.run("exec", spec, "n2", "--", "getent", "hosts", "n1")[0] != 0
    assert "carried by nearmetal: 3 endpoints" in site.ok("run", spec, "-n", "3", "--", hello)


def test_what_is_hurt_is_told_and_taken_up(site: Site) -> None:
    """A kernel that panics, a segment that shrinks under a job."""
    spec = site.write("n1", "n2")
    site.ok("up", spec)
    first = site.boot(spec, "n1")

    panic = (
        "echo 1 >/proc/sys/kernel/sysrq; (sleep 1; echo c >/proc/sysrq-trigger) >/dev/null 2>&1 &"
    )
    site.as_root("n2", panic)
    deadline = time.monotonic() + HANG_S
    while len(site.place.host.machines()) == 2:
        assert time.monotonic() < deadline, "the machine lives on after a panic"
        time.sleep(0.2)
    code, words = site.place.run("status", spec)
    assert code == 4, words
    assert "its domain is gone" in words
    site.ok("up", spec)
    assert site.boot(spec, "n1") == first

    segment = next(Path("/dev/shm").glob("nearmetal-f-h1-*"))
    with site.job(spec, "n2", 2) as job:
        os.truncate(segment, 1 << 20)
        job.communicate(timeout=HANG_S)
        assert job.returncode != 0
    assert "change host h1" in site.changes(spec)
    # A machine that has not touched the lost part yet still runs.
    site.ok("up", "--yes", spec)
    assert site.changes(spec) == set()
