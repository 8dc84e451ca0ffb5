# SPDX-License-Identifier: Apache-2.0
"""What a cloud offers to a demo: flavors, external networks and rules, and the choice among them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from nearmetal.cluster.backends.openstack.answers import checked
from nearmetal.cluster.backends.openstack.session import CloudSession, strange
from nearmetal.cluster.backends.openstack.spec import OpenstackSpec, is_file
from nearmetal.cluster.spec import parse_spec
from nearmetal.core.errors import BackendError
from nearmetal.core.text import printable

SERVERS = 2
VCPUS, MEMORY = 2, 2048
"""The least processors and MiB of a flavor that is chosen."""

LEAST_MEMORY = 1024
"""MiB that a server with the built image needs."""

SUBNET = "10.77.0.0/24"
_SSH = 22
_ANYWHERE = "0.0.0.0/0"
_FOREIGN = ("pci_passthrough:", "accel:", "resources:CUSTOM_")
"""Prefixes of the extra specs of flavors with devices, or of bare-metal machines."""

_LARGER = "name a larger one with --flavor, or ask the operator of the cloud for one"
_OPEN = "allow it: openstack security group rule create --protocol tcp --dst-port 22 default"


@dataclass(frozen=True)
class Wishes:
    """What the user says of a demo. Without a network, one is made with a router."""

    image: str | None = None
    flavor: str | None = None
    network: str | None = None
    outside: str | None = None
    apart: bool = False


@dataclass(frozen=True)
class CloudOffer:
    """What a project sees of its cloud, as openstacksdk has it.

    `ssh`: from where the default security group lets ssh in.
    """

    flavors: Sequence[Any] = ()
    outsides: Sequence[Any] = ()
    ssh: Sequence[str] = (_ANYWHERE,)


@dataclass(frozen=True)
class DemoChoice:
    """A spec, the size of its servers, and lines that give the reasons."""

    spec: OpenstackSpec
    flavor: Any
    lines: tuple[str, ...]


def read_offer(session: CloudSession, wishes: Wishes) -> CloudOffer:
    """Ask a cloud what it offers; raises BackendError."""
    sdk = session.sdk
    with session.asking("reading the flavors"):
        flavors = [checked("flavor", one) for one in sdk.compute.flavors(details=True)]
    outsides: list[Any] = []
    if wishes.network is None:
        with session.asking("reading the external networks"):
            found = sdk.network.networks(is_router_external=True)
            outsides = [checked("network", one) for one in found]
    else:
        with session.asking("reading the networks"):
            found = [checked("network", one) for one in sdk.network.networks()]
        own = [one for one in found if wishes.network in (one.name, one.id)]
        # A missing network is the error of the plan.
        if not any(one.is_port_security_enabled for one in own):
            return CloudOffer(flavors)
    project = session.project
    with session.asking("reading the rules of the default security group"):
        groups = list(sdk.network.security_groups(name="default", project_id=project))
        rules = [rule for group in groups for rule in group.security_group_rules or ()]
        return CloudOffer(flavors, outsides, sorted({*map(ssh_source, rules)} - {""}))


def ssh_source(rule: Any) -> str:
    """Return from where a rule of a security group lets ssh in, "" for nowhere. Pure."""
    if not isinstance(rule, dict):
        raise strange("a rule of a security group")
    if rule.get("direction") != "ingress" or rule.get("ethertype") != "IPv4":
        return ""
    if rule.get("remote_group_id") or rule.get("protocol") not in (None, "tcp", "6"):
        return ""
    low, high = rule.get("port_range_min"), rule.get("port_range_max")
    if (low is not None and low > _SSH) or (high is not None and high < _SSH):
        return ""
    if some := rule.get("remote_address_group_id"):
        return printable(f"address group {some}")
    return printable(str(rule.get("remote_ip_prefix") or _ANYWHERE))


def size_text(flavor: Any) -> str:
    """Return the size of a flavor. Pure."""
    disk = f"{flavor.disk} GiB of disk" if flavor.disk else "the disk of the image"
    return f"{flavor.vcpus} processors, {flavor.ram} MiB of memory, {disk}"


def choose(cloud: str, name: str, offer: CloudOffer, wishes: Wishes, image: Any) -> DemoChoice:
    """Return the spec of a demo; raises BackendError if the cloud does not offer what it needs.

    `image`: the name of an image, or a file with `path` and `min_disk`. Pure.
    """
    uploaded = not isinstance(image, str)
    flavor, why = _flavor(offer.flavors, wishes.flavor, image.min_disk if uploaded else 0)
    if uploaded and flavor.ram < LEAST_MEMORY:
        raise BackendError(
            f"flavor {printable(str(flavor.name))} has {flavor.ram} MiB of memory, and the image "
            f"needs {LEAST_MEMORY}",
            _LARGER,
        )
    network, lines = _network(offer, wishes)
    nodes = [{"name": f"n{i + 1}", "slots": 1} for i in range(SERVERS)]
    if "outside" in network:
        nodes[0] |= {"floating": True}
    hosts = [nodes[:1], nodes[1:]] if wishes.apart else [nodes]
    text = {
        "version": 1,
        "name": name,
        "backend": "openstack",
        "cloud": cloud,
        "image": image if isinstance(image, str) else image.path,
        "flavor": str(flavor.name),
        "ssh": {},
        "apart": wishes.apart,
        "hosts": [{"name": f"h{i + 1}", "nodes": part} for i, part in enumerate(hosts)],
        **network,
    }
    spec = parse_spec(yaml.safe_dump(text, sort_keys=False), "demo --cloud")
    assert isinstance(spec, OpenstackSpec)  # noqa: S101 - the backend that it names
    where = "each on another hypervisor" if wishes.apart else "on one hypervisor"
    return DemoChoice(
        spec,
        flavor,
        (
            f"{SERVERS} servers, {where}, of flavor {flavor.name} ({why}): {size_text(flavor)} each",
            f"image {spec.image} ({'it is uploaded' if is_file(spec.image) else 'as you say'})",
            *lines,
        ),
    )


def _flavor(flavors: Iterable[Any], name: str | None, disk: int) -> tuple[Any, str]:
    """Return the flavor of a name or ID, or the smallest that fits; and the reason."""
    if name is not None:
        found = [one for one in flavors if name in (one.name, one.id)]
        if not found:
            raise BackendError(
                f"flavor {name}: the project has none of this name or ID",
                "see `openstack flavor list`",
            )
        return found[0], "as you say"
    need = f"{VCPUS} processors, {MEMORY} MiB of memory and {disk} GiB of disk"
    fits = [
        one
        for one in flavors
        if one.vcpus >= VCPUS
        and one.ram >= MEMORY
        and ((one.disk or 0) == 0 or one.disk >= disk)
        and not str(one.name).startswith("reservation:")
        and not any(
            str(key).startswith(_FOREIGN) for key in getattr(one, "extra_specs", None) or ()
        )
    ]
    if not fits:
        raise BackendError(f"no flavor of the project has {need}", _LARGER)
    best = min(fits, key=lambda one: (one.vcpus, one.ram, one.disk or 0, str(one.name)))
    return best, f"the smallest with {need}"


def _ssh_lines(offer: CloudOffer) -> list[str]:
    """Return a line about a security group that lets ssh in from some places only."""
    if not offer.ssh:
        raise BackendError(
            "the default security group of the project lets no ssh in (TCP port 22), so the servers "
            "could not be entered",
            _OPEN,
        )
    if _ANYWHERE in offer.ssh:
        return []
    return [f"ssh is let in from {', '.join(offer.ssh)} only: this machine must be there"]


def _network(offer: CloudOffer, wishes: Wishes) -> tuple[dict[str, Any], list[str]]:
    """Return the networks of the spec, and lines about them."""
    if wishes.network is not None:
        line = f"network {wishes.network} (as you say), without floating addresses"
        return {"networks": [{"name": "mpi", "existing": wishes.network}]}, [
            line,
            *_ssh_lines(offer),
        ]
    outside, why = wishes.outside, "as you say"
    if outside is None:
        names = sorted(str(one.name or one.id) for one in offer.outsides)
        default = [str(n.name or n.id) for n in offer.outsides if getattr(n, "is_default", False)]
        if not names:
            raise BackendError(
                "the project sees no external network, so there are no floating addresses",
                "use --network NAME, a network whose addresses this machine reaches",
            )
        outside = (sorted(default) or names)[0]
        why = "the default" if default else "the only one" if len(names) == 1 else "the first"
        if len(names) > 1:
            why += f" of {len(names)}"
    made = {"networks": [{"name": "mpi", "subnet": SUBNET}], "outside": outside}
    line = f"a network {SUBNET}, a router and a floating address of {outside} ({why})"
    return made, [line, *_ssh_lines(offer)]
