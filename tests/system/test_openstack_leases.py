# SPDX-License-Identifier: Apache-2.0
"""Leases of a real Blazar, to which Nova's fake hypervisors belong: clusters and stacks in them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("openstack")

from nearmetal.cluster.backends.openstack.leases import LeasedRoom, Leases
from nearmetal.cluster.backends.openstack.session import BusyError, CloudSession
from nearmetal.core.errors import BackendError
from tests.system.need import need_build
from tests.system.openstack_cloud import (
    QUIET,
    RealCloud,
    gone,
    objects,
    plan_of,
    raised,
    running_cloud,
)
from tests.system.test_openstack_stacks import KEY, Stacks
from tests.system.virtual_clusters import CommandLine

pytestmark = [
    pytest.mark.system,
    pytest.mark.root,
    pytest.mark.full,
    pytest.mark.timeout(900),
    *QUIET,
]

TWO = """\
networks: [{name: mpi, subnet: 10.77.0.0/24}]
hosts: [{name: h1, nodes: [{name: n1}, {name: n2}]}]
"""


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCloud]:
    with running_cloud(tmp_path_factory.mktemp("leases"), heat=True, leases=True) as found:
        yield found


@pytest.fixture
def leases(cloud: RealCloud) -> Iterator[Leases]:
    """The leases of the project, which end with the test."""
    yield (made := Leases(CloudSession("member")))
    for lease in all_leases(cloud):
        made.remove(lease["name"])


def blazar(cloud: RealCloud, method: str, path: str, **body: Any) -> Any:
    """Ask Blazar, as the user of the project."""
    sdk = cloud.connected()
    url = f"{sdk.config.get_session_endpoint('reservation')}{path}"
    answer = getattr(sdk.session, method)(url, **body)
    return answer.json() if answer.content else None


def all_leases(cloud: RealCloud) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = blazar(cloud, "get", "/leases")["leases"]
    return found


def now() -> datetime:
    return datetime.now(UTC)


def room(vcpus: int, *, together: bool = True) -> LeasedRoom:
    """Return what a lease for two servers holds; a hypervisor has 16 processors."""
    return LeasedRoom(2, vcpus, 2048, 1, together=together)


def reserve(
    cloud: RealCloud, name: str, wanted: dict[str, Any], *, begin: int = 0, end: int
) -> None:
    """Take a lease that nearmetal itself would not take; its times are minutes from now on."""
    first, last = ((now() + timedelta(minutes=m)).strftime("%Y-%m-%d %H:%M") for m in (begin, end))
    lease = {"name": name, "start_date": first if begin else "now", "end_date": last, "events": []}
    blazar(cloud, "post", "/leases", json={**lease, "reservations": [wanted]})


def whole_host(cloud: RealCloud, leases: Leases, name: str) -> str:
    """Take a lease for a whole hypervisor; returns the ID of its reservation."""
    wanted = {
        "resource_type": "physical:host",
        "min": 1,
        "max": 1,
        "hypervisor_properties": "",
        "resource_properties": "",
    }
    reserve(cloud, name, wanted, end=20)
    for _ in cloud.waiting("the lease of a hypervisor"):
        (one,) = leases.find(name)
        if one.status == "ACTIVE":
            break
    (found,) = (one for one in all_leases(cloud) if one["name"] == name)
    return str(found["reservations"][0]["id"])


def host_of(cloud: RealCloud, reservation: str) -> str:
    """Return the hypervisor of a reservation, for which Blazar makes an aggregate."""
    found = cloud.connected("admin").compute.aggregates()
    (host,) = (host for one in found if one.name == reservation for host in one.hosts)
    return str(host)


def placed(cloud: RealCloud) -> dict[str, str]:
    """Return the hypervisor of each server."""
    found = cloud.connected("admin").compute.servers(details=True, all_projects=True)
    return {server.name: server.compute_host for server in found}


def owned(cloud: RealCloud) -> dict[str, list[str]]:
    """Return the IDs of everything that the project has, and of what a lease or a stack adds."""
    sdk, admin = cloud.connected(), cloud.connected("admin")
    return objects(cloud) | {
        "keys": sorted(key.name for key in sdk.compute.keypairs()),
        "stacks": sorted(stack.id for stack in sdk.orchestration.stacks()),
        "flavors": sorted(flavor.id for flavor in admin.compute.flavors(is_public=None)),
    }


def ended_when_placed(
    cloud: RealCloud, line: CommandLine, demo: tuple[str, ...], signum: signal.Signals, seen: str
) -> tuple[dict[str, str], str]:
    """End a demo by a signal when its servers are in its lease, which was changed since `seen`.

    Returns the IDs of both, with the time of the last change of the lease, and the words.
    """
    with line.start(*demo) as process:
        for _ in cloud.waiting("two servers in a lease"):
            where, found = placed(cloud), all_leases(cloud)
            # A demo that is continued prolongs its lease.
            changed = [str(lease["updated_at"]) for lease in found] != [seen]
            if changed and len(where) == 2 and None not in where.values():
                break
            assert process.poll() is None, process.communicate()
        (lease,) = found
        assert set(where.values()) == {host_of(cloud, lease["reservations"][0]["flavor_id"])}
        servers = {server.name: server.id for server in cloud.connected().compute.servers()}
        process.send_signal(signum)
        _, err = process.communicate(timeout=300)
    code = -signum if signum == signal.SIGKILL else 128 + signum
    assert process.returncode == code, err
    return {**servers, "lease": lease["id"], "updated_at": str(lease["updated_at"])}, err


def test_servers_with_the_flavor_of_a_lease_are_on_its_hypervisor_until_it_ends(
    cloud: RealCloud, leases: Leases, tmp_path: Path
) -> None:
    before = objects(cloud)
    lease = leases.take("together", room(2), 10, now())
    # The same again, for longer.
    assert leases.take("together", room(2), 20, now()) == lease
    host = host_of(cloud, lease.flavor)
    spec = cloud.spec("demo", TWO).model_copy(update={"flavor": lease.flavor})
    raised(spec, tmp_path)
    assert placed(cloud) == {"n1": host, "n2": host}
    assert plan_of(spec, tmp_path).empty
    assert leases.remove("together") == 1
    assert leases.find("together") == []
    assert placed(cloud) == {}
    gone(spec, tmp_path)
    assert objects(cloud) == before


def test_a_lease_without_room_is_refused_and_names_the_remedy(
    cloud: RealCloud, leases: Leases
) -> None:
    with pytest.raises(BackendError, match="Not enough hosts available") as caught:
        leases.take("large", room(9), 10, now())
    assert not isinstance(caught.value, BusyError)
    assert "try later, with --apart, or with a smaller --flavor" in caught.value.hint
    assert all_leases(cloud) == []
    # There is room on two of them, but only once.
    leases.take("apart", room(9, together=False), 10, now())
    with pytest.raises(BackendError, match="Not enough hosts available") as caught:
        leases.take("again", room(9, together=False), 10, now())
    assert "--apart" not in caught.value.hint
    assert [lease["name"] for lease in all_leases(cloud)] == ["apart"]


def test_a_lease_before_another_one_cannot_last_longer(cloud: RealCloud, leases: Leases) -> None:
    leases.take("now", room(9, together=False), 10, now())
    reserve(cloud, "later", room(9, together=False).reservation(), begin=20, end=40)
    with pytest.raises(BackendError, match="prolonging a lease: Not enough hosts") as caught:
        leases.take("now", room(9, together=False), 30, now())
    assert "nearmetal demo --cloud member --remove" in caught.value.hint
    # It is as before.
    assert [lease.status for lease in leases.find("now")] == ["ACTIVE"]


def test_two_leases_of_one_name_are_removed_together(cloud: RealCloud, leases: Leases) -> None:
    leases.take("twice", room(1), 10, now())
    reserve(cloud, "twice", room(1).reservation(), end=10)
    assert len(leases.find("twice")) == 2
    assert leases.remove("twice") == 2
    assert all_leases(cloud) == []


def test_a_cluster_is_on_the_hypervisor_of_its_reservation(
    cloud: RealCloud, leases: Leases, tmp_path: Path
) -> None:
    before, without = objects(cloud), cloud.spec("demo", TWO)
    with pytest.raises(BackendError, match="No valid host"):
        raised(without, tmp_path)
    gone(without, tmp_path)
    reservation = whole_host(cloud, leases, "whole")
    spec = cloud.spec("demo", f"{TWO}reservation: {reservation}\n")
    raised(spec, tmp_path)
    host = host_of(cloud, reservation)
    assert placed(cloud) == {"n1": host, "n2": host}
    assert plan_of(spec, tmp_path).empty
    leases.remove("whole")
    for _ in cloud.waiting("the end of the servers"):
        if placed(cloud) == {}:
            break
    with pytest.raises(BackendError, match="No valid host") as caught:
        raised(spec, tmp_path)
    assert f"reservation {reservation} has ended" in caught.value.hint
    gone(spec, tmp_path)
    assert objects(cloud) == before


def test_a_stack_is_on_the_hypervisor_of_its_reservation(
    cloud: RealCloud, leases: Leases, tmp_path: Path
) -> None:
    before, stacks = objects(cloud), Stacks(cloud, tmp_path)
    cloud.connected().compute.create_keypair(name="me", public_key=KEY)
    reservation = whole_host(cloud, leases, "whole")
    outputs = stacks.made(
        "create", "mpi-bare-metal", key_name="me", node_count=2, reservation_id=reservation
    )
    host = host_of(cloud, reservation)
    assert placed(cloud) == dict.fromkeys(outputs["deployment_results"], host)
    assert len(placed(cloud)) == 2
    stacks.removed("mpi-bare-metal")
    assert objects(cloud) == before


def starting(cloud: RealCloud, name: str) -> str:
    """Take a lease; returns its ID when Blazar starts it, "" if that was too short to see."""
    reserve(cloud, name, room(1).reservation(), end=10)
    for _ in range(3000):
        (lease,) = all_leases(cloud)
        if lease["status"] in {"STARTING", "ACTIVE"}:
            return str(lease["id"]) if lease["status"] == "STARTING" else ""
        time.sleep(0.01)
    pytest.fail(f"the lease is {lease['status']}")


def test_a_lease_that_blazar_starts_is_removed(cloud: RealCloud, leases: Leases) -> None:
    for _ in range(10):
        identity = starting(cloud, "starts")
        # A single request to Blazar removes it only before and after that.
        asked = blazar(cloud, "delete", f"/leases/{identity}", raise_exc=False) if identity else {}
        leases.remove("starts")
        assert all_leases(cloud) == []
        if "Invalid lease status" in str(asked):
            return
    pytest.fail("each lease started too fast to remove it meanwhile")


@pytest.mark.usefixtures("leases")
def test_a_killed_demo_continues_in_its_lease_and_an_interrupted_one_leaves_nothing(
    cloud: RealCloud, tmp_path: Path
) -> None:
    need_build()
    sdk, line = cloud.connected(), CommandLine(tmp_path)
    # No rule lets ssh in here. A demo does not need one without port security.
    lab = sdk.network.create_network(name="lab", is_port_security_enabled=False)
    sdk.network.create_subnet(network_id=lab.id, cidr="10.85.0.0/24", ip_version=4)
    before = owned(cloud)
    demo = ("demo", "--cloud", "member", "--network", "lab", "--image", "hpc", "--yes")
    # Guests of fake hypervisors do not boot, so each demo waits for them until it is ended.
    killed, err = ended_when_placed(cloud, line, demo, signal.SIGKILL, "")
    assert "interrupted" not in err
    continued, err = ended_when_placed(cloud, line, demo, signal.SIGINT, killed["updated_at"])
    assert "an interrupted demo is continued" in err
    assert {**killed, "updated_at": ""} == {**continued, "updated_at": ""}
    assert "remove the lease" in err
    assert all_leases(cloud) == []
    assert owned(cloud) == before
    assert [*(tmp_path / "state").rglob("*")] == []
    assert "nothing to remove" in line.ok("demo", "--cloud", "member", "--remove")
    sdk.network.delete_network(lab)


@pytest.mark.parametrize("unrestricted", [False, True])
def test_an_application_credential_takes_no_lease(cloud: RealCloud, *, unrestricted: bool) -> None:
    sdk, name = cloud.connected(), f"application-{unrestricted}"
    made = sdk.identity.create_application_credential(
        sdk.current_user_id, name, unrestricted=unrestricted
    )
    path = Path(os.environ["OS_CLIENT_CONFIG_FILE"])
    content = yaml.safe_load(path.read_text())
    content["clouds"][name] = {
        "auth_type": "v3applicationcredential",
        "region_name": "RegionOne",
        "auth": {
            "auth_url": content["clouds"]["member"]["auth"]["auth_url"],
            "application_credential_id": made.id,
            "application_credential_secret": made.secret,
        },
    }
    path.write_text(yaml.safe_dump(content))
    with pytest.raises(BusyError, match="making a lease: Internal Server Error") as caught:
        Leases(CloudSession(name)).take("application", room(1), 10, now())
    assert "a log-in with a password" in caught.value.hint
    assert "application" not in {lease["name"] for lease in all_leases(cloud)}
