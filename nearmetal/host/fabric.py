# SPDX-License-Identifier: Apache-2.0
"""Stage four of an RDMA fabric: what nodes show and measure, judged, each fault with its remedy. Pure.

The order is that of VMW-IB: driver, port and subnet manager of the guest, IPoIB, then bandwidth and
latency between two guests. Each of these steps has the figure of VMW-IB beside it.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from nearmetal.evidence.published import find
from nearmetal.host.parse.ibverbs import NO_LIDS, RdmaDevice, RdmaNode, RdmaPort

LEAST_SHARE = 0.9
"""Share of the line rate that a bandwidth reaches where the fabric is sound; VMW-IB: 0.95."""

NO_GUID = "0000:0000:0000:0000"
ROCE_MTU = 4096
ROCE_INTERFACE_MTU = 4200
IPOIB_HEADER = 4
USUAL_LANES = 4
PAPER_DRIVER = "MLNX_OFED_LINUX-5.4-3.0.3.0, ConnectX-5 firmware 16.32.1010"
PAPER_PORT = "PORT_ACTIVE, InfiniBand, MTU 4096"
PAPER_MANAGER = "port LID 205"
PAPER_IPOIB = "ib0 with MTU 4092"

INFINIBAND, ETHERNET = "InfiniBand", "Ethernet"
ACTIVE = "PORT_ACTIVE"
_TOOLS = {
    "ibv_devinfo": "ibverbs-utils (RHEL: libibverbs-utils)",
    "ib_send_bw": "perftest",
    "ib_send_lat": "perftest",
    "ip": "iproute2 (RHEL: iproute)",
}
"""The packages of programs in Debian, and in RHEL where the name is another."""

_NETWORKS = ((r"(?:0000:){5}ffff:", 34), (r"(?!fe80:|0000:)", 19), ("fe80:", 19))
"""Kinds of GIDs, best first: a pattern, and the characters that GIDs of one network share.

They are a /16 of IPv4, and a /64 of IPv6 and of link-local addresses.
"""

_FULL = 0x8000


class Level(Enum):
    """The meaning of a finding."""

    OK = "ok"
    WARNING = "warning"
    FAULT = "fault"


@dataclass(frozen=True)
class FabricFinding:
    """One thing that was looked at. `what` has the figure; `remedy` is '' if nothing is to be done.

    `published`: the figure of VMW-IB for this step, two virtual machines with ConnectX-5 of 100 Gbit/s.
    """

    node: str
    about: str
    level: Level
    what: str
    remedy: str = ""
    published: str = ""


@dataclass(frozen=True)
class FabricSite:
    """What the spec says of the nodes. `platform`: the backend; `rates`: Mbit/s of a node's VF."""

    platform: str = ""
    rates: Mapping[str, int] | None = None

    @property
    def shares_devices(self) -> bool:
        """Whether several nodes may have the same device of one machine."""
        return self.platform == "local"


@dataclass(frozen=True)
class End:
    """One side of a pair."""

    node: str
    device: RdmaDevice
    port: RdmaPort
    gid: int | None = None
    """Index of the GID to use; None: there is nothing to choose."""


@dataclass(frozen=True)
class Sends:
    """Sends from client to server. None: not measured, for the reason in `why`."""

    server: str
    client: str
    device: str
    size: int
    """Bytes of a message of the bandwidth."""
    gbit: float | None = None
    latency_us: float | None = None
    """Of the smallest message, one way, average."""
    why: str = ""


def judge_nodes(
    nodes: Mapping[str, RdmaNode], site: FabricSite | None = None, device: str = ""
) -> list[FabricFinding]:
    """Return the findings of every node, then those of all nodes together."""
    site = site or FabricSite()
    wanted = {name: chosen(node, device) for name, node in nodes.items()}
    found = [f for name, node in wanted.items() for f in _node(name, node, site, device)]
    return found + list(_together(wanted, site))


def chosen(node: RdmaNode, device: str) -> RdmaNode:
    """Return the node with one of its devices alone; '': with all."""
    if not device:
        return node
    kept = tuple(d for d in node.devices if d.name == device)
    unusable = tuple(name for name in node.unusable if name == device)
    return replace(node, devices=kept, unusable=unusable)


def line_rate(ends: Sequence[End], site: FabricSite) -> float:
    """Return the Gbit/s that a pair can reach: of the slower port, or the limit of the client's VF.

    0: a device in software has no line rate, or the rate is unknown.
    """
    if any(end.device.is_software or not end.port.gbit for end in ends):
        return 0
    limit = (site.rates or {}).get(ends[1].node, 0) / 1000
    return min([end.port.gbit for end in ends] + ([limit] if limit else []))


