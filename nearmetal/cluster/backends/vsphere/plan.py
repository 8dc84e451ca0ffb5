# SPDX-License-Identifier: Apache-2.0
"""The resources of a cluster of virtual machines on vSphere. Pure."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Annotated

from pydantic import PlainSerializer

from nearmetal.cluster.backends.vsphere.settings import (
    DHCP,
    FIXED_KINDS,
    INSTANT,
    GuestSettings,
    VmAdapter,
)
from nearmetal.cluster.backends.vsphere.spec import EsxiHost, Switch, VsphereNode, VsphereSpec
from nearmetal.cluster.model import some
from nearmetal.cluster.registration import Registration
from nearmetal.cluster.resource import (
    Attributes,
    Bytes,
    Desired,
    Facts,
    Key,
    Kind,
    Numbers,
    Observed,
    Resource,
    Values,
    YesNo,
)

CLOUD_INIT = "cloud-init"

STUCK = ("sriov", "passthrough")
"""Adapters that keep a machine on its host."""


class VsphereCluster(Values):
    """The cluster's own folder."""

    backend: str
    vcenter: str
    datacenter: str
    compute: str
    folder: str


class SwitchOnHost(Values):
    """A switch on one of its hosts. `port_groups`: VLANs by name."""

    nics: tuple[str, ...]
    mtu: int
    port_groups: Mapping[str, int]

    @property
    def attributes(self) -> Attributes:
        """The values as text."""
        groups = (f"{n} vlan {vlan}" if vlan else n for n, vlan in self.port_groups.items())
        return (
            ("nics", ",".join(sorted(self.nics))),
            ("mtu", str(self.mtu)),
            ("port_groups", ", ".join(sorted(groups))),
        )


class VirtualSwitch(Values):
    """A switch of one name: of one kind, unless a change of its kind was interrupted."""

    kinds: tuple[str, ...]
    hosts: Mapping[str, SwitchOnHost]

    @property
    def attributes(self) -> Attributes:
        """The values as text: once where all hosts have the same, else by host."""
        texts: dict[str, dict[str, str]] = defaultdict(dict)
        for host, switch in sorted(self.hosts.items()):
            for name, text in switch.attributes:
                texts[name][host] = text
        shown = {"kind": " and ".join(self.kinds), "esxi_members": ",".join(sorted(self.hosts))}
        for name, by_host in texts.items():
            several = len(set(by_host.values())) > 1
            each = (f"{host}: {text}" for host, text in by_host.items())
            shown[name] = "; ".join(each) if several else next(iter(by_host.values()))
        return tuple(sorted(shown.items()))


def _guest_text(guest: GuestSettings | None) -> str:
    values = guest.model_dump() if guest else {}
    return json.dumps({n: v for n, v in values.items() if v}, sort_keys=True) if values else ""


Joined = Annotated[tuple[str, ...], PlainSerializer(",".join)]
Adapters = Annotated[
    tuple[VmAdapter | str, ...], PlainSerializer(lambda value: "; ".join(map(str, value)))
]

NumaNodes = Annotated[
    tuple[int, ...] | str,
    PlainSerializer(lambda value: value if isinstance(value, str) else ",".join(map(str, value))),
]
"""Text where a user of vCenter wrote another value than numbers."""


class VsphereMachine(Values):
    """One virtual machine. None: the choice of the template or of vCenter, which is not compared.

    A machine as read may also have values that no spec has, for example another reservation.
    """

    host: str
    esxi: str | None = None
    vm: str
    slots: int | None
    template: str
    clone: str
    vcpus: int | None = None
    cores_per_socket: int | None = None
    memory: Bytes | None = None
    cpu_reservation: str
    memory_reservation: str
    cpu_shares: int | str
    memory_shares: int | str
    latency: str
    affinity: Numbers = ()
    numa: NumaNodes = ()
    hardware: int | None = None
    mmio: Bytes | None = None
    secure_boot: YesNo | None = None
    p2p: YesNo
    datastore: str | None = None
    resource_pool: str | None = None
    adapters: Adapters | None = None
    """Where the devices of a machine are not the adapters of the spec: their descriptions."""
    access: str | None = None
    """Who lets us log in first: `cloud-init`, or none that the spec says."""
    guest: Annotated[GuestSettings | None, PlainSerializer(_guest_text)] = None
    """Settings of the guest, with the address of this node."""
    power: str
    rules: Joined = ()


