# SPDX-License-Identifier: Apache-2.0
"""vSphere's own rules, checked before the first request to vCenter: each finding with its fix.

A rule without a source is not checked here: vCenter checks the rest.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from nearmetal.cluster.backends.vsphere.settings import (
    DHCP,
    FIXED_KINDS,
    INSTANT,
    MIN_HARDWARE,
    NETWORK_KINDS,
    OF_THE_SOURCE,
)
from nearmetal.cluster.model import Finding, SpecPath, merged_findings

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from nearmetal.cluster.backends.vsphere.settings import MachineSettings, VmAdapter
    from nearmetal.cluster.backends.vsphere.spec import EsxiHost, VsphereNode, VsphereSpec

_T = TypeVar("_T")

MAX_NETWORK_CARDS = 10
MAX_PCI_DEVICES = 16


@dataclass(frozen=True)
class _Placed:
    """One node with its host and its settings."""

    path: SpecPath
    host: EsxiHost
    node: VsphereNode
    machine: MachineSettings
    common: MachineSettings

    @property
    def adapters(self) -> list[VmAdapter]:
        return self.machine.adapters or []

    @property
    def kinds(self) -> list[str]:
        return [adapter.kind for adapter in self.adapters]

    @property
    def is_fork(self) -> bool:
        """Whether it is an instant clone."""
        return self.machine.clone == INSTANT

    @property
    def fixed(self) -> list[str]:
        """Kinds of its adapters that are devices of the host."""
        return [kind for kind in self.kinds if kind in FIXED_KINDS]

    def finding(self, key: str, what: str, why: str, hint: str) -> Finding:
        """Return a finding at the node's own key, else at the key of the cluster."""
        own = getattr(self.node, key) is not None or getattr(self.common, key, None) is None
        path = (*self.path, key) if own else ("machine", key)
        return Finding(path, what, why, hint, (self.node.name,))


def findings(spec: VsphereSpec) -> list[Finding]:
    """Return every rule that a spec breaks, once for all nodes that break it in the same way."""
    placed = [
        _Placed(("hosts", i, "nodes", j), host, node, spec.machine_of(node), spec.machine)
        for i, host in enumerate(spec.hosts)
        for j, node in enumerate(host.nodes)
    ]
    found: list[Finding] = []
    for one in placed:
        found += [*_clone(one), *_reservations(one), *_placement(one), *_adapters(one)]
        found += _access(spec, one)
    if spec.post and spec.ssh is None:
        hint = "write ssh: {}, see nearmetal-spec(5)"
        found.append(Finding(("post",), "scripts", "no way into the machines is given", hint))
    found += [*_devices(placed), *_names(placed), *_addresses(spec, placed)]
    found += [*_switches(spec), *_uplinks(spec), *_reach(spec, placed), *_drs(spec)]
    return merged_findings(found)


def _doubles(items: Iterable[tuple[str, _T]]) -> Iterator[tuple[str, _T, _T]]:
    """Yield key and value of each item whose key an earlier item has, with its value."""
    first: dict[str, _T] = {}
    for key, value in items:
        if first.setdefault(key, value) is not value:
            yield key, value, first[key]


def _clone(one: _Placed) -> Iterator[Finding]:
    if one.machine.template is None:
        hint = "write template: NAME here or under machine"
        yield one.finding("template", "no template", "a machine is a clone of a template", hint)
    if not one.is_fork:
        return
    if one.fixed:
        what = f"an instant clone with a {one.fixed[0]} adapter"
        why = "a running machine with a device of the host cannot be forked"
        yield one.finding("clone", what, why, "write clone: full or linked")
    for key in OF_THE_SOURCE:
        if getattr(one.machine, key) is not None and not (key == "adapters" and one.fixed):
            why = "it goes on from the running point of its source, with all that the source has"
            hint = f"remove {key} and set it in the source, or write clone: full or linked"
            yield one.finding(key, f"{key} of an instant clone", why, hint)


def _access(spec: VsphereSpec, one: _Placed) -> Iterator[Finding]:
    if spec.ssh and None in (spec.ssh.identity, spec.ssh.host_key) and one.is_fork:
        why = "it does not boot, so cloud-init sets no key and its sshd publishes none"
        hint = "write identity and host_key under ssh"
        yield Finding(("ssh",), "ssh into an instant clone", why, hint, (one.node.name,))
    elif spec.ssh and spec.ssh.identity is None and one.machine.guest is not None:
        what, why = "guest settings, and ssh without identity", "cloud-init takes only one of them"
        yield one.finding("guest", what, why, "remove guest, or write identity: PATH under ssh")


