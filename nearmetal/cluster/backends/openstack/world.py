# SPDX-License-Identifier: Apache-2.0
"""The objects of a cluster as the services report them, read once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from nearmetal.cluster.backends.openstack.answers import checked
from nearmetal.cluster.backends.openstack.images import is_whole
from nearmetal.cluster.backends.openstack.marks import (
    ACCESS,
    HOST,
    IMAGE,
    RESERVATION,
    SLOTS,
    ClusterMark,
)
from nearmetal.cluster.backends.openstack.plan import (
    MadeNetwork,
    Router,
    Server,
    ServerGroup,
    port_text,
)
from nearmetal.cluster.backends.openstack.session import CloudSession
from nearmetal.cluster.backends.openstack.spec import OpenstackSpec, is_file

GONE = ("DELETED", "SOFT_DELETED")

OFF = {
    "SHUTOFF": "start_server",
    "PAUSED": "unpause_server",
    "SUSPENDED": "resume_server",
    "SHELVED": "unshelve_server",
    "SHELVED_OFFLOADED": "unshelve_server",
    "RESCUE": "unrescue_server",
}
"""States of a server that does not run, with the request that makes it run again."""

BUSY = (
    "BUILD",
    "REBOOT",
    "HARD_REBOOT",
    "MIGRATING",
    "PASSWORD",
    "REBUILD",
    "RESIZE",
    "REVERT_RESIZE",
)
"""States that end by themselves."""

RUNS = ("ACTIVE", "VERIFY_RESIZE")
"""States of a server that works."""


class Catalog:
    """Names of the spec for what the cloud has; each is looked up once."""

    def __init__(self, session: CloudSession) -> None:
        self._session = session
        self._known: dict[tuple[str, str], list[Any]] = {}

    def _found(self, kind: str, name: str) -> list[Any]:
        """Return all objects that a name or an ID may mean."""
        if (kind, name) not in self._known:
            with self._session.asking(f"looking for {kind} {name}"):
                self._known[kind, name] = self._ask(kind, name)
        return self._known[kind, name]

    def _ask(self, kind: str, name: str) -> list[Any]:
        sdk = self._session.sdk
        if kind == "image":
            every = list(sdk.image.images(name=name))
            by_id = sdk.image.find_image(name, ignore_missing=True) if not every else None
        elif kind == "network":
            every = list(sdk.network.networks(name=name))
            by_id = sdk.network.find_network(name, ignore_missing=True) if not every else None
        elif kind == "flavor":
            listed = list(sdk.compute.flavors(details=True, is_public=None))
            with_id = [one for one in listed if one.id == name]
            every, by_id = with_id or [one for one in listed if one.name == name], None
        else:
            every = [one for one in sdk.compute.keypairs() if one.name == name]
            by_id = None
        found = every or ([by_id] if by_id is not None else [])
        # openstacksdk writes an ID into the path of a request, so a service takes `a#b` for `a`.
        return [checked(kind, one) for one in found if name in (one.id, one.name)]

    def subnet(self, identity: str) -> Any:
        """Return a subnet, as it is now."""
        with self._session.asking(f"reading subnet {identity}"):
            return checked("subnet", self._session.sdk.network.get_subnet(identity))

    def several(self, kind: str, name: str) -> bool:
        """Whether a name is not enough to say what is meant."""
        return len(self._found(kind, name)) > 1

    def get(self, kind: str, name: str) -> Any | None:
        """Return the image, network, flavor or key of a name or ID; None: there is none, or several."""
        found = self._found(kind, name)
        return found[0] if len(found) == 1 else None


@dataclass
class World:
    """Everything that carries the mark of a cluster. Unfinished objects are here, too."""

    servers: dict[str, Any] = field(default_factory=dict)
    extra: list[Any] = field(default_factory=list)
    """Servers of nodes that have an older server."""
    networks: dict[str, Any] = field(default_factory=dict)
    spare: list[Any] = field(default_factory=list)
    """Networks of a name that another network has, which is used."""
    subnets: dict[str, Any] = field(default_factory=dict)
    routers: list[Any] = field(default_factory=list)
    routes: set[str] = field(default_factory=set)
    """IDs of networks that the router connects."""
    ports: dict[tuple[str, str], Any] = field(default_factory=dict)
    """By node and network."""
    loose: list[Any] = field(default_factory=list)
    """Ports of a node and network that have another port."""
    floating: dict[str, list[Any]] = field(default_factory=lambda: defaultdict(list))
    groups: dict[str, list[Any]] = field(default_factory=lambda: defaultdict(list))
    images: dict[str, Any] = field(default_factory=dict)
    """Uploaded images."""
    scraps: dict[str, list[Any]] = field(default_factory=lambda: defaultdict(list))
    """Images that an interrupted upload left, by their names."""

    @property
    def left(self) -> set[str]:
        """The nodes of which there are ports or addresses, and no server."""
        return ({node for node, _ in self.ports} | self.floating.keys()) - self.servers.keys()

    def image_name(self, image: str) -> str | None:
        """Return the name of the uploaded image with an ID."""
        return next((name for name, one in self.images.items() if one.id == image), None)

    @cached_property
    def group_of(self) -> dict[str, str]:
        """The names of server groups by the IDs of their members."""
        every = ((name, group) for name, groups in self.groups.items() for group in groups)
        return {member: name for name, group in every for member in group.member_ids or ()}


def read_world(session: CloudSession, mark: ClusterMark) -> World:
    """Ask Nova and Neutron for all objects of a cluster."""
    world, sdk, project = World(), session.sdk, session.project
    with session.asking("reading the servers"):
        servers = [checked("server", one) for one in sdk.compute.servers(details=True)]
        groups = [checked("server group", one) for one in sdk.compute.server_groups()]
    # Of two, that which runs is used, and then the older one.
    for server in sorted(servers, key=lambda s: (never_ran(s), str(s.created_at), s.id)):
        if server.status in GONE:
            continue
        node = mark.node(server)
        if node is not None and node in world.servers:
            world.extra.append(server)
        elif node is not None:
            world.servers[node] = server
    for group in groups:
        name = mark.group_name(group)
        if name is not None:
            world.groups[name].append(group)
    _read_images(world, session, mark)
    lists = {
        "network": sdk.network.networks,
        "subnet": sdk.network.subnets,
        "router": sdk.network.routers,
        "port": sdk.network.ports,
        "floating": sdk.network.ips,
    }
    with session.asking("reading the networks"):
        found = [
            (kind, checked(kind, one))
            for kind, ask in lists.items()
            for one in ask(project_id=project)
        ]
    subnets = {one.network_id for kind, one in found if kind == "subnet"}

    def rank(place: tuple[str, Any]) -> tuple[bool, bool, str, str]:
        kind, one = place
        unused = not one.device_id if kind == "port" else one.id not in subnets
        return kind != "network", unused, str(one.created_at), one.id

    # A request without an answer, and its repetition, may have made two: one in use comes first.
    for kind, one in sorted(found, key=rank):
        words = mark.words(one)
        if words and words[0] == kind:
            _sort_in(world, kind, words[1:], one)
    routers = {router.id for router in world.routers}
    world.routes = {
        one.network_id
        for kind, one in found
        if kind == "port" and one.device_id in routers and is_interface(one)
    }
    return world


def _read_images(world: World, session: CloudSession, mark: ClusterMark) -> None:
    with session.asking("reading the images"):
        asked = session.sdk.image.images(owner=session.project)
        images = [checked("image", one) for one in asked]
    for image in sorted(images, key=lambda one: (str(one.created_at), one.id)):
        name = mark.image_name(image)
        if name is None or image.status in ("deleted", "pending_delete"):
            continue
        if name not in world.images and is_whole(image):
            world.images[name] = image
        else:
            world.scraps[name].append(image)


def is_interface(port: Any) -> bool:
    """Whether a port connects a router with a network."""
    return str(port.device_owner).startswith("network:router_interface")


def _sort_in(world: World, kind: str, words: tuple[str, ...], one: Any) -> None:
    if kind == "router":
        world.routers.append(one)
    elif kind == "network" and len(words) == 1:
        if words[0] in world.networks:
            world.spare.append(one)
        else:
            world.networks[words[0]] = one
    elif kind == "subnet" and len(words) == 1:
        network = world.networks.get(words[0])
        if network is not None and one.network_id == network.id:
            world.subnets.setdefault(words[0], one)
    elif kind == "floating" and len(words) == 1:
        world.floating[words[0]].append(one)
    elif kind == "port" and len(words) == 2:  # noqa: PLR2004 - node and network
        place = (words[0], words[1])
        if place in world.ports:
            world.loose.append(one)
        else:
            world.ports[place] = one


def network_values(spec: OpenstackSpec, world: World, name: str) -> MadeNetwork:
    """Return the values of a network as it is; its provider is compared where the spec says one."""
    network, subnet = world.networks[name], world.subnets.get(name)
    wanted = next((one for one in spec.made if one.name == name), None)
    physical = vlan = None
    if wanted is not None and wanted.physical is not None:
        physical, vlan = wanted.physical, wanted.vlan
        # Only administrators see these.
        if network.provider_network_type is not None:
            physical = network.provider_physical_network
            vlan = network.provider_segmentation_id
    return MadeNetwork(
        subnet=str(subnet.cidr) if subnet is not None else "",
        physical=physical,
        vlan=vlan,
        port_security=(
            None
            if wanted is not None and wanted.port_security is None
            else bool(network.is_port_security_enabled)
        ),
    )


def router_values(spec: OpenstackSpec, world: World, catalog: Catalog) -> Router:
    """Return the values of the router as it is."""
    gateway = world.routers[0].external_gateway_info or {}
    outside = str(gateway.get("network_id") or "")
    wanted = catalog.get("network", spec.outside) if spec.outside else None
    if wanted is not None and wanted.id == outside:
        outside = str(spec.outside)
    routes = _in_order(spec, (n for n, one in world.networks.items() if one.id in world.routes))
    return Router(outside=outside, routes=tuple(routes))


def _in_order(spec: OpenstackSpec, networks: Iterable[str]) -> list[str]:
    """Return names of networks in the order of the spec, and those that it has no longer last."""
    order = [network.name for network in spec.networks]
    return sorted(networks, key=lambda n: (order.index(n) if n in order else len(order), n))


def group_values(group: Any) -> ServerGroup:
    """Return the values of a server group as it is."""
    policies = group.policies or ()
    return ServerGroup(policy=str(group.policy or next(iter(policies), "")))


def server_values(spec: OpenstackSpec, world: World, catalog: Catalog, node: str) -> Server:
    """Return the values of a node's server as it is."""
    server = world.servers[node]
    metadata = server.metadata or {}
    wanted = next((one for _, one in spec.nodes if one.name == node), None)
    slots = str(metadata.get(SLOTS, ""))
    flavor = str((server.flavor or {}).get("original_name") or "")
    if wanted is not None and (known := catalog.get("flavor", spec.flavor_of(wanted))) is not None:
        # A spec may say its ID.
        flavor = spec.flavor_of(wanted) if known.name == flavor else flavor
    return Server(
        host=str(metadata.get(HOST, "")),
        slots=int(slots) if slots.isascii() and slots.isdigit() else 0,
        image=_image(server, world, catalog, spec.image_of(wanted) if wanted is not None else None),
        flavor=flavor,
        key=server.key_name or None,
        group=world.group_of.get(server.id),
        networks=tuple(_ports(spec, world, catalog, node)),
        floating=_is_floating(spec, world, catalog, node),
        access=str(metadata.get(ACCESS) or "") or None,
        reservation=str(metadata.get(RESERVATION) or "") or None,
    )