RECREATE = {"template", "clone"}
"""Attributes whose change recreates a machine."""

PLACE = frozenset({"esxi", "datastore", "resource_pool"})
"""Attributes that a migration changes, of a running machine too if it has no device of its host."""

RUNNING = frozenset({"power", "rules", "host", "slots", "vm", "cpu_shares", "memory_shares"})
"""Attributes that change while the machine runs."""

IN_PLACE = frozenset(VsphereMachine.model_fields) - RECREATE
IN_PLACE |= {"esxi_members", "nics", "mtu", "port_groups"}
"""Attributes of a machine or a switch that change without recreating it."""


def differences(wanted: VsphereMachine, now: VsphereMachine) -> set[str]:
    """Return the names of the values that differ."""
    return {name for name, _ in {*wanted.attributes} ^ {*now.attributes}}


def need_off(wanted: VsphereMachine, now: VsphereMachine) -> set[str]:
    """Return the names of the values that change only while the machine is off."""
    kinds = {str(adapter).partition(" ")[0] for m in (wanted, now) for adapter in m.adapters or ()}
    moves = PLACE if kinds.isdisjoint(FIXED_KINDS) else frozenset[str]()
    # Without settings for the guest, only the mark changes.
    marked = frozenset[str]() if wanted.guest else frozenset({"guest"})
    return differences(wanted, now) - RUNNING - moves - marked


def _outage(wanted: VsphereMachine, now: VsphereMachine, patience_s: int) -> str:
    """Return the outage of a change in place, with its reason; "" for none."""
    if now.power != "on":
        return ""
    how = "power off"
    if patience_s:
        how = f"shutdown of the guest, power off after {patience_s} s"
    if wanted.power != "on":
        return how
    causes = sorted(need_off(wanted, now))
    return f"outage for {', '.join(causes)}: {how}, then on again" if causes else ""


def _keeps(wanted: VirtualSwitch, now: VirtualSwitch) -> bool:
    """Whether a switch only gets more port groups or hosts."""
    return wanted.kinds == now.kinds and all(
        (new := wanted.hosts.get(host)) is not None
        and (sorted(new.nics), new.mtu) == (sorted(old.nics), old.mtu)
        and old.port_groups.items() <= new.port_groups.items()
        for host, old in now.hosts.items()
    )


def _users(switch: VirtualSwitch, machines: Mapping[str, VsphereMachine]) -> list[str]:
    """Return the nodes that are on and have, or may have, an adapter on a switch."""
    groups = {name for host in switch.hosts.values() for name in host.port_groups}
    return [
        name
        for name, machine in machines.items()
        if machine.power == "on"
        # The adapters of a template, and those in words, may be on any switch.
        and (
            machine.adapters is None
            or any(isinstance(a, str) or a.port_group in groups for a in machine.adapters)
        )
    ]


def _outages(spec: VsphereSpec, parts: Iterable[Resource], observed: Observed) -> dict[Key, str]:
    """Return the outage of each machine or switch that changes in place; "" for none."""
    machines, switches = observed.named(VsphereMachine), observed.named(VirtualSwitch)
    found: dict[Key, str] = {}
    for item in parts:
        wanted, name = item.values, item.key.name
        if isinstance(wanted, VsphereMachine) and name in machines:
            now = machines[name]
            if wanted != now and not differences(wanted, now) & RECREATE:
                found[item.key] = _outage(wanted, now, spec.shutdown)
        elif isinstance(wanted, VirtualSwitch) and name in switches:
            users = [] if _keeps(wanted, switches[name]) else _users(switches[name], machines)
            if users:
                found[item.key] = f"the network of {some(sorted(users))} stops for a while"
    return found


def rule_text(name: str, kind: str, *, enforced: bool) -> str:
    """Return a rule of DRS in the values of its machines."""
    return f"{name}:{kind}{':enforced' if enforced else ''}"


