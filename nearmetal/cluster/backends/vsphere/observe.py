# SPDX-License-Identifier: Apache-2.0
"""What a machine is, in the attributes of a plan. What the plan leaves open is left open here."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from nearmetal.cluster.backends.vsphere.devices import describe, is_adapter, matched
from nearmetal.config.size import format_size, parse_size

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nearmetal.cluster.backends.vsphere.spec import VmAdapter
    from nearmetal.host.vcenter.session import Properties

MARK = "nearmetal.mark"
"""Key of a machine's extra configuration: whose it is, and what it was made from."""

MARKED = ("host", "slots", "template", "clone", "guest")
"""Attributes that vCenter does not tell; they stand in the mark."""

MARKS = ("name", "config.extraConfig")
"""Properties that say whose a machine is."""

STATE = (*MARKS, "runtime.powerState", "guest.ipAddress")

DEVICES = "config.hardware.device"
"""By far the largest property: asked for where adapters are compared."""

PROPERTIES = (
    *STATE,
    "config.version",
    "config.hardware.numCPU",
    "config.hardware.numCoresPerSocket",
    "config.hardware.memoryMB",
    "config.cpuAllocation",
    "config.memoryAllocation",
    "config.memoryReservationLockedToMax",
    "config.latencySensitivity",
    "config.cpuAffinity",
    "config.files.vmPathName",
    "runtime.host",
    "resourcePool",
)

MMIO_ON, MMIO_SIZE = "pciPassthru.use64bitMMIO", "pciPassthru.64bitMMIOSizeGB"
P2P, NUMA = "pciPassthru.allowP2P", "numa.nodeAffinity"


def extra(found: Properties) -> dict[str, str]:
    """Return the extra configuration of a machine."""
    return {option.key: str(option.value) for option in found.get("config.extraConfig") or []}


def mark_of(found: Properties) -> dict[str, str]:
    """Return a machine's mark; {} where there is none, or none that can be read."""
    options = found.get("config.extraConfig") or []
    text = next((str(option.value) for option in options if option.key == MARK), "{}")
    try:
        mark = json.loads(text)
    except ValueError:
        return {}
    if not isinstance(mark, dict):
        return {}
    return {str(key): str(value) for key, value in mark.items()}


def _shares(allocation: Any) -> str:
    shares = allocation.shares
    return str(shares.shares) if shares.level == "custom" else str(shares.level)


def _reservation(allocation: Any, full: int) -> str:
    reserved = allocation.reservation or 0
    if reserved == 0:
        return "none"
    return "full" if reserved >= full else str(reserved)


def _memory_reservation(found: Properties) -> str:
    if found.get("config.memoryReservationLockedToMax"):
        return "full"
    reserved = found["config.memoryAllocation"].reservation or 0
    return "none" if reserved == 0 else f"{reserved} MiB"


def _mmio(options: Mapping[str, str]) -> str:
    if options.get(MMIO_ON, "").upper() != "TRUE" or MMIO_SIZE not in options:
        return ""
    return format_size(parse_size(f"{options[MMIO_SIZE]} GiB"))


def _adapters(
    devices: list[Any], wanted: tuple[str, list[VmAdapter]], groups: Mapping[str, str]
) -> str:
    """Return the plan's own text where the devices are as it says; else what there is."""
    text, adapters = wanted
    surplus, missing = matched(devices, adapters, groups)
    if not surplus and not missing:
        return text
    return "; ".join(describe(d, groups) for d in devices if is_adapter(d))


def attributes(
    found: Properties,
    wanted: Mapping[str, str],
    adapters: list[VmAdapter],
    *,
    mhz: int,
    esxi: str,
    pool: str,
    rules: str,
    groups: Mapping[str, str],
) -> dict[str, str]:
    """Return a machine's attributes, those that `wanted` leaves empty empty."""
    options, mark = extra(found), mark_of(found)
    vcpus = found["config.hardware.numCPU"]
    affinity, sensitivity = found.get("config.cpuAffinity"), found.get("config.latencySensitivity")
    now = {name: mark.get(name, "") for name in MARKED}
    now |= {
        "esxi": esxi,
        "vm": found["name"],
        "vcpus": str(vcpus),
        "cores_per_socket": str(found.get("config.hardware.numCoresPerSocket")),
        "memory": format_size(found["config.hardware.memoryMB"] << 20),
        "cpu_reservation": _reservation(found["config.cpuAllocation"], vcpus * mhz),
        "memory_reservation": _memory_reservation(found),
        "cpu_shares": _shares(found["config.cpuAllocation"]),
        "memory_shares": _shares(found["config.memoryAllocation"]),
        "latency": sensitivity.level if sensitivity else "normal",
        "affinity": ",".join(map(str, sorted(affinity.affinitySet))) if affinity else "",
        "numa": options.get(NUMA, ""),
        "hardware": str(found["config.version"]).removeprefix("vmx-").lstrip("0"),
        "mmio": _mmio(options),
        "p2p": "yes" if options.get(P2P, "").upper() == "TRUE" else "no",
        "datastore": str(found["config.files.vmPathName"]).partition("]")[0].lstrip("["),
        "resource_pool": pool,
        "adapters": _adapters(found[DEVICES], (wanted["adapters"], adapters), groups)
        if wanted.get("adapters")
        else "",
        "power": "on" if found["runtime.powerState"] == "poweredOn" else "off",
        "rules": rules,
    }
    open_to_choice = {
        "esxi",
        "vcpus",
        "cores_per_socket",
        "memory",
        "hardware",
        "datastore",
        "resource_pool",
        "adapters",
    }
    return {
        name: "" if name in open_to_choice and not wanted.get(name) else value
        for name, value in now.items()
    }