def judge_pair(
    sends: Sends, ends: Sequence[End], site: FabricSite | None = None, least: float = LEAST_SHARE
) -> list[FabricFinding]:
    """Return the findings of one pair: the server, then the client."""
    pair = f"{sends.client} to {sends.server}"
    found = []
    if sends.gbit is not None:
        found.append(_bandwidth(pair, sends, line_rate(ends, site or FabricSite()), least))
    if sends.latency_us is not None:
        what = f"{sends.latency_us:g} µs, no verdict"
        published = _published("ib_send_lat", 2, "latency")
        found.append(FabricFinding(pair, "latency", Level.OK, what, published=published))
    if sends.why:
        remedy = "`nearmetal exec` starts ib_send_bw by hand; with -R it connects in another way"
        found.append(FabricFinding(pair, "sends", Level.FAULT, sends.why, remedy))
    return found


def _bandwidth(pair: str, sends: Sends, line: float, least: float) -> FabricFinding:
    about, rate = "bandwidth", f"{sends.gbit:.4g} Gbit/s with {sends.size} bytes"
    published = _published("ib_send_bw", sends.size, "bandwidth")
    if not line:
        what = f"{rate}; no line rate is known, so no verdict"
        return FabricFinding(pair, about, Level.OK, what, published=published)
    share = (sends.gbit or 0) / line
    what = f"{rate}, {share:.3f} of {line:g}"
    if share >= least:
        return FabricFinding(pair, about, Level.OK, what, published=published)
    remedy = (
        "compare with the same two hosts without virtual machines; then look at the PCIe width, "
        "the NUMA node of the adapter, the MTU and relaxed ordering"
    )
    return FabricFinding(pair, about, Level.FAULT, what, remedy, published)


def falls_short(sends: Sends, ends: Sequence[End], site: FabricSite, least: float) -> bool:
    """Return whether a bandwidth was measured that is a fault."""
    line = line_rate(ends, site)
    return sends.gbit is not None and bool(line) and sends.gbit / line < least


def _published(program: str, size: int, metric: str) -> str:
    found = find("vmw-ib", test=program, scale=f"{size} B", metric=metric)
    return f"{found[0].printed} {found[0].unit}" if found else ""


def ends_of(names: Sequence[str], nodes: Mapping[str, RdmaNode]) -> tuple[End, End] | None:
    """Return the two active ports of a pair, chosen together; None: no two fit.

    They have the same link layer; hardware comes before software, and for RoCE GIDs in one network.
    """
    active = [
        [End(name, d, p) for d in nodes[name].devices for p in d.ports if p.state == ACTIVE]
        for name in names
    ]
    fits = [
        (server, client)
        for server in active[0]
        for client in active[1]
        if server.port.link_layer == client.port.link_layer
        and server.device.is_software == client.device.is_software
    ]
    fits.sort(key=lambda pair: (pair[0].device.is_software, _gids(*pair) is None))
    if not fits:
        return None
    server, client = fits[0]
    gids = _gids(server, client) or (None, None)
    return (
        End(server.node, server.device, server.port, gids[0]),
        End(client.node, client.device, client.port, gids[1]),
    )


def _gids(server: End, client: End) -> tuple[int, int] | None:
    """Return the indexes of two RoCE v2 GIDs in one network: IPv4, else IPv6, else link-local."""
    if server.port.link_layer != ETHERNET:
        return None
    for kind, shared in _NETWORKS:
        for index, gid in server.port.gids:
            for other, partner in client.port.gids:
                if re.match(kind, gid) and gid[:shared] == partner[:shared]:
                    return index, other
    return None


def _node(name: str, node: RdmaNode, site: FabricSite, wanted: str) -> Iterator[FabricFinding]:
    missing = [tool for tool in _TOOLS if tool not in node.tools]
    if missing:
        packages = " and ".join(dict.fromkeys(_TOOLS[tool] for tool in missing))
        remedy = f"install {packages} in the nodes"
        yield FabricFinding(name, "tools", Level.FAULT, f"{', '.join(missing)}: missing", remedy)
    for unusable in node.unusable if "ibv_devinfo" in node.tools else ():
        what = f"the kernel has it, verbs do not show it: {node.words or 'ibv_devinfo has no word'}"
        remedy = "install ibverbs-providers, and look at the rights of /dev/infiniband"
        yield FabricFinding(name, unusable, Level.FAULT, what, remedy)
    if not node.devices and not node.unusable:
        what = f"no RDMA device {wanted}".rstrip()
        yield FabricFinding(name, "device", Level.FAULT, what, _no_device(wanted))
    if not node.devices:
        return
    if not all(device.is_software for device in node.devices):
        what = node.driver or "the driver of the kernel, no OFED"
        yield FabricFinding(name, "driver", Level.OK, what, published=PAPER_DRIVER)
    yield _locked(name, node.locked)
    for device in node.devices:
        yield from _device(name, device, site, alone=bool(wanted))


