# SPDX-License-Identifier: Apache-2.0
"""vSphere's own rules, checked before anything is asked of vCenter: each finding with its fix.

Where a source gives no hard rule there is none here: vCenter has the last word on the rest.
"""

from __future__ import annotations

import ipaddress
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nearmetal.cluster.backends.vsphere.spec.adapters import (
    FIXED_KINDS,
    MIN_HARDWARE,
    NETWORK_KINDS,
)
from nearmetal.cluster.backends.vsphere.spec.guest import DHCP
from nearmetal.cluster.model import Finding, SpecPath

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nearmetal.cluster.backends.vsphere.spec.cluster import (
        VsphereHost,
        VsphereNode,
        VsphereSpec,
    )
    from nearmetal.cluster.backends.vsphere.spec.machine import Machine

MAX_NETWORK_CARDS = 10
MAX_PCI_DEVICES = 16


@dataclass(frozen=True)
class _Placed:
    """One node with all that matters about it."""

    path: SpecPath
    host: VsphereHost
    node: VsphereNode
    machine: Machine
    common: Machine

    @property
    def kinds(self) -> list[str]:
        return [adapter.kind for adapter in self.machine.adapters or []]

    def finding(self, key: str, what: str, why: str, hint: str) -> Finding:
        """Return a finding at the node's own key, or where the cluster says it for all."""
        own = getattr(self.node, key) is not None or getattr(self.common, key, None) is None
        path = (*self.path, key) if own else ("machine", key)
        return Finding(path, what, why, hint, (self.node.name,))


def findings(spec: VsphereSpec) -> list[Finding]:
    """Return every rule that a spec breaks."""
    placed = [
        _Placed(("hosts", i, "nodes", j), host, node, spec.machine_of(node), spec.machine)
        for i, host in enumerate(spec.hosts)
        for j, node in enumerate(host.nodes)
    ]
    found: list[Finding] = []
    for one in placed:
        found += [*_clone(one), *_reservations(one), *_placement(one), *_adapters(one)]
    found += [*_devices(placed), *_names(placed), *_addresses(spec, placed)]
    found += [*_switches(spec), *_reach(spec, placed), *_drs(spec)]
    return _gathered(found)


def _gathered(found: list[Finding]) -> list[Finding]:
    """Say once what is wrong with several nodes for the same reason."""
    alike: dict[tuple[SpecPath, str, str, str], list[str]] = {}
    for one in found:
        alike.setdefault((one.path, one.what, one.why, one.hint), []).extend(one.nodes)
    return [Finding(*key, tuple(dict.fromkeys(nodes))) for key, nodes in alike.items()]


def _clone(one: _Placed) -> Iterator[Finding]:
    if one.machine.template is None:
        yield one.finding(
            "template",
            "no template",
            "a machine is cloned from one",
            "write template: NAME here or under machine",
        )
    fixed = [kind for kind in one.kinds if kind in FIXED_KINDS]
    if one.machine.clone == "instant" and fixed:
        yield one.finding(
            "clone",
            f"an instant clone with a {fixed[0]} adapter",
            "a running machine with a device of the host cannot be forked",
            "write clone: full or linked",
        )


def _reservations(one: _Placed) -> Iterator[Finding]:
    fixed = [kind for kind in one.kinds if kind in FIXED_KINDS]
    if fixed and one.machine.memory_reservation != "full":
        yield one.finding(
            "memory_reservation",
            f"a {fixed[0]} adapter without reserved memory",
            "the device reaches into the guest's memory, so none may be taken away",
            "write memory_reservation: full",
        )
    if one.machine.latency == "high":
        for key in ("memory_reservation", "cpu_reservation"):
            if getattr(one.machine, key) != "full":
                yield one.finding(
                    key,
                    f"latency high with {key} none",
                    "processors are given to one machine alone only with all reserved",
                    f"write {key}: full, or latency: normal",
                )


def _placement(one: _Placed) -> Iterator[Finding]:
    if one.host.esxi != "auto":
        return
    named = [a for a in one.machine.adapters or [] if a.kind in ("sriov", "passthrough")]
    if named:
        yield one.finding(
            "adapters",
            f"a {named[0].kind} adapter on any host",
            f"{named[0].pf or named[0].device} is a device of one host, and the "
            "machine cannot be moved by vMotion",
            "write esxi: NAME at its host, or use kind dynamic",
        )
    for key in ("affinity", "numa"):
        if getattr(one.machine, key):
            yield one.finding(
                key,
                f"{key} on any host",
                "the numbers mean something on one host only, and stop vMotion",
                "write esxi: NAME at its host",
            )