def _image(server: Any, world: World, catalog: Catalog, wanted: str | None) -> str:
    """Return the image as the spec says it, if it is that one; else as it was when it was made."""
    made = str((server.metadata or {}).get(IMAGE, ""))
    # A server that began from a volume has the text "".
    own = str(server.image.get("id") or "") if isinstance(server.image, dict) else ""
    if wanted is not None and is_file(wanted):
        # Where it is gone, the metadata still say which one it was.
        return world.image_name(own) or made
    found = catalog.get("image", wanted) if wanted is not None else None
    if wanted is not None and found is None:
        # The image may be gone since: that is no difference.
        return made
    if wanted is not None and found is not None and found.id == own:
        return wanted
    return own if made == wanted else made


def _ports(spec: OpenstackSpec, world: World, catalog: Catalog, node: str) -> list[str]:
    server = world.servers[node]
    networks = {network.name: network for network in spec.networks}
    found = []
    for name in _in_order(spec, (name for owner, name in world.ports if owner == node)):
        port = world.ports[node, name]
        # Nova takes the ports of a new server some time after the request.
        comes = server.status == "BUILD" and not port.device_id
        if port.device_id != server.id and not comes:
            continue
        wanted = networks.get(name)
        says = wanted is not None and wanted.port_security is not None
        filtered = bool(port.is_port_security_enabled) if says else None
        text = port_text(name, str(port.binding_vnic_type or "normal"), filtered=filtered)
        existing = wanted.existing if wanted is not None else None
        if existing is not None:
            network = catalog.get("network", existing)
            if network is not None and network.id != port.network_id:
                text += f" of network {port.network_id}"
        found.append(text)
    return found


def _is_floating(spec: OpenstackSpec, world: World, catalog: Catalog, node: str) -> bool:
    """Whether a floating address of the outside leads to a port of the node."""
    ports = {port.id for (owner, _), port in world.ports.items() if owner == node}
    outside = catalog.get("network", spec.outside) if spec.outside is not None else None
    return any(
        address.port_id in ports and (outside is None or address.floating_network_id == outside.id)
        for address in world.floating.get(node, ())
    )


def never_ran(server: Any) -> bool:
    """Whether a server failed before it ran, so that nothing is lost with it."""
    return bool(server.status == "ERROR" and server.launched_at is None)


def why_unfinished(server: Any) -> str:
    """Return why a server is to be completed in place; "" if it is not."""
    if server.status in OFF:
        return f"it is off: {server.status}"
    if server.status in BUSY:
        return f"Nova still works on it: {server.status}"
    return ""
