# SPDX-License-Identifier: Apache-2.0
"""Execution of steps by the kernel: its files, netlink, modprobe. Only this module uses pyroute2.

Tests put a small model of a kernel in the place of `Kernel`. `link_of` and `request_of` translate
between pyroute2's form and ours.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from nearmetal.core.errors import HostError
from nearmetal.core.journal import Event, Journal
from nearmetal.core.process import Command, LocalRunner
from nearmetal.host.vf.facts import Sysfs
from nearmetal.host.vf.model import ETHERNET, GUID, INFINIBAND, MAC, Link, VfSettings
from nearmetal.host.vf.steps import KernelStep

CARRIER_S = 30.0
"""Limit for a link to come up: switches with a spanning tree protocol take up to 30 s."""

_MODPROBE_S = 60.0
_IFF_UP = 1
_IFF_LOWER_UP = 1 << 16
_EXT_VF = 1
_TYPES = {1: ETHERNET, 32: INFINIBAND}
_MAX_VFS = 65536


def _up_to(limit: int) -> Callable[[Any], int | None]:
    return lambda value: value if isinstance(value, int) and 0 <= value <= limit else None


def _matching(pattern: str) -> Callable[[Any], str | None]:
    return lambda value: str(value) if re.fullmatch(pattern, str(value)) else None


def _flag(value: Any) -> bool | None:
    """Return a switch; the kernel reports -1 if the driver does not have it."""
    return bool(value) if value in (0, 1) else None


_ANSWERS: dict[str, tuple[tuple[str, str, Callable[[Any], Any]], ...]] = {
    "IFLA_VF_MAC": (("mac", "mac", _matching(MAC)),),
    "IFLA_VF_VLAN": (("vlan", "vlan", _up_to(4095)), ("qos", "qos", _up_to(7))),
    "IFLA_VF_RATE": (
        ("max_tx_rate", "rate", _up_to(1 << 31)),
        ("min_tx_rate", "min_rate", _up_to(1 << 31)),
    ),
    "IFLA_VF_LINK_STATE": (("link_state", "link_state", _up_to(2)),),
    "IFLA_VF_SPOOFCHK": (("spoofchk", "spoof_check", _flag),),
    "IFLA_VF_TRUST": (("trust", "trust", _flag),),
    "IFLA_VF_IB_NODE_GUID": (("ib_node_guid", "node_guid", _matching(GUID)),),
    "IFLA_VF_IB_PORT_GUID": (("ib_port_guid", "port_guid", _matching(GUID)),),
}
"""By attribute of a VF: the kernel's key, our setting, and its value or None if it makes no sense."""

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
    """Return the argument of pyroute2's `link("set", vf=...)` for one setting of one VF."""
    return {"vf": number, **_REQUESTS[setting](value)}


def _attributes(message: Any) -> list[tuple[str, Any]]:
    return [(e[0], e[1]) for e in message.get("attrs", [])] if isinstance(message, dict) else []


def _vf_of(info: Mapping[str, Any]) -> tuple[int, VfSettings]:
    """Return the number and the settings of one VF."""
    number = -1
    found: dict[str, Any] = {}
    for name, value in _attributes(info):
        if not isinstance(value, dict):
            continue
        if name == "IFLA_VF_MAC":
            number = int(value["vf"])
        found |= {ours: take(value.get(key)) for key, ours, take in _ANSWERS.get(name, ())}
    return number, VfSettings(**found)


def link_of(message: Mapping[str, Any]) -> Link:
    """Turn one RTM_NEWLINK, as pyroute2 decodes it, into a Link."""
    attributes = dict(_attributes(message))
    flags = int(message["flags"])
    infos = _attributes(attributes.get("IFLA_VFINFO_LIST"))
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


class Kernel:
    """This machine's kernel. All changes raise HostError with the kernel's reason.

    `carrier_s`: limit for a link to come up.
    """

    def __init__(self, sysfs: Sysfs, carrier_s: float = CARRIER_S) -> None:
        self.sysfs = sysfs
        self.carrier_s = carrier_s

    def links(self) -> list[Link]:
        """Return all network devices of this network namespace."""
        from pyroute2 import IPRoute  # noqa: PLC0415 - takes long to load
        from pyroute2.netlink.exceptions import NetlinkError  # noqa: PLC0415

        found = []
        with IPRoute() as route:
            # One by one: a dump's ext_mask is a filter to pyroute2 before 0.9.
            for index in [message["index"] for message in route.get_links()]:
                with contextlib.suppress(NetlinkError):  # the device may have disappeared
                    found += [link_of(m) for m in route.link("get", index=index, ext_mask=_EXT_VF)]
        return found

    def write(self, path: str, value: str) -> None:
        """Write a file below the root in one call, as the kernel's files require."""
        try:
            descriptor = os.open(self.sysfs.path(path), os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.write(descriptor, value.encode())
            finally:
                os.close(descriptor)
        except OSError as error:
            denied = isinstance(error, PermissionError)
            raise HostError(
                f"cannot write {value.strip()!r} to /{path}: {error.strerror}",
                "run as root, outside of containers with a read-only /sys"
                if denied
                else "see the kernel's log (dmesg)",
            ) from error

    def set_up(self, index: int, *, up: bool) -> None:
        """Set a network device up or down."""
        self._set(f"device {index}", index=index, state="up" if up else "down")

    def set_vf(self, index: int, number: int, setting: str, value: Any) -> None:
        """Set one setting of one VF of a device."""
        what = f"VF {number}: {setting}"
        self._set(what, index=index, vf=request_of(number, setting, value))

    def load(self, module: str) -> None:
        """Load a module with modprobe."""
        LocalRunner().check(Command(("modprobe", "--", module)), timeout_s=_MODPROBE_S)

    def await_carrier(self, name: str) -> None:
        """Wait until the link of a network device is up."""
        deadline = time.monotonic() + self.carrier_s
        while not any(link.name == name and link.carrier for link in self.links()):
            if time.monotonic() > deadline:
                raise HostError(
                    f"no link after {self.carrier_s:g} s",
                    f"check the cable and the switch's port of {name}, or the subnet manager",
                )
            self.pause()

    def pause(self) -> None:
        """Wait for a tenth of a second."""
        time.sleep(0.1)

    def _set(self, what: str, **request: Any) -> None:
        from pyroute2 import IPRoute  # noqa: PLC0415 - takes long to load
        from pyroute2.netlink.exceptions import NetlinkError  # noqa: PLC0415

        try:
            with IPRoute() as route:
                route.link("set", **request)
        except NetlinkError as error:
            raise HostError(
                f"{what}: the kernel refuses: {error.args[-1]}",
                "the adapter's driver may not know this setting",
            ) from error


def execute(steps: Iterable[KernelStep], kernel: Kernel, journal: Journal, verb: str) -> None:
    """Execute steps in order, each journalled before and after; stops at the first failure."""
    for step in steps:
        journal.write(verb, step.text, Event.BEGIN)
        try:
            getattr(kernel, step.change)(**step.arguments)
        except HostError as error:
            journal.write(verb, step.text, Event.FAILED, error.message)
            raise HostError(f"{step.text}: {error.message}", error.hint) from error
        journal.write(verb, step.text, Event.DONE)
