# SPDX-License-Identifier: Apache-2.0
"""Leases of a real Blazar, to which Nova's fake hypervisors belong: a cluster in one of them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("openstack")

from nearmetal.cluster.backends.openstack.leases import LeasedRoom, Leases
from nearmetal.cluster.backends.openstack.session import CloudSession
from tests.system.openstack_cloud import (
    QUIET,
    RealCloud,
    gone,
    objects,
    plan_of,
    raised,
    running_cloud,
)

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
    with running_cloud(tmp_path_factory.mktemp("leases"), leases=True) as found:
        yield found


@pytest.fixture
def leases(cloud: RealCloud) -> Iterator[Leases]:
    """The leases of the project, which end with the test."""
    yield (made := Leases(CloudSession("member")))
    for lease in blazar(cloud, "get", "/leases")["leases"]:
        made.remove(lease["name"])


def blazar(cloud: RealCloud, method: str, path: str, **body: Any) -> Any:
    """Ask Blazar, as the user of the project."""
    sdk = cloud.connected()
    url = f"{sdk.config.get_session_endpoint('reservation')}{path}"
    answer = getattr(sdk.session, method)(url, **body)
    return answer.json() if answer.content else None


def now() -> datetime:
    return datetime.now(UTC)


def room(vcpus: int) -> LeasedRoom:
    """Return what a lease for two servers on one hypervisor holds."""
    return LeasedRoom(2, vcpus, 2048, 1, together=True)


def host_of(cloud: RealCloud, reservation: str) -> str:
    """Return the hypervisor of a reservation, for which Blazar makes an aggregate."""
    found = cloud.connected("admin").compute.aggregates()
    (host,) = (host for one in found if one.name == reservation for host in one.hosts)
    return str(host)


def placed(cloud: RealCloud) -> dict[str, str]:
    """Return the hypervisor of each server."""
    found = cloud.connected("admin").compute.servers(details=True, all_projects=True)
    return {server.name: server.compute_host for server in found}


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
