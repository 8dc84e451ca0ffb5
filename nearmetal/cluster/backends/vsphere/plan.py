# SPDX-License-Identifier: Apache-2.0
"""What a cluster of virtual machines on vSphere is made of. Pure.

An attribute that is empty is the template's or vCenter's choice: it is neither set nor compared.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

from nearmetal.cluster.backends.vsphere.spec import DHCP, VsphereSpec
from nearmetal.cluster.registration import Registration
from nearmetal.cluster.resource import Desired, Key, Kind, Resource, resource
from nearmetal.config.size import format_size

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nearmetal.cluster.backends.vsphere.spec import (
        EsxiHost,
        MachineSettings,
        Switch,
        VsphereNode,
    )
    from nearmetal.cluster.spec import Facts, Observed

IN_PLACE = frozenset(
    {
        "adapters",
        "affinity",
        "cores_per_socket",
        "cpu_reservation",
        "cpu_shares",
        "guest",
        "latency",
        "memory",
        "memory_reservation",
        "memory_shares",
        "mmio",
        "numa",
        "p2p",
        "power",
        "rules",
        "slots",
        "vcpus",
        "esxi_members",
        "mtu",
        "nics",
        "port_groups",
    }
)
"""What of a machine or a switch is changed without making it anew."""

STUCK = ("sriov", "passthrough")
"""Adapters that keep a machine on its host."""


def _listed(items: object) -> str:
    return ",".join(map(str, items)) if isinstance(items, list) else ""


def _switch(spec: VsphereSpec, switch: Switch) -> Resource:
    groups = (f"{g.name} vlan {g.vlan}" if g.vlan else g.name for g in switch.port_groups)
    attributes = {
        "kind": switch.kind,
        "esxi_members": ",".join(sorted(spec.esxi_of(switch))),
        "nics": ",".join(sorted(switch.nics)),
        "mtu": switch.mtu,
        "port_groups": ", ".join(sorted(groups)),
    }
    return resource(Kind.NETWORK, switch.name, attributes)


def _guest(machine: MachineSettings, node: VsphereNode, address: str) -> str:
    """Return everything the guest is told as one text, "" for nothing."""
    guest = machine.guest
    if guest is None:
        return ""
    told = {
        "address": address,
        "hostname": guest.hostname or node.name,
        "domain": guest.domain,
        "gateway": guest.gateway,
        "dns": guest.dns,
    }
    return json.dumps({name: value for name, value in told.items() if value}, sort_keys=True)


def _rules(spec: VsphereSpec) -> dict[str, str]:
    """Return the rules that hold for each node."""
    held: dict[str, list[str]] = defaultdict(list)
    for rule in spec.rules:
        for name in dict.fromkeys(rule.nodes):
            held[name].append(f"{rule.name}:{rule.kind}{':enforced' if rule.enforced else ''}")
    return {name: ",".join(sorted(words)) for name, words in held.items()}


def _machine(
    machine: MachineSettings, host: EsxiHost, node: VsphereNode, address: str, rules: str
) -> Resource:
    attributes = {
        "host": host.name,
        "esxi": "" if host.esxi == "auto" else host.esxi,
        "vm": node.vm or node.name,
        "slots": node.slots,
        "template": machine.template,
        "clone": machine.clone,
        "vcpus": machine.vcpus or "",
        "cores_per_socket": machine.cores_per_socket or "",
        "memory": format_size(machine.memory) if machine.memory else "",
        "cpu_reservation": machine.cpu_reservation,
        "memory_reservation": machine.memory_reservation,
        "cpu_shares": machine.cpu_shares,
        "memory_shares": machine.memory_shares,
        "latency": machine.latency,
        "affinity": _listed(machine.affinity),
        "numa": _listed(machine.numa),
        "hardware": machine.hardware or "",
        "mmio": format_size(machine.mmio) if machine.mmio else "",
        "p2p": "yes" if machine.p2p else "no",
        "datastore": machine.datastore or "",
        "resource_pool": machine.resource_pool or "",
        "adapters": "; ".join(map(str, machine.adapters or [])),
        "guest": _guest(machine, node, address),
        "power": machine.power,
        "rules": rules,
    }
    return resource(Kind.NODE, node.name, attributes)


def _notes(spec: VsphereSpec, machines: Mapping[str, MachineSettings]) -> list[str]:
    notes = [f"{len(machines)} machines, at most {spec.parallel} at a time"]
    stuck = [n for n, m in machines.items() if any(a.kind in STUCK for a in m.adapters or [])]
    if stuck:
        notes.append(f"not moved by vMotion, because of a device of the host: {', '.join(stuck)}")
    instant = [name for name, machine in machines.items() if machine.clone == "instant"]
    if instant:
        notes.append(f"instant clones are not made by this release: {', '.join(instant)}")
    return notes


def vsphere_machines(spec: VsphereSpec, _facts: Facts, _observed: Observed) -> Desired:
    """Return the virtual machines of a spec and what they stand on."""
    made = [
        resource(
            Kind.CLUSTER,
            spec.name,
            {
                "backend": spec.backend,
                "vcenter": f"{spec.vcenter.server}:{spec.vcenter.port}",
                "datacenter": spec.datacenter,
                "compute": spec.compute,
                "folder": "/".join(filter(None, (spec.folder, spec.name))),
            },
        )
    ]
    made += [_switch(spec, switch) for switch in spec.switches]
    machines = {node.name: spec.machine_of(node) for _, node in spec.nodes}
    places, rules = spec.guest_addresses(), _rules(spec)
    made += [
        _machine(machines[n.name], h, n, places.get(n.name, DHCP), rules.get(n.name, ""))
        for h, n in spec.nodes
    ]
    parts = tuple(standing(spec, item) for item in made)
    return Desired(parts, tuple(_notes(spec, machines)), IN_PLACE)


def standing(spec: VsphereSpec, item: Resource) -> Resource:
    """Return a resource with the resources that it stands on."""
    needs: tuple[Key, ...] = ()
    if item.key.kind is not Kind.CLUSTER:
        needs = (Key(Kind.CLUSTER, spec.name),)
    if item.key.kind is Kind.NODE:
        needs += tuple(Key(Kind.NETWORK, switch.name) for switch in spec.switches)
    return replace(item, needs=needs)


REGISTRATION = Registration(VsphereSpec, vsphere_machines)
