# SPDX-License-Identifier: Apache-2.0
"""The family `fabric`: RDMA ports, GUIDs, error counters, RoCE, slots of adapters. Pure."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

from nearmetal.check.expect import OWN, Expectations
from nearmetal.check.families.base import word
from nearmetal.check.model import Gravity, HealthCheck, Spotted
from nearmetal.check.snapshot import Snapshot, is_decimal
from nearmetal.core.text import printable

_ABI = "kernel, Documentation/ABI/stable/sysfs-class-infiniband"
_VMW_IB = "VMW-IB, Figure 20: PORT_ACTIVE, and a GUID that is not zero"
RATE = re.compile(r"([0-9]{1,4}(?:\.[0-9]{1,3})?) Gb/sec(?: \(([0-9]{1,2})X ([A-Z0-9]{3,5})\))?")
"""The rate of a port in sysfs: Gbit/s, and of InfiniBand the lanes and their generation."""

SPEED = re.compile(r"([0-9]{1,3}(?:\.[0-9]+)?) GT/s")
"""The transfers of a lane of a PCIe slot in sysfs."""

_ERRORS = (
    "symbol_error",
    "link_error_recovery",
    "link_downed",
    "port_rcv_errors",
    "local_link_integrity_errors",
    "excessive_buffer_overrun_errors",
)


def _ports(node: Snapshot) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield each port of a real RDMA device: its name and its path."""
    for device in sorted(node.table("fabric")):
        if not node.flag("fabric", device, "software"):
            for port in sorted(node.table("fabric", device, "ports")):
                yield (
                    printable(f"{device}/{port}")[:64],
                    ("fabric", device, "ports", port),
                )


def _state(node: Snapshot, _: Expectations) -> Iterator[Spotted]:
    ports = list(_ports(node))
    active = any(node.text(*path, "state") == "ACTIVE" for _, path in ports)
    for name, path in ports:
        state = node.text(*path, "state")
        if state and state != "ACTIVE":
            waits = state in ("INIT", "ARMED")
            yield Spotted(
                printable(f"{state}, {node.text(*path, 'phys_state')}")[:60],
                "ACTIVE",
                "the link is up, and no subnet manager has configured the port"
                if waits
                else "the port has no link"
                + ("; another port of the node is active" if active else ""),
                "systemctl start opensm  # on the node of the subnet manager"
                if waits
                else f"ibstat {word(path[1])}",
                name,
                grade=Gravity.NOTE if active and not waits else None,
            )


def _manager(node: Snapshot, _: Expectations) -> Iterator[Spotted]:
    for name, path in _ports(node):
        active = node.text(*path, "state") == "ACTIVE"
        if active and node.text(*path, "link_layer") == "InfiniBand":
            if node.text(*path, "sm_lid") in ("0x0", "0x0000", "0"):
                yield Spotted(
                    "none",
                    "a subnet manager",
                    "the port knows no subnet manager, so new connections fail",
                    "sminfo",
                    name,
                )
            if node.table(*path).get("pkeys") == "":
                yield Spotted(
                    "none",
                    "a partition key",
                    "the port is a member of no partition, so it cannot send",
                    "smpquery pkeys -D 0",
                    name,
                )


def _guid(node: Snapshot, _: Expectations) -> Iterator[Spotted]:
    for device in sorted(node.table("fabric")):
        guid = node.text("fabric", device, "node_guid")
        if guid and not guid.strip("0:"):
            yield Spotted(
                guid,
                "a GUID that is not zero",
                "a virtual function without a GUID gets no address from the subnet manager",
                "ip link set dev PF vf N node_guid GUID",
                printable(device)[:64],
            )


def _rate(node: Snapshot, wanted: Expectations) -> Iterator[Spotted]:
    least = wanted.value("link_gbit")
    for name, path in _ports(node):
        found = RATE.match(node.text(*path, "rate"))
        active = node.text(*path, "state") == "ACTIVE"
        if least is not None and active and found and float(found[1]) < least:
            yield Spotted(
                printable(node.text(*path, "rate"))[:60],
                f"at least {least:g} Gb/s",
                "the link is slower than the profile says: a cable, a port or a setting",
                f"ibportstate -D 0 {word(path[3])}",
                name,
                wanted.source("link_gbit"),
            )


