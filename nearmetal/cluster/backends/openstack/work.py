# SPDX-License-Identifier: Apache-2.0
"""The requests that make and remove the objects of a cluster. Each can be repeated."""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

from nearmetal.cluster.backends.openstack.answers import checked
from nearmetal.cluster.backends.openstack.guests import ServerGuests, first_interfaces
from nearmetal.cluster.backends.openstack.images import ImageFile, upload
from nearmetal.cluster.backends.openstack.marks import (
    ACCESS,
    CLUSTER,
    HOST,
    IMAGE,
    MARK,
    NODE,
    RESERVATION,
    SLOTS,
    ClusterMark,
)
from nearmetal.cluster.backends.openstack.plan import Router, Server
from nearmetal.cluster.backends.openstack.session import (
    BusyError,
    CloudSession,
    GoneError,
    reason_line,
)
from nearmetal.cluster.backends.openstack.spec import CloudNetwork, OpenstackSpec
from nearmetal.cluster.backends.openstack.world import (
    BUSY,
    GONE,
    OFF,
    RUNS,
    Catalog,
    World,
    is_interface,
)
from nearmetal.core.errors import BackendError

_LOOK_S = 1.0

_NO_ROOM = (
    "no hypervisor has the room: virtual functions of the direct networks, processors, memory, "
    "or hypervisors apart; use fewer nodes or another flavor"
)

_NO_RESERVATION = (
    "reservation {0} has ended, is of another project, or has no such room: look at it with "
    "`openstack reservation lease list`"
)

_AGAIN = "run `nearmetal up` again: it makes these nodes again, and keeps the others"


