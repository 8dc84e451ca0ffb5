# SPDX-License-Identifier: Apache-2.0
"""What a node shows of its RDMA devices: `ibv_devinfo -v`, sysfs and `ip -j addr`. Pure.

The text comes from a node and is hostile: lengths and forms are checked. Sources of the grammar:
libibverbs/examples/devinfo.c of rdma-core, Documentation/ABI/stable/sysfs-class-infiniband of the
kernel, and the listing in Figure 20 of VMW-IB. Numbers of virtual functions: the table of devices
in the kernel's drivers/net/ethernet/mellanox/mlx5/core/main.c and mlx4/main.c.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from nearmetal.evidence.line_rate import LANES

MAX_TEXT = 1 << 20
MAX_DEVICES = 64
MAX_PORTS = 8

SCRIPT = r"""
PATH=/usr/sbin:/usr/bin:/sbin:/bin
echo '== limits'; ulimit -l
echo '== tools'; for t in ibv_devinfo ib_send_bw ib_send_lat ib_write_bw ib_write_lat ip; do
  command -v $t >/dev/null && echo $t
done
echo '== sysfs'
for d in "${ROOT:-}"/sys/class/infiniband/*; do
  [ -e "$d" ] || continue
  n=${d##*/}; echo "$n device"
  case $(readlink -f "$d") in */devices/virtual/*) echo "$n software";; esac
  [ ! -e "$d/parent" ] || echo "$n software"
  for i in "$d"/ports/*/pkeys/*; do
    { read -r k <"$i"; } 2>/dev/null || continue
    p=${i#"$d"/ports/}; [ "$k" = 0x0000 ] || echo "$n pkey ${p%%/*} $k"
  done
  for i in "$d"/ports/*/gid_attrs/types/*; do
    { read -r t <"$i"; } 2>/dev/null || continue
    k=${i##*/} p=${i#"$d"/ports/}; p=${p%%/*}
    { read -r g <"$d/ports/$p/gids/$k"; } 2>/dev/null && echo "$n gid $p $k $g $t"
    { read -r e <"$d/ports/$p/gid_attrs/ndevs/$k"; } 2>/dev/null && echo "$n netdev $p $e"
  done
  for i in "$d"/device/net/*; do
    [ -e "$i" ] || continue
    p=0; { read -r p <"$i/dev_port"; } 2>/dev/null; echo "$n netdev $((p + 1)) ${i##*/}"
  done