def _no_device(wanted: str) -> str:
    if wanted:
        return "`ibv_devices` in the node shows the names"
    return (
        "`lspci` in the node must show the virtual function, and its driver (mlx5_core and mlx5_ib, "
        "of the kernel or of OFED) must be loaded; `nearmetal host status` shows the host's side"
    )


def _locked(name: str, limit: float | None) -> FabricFinding:
    about = "locked memory"
    if limit == float("inf"):
        return FabricFinding(name, about, Level.OK, "no limit")
    remedy = "memlock unlimited in /etc/security/limits.conf, LimitMEMLOCK=infinity for services"
    if limit is None:
        return FabricFinding(name, about, Level.WARNING, "the limit is not known", remedy)
    what = f"at most {int(limit) >> 10} KiB; all memory of an MPI program may have to be registered"
    return FabricFinding(name, about, Level.WARNING, what, remedy)


def _device(
    name: str, device: RdmaDevice, site: FabricSite, *, alone: bool
) -> Iterator[FabricFinding]:
    kind = " (software)" if device.is_software else " (VF)" if device.is_virtual else ""
    about = device.name + kind
    if device.guid in {"", NO_GUID}:
        remedy = (
            "`nearmetal up` gives GUIDs to VFs with a `guid` in the spec; else set it on the host"
        )
        yield FabricFinding(name, about, Level.FAULT, "the node GUID is zero", remedy)
    if not device.ports:
        remedy = "look for the driver's words in `dmesg` of the node"
        yield FabricFinding(name, about, Level.FAULT, "it shows no port", remedy)
    used = any(port.state == ACTIVE for port in device.ports)
    for port in device.ports:
        label = f"{about} port {port.number}"
        if port.state == ACTIVE:
            yield from _active(name, label, port)
        elif used and not alone:
            yield FabricFinding(name, label, Level.OK, f"not used: {_state(port)}")
        else:
            yield FabricFinding(name, label, Level.FAULT, _state(port), _wake(port, site))


def _state(port: RdmaPort) -> str:
    return f"{port.state or 'unknown state'}, {port.physical or 'unknown link'}"


def _wake(port: RdmaPort, site: FabricSite) -> str:
    """Return the remedy for a port that is not active."""
    host = (
        "on the ESXi host the VF's port must be up: look at the port group and the uplink"
        if site.platform == "vsphere"
        else "on the host `ip link set PF vf N state auto` (InfiniBand: policy Follow or Up), and "
        "look at the cable of the PF"
    )
    if port.link_layer == ETHERNET:
        down = [i.name for i in port.interfaces if not i.is_up]
        return f"`ip link set {down[0]} up` in the node; {host}" if down else host
    manager = (
        "enable virtual ports in the subnet manager (opensm: `virt_enabled 2`), and its partition "
        "must hold the GUID of the VF"
    )
    if port.state == "PORT_INIT" and port.manager_lid in NO_LIDS:
        return f"no subnet manager has configured it: start one; {manager}"
    if port.physical == "LINK_UP":
        return f"{manager}; {host}"
    return host


def _active(name: str, about: str, port: RdmaPort) -> Iterator[FabricFinding]:
    rate = f", {port.width}X, {port.gbit:g} Gbit/s" if port.gbit else ""
    layer = port.link_layer or "unknown link layer"
    published = PAPER_PORT if layer == INFINIBAND else ""
    what = f"{ACTIVE}, {layer}, MTU {port.active_mtu}{rate}"
    yield FabricFinding(name, about, Level.OK, what, published=published)
    if layer == INFINIBAND:
        yield from _infiniband(name, about, port)
    elif port.link_layer == ETHERNET and 0 < port.active_mtu < ROCE_MTU:
        smallest = min((i.mtu for i in port.interfaces if i.mtu), default=0)
        of = f" of an interface MTU of {smallest}" if smallest else ""
        remedy = f"an interface MTU of {ROCE_INTERFACE_MTU} or more, on both nodes and the switch"
        what = f"RoCE packets carry {port.active_mtu} bytes{of}"
        yield FabricFinding(name, about, Level.WARNING, what, remedy)


