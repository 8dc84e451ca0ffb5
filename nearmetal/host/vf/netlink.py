# SPDX-License-Identifier: Apache-2.0
"""Links and the settings of VFs, by netlink: the only module that uses pyroute2.

`link_of` turns one answer of the kernel, as pyroute2 decodes it, into a `Link`; it is a function
of its own so that tests feed it recorded answers.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from nearmetal.core.errors import HostError
from nearmetal.host.vf.model import ETHERNET, GUID, INFINIBAND, MAC, Link, VfSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_IFF_UP = 1
_IFF_LOWER_UP = 1 << 16
_EXT_VF = 1
_TYPES = {1: ETHERNET, 32: INFINIBAND}
_MAX_VFS = 65536

_SIMPLE = {
    "IFLA_VF_VLAN": (("vlan", "vlan", 4095), ("qos", "qos", 7)),
    "IFLA_VF_RATE": (("max_tx_rate", "rate", 1 << 31), ("min_tx_rate", "min_rate", 1 << 31)),
    "IFLA_VF_LINK_STATE": (("link_state", "link_state", 2),),
}
_FLAGS = {
    "IFLA_VF_SPOOFCHK": ("spoofchk", "spoof_check"),
    "IFLA_VF_TRUST": ("trust", "trust"),
}
_GUIDS = {
    "IFLA_VF_IB_NODE_GUID": ("ib_node_guid", "node_guid"),
    "IFLA_VF_IB_PORT_GUID": ("ib_port_guid", "port_guid"),
}


def _attributes(message: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [(entry[0], entry[1]) for entry in message.get("attrs", [])]


def _vf_of(info: Mapping[str, Any]) -> tuple[int, VfSettings]:
    """Return the number and the settings of one VF; unknown or senseless values stay None."""
    number, found = -1, VfSettings()
    for name, value in _attributes(info):
        if not isinstance(value, dict):
            continue
        if name == "IFLA_VF_MAC":
            number = int(value["vf"])
            mac = str(value.get("mac"))
            found = replace(found, mac=mac if re.fullmatch(MAC, mac) else None)
        for key, ours, limit in _SIMPLE.get(name, ()):
            got = value.get(key)
            if isinstance(got, int) and 0 <= got <= limit:
                found = replace(found, **{ours: got})  # type: ignore[arg-type]
        if name in _FLAGS:
            key, ours = _FLAGS[name]
            # The kernel says -1 where the driver has no such thing.
            if value.get(key) in (0, 1):
                found = replace(found, **{ours: bool(value[key])})  # type: ignore[arg-type]
        if name in _GUIDS:
            key, ours = _GUIDS[name]
            if re.fullmatch(GUID, str(value.get(key))):
                found = replace(found, **{ours: str(value[key])})  # type: ignore[arg-type]
    return number, found


def link_of(message: Mapping[str, Any]) -> Link:
    """Turn one RTM_NEWLINK, as pyroute2 decodes it, into a Link."""
    attributes = dict(_attributes(message))
    flags = int(message["flags"])
    listed = attributes.get("IFLA_VFINFO_LIST")
    infos = _attributes(listed) if isinstance(listed, dict) else []
    vfs = [_vf_of(info) for _, info in infos if isinstance(info, dict)]
    return Link(
        index=int(message["index"]),
        name=str(attributes.get("IFLA_IFNAME", "")),
        type=_TYPES.get(int(message["ifi_type"]), ""),
        up=bool(flags & _IFF_UP),
        carrier=bool(flags & _IFF_LOWER_UP),
        enslaved="IFLA_MASTER" in attributes,
        vfs=tuple((number, vf) for number, vf in vfs if 0 <= number < _MAX_VFS),
    )


_REQUESTS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "mac": lambda value: {"mac": value},
    "vlan": lambda value: {"vlan": {"vlan": value[0], "qos": value[1]}},
    "trust": lambda value: {"trust": int(value)},
    "spoof_check": lambda value: {"spoofchk": int(value)},
    "rate": lambda value: {"rate": {"min_tx_rate": value[0], "max_tx_rate": value[1]}},
    "link_state": lambda value: {"link_state": value},
    "node_guid": lambda value: {"ib_node_guid": value},
    "port_guid": lambda value: {"ib_port_guid": value},
}


def request_of(number: int, setting: str, value: Any) -> dict[str, Any]:
    """Return what pyroute2's `link("set", vf=...)` takes for one setting of one VF."""
    return {"vf": number, **_REQUESTS[setting](value)}


class Netlink:
    """The kernel's own answers. Each call opens and closes a socket."""

    def links(self) -> list[Link]:
        """Return all network devices of this network namespace."""
        from pyroute2 import IPRoute  # noqa: PLC0415 - takes long to load
        from pyroute2.netlink.exceptions import NetlinkError  # noqa: PLC0415

        found = []
        with IPRoute() as route:
            # One by one: a dump's ext_mask is a filter to pyroute2 before 0.9.
            for index in [message["index"] for message in route.get_links()]:
                with contextlib.suppress(NetlinkError):  # it may have gone since
                    found += [link_of(m) for m in route.link("get", index=index, ext_mask=_EXT_VF)]
        return found

    def set_up(self, index: int, *, up: bool) -> None:
        """Set a device up or down; raises HostError with the kernel's reason."""
        self._set(f"device {index}", index=index, state="up" if up else "down")

    def set_vf(self, index: int, number: int, setting: str, value: Any) -> None:
        """Set one setting of one VF of a device; raises HostError with the kernel's reason."""
        what = f"VF {number}: {setting}"
        self._set(what, index=index, vf=request_of(number, setting, value))

    def _set(self, what: str, **request: Any) -> None:
        from pyroute2 import IPRoute  # noqa: PLC0415 - takes long to load
        from pyroute2.netlink.exceptions import NetlinkError  # noqa: PLC0415

        try:
            with IPRoute() as route:
                route.link("set", **request)
        except NetlinkError as error:
            msg = f"{what}: the kernel refuses: {error.args[-1]}"
            raise HostError(msg, "the adapter's driver may not know this setting") from error