def _adapters(one: _Placed) -> Iterator[Finding]:
    machine, adapters = one.machine, one.machine.adapters or []
    for kind, first in MIN_HARDWARE.items():
        if kind in one.kinds and machine.hardware is not None and machine.hardware < first:
            yield one.finding(
                "hardware",
                f"hardware {machine.hardware} with a {kind} adapter",
                f"{kind} came with version {first}",
                f"write hardware: {first} or more, or leave it out",
            )
    cards = [a for a in adapters if a.kind in NETWORK_KINDS]
    if len(cards) > MAX_NETWORK_CARDS:
        yield one.finding(
            "adapters",
            f"{len(cards)} network cards",
            f"a machine takes {MAX_NETWORK_CARDS}",
            "remove some",
        )
    if len(adapters) - len(cards) > MAX_PCI_DEVICES:
        yield one.finding(
            "adapters",
            f"{len(adapters) - len(cards)} devices of the host",
            f"a machine takes {MAX_PCI_DEVICES}",
            "remove some",
        )
    if "vgpu" in one.kinds and len({a.profile for a in adapters if a.kind == "vgpu"}) > 1:
        yield one.finding(
            "adapters",
            "vGPU profiles that differ",
            "the vGPUs of one machine have one profile",
            "name one",
        )
    if machine.vcpus and machine.cores_per_socket and machine.vcpus % machine.cores_per_socket:
        yield one.finding(
            "cores_per_socket",
            f"{machine.vcpus} processors in sockets of {machine.cores_per_socket}",
            "sockets are full",
            "use a divisor of vcpus",
        )


def _devices(placed: list[_Placed]) -> Iterator[Finding]:
    """A device goes to one machine whole, or to several by its virtual functions."""
    whole: dict[tuple[str, str], str] = {}
    shared: dict[tuple[str, str], str] = {}
    users = [
        (one, adapter, (one.host.esxi, adapter.device or adapter.pf or ""))
        for one in placed
        for adapter in one.machine.adapters or []
        if adapter.kind in ("passthrough", "sriov") and one.machine.power == "on"
    ]
    for one, adapter, place in users:
        if adapter.kind == "sriov":
            shared.setdefault(place, one.node.name)
    for one, adapter, place in users:
        if adapter.kind == "sriov":
            continue
        where = f"{place[1]} of {place[0]}"
        if place in whole:
            yield one.finding(
                "adapters",
                f"{where} is passed through twice",
                f"node {whole[place]} has it",
                "give each node one of its own",
            )
        elif place in shared:
            yield one.finding(
                "adapters",
                f"{where} is passed through whole and as SR-IOV",
                f"node {shared[place]} has a virtual function of it",
                "use kind sriov for both, or another device",
            )
        whole.setdefault(place, one.node.name)


def _names(placed: list[_Placed]) -> Iterator[Finding]:
    seen: dict[str, str] = {}
    for one in placed:
        name = one.node.vm or one.node.name
        if name in seen:
            yield one.finding(
                "vm",
                f"machine {name!r} twice",
                f"node {seen[name]} is called so",
                "names are unique in a folder: write another vm",
            )
        seen.setdefault(name, one.node.name)


def _addresses(spec: VsphereSpec, placed: list[_Placed]) -> Iterator[Finding]:
    dealt = spec.guest_addresses()
    seen: dict[str, str] = {}
    for one in placed:
        guest = one.machine.guest
        if guest is None:
            continue
        address = dealt.get(one.node.name)
        if address is None:
            yield one.finding(
                "guest",
                f"no address left in {guest.address}",
                "there are more nodes than addresses",
                "use a longer range",
            )
        elif address != DHCP:
            if address in seen:
                yield one.finding(
                    "guest",
                    f"address {address} twice",
                    f"node {seen[address]} has it",
                    "give each node one of its own",
                )
            seen.setdefault(address, one.node.name)
            network = ipaddress.IPv4Interface(address).network
            if guest.gateway and ipaddress.IPv4Address(guest.gateway) not in network:
                yield one.finding(
                    "guest",
                    f"gateway {guest.gateway} of {address}",
                    f"it is not in {network}, so the guest cannot reach it",
                    "write a gateway of that subnet, or none",
                )
        if (
            not any(kind in NETWORK_KINDS for kind in one.kinds)
            and one.machine.adapters is not None
        ):
            yield one.finding(
                "guest",
                "an address without a network card",
                "adapters has none",
                "add one of kind vmxnet3",
            )


