# SPDX-License-Identifier: Apache-2.0
"""From a cluster file of vhpc-toolkit to a spec of `backend: vsphere`, with a note for every loss."""

from __future__ import annotations

import ipaddress
import json
import re
from dataclasses import dataclass
from typing import Any

import yaml

from nearmetal.cluster.backends.vsphere.vhpc.items import VhpcItem, machines, switches
from nearmetal.cluster.backends.vsphere.vhpc.text import Sections, read_sections
from nearmetal.cluster.model import RESERVED_NAMES

MAX_LABEL = 31

DEFAULT_MMIO_GB = 256
"""The default of vhpc-toolkit for passed-through devices."""

STEP_MIB = 4

_RENAMED = {
    "template": "template",
    "cpu": "vcpus",
    "cpu_shares": "cpu_shares",
    "memory_shares": "memory_shares",
    "latency": "latency",
    "datastore": "datastore",
    "resource_pool": "resource_pool",
}
_NETWORK = ("is_dhcp", "ip", "netmask", "gateway", "domain", "dns", "guest_hostname")
_LOST = {
    "guest_username": "is left out: nearmetal does not log in to guests by password",
    "guest_password": "is left out: a spec holds no password; remove it from the file, too",
    "barrier": "is left out: `up` does not run scripts",
    "adapter_number": "is left out: the address belongs to the first network card",
}


@dataclass(frozen=True)
class Target:
    """The parts of a spec that a cluster file does not have: the cluster's name, and the vCenter."""

    name: str
    server: str
    user: str


@dataclass(frozen=True)
class Imported:
    """A spec as text, and notes on settings of the file that a spec does not have."""

    text: str
    machines: int
    notes: tuple[str, ...]


def import_vhpc(text: str, file: str, target: Target) -> Imported:
    """Turn a cluster file into a spec; raises SpecError with all its problems."""
    sections = read_sections(text, file)
    vms = machines(sections)
    made = [(item, "standard") for item in switches(sections, "_SVS_")]
    made += [(item, "distributed") for item in switches(sections, "_DVS_")]
    if not vms and not sections.problems:
        why, hint = "a section [_VMS_] with machines is missing", "a cluster needs machines"
        sections.complain(1, "no machine", why, hint)
    data = _cluster(sections, vms, made, target)
    sections.refuse_problems()
    for path, line in {p: n for item in vms for p, n in item.scripts.items()}.items():
        advice = f"{path} is not run: copy it to the nodes and use `nearmetal exec`"
        sections.note(line, "script", advice)
    # Values that are the same object would become aliases, which a spec does not have.
    data = json.loads(json.dumps(data))
    body = yaml.safe_dump(data, sort_keys=False, width=100, allow_unicode=True)
    head = [f"# Imported from {file!r}, a cluster file of vhpc-toolkit."]
    head += [f"# note: {note}" for note in sections.notes]
    return Imported("\n".join([*head, body]), len(vms), tuple(sections.notes))


def _cluster(
    sections: Sections, vms: list[VhpcItem], made: list[tuple[VhpcItem, str]], target: Target
) -> dict[str, Any]:
    data: dict[str, Any] = {
        "version": 1,
        "name": target.name,
        "backend": "vsphere",
        "vcenter": {"server": target.server, "user": target.user},
    }
    items = [*vms, *(item for item, _ in made)]
    renamed = {"datacenter": "datacenter", "cluster": "compute", "vm_folder": "folder"}
    for theirs, ours in renamed.items():
        value = _only(items, theirs)
        if value is not None:
            data[ours] = value
        elif ours != "folder" and vms:
            sections.note(0, theirs, "is not given: the vCenter must have exactly one")
    described = [_machine(item) for item in vms]
    common = _common(described)
    if common:
        data["machine"] = common
    if made:
        data["switches"] = [_switch(item, kind) for item, kind in made]
    data["hosts"] = _hosts(sections, vms, described, common)
    return data


def _only(items: list[VhpcItem], key: str) -> str | None:
    """Return the value that all items with this key share, None where no item has it."""
    having = [item for item in items if key in item.given]
    first = having[0].text(key) if having else None
    other = next((item for item in having if item.text(key) != first), None)
    if other is not None:
        why = f"a cluster has one, and {having[0].name} has {first}"
        other.complain(key, f"{key}: {other.text(key)}", why, "split the file")
    return first


