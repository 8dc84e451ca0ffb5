# SPDX-License-Identifier: Apache-2.0
"""nearmetal-computed on two hypervisors of Nova: servers with a segment move.

The hypervisors have Nova's libvirt driver and QEMU, and the disks of servers in one directory, but
not in a live migration. The guest is one sector, which lets devices go.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("openstack")

from openstack.exceptions import BadRequestException

from nearmetal.cluster.backends.openstack.shared import EXTRA_SPEC
from nearmetal.core.process import Command, LocalRunner
from tests.openstack.settings import HOSTS
from tests.system.openstack_cloud import QUIET, RealCloud, running_cloud
from tests.system.openstack_guests import (
    EJECTING_DISK,
    Segments,
    Tenant,
    guest_bridge,
    machine_of,
    segment_service,
)

pytestmark = [
    pytest.mark.system,
    pytest.mark.root,
    pytest.mark.full,
    pytest.mark.timeout(900),
    *QUIET,
]

ALPHA, BETA = HOSTS
DISKS = "/run/nearmetal-openstack/nova/instances"


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCloud]:
    folder = tmp_path_factory.mktemp("openstack")
    with (
        guest_bridge("10.82.0.1/24") as bridge,
        running_cloud(folder, bridge=bridge, pair=True) as found,
    ):
        yield found


@dataclass(frozen=True)
class Pair:
    """An administrator with servers in one group, and the services of both hypervisors."""

    cloud: RealCloud
    tenant: Tenant
    group: str
    flavors: list[str]
    alpha: Segments
    beta: Segments

    @property
    def compute(self) -> Any:
        return self.cloud.connected("admin").compute

    def server(self, name: str) -> str:
        """Return the ID of a new server, which runs at the first hypervisor."""
        zone = {"availability_zone": f"nova:{ALPHA}"}
        server = self.tenant.server(name, self.flavors[0], self.group, **zone)
        self.compute.wait_for_server(server, wait=120)
        return str(server.id)

    def wait(self, server: str, status: str, host: str) -> None:
        """Wait until Nova has finished with a server."""
        for _ in self.cloud.waiting(f"{status} at {host}"):
            now = self.compute.get_server(server)
            if now.task_state is None and (now.status, now.compute_host) == (status, host):
                return
            assert now.status != "ERROR", now.fault

    def confirmed(self, server: str) -> str:
        """Wait for the end of a resize, and confirm it; returns the host."""
        for _ in self.cloud.waiting("the resize"):
            now = self.compute.get_server(server)
            if (now.status, now.task_state) == ("VERIFY_RESIZE", None):
                break
            assert now.status != "ERROR", now.fault
        self.compute.confirm_server_resize(server)
        self.wait(server, "ACTIVE", now.compute_host)
        return str(now.compute_host)

    def migrate_live(self, server: str) -> None:
        self.compute.live_migrate_server(server, host=BETA, block_migration="auto")

    def log(self) -> str:
        """Return what Nova's agent at the first hypervisor has written."""
        path = f"/proc/{self.cloud.pid}/root/run/nearmetal-openstack/log/nova-compute-{ALPHA}.log"
        return Path(path).read_text(errors="replace")

    def _agent(self) -> Any:
        (found,) = self.compute.services(binary="nova-compute", host=ALPHA)
        return found

    def force_down(self) -> None:
        """Tell Nova that the first hypervisor is dead, as a monitor of hosts does."""
        self.compute.update_service_forced_down(self._agent(), forced=True)

    def release(self) -> None:
        """Tell Nova that it lives. Nova refuses until its agent has removed the old servers."""
        for _ in self.cloud.waiting(f"the agent at {ALPHA}"):
            with contextlib.suppress(BadRequestException):
                self.compute.update_service_forced_down(self._agent(), forced=False)
                return

    def take(self, server: str) -> None:
        words = ("computed", "take", server, "--wait", "60", "--state", str(self.alpha.state))
        LocalRunner().check(Command((sys.executable, "-m", "nearmetal", *words)), timeout_s=90)

    def states_are(self, alpha: dict[str, str], beta: dict[str, str]) -> None:
        self.alpha.until(alpha)
        self.beta.until(beta)


@pytest.fixture(scope="module")
def services(
    cloud: RealCloud, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Segments, Segments]]:
    folders = [tmp_path_factory.mktemp(host) for host in HOSTS]
    with (
        segment_service(cloud, folders[0], ALPHA) as alpha,
        segment_service(cloud, folders[1], BETA) as beta,
    ):
        alpha.start()
        beta.start()
        yield alpha, beta


@pytest.fixture(scope="module")
def tenant(cloud: RealCloud) -> Tenant:
    sdk = cloud.connected("admin")
    image = sdk.image.create_image(
        "ejects",
        data=EJECTING_DISK + bytes(1 << 20),
        container_format="bare",
        disk_format="raw",
        wait=True,
    )
    return Tenant(sdk, str(image.id))