def _switches(spec: VsphereSpec) -> Iterator[Finding]:
    groups: dict[str, str] = {}
    for i, switch in enumerate(spec.switches):
        if not spec.esxi_of(switch):
            yield Finding(
                ("switches", i),
                f"switch {switch.name}: no host",
                "no host of the spec is named",
                "write esxi: [NAME] here or at a host",
            )
        for j, group in enumerate(switch.port_groups):
            if group.name in groups:
                yield Finding(
                    ("switches", i, "port_groups", j),
                    f"port group {group.name} twice",
                    f"switch {groups[group.name]} has one of that name",
                    "rename it",
                )
            groups.setdefault(group.name, switch.name)
    if len({switch.name for switch in spec.switches}) != len(spec.switches):
        yield Finding(("switches",), "switches of one name", "names are unique", "rename one")
    yield from _uplinks(spec)


def _uplinks(spec: VsphereSpec) -> Iterator[Finding]:
    """An uplink serves one switch of its host, once."""
    users: dict[tuple[str, str], str] = {}
    for i, switch in enumerate(spec.switches):
        for key, values in (("esxi", switch.esxi), ("nics", switch.nics)):
            double = next((v for v in values if values.count(v) > 1), None)
            if double is not None:
                yield Finding(
                    ("switches", i, key),
                    f"switch {switch.name}: {double} twice",
                    "each is named once",
                    "remove one",
                )
        for esxi in dict.fromkeys(spec.esxi_of(switch)):
            for nic in dict.fromkeys(switch.nics):
                other = users.setdefault((esxi, nic), switch.name)
                if other != switch.name:
                    yield Finding(
                        ("switches", i, "nics"),
                        f"switch {switch.name}: {nic} of {esxi}",
                        f"switch {other} has it, and an uplink serves one",
                        "give each switch uplinks of its own",
                    )


def _reach(spec: VsphereSpec, placed: list[_Placed]) -> Iterator[Finding]:
    """Whether the switches of the spec carry the adapters that hang on them."""
    standard = {switch.name for switch in spec.switches if switch.kind == "standard"}
    for one in placed:
        for adapter in one.machine.adapters or []:
            if adapter.switch in standard:
                yield one.finding(
                    "adapters",
                    f"switch {adapter.switch} of port group {adapter.port_group}",
                    "it is a standard one, whose port groups are found by their names",
                    "leave switch out",
                )
                continue
            switch = spec.maker_of(adapter)
            if switch is None:
                continue
            if adapter.kind == "pvrdma" and switch.kind == "standard":
                yield one.finding(
                    "adapters",
                    f"pvrdma on {adapter.port_group}",
                    f"switch {switch.name} is a standard one",
                    "PVRDMA needs a distributed switch: write kind: distributed",
                )
            if one.host.esxi != "auto" and one.host.esxi not in spec.esxi_of(switch):
                yield one.finding(
                    "adapters",
                    f"port group {adapter.port_group} on {one.host.esxi}",
                    f"switch {switch.name} does not reach that host",
                    "add the host to the switch's esxi",
                )


def _drs(spec: VsphereSpec) -> Iterator[Finding]:
    names = {node.name for _, node in spec.nodes}
    where = {node.name: host.esxi for host, node in spec.nodes}
    by_name: dict[str, list[int]] = defaultdict(list)
    for i, rule in enumerate(spec.rules):
        by_name[rule.name].append(i)
        foreign = [name for name in rule.nodes if name not in names]
        if foreign:
            yield Finding(
                ("rules", i),
                f"rule {rule.name}: node {foreign[0]}",
                "there is none of that name",
                "name nodes of this spec",
            )
            continue
        hosts = [where[name] for name in rule.nodes if where[name] != "auto"]
        broken = len(set(hosts)) > 1 if rule.kind == "together" else len(set(hosts)) < len(hosts)
        if broken:
            yield Finding(
                ("rules", i),
                f"rule {rule.name}: {rule.kind}",
                "the spec itself places its nodes otherwise",
                "move the nodes, or remove the rule",
            )
    for name, indices in by_name.items():
        if len(indices) > 1:
            yield Finding(
                ("rules", indices[1]), f"rule {name} twice", "names are unique", "rename one"
            )
