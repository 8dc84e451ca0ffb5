# SPDX-License-Identifier: Apache-2.0
"""Two virtual machines on one host and one on a second: up, met, used by real MPIs, and gone."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nearmetal.cluster.backends.libvirt.nodes import Nodes
from nearmetal.cluster.spec import LibvirtSpec, addresses, load_spec
from nearmetal.core.process import LocalRunner
from tests.system import hypervisors
from tests.system.virtual_clusters import environment

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

    def run(self, *args: str, timeout: float = 600) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "nearmetal", *args],
            env=environment(self.state),
            cwd=ROOT,
            check=False,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    def ok(self, *args: str) -> str:
        done = self.run(*args)
        assert done.returncode == 0, f"{args}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr

    def roots(self) -> Nodes:
        """Commands as root of the first node."""
        spec = load_spec(self.spec)
        assert isinstance(spec, LibvirtSpec)
        where = {"n1": (addresses(spec)[1]["n1"], spec.hosts[0].uri)}
        return Nodes(self.state / "clusters" / "vms", where, LocalRunner())


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
            place.ok("up", str(spec))
            yield place
        finally:
            done = place.run("down", str(spec))
        assert done.returncode == 0, done.stderr
        assert first.machines() == []
    assert hypervisors.traces("vms", before, place.state) == []


def test_a_second_up_does_nothing_and_says_why_it_is_as_it_is(site: Site) -> None:
    done = site.run("plan", str(site.spec))
    assert done.returncode == 0, done.stderr
    assert "nothing to do" in done.stdout
    assert "segment ivshmem: each node writes its own part only" in done.stderr
    assert "host h2: segment none: one node only" in done.stderr
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
    device = "/sys/bus/pci/devices/0000:00:{}.0/resource2"
    for offset, path, at in (
        (neighbour, device.format(11), neighbour),
        (own, device.format(10), part - 64),
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