def part_of(spec: VsphereSpec, kind: Kind, name: str, values: Values) -> Resource:
    """Return a resource of the cluster of a spec with the resources that it stands on."""
    needs: tuple[Key, ...] = ()
    if kind is not Kind.CLUSTER:
        needs = (Key(Kind.CLUSTER, spec.name),)
    if kind is Kind.NODE:
        needs += tuple(Key(Kind.NETWORK, switch.name) for switch in spec.switches)
    return Resource(Key(kind, name), values, needs)


def _switch(spec: VsphereSpec, switch: Switch) -> VirtualSwitch:
    groups = {group.name: group.vlan for group in switch.port_groups}
    same = SwitchOnHost(nics=tuple(switch.nics), mtu=switch.mtu, port_groups=groups)
    return VirtualSwitch(kinds=(switch.kind,), hosts=dict.fromkeys(spec.esxi_of(switch), same))


def _machine(
    spec: VsphereSpec, host: EsxiHost, node: VsphereNode, address: str, rules: list[str]
) -> VsphereMachine:
    machine = spec.machine_of(node)
    guest = machine.guest
    if guest is not None:
        update = {"address": address, "hostname": guest.hostname or node.name}
        guest = guest.model_copy(update=update)
    values = {name: getattr(machine, name, None) for name in VsphereMachine.model_fields}
    values |= {
        "host": host.name,
        "esxi": None if host.esxi == "auto" else host.esxi,
        "vm": node.vm or node.name,
        "slots": node.slots,
        "guest": guest,
        "rules": tuple(sorted(rules)),
        "access": CLOUD_INIT if spec.ssh and spec.ssh.identity is None else None,
    }
    return VsphereMachine(**{name: v for name, v in values.items() if v is not None})


def _notes(spec: VsphereSpec) -> list[str]:
    machines = {node.name: spec.machine_of(node) for _, node in spec.nodes}
    notes = [f"{len(machines)} machines, at most {spec.parallel} at a time"]
    stuck = [n for n, m in machines.items() if any(a.kind in STUCK for a in m.adapters or [])]
    if stuck:
        notes.append(f"vMotion cannot move nodes with a device of the host: {some(stuck)}")
    instant = [name for name, machine in machines.items() if machine.clone == INSTANT]
    if instant:
        notes.append(f"instant clones run on the host of their source: {some(instant)}")
    return notes


def vsphere_machines(spec: VsphereSpec, _facts: Facts, observed: Observed) -> Desired:
    """Return the virtual machines of a spec, their folder and their switches."""
    folder = VsphereCluster(
        backend=spec.backend,
        vcenter=f"{spec.vcenter.server}:{spec.vcenter.port}",
        datacenter=spec.datacenter,
        compute=spec.compute,
        folder="/".join(filter(None, (spec.folder, spec.name))),
    )
    addresses = spec.guest_addresses()
    rules: dict[str, list[str]] = defaultdict(list)
    for rule in spec.rules:
        for name in dict.fromkeys(rule.nodes):
            rules[name].append(rule_text(rule.name, rule.kind, enforced=rule.enforced))
    parts: list[tuple[Kind, str, Values]] = [(Kind.CLUSTER, spec.name, folder)]
    parts += [(Kind.NETWORK, switch.name, _switch(spec, switch)) for switch in spec.switches]
    for host, node in spec.nodes:
        name = node.name
        machine = _machine(spec, host, node, addresses.get(name, DHCP), rules[name])
        parts.append((Kind.NODE, name, machine))
    made = tuple(part_of(spec, *part) for part in parts)
    outages = _outages(spec, made, observed)
    # With an outage also stands why a machine is completed.
    whys = {
        key: "; ".join(filter(None, (observed.unfinished.get(key, ""), text)))
        for key, text in outages.items()
    }
    out = frozenset(key for key, text in outages.items() if text)
    return Desired(made, tuple(_notes(spec)), IN_PLACE, whys, out)


REGISTRATION = Registration(VsphereSpec, vsphere_machines)
