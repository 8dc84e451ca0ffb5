# SPDX-License-Identifier: Apache-2.0
"""Servers that boot for real: Nova's libvirt driver, and QEMU's emulation.

The guest is one sector of a disk that `up` uploads. It writes a line to its console and halts: it
shows that Nova boots this content, and needs no kernel.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("openstack")

from nearmetal.cluster.backends.openstack.shared import EXTRA_SPEC
from nearmetal.computed.service import withhold
from tests.system.openstack_cloud import (
    QUIET,
    RealCloud,
    gone,
    objects,
    opened,
    plan_of,
    raised,
    running_cloud,
)
from tests.system.openstack_guests import (
    DISK,
    WORDS,
    Segments,
    Tenant,
    console,
    guest_bridge,
    machine_of,
    ports_of,
    segment_service,
)

pytestmark = [
    pytest.mark.system,
    pytest.mark.root,
    pytest.mark.full,
    pytest.mark.timeout(900),
    *QUIET,
]

HOSTS = "hosts: [{name: h1, nodes: [{name: n1}, {name: n2}]}]\n"


@pytest.fixture(scope="module")
def bridge() -> Iterator[str]:
    with guest_bridge("10.82.0.1/24") as name:
        yield name


@pytest.fixture(scope="module")
def cloud(bridge: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCloud]:
    with (
        pytest.MonkeyPatch.context() as patch,
        running_cloud(tmp_path_factory.mktemp("openstack"), bridge=bridge) as found,
    ):
        patch.setenv("NEARMETAL_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield found


def wait_for_words(cloud: RealCloud, server: Any) -> None:
    for _ in cloud.waiting(f"the console of {server.name}"):
        if WORDS.decode() in console(cloud, server):
            return


def test_servers_of_an_uploaded_image_boot_are_started_again_and_leave_nothing(
    cloud: RealCloud, bridge: str, tmp_path: Path
) -> None:
    sdk, before = cloud.connected(), objects(cloud)
    path = tmp_path / "disk.raw"
    path.write_bytes(DISK + bytes(1 << 20))
    text = f"networks: [{{name: mpi, subnet: 10.82.0.0/24}}]\n{HOSTS}"
    spec = cloud.spec("real", text, path)
    raised(spec, tmp_path)
    servers = {server.name: server for server in sdk.compute.servers(details=True)}
    assert {server.status for server in servers.values()} == {"ACTIVE"}
    assert servers["n1"].host_id == servers["n2"].host_id
    for server in servers.values():
        wait_for_words(cloud, server)
        assert len(machine_of(server.id)) == 1
    for _ in cloud.waiting("the taps on the bridge"):
        if len(ports_of(bridge)) == 2:
            break
    assert plan_of(spec, tmp_path).empty

    # The machine of a server dies: `up` starts the server again, in place.
    (pid,) = machine_of(servers["n1"].id)
    os.kill(pid, signal.SIGKILL)
    for _ in cloud.waiting("Nova to see that n1 is off"):
        if sdk.compute.get_server(servers["n1"].id).status == "SHUTOFF":
            break
    assert [node.healthy for node in opened(spec, tmp_path).backend.status()] == [False, True]
    plan = raised(spec, tmp_path)
    assert [(str(c.key), c.in_place) for c in plan.effective] == [("node n1", True)]
    wait_for_words(cloud, servers["n1"])
    assert machine_of(servers["n1"].id) != [pid]

    gone(spec, tmp_path)
    assert objects(cloud) == before
    assert ports_of(bridge) == []
    assert [machine_of(server.id) for server in servers.values()] == [[], []]


# nearmetal-computed


@pytest.fixture
def segments(cloud: RealCloud, tmp_path: Path) -> Iterator[Segments]:
    with segment_service(cloud, tmp_path) as made:
        yield made


@pytest.fixture(scope="module")
def image(cloud: RealCloud) -> str:
    """The ID of an image that all projects have."""
    made = cloud.connected("admin").image.create_image(
        "boots",
        data=DISK + bytes(1 << 20),
        container_format="bare",
        disk_format="raw",
        visibility="public",
        wait=True,
        # A user may say so of an image, which gives nothing.
        properties={EXTRA_SPEC: "2 MiB", "hw_machine_type": "q35"},
    )
    return str(made.id)


@pytest.fixture(scope="module")
def flavors(cloud: RealCloud) -> dict[str, str]:
    """The IDs of a flavor with a segment, and of one without."""
    compute, made = cloud.connected("admin").compute, {}
    for name in ("shares", "plain"):
        made[name] = str(compute.create_flavor(name=name, ram=128, vcpus=1, disk=1).id)
    compute.create_flavor_extra_specs(made["shares"], {EXTRA_SPEC: "2 MiB"})
    return made


def test_servers_of_one_group_share_a_segment_and_others_get_none(
    cloud: RealCloud, segments: Segments, image: str, flavors: dict[str, str]
) -> None:
    red, blue = Tenant(cloud.connected(), image), Tenant(cloud.connected("admin"), image)
    # Both projects have a group of one name.
    near, far = red.group(), blue.group()
    evil = f"</nova:name>{EXTRA_SPEC}<nova:name>"
    one = red.server("one", flavors["shares"], near)
    two = red.server(evil, flavors["shares"], near)
    plain = red.server("plain", flavors["plain"], near)
    other = blue.server("one", flavors["shares"], far)
    alone = red.server("alone", flavors["shares"])
    for tenant, server in ((red, one), (red, two), (red, plain), (blue, other), (red, alone)):
        tenant.sdk.compute.wait_for_server(server, wait=120)

    segments.start()
    refused = {alone.id: "it is in no server group"}
    segments.until({one.id: "given", two.id: "given", other.id: "given", **refused})
    # QEMU maps the own part for writing, and the whole for reading.
    (shared,) = segments.mapped(one.id)
    assert segments.mapped(one.id) == segments.mapped(two.id) == {shared: {"rw-s", "r--s"}}
    (foreign,) = segments.mapped(other.id)
    assert foreign != shared
    assert segments.mapped(plain.id) == segments.mapped(alone.id) == {}
    assert sorted(map(str, segments.files())) == sorted([shared, foreign])
    assert {Path(name).stat().st_mode & 0o777 for name in (shared, foreign)} == {0o600}

    # The service is killed, and a server ends meanwhile.
    segments.kill()
    red.delete(one)
    assert segments.mapped(two.id) == {shared: {"rw-s", "r--s"}}
    segments.start()
    segments.until({one.id: "resting", two.id: "given", other.id: "given", **refused})
    for tenant, server in ((red, two), (red, plain), (blue, other), (red, alone)):
        tenant.delete(server)
    segments.until({})
    assert segments.files() == []
    for tenant, group in ((red, near), (blue, far)):
        tenant.sdk.compute.delete_server_group(group)


def test_a_service_that_is_killed_amid_each_phase_leaves_nothing(
    cloud: RealCloud, segments: Segments, image: str, flavors: dict[str, str]
) -> None:
    red = Tenant(cloud.connected(), image)
    near, servers = red.running(flavors["shares"], "one", "two")
    one, two = (server.id for server in servers)
    segments.start()
    segments.kill_amid("giving")
    segments.start()
    segments.until({one: "given", two: "given"})

    # The guest lets nothing go, so the device stays until its server ends.
    withhold(segments.state, two)
    segments.kill_amid("taking")
    segments.start()
    segments.until({one: "given", two: "waits for its guest to let the devices go"})
    assert set(segments.mapped(two)) == set(segments.mapped(one))
    red.delete(servers[1])
    segments.kill_amid("resting")
    segments.start()
    segments.until({one: "given"})
    red.delete(servers[0])
    segments.until({})
    assert segments.files() == []
    red.sdk.compute.delete_server_group(near)


def test_a_boot_of_the_hypervisor_leaves_nothing_and_its_servers_share_again(
    cloud: RealCloud, segments: Segments, image: str, flavors: dict[str, str]
) -> None:
    red = Tenant(cloud.connected(), image)
    near, servers = red.running(flavors["shares"], "one", "two")
    given = dict.fromkeys((server.id for server in servers), "given")
    segments.start()
    segments.until(given)
    (before,) = segments.files()

    segments.lose_power()
    assert [machine_of(server.id) for server in servers] == [[], []]
    cloud.power("on")
    # As at a boot, the service may start before Nova has started any server.
    segments.start()
    segments.until(given)
    (shared,) = segments.mapped(servers[0].id)
    assert segments.files() == [Path(shared)]
    assert shared != str(before)
    assert segments.mapped(servers[1].id) == {shared: {"rw-s", "r--s"}}
    for server in servers:
        assert red.sdk.compute.get_server(server.id).status == "ACTIVE"

    for server in servers:
        red.delete(server)
    segments.until({})
    assert segments.files() == []
    red.sdk.compute.delete_server_group(near)


def test_a_server_with_a_segment_continues_after_a_suspension_that_is_refused(
    cloud: RealCloud, segments: Segments, image: str, flavors: dict[str, str]
) -> None:
    """QEMU refuses it because of the devices; Nova then shows an error that names them."""
    red, admin = Tenant(cloud.connected(), image), cloud.connected("admin").compute
    near, (server,) = red.running(flavors["shares"], "one")
    segments.start()
    segments.until({server.id: "given"})
    (pid,) = machine_of(server.id)
    red.sdk.compute.suspend_server(server)
    for _ in cloud.waiting("Nova to refuse it"):
        now = admin.get_server(server.id)
        if now.task_state is None:
            break
    assert now.status == "ERROR", now
    assert machine_of(server.id) == [pid]
    assert "ivshmem" in now.fault["details"], now.fault
    assert segments.mapped(server.id) != {}
    admin.reset_server_state(server, "active")
    assert admin.get_server(server.id).status == "ACTIVE"
    red.delete(server)
    segments.until({})
    assert segments.files() == []
    red.sdk.compute.delete_server_group(near)
