# SPDX-License-Identifier: Apache-2.0
"""A virtual cluster on OpenStack: servers, their networks, and where Nova places them."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from nearmetal.cluster.model import ClusterSpec, Finding, Host, Node, read_subnet
from nearmetal.config.model import Model, Name, absolute, shaped

MAX_SERVERS = 1000
"""Nodes of one host."""

MAX_NAME = 255

ROUTER = "router"
"""The name of the cluster's router in plans."""

CloudName = Annotated[
    str,
    shaped(
        rf"[^\s\x00-\x1f\x7f]([^\x00-\x1f\x7f]{{0,{MAX_NAME - 2}}}[^\s\x00-\x1f\x7f])?",
        f"is not a name of OpenStack|use 1 to {MAX_NAME} characters in one line",
    ),
]
"""The name, or the ID, of something that the cloud has already."""


IMAGE_PROPERTIES: Mapping[str, str] = {
    "hw_disk_bus": "virtio",
    "hw_machine_type": "q35",
    "hw_vif_model": "virtio",
    "os_type": "linux",
}
"""Properties of an image that is uploaded, unless the spec says others."""


def is_file(image: str) -> bool:
    """Whether the image of a spec is a file on this machine, and not a name or an ID."""
    return image.startswith("/")


def _image(value: str) -> str:
    return absolute(value) if is_file(value) else value


CloudImage = Annotated[CloudName, AfterValidator(_image)]


def _property(value: str) -> str:
    if not re.fullmatch(r"(hw|os)_[a-z0-9_]{1,60}", value) or re.match(
        "os_(hash_|hidden$|glance_)", value
    ):
        hint = "use names as hw_disk_bus or os_distro; Glance sets os_hash_* itself"
        raise ValueError(f"is not a property of images|{hint}")
    return value


PropertyName = Annotated[str, AfterValidator(_property)]


def _cidr(value: str) -> str:
    network = read_subnet(value)
    if network.prefixlen > 29:  # noqa: PLR2004 - a prefix
        raise ValueError("is too small|use a prefix of at most /29")
    return str(network)


class CloudNetwork(Model):
    """A network of the nodes: made with the cluster, or one that exists."""

    name: Name = Field(description="unique in the cluster")
    kind: Literal["normal", "direct"] = Field(
        default="normal",
        description="of the nodes' ports: normal, or direct: a virtual function (SR-IOV)",
    )
    existing: CloudName | None = Field(
        default=None, description="name or ID of an existing network; default: it is made"
    )
    subnet: Annotated[str, AfterValidator(_cidr)] | None = Field(
        default=None, description="IPv4 subnet of a network that is made"
    )
    physical: CloudName | None = Field(
        default=None,
        description="physical network of a network that is made; only administrators may set it",
    )
    vlan: Annotated[int, Field(ge=1, le=4094)] | None = Field(
        default=None, description="VLAN on the physical network; default: untagged"
    )
    port_security: bool | None = Field(
        default=None,
        description="whether Neutron filters the traffic of the ports; default: that of the network",
    )
    vfs: Annotated[int, Field(ge=1, le=65536)] | None = Field(
        default=None,
        description="direct: virtual functions that the cloud has for this network; OpenStack has "
        "no request for their number",
    )


class CloudNode(Node):
    """One server. Its own keys take priority over those of the cluster."""

    flavor: CloudName | None = Field(default=None, description="default: that of the cluster")
    image: CloudImage | None = Field(default=None, description="default: that of the cluster")
    floating: bool = Field(
        default=False, description="whether it gets a floating address of `outside`"
    )


class CloudHost(Host):
    """Nodes that Nova places on one hypervisor."""

    nodes: Annotated[list[CloudNode], Field(min_length=1, max_length=MAX_SERVERS)]


Reservation = Annotated[
    str,
    shaped(
        r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}",
        "is not the ID of a reservation|write its UUID in lower case, which is not that of its lease",
    ),
]


