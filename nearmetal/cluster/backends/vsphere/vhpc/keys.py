# SPDX-License-Identifier: Apache-2.0
"""The keys of machines and switches, and how their values are read. Nothing is evaluated."""

from __future__ import annotations

import math
import re

TEXT = frozenset(
    {
        "template",
        "datacenter",
        "datastore",
        "cluster",
        "host",
        "vm_folder",
        "resource_pool",
        "latency",
        "guest_username",
        "guest_password",
        "port_group",
        "ip",
        "adapter_number",
        "netmask",
        "gateway",
        "domain",
        "guest_hostname",
        "vgpu",
        "sriov_port_group",
        "pvrdma_port_group",
        "pf",
        "power",
        "dvs_name",
        "script",
    }
)
WHOLE = frozenset({"cpu", "cpu_shares", "memory_shares", "mmio_size", "barrier"})
NUMBERS = frozenset({"memory"})
SWITCHES = frozenset({"cpu_reservation", "memory_reservation", "is_dhcp", "linked", "instant"})
LISTS = frozenset({"device", "dns", "pnic"})

MACHINE_KEYS = (TEXT | WHOLE | NUMBERS | SWITCHES | LISTS) - {"pnic"}
SWITCH_KEYS = frozenset({"port_group", "host", "pnic", "datacenter"})
RANGE_KEYS = ("host", "datastore", "ip", "guest_hostname")
SECRET_KEYS = ("guest_password",)
"""Keys whose values are neither shown nor kept."""

Value = str | int | float | bool | list[str]

_YES = ("yes", "y", "true", "t", "on", "1")
_NO = ("no", "n", "false", "f", "off", "0")
_ITEM = re.compile(r"\s*(?:'([^'\"\[\]]*)'|\"([^'\"\[\]]*)\"|([^'\",\[\]\s]+))\s*")


def read_value(key: str, text: str) -> Value:
    """Return what a value means; raises ValueError "why|hint"."""
    if key in WHOLE:
        return _whole(text)
    if key in NUMBERS:
        return _number(text)
    if key in SWITCHES:
        return _switch(text)
    if key in LISTS:
        return _list(text)
    return text


def _whole(text: str) -> int:
    if not re.fullmatch(r"\d{1,9}", text):
        msg = "is no whole number|write for example 4"
        raise ValueError(msg)
    return int(text)


def _number(text: str) -> float:
    if not re.fullmatch(r"\d{1,9}(\.\d{1,6})?", text) or not math.isfinite(float(text)):
        msg = "is no number|write gigabytes, for example 16"
        raise ValueError(msg)
    return float(text)


def _switch(text: str) -> bool:
    if text.lower() not in _YES + _NO:
        msg = "is neither yes nor no|write true or false"
        raise ValueError(msg)
    return text.lower() in _YES


def _list(text: str) -> list[str]:
    """Return the items of `['a', 'b']`, or the one item of `a`."""
    if not text.startswith("["):
        if any(c in text for c in "[]'\","):
            msg = "is no list|write ['a', 'b']"
            raise ValueError(msg)
        return [text]
    if not text.endswith("]"):
        msg = "is a list without an end|write ['a', 'b']"
        raise ValueError(msg)
    items: list[str] = []
    for part in text[1:-1].split(",") if text[1:-1].strip() else []:
        match = _ITEM.fullmatch(part)
        item = next((g for g in match.groups() if g is not None), "") if match else ""
        if not item:
            msg = "is no list of quoted words|write ['a', 'b']"
            raise ValueError(msg)
        items.append(item)
    return items
