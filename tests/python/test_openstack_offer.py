# SPDX-License-Identifier: Apache-2.0
"""What a demo chooses of the offer of a cloud, and the reasons that it gives."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("openstack")

from nearmetal.cluster.backends.openstack.offer import (
    CloudOffer,
    DemoChoice,
    Wishes,
    choose,
    read_offer,
    ssh_source,
)
from nearmetal.cluster.backends.openstack.session import CloudSession
from nearmetal.core.errors import BackendError


def flavor(name: str, vcpus: int = 2, ram: int = 2048, disk: int = 20, **more: Any) -> Any:
    return SimpleNamespace(id=f"id-{name}", name=name, vcpus=vcpus, ram=ram, disk=disk, **more)


def network(name: str, *, default: bool = False, secured: bool = False) -> Any:
    return SimpleNamespace(
        id=f"id-{name}", name=name, is_default=default, is_port_security_enabled=secured
    )


FILE = SimpleNamespace(path="/c/demo.raw", min_disk=2)
GOOD = flavor("good")
OFFER = CloudOffer([GOOD], [network("public")])


def chosen(offer: CloudOffer = OFFER, image: Any = FILE, **wishes: Any) -> DemoChoice:
    return choose("lab", "cloud-demo", offer, Wishes(**wishes), image)


@pytest.mark.parametrize(
    "other",
    [
        flavor("one-cpu", vcpus=1),
        flavor("little-memory", ram=1024),
        flavor("little-disk", disk=1),
        flavor("larger", vcpus=4),
        flavor("more-memory", ram=4096),
        flavor("reservation:4129fe81-0582-43be-8a38-eeef96550885", disk=2),
        flavor("gpu", disk=2, extra_specs={"pci_passthrough:alias": "a:1"}),
        flavor("metal", disk=2, extra_specs={"resources:CUSTOM_BM": "1"}),
    ],
)
def test_the_smallest_flavor_that_fits_is_chosen(other: Any) -> None:
    for flavors in ([GOOD, other], [other, GOOD]):
        found = chosen(CloudOffer(flavors, OFFER.outsides))
        assert found.spec.flavor == "good"
    words = "the smallest with 2 processors, 2048 MiB of memory and 2 GiB of disk"
    assert words in found.lines[0]


def test_a_flavor_without_a_disk_takes_that_of_the_image() -> None:
    assert chosen(CloudOffer([flavor("none", disk=0), GOOD], OFFER.outsides)).spec.flavor == "none"


def test_no_flavor_is_an_error_with_the_need() -> None:
    offer = CloudOffer([flavor("tiny", ram=512)], OFFER.outsides)
    with pytest.raises(BackendError, match="has 2 processors, 2048 MiB of memory and 2 GiB"):
        chosen(offer)


def test_a_named_flavor_is_found_by_name_and_id_and_its_memory_is_checked() -> None:
    tiny = flavor("tiny", ram=512)
    offer = CloudOffer([tiny, GOOD], OFFER.outsides)
    assert chosen(offer, flavor="id-good").spec.flavor == "good"
    with pytest.raises(BackendError, match="512 MiB of memory, and the image needs 1024"):
        chosen(offer, flavor="tiny")
    # Glance knows what an image of the cloud needs.
    assert chosen(offer, "hpc", flavor="tiny").spec.image == "hpc"
    with pytest.raises(BackendError, match="flavor nix: the project has none"):
        chosen(offer, flavor="nix")


@pytest.mark.parametrize(
    ("outsides", "name", "why"),
    [
        (["public"], "public", "the only one"),
        (["b", "a"], "a", "the first of 2"),
        (["b", "a!"], "a", "the default of 2"),
        (["a", "b!"], "b", "the default of 2"),
    ],
)
def test_the_external_network_is_chosen_by_a_rule(outsides: list[str], name: str, why: str) -> None:
    nets = [network(one.rstrip("!"), default=one.endswith("!")) for one in outsides]
    found = chosen(CloudOffer([GOOD], nets))
    assert found.spec.outside == name
    assert f"{name} ({why})" in found.lines[2]
    assert [node.floating for _, node in found.spec.nodes] == [True, False]


def test_without_an_external_network_the_user_names_a_network() -> None:
    offer = CloudOffer([GOOD])
    with pytest.raises(BackendError, match="no external network") as caught:
        chosen(offer)
    assert "--network NAME" in caught.value.hint
    found = chosen(offer, network="lab").spec
    assert (found.outside, found.networks[0].existing) == (None, "lab")
    assert not any(node.floating for _, node in found.nodes)


@pytest.mark.parametrize("wish", [{}, {"network": "lab"}])
def test_a_project_that_lets_no_ssh_in_is_refused(wish: dict[str, str]) -> None:
    offer = CloudOffer([GOOD], OFFER.outsides, ssh=())
    with pytest.raises(BackendError, match="lets no ssh in") as caught:
        chosen(offer, **wish)
    assert "openstack security group rule create" in caught.value.hint


@pytest.mark.parametrize("wish", [{}, {"network": "lab"}])
def test_a_project_that_lets_ssh_in_from_some_places_says_from_where(wish: dict[str, str]) -> None:
    offer = CloudOffer([GOOD], OFFER.outsides, ssh=["192.0.2.0/24", "198.51.100.7/32"])
    last = "ssh is let in from 192.0.2.0/24, 198.51.100.7/32 only: this machine must be there"
    assert chosen(offer, **wish).lines[-1] == last
    anywhere = CloudOffer([GOOD], OFFER.outsides, ssh=["0.0.0.0/0", "192.0.2.0/24"])
    assert "ssh is" not in "".join(chosen(anywhere, **wish).lines)


@pytest.mark.parametrize(
    ("name", "ssh"),
    [("secured", []), ("id-secured", []), ("open", ["0.0.0.0/0"]), ("nix", ["0.0.0.0/0"])],
)
def test_the_rules_count_on_a_network_whose_ports_are_secured(name: str, ssh: list[str]) -> None:
    nets = [network("secured", secured=True), network("open")]
    session = CloudSession("lab")
    group = SimpleNamespace(security_group_rules=[{**RULE, "ethertype": "IPv6"}])
    session.__dict__["sdk"] = SimpleNamespace(
        current_project_id="p",
        compute=SimpleNamespace(flavors=lambda **_: [GOOD]),
        network=SimpleNamespace(networks=lambda **_: nets, security_groups=lambda **_: [group]),
    )
    assert [*read_offer(session, Wishes(network=name)).ssh] == ssh


RULE = {
    "direction": "ingress",
    "ethertype": "IPv4",
    "protocol": "tcp",
    "port_range_min": 22,
    "port_range_max": 22,
    "remote_group_id": None,
}


@pytest.mark.parametrize(
    ("more", "source"),
    [
        ({}, "0.0.0.0/0"),
        ({"protocol": None, "port_range_min": None, "port_range_max": None}, "0.0.0.0/0"),
        ({"port_range_min": 1, "port_range_max": 1024}, "0.0.0.0/0"),
        ({"remote_ip_prefix": "0.0.0.0/0"}, "0.0.0.0/0"),
        ({"remote_ip_prefix": "192.0.2.0/24"}, "192.0.2.0/24"),
        ({"remote_address_group_id": "4f0"}, "address group 4f0"),
        ({"protocol": "udp"}, ""),
        ({"direction": "egress"}, ""),
        ({"ethertype": "IPv6"}, ""),
        ({"remote_group_id": "default"}, ""),
        ({"port_range_min": 80, "port_range_max": 80}, ""),
    ],
)
def test_from_where_a_rule_lets_ssh_in(more: dict[str, Any], source: str) -> None:
    assert ssh_source({**RULE, **more}) == source


def test_servers_are_on_one_hypervisor_or_apart() -> None:
    assert chosen().spec.groups == {"h1": "affinity"}
    apart = chosen(apart=True)
    assert apart.spec.groups == {"apart": "anti-affinity"}
    assert "each on another hypervisor" in apart.lines[0]
