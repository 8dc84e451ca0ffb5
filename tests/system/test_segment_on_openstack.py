# SPDX-License-Identifier: Apache-2.0
"""MPI jobs of servers over a segment: Nova's libvirt driver, QEMU's emulation, nearmetal-computed.

`nearmetal image build --disk` makes the image of all servers. One of them is of another project.
"""

from __future__ import annotations

import base64
import contextlib
import json
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("openstack")

from nearmetal.cluster.backends.openstack.shared import EXTRA_SPEC
from nearmetal.cluster.backends.openstack.spec import OpenstackSpec
from nearmetal.cluster.spec import parse_spec
from nearmetal.cluster.ssh_nodes import JOBS
from nearmetal.core.errors import LaunchError
from nearmetal.core.process import LocalRunner
from nearmetal.core.ssh import NO_CONNECTION
from nearmetal.job.copies import unpack
from nearmetal.job.stats import judge, read_stats
from tests.python.computed_world import states
from tests.system import hypervisors
from tests.system.openstack_cloud import QUIET, objects, opened
from tests.system.openstack_guests import Segments, machine_of, segment_service
from tests.system.test_jobs_on_openstack import ROOT, TRAFFIC, Site, site_below

pytestmark = [
    pytest.mark.system,
    pytest.mark.root,
    pytest.mark.full,
    pytest.mark.timeout(1800),
    *QUIET,
]

