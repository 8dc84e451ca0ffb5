# SPDX-License-Identifier: Apache-2.0
"""The users of the cloud, and what its operator has made for them, by the services' own APIs."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import openstack
from openstack.exceptions import SDKException

from tests.openstack.settings import OUTSIDE, PHYSICAL, REGION, USERS, Place

_SERVICES = {
    "placement": "placement",
    "glance": "image",
    "nova": "compute",
    "neutron": "network",
    "heat": "orchestration",
    "blazar": "reservation",
}


def _auth(place: Place, user: str) -> dict[str, str]:
    project = "admin" if user == "admin" else "hpc"
    return {
        "auth_url": place.url("keystone"),
        "username": user,
        "password": place.passwords[user],
        "project_name": project,
        "user_domain_id": "default",
        "project_domain_id": "default",
    }


def clouds(place: Place) -> dict[str, Any]:
    """Return the content of a clouds.yaml: `member`, an ordinary user, and `admin`."""
    same = {"region_name": REGION, "identity_api_version": 3}
    return {user: {**same, "auth": _auth(place, user)} for user in ("member", "admin")}


def _connected(place: Place) -> Any:
    return openstack.connect(**_auth(place, "admin"), region_name=REGION)


def _list(identity: Any, place: Place, name: str) -> None:
    """Put a service into the catalogue."""
    kind = identity.create_service(name=name, type=_SERVICES[name])
    for interface in ("public", "internal"):
        identity.create_endpoint(
            service_id=kind.id, interface=interface, url=place.url(name), region_id=REGION
        )


def users(place: Place) -> None:
    """Make the users of the services, and an ordinary user in a project."""
    identity = _connected(place).identity
    roles = {role.name: role for role in identity.roles()}
    if "service" not in roles:
        roles["service"] = identity.create_role(name="service")
    service = identity.create_project(name="service", domain_id="default")
    for name in USERS:
        user = identity.create_user(name=name, password=place.passwords[name], domain_id="default")
        for role in ("admin", "service"):
            identity.assign_project_role_to_user(service, user, roles[role])
        if name != "blazar":
            _list(identity, place, name)
    project = identity.create_project(name="hpc", domain_id="default")
    member = identity.create_user(
        name="member", password=place.passwords["member"], domain_id="default"
    )
    identity.assign_project_role_to_user(project, member, roles["member"])


def _lease_out(cloud: Any, place: Place) -> None:
    """Give all hypervisors to Blazar, and list it in the catalogue, where most clouds have none."""
    _list(cloud.identity, place, "blazar")
    cloud.compute.create_aggregate(name="freepool")
    for host in place.hosts:
        answer = cloud.session.post(f"{place.url('blazar')}/os-hosts", json={"name": host})
        if answer.status_code != 201:
            raise SDKException(f"Blazar does not take hypervisor {host}: {answer.text}")


def content(place: Place, check: Callable[[], None], timeout_s: float) -> None:
    """Wait for the hypervisors, and make an image, a flavor and the operator's networks."""
    cloud = _connected(place)
    end = time.monotonic() + timeout_s
    while len(list(cloud.compute.hypervisors())) < len(place.hosts):
        check()
        if time.monotonic() > end:
            raise TimeoutError("Nova does not list its hypervisors")
        time.sleep(0.5)
    if place.leases:
        _lease_out(cloud, place)
    cloud.image.create_image(
        "hpc",
        data=b"no guest boots",
        container_format="bare",
        disk_format="raw",
        visibility="public",
        allow_duplicates=True,
        wait=True,
    )
    cloud.compute.create_flavor(name="hpc.small", ram=2048, vcpus=2, disk=1)
    network = cloud.network
    outside = network.create_network(
        name="outside",
        is_router_external=True,
        provider_network_type="flat",
        provider_physical_network=OUTSIDE,
    )
    network.create_subnet(
        network_id=outside.id, cidr="203.0.113.0/24", ip_version=4, is_dhcp_enabled=False
    )
    rdma = network.create_network(
        name="rdma",
        is_shared=True,
        provider_network_type="vlan",
        provider_physical_network=PHYSICAL,
        provider_segmentation_id=300,
    )
    network.create_subnet(network_id=rdma.id, cidr="10.99.0.0/24", ip_version=4)
