# SPDX-License-Identifier: Apache-2.0
"""Two virtual machines on one host and one on a second: up, met, used by real MPIs, hurt, and gone.

One cluster for all of it: its `up` is killed at every step, and the injuries come last.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nearmetal.cluster.backends.libvirt.hosts import ssh_login
from nearmetal.cluster.backends.libvirt.hypervisor import Hypervisor as Link
from nearmetal.cluster.backends.libvirt.spec import LibvirtSpec
from nearmetal.cluster.model import addresses
from nearmetal.cluster.spec import load_spec
from nearmetal.cluster.ssh_nodes import Nodes
from nearmetal.cluster.store import Store
from nearmetal.core.journal import Journal
from nearmetal.core.process import LocalRunner
from tests.system import hypervisors
from tests.system.virtual_clusters import start

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
PROGRAMS = ROOT / "build" / "programs"
IMB = ROOT / "build" / "mpi" / "impi" / "bin" / "IMB-MPI1"

pytestmark = [
    pytest.mark.system,
    pytest.mark.root,
    pytest.mark.timeout(1500),
]

hypervisors.need()

# Both hosts are this machine, whose kernel knows better than two plans which core is idle.
SPEC = """\
version: 1
name: vms
backend: libvirt
network: {{subnet: 10.83.0.0/24, bridge: {bridge}}}
hosts:
  - name: h1
    uri: {first}
    segment: {{part: 16 MiB, parts: 4}}
    nodes:
      - {{name: n1, memory: 768 MiB, cpus: none}}
      - {{name: n2, memory: 768 MiB, cpus: none}}
  - name: h2
    uri: {second}
    nodes:
      - {{name: n3, memory: 768 MiB, cpus: none}}
"""


@dataclass
class Site:
    """A cluster that is up, and the command line on it."""

    spec: Path
    state: Path
    hosts: tuple[hypervisors.Hypervisor, hypervisors.Hypervisor]
    seen: frozenset[str] = frozenset()
    """The steps at which its `up` was killed."""

    def start(self, *args: str) -> subprocess.Popen[str]:
        return start(self.state, *args)

    def run(self, *args: str, timeout: float = 600) -> subprocess.CompletedProcess[str]:
        with self.start(*args) as process:
            try:
                out, err = process.communicate(timeout=timeout)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                raise
        return subprocess.CompletedProcess(args, process.returncode, out, err)

    def ok(self, *args: str) -> str:
        done = self.run(*args)
        assert done.returncode == 0, f"{args}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr

    def roots(self) -> Nodes:
        """Commands as root of the first host's nodes."""
        spec = load_spec(self.spec)
        assert isinstance(spec, LibvirtSpec)
        where = {
            name: (addresses(spec)[1][name], ssh_login(spec.hosts[0].uri)) for name in ("n1", "n2")
        }
        return Nodes(self.state / "clusters" / "vms", where, LocalRunner())


