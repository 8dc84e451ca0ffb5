# SPDX-License-Identifier: Apache-2.0
"""The resources of a cluster of servers on OpenStack. Pure."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Annotated

from pydantic import PlainSerializer

from nearmetal.cluster.backends.openstack.spec import (
    ROUTER,
    CloudHost,
    CloudNetwork,
    CloudNode,
    OpenstackSpec,
    is_file,
)
from nearmetal.cluster.registration import Registration
from nearmetal.cluster.resource import (
    Desired,
    Facts,
    Key,
    Kind,
    Observed,
    Resource,
    Values,
    YesNo,
)


class CloudProject(Values):
    """The cluster as a whole: the cloud where its objects are."""

    backend: str
    cloud: str


class MadeNetwork(Values):
    """A network with its subnet."""

    subnet: str
    physical: str | None = None
    vlan: int | None = None
    port_security: YesNo | None = None


Joined = Annotated[tuple[str, ...], PlainSerializer(", ".join)]


class Router(Values):
    """The router between made networks and the outside."""

    outside: str
    routes: Joined


class ServerGroup(Values):
    """Servers that Nova keeps together or apart."""

    policy: str


class UploadedImage(Values):
    """An image that is uploaded with the cluster, and removed with it."""

    sha256: str


class Server(Values):
    """One server. `networks`: its ports, as `NAME normal` or `NAME direct`.

    `image`: its name or ID in the spec, or the name of an uploaded one.
    """

    host: str
    slots: int
    image: str
    flavor: str
    key: str | None = None
    group: str | None = None
    networks: Joined
    floating: YesNo
    access: str | None = None
    """The way of the first login; None: jobs do not enter it."""
    reservation: str | None = None
    """That of Blazar on whose hosts it is; None: Nova places it anywhere."""


CONFIG_DRIVE = "config drive"

IN_PLACE = frozenset({"host", "slots", "floating", "outside", "routes"})
"""Attributes that change without recreating a resource."""


def port_text(name: str, kind: str, *, filtered: bool | None) -> str:
    """Return a port in the values of its server; None: the choice of its network."""
    words = {None: "", True: " filtered", False: " unfiltered"}
    return f"{name} {kind}{words[filtered]}"


_UPLOADED = re.compile("image-[0-9a-f]{12}")


def image_name(sha256: str, properties: Mapping[str, str]) -> str:
    """Return the name of an uploaded image.

    Servers get its properties when they are made, so other properties make another image.
    """
    text = "\n".join([sha256, *(f"{name}={value}" for name, value in properties.items())])
    return f"image-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def images_of(spec: OpenstackSpec, facts: Facts) -> dict[str, UploadedImage]:
    """Return the images that are uploaded, by their names."""
    sums = [facts.images[path] for path in spec.image_files]
    return {image_name(one, spec.properties): UploadedImage(sha256=one) for one in sums}


def server_of(spec: OpenstackSpec, host: CloudHost, node: CloudNode, facts: Facts) -> Server:
    """Return the server of a node as it should be."""
    image = spec.image_of(node)
    if is_file(image):
        image = image_name(facts.images[image], spec.properties)
    return Server(
        host=host.name,
        slots=node.slots,
        image=image,
        flavor=spec.flavor_of(node),
        key=spec.key,
        group=spec.group_of(host),
        networks=tuple(port_text(n.name, n.kind, filtered=n.port_security) for n in spec.networks),
        floating=node.floating,
        access=None if spec.ssh is None else CONFIG_DRIVE,
        reservation=spec.reservation,
    )


def project_of(spec: OpenstackSpec) -> CloudProject:
    """Return the cluster as a whole as it should be."""
    return CloudProject(backend=spec.backend, cloud=spec.cloud)


def network_of(network: CloudNetwork) -> MadeNetwork:
    """Return a network as it should be."""
    assert network.subnet is not None  # noqa: S101 - a finding otherwise
    return MadeNetwork(
        subnet=network.subnet,
        physical=network.physical,
        vlan=network.vlan,
        port_security=network.port_security,
    )


def part_of(spec: OpenstackSpec, kind: Kind, name: str, values: Values) -> Resource:
    """Return a resource with those that it stands on."""
    needs: list[Key] = []
    if kind is not Kind.CLUSTER:
        needs.append(Key(Kind.CLUSTER, spec.name))
    if kind is Kind.NODE or (kind is Kind.NETWORK and name == ROUTER):
        needs += [Key(Kind.NETWORK, network.name) for network in spec.made]
    if kind is Kind.NODE and isinstance(values, Server):
        if _UPLOADED.fullmatch(values.image):
            needs.append(Key(Kind.DISK, values.image))
        if values.group is not None:
            needs.append(Key(Kind.HOST, values.group))
        if spec.outside is not None:
            needs.append(Key(Kind.NETWORK, ROUTER))
    return Resource(Key(kind, name), values, tuple(needs))


def openstack_servers(spec: OpenstackSpec, facts: Facts, _observed: Observed) -> Desired:
    """Return the servers of a spec, with their networks and server groups."""
    parts: list[tuple[Kind, str, Values]] = [(Kind.CLUSTER, spec.name, project_of(spec))]
    parts += [(Kind.DISK, *image) for image in images_of(spec, facts).items()]
    parts += [(Kind.NETWORK, network.name, network_of(network)) for network in spec.made]
    if spec.outside is not None:
        router = Router(outside=spec.outside, routes=tuple(n.name for n in spec.routed))
        parts.append((Kind.NETWORK, ROUTER, router))
    for name, policy in spec.groups.items():
        parts.append((Kind.HOST, name, ServerGroup(policy=policy)))
    for host, node in spec.nodes:
        parts.append((Kind.NODE, node.name, server_of(spec, host, node, facts)))
    made = tuple(part_of(spec, *part) for part in parts)
    return Desired(made, tuple(_notes(spec)), IN_PLACE)


def _notes(spec: OpenstackSpec) -> list[str]:
    unknown = [n.name for n in spec.networks if n.kind == "direct" and n.vfs is None]
    if not unknown:
        return []
    note = (
        "OpenStack does not say how many virtual functions are free; `vfs` lets the plan count them"
    )
    return [f"network {', '.join(unknown)}: {note}"]


REGISTRATION = Registration(OpenstackSpec, openstack_servers)
