# SPDX-License-Identifier: Apache-2.0
"""What a node shows of its RDMA devices: `ibv_devinfo -v`, sysfs and `ip -j addr`. Pure.

The text comes from a node and is hostile: lengths and forms are checked. Source of the grammar:
libibverbs/examples/devinfo.c of rdma-core, and the listing in Figure 20 of VMW-IB.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

MAX_TEXT = 1 << 20
MAX_DEVICES = 64
MAX_PORTS = 8
UNLIMITED = "unlimited"

SCRIPT = r"""
PATH=/usr/sbin:/sbin:/usr/bin:/bin:$PATH
echo '== limits'; ulimit -l
echo '== tools'; for t in ibv_devinfo ib_send_bw ib_send_lat; do command -v $t >/dev/null && echo $t; done
echo '== sysfs'
for d in /sys/class/infiniband/*; do
  [ -e "$d" ] || continue
  n=${d##*/}
  case $(readlink -f "$d") in */devices/virtual/*) echo "$n software";; esac
  [ ! -e "$d/device/physfn" ] || echo "$n virtual"
  for i in "$d"/ports/*/gid_attrs/types/*; do
    { read -r t <"$i"; } 2>/dev/null || continue
    k=${i##*/} p=${i#"$d"/ports/}; p=${p%%/*}
    { read -r g <"$d/ports/$p/gids/$k"; } 2>/dev/null && echo "$n gid $p $k $g $t"
    { read -r e <"$d/ports/$p/gid_attrs/ndevs/$k"; } 2>/dev/null && echo "$n netdev $p $e"
  done
  for i in "$d"/device/net/*; do [ ! -e "$i" ] || echo "$n netdev 0 ${i##*/}"; done