def _mtu(node: Snapshot, wanted: Expectations) -> Iterator[Spotted]:
    least = wanted.value("mtu")
    for name, path in _ports(node):
        interface = node.text(*path, "netdev")
        mtu = node.number("net", interface, "mtu")
        if least is not None and mtu is not None and mtu < least:
            yield Spotted(
                f"{mtu:.0f}",
                f"at least {least:.0f}",
                "the interface of the RDMA port sends smaller frames than the profile says",
                f"ip link set {word(interface)} mtu {least:.0f}",
                name,
                wanted.source("mtu"),
            )


def _counters(node: Snapshot, _: Expectations) -> Iterator[Spotted]:
    for name, path in _ports(node):
        counted = [c for c in _ERRORS if node.count(*path, "counters", c)]
        if counted:
            yield Spotted(
                ", ".join(counted),
                "none since the reset of the counters",
                "the link had errors; `nearmetal check diff` shows whether the counters grow",
                "perfquery -x",
                name,
            )


def _roce(node: Snapshot, _: Expectations) -> Iterator[Spotted]:
    for name, path in _ports(node):
        ethernet = node.text(*path, "link_layer") == "Ethernet"
        active = node.text(*path, "state") == "ACTIVE"
        # A port of iWARP has no GID of RoCE v2 at all; one of RoCE has that of its link.
        if ethernet and active and node.number(*path, "gids", "RoCE v2") == 0:
            interface = node.text(*path, "netdev") or "INTERFACE"
            yield Spotted(
                "none",
                "a GID of RoCE v2",
                "the interface has no IP address, so RDMA messages cannot be routed",
                f"ip addr add ADDRESS dev {word(interface)}",
                name,
            )


def _ethernet(node: Snapshot) -> Iterator[str]:
    """Yield the interfaces of active RoCE ports."""
    for _, path in _ports(node):
        active = node.text(*path, "state") == "ACTIVE"
        if active and node.text(*path, "link_layer") == "Ethernet" and node.text(*path, "netdev"):
            yield node.text(*path, "netdev")


def _pfc(node: Snapshot, wanted: Expectations) -> Iterator[Spotted]:
    expected = wanted.value("pfc")
    for name in sorted(set(_ethernet(node))) if expected else ():
        found = node.text("net", name, "pfc")
        if found and set(found.split()) != set(expected):
            on = " ".join(f"{each}:on" for each in expected)
            yield Spotted(
                printable(found)[:40],
                " ".join(expected),
                "frames of RDMA are dropped where a queue is full, or other traffic is stopped",
                f"dcb pfc set dev {word(name)} prio-pfc all:off {on}",
                printable(name)[:16],
                wanted.source("pfc"),
            )


def _ecn(node: Snapshot, wanted: Expectations) -> Iterator[Spotted]:
    for name in sorted(set(_ethernet(node))):
        for side in ("np", "rp"):
            states = node.table("net", name, "ecn", side)
            off = [each for each in wanted.value("ecn") or () if states.get(each) == "0"]
            if off:
                folder = f"/sys/class/net/{word(name)}/ecn/roce_{side}/enable"
                yield Spotted(
                    f"off for priority {' '.join(off)} ({side})",
                    "on",
                    "senders do not slow down where a switch marks packets",
                    f"for p in {' '.join(off)}; do echo 1 >{folder}/$p; done",
                    printable(name)[:16],
                    wanted.source("ecn"),
                )