def _infiniband(name: str, about: str, port: RdmaPort) -> Iterator[FabricFinding]:
    what = f"subnet manager: LID {port.manager_lid}, port LID {port.lid}"
    if port.lid in NO_LIDS or port.manager_lid in NO_LIDS:
        remedy = "enable virtual ports in the subnet manager (opensm: `virt_enabled 2`)"
        yield FabricFinding(name, about, Level.FAULT, what, remedy, PAPER_MANAGER)
    else:
        yield FabricFinding(name, about, Level.OK, what, published=PAPER_MANAGER)
    if 0 < port.width < USUAL_LANES:
        remedy = "reseat or replace the cable: ports of adapters have four lanes"
        yield FabricFinding(name, about, Level.WARNING, f"{port.width} of 4 lanes", remedy)
    if port.active_mtu < port.max_mtu:
        what = f"MTU {port.active_mtu}, the port can {port.max_mtu}"
        remedy = "the other end of the cable allows no more: set the MTU of the switch's port"
        yield FabricFinding(name, about, Level.WARNING, what, remedy)
    if port.partitions and not any(key & _FULL for key in port.partitions):
        keys = ", ".join(f"{key:#06x}" for key in port.partitions)
        remedy = "two limited members cannot send to each other: make it a full member"
        yield FabricFinding(name, about, Level.WARNING, f"partitions {keys}, none full", remedy)
    yield from _ipoib(name, about, port)


def _ipoib(name: str, about: str, port: RdmaPort) -> Iterator[FabricFinding]:
    ready = [i for i in port.interfaces if i.is_up and i.addresses]
    if not ready:
        names = ", ".join(i.name for i in port.interfaces) or "none"
        what = f"IPoIB: no interface is known to be up with an address ({names})"
        remedy = "load ib_ipoib, and give the interface an address and a link"
        yield FabricFinding(name, about, Level.WARNING, what, remedy, PAPER_IPOIB)
        return
    interface = ready[0]
    what = f"IPoIB: {interface.name} has {interface.addresses[0]}, MTU {interface.mtu}"
    if interface.mtu < port.active_mtu - IPOIB_HEADER:
        remedy = "set `mtu=5` for the partition in the subnet manager (VMW-IB: 4092 bytes)"
        yield FabricFinding(name, about, Level.WARNING, what, remedy, PAPER_IPOIB)
    else:
        yield FabricFinding(name, about, Level.OK, what, published=PAPER_IPOIB)


def _together(nodes: Mapping[str, RdmaNode], site: FabricSite) -> Iterator[FabricFinding]:
    devices = [(name, device) for name, node in nodes.items() for device in node.devices]
    guids = Counter(d.guid for _, d in devices if d.guid not in {"", NO_GUID})
    for guid in [g for g, number in guids.items() if number > 1 and not site.shares_devices]:
        who = ", ".join(f"{name} {device.name}" for name, device in devices if device.guid == guid)
        remedy = "each VF needs a node GUID of its own; a copied machine keeps the old one"
        yield FabricFinding("all", "GUIDs", Level.FAULT, f"{guid} is that of {who}", remedy)
    rates: dict[str, set[float]] = defaultdict(set)
    for _, device in devices:
        for port in device.ports:
            if port.state == ACTIVE and port.gbit and not device.is_software:
                rates[port.link_layer].add(port.gbit)
    for layer in [layer for layer, found in rates.items() if len(found) > 1]:
        shown = ", ".join(f"{rate:g}" for rate in sorted(rates[layer]))
        remedy = "if the adapters are alike, a cable or a port has trained to less"
        what = f"active {layer} ports of {shown} Gbit/s"
        yield FabricFinding("all", "line rate", Level.WARNING, what, remedy)
    versions: dict[str, set[str]] = defaultdict(set)
    for _, device in devices:
        if device.firmware and not device.is_software:
            versions[device.board].add(device.firmware)
    for board in [board for board, found in versions.items() if len(found) > 1]:
        what = f"{board or 'one kind of adapter'}: versions {', '.join(sorted(versions[board]))}"
        remedy = "give all adapters of one kind the same firmware: `nearmetal host plan`"
        yield FabricFinding("all", "firmware", Level.WARNING, what, remedy)
