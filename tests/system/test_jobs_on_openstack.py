# SPDX-License-Identifier: Apache-2.0
"""MPI jobs on servers that boot for real: Nova's libvirt driver, and QEMU's emulation.

`nearmetal image build --disk` makes their image. They get nothing but the config drive of Nova, and
the rest by ssh.
"""

from __future__ import annotations

import base64
import contextlib
import json
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("openstack")

from tests.system.machines import CACHE
from tests.system.need import need_build
from tests.system.openstack_cloud import QUIET, RealCloud, objects, running_cloud, spec_text
from tests.system.openstack_guests import DISK, WORDS, guest_bridge, machine_of, ports_of
from tests.system.virtual_clusters import CommandLine

pytestmark = [
    pytest.mark.system,
    pytest.mark.root,
    pytest.mark.full,
    pytest.mark.timeout(1800),
    *QUIET,
]

ROOT = Path(__file__).parents[2]
TRAFFIC = ("-n", "100", "-s", "7", "-b", "20M", "-w", "300")
NODES = """\
ssh: {}
networks: [{name: mpi, subnet: 10.82.0.0/24}]
hosts: [{name: h1, nodes: [{name: n1}, {name: n2}]}]
"""


@dataclass(frozen=True)
class Site(CommandLine):
    """A cloud, the command line on it, and an image."""

    cloud: RealCloud
    image: Path
    bridge: str

    def write(self, name: str, text: str, image: Path | None = None) -> str:
        path = self.folder / f"{name}.yaml"
        path.write_text(spec_text(name, text, image or self.image))
        return str(path)

    def servers(self) -> dict[str, Any]:
        return {s.name: s for s in self.cloud.connected().compute.servers(details=True)}


@contextlib.contextmanager
def site_below(folder: Path) -> Iterator[Site]:
    """Yield a cloud whose guests are on a bridge of this machine, and the image of its servers."""
    need_build()
    with guest_bridge("10.82.0.1/24") as bridge, running_cloud(folder, bridge=bridge) as cloud:
        found = Site(folder, cloud, folder / "disk.raw", bridge)
        found.ok("image", "build", "--cache", str(CACHE), "--disk", str(found.image))
        yield found


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with site_below(tmp_path_factory.mktemp("jobs")) as found:
        yield found


@pytest.fixture(scope="module")
def spec(site: Site) -> Iterator[str]:
    """A cluster that is up. Its first `up` was killed while it waited for the guests."""
    before, path = objects(site.cloud), site.write("jobs", NODES)
    with site.start("up", path) as up:
        try:
            for _ in site.cloud.waiting("both servers to run"):
                if [s.status for s in site.servers().values()] == ["ACTIVE", "ACTIVE"]:
                    break
                assert up.poll() is None, up.communicate()
        finally:
            up.send_signal(signal.SIGKILL)
    begun = {name: server.id for name, server in site.servers().items()}
    assert "it is not prepared for jobs" in site.run("plan", path).stdout
    site.ok("up", path)
    assert {name: server.id for name, server in site.servers().items()} == begun
    yield path
    site.ok("down", "--yes", path)
    assert objects(site.cloud) == before
    assert ports_of(site.bridge) == []
    assert [machine_of(server) for server in begun.values()] == [[], []]
    assert not (site.folder / "state").exists()


def test_an_image_without_our_unit_is_named_with_its_console(site: Site) -> None:
    image = site.folder / "sector.raw"
    image.write_bytes(DISK + bytes(1 << 20))
    text = NODES.replace("ssh: {}", "ssh: {timeout: 10}").replace(", {name: n2}", "")
    path = site.write("bare", text.replace("10.82.0.0", "10.84.0.0"), image)
    begin = time.monotonic()
    done = site.run("up", path)
    assert time.monotonic() - begin > 10
    assert done.returncode == 1
    assert "guests do not answer after 10 s" in done.stderr
    assert "node n1: it has not shown the key of its sshd; the end of its console" in done.stderr
    assert WORDS.decode() in done.stderr
    assert "image build --disk" in done.stderr
    assert [server.status for server in site.servers().values()] == ["ACTIVE"]
    site.ok("down", "--yes", path)


def test_up_makes_nodes_of_servers(site: Site, spec: str) -> None:
    assert "nothing to do" in site.ok("plan", spec)
    nodes = site.json("status", spec)["nodes"]
    assert [(n["name"], n["health"]) for n in nodes] == [("n1", "running"), ("n2", "running")]
    assert site.ok("exec", spec, "n2", "--", "hostname") == "n2\n"
    assert site.ok("exec", spec, "launcher", "--", "id", "-un") == "mpi\n"


def test_no_private_key_passes_through_nova(site: Site, spec: str) -> None:
    del spec
    sdk = site.cloud.connected("admin").compute
    for server in site.servers().values():
        data = base64.b64decode(sdk.get_server(server.id).user_data)
        assert b"ssh_authorized_keys" in data
        assert b"PRIVATE" not in data


def test_an_mpi_job_runs_between_servers(site: Site, spec: str) -> None:
    program = str(ROOT / "build" / "programs" / "openmpi5" / "mpi_traffic")
    done = site.run("run", "--json", spec, "--map-by", "node", "-n", "2", "--", program, *TRAFFIC)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "traffic OK" in done.stderr
    answer = json.loads(done.stdout)
    assert answer["ranks"] == [["n1", 1], ["n2", 1]]
    assert answer["proof"]["verdict"] == "proven"
    assert "net" in answer["proof"]["messages"]


def test_servers_use_the_network_and_say_why(site: Site, spec: str) -> None:
    pairs = site.json("locality", spec)["pairs"]
    assert len(pairs) == 4
    for pair in pairs:
        same = pair["node"] == pair["peer"]
        assert pair["channel"] == ("self" if same else "net")
        assert ("stock Nova has no memory that servers share" in pair["reason"]) != same


def test_nodes_are_checked(site: Site, spec: str) -> None:
    found = json.loads(site.run("check", "--json", spec).stdout)
    assert found["nodes"] == ["n1", "n2"]
    assert [f for f in found["findings"] if f["severity"] == "fault"] == []


def test_a_machine_that_starts_again_becomes_a_node_again(site: Site, spec: str) -> None:
    """The image keeps nothing: its next start has another key, and no seed."""
    server = site.servers()["n2"]
    site.cloud.connected().compute.reboot_server(server, "HARD")
    for _ in site.cloud.waiting("the next key on the console"):
        done = site.run("plan", spec)
        if "its machine has started again" in done.stdout:
            break
    assert done.returncode == 3
    site.ok("up", spec)
    assert site.servers()["n2"].id == server.id
    assert site.ok("exec", spec, "n1", "--", "ssh", "n2", "hostname") == "n2\n"