def killed_at_every_step(site: Site) -> frozenset[str]:
    """Run `up`, killed at each step once, until it is done; returns the steps."""
    journal = Journal(Store(site.state).cluster("vms"))
    seen: set[str] = set()
    for _ in range(25):
        with site.start("up", str(site.spec)) as process:
            known = len(journal.read())
            while process.poll() is None:
                fresh = [r.step for r in journal.read()[known:] if r.event == "begin"]
                if any(step not in seen for step in fresh):
                    seen |= set(fresh)
                    os.killpg(process.pid, signal.SIGKILL)
                    break
                time.sleep(0.002)
            _, words = process.communicate()
        if process.returncode != -signal.SIGKILL:
            assert process.returncode == 0, words
            return frozenset(seen)
    pytest.fail(f"never done; killed at {seen}")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A cluster of three machines; after it nothing may be left."""
    before = hypervisors.machine_things("vms")
    directory = tmp_path_factory.mktemp("vms")
    with hypervisors.bridged() as (first, second, bridge):
        spec = directory / "vms.yaml"
        spec.write_text(SPEC.format(bridge=bridge, first=first.uri, second=second.uri))
        place = Site(spec, directory / "state", (first, second))
        try:
            place.seen = killed_at_every_step(place)
            yield place
        finally:
            done = place.run("down", "--yes", str(spec))
        assert done.returncode == 0, done.stderr
        assert first.machines() == []
    assert hypervisors.traces("vms", before, place.state) == []


def test_up_killed_at_every_step_is_taken_up(site: Site) -> None:
    assert {"make cluster vms", "make host h1", "make node n1", "make node n2"} <= site.seen
    assert {"make host h2", "make node n3", "wait for the nodes"} <= site.seen
    assert len(site.hosts[0].machines()) == 2
    assert len(site.hosts[1].machines()) == 1


def test_a_second_up_does_nothing_and_says_why_it_is_as_it_is(site: Site) -> None:
    done = site.run("plan", str(site.spec))
    assert done.returncode == 0, done.stderr
    assert "nothing to do" in done.stdout
    assert "segment ivshmem: each node writes its own part only" in done.stderr
    assert "host h2: segment none: the host has one node only" in done.stderr
    started = sorted(site.hosts[0].machines())
    assert len(started) == 2
    site.ok("up", str(site.spec))
    assert sorted(site.hosts[0].machines()) == started


def test_the_nodes_are_as_the_spec_says(site: Site) -> None:
    data = json.loads(site.ok("status", "--json", str(site.spec)))
    assert data["state"] == "up"
    assert [(n["name"], n["host"], n["healthy"]) for n in data["nodes"]] == [
        ("n1", "h1", True),
        ("n2", "h1", True),
        ("n3", "h2", True),
    ]


def test_the_guests_know_their_segment_and_their_siblings(site: Site) -> None:
    text = site.ok(
        "exec",
        str(site.spec),
        "n2",
        "--",
        "cat",
        "/run/nearmetal/segment.conf",
        "/etc/nearmetal/hostfile",
    )
    assert "device = ivshmem" in text
    assert "part = 1" in text
    assert "integrity = enforced" in text
    assert "n3 slots=1" in text
    alone = site.run("exec", str(site.spec), "n3", "--", "cat", "/run/nearmetal/segment.conf")
    assert alone.returncode != 0


def test_a_neighbours_part_cannot_be_written(site: Site, tmp_path: Path) -> None:
    """Not even by root of a guest: the hypervisor drops it; its own part takes the same write."""
    poke = tmp_path / "poke"
    source = ROOT / "tests" / "system" / "programs" / "poke.c"
    subprocess.run(["cc", "-O1", "-static", "-o", poke, source], check=True)
    nodes = site.roots()
    install = "cat >/run/poke && chmod 700 /run/poke"
    nodes.check("n1", "copy", ["sh", "-c", install], poke.read_bytes())
    segment = next(Path("/dev/shm").glob("nearmetal-vms-h1-*"))
    # Part 0 is n1's, part 1 its neighbour's: the last bytes of each, where no window begins.
    part, first = 16 << 20, 2 << 20
    neighbour, own = first + 2 * part - 64, first + part - 64
    for offset, path, at in (
        (neighbour, "/dev/nearmetal/all", neighbour),
        (own, "/dev/nearmetal/own", part - 64),
    ):
        # Root of a guest first gives itself the right to open it for writing.
        nodes.check("n1", "open up", ["chmod", "0660", path])
        nodes.check("n1", "poke", ["/run/poke", path, str(at), "intruder"])
        with segment.open("rb") as stream:
            stream.seek(offset)
            there = stream.read(8)
        assert there == (b"intruder" if offset == own else bytes(8))


def test_what_is_staged_is_read_by_nodes_and_written_by_none(site: Site) -> None:
    shared = site.state / "clusters/vms/files/shared"
    (shared / "seen").write_text("staged\n")
    script = (
        "cd /run/nearmetal-cluster/jobs/files && cat seen; mount -o remount,rw .; "
        "touch new && echo written; rm seen && echo removed; :"
    )
    told = site.roots().check("n1", "try", ["sh", "-c", script])
    assert told.splitlines() == ["staged"]
    assert [path.name for path in shared.iterdir()] == ["seen"]
    (shared / "seen").unlink()


def test_locality_tells_every_pair_with_its_reason(site: Site) -> None:
    pairs = json.loads(site.ok("locality", "--json", str(site.spec)))["pairs"]
    channel = {(p["node"], p["peer"]): p["channel"] for p in pairs}
    assert channel["n1", "n1"] == "self"
    assert channel["n1", "n2"] == channel["n2", "n1"] == "segment"
    assert channel["n1", "n3"] == channel["n3", "n2"] == "net"
    assert all(p["reason"] for p in pairs)


def test_seeded_random_traffic_between_all_machines(site: Site) -> None:
    program = str(PROGRAMS / "openmpi5" / "mpi_traffic")
    out = site.ok(
        "run",
        str(site.spec),
        "-n",
        "3",
        "--",
        program,
        "-n",
        "300",
        "-s",
        "7",
        "-b",
        "20M",
        "-w",
        "300",
    )
    assert "library Open MPI v5" in out
    assert "carried by nearmetal: 3 endpoints" in out


def test_the_own_benchmark_verifies_what_it_receives(site: Site) -> None:
    program = str(PROGRAMS / "openmpi5" / "mpi_patterns")
    out = site.ok(
        "run",
        str(site.spec),
        "-n",
        "3",
        "--",
        program,
        "-p",
        "pingpong,allreduce",
        "-m",
        "8",
        "-M",
        "1K",
        "-t",
        "0.02",
        "-n",
        "1",
    )
    assert "# done" in out
    assert "carried by nearmetal: 3 endpoints" in out


def test_imb_over_the_mpich_of_this_machine(site: Site) -> None:
    out = site.ok(
        "run",
        str(site.spec),
        "--mpi",
        "mpich5",
        "-n",
        "3",
        "--",
        str(IMB),
        "-npmin",
        "3",
        "-msglog",
        "3:10",
        "-iter",
        "5",
        "-time",
        "0.5",
        "PingPong",
        "Allreduce",
    )
    assert "Benchmarking PingPong" in out
    assert "carried by nearmetal: 3 endpoints" in out


def test_plain_mpirun_in_the_first_node(site: Site) -> None:
    out = site.ok("exec", str(site.spec), "n1", "--", "sh", "-lc", "mpirun -n 3 hostname")
    assert {"n1", "n2", "n3"} <= set(out.split())


def test_a_segment_of_another_size_is_seen(site: Site) -> None:
    segment = next(Path("/dev/shm").glob("nearmetal-vms-h1-*"))
    size = segment.stat().st_size
    os.truncate(segment, size * 2)
    done = site.run("plan", str(site.spec))
    assert done.returncode == 3, done.stderr
    assert "host h1" in done.stdout + done.stderr
    os.truncate(segment, size)
    assert site.run("plan", str(site.spec)).returncode == 0


def test_a_machine_that_ends_under_a_job_fails_it_and_is_named(site: Site) -> None:
    """With its segment lost as well: one `up` makes all of it whole."""
    program = str(PROGRAMS / "openmpi5" / "mpi_traffic")
    path = str(site.spec)
    with site.start("run", path, "-n", "2", "--", program, "-n", "1000000", "-b", "1G") as job:
        nodes = site.roots()
        deadline = time.monotonic() + 300
        look = ["sh", "-c", "pgrep mpi_traffic || :"]
        while not nodes.check("n2", "look", look).strip():
            assert job.poll() is None, job.communicate()
            assert time.monotonic() < deadline, "the job never started"
            time.sleep(1)
        Link(site.hosts[0].uri).end("nearmetal.vms.n2")
        out, err = job.communicate(timeout=600)
        assert job.returncode != 0, out + err

    done = site.run("status", path)
    assert done.returncode == 4, done.stderr
    assert "its domain is gone" in done.stdout + done.stderr

    next(Path("/dev/shm").glob("nearmetal-vms-h1-*")).unlink()
    # n1 still works, and is recreated with its host.
    site.ok("up", "--yes", path)
    assert site.run("plan", path).returncode == 0