@pytest.fixture(scope="module")
def flavors(cloud: RealCloud) -> list[str]:
    compute, made = cloud.connected("admin").compute, []
    for ram in (64, 128):
        flavor = compute.create_flavor(name=f"shares-{ram}", ram=ram, vcpus=1, disk=1)
        compute.create_flavor_extra_specs(flavor, {EXTRA_SPEC: "2 MiB"})
        made.append(str(flavor.id))
    return made


@pytest.fixture
def pair(
    cloud: RealCloud,
    tenant: Tenant,
    flavors: list[str],
    services: tuple[Segments, Segments],
) -> Iterator[Pair]:
    """Yield a group without servers; at the end nothing is left on either hypervisor."""
    made = Pair(cloud, tenant, tenant.group("soft-affinity"), flavors, *services)
    yield made
    for server in list(made.compute.servers()):
        tenant.delete(server)
    made.states_are({}, {})
    assert (made.alpha.files(), made.beta.files()) == ([], [])
    made.compute.delete_server_group(made.group)


@pytest.fixture
def own_disks(services: tuple[Segments, Segments]) -> Iterator[None]:
    """The second hypervisor has a directory of its own, so disks of servers are copied to it."""
    command = services[1].command
    mount = ("mount", "-t", "tmpfs", "-o", "mode=0755,size=2g", "disks", DISKS)
    subprocess.run(command(*mount), check=True)
    yield
    subprocess.run(command("umount", "--lazy", DISKS), check=True)


@pytest.mark.usefixtures("own_disks")
def test_a_live_migration_is_refused_until_take_and_the_server_shares_at_its_new_host(
    pair: Pair,
) -> None:
    one, two = pair.server("one"), pair.server("two")
    pair.states_are({one: "given", two: "given"}, {})
    before = pair.alpha.mapped(one)

    # QEMU refuses it because of the devices, and the machine continues with them.
    pair.migrate_live(one)
    for _ in pair.cloud.waiting("Nova to give up"):
        now = pair.compute.get_server(one)
        if now.task_state is None and now.status == "ERROR":
            break
    assert now.compute_host == ALPHA
    assert "cannot migrate domain: Migration is disabled" in pair.log()
    assert "'ivshmem'" in pair.log()
    assert pair.alpha.mapped(one) == before
    pair.compute.reset_server_state(one, "active")
    pair.states_are({one: "given", two: "given"}, {})

    pair.take(one)
    pair.migrate_live(one)
    pair.wait(one, "ACTIVE", BETA)
    # The group is split: each host has a segment of its own.
    pair.states_are({two: "given"}, {one: "given"})
    (there,) = pair.beta.files()
    assert set(pair.beta.mapped(one)) == {f"/dev/shm/{there.name}"}
    assert set(pair.alpha.mapped(two)) == set(before)

    pair.take(two)
    pair.migrate_live(two)
    pair.wait(two, "ACTIVE", BETA)
    # It is whole again.
    pair.states_are({}, {one: "given", two: "given"})
    assert pair.alpha.files() == []
    assert pair.beta.mapped(two) == pair.beta.mapped(one)
    assert list((pair.alpha.state / "withheld").iterdir()) == []


def test_a_server_whose_host_or_flavor_changes_gets_a_part_there(pair: Pair) -> None:
    one, given = pair.server("one"), "given"
    pair.states_are({one: given}, {})
    pair.compute.migrate_server(one, host=BETA)
    pair.confirmed(one)
    pair.states_are({}, {one: given})
    assert (len(pair.alpha.files()), len(pair.beta.files())) == (0, 1)
    pair.compute.resize_server(one, pair.flavors[1])
    if pair.confirmed(one) == ALPHA:
        pair.states_are({one: given}, {})
    else:
        pair.states_are({}, {one: given})
    assert len(pair.alpha.files()) + len(pair.beta.files()) == 1


def test_evacuated_servers_share_at_their_new_host_and_leave_nothing_at_the_old(
    pair: Pair,
) -> None:
    servers = [pair.server("one"), pair.server("two")]
    given = dict.fromkeys(servers, "given")
    pair.states_are(given, {})

    pair.alpha.lose_power()
    pair.force_down()
    for server in servers:
        pair.compute.evacuate_server(server, host=BETA)
    for server in servers:
        # Since version 2.95 of its API, Nova leaves the start to the user.
        pair.wait(server, "SHUTOFF", BETA)
        pair.compute.start_server(server)
    pair.beta.until(given)
    (shared,) = pair.beta.files()
    both = {f"/dev/shm/{shared.name}": {"rw-s", "r--s"}}
    assert [pair.beta.mapped(server) for server in servers] == [both, both]
    assert pair.beta.parts() == [0, 1]

    # The disks of a host that died have the domains until Nova's agent starts there.
    assert pair.alpha.defined() == sorted(servers)
    pair.cloud.power("on")
    pair.alpha.start()
    pair.release()
    assert pair.alpha.defined() == []
    pair.states_are({}, given)
    assert pair.alpha.files() == []
    for server in servers:
        pair.wait(server, "ACTIVE", BETA)
        assert len(machine_of(server)) == 1