PART = "16MiB"
ENDS_S = 240
"""The end of a job whose nodes have died: 50 s without an answer, and logins that fail."""
SHOWN = "cat /sys/bus/pci/devices/*/device; ls /dev/nearmetal /run/nearmetal"
STRANGER = """\
ssh: {}
networks: [{name: mpi, subnet: 10.83.0.0/24}]
hosts: [{name: h1, nodes: [{name: x1}]}]
"""
NEAR = """\
ssh: {segment_timeout: SECONDS}
networks: [{name: mpi, subnet: 10.82.0.0/24}]
hosts: [{name: h1, nodes: [{name: n1, flavor: near}, {name: n2, flavor: near}]}]
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with site_below(tmp_path_factory.mktemp("near")) as found:
        compute = found.cloud.connected("admin").compute
        flavor = compute.create_flavor(name="near", ram=1024, vcpus=1, disk=1)
        compute.create_flavor_extra_specs(flavor, {EXTRA_SPEC: PART})
        yield found


@pytest.fixture(scope="module")
def segments(site: Site) -> Iterator[Segments]:
    (site.folder / "computed").mkdir()
    with segment_service(site.cloud, site.folder / "computed") as made:
        yield made


def channels(site: Site, spec: str) -> tuple[set[str], set[str]]:
    """Return the channels between different nodes, and their reasons."""
    pairs = [p for p in site.json("locality", spec)["pairs"] if p["node"] != p["peer"]]
    assert len(pairs) == 2
    return {pair["channel"] for pair in pairs}, {pair["reason"] for pair in pairs}


def messages(site: Site, spec: str) -> dict[str, Any]:
    """Run a job whose ranks check each byte; returns the messages that each channel carried."""
    program = str(ROOT / "build" / "programs" / "openmpi5" / "mpi_traffic")
    done = site.run("run", "--json", spec, "--map-by", "node", "-n", "2", "--", program, *TRAFFIC)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "traffic OK" in done.stderr
    answer = json.loads(done.stdout)
    assert answer["ranks"] == [["n1", 1], ["n2", 1]]
    assert answer["proof"]["verdict"] == "proven"
    found: dict[str, Any] = answer["proof"]["messages"]
    return found


@dataclass(frozen=True)
class NearCluster:
    """Two nodes of one hypervisor. `said`: by the `up` that made them, before the service ran."""

    spec: str
    servers: dict[str, str]
    said: str


@pytest.fixture(scope="module")
def stranger(site: Site) -> Iterator[str]:
    """A cluster of another project on the same hypervisor and bridge."""
    hypervisors.ip("addr", "add", "10.83.0.1/24", "dev", site.bridge)
    path = Path(site.write("stranger", STRANGER))
    path.write_text(path.read_text().replace("cloud: member", "cloud: admin"))
    site.ok("up", str(path))
    yield str(path)
    site.ok("down", "--yes", str(path))


@pytest.fixture(scope="module")
def cluster(site: Site, segments: Segments) -> Iterator[NearCluster]:
    """The cluster; nothing is left of it when it is removed, also on the hypervisor."""
    before, spec = objects(site.cloud), site.write("near", NEAR.replace("SECONDS", "3"))
    done = site.run("up", spec)
    assert done.returncode == 0, done.stdout + done.stderr
    servers = {name: one.id for name, one in site.servers().items()}
    yield NearCluster(spec, servers, done.stderr)
    site.ok("down", "--yes", spec)
    segments.until({})
    assert segments.files() == []
    assert objects(site.cloud) == before
    assert [machine_of(server) for server in servers.values()] == [[], []]


@pytest.fixture(scope="module")
def near(site: Site, segments: Segments, cluster: NearCluster) -> NearCluster:
    """The same when the service runs and the guests have noticed the devices themselves."""
    segments.start()
    wait_for_segment(site, segments, cluster)
    return cluster


def wait_for_segment(site: Site, segments: Segments, cluster: NearCluster) -> None:
    segments.until(dict.fromkeys(cluster.servers.values(), "given"))
    for _ in site.cloud.waiting("the guests to find the segment"):
        if channels(site, cluster.spec)[0] == {"segment"}:
            return


def wait_for_status(site: Site, server: str, *wanted: str) -> Any:
    """Wait until Nova has finished a request; returns the server, as administrators see it."""
    compute = site.cloud.connected("admin").compute
    for _ in site.cloud.waiting(f"server {server}"):
        now = compute.get_server(server)
        if now.task_state is None and now.status in wanted:
            break
    return now


def test_without_the_service_nodes_use_the_network_and_this_is_said(
    site: Site, cluster: NearCluster
) -> None:
    assert "nodes n1, n2, which share a hypervisor, use the network" in cluster.said
    assert "nearmetal-computed has not: `nearmetal computed status`" in cluster.said
    used, reasons = channels(site, cluster.spec)
    assert used == {"net"}
    assert all("`nearmetal computed status` on their hypervisor" in why for why in reasons)


def test_a_job_of_servers_goes_by_the_segment_that_the_service_gives(
    site: Site, near: NearCluster
) -> None:
    carried = messages(site, near.spec)
    assert carried.get("segment", 0) > 0
    assert carried.get("net", 0) == 0


def sent_until_now(site: Site, spec: str) -> Mapping[str, int]:
    """Return the messages that rank 0 of the job that runs has sent, by channel."""
    pack = f"cd {JOBS} && tar -cf - *.stats | base64"
    answer = site.run("exec", spec, "n1", "--", "sh", "-c", pack).stdout
    with tempfile.TemporaryDirectory(dir=site.folder) as folder:
        unpack(base64.b64decode(answer), Path(folder) / "stats")
        return judge(read_stats(Path(folder) / "stats"), 2).messages


def test_a_boot_of_the_hypervisor_ends_a_job_and_its_servers_run_the_next_one(
    site: Site, segments: Segments, near: NearCluster
) -> None:
    (before,) = segments.files()
    program = str(ROOT / "build" / "programs" / "openmpi5" / "mpi_moved")
    words = ("run", near.spec, "--map-by", "node", "-n", "2", "--", program, "3000", "7")
    with site.start(*words) as job:
        try:
            for _ in site.cloud.waiting("messages by the segment"):
                assert job.poll() is None, job.communicate()
                with contextlib.suppress(LaunchError):
                    if sent_until_now(site, near.spec).get("segment", 0) > 0:
                        break
            segments.lose_power()
            _, fault = job.communicate(timeout=ENDS_S)
        except BaseException:
            job.kill()
            raise
    assert job.returncode == NO_CONNECTION, fault
    assert "ssh has no connection to node n1, n2 any more" in fault

    site.cloud.power("on")
    segments.start()
    for _ in site.cloud.waiting("the next keys on the consoles"):
        if site.run("plan", near.spec).stdout.count("its machine has started again") == 2:
            break
    site.ok("up", site.write("near", NEAR.replace("SECONDS", "240")))
    wait_for_segment(site, segments, near)
    (now,) = segments.files()
    assert now != before
    carried = messages(site, near.spec)
    assert carried.get("segment", 0) > 0
    assert carried.get("net", 0) == 0


def test_a_server_of_another_project_gets_nothing(
    site: Site, segments: Segments, near: NearCluster, stranger: str
) -> None:
    shown = site.ok("exec", near.spec, "n1", "--", "sh", "-c", SHOWN)
    assert shown.count("0x1110") == 2
    assert "segment.conf" in shown
    (whole,) = segments.mapped(near.servers["n1"])
    assert segments.mapped(near.servers["n1"]) == {whole: {"rw-s", "r--s"}}
    # It has no device, so nothing to open; its QEMU has nothing of it either.
    shown = site.run("exec", stranger, "x1", "--", "sh", "-c", SHOWN).stdout
    assert "0x1000" in shown or "0x1041" in shown
    assert "0x1110" not in shown
    assert "segment.conf" not in shown
    (x1,) = site.cloud.connected("admin").compute.servers()
    assert segments.mapped(x1.id) == {}
    assert x1.id not in states(segments.state)


def test_up_waits_for_the_part_of_a_machine_that_nova_started_again(
    site: Site, near: NearCluster
) -> None:
    site.cloud.connected().compute.reboot_server(near.servers["n2"], "HARD")
    for _ in site.cloud.waiting("the next key on the console"):
        if "its machine has started again" in site.run("plan", near.spec).stdout:
            break
    done = site.run("up", site.write("near", NEAR.replace("SECONDS", "240")))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "use the network" not in done.stderr
    assert channels(site, near.spec)[0] == {"segment"}
    assert messages(site, near.spec)["segment"] > 0


def test_a_server_is_suspended_after_take_and_shares_again_when_it_resumes(
    site: Site, segments: Segments, near: NearCluster
) -> None:
    server = near.servers["n1"]
    compute = site.cloud.connected("admin").compute
    compute.suspend_server(server)
    refused = wait_for_status(site, server, "ERROR")
    assert "ivshmem" in refused.fault["details"]
    compute.reset_server_state(server, "active")
    # The machine has continued.
    assert messages(site, near.spec)["segment"] > 0

    spec = parse_spec(Path(near.spec).read_text())
    assert isinstance(spec, OpenstackSpec)
    backend = opened(spec, site.folder).backend
    leave = backend.on_node("n1", ["nearmetal-guest", "leave", "60"], root=True)
    LocalRunner().check(leave, timeout_s=120)
    site.ok("computed", "take", server, "--wait", "60", "--state", str(segments.state))
    compute.suspend_server(server)
    wait_for_status(site, server, "SUSPENDED")
    compute.resume_server(server)
    wait_for_status(site, server, "ACTIVE")
    # A server that was suspended had left the hypervisor.
    wait_for_segment(site, segments, near)