def _reservations(one: _Placed) -> Iterator[Finding]:
    memory = one.machine.memory_reservation
    if one.fixed and memory != "full":
        what = f"a {one.fixed[0]} adapter without reserved memory"
        why = "the device accesses the guest's memory, so all of it must be reserved"
        yield one.finding("memory_reservation", what, why, "write memory_reservation: full")
    if one.machine.latency == "high":
        for key in ("memory_reservation", "cpu_reservation"):
            if getattr(one.machine, key) != "full":
                why = "a machine has processors of its own only if all is reserved"
                hint = f"write {key}: full, or latency: normal"
                yield one.finding(key, f"latency high with {key} none", why, hint)


def _placement(one: _Placed) -> Iterator[Finding]:
    if one.host.esxi != "auto":
        return
    hint = "write esxi: NAME at its host"
    named = [a for a in one.adapters if a.kind in ("sriov", "passthrough")]
    if named:
        device = named[0].pf or named[0].device
        why = f"{device} is a device of one host, and vMotion cannot move the machine"
        what = f"a {named[0].kind} adapter on any host"
        yield one.finding("adapters", what, why, f"{hint}, or use kind dynamic")
    for key in ("affinity", "numa"):
        if getattr(one.machine, key):
            why = "the numbers are valid on one host only, and prevent vMotion"
            yield one.finding(key, f"{key} on any host", why, hint)


def _adapters(one: _Placed) -> Iterator[Finding]:
    machine, adapters = one.machine, one.adapters
    for kind, first in MIN_HARDWARE.items():
        if kind in one.kinds and machine.hardware is not None and machine.hardware < first:
            what, why = (
                f"hardware {machine.hardware} with a {kind} adapter",
                f"{kind} needs {first}",
            )
            yield one.finding("hardware", what, why, f"write hardware: {first} or more, or omit it")
    nr_cards = sum(a.kind in NETWORK_KINDS for a in adapters)
    limits = (
        (nr_cards, MAX_NETWORK_CARDS, "network cards"),
        (len(adapters) - nr_cards, MAX_PCI_DEVICES, "devices of the host"),
    )
    for count, limit, name in limits:
        if count > limit:
            why = f"a machine has at most {limit}"
            yield one.finding("adapters", f"{count} {name}", why, "remove some")
    if len({a.profile for a in adapters if a.kind == "vgpu"}) > 1:
        why = "all vGPUs of one machine have the same profile"
        yield one.finding("adapters", "vGPU profiles that differ", why, "use one profile")
    sockets = machine.cores_per_socket
    if machine.vcpus and sockets and machine.vcpus % sockets:
        what, why = f"{machine.vcpus} processors in sockets of {sockets}", "all sockets are full"
        yield one.finding("cores_per_socket", what, why, "use a divisor of vcpus")


def _devices(placed: list[_Placed]) -> Iterator[Finding]:
    """A device belongs to one machine, or several machines share its virtual functions."""
    users = [
        (one, adapter.kind, (one.host.esxi, adapter.device or adapter.pf or ""))
        for one in placed
        for adapter in one.adapters
        if adapter.kind in ("passthrough", "sriov") and one.machine.power == "on"
    ]
    whole: dict[tuple[str, str], str] = {}
    shared: dict[tuple[str, str], str] = {}
    for one, kind, place in users:
        if kind == "sriov":
            shared.setdefault(place, one.node.name)
    for one, kind, place in users:
        if kind == "sriov":
            continue
        where = f"{place[1]} of {place[0]}"
        if place in whole:
            what, why = f"{where} is passed through twice", f"node {whole[place]} has it"
            yield one.finding("adapters", what, why, "give each node its own device")
        elif place in shared:
            what = f"{where} is passed through whole and as SR-IOV"
            why = f"node {shared[place]} has a virtual function of it"
            hint = "use kind sriov for both, or another device"
            yield one.finding("adapters", what, why, hint)
        whole.setdefault(place, one.node.name)


def _names(placed: list[_Placed]) -> Iterator[Finding]:
    for name, one, first in _doubles((one.node.vm or one.node.name, one) for one in placed):
        what, why = f"machine {name!r} twice", f"node {first.node.name} has this name"
        yield one.finding("vm", what, why, "write another vm: names are unique in a folder")


def _addresses(spec: VsphereSpec, placed: list[_Placed]) -> Iterator[Finding]:
    assigned = spec.guest_addresses()
    own = ((assigned.get(one.node.name, DHCP), one) for one in placed)
    for double, one, first in _doubles(pair for pair in own if pair[0] != DHCP):
        what, why = f"address {double} twice", f"node {first.node.name} has it"
        yield one.finding("guest", what, why, "give each node its own address")
    for one in placed:
        guest, address = one.machine.guest, assigned.get(one.node.name)
        if guest is None:
            continue
        if address is None:
            what, why = f"no address left in {guest.address}", "there are more nodes than addresses"
            yield one.finding("guest", what, why, "use a longer range")
        elif address != DHCP:
            network = ipaddress.IPv4Interface(address).network
            if guest.gateway and ipaddress.IPv4Address(guest.gateway) not in network:
                what = f"gateway {guest.gateway} of {address}"
                why = f"it is not in {network}, so the guest cannot reach it"
                hint = "write a gateway of that subnet, or omit it"
                yield one.finding("guest", what, why, hint)
        if one.machine.adapters is not None and not set(one.kinds) & set(NETWORK_KINDS):
            what, why = "an address without a network card", "adapters has none"
            yield one.finding("guest", what, why, "add one of kind vmxnet3")