done
echo '== driver'; ofed_info -s 2>/dev/null
echo '== ip'; ip -j addr 2>/dev/null
echo '== ibv_devinfo'; ibv_devinfo -v 2>&1; c=$?
echo '== code'; echo $c
"""
"""Shell script whose output `parse_node` reads. It changes nothing. ROOT: in place of / (tests)."""

_SECTION = re.compile(r"^== ([a-z_]{1,16})$", re.MULTILINE)
_PAIR = re.compile(r"^\s*([A-Za-z][A-Za-z0-9_ ]{0,31}):\s*(\S.{0,255})?$")
_NAME = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}"
_DEVICE = re.compile(rf"^hca_id:\s+({_NAME})\s*$")
_PORT = re.compile(r"^\s+port:\s+([0-9]{1,3})\s*$")
_WORD = re.compile(r"([A-Za-z_][A-Za-z_ ]{0,31}) \([0-9]{1,3}\)")
_NUMBER = re.compile(r"(0x[0-9a-f]{1,8}|[0-9]{1,10})(?: \([0-9]{1,3}\))?")
_WIDTH = re.compile(r"([0-9]{1,2})X\b")
_SPEED = re.compile(r"([0-9]{1,4}(?:\.[0-9]{1,3})?) Gbps \(([0-9]{1,4})\)")
_GUID = re.compile(r"[0-9a-f]{4}(:[0-9a-f]{4}){3}")
_NETDEV = re.compile(rf"^({_NAME}) netdev ([0-9]{{1,3}}) ({_NAME})$", re.MULTILINE)
_PKEY = re.compile(rf"^({_NAME}) pkey ([0-9]{{1,3}}) 0x([0-9a-f]{{4}})$", re.MULTILINE)
_GID = re.compile(
    rf"^({_NAME}) gid ([0-9]{{1,3}}) ([0-9]{{1,4}}) ([0-9a-f]{{4}}(?::[0-9a-f]{{4}}){{7}}) RoCE v2$",
    re.MULTILINE,
)
_OFED = re.compile(r"^([A-Za-z0-9][A-Za-z0-9_.-]{0,63}):?$", re.MULTILINE)
_KIND = re.compile(rf"^({_NAME}) (software|device)$", re.MULTILINE)

_GENERATIONS = {1: "SDR", 2: "DDR", 4: "QDR", 8: "FDR10", 16: "FDR"}
"""Generations of InfiniBand by the code of their speed. The names of EDR and later are data rates,
as those of Ethernet."""

_VIRTUAL = {0x1002, 0x1004, 0x1012, 0x1014, 0x1016, 0x1018, 0x101A, 0x101C, 0x101E}
"""Device ids of virtual functions of NVIDIA adapters. A guest cannot see it otherwise."""

NO_LIDS = {0, 0xFFFF}
"""LIDs that mean none."""


@dataclass(frozen=True)
class Interface:
    """A network interface of a node."""

    name: str
    mtu: int = 0
    is_up: bool = False
    addresses: tuple[str, ...] = ()


@dataclass(frozen=True)
class RdmaPort:
    """One port of an RDMA device. Sizes in bytes; an unknown number is 0, a word ''."""

    number: int
    state: str = ""
    """PORT_ACTIVE, PORT_INIT, PORT_DOWN, ..."""
    physical: str = ""
    """LINK_UP, POLLING, DISABLED, ..."""
    link_layer: str = ""
    """InfiniBand or Ethernet."""
    max_mtu: int = 0
    active_mtu: int = 0
    lid: int = 0
    manager_lid: int = 0
    width: int = 0
    """Lanes."""
    gbit: float = 0
    """Data rate in Gbit/s."""
    interfaces: tuple[Interface, ...] = ()
    partitions: tuple[int, ...] = ()
    """P_Keys; bit 15 is set for a full member."""
    gids: tuple[tuple[int, str], ...] = ()
    """Index and GID of each RoCE v2 entry."""


@dataclass(frozen=True)
class RdmaDevice:
    """One RDMA device of a node."""

    name: str
    guid: str = ""
    firmware: str = ""
    board: str = ""
    is_software: bool = False
    is_virtual: bool = False
    ports: tuple[RdmaPort, ...] = ()


@dataclass(frozen=True)
class RdmaNode:
    """What a node has for verbs. `locked`: bytes that a process may lock; None: not known."""

    devices: tuple[RdmaDevice, ...] = ()
    unusable: tuple[str, ...] = ()
    """Devices of the kernel that verbs do not show."""
    tools: frozenset[str] = frozenset()
    locked: float | None = None
    words: str = ""
    """The last line of ibv_devinfo if it failed."""
    driver: str = ""
    """The release of OFED; '': none is installed."""


@dataclass
class _Open:
    """The device that is being read."""

    name: str
    own: dict[str, str] = field(default_factory=dict)
    ports: list[tuple[int, dict[str, str]]] = field(default_factory=list)


def _sections(text: str) -> dict[str, str]:
    parts = _SECTION.split(text[:MAX_TEXT])
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def _opened(text: str) -> Iterator[_Open]:
    device: _Open | None = None
    for line in text.splitlines():
        if match := _DEVICE.match(line):
            if device is not None:
                yield device
            device = _Open(match[1])
        elif device is None:
            continue
        elif match := _PORT.match(line):
            if len(device.ports) < MAX_PORTS:
                device.ports.append((int(match[1]), {}))
        elif match := _PAIR.match(line):
            into = device.ports[-1][1] if device.ports else device.own
            into.setdefault(match[1], (match[2] or "").strip())
    if device is not None:
        yield device


def _word(found: dict[str, str], name: str) -> str:
    match = _WORD.fullmatch(found.get(name, ""))
    return match[1] if match else ""


def _number(found: dict[str, str], name: str) -> int:
    match = _NUMBER.fullmatch(found.get(name, ""))
    return int(match[1], 0 if match[1].startswith("0x") else 10) if match else 0


def _lanes(found: dict[str, str]) -> int:
    match = _WIDTH.match(found.get("active_width", ""))
    return int(match[1]) if match else 0


def _lane(found: dict[str, str], layer: str) -> float:
    match = _SPEED.match(found.get("active_speed", ""))
    if not match:
        return 0
    named = float(match[1])
    known = _GENERATIONS.get(int(match[2])) if layer == "InfiniBand" else None
    return named if known is None else LANES[known]


def _interfaces(text: str) -> dict[str, Interface]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return {i.name: i for i in map(_interface, found if isinstance(found, list) else []) if i}


def _interface(item: Any) -> Interface | None:
    if not isinstance(item, dict) or not re.fullmatch(_NAME, str(item.get("ifname"))):
        return None
    mtu, flags, listed = item.get("mtu"), item.get("flags"), item.get("addr_info")
    addresses = [
        str(entry["local"])[:64]
        for entry in (listed if isinstance(listed, list) else [])[:64]
        if isinstance(entry, dict) and entry.get("scope") == "global" and "local" in entry
    ]
    return Interface(
        str(item["ifname"]),
        mtu if isinstance(mtu, int) else 0,
        isinstance(flags, list) and "LOWER_UP" in flags,
        tuple(addresses),
    )


def _locked(text: str) -> float | None:
    word = text.strip()
    if word == "unlimited":
        return float("inf")
    return int(word) << 10 if re.fullmatch(r"[0-9]{1,15}", word) else None


class _Sysfs:
    """The section of sysfs, with the interfaces of `ip`."""

    def __init__(self, text: str, interfaces: dict[str, Interface]) -> None:
        self.kinds = set(_KIND.findall(text))
        self.netdevs = [
            (d, int(p), interfaces.get(n, Interface(n))) for d, p, n in _NETDEV.findall(text)
        ]
        self.pkeys = [(d, int(p), int(key, 16)) for d, p, key in _PKEY.findall(text)]
        self.gids = [(d, int(p), int(index), gid) for d, p, index, gid in _GID.findall(text)]

    def names(self) -> list[str]:
        return sorted(name for name, kind in self.kinds if kind == "device")[:MAX_DEVICES]

    def port(self, device: str, number: int, found: dict[str, str]) -> RdmaPort:
        layer, place = found.get("link_layer", ""), (device, number)
        layer = layer if layer in {"InfiniBand", "Ethernet"} else ""
        lanes = _lanes(found)
        return RdmaPort(
            number,
            _word(found, "state"),
            _word(found, "phys_state"),
            layer,
            _number(found, "max_mtu"),
            _number(found, "active_mtu"),
            _number(found, "port_lid"),
            _number(found, "sm_lid"),
            lanes,
            lanes * _lane(found, layer),
            tuple(dict.fromkeys(i for d, p, i in self.netdevs if (d, p) == place)),
            tuple(key for d, p, key in self.pkeys if (d, p) == place),
            tuple((index, gid) for d, p, index, gid in self.gids if (d, p) == place),
        )


def _device(found: _Open, sysfs: _Sysfs) -> RdmaDevice:
    guid = found.own.get("node_guid", "")
    return RdmaDevice(
        found.name,
        guid if _GUID.fullmatch(guid) else "",
        found.own.get("fw_ver", "")[:64],
        found.own.get("board_id", "")[:64],
        (found.name, "software") in sysfs.kinds,
        _number(found.own, "vendor_part_id") in _VIRTUAL,
        tuple(sysfs.port(found.name, number, values) for number, values in found.ports),
    )


def _release(text: str) -> str:
    match = _OFED.search(text)
    return match[1] if match else ""


def parse_node(text: str) -> RdmaNode:
    """Return what the output of SCRIPT says. Whatever has another form counts as absent."""
    sections = _sections(text)
    shown = sections.get("ibv_devinfo", "")
    sysfs = _Sysfs(sections.get("sysfs", ""), _interfaces(sections.get("ip", "")))
    devices = [_device(found, sysfs) for found in list(_opened(shown))[:MAX_DEVICES]]
    names = {device.name for device in devices}
    lines = shown.strip().splitlines()
    failed = sections.get("code", "").strip() != "0"
    return RdmaNode(
        tuple(devices),
        tuple(name for name in sysfs.names() if name not in names),
        frozenset(re.findall(r"^[a-z_]{1,32}$", sections.get("tools", ""), re.MULTILINE)),
        _locked(sections.get("limits", "")),
        lines[-1][:200] if lines and failed else "",
        _release(sections.get("driver", "")),
    )