def _slot(node: Snapshot, _: Expectations) -> Iterator[Spotted]:
    for address in sorted(node.table("pci")):
        place = ("pci", address)
        widths = [node.text(*place, f"{when}_link_width") for when in ("current", "max")]
        speeds = [
            SPEED.match(node.text(*place, f"{when}_link_speed")) for when in ("current", "max")
        ]
        if node.flag("virtual", "guest") or node.text(*place, "physical"):
            continue  # a hypervisor makes these values up
        narrow = all(map(is_decimal, widths)) and 0 < int(widths[0]) < int(widths[1])
        slow = speeds[0] and speeds[1] and float(speeds[0][1]) < float(speeds[1][1])
        # A GPU or accelerator without work lowers its speed to save power.
        saving = node.text(*place, "class")[:2] in ("03", "12")
        if narrow or (slow and not saving):
            shown = [
                f"x{w}, {s[1] if s else '?'} GT/s" for w, s in zip(widths, speeds, strict=True)
            ]
            yield Spotted(
                printable(shown[0])[:40],
                printable(shown[1])[:40],
                "the adapter has fewer lanes or a lower speed than it can use: the slot, a riser "
                "or a bad contact",
                f"lspci -vv -s {word(address)}",
                printable(address)[:16],
            )


class _Twice:
    """Two devices with one GUID, or two interfaces with one MAC address."""

    def __init__(self, _: Expectations) -> None:
        self._guids: dict[str, list[tuple[str, str]]] = defaultdict(list)
        self._macs: dict[str, list[tuple[str, str]]] = defaultdict(list)

    def add(self, node: Snapshot) -> None:
        for device in node.table("fabric"):
            guid = node.text("fabric", device, "node_guid")
            if guid.strip("0:") and not node.flag("fabric", device, "software"):
                self._guids[guid].append((node.name, device))
        seen = set()
        for name in node.table("net"):
            mac = node.text("net", name, "mac")
            real = node.text("net", name, "driver") or node.number("net", name, "kind") == 1
            if mac.strip("0:") and real and mac not in seen and node.text("net", name, "address"):
                seen.add(mac)
                self._macs[mac].append((node.name, name))

    def results(self) -> Iterator[tuple[list[str], Spotted]]:
        for what, found in (("GUID", self._guids), ("MAC address", self._macs)):
            for value, places in found.items():
                if len(places) > 1:
                    shown = ", ".join(f"{node} {device}" for node, device in places[:8])
                    seen = Spotted(
                        printable(value)[:64],
                        f"one device for each {what}",
                        f"several devices have this {what}: {printable(shown)}",
                        "ip link set dev PF vf N node_guid GUID"
                        if what == "GUID"
                        else "ip link set dev INTERFACE address MAC",
                        what,
                    )
                    yield [node for node, _ in places], seen


CHECKS = (
    HealthCheck("fabric.state", Gravity.FAULT, "ports are active", _VMW_IB, _state),
    HealthCheck(
        "fabric.manager", Gravity.FAULT, "a subnet manager and a partition", _ABI, _manager
    ),
    HealthCheck("fabric.guid", Gravity.FAULT, "GUIDs are set", _VMW_IB, _guid),
    HealthCheck(
        "fabric.twice", Gravity.FAULT, "GUIDs and MAC addresses are unique", OWN, compare=_Twice
    ),
    HealthCheck("fabric.rate", Gravity.FAULT, "links have their rate", "", _rate),
    HealthCheck("fabric.mtu", Gravity.FAULT, "interfaces have their MTU", "", _mtu),
    HealthCheck("fabric.counters", Gravity.NOTE, "links have no errors", _ABI, _counters),
    HealthCheck("fabric.roce", Gravity.FAULT, "RoCE v2 has an address", _ABI, _roce),
    HealthCheck("fabric.pfc", Gravity.FAULT, "RoCE has its flow control", "", _pfc),
    HealthCheck("fabric.ecn", Gravity.FAULT, "RoCE has its congestion control", "", _ecn),
    HealthCheck(
        "fabric.slot",
        Gravity.WARNING,
        "adapters use all lanes",
        "kernel, Documentation/ABI/testing/sysfs-bus-pci",
        _slot,
    ),
)
