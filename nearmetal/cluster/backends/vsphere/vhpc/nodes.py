# SPDX-License-Identifier: Apache-2.0
"""One machine of a cluster file as the keys of a node, checked as a spec checks them."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from typing import Any

from pydantic import ValidationError

from nearmetal.cluster.backends.vsphere.settings import Inventory, MachineSettings
from nearmetal.cluster.backends.vsphere.vhpc.items import VhpcItem
from nearmetal.config.explain import reason
from nearmetal.config.model import Model

Location = tuple[str | int, ...]

DEFAULT_MMIO_GB = 256
"""The default of vhpc-toolkit for passed-through devices."""

STEP_MIB = 4

_RENAMED = {
    "template": "template",
    "cpu": "vcpus",
    "cores_per_socket": "cores_per_socket",
    "cpu_shares": "cpu_shares",
    "memory_shares": "memory_shares",
    "latency": "latency",
    "secure_boot": "secure_boot",
    "datastore": "datastore",
    "resource_pool": "resource_pool",
}
_NETWORK = ("is_dhcp", "ip", "netmask", "gateway", "domain", "dns", "guest_hostname")
_LOST = {
    "guest_username": "is left out: nearmetal does not log in to guests by password",
    "guest_password": "is left out: a spec holds no password; remove it from the file, too",
    "adapter_number": "is left out: the address belongs to the first network card",
    "svs_name": "is left out: vCenter finds port groups of a standard switch by their names",
}


class _NodeNames(Model):
    """The names of a machine and of its host in the inventory."""

    name: Inventory
    host: Inventory | None


def node_of(item: VhpcItem) -> dict[str, Any]:
    """Return the keys of a node."""
    if "template" not in item.given:
        item.complain("template", f"machine {item.name}", "has no template", "write template: T")
    made: dict[str, Any] = {
        ours: item.value(theirs) for theirs, ours in _RENAMED.items() if theirs in item.given
    }
    if item.value("cpu") == 0:
        del made["vcpus"]
        item.note("cpu", "0 means the processors of the template")
    if "vcpus" in made:
        made["slots"] = made["vcpus"]
    parts: dict[str, Any] = {
        "memory": _memory(item),
        "clone": "linked" if item.value("linked") else None,
        "adapters": _adapters(item),
    }
    made |= {key: value for key, value in parts.items() if value}
    made |= _reservations(item, made)
    made |= _mmio(item)
    guest = _guest(item)
    made |= {"guest": guest} if guest else {}
    if "power" in item.given:
        made["power"] = "off" if item.text("power") == "off" else "on"
        if item.text("power") not in ("on", "off"):
            item.note(
                "power", f"{item.text('power')} means on, as in vhpc-toolkit: only off is off"
            )
    if item.value("instant"):
        text = (
            "is left out: vhpc-toolkit makes a full or linked clone, and so does the spec; write "
            "clone: instant to fork a running machine"
        )
        item.note("instant", text)
    for key, text in _LOST.items():
        if key in item.given:
            item.note(key, text)
    _check(item, made)
    return made


# As a spec checks it


def complain_invalid(
    item: VhpcItem, values: dict[str, Any], model: type[Model], key_of: Callable[[Location], str]
) -> None:
    """Add a problem for each value that a model refuses, at the line of its key in the file."""
    try:
        model.model_validate(values)
    except ValidationError as error:
        for detail in error.errors(include_url=False):
            key = key_of(detail["loc"])
            shown = item.text(key) if key in item.given else str(detail["input"])
            item.complain(key, f"{key}: {str(shown)[:60]}", *reason(detail))


def _check(item: VhpcItem, made: dict[str, Any]) -> None:
    adapters = made.get("adapters", [])
    theirs = {ours: theirs for theirs, ours in _RENAMED.items()} | {"mmio": "mmio_size"}

    def key_of(location: Location) -> str:
        first, last = str(location[0]), str(location[-1])
        if first == "adapters" and len(location) > 1:
            kind = adapters[int(location[1])]["kind"]
            keys = {
                "profile": "vgpu",
                "switch": "sriov_dvs_name" if kind == "sriov" else "dvs_name",
            }
            if last == "port_group" and kind != "vmxnet3":
                return f"{kind}_port_group"
            return keys.get(last, last)
        if first == "guest":
            return {"address": "ip", "hostname": "guest_hostname"}.get(str(location[1]), last)
        return theirs.get(first, first)

    settings = {key: value for key, value in made.items() if key != "slots"}
    complain_invalid(item, settings, MachineSettings, key_of)
    names = {"name": item.name, "host": item.text("host")}
    complain_invalid(item, names, _NodeNames, lambda location: str(location[0]))


# Parts of a machine


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
    switch = item.text("dvs_name")
    group, pvrdma = item.text("port_group"), item.text("pvrdma_port_group")
    functions = _functions(item, None if pvrdma else switch)
    adapters: list[dict[str, Any]] = []
    if group:
        adapters.append(_on("vmxnet3", group, None if pvrdma or functions else switch))
    adapters += functions
    if pvrdma:
        adapters.append(_on("pvrdma", pvrdma, switch))
    adapters += [{"kind": "passthrough", "device": device} for device in item.items("device")]
    if item.text("vgpu"):
        adapters.append({"kind": "vgpu", "profile": item.text("vgpu")})
    if adapters and not any(a["kind"] == "vmxnet3" for a in adapters):
        text = "the adapters of the spec replace the network cards of the template: "
        advice = "add one of kind vmxnet3 to reach the guest by Ethernet"
        item.note("adapters", text + advice)
    used = {adapter.get("switch") for adapter in adapters}
    for key in ("dvs_name", "sriov_dvs_name"):
        if key in item.given and not used & {item.text(key), *item.items(key)}:
            item.note(key, f"{item.text(key)} is left out: no adapter of the machine needs it")
    return adapters


def _on(kind: str, group: str, switch: str | None) -> dict[str, Any]:
    """Return an adapter on a port group."""
    return {"kind": kind, "port_group": group, **({"switch": switch} if switch else {})}


def _functions(item: VhpcItem, otherwise: str | None) -> list[dict[str, Any]]:
    """Return the SR-IOV adapters. `otherwise`: their switch where the machine names none for them."""
    pfs, groups, switches = map(item.items, ("pf", "sriov_port_group", "sriov_dvs_name"))
    if len(pfs) != len(groups):
        key, other = (
            ("pf", "sriov_port_group") if len(pfs) > len(groups) else ("sriov_port_group", "pf")
        )
        several = f"{len(item.items(key))} {key} and {len(item.items(other))} {other}"
        what = several if item.items(other) else f"{key} without {other}"
        hint = f"write one {other} for each {key}, in the same order; a later one does not override"
        item.complain(key, f"machine {item.name}: {what}", "SR-IOV needs both", hint)
        return []
    if not pfs:
        if "allow_guest_mtu_change" in item.given:
            item.note("allow_guest_mtu_change", "has no meaning without an SR-IOV adapter")
        return []
    if switches and len(switches) != len(pfs):
        what = f"machine {item.name}: {len(pfs)} pf and {len(switches)} sriov_dvs_name"
        hint = "write one sriov_dvs_name for each pf, in the same order, or none"
        item.complain("sriov_dvs_name", what, "each adapter is on one switch", hint)
        return []
    mtu = item.value("allow_guest_mtu_change")
    more = {} if mtu is None else {"guest_mtu": mtu}
    places: list[str | None] = [*switches] or [otherwise] * len(pfs)
    return [
        {**_on("sriov", group, switch), "pf": pf, **more}
        for pf, group, switch in zip(pfs, groups, places, strict=True)
    ]


def _mmio(item: VhpcItem) -> dict[str, str]:
    given, devices = item.value("mmio_size"), item.items("device")
    if given is None and not devices:
        return {}
    if not devices:
        item.note("mmio_size", "has no meaning without a device: vhpc-toolkit does not set it")
        return {}
    size = int(str(given or 0))
    if size <= 0 or size & (size - 1):
        text = f"set to {DEFAULT_MMIO_GB} GiB as in vhpc-toolkit"
        why = "" if given is None else f": {given} is not a power of two"
        item.note("mmio_size", text + why, at="" if "mmio_size" in item.given else "device")
        size = DEFAULT_MMIO_GB
    return {"mmio": f"{size} GiB"}


def _reservations(item: VhpcItem, made: dict[str, Any]) -> dict[str, str]:
    """Return the reservations that are given, and those that vSphere needs: vhpc-toolkit set them."""
    keys = ("cpu_reservation", "memory_reservation")
    found = {key: "full" if item.value(key) else "none" for key in keys if key in item.given}
    kinds = [a["kind"] for a in made.get("adapters", []) if a["kind"] != "vmxnet3"]
    needs = [("memory_reservation", kinds[0], "adapters")] if kinds else []
    if made.get("latency") == "high":
        needs += [(key, "latency high", "latency") for key in keys]
    for key, cause, at in needs:
        if found.get(key) != "full":
            item.note(key, f"set to full: {cause} needs it", at=at)
            found[key] = "full"
    return found


_OWN_LABEL = r"(?=.*[A-Z]|[0-9])[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
"""A name of a machine that is a valid host name, but not the name of its node."""


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
    if "ip" not in item.given and "is_dhcp" not in item.given:
        key = next(key for key in _NETWORK if key in item.given)
        item.note(key, "sets up the guest with DHCP; vhpc-toolkit does so only with ip or is_dhcp")
    if re.fullmatch(_OWN_LABEL, item.name):
        guest.setdefault("hostname", item.name)
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