def _switches(spec: VsphereSpec) -> Iterator[Finding]:
    groups: list[tuple[str, tuple[SpecPath, str]]] = []
    for i, switch in enumerate(spec.switches):
        if not spec.esxi_of(switch):
            why, hint = "the spec has no host for it", "write esxi: [NAME] here or at a host"
            yield Finding(("switches", i), f"switch {switch.name}: no host", why, hint)
        for j, group in enumerate(switch.port_groups):
            groups.append((group.name, (("switches", i, "port_groups", j), switch.name)))
    for name, (path, _), (_, other) in _doubles(groups):
        why = f"switch {other} has a port group of this name"
        yield Finding(path, f"port group {name} twice", why, "rename it")
    if len({switch.name for switch in spec.switches}) != len(spec.switches):
        yield Finding(("switches",), "switches of one name", "names are unique", "rename one")


def _uplinks(spec: VsphereSpec) -> Iterator[Finding]:
    """An uplink belongs to one switch of its host, once."""
    users: dict[tuple[str, str], str] = {}
    for i, switch in enumerate(spec.switches):
        for key, values in (("esxi", switch.esxi), ("nics", switch.nics)):
            double = next((v for v in values if values.count(v) > 1), None)
            if double is not None:
                what, why = f"switch {switch.name}: {double} twice", "each occurs once"
                yield Finding(("switches", i, key), what, why, "remove one")
        for esxi in dict.fromkeys(spec.esxi_of(switch)):
            for nic in dict.fromkeys(switch.nics):
                other = users.setdefault((esxi, nic), switch.name)
                if other != switch.name:
                    what = f"switch {switch.name}: {nic} of {esxi}"
                    why = f"switch {other} has it, and an uplink belongs to one switch"
                    hint = "give each switch its own uplinks"
                    yield Finding(("switches", i, "nics"), what, why, hint)


def _reach(spec: VsphereSpec, placed: list[_Placed]) -> Iterator[Finding]:
    """The switches of the spec must carry the adapters of their port groups."""
    standard = {switch.name for switch in spec.switches if switch.kind == "standard"}
    for one in placed:
        for adapter in one.adapters:
            group = adapter.port_group
            if adapter.switch in standard:
                what = f"switch {adapter.switch} of port group {group}"
                why = "vCenter finds port groups of a standard switch by their names only"
                yield one.finding("adapters", what, why, "leave switch out")
                continue
            switch = spec.maker_of(adapter)
            if switch is None:
                continue
            if adapter.kind == "pvrdma" and switch.kind == "standard":
                why = f"switch {switch.name} is a standard switch"
                hint = "PVRDMA needs a distributed switch: write kind: distributed"
                yield one.finding("adapters", f"pvrdma on {group}", why, hint)
            if one.host.esxi != "auto" and one.host.esxi not in spec.esxi_of(switch):
                what = f"port group {group} on {one.host.esxi}"
                why = f"switch {switch.name} does not reach that host"
                yield one.finding("adapters", what, why, "add the host to the switch's esxi")


def _drs(spec: VsphereSpec) -> Iterator[Finding]:
    where = {node.name: host.esxi for host, node in spec.nodes}
    paths: list[tuple[str, SpecPath]] = [(r.name, ("rules", i)) for i, r in enumerate(spec.rules)]
    for name, path, _ in _doubles(paths):
        yield Finding(path, f"rule {name} twice", "names are unique", "rename one")
    for rule, (_, path) in zip(spec.rules, paths, strict=True):
        foreign = [name for name in rule.nodes if name not in where]
        if foreign:
            what, hint = f"rule {rule.name}: node {foreign[0]}", "use nodes of this spec"
            yield Finding(path, what, "the spec has no node of this name", hint)
            continue
        hosts = [where[name] for name in rule.nodes if where[name] != "auto"]
        together = rule.kind == "together"
        if len(set(hosts)) > 1 if together else len(set(hosts)) < len(hosts):
            why = "the spec itself places its nodes otherwise"
            hint = "move the nodes, or remove the rule"
            yield Finding(path, f"rule {rule.name}: {rule.kind}", why, hint)