def _common(described: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the settings that all machines share; `guest` is compared key by key."""
    common: dict[str, Any] = {}
    for key, value in described[0].items() if described else ():
        if key == "guest" and all("guest" in other for other in described):
            guests = [other["guest"] for other in described]
            guest = {k: v for k, v in value.items() if all(g.get(k) == v for g in guests)}
            common.update({"guest": guest} if guest else {})
        elif key != "slots" and all(other.get(key) == value for other in described):
            common[key] = value
    return common


def _own(machine: dict[str, Any], common: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a machine that are not common to all."""
    own = {key: value for key, value in machine.items() if key not in common}
    if "guest" in machine and "guest" in common:
        guest = {k: v for k, v in machine["guest"].items() if k not in common["guest"]}
        own.update({"guest": guest} if guest else {})
    return own


def _free_name(theirs: str, taken: set[str]) -> str:
    """Return a valid name like theirs that is not taken, and take it."""
    label = re.sub(r"[^a-z0-9-]+", "-", theirs.lower()).strip("-") or "n"
    if not label[0].isalpha():
        label = f"n{label}"
    base = label = label[:MAX_LABEL].rstrip("-")
    number = 2
    while label in taken:
        tail = f"-{number}"
        label = base[: MAX_LABEL - len(tail)] + tail
        number += 1
    taken.add(label)
    return label


def _hosts(
    sections: Sections, vms: list[VhpcItem], described: list[dict[str, Any]], common: dict[str, Any]
) -> list[dict[str, Any]]:
    names, labels = set(RESERVED_NAMES), set(RESERVED_NAMES)
    hosts: dict[str, dict[str, Any]] = {}
    for item, machine in zip(vms, described, strict=True):
        esxi = item.text("host") or "auto"
        if esxi not in hosts:
            label = _free_name("any" if esxi == "auto" else esxi.partition(".")[0], labels)
            hosts[esxi] = {"name": label, "esxi": esxi, "nodes": []}
        node: dict[str, Any] = {"name": _free_name(item.name, names)}
        if node["name"] != item.name:
            node["vm"] = item.name
        if item.name != item.name.lower():
            text = "keeps its capital letters; vhpc-toolkit made the machine in lower case"
            sections.note(item.line, item.name, text)
        hosts[esxi]["nodes"].append({**node, **_own(machine, common)})
    if "auto" in hosts:
        text = "vCenter places machines without a host; vhpc-toolkit took its first host"
        sections.note(0, "host", text)
    return list(hosts.values())


def _switch(item: VhpcItem, kind: str) -> dict[str, Any]:
    made: dict[str, Any] = {"name": item.name, "kind": kind}
    if item.hosts:
        made["esxi"] = item.hosts
    else:
        item.sections.note(item.line, item.name, "has no host: all hosts of the spec have it")
    if "pnic" in item.given:
        made["nics"] = item.value("pnic")
    if "port_group" not in item.given:
        hint = "write port_group: NAME"
        item.complain("port_group", f"switch {item.name}", "has no port_group", hint)
    made["port_groups"] = [{"name": item.text("port_group")}]
    return made


# One machine


def _machine(item: VhpcItem) -> dict[str, Any]:
    """Return the keys of a node."""
    if "template" not in item.given:
        item.complain("template", f"machine {item.name}", "has no template", "write template: T")
    made: dict[str, Any] = {
        ours: item.value(theirs) for theirs, ours in _RENAMED.items() if theirs in item.given
    }
    if "cpu" in item.given:
        made["slots"] = item.value("cpu")
    chosen = [key for key in ("linked", "instant") if item.value(key)]
    if len(chosen) > 1:
        item.complain("instant", f"machine {item.name}", "is linked and instant", "keep one")
    parts: dict[str, Any] = {
        "memory": _memory(item),
        "clone": chosen[0] if chosen else None,
        "adapters": _adapters(item),
    }
    made |= {key: value for key, value in parts.items() if value}
    made |= _reservations(item, made)
    if "mmio_size" in item.given:
        made["mmio"] = f"{item.value('mmio_size')} GiB"
    elif "device" in item.given:
        made["mmio"] = f"{DEFAULT_MMIO_GB} GiB"
        item.note("mmio_size", f"set to {DEFAULT_MMIO_GB} GiB as in vhpc-toolkit", at="device")
    guest = _guest(item)
    made |= {"guest": guest} if guest else {}
    if "power" in item.given:
        made["power"] = "off" if item.text("power") == "off" else "on"
    for key, text in _LOST.items():
        if key in item.given:
            item.note(key, text)
    return made


def _memory(item: VhpcItem) -> str | None:
    if "memory" not in item.given:
        return None
    value = item.text("memory")
    mib = int(float(str(value)) * 1024)
    if mib == 0:
        item.complain("memory", "memory: 0", "a machine needs memory", "write gigabytes")
    rounded = -(-mib // STEP_MIB) * STEP_MIB
    if rounded != mib:
        item.note("memory", f"{value} GB rounded up to {rounded} MiB")
    return f"{rounded // 1024} GiB" if rounded % 1024 == 0 else f"{rounded} MiB"


def _adapters(item: VhpcItem) -> list[dict[str, Any]]:
    adapters: list[dict[str, Any]] = []
    if item.text("port_group"):
        adapters.append({"kind": "vmxnet3", "port_group": item.text("port_group")})
    switch = {"switch": item.text("dvs_name")} if item.text("dvs_name") else {}
    group, pf = item.text("sriov_port_group"), item.text("pf")
    if group and pf:
        adapters.append({"kind": "sriov", "port_group": group, **switch, "pf": pf})
    elif group or pf:
        key, other = ("pf", "sriov_port_group") if pf else ("sriov_port_group", "pf")
        what = f"machine {item.name}: {key} without {other}"
        item.complain(key, what, "SR-IOV needs both", f"write {other}: ...")
    if item.text("pvrdma_port_group"):
        group = item.text("pvrdma_port_group")
        adapters.append({"kind": "pvrdma", "port_group": group, **switch})
    devices = item.value("device")
    if isinstance(devices, list):
        adapters += [{"kind": "passthrough", "device": device} for device in devices]
    if item.text("vgpu"):
        adapters.append({"kind": "vgpu", "profile": item.text("vgpu")})
    if adapters and not any(a["kind"] == "vmxnet3" for a in adapters):
        text = "the adapters of the spec replace the network cards of the template: "
        advice = "add one of kind vmxnet3 to reach the guest by Ethernet"
        item.note("adapters", text + advice)
    return adapters


def _reservations(item: VhpcItem, made: dict[str, Any]) -> dict[str, str]:
    """Return the reservations that are given, and those that vSphere needs: vhpc-toolkit set them."""
    keys = ("cpu_reservation", "memory_reservation")
    found = {key: "full" if item.value(key) else "none" for key in keys if key in item.given}
    fixed = [a["kind"] for a in made.get("adapters", []) if a["kind"] not in ("vmxnet3", "pvrdma")]
    needs = [("memory_reservation", fixed[0], "adapters")] if fixed else []
    if made.get("latency") == "high":
        needs += [(key, "latency high", "latency") for key in keys]
    for key, reason, at in needs:
        if found.get(key) != "full":
            item.note(key, f"set to full: {reason} needs it", at=at)
            found[key] = "full"
    return found


def _guest(item: VhpcItem) -> dict[str, Any]:
    if not any(key in item.given for key in _NETWORK):
        return {}
    guest: dict[str, Any] = {}
    dhcp = bool(item.value("is_dhcp"))
    if not dhcp and "ip" in item.given:
        guest |= _static(item)
    else:
        guest["address"] = "dhcp"
        for key in ("ip", "netmask", "gateway"):
            if key in item.given:
                item.note(key, "has no meaning with DHCP")
        if "is_dhcp" in item.given and not dhcp:
            hint = "write ip: ADDRESS, or is_dhcp: true"
            item.complain("is_dhcp", f"machine {item.name}: no ip", "is_dhcp is false", hint)
    for theirs, ours in (("domain", "domain"), ("dns", "dns"), ("guest_hostname", "hostname")):
        if theirs in item.given:
            guest[ours] = item.value(theirs)
    return guest


def _static(item: VhpcItem) -> dict[str, str]:
    ip, mask, gateway = (item.text(key) for key in ("ip", "netmask", "gateway"))
    if mask is None:
        what, hint = f"machine {item.name}: no netmask", "write netmask: 255.255.255.0"
        item.complain("ip", what, "an address needs one", hint)
        return {}
    try:
        interface = ipaddress.IPv4Interface(f"{ip}/{mask}")
    except ValueError as error:
        hint = "write for example 10.1.0.11 and 255.255.255.0"
        item.complain("ip", f"ip: {ip}, netmask: {mask}", str(error), hint)
        return {}
    found = {"address": str(interface)}
    if gateway is None:
        return found
    try:
        near = ipaddress.IPv4Address(gateway) in interface.network
    except ValueError as error:
        item.complain("gateway", f"gateway: {gateway}", str(error), "write for example 10.1.0.1")
        return found
    if near:
        return found | {"gateway": gateway}
    item.note("gateway", f"{gateway} is left out: it is not in {interface.network}")
    return found