done
echo '== ip'; ip -j addr
echo '== ibv_devinfo'; ibv_devinfo -v
"""
"""Shell script whose output `parse_node` reads. It changes nothing."""

_SECTION = re.compile(r"^== ([a-z_]{1,16})$", re.MULTILINE)
_PAIR = re.compile(r"^\s*([A-Za-z][A-Za-z0-9_ ]{0,31}):\s*(\S.{0,255})?$")
_NAME = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}"
_DEVICE = re.compile(rf"^hca_id:\s+({_NAME})\s*$")
_PORT = re.compile(r"^\s+port:\s+([0-9]{1,3})\s*$")
_WORD = re.compile(r"([A-Za-z_]{1,32}) \([0-9]{1,3}\)")
_NUMBER = re.compile(r"([0-9]{1,6})(?: \([0-9]{1,3}\))?")
_WIDTH = re.compile(r"([0-9]{1,2})X\b")
_SPEED = re.compile(r"([0-9]{1,4}(?:\.[0-9]{1,3})?) Gbps\b")
_GUID = re.compile(r"[0-9a-f]{4}(:[0-9a-f]{4}){3}")
_NETDEV = re.compile(rf"^({_NAME}) netdev ([0-9]{{1,3}}) ({_NAME})$", re.MULTILINE)
_GID = re.compile(
    rf"^({_NAME}) gid ([0-9]{{1,3}}) ([0-9]{{1,4}}) ([0-9a-f]{{4}}(?::[0-9a-f]{{4}}){{7}}) RoCE v2$",
    re.MULTILINE,
)
_KIND = re.compile(rf"^({_NAME}) (software|virtual)$", re.MULTILINE)

_ENCODED = {2.5: 2.0, 5.0: 4.0, 10.0: 8.0, 14.0: 13.64}
"""Gbit/s of data in a lane of SDR, DDR, QDR (8b/10b) and FDR (64b/66b); later names are data rates."""


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
    gbit: float = 0
    """Data rate in Gbit/s."""
    interfaces: tuple[Interface, ...] = ()
    roce_gid: int | None = None
    """Index of the GID to use for RoCE v2, that of an IPv4 address if there is one."""


@dataclass(frozen=True)
class RdmaDevice:
    """One RDMA device of a node."""

    name: str
    guid: str = ""
    firmware: str = ""
    is_software: bool = False
    is_virtual: bool = False
    ports: tuple[RdmaPort, ...] = ()


@dataclass(frozen=True)
class RdmaNode:
    """What a node has for verbs. `locked`: bytes that a process may lock; None: no limit."""

    devices: tuple[RdmaDevice, ...] = ()
    tools: frozenset[str] = frozenset()
    locked: int | None = None


@dataclass
class _Open:
    """The device that is being read."""

    name: str
    own: dict[str, str] = field(default_factory=dict)
    ports: list[tuple[int, dict[str, str]]] = field(default_factory=list)


def _sections(text: str) -> dict[str, str]:
    parts = _SECTION.split(text[:MAX_TEXT])
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def _devices(text: str) -> Iterator[_Open]:
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
    return int(match[1]) if match else 0


def _rate(found: dict[str, str]) -> float:
    width = _WIDTH.match(found.get("active_width", ""))
    speed = _SPEED.match(found.get("active_speed", ""))
    if not width or not speed:
        return 0
    lane = float(speed[1])
    return int(width[1]) * _ENCODED.get(lane, lane)


def _best_gid(gids: Sequence[tuple[int, str]]) -> int | None:
    """Return the index of a GID of IPv4, else of a routed address, else any."""
    for prefix in ("0000:0000:0000:0000:0000:ffff:", "(?!fe80:)", ""):
        for index, gid in gids:
            if re.match(prefix, gid):
                return index
    return None


def _port(
    number: int,
    found: dict[str, str],
    interfaces: Sequence[Interface],
    gids: Sequence[tuple[int, str]],
) -> RdmaPort:
    layer = found.get("link_layer", "")
    return RdmaPort(
        number,
        _word(found, "state"),
        _word(found, "phys_state"),
        layer if layer in {"InfiniBand", "Ethernet"} else "",
        _number(found, "max_mtu"),
        _number(found, "active_mtu"),
        _number(found, "port_lid"),
        _number(found, "sm_lid"),
        _rate(found),
        tuple(interfaces),
        _best_gid(gids) if layer == "Ethernet" else None,
    )


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
        item["ifname"],
        mtu if isinstance(mtu, int) else 0,
        isinstance(flags, list) and "LOWER_UP" in flags,
        tuple(addresses),
    )


def _locked(text: str) -> int | None:
    word = text.strip()
    return int(word) << 10 if re.fullmatch(r"[0-9]{1,15}", word) else None


def parse_node(text: str) -> RdmaNode:
    """Return what the output of SCRIPT says. Whatever has another form counts as absent."""
    sections = _sections(text)
    interfaces = _interfaces(sections.get("ip", ""))
    sysfs = sections.get("sysfs", "")
    kinds = set(_KIND.findall(sysfs))
    named = [(d, int(p), interfaces.get(n, Interface(n))) for d, p, n in _NETDEV.findall(sysfs)]
    gids = [(d, int(p), int(index), gid) for d, p, index, gid in _GID.findall(sysfs)]
    devices = []
    for found in list(_devices(sections.get("ibv_devinfo", "")))[:MAX_DEVICES]:
        guid = found.own.get("node_guid", "")
        mine = [(port, i) for device, port, i in named if device == found.name]
        device = RdmaDevice(
            found.name,
            guid if _GUID.fullmatch(guid) else "",
            found.own.get("fw_ver", "")[:64],
            (found.name, "software") in kinds,
            (found.name, "virtual") in kinds,
        )
        ports = [
            _port(
                n,
                values,
                tuple(dict.fromkeys(i for port, i in mine if port in {0, n})),
                [(index, gid) for d, p, index, gid in gids if (d, p) == (found.name, n)],
            )
            for n, values in found.ports
        ]
        devices.append(replace(device, ports=tuple(ports)))
    tools = frozenset(re.findall(r"^[a-z_]{1,32}$", sections.get("tools", ""), re.MULTILINE))
    return RdmaNode(tuple(devices), tools, _locked(sections.get("limits", "")))