class CloudWork:
    """Makes and removes objects with one mark. `world`: what there was before."""

    def __init__(
        self,
        session: CloudSession,
        spec: OpenstackSpec,
        mark: ClusterMark,
        world: World,
        catalog: Catalog,
        *,
        guests: ServerGuests | None = None,
    ) -> None:
        self._session, self._spec, self._mark, self._guests = session, spec, mark, guests
        self._world, self._catalog = world, catalog

    @property
    def _network(self) -> Any:
        return self._session.sdk.network

    @property
    def _compute(self) -> Any:
        return self._session.sdk.compute

    def _id(self, kind: str, name: str) -> str:
        found = self._catalog.get(kind, name)
        if found is None:
            raise BackendError(
                f"{kind} {name}: the project has none, or several of this name",
                "correct the name, or write the ID",
            )
        return str(found.id)

    # Networks

    def make_network(self, wanted: CloudNetwork) -> None:
        """Make a network with its subnet, or what is missing of it."""
        name = wanted.name
        if name not in self._world.networks:
            provider: dict[str, Any] = {}
            if wanted.physical is not None:
                kind = "flat" if wanted.vlan is None else "vlan"
                provider = {
                    "provider_network_type": kind,
                    "provider_physical_network": wanted.physical,
                }
            if wanted.vlan is not None:
                provider["provider_segmentation_id"] = wanted.vlan
            with self._session.asking(f"making network {name}"):
                self._world.networks[name] = self._network.create_network(
                    name=f"{self._spec.name}.{name}",
                    description=self._mark.text("network", name),
                    **_security(wanted),
                    **provider,
                )
        if name not in self._world.subnets:
            # Without a router there is no gateway that nodes could use; one may come later.
            routed = {} if wanted in self._spec.routed else {"gateway_ip": None}
            subnet = ipaddress.IPv4Network(wanted.subnet or "")
            pool = {"start": str(subnet[2]), "end": str(subnet[-2])}
            with self._session.asking(f"making the subnet of network {name}"):
                self._world.subnets[name] = self._network.create_subnet(
                    name=f"{self._spec.name}.{name}",
                    description=self._mark.text("subnet", name),
                    network_id=self._world.networks[name].id,
                    ip_version=4,
                    cidr=wanted.subnet,
                    allocation_pools=[pool],
                    **routed,
                )

    def remove_network(self, name: str) -> None:
        """Remove a network with its subnet."""
        network = self._world.networks.pop(name, None)
        self._world.subnets.pop(name, None)
        if network is not None:
            self._detach(network.id)
            self._remove(f"removing network {name}", self._network.delete_network, network)

    def _remove(self, what: str, remove: Callable[[Any], Any], item: Any) -> None:
        """Remove something that may be gone."""
        with suppress(GoneError), self._session.asking(what):
            remove(item)

    def _detach(self, network: str) -> None:
        if network not in self._world.routes:
            return
        for router in self._world.routers:
            for port in self._interfaces(router):
                if port.network_id == network:
                    self._unplug(router, port)
        self._world.routes.discard(network)

    def _interfaces(self, router: Any) -> list[Any]:
        with self._session.asking("reading the ports of the router"):
            ports = list(self._network.ports(device_id=router.id))
        return [port for port in ports if is_interface(port)]

    def _unplug(self, router: Any, port: Any) -> None:
        def remove(one: Any) -> None:
            self._network.remove_interface_from_router(router, None, one.id)

        self._remove("taking a network from the router", remove, port)

    def settle_router(self, wanted: Router) -> None:
        """Make the router, and connect exactly the networks of the spec."""
        gateway = {"network_id": self._id("network", wanted.outside)}
        if not self._world.routers:
            with self._session.asking("making the router"):
                made = self._network.create_router(
                    name=self._spec.name,
                    description=self._mark.text("router"),
                    external_gateway_info=gateway,
                )
            self._world.routers.append(made)
        router = self._world.routers[0]
        if (router.external_gateway_info or {}).get("network_id") != gateway["network_id"]:
            # Neutron keeps the gateway as long as addresses of its network need it.
            for node in [*self._world.floating]:
                self._unfloat(node, but=gateway["network_id"])
            with self._session.asking("setting the outside of the router"):
                self._network.update_router(router, external_gateway_info=gateway)
        subnets = {
            self._world.networks[name].id: self._world.subnets[name] for name in wanted.routes
        }
        own = {network.id for network in self._world.networks.values()}
        for network in self._world.routes & own - subnets.keys():
            self._detach(network)
        for network, subnet in subnets.items():
            if network not in self._world.routes:
                self._attach(router, subnet)

    def _attach(self, router: Any, subnet: Any) -> None:
        with self._session.asking("connecting the router"):
            if subnet.gateway_ip is None:
                first = str(ipaddress.IPv4Network(subnet.cidr)[1])
                self._network.update_subnet(subnet, gateway_ip=first)
            self._network.add_interface_to_router(router, subnet.id)
        self._world.routes.add(subnet.network_id)

    def remove_router(self) -> None:
        """Remove the router, and the floating addresses that it leads."""
        for node in [*self._world.floating]:
            self._unfloat(node)
        for router in self._world.routers:
            for port in self._interfaces(router):
                self._unplug(router, port)
            self._remove("removing the router", self._network.delete_router, router)
        self._world.routers.clear()
        self._world.routes.clear()

    # Images

    def make_image(self, name: str, file: ImageFile) -> None:
        """Upload the image of a file, in place of what an interruption left of it."""
        self._remove_scraps(name)
        self._world.images[name] = upload(
            self._session,
            self._mark,
            file,
            name,
            cluster=self._spec.name,
            properties=self._spec.properties,
        )

    def _remove_scraps(self, name: str) -> None:
        for scrap in self._world.scraps.pop(name, ()):
            self._remove(f"removing image {name}", self._session.sdk.image.delete_image, scrap)

    def remove_image(self, name: str) -> None:
        """Remove an image that was uploaded."""
        self._remove_scraps(name)
        image = self._world.images.pop(name, None)
        if image is not None:
            self._remove(f"removing image {name}", self._session.sdk.image.delete_image, image)

    # Server groups

    def make_group(self, name: str, policy: str) -> None:
        """Make a server group."""
        with self._session.asking(f"making server group {name}"):
            made = self._compute.create_server_group(name=self._mark.group(name), policy=policy)
        self._world.groups[name].append(made)

    def remove_group(self, name: str) -> None:
        """Remove a server group, not its members."""
        for group in self._world.groups.pop(name, ()):
            self._remove(f"removing server group {name}", self._compute.delete_server_group, group)

    # Servers

    def make_server(self, node: str, wanted: Server) -> str:
        """Begin to make the server of a node, with its ports; returns its ID."""
        ports = [self._port(node, network) for network in self._spec.networks]
        if wanted.floating:
            self._float(node, ports[0])
        more: dict[str, Any] = {} if wanted.key is None else {"key_name": wanted.key}
        hints: dict[str, str] = {}
        if wanted.group is not None:
            hints["group"] = self._world.groups[wanted.group][0].id
        if wanted.reservation is not None:
            hints["reservation"] = wanted.reservation
        if hints:
            more["scheduler_hints"] = hints
        uploaded = self._world.images.get(wanted.image)
        image = uploaded.id if uploaded is not None else self._id("image", wanted.image)
        flavor = self._id("flavor", wanted.flavor)
        with self._session.asking(f"making the server of node {node}"):
            made = self._compute.create_server(
                name=node,
                image_id=image,
                flavor_id=flavor,
                networks=[{"port": port.id} for port in ports],
                metadata=self._metadata(node, wanted),
                **self._first_boot(node, ports),
                **more,
            )
        self._world.servers[node] = made
        return str(made.id)

    def _first_boot(self, node: str, ports: Sequence[Any]) -> dict[str, Any]:
        """Return what a request says of the first boot: nothing, unless jobs enter the server."""
        if self._guests is None:
            return {}
        with self._session.asking(f"reading the ports of node {node}"):
            data = self._guests.user_data(node, [*first_interfaces(self._catalog, ports)])
        return {"user_data": data, "config_drive": True}

    def _metadata(self, node: str, wanted: Server) -> dict[str, str]:
        may = {ACCESS: wanted.access, RESERVATION: wanted.reservation}
        return {key: value for key, value in may.items() if value is not None} | {
            MARK: self._mark.token,
            CLUSTER: self._spec.name,
            NODE: node,
            HOST: wanted.host,
            SLOTS: str(wanted.slots),
            IMAGE: wanted.image,
        }

    def _port(self, node: str, network: CloudNetwork) -> Any:
        """Return the port of a node, which an interrupted `up` may have made."""
        found = self._world.ports.get((node, network.name))
        existing = network.existing
        home = (
            self._id("network", existing)
            if existing is not None
            else self._world.networks[network.name].id
        )
        if found is not None and not found.device_id and _fits(found, home, network):
            return found
        if found is not None:
            self._remove(f"removing a port of node {node}", self._network.delete_port, found)
        # An unfiltered port has no security groups.
        groups: dict[str, Any] = {"security_groups": []} if network.port_security is False else {}
        with self._session.asking(f"making the port of node {node} in network {network.name}"):
            made = self._network.create_port(
                name=f"{self._spec.name}.{node}.{network.name}",
                description=self._mark.text("port", node, network.name),
                network_id=home,
                binding_vnic_type=network.kind,
                **_security(network),
                **groups,
            )
        self._world.ports[node, network.name] = made
        return made

    def _float(self, node: str, port: Any) -> None:
        """Lead a floating address to a port; one that the node has already is used."""
        outside = self._id("network", self._spec.outside or "")
        self._unfloat(node, but=outside)
        found = self._world.floating[node]
        with self._session.asking(f"giving node {node} a floating address"):
            if not found:
                found.append(
                    self._network.create_ip(
                        floating_network_id=outside,
                        port_id=port.id,
                        description=self._mark.text("floating", node),
                    )
                )
            elif found[0].port_id != port.id:
                found[0] = self._network.update_ip(found[0], port_id=port.id)

    def _unfloat(self, node: str, but: str | None = None) -> None:
        """Remove the floating addresses of a node, but not those of a network."""
        kept = []
        for address in self._world.floating.pop(node, ()):
            if address.floating_network_id == but:
                kept.append(address)
                continue
            what = f"removing the floating address of node {node}"
            self._remove(what, self._network.delete_ip, address)
        if kept:
            self._world.floating[node] = kept

    def change_server(self, node: str, wanted: Server) -> str:
        """Change what can be changed in a server that exists, and switch it on; returns its ID."""
        server = self._settled(node)
        metadata = self._metadata(node, wanted)
        with self._session.asking(f"changing node {node}"):
            if not metadata.items() <= (server.metadata or {}).items():
                self._compute.set_server_metadata(server, **metadata)
            if server.status in OFF:
                getattr(self._compute, OFF[server.status])(server)
        if wanted.floating:
            self._float(node, self._world.ports[node, self._spec.networks[0].name])
        else:
            self._unfloat(node)
        return str(server.id)

    def _settled(self, node: str) -> Any:
        """Return the server of a node when Nova has ended what it does with it."""
        server = self._world.servers[node]

        def settled() -> bool:
            nonlocal server
            if server.status in BUSY:
                with self._session.asking(f"reading node {node}"):
                    server = checked("server", self._compute.get_server(server.id))
            return server.status not in BUSY

        self._wait(settled, lambda: f"node {node} is still in state {server.status}")
        if server.status == "ERROR":
            raise BackendError(
                f"node {node}: Nova could not make its server: {_fault(server)}", _AGAIN
            )
        self._world.servers[node] = server
        return server

    def remove_server(self, node: str) -> None:
        """Remove the server of a node with its ports and its floating addresses, and wait for it."""
        server = self._world.servers.pop(node, None)
        self._unfloat(node)
        if server is not None:
            self.remove_servers([server])
        for place in [place for place in self._world.ports if place[0] == node]:
            port = self._world.ports.pop(place)
            self._remove(f"removing a port of node {node}", self._network.delete_port, port)

    def remove_servers(self, servers: Iterable[Any]) -> None:
        """Remove servers, and wait until they are gone."""
        left = {server.id: server.name for server in servers}
        for server, name in left.items():
            self._remove(f"removing server {name}", self._compute.delete_server, server)

        def all_gone() -> bool:
            with self._session.asking("reading the servers"):
                found = {s.id for s in self._compute.servers() if s.status not in GONE}
            return left.keys().isdisjoint(found)

        self._wait(all_gone, lambda: f"servers {', '.join(left.values())} are not removed")

    def wait_for(self, servers: dict[str, str]) -> None:
        """Wait until all servers run: names of nodes by IDs; raises BackendError for all that fail."""
        failed: dict[str, str] = {}
        left = dict(servers)

        def settled() -> bool:
            with self._session.asking("reading the servers"):
                found = {s.id: checked("server", s) for s in self._compute.servers(details=True)}
            for server, node in [*left.items()]:
                one = found.get(server)
                if one is None or one.status == "ERROR":
                    failed[node] = _fault(one)
                elif one.status not in RUNS:
                    continue
                del left[server]
            return not left

        self._wait(settled, lambda: f"nodes {', '.join(left.values())} do not run")
        if failed:
            lines = "".join(f"\n  node {node}: {reason}" for node, reason in failed.items())
            no_room = any("no valid host" in reason.lower() for reason in failed.values())
            held = self._spec.reservation
            full = _NO_ROOM if held is None else _NO_RESERVATION.format(held)
            hint = full if no_room else _AGAIN
            raise BackendError(f"Nova could not make all servers:{lines}", hint)

    def _wait(self, done: Callable[[], bool], late: Callable[[], str]) -> None:
        end = time.monotonic() + self._spec.timeout
        while True:
            try:
                if done():
                    return
            except BusyError:
                # The question has no effect, so it is repeated.
                if time.monotonic() > end:
                    raise
            if time.monotonic() > end:
                raise BackendError(
                    f"{late()} after {self._spec.timeout} s",
                    "repeat the command, which waits again; `timeout` in the spec is the limit",
                )
            time.sleep(_LOOK_S)

    # All

    def remove_all(self) -> None:
        """Remove everything that carries the mark."""
        world = self._world
        for node in [*world.floating]:
            self._unfloat(node)
        self.remove_servers([*world.servers.values(), *world.extra])
        for port in (*world.ports.values(), *world.loose):
            self._remove("removing a port", self._network.delete_port, port)
        self.remove_router()
        for name in [*world.networks]:
            self.remove_network(name)
        for network in world.spare:
            self._remove(f"removing network {network.name}", self._network.delete_network, network)
        for name in [*world.groups]:
            self.remove_group(name)
        for name in {*world.images, *world.scraps}:
            self.remove_image(name)


def _security(network: CloudNetwork) -> dict[str, Any]:
    """Return what a request says of filters: nothing, unless the spec does, as it may need a right."""
    if network.port_security is None:
        return {}
    return {"is_port_security_enabled": network.port_security}


def _fits(port: Any, home: str, network: CloudNetwork) -> bool:
    """Whether a port without a server is one that a new server may have."""
    wanted = network.port_security
    return (
        port.network_id == home
        and (port.binding_vnic_type or "normal") == network.kind
        and wanted in {None, bool(port.is_port_security_enabled)}
    )


def _fault(server: Any) -> str:
    """Return why a server failed, as Nova says it."""
    if server is None:
        return "it was removed meanwhile"
    return reason_line((server.fault or {}).get("message") or "ERROR without a reason")
