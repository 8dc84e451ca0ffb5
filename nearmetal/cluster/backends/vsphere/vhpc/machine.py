# SPDX-License-Identifier: Apache-2.0
"""One machine of a cluster file in the words of our spec."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nearmetal.cluster.backends.vsphere.vhpc.resolve import Item
    from nearmetal.cluster.backends.vsphere.vhpc.text import Sections

DEFAULT_MMIO_GB = 256
"""What vhpc-toolkit takes for passed-through devices when nothing is said."""

STEP_MIB = 4

_PLAIN = {
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
    "guest_username": "is not taken over: nothing logs in to guests by password",
    "guest_password": "is not taken over: no password stands in a spec; take it out of the file, too",
    "barrier": "is not taken over: scripts are not run by `up`",
    "adapter_number": "is not taken over: the address goes to the first network card",
}


@dataclass
class Notes:
    """What a person should know about an import, each once."""

    file: str
    texts: list[str] = field(default_factory=list)

    def add(self, line: int, what: str, text: str) -> None:
        """Note something about a line, 0 for the whole file."""
        note = f"{self.file}{f':{line}' if line else ''}: {what}: {text}"
        if note not in self.texts:
            self.texts.append(note)


def machine_of(item: Item, sections: Sections, notes: Notes) -> dict[str, Any]:
    """Return the keys of a node; problems and losses are noted."""
    made: dict[str, Any] = {}
    if "template" not in item.given:
        sections.complain(item.line, f"machine {item.name}", "has no template", "write template: T")
    for theirs, ours in _PLAIN.items():
        if theirs in item.given:
            made[ours] = item.given[theirs].value
    if "cpu" in item.given:
        made["slots"] = item.given["cpu"].value
    _memory(item, made, sections, notes)
    _clone(item, made, sections)
    adapters = _adapters(item, sections, notes)
    if adapters:
        made["adapters"] = adapters
    _reservations(item, made, notes)
    _mmio(item, made, notes)
    guest = _guest(item, sections, notes)
    if guest:
        made["guest"] = guest
    if item.text("power") is not None:
        made["power"] = "off" if item.text("power") == "off" else "on"
    for key, text in _LOST.items():
        if key in item.given:
            notes.add(item.line_of(key), key, text)
    return made


def _memory(item: Item, made: dict[str, Any], sections: Sections, notes: Notes) -> None:
    if "memory" not in item.given:
        return
    value = item.given["memory"].value
    mib = int(float(str(value)) * 1024)
    if mib == 0:
        sections.complain(item.line_of("memory"), "memory: 0", "is no memory", "write gigabytes")
    rounded = -(-mib // STEP_MIB) * STEP_MIB
    if rounded != mib:
        notes.add(item.line_of("memory"), "memory", f"{value} GB rounded up to {rounded} MiB")
    made["memory"] = f"{rounded // 1024} GiB" if rounded % 1024 == 0 else f"{rounded} MiB"


def _clone(item: Item, made: dict[str, Any], sections: Sections) -> None:
    chosen = [key for key in ("linked", "instant") if key in item.given and item.given[key].value]
    if len(chosen) > 1:
        sections.complain(
            item.line_of("instant"), f"machine {item.name}", "is linked and instant", "keep one"
        )
    elif chosen:
        made["clone"] = chosen[0]


def _adapters(item: Item, sections: Sections, notes: Notes) -> list[dict[str, Any]]:
    adapters: list[dict[str, Any]] = []
    if item.text("port_group"):
        adapters.append({"kind": "vmxnet3", "port_group": item.text("port_group")})
    behind = {"switch": item.text("dvs_name")} if item.text("dvs_name") else {}
    if item.text("sriov_port_group") and item.text("pf"):
        group, pf = item.text("sriov_port_group"), item.text("pf")
        adapters.append({"kind": "sriov", "port_group": group, **behind, "pf": pf})
    elif item.text("sriov_port_group") or item.text("pf"):
        key, other = ("pf", "sriov_port_group") if item.text("pf") else ("sriov_port_group", "pf")
        sections.complain(
            item.line_of(key),
            f"machine {item.name}: {key} without {other}",
            "SR-IOV needs both",
            f"write {other}: ...",
        )
    if item.text("pvrdma_port_group"):
        group = item.text("pvrdma_port_group")
        adapters.append({"kind": "pvrdma", "port_group": group, **behind})
    if "device" in item.given:
        devices = item.given["device"].value
        assert isinstance(devices, list)  # noqa: S101 - read_value made it
        adapters += [{"kind": "passthrough", "device": device} for device in devices]
    if item.text("vgpu"):
        adapters.append({"kind": "vgpu", "profile": item.text("vgpu")})
    if adapters and not any(a["kind"] == "vmxnet3" for a in adapters):
        notes.add(
            item.line,
            "adapters",
            "the template's own network cards make room for the adapters "
            "of the spec: add one of kind vmxnet3 to reach the guest by Ethernet",
        )
    return adapters


def _reservations(item: Item, made: dict[str, Any], notes: Notes) -> None:
    """Take over what is said, and what vhpc-toolkit did by itself where vSphere demands it."""
    for key in ("cpu_reservation", "memory_reservation"):
        if key in item.given:
            made[key] = "full" if item.given[key].value else "none"
    fixed = [a["kind"] for a in made.get("adapters", []) if a["kind"] not in ("vmxnet3", "pvrdma")]
    if fixed and made.get("memory_reservation") != "full":
        notes.add(item.line, "memory_reservation", f"set to full: {fixed[0]} needs it")
        made["memory_reservation"] = "full"
    if made.get("latency") == "high":
        for key in ("cpu_reservation", "memory_reservation"):
            if made.get(key) != "full":
                notes.add(item.line_of("latency"), key, "set to full: latency high needs it")
                made[key] = "full"


def _mmio(item: Item, made: dict[str, Any], notes: Notes) -> None:
    if "mmio_size" in item.given:
        made["mmio"] = f"{item.given['mmio_size'].value} GiB"
    elif "device" in item.given:
        made["mmio"] = f"{DEFAULT_MMIO_GB} GiB"
        notes.add(
            item.line_of("device"), "mmio_size", f"{DEFAULT_MMIO_GB} GiB, as vhpc-toolkit took"
        )


def _guest(item: Item, sections: Sections, notes: Notes) -> dict[str, Any]:
    if not any(key in item.given for key in _NETWORK):
        return {}
    guest: dict[str, Any] = {}
    dhcp = "is_dhcp" in item.given and bool(item.given["is_dhcp"].value)
    if dhcp or "ip" not in item.given:
        guest["address"] = "dhcp"
        for key in ("ip", "netmask", "gateway"):
            if key in item.given:
                notes.add(item.line_of(key), key, "means nothing with DHCP")
        if "is_dhcp" in item.given and not dhcp:
            sections.complain(
                item.line_of("is_dhcp"),
                f"machine {item.name}: no ip",
                "is_dhcp is false",
                "write ip: ADDRESS, or is_dhcp: true",
            )
    else:
        _static(item, guest, sections, notes)
    for theirs, ours in (("domain", "domain"), ("dns", "dns"), ("guest_hostname", "hostname")):
        if theirs in item.given:
            guest[ours] = item.given[theirs].value
    return guest


def _static(item: Item, guest: dict[str, Any], sections: Sections, notes: Notes) -> None:
    ip, mask = item.text("ip"), item.text("netmask")
    if mask is None:
        sections.complain(
            item.line_of("ip"),
            f"machine {item.name}: no netmask",
            "an address needs one",
            "write netmask: 255.255.255.0",
        )
        return
    try:
        interface = ipaddress.IPv4Interface(f"{ip}/{mask}")
    except ValueError as error:
        sections.complain(
            item.line_of("ip"),
            f"ip: {ip}, netmask: {mask}",
            str(error),
            "write for example 10.1.0.11 and 255.255.255.0",
        )
        return
    guest["address"] = str(interface)
    gateway = item.text("gateway")
    if gateway is None:
        return
    try:
        near = ipaddress.IPv4Address(gateway) in interface.network
    except ValueError as error:
        sections.complain(
            item.line_of("gateway"), f"gateway: {gateway}", str(error), "write for example 10.1.0.1"
        )
        return
    if near:
        guest["gateway"] = gateway
    else:
        notes.add(
            item.line_of("gateway"),
            "gateway",
            f"{gateway} is not in {interface.network}, so guests could not reach it: left out",
        )