class CloudAccess(Model):
    """How jobs enter the servers: by ssh, with keys that the cluster brings."""

    timeout: Annotated[int, Field(ge=10, le=86400)] = Field(
        default=900, description="seconds that the guests of servers have until they answer"
    )
    segment_timeout: Annotated[int, Field(ge=0, le=86400)] = Field(
        default=60,
        description="seconds that nodes wait for a segment, if their flavor gives them one",
    )


class OpenstackSpec(ClusterSpec):
    """A cluster of servers on OpenStack."""

    backend: Literal["openstack"] = Field(description="openstack: servers on OpenStack")
    cloud: CloudName = Field(description="name of the cloud in clouds.yaml")
    hosts: Annotated[list[CloudHost], Field(min_length=1, max_length=64)]
    image: CloudImage = Field(
        description="image of all nodes: name or ID, or the absolute path of a file to upload"
    )
    image_properties: Annotated[dict[PropertyName, CloudName], Field(max_length=32)] = Field(
        default_factory=dict,
        description="properties of uploaded images, in addition to virtio, q35 and os_type",
    )
    flavor: CloudName = Field(description="name or ID of the flavor of all nodes")
    networks: Annotated[list[CloudNetwork], Field(min_length=1, max_length=16)] = Field(
        description="networks of the nodes; each node has a port in each, in this order"
    )
    key: CloudName | None = Field(
        default=None, description="name of the key pair for logins; default: none"
    )
    ssh: CloudAccess | None = Field(
        default=None, description="jobs enter the servers by ssh; default: no jobs"
    )
    apart: bool = Field(
        default=False, description="whether each host is another hypervisor; one node per host then"
    )
    reservation: Reservation | None = Field(
        default=None,
        description="ID of a reservation of Blazar, on whose hosts all nodes are; default: none",
    )
    outside: CloudName | None = Field(
        default=None,
        description="external network of the router and of floating addresses; default: no router",
    )
    timeout: Annotated[int, Field(ge=10, le=86400)] = Field(
        default=600, description="seconds that Nova has to make, start or remove a server"
    )

    @property
    def nodes(self) -> list[tuple[CloudHost, CloudNode]]:
        """All nodes with their hosts, in the order of the spec."""
        return [(host, node) for host in self.hosts for node in host.nodes]

    def image_of(self, node: CloudNode) -> str:
        """Return the image of a node."""
        return node.image or self.image

    @property
    def image_files(self) -> list[str]:
        """The paths of the images that are uploaded, each once."""
        images = (self.image_of(node) for _, node in self.nodes)
        return [*dict.fromkeys(image for image in images if is_file(image))]

    @property
    def properties(self) -> dict[str, str]:
        """The properties of uploaded images, sorted."""
        return dict(sorted({**IMAGE_PROPERTIES, **self.image_properties}.items()))

    def flavor_of(self, node: CloudNode) -> str:
        """Return the flavor of a node."""
        return node.flavor or self.flavor

    @property
    def made(self) -> list[CloudNetwork]:
        """The networks that the cluster makes."""
        return [network for network in self.networks if network.existing is None]

    @property
    def routed(self) -> list[CloudNetwork]:
        """The networks that the router of the cluster connects with the outside."""
        return [n for n in self.made if n.kind == "normal"] if self.outside else []

    def group_of(self, host: CloudHost) -> str | None:
        """Return the name of the server group of a host's nodes; None: Nova places them freely."""
        if self.apart:
            return "apart"
        return host.name if len(host.nodes) > 1 else None

    @property
    def groups(self) -> dict[str, str]:
        """The policy of each server group."""
        if self.apart:
            return {"apart": "anti-affinity"}
        return {host.name: "affinity" for host in self.hosts if len(host.nodes) > 1}

    def findings(self) -> list[Finding]:
        """Return OpenStack's own rules that the spec breaks."""
        return [*self._networks(), *self._places(), *self._images(), *self._access()]

    def _images(self) -> Iterator[Finding]:
        if self.image_properties and not self.image_files:
            why = "are for images that are uploaded, and no image is a path"
            hint = "remove image_properties, or write the path of an image"
            yield Finding(("image_properties",), "properties", why, hint)

    def _networks(self) -> Iterator[Finding]:
        first: dict[str, int] = {}
        for i, network in enumerate(self.networks):
            path = ("networks", i)
            yield from _keys_of(network, i)
            if network.name == ROUTER:
                hint = "choose another name"
                yield Finding((*path, "name"), f"network {ROUTER!r}", "is reserved", hint)
            if first.setdefault(network.name, i) != i:
                why = f"network {first[network.name] + 1} has the same name"
                yield Finding(
                    (*path, "name"), f"network {network.name!r}", why, "change one of them"
                )
        yield from self._subnets()
        floating = [node.name for _, node in self.nodes if node.floating]
        if floating and self.outside is None:
            what, why = "floating addresses", "need an external network"
            yield Finding(("cloud",), what, why, "add outside: NAME", tuple(floating))
        elif floating and self.networks[0].kind != "normal":
            why = "belong to the port in the first network, which is direct"
            hint = "write a normal network first"
            yield Finding(("networks", 0), "floating addresses", why, hint, tuple(floating))

    def _subnets(self) -> Iterator[Finding]:
        """A router and a node connect subnets that do not overlap; a subnet has room for all nodes."""
        seen: list[tuple[str, ipaddress.IPv4Network]] = []
        for i, network in enumerate(self.networks):
            if network.existing is not None or network.subnet is None:
                continue
            path = ("networks", i, "subnet")
            subnet = ipaddress.IPv4Network(network.subnet)
            for other, taken in seen:
                if subnet.overlaps(taken):
                    why = f"overlaps that of network {other}, {taken}"
                    yield Finding(path, f"subnet {subnet}", why, "use another subnet")
            seen.append((network.name, subnet))
            # Not for nodes: the first and the last, the router's, and that of Neutron's DHCP.
            room = subnet.num_addresses - 4
            if room < len(self.nodes):
                why = f"has room for {room} nodes"
                yield Finding(path, f"subnet {subnet}", why, "use a larger subnet")

    def _places(self) -> Iterator[Finding]:
        if not self.apart:
            return
        for i, host in enumerate(self.hosts):
            if len(host.nodes) > 1:
                why = "a server is in one server group, so Nova cannot also keep its nodes together"
                hint = "write one node per host, or remove apart"
                yield Finding(
                    ("hosts", i, "nodes"), f"host {host.name} with apart: true", why, hint
                )

    def _access(self) -> Iterator[Finding]:
        if self.post and self.ssh is None:
            why = "no way into the servers is given"
            yield Finding(("post", 0), "scripts in nodes", why, "add ssh: {}, or remove post")
        if self.ssh is not None and self.networks[0].kind != "normal":
            why = "is the network of logins, and it is direct"
            hint = "write a normal network first"
            yield Finding(("networks", 0), "the first network", why, hint)


def _keys_of(network: CloudNetwork, index: int) -> Iterator[Finding]:
    """Check which keys of a network stand together."""
    path, what = ("networks", index), f"network {network.name}"
    if network.existing is not None:
        wrong = [n for n in ("subnet", "physical", "vlan") if getattr(network, n) is not None]
        for name in wrong:
            why = "belongs to a network that is made, and this one exists"
            yield Finding((*path, name), f"{what}: {name}", why, f"remove {name} or existing")
    elif network.subnet is None:
        hint = "add subnet, for example 10.77.0.0/24, or existing: NAME"
        yield Finding(path, what, "has no subnet", hint)
    if network.vlan is not None and network.physical is None and network.existing is None:
        yield Finding((*path, "vlan"), f"{what}: vlan", "needs a physical network", "add physical")
    if network.kind == "direct" and network.existing is None and network.physical is None:
        why = "virtual functions are on a physical network"
        hint = "write existing: NAME, or as an administrator physical: NAME"
        yield Finding((*path, "kind"), f"{what} of kind direct", why, hint)
    if network.vfs is not None and network.kind != "direct":
        yield Finding((*path, "vfs"), f"{what}: vfs", "needs kind: direct", "remove vfs")
