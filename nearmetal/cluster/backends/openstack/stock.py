# SPDX-License-Identifier: Apache-2.0
"""What a plan needs of a cloud, looked up before its first change: names, sizes, quotas, VFs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from nearmetal.cluster.backends.openstack.plan import Server
from nearmetal.cluster.backends.openstack.session import CloudSession
from nearmetal.cluster.backends.openstack.spec import ROUTER, OpenstackSpec
from nearmetal.cluster.backends.openstack.world import Catalog, World
from nearmetal.cluster.diff import Plan
from nearmetal.cluster.model import Finding, some
from nearmetal.cluster.resource import Key, Kind

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


@dataclass(frozen=True)
class Needs:
    """How much of each kind a plan adds; what it removes first is subtracted.

    `direct`: by network, the ports for virtual functions that its nodes have in the end.
    """

    amounts: Mapping[str, int]
    direct: Mapping[str, int] = field(default_factory=dict)


def needs_of(spec: OpenstackSpec, plan: Plan, world: World, catalog: Catalog) -> Needs:
    """Return what a plan needs."""
    made = [c.key for c in plan.coming if not c.in_place]
    gone = [c.key for c in plan.going]
    nodes = {node.name: node for _, node in spec.nodes}
    need: Counter[str] = Counter()
    for sign, keys in ((1, made), (-1, gone)):
        for key in keys:
            if key.kind is Kind.NODE:
                _count_node(need, sign, spec, world, catalog, key.name)
            elif key.kind is Kind.HOST:
                need["server_groups"] += sign
            elif key == Key(Kind.NETWORK, ROUTER):
                need["routers"] += sign
            elif key.kind is Kind.NETWORK:
                need["networks"] += sign
                need["subnets"] += sign
    for change in plan.coming:
        if change.key.kind is Kind.NODE and change.in_place:
            wanted = change.item.values
            if isinstance(wanted, Server) and wanted.floating and not world.floating.get(change.key.name):
                need["floating_ips"] += 1
    sizes = Counter(spec.group_of(host) for host, _ in spec.nodes)
    sizes.pop(None, None)
    if any(key.kind is Kind.NODE for key in made):
        need["server_group_members"] = max(sizes.values(), default=0)
    direct = {n.name: len(nodes) for n in spec.networks if n.kind == "direct" and n.vfs is not None}
    return Needs({name: amount for name, amount in need.items() if amount > 0}, direct)


def _count_node(
    need: Counter[str], sign: int, spec: OpenstackSpec, world: World, catalog: Catalog, name: str
) -> None:
    node = next((one for _, one in spec.nodes if one.name == name), None)
    server = world.servers.get(name)
    if sign < 0 and server is None:
        return
    if sign > 0 and node is not None:
        flavor = catalog.get("flavor", spec.flavor_of(node))
        cores, ram = (flavor.vcpus, flavor.ram) if flavor is not None else (0, 0)
        ports, floating = len(spec.networks), int(node.floating)
        # Ports and addresses that an interrupted `up` left are used again.
        ports -= sum(server is None and owner == name for owner, _ in world.ports)
        floating -= int(server is None and bool(world.floating.get(name)))
    else:
        flavor_of = (server.flavor or {}) if server is not None else {}
        cores, ram = int(flavor_of.get("vcpus") or 0), int(flavor_of.get("ram") or 0)
        ports = sum(owner == name for owner, _ in world.ports)
        floating = len(world.floating.get(name, ()))
    amounts = {"instances": 1, "cores": cores, "ram": ram, "ports": ports, "floating_ips": floating}
    for kind, amount in amounts.items():
        need[kind] += sign * amount


def quotas_of(session: CloudSession) -> dict[str, Quota]:
    """Ask for the limits of the project and their use."""
    with session.asking("reading the quotas"):
        limits = session.sdk.compute.get_limits().absolute
        network = session.sdk.network.get_quota(session.project, details=True)
    found = {
        "instances": Quota(limits.instances, limits.instances_used),
        "cores": Quota(limits.total_cores, limits.total_cores_used),
        "ram": Quota(limits.total_ram, limits.total_ram_used),
        "server_groups": Quota(limits.server_groups, limits.server_groups_used),
        "server_group_members": Quota(limits.server_group_members, 0),
    }
    for name in ("networks", "subnets", "routers", "ports", "floating_ips"):
        values = getattr(network, name, None)
        if isinstance(values, dict):
            used = int(values.get("used", 0)) + int(values.get("reserved", 0))
            found[name] = Quota(int(values["limit"]), used)
    return {name: one for name, one in found.items() if isinstance(one.limit, int)}


def shortages(spec: OpenstackSpec, needs: Needs, quotas: Mapping[str, Quota]) -> Iterator[Finding]:
    """Say what the plan needs beyond the quotas and the virtual functions. Pure."""
    for name, amount in sorted(needs.amounts.items()):
        quota = quotas.get(name)
        if quota is None or quota.limit < 0 or quota.used + amount <= quota.limit:
            continue
        free = max(quota.limit - quota.used, 0)
        why = f"the quota of the project leaves {free} ({quota.used} of {quota.limit} in use)"
        hint = "use less, or ask for a larger quota"
        yield Finding((), f"{amount} {_WORDS[name]} are needed", why, hint)
    for network in spec.networks:
        wanted = needs.direct.get(network.name, 0)
        if network.vfs is not None and wanted > network.vfs:
            what = f"network {network.name}: {wanted} virtual functions are needed"
            hint = "use fewer nodes, or correct `vfs` if the cloud has more"
            yield Finding((), what, f"the spec says that there are {network.vfs}", hint)


def missing(spec: OpenstackSpec, plan: Plan, catalog: Catalog) -> Iterator[Finding]:
    """Say which names of the spec the cloud lacks, and what does not fit together."""
    fresh = [node for _, node in spec.nodes if node.name in plan.fresh]
    wanted: dict[tuple[str, str], list[str]] = {}
    for node in fresh:
        for kind, name in (("image", spec.image_of(node)), ("flavor", spec.flavor_of(node))):
            wanted.setdefault((kind, name), []).append(node.name)
    every = [node.name for node in fresh]
    if fresh and spec.key is not None:
        wanted["key pair", spec.key] = every
    for network in spec.networks:
        if fresh and network.existing is not None:
            wanted["network", network.existing] = every
    if spec.outside is not None and plan.coming:
        wanted.setdefault(("network", spec.outside), [])
    for (kind, name), nodes in wanted.items():
        finding = _lacking(catalog, kind, name, tuple(nodes))
        if finding is not None:
            yield finding
    for node in fresh:
        image = catalog.get("image", spec.image_of(node))
        flavor = catalog.get("flavor", spec.flavor_of(node))
        if image is not None and flavor is not None:
            yield from _too_small(image, flavor, node.name)


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
