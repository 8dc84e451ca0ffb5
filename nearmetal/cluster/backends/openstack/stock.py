# SPDX-License-Identifier: Apache-2.0
"""What a plan needs of a cloud, looked up before its first change: names, sizes, quotas, VFs."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from nearmetal.cluster.backends.openstack.answers import number
from nearmetal.cluster.backends.openstack.plan import Router, Server
from nearmetal.cluster.backends.openstack.session import CloudSession, DeniedError, GoneError
from nearmetal.cluster.backends.openstack.spec import (
    ROUTER,
    CloudNode,
    OpenstackSpec,
    is_file,
)
from nearmetal.cluster.backends.openstack.world import Catalog, World
from nearmetal.cluster.diff import Plan
from nearmetal.cluster.model import Finding, some
from nearmetal.cluster.resource import Key, Kind, Resource

_WORDS = {
    "instances": "servers",
    "cores": "processors",
    "ram": "MiB of memory",
    "server_groups": "server groups",
    "server_group_members": "servers in one server group",
    "networks": "networks",
    "subnets": "subnets",
    "routers": "routers",
    "ports": "ports",
    "floating_ips": "floating addresses",
}


@dataclass(frozen=True)
class Quota:
    """A limit of the project, and how much of it is in use; a limit below 0 is none."""

    limit: int
    used: int


class _Count:
    """Adds up what a plan needs."""

    def __init__(self, spec: OpenstackSpec, world: World, catalog: Catalog) -> None:
        self._spec, self._world, self._catalog = spec, world, catalog
        self._nodes = {node.name: node for _, node in spec.nodes}
        self.need: Counter[str] = Counter()

    def make(self, key: Key) -> None:
        """Count a resource that is made."""
        if key.kind is not Kind.NODE:
            self._other(key, 1)
            return
        name, node = key.name, self._nodes[key.name]
        flavor = self._catalog.get("flavor", self._spec.flavor_of(node))
        gone = name not in self._world.servers
        # Ports and addresses that an interrupted `up` left are used again.
        wanted = {network.name for network in self._spec.networks}
        loose = sum(gone and port in wanted for owner, port in self._world.ports if owner == name)
        floats = gone and bool(self._world.floating.get(name))
        self.need.update(
            {
                "instances": 1,
                "cores": flavor.vcpus if flavor is not None else 0,
                "ram": flavor.ram if flavor is not None else 0,
                "ports": len(self._spec.networks) - loose,
                "floating_ips": int(node.floating and not floats),
            }
        )

    def remove(self, key: Key) -> None:
        """Count a resource that is removed first."""
        if key.kind is not Kind.NODE:
            self._other(key, -1)
            return
        server = self._world.servers.get(key.name)
        if server is not None:
            flavor = server.flavor or {}
            self.need.subtract(
                {
                    "instances": 1,
                    "cores": number(flavor.get("vcpus")),
                    "ram": number(flavor.get("ram")),
                    "ports": sum(owner == key.name for owner, _ in self._world.ports),
                    "floating_ips": len(self._world.floating.get(key.name, ())),
                }
            )

    def change(self, item: Resource) -> None:
        """Count a server that changes in place."""
        wanted = item.values
        if isinstance(wanted, Server) and wanted.floating:
            self.need["floating_ips"] += not self._world.floating.get(item.key.name)
        elif isinstance(wanted, Router):
            self.need["ports"] += len(self._spec.routed) - len(self._world.routes)

    def _other(self, key: Key, amount: int) -> None:
        if key.kind is Kind.HOST:
            self.need["server_groups"] += amount
        elif key == Key(Kind.NETWORK, ROUTER):
            self.need["routers"] += amount
            routes = self._spec.routed if amount > 0 else self._world.routes
            self.need["ports"] += amount * len(routes)
        elif key.kind is Kind.NETWORK:
            self.need["networks"] += amount
            self.need["subnets"] += amount


def needs_of(spec: OpenstackSpec, plan: Plan, world: World, catalog: Catalog) -> dict[str, int]:
    """Return how much of each kind a plan adds; what it removes first is subtracted."""
    count = _Count(spec, world, catalog)
    for change in plan.coming:
        if change.in_place:
            count.change(change.item)
        else:
            count.make(change.key)
    for change in plan.going:
        count.remove(change.key)
    sizes = Counter(group for host, _ in spec.nodes if (group := spec.group_of(host)))
    need = {name: amount for name, amount in count.need.items() if amount > 0}
    if plan.fresh and sizes:
        need["server_group_members"] = max(sizes.values())
    return need


def quotas_of(session: CloudSession) -> dict[str, Quota]:
    """Ask for the limits of the project and their use, where the cloud tells them."""
    found: dict[str, Quota] = {}
    with suppress(DeniedError, GoneError), session.asking("reading the quotas of Nova"):
        found |= _of_nova(session.sdk.compute.get_limits().absolute)
    with suppress(DeniedError, GoneError), session.asking("reading the quotas of Neutron"):
        found |= _of_neutron(session.sdk.network.get_quota(session.project, details=True))
    return found


def _of_nova(limits: Any) -> dict[str, Quota]:
    found = {
        "instances": Quota(limits.instances, limits.instances_used),
        "cores": Quota(limits.total_cores, limits.total_cores_used),
        "ram": Quota(limits.total_ram, limits.total_ram_used),
        "server_groups": Quota(limits.server_groups, limits.server_groups_used),
        "server_group_members": Quota(limits.server_group_members, 0),
    }
    return {
        name: Quota(one.limit, number(one.used))
        for name, one in found.items()
        if isinstance(one.limit, int)
    }


def _of_neutron(network: Any) -> dict[str, Quota]:
    found = {}
    for name in ("networks", "subnets", "routers", "ports", "floating_ips"):
        values = getattr(network, name, None)
        if isinstance(values, dict) and isinstance(values.get("limit"), int):
            used = number(values.get("used")) + number(values.get("reserved"))
            found[name] = Quota(values["limit"], used)
    return found


def shortages(
    spec: OpenstackSpec, needs: Mapping[str, int], quotas: Mapping[str, Quota]
) -> Iterator[Finding]:
    """Say what the plan needs beyond the quotas and the virtual functions. Pure."""
    for name, amount in sorted(needs.items()):
        quota = quotas.get(name)
        if quota is None or quota.limit < 0 or quota.used + amount <= quota.limit:
            continue
        free = max(quota.limit - quota.used, 0)
        why = f"the quota of the project leaves {free} ({quota.used} of {quota.limit} in use)"
        hint = "use less, or ask for a larger quota"
        yield Finding((), f"{amount} {_WORDS[name]} are needed", why, hint)
    wanted = len(spec.nodes)
    for network in spec.networks:
        if network.vfs is not None and wanted > network.vfs:
            what = f"network {network.name}: {wanted} virtual functions are needed"
            hint = "use fewer nodes, or correct `vfs` if the cloud has more"
            yield Finding((), what, f"the spec says that there are {network.vfs}", hint)


def _fresh(spec: OpenstackSpec, plan: Plan) -> list[CloudNode]:
    """Return the nodes whose servers the plan makes."""
    fresh = plan.fresh
    return [node for _, node in spec.nodes if node.name in fresh]


def _names(spec: OpenstackSpec, plan: Plan) -> dict[tuple[str, str], list[str]]:
    """Return the kinds and names of all that a plan takes from the cloud, with the nodes."""
    names: dict[tuple[str, str], list[str]] = defaultdict(list)
    for node in _fresh(spec, plan):
        if not is_file(spec.image_of(node)):
            names["image", spec.image_of(node)].append(node.name)
        names["flavor", spec.flavor_of(node)].append(node.name)
        if spec.key is not None:
            names["key pair", spec.key].append(node.name)
        for existing in dict.fromkeys(n.existing for n in spec.networks if n.existing is not None):
            names["network", existing].append(node.name)
    if spec.outside is not None:
        names.setdefault(("network", spec.outside), [])
    return names


def missing(
    spec: OpenstackSpec, plan: Plan, catalog: Catalog, files: Mapping[str, Any]
) -> Iterator[Finding]:
    """Say which names of the spec the cloud lacks, and what does not fit together.

    `files`: images that are uploaded, by their paths.
    """
    for (kind, name), nodes in _names(spec, plan).items():
        finding = _lacking(catalog, kind, name, tuple(nodes))
        if finding is not None:
            yield finding
    for node in _fresh(spec, plan):
        wanted = spec.image_of(node)
        image = files.get(wanted) or catalog.get("image", wanted)
        flavor = catalog.get("flavor", spec.flavor_of(node))
        if image is not None and flavor is not None:
            yield from _too_small(image, flavor, node.name)
    yield from _without_ipv4(spec, plan, catalog)


def _without_ipv4(spec: OpenstackSpec, plan: Plan, catalog: Catalog) -> Iterator[Finding]:
    """Logins and floating addresses need an IPv4 address in the first network."""
    name = spec.networks[0].existing
    nodes = [n.name for n in _fresh(spec, plan) if spec.ssh is not None or n.floating]
    network = catalog.get("network", name) if name is not None and nodes else None
    # The project may not see all subnets of a network of others.
    with suppress(DeniedError, GoneError):
        found = [catalog.subnet(one).cidr for one in getattr(network, "subnet_ids", None) or ()]
        if found and all(":" in cidr for cidr in found):
            why, hint = "it has no IPv4 subnet, for logins", "write another network first"
            yield Finding((), f"network {name} (nodes {some(nodes)})", why, hint)


def _lacking(catalog: Catalog, kind: str, name: str, nodes: tuple[str, ...]) -> Finding | None:
    found = catalog.get(kind, name)
    if catalog.several(kind, name):
        why, hint = "several have this name", "write the ID instead"
    elif found is None:
        why, hint = "the project has none of this name or ID", "correct the name, or add it"
    elif kind == "image" and found.status != "active":
        why, hint = f"its status is {found.status}", "wait for its upload, or use another image"
    else:
        return None
    of = f" (nodes {some(nodes)})" if nodes else ""
    return Finding((), f"{kind} {name}{of}", why, hint)


def _too_small(image: Any, flavor: Any, node: str) -> Iterator[Finding]:
    """An image says how much memory and disk it needs; a flavor without a disk takes the image's."""
    for what, need, has, unit in (
        ("memory", image.min_ram or 0, flavor.ram or 0, "MiB"),
        ("disk", image.min_disk or 0, flavor.disk or 0, "GiB"),
    ):
        if need > has and not (what == "disk" and has == 0):
            why = f"image {image.name} needs {need} {unit} of {what}, the flavor has {has}"
            yield Finding((), f"flavor {flavor.name}", why, "use a larger flavor", (node,))
