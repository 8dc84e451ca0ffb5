# SPDX-License-Identifier: Apache-2.0
"""Stage four of an RDMA fabric: what nodes show and measure, judged, each fault with its remedy. Pure.

The order is that of VMW-IB: subnet manager, driver and port of the guest, IPoIB, then bandwidth
and latency between two guests.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

from nearmetal.host.parse.ibverbs import RdmaDevice, RdmaNode, RdmaPort

LEAST_SHARE = 0.9
"""Share of the line rate that a bandwidth reaches where the fabric is sound; VMW-IB: 0.95."""

NO_GUID = "0000:0000:0000:0000"
ROCE_MTU = 4096
ROCE_INTERFACE_MTU = 4200
PAPER_BANDWIDTH = "VMW-IB, Figure 21: 95.48 of 100 Gbit/s between two virtual machines"
PAPER_LATENCY = "VMW-IB, Figure 22: 1.19 µs with small messages between two virtual machines"
_TOOLS = {"ibv_devinfo": "ibverbs-utils", "ib_send_bw": "perftest", "ib_send_lat": "perftest"}


class Level(Enum):
    """The meaning of a finding."""

    OK = "ok"
    WARNING = "warning"
    FAULT = "fault"


@dataclass(frozen=True)
class FabricFinding:
    """One thing that was looked at. `what` has the figure; `remedy` is '' if nothing is to be done."""

    node: str
    about: str
    level: Level
    what: str
    remedy: str = ""


@dataclass(frozen=True)
class Sends:
    """Sends between two nodes. None: not measured, for the reason in `why`."""

    server: str
    client: str
    size: int
    """Bytes of a message of the bandwidth."""
    gbit: float | None
    latency_us: float | None
    """Of the smallest message, one way, average."""
    why: str = ""


def judge_nodes(nodes: Mapping[str, RdmaNode], device: str = "") -> list[FabricFinding]:
    """Return the findings of every node, then those of all nodes together."""
    found = [f for name, node in nodes.items() for f in _node(name, chosen(node, device), device)]
    return found + list(_together({n: chosen(node, device) for n, node in nodes.items()}))


def chosen(node: RdmaNode, device: str) -> RdmaNode:
    """Return the node with one of its devices alone; '': with all."""
    kept = tuple(d for d in node.devices if device in {"", d.name})
    return RdmaNode(kept, node.tools, node.locked)


def judge_pair(
    measured: Sends, server: RdmaPort, *, software: bool, least: float = LEAST_SHARE
) -> list[FabricFinding]:
    """Return the findings of one pair; `server`: the port that the bytes went to."""
    pair = f"{measured.client} to {measured.server}"
    if measured.gbit is None or measured.latency_us is None:
        remedy = "start ib_send_bw on both nodes by hand, and read its words"
        return [FabricFinding(pair, "sends", Level.FAULT, measured.why, remedy)]
    latency = f"{measured.latency_us:g} µs ({PAPER_LATENCY})"
    rate = f"{measured.gbit:.4g} Gbit/s with {measured.size} bytes"
    if software or not server.gbit:
        rated = "a device in software has no line rate" if software else "the line rate is unknown"
        bandwidth = FabricFinding(pair, "bandwidth", Level.OK, f"{rate}; {rated}")
    else:
        share = measured.gbit / server.gbit
        bandwidth = FabricFinding(
            pair,
            "bandwidth",
            Level.OK if share >= least else Level.FAULT,
            f"{rate}, {share:.2f} of the line's {server.gbit:g} ({PAPER_BANDWIDTH})",
            ""
            if share >= least
            else "compare with the same two hosts without virtual machines; then look at the PCIe "
            "width, the NUMA node of the adapter, MTU, and relaxed ordering",
        )
    return [bandwidth, FabricFinding(pair, "latency", Level.OK, latency)]


def _node(name: str, node: RdmaNode, wanted: str) -> Iterator[FabricFinding]:
    missing = [tool for tool in _TOOLS if tool not in node.tools]
    if missing:
        packages = " and ".join(dict.fromkeys(_TOOLS[tool] for tool in missing))
        remedy = f"install {packages} in the image"
        yield FabricFinding(name, "tools", Level.FAULT, f"{', '.join(missing)}: missing", remedy)
    if not node.devices:
        what = f"no RDMA device {wanted}".rstrip()
        yield FabricFinding(name, "device", Level.FAULT, what, _no_device(wanted))
        return
    yield _locked(name, node)
    for device in node.devices:
        yield from _device(name, device)


def _no_device(wanted: str) -> str:
    if wanted:
        return "ibv_devices in the node lists the names"
    return (
        "lspci in the node must show the virtual function, and its driver (mlx5_core and mlx5_ib, "
        "of the kernel or of OFED) must be loaded; `nearmetal host status` shows the host's side"
    )


def _locked(name: str, node: RdmaNode) -> FabricFinding:
    if node.locked is None:
        return FabricFinding(name, "locked memory", Level.OK, "no limit")
    return FabricFinding(
        name,
        "locked memory",
        Level.WARNING,
        f"{node.locked >> 10} KiB at most: MPI registers more",
        "memlock unlimited in /etc/security/limits.conf, LimitMEMLOCK=infinity for services",
    )


def _device(name: str, device: RdmaDevice) -> Iterator[FabricFinding]:
    kind = "software" if device.is_software else "VF" if device.is_virtual else "PF"
    about = f"{device.name} ({kind})"
    if device.guid in {"", NO_GUID}:
        remedy = "give the VF a node GUID on the host: `nearmetal host apply` does it"
        yield FabricFinding(name, about, Level.FAULT, "the node GUID is zero", remedy)
    if not device.ports:
        yield FabricFinding(name, about, Level.FAULT, "it shows no port")
    for port in device.ports:
        yield from _port(name, f"{about} port {port.number}", port)


def _port(name: str, about: str, port: RdmaPort) -> Iterator[FabricFinding]:
    if port.state != "PORT_ACTIVE":
        yield _inactive(name, about, port)
        return
    rate = f", {port.gbit:g} Gbit/s" if port.gbit else ""
    what = f"PORT_ACTIVE, {port.link_layer or 'unknown link layer'}{rate}"
    yield FabricFinding(name, about, Level.OK, what)
    if port.link_layer == "InfiniBand":
        yield from _infiniband(name, about, port)
    elif port.link_layer == "Ethernet":
        yield from _ethernet(name, about, port)


def _inactive(name: str, about: str, port: RdmaPort) -> FabricFinding:
    what = f"{port.state or 'unknown state'}, {port.physical or 'unknown link'}"
    if port.state == "PORT_INIT" and port.link_layer == "InfiniBand":
        remedy = (
            "no subnet manager has configured it: start one, with virtualization enabled "
            "(opensm: `virt_enabled 2` in opensm.conf; a switch: `ib sm virt enable`)"
        )
    elif port.physical == "LINK_UP":
        remedy = "wait a moment, or look for the driver's words in dmesg"
    else:
        remedy = (
            "set the VF's link on the host (`ip link set PF vf N state enable`; InfiniBand: policy "
            "Follow or Up), and check the cable of the PF"
        )
    return FabricFinding(name, about, Level.FAULT, what, remedy)


def _infiniband(name: str, about: str, port: RdmaPort) -> Iterator[FabricFinding]:
    if not port.lid or not port.manager_lid:
        what = f"port LID {port.lid}, LID of the subnet manager {port.manager_lid}"
        remedy = "enable virtualization in the subnet manager, and restart it"
        yield FabricFinding(name, about, Level.FAULT, what, remedy)
    if port.active_mtu < port.max_mtu:
        what = f"MTU {port.active_mtu}, the port can {port.max_mtu}"
        remedy = "set the MTU of the partition in the subnet manager (VMW-IB runs 4096)"
        yield FabricFinding(name, about, Level.WARNING, what, remedy)
    ready = [i for i in port.interfaces if i.is_up and i.addresses]
    names = ", ".join(i.name for i in port.interfaces) or "none"
    if ready:
        yield FabricFinding(
            name, about, Level.OK, f"IPoIB: {ready[0].name} has {ready[0].addresses[0]}"
        )
    else:
        remedy = "load ib_ipoib, and give the interface an address and a link"
        what = f"IPoIB: no interface is up with an address ({names})"
        yield FabricFinding(name, about, Level.WARNING, what, remedy)


def _ethernet(name: str, about: str, port: RdmaPort) -> Iterator[FabricFinding]:
    if port.active_mtu < ROCE_MTU:
        smallest = min((i.mtu for i in port.interfaces if i.mtu), default=0)
        of = f" of an interface MTU of {smallest}" if smallest else ""
        remedy = f"an interface MTU of {ROCE_INTERFACE_MTU} or more, on both nodes and the switch"
        what = f"RoCE packets carry {port.active_mtu} bytes{of}"
        yield FabricFinding(name, about, Level.WARNING, what, remedy)


def _together(nodes: Mapping[str, RdmaNode]) -> Iterator[FabricFinding]:
    devices = [(name, device) for name, node in nodes.items() for device in node.devices]
    guids = Counter(d.guid for _, d in devices if d.guid not in {"", NO_GUID})
    for guid in [g for g, number in guids.items() if number > 1]:
        who = ", ".join(f"{name} {device.name}" for name, device in devices if device.guid == guid)
        remedy = "each VF needs a node GUID of its own; a copied machine keeps the old one"
        yield FabricFinding("all", "GUIDs", Level.FAULT, f"{guid} is that of {who}", remedy)
    layers = {p.link_layer for _, d in devices for p in d.ports if p.state == "PORT_ACTIVE"}
    if len(layers) > 1:
        remedy = "use --device, or set LINK_TYPE alike: `nearmetal host plan`"
        what = f"active ports of {' and '.join(sorted(layers))}"
        yield FabricFinding("all", "link layer", Level.WARNING, what, remedy)
    versions = sorted({d.firmware for _, d in devices if d.firmware and not d.is_software})
    if len(versions) > 1:
        remedy = "give all adapters of one kind the same firmware: `nearmetal host plan`"
        what = f"versions {', '.join(versions)}"
        yield FabricFinding("all", "firmware", Level.WARNING, what, remedy)
