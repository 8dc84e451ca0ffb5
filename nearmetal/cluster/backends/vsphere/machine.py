# SPDX-License-Identifier: Apache-2.0
"""A machine in vCenter: its values as read, and the requests that make it as wanted."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import ValidationError
from pyVmomi import vim

from nearmetal.cluster.backends.vsphere.devices import changes, describe, is_adapter, matched
from nearmetal.cluster.backends.vsphere.inventory import VsphereInventory
from nearmetal.cluster.backends.vsphere.marks import MARKS, mark_of
from nearmetal.cluster.backends.vsphere.plan import CLOUD_INIT, VsphereMachine
from nearmetal.cluster.backends.vsphere.settings import (
    DHCP,
    NETWORK_KINDS,
    GuestSettings,
    VmAdapter,
)
from nearmetal.core.errors import BackendError
from nearmetal.host.vcenter.session import Properties

MIB, GIB = 1 << 20, 1 << 30

STATE = (*MARKS, "runtime.powerState", "guest.ipAddress")

DEVICES = "config.hardware.device"
"""By far the largest property: read only to compare adapters."""

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
    "config.bootOptions",
    "config.files.vmPathName",
    "runtime.host",
    "resourcePool",
)

OPEN = (
    *("esxi", "vcpus", "cores_per_socket", "memory", "hardware", "datastore", "resource_pool"),
    *("secure_boot", "adapters", "access"),
)
"""Values that are compared only where the spec has them."""

BEFORE = (
    "config.version",
    "config.hardware.numCPU",
    "config.hardware.memoryMB",
    "config.cpuAffinity",
    "config.tools.pendingCustomization",
    "runtime.host",
    DEVICES,
)
"""Properties of a machine that its configuration needs. Its whole `config` takes twice as long."""

MMIO_ON, MMIO_SIZE = "pciPassthru.use64bitMMIO", "pciPassthru.64bitMMIOSizeGB"
USER_DATA = "guestinfo.userdata"
"""Key of the settings that cloud-init takes at the first boot."""

P2P = ("pciPassthru.allowP2P", "pciPassthru.RelaxACSforP2P")
"""Devices may reach each other, also where ACS stands in the way: NVIDIA asks for both."""

NUMA = "numa.nodeAffinity"

PENDING = "tools.deployPkg.fileName"
"""Key of guest settings that wait for the next start. vCenter takes no others before it is cleared."""


# As read


def _options(found: Properties) -> dict[str, str]:
    """Return the extra configuration of a machine."""
    return {option.key: str(option.value) for option in found.get("config.extraConfig") or []}


def _guest_of(mark: Mapping[str, str]) -> GuestSettings | None:
    try:
        return GuestSettings.model_validate_json(mark.get("guest") or "null")
    except ValidationError:
        return None


def _shares_of(allocation: Any) -> int | str:
    shares = allocation.shares
    return int(shares.shares) if shares.level == "custom" else str(shares.level)


def _reserved(nr_units: int, *, full: bool, unit: str = "") -> str:
    if full:
        return "full"
    return f"{nr_units}{unit}" if nr_units else "none"


def _p2p_of(options: Mapping[str, str], *, wanted: bool) -> bool:
    """Return whether devices may reach each other; half of the settings is not what is wanted."""
    on = [options.get(name, "").upper() == "TRUE" for name in P2P]
    return all(on) if wanted else any(on)


def _mmio_of(options: Mapping[str, str]) -> int | None:
    size = options.get(MMIO_SIZE, "")
    on = options.get(MMIO_ON, "").upper() == "TRUE" and re.fullmatch("[0-9]{1,6}", size)
    return int(size) * GIB if on else None


def _numa_of(text: str) -> tuple[int, ...] | str:
    if not re.fullmatch("([0-9]{1,4}(,[0-9]{1,4})*)?", text):
        return text
    return tuple(int(word) for word in text.split(",") if word)


def hardware_of(version: str) -> int | None:
    """Return the number of a virtual hardware version."""
    number = re.search("[0-9]+$", str(version))
    return int(number[0]) if number else None


def values_of(
    found: Properties,
    wanted: VsphereMachine | None,
    *,
    mhz: int,
    esxi: str,
    pool: str,
    rules: tuple[str, ...],
    groups: Mapping[str, str],
    whole: bool = False,
) -> VsphereMachine:
    """Return a machine's values, and None for what its node in the spec leaves open.

    `esxi`, `mhz`: its host, and the speed of its processors. `pool`: name of its resource pool.
    `groups`: names of distributed port groups by their keys. `whole`: leave nothing out.
    """
    options, mark = _options(found), mark_of(found)
    vcpus, sensitivity = found["config.hardware.numCPU"], found.get("config.latencySensitivity")
    cpu, memory = found["config.cpuAllocation"], found["config.memoryAllocation"]
    affinity, slots = found.get("config.cpuAffinity"), mark.get("slots", "")
    nr_mhz = int(cpu.reservation or 0)
    locked = bool(found.get("config.memoryReservationLockedToMax"))
    now = VsphereMachine(
        host=mark.get("host", ""),
        esxi=esxi,
        vm=found["name"],
        slots=int(slots) if re.fullmatch("[0-9]{1,9}", slots) else None,
        template=mark.get("template", ""),
        clone=mark.get("clone", ""),
        vcpus=vcpus,
        cores_per_socket=found.get("config.hardware.numCoresPerSocket"),
        memory=found["config.hardware.memoryMB"] * MIB,
        cpu_reservation=_reserved(nr_mhz, full=nr_mhz >= vcpus * mhz > 0),
        memory_reservation=_reserved(int(memory.reservation or 0), full=locked, unit=" MiB"),
        cpu_shares=_shares_of(cpu),
        memory_shares=_shares_of(memory),
        latency=str(sensitivity.level) if sensitivity else "normal",
        affinity=tuple(sorted(affinity.affinitySet or ())) if affinity else (),
        numa=_numa_of(options.get(NUMA, "")),
        hardware=hardware_of(found["config.version"]),
        mmio=_mmio_of(options),
        secure_boot=bool(getattr(found.get("config.bootOptions"), "efiSecureBootEnabled", None)),
        p2p=_p2p_of(options, wanted=wanted is None or wanted.p2p),
        datastore=str(found["config.files.vmPathName"]).partition("]")[0].lstrip("["),
        resource_pool=pool,
        guest=_guest_of(mark),
        power="on" if found["runtime.powerState"] == "poweredOn" else "off",
        access=CLOUD_INIT if options.get(USER_DATA) else "none",
        rules=rules,
    )
    if whole:
        return now.model_copy(update={"adapters": _described(found[DEVICES], groups)})
    if wanted is None:
        return now.model_copy(update=dict.fromkeys(OPEN))
    update: dict[str, Any] = {n: None for n in OPEN if getattr(wanted, n) is None}
    if wanted.hardware and (now.hardware or 0) > wanted.hardware:
        update["hardware"] = wanted.hardware  # the spec names the least version
    if wanted.resource_pool and wanted.resource_pool.rpartition("/")[2] == pool:
        update["resource_pool"] = wanted.resource_pool
    update["adapters"] = wanted.adapters
    if wanted.adapters and any(matched(found[DEVICES], adapters_of(wanted), groups)):
        update["adapters"] = _described(found[DEVICES], groups)
    return now.model_copy(update=update)


def _described(devices: Iterable[Any], groups: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(describe(device, groups) for device in devices if is_adapter(device))


def adapters_of(machine: VsphereMachine) -> list[VmAdapter]:
    """Return the adapters of the spec."""
    return [adapter for adapter in machine.adapters or () if isinstance(adapter, VmAdapter)]


# Requests


def _shares(value: int | str) -> Any:
    if isinstance(value, int):
        return vim.SharesInfo(level="custom", shares=value)
    return vim.SharesInfo(level=value, shares=0)


def shares_spec(wanted: VsphereMachine) -> Any:
    """Return a request for the shares alone, which a running machine takes."""
    return vim.vm.ConfigSpec(
        cpuAllocation=vim.ResourceAllocationInfo(shares=_shares(wanted.cpu_shares)),
        memoryAllocation=vim.ResourceAllocationInfo(shares=_shares(wanted.memory_shares)),
    )


def config_spec(inventory: VsphereInventory, now: Properties, wanted: VsphereMachine) -> Any:
    """Return a request for the whole configuration of a machine that has the properties BEFORE."""
    host, affinity = now.get("runtime.host"), now.get("config.cpuAffinity")
    options = {
        **dict.fromkeys(P2P, "TRUE" if wanted.p2p else ""),
        NUMA: dict(wanted.attributes)["numa"],
        MMIO_ON: "TRUE" if wanted.mmio else "",
        MMIO_SIZE: str(-(-wanted.mmio // GIB)) if wanted.mmio else "",
    }
    spec = vim.vm.ConfigSpec(
        extraConfig=[vim.option.OptionValue(key=k, value=v) for k, v in options.items()]
    )
    vcpus = wanted.vcpus or now["config.hardware.numCPU"]
    memory = wanted.memory // MIB if wanted.memory else now["config.hardware.memoryMB"]
    spec.numCPUs, spec.memoryMB = vcpus, memory
    if wanted.cores_per_socket:
        spec.numCoresPerSocket = wanted.cores_per_socket
    full = wanted.memory_reservation == "full"
    spec.memoryReservationLockedToMax = full
    spec.memoryAllocation = vim.ResourceAllocationInfo(
        reservation=memory if full else 0, shares=_shares(wanted.memory_shares)
    )
    spec.cpuAllocation = vim.ResourceAllocationInfo(
        reservation=vcpus * inventory.mhz(host) if wanted.cpu_reservation == "full" else 0,
        shares=_shares(wanted.cpu_shares),
    )
    spec.latencySensitivity = vim.LatencySensitivity(level=wanted.latency)
    if wanted.affinity or (affinity and affinity.affinitySet):
        spec.cpuAffinity = vim.vm.AffinityInfo(affinitySet=list(wanted.affinity))
    if wanted.secure_boot is not None:
        spec.bootOptions = vim.vm.BootOptions(efiSecureBootEnabled=wanted.secure_boot)
    if wanted.adapters is not None:
        spec.deviceChange = changes(inventory, now[DEVICES], adapters_of(wanted), host)
    return spec


def place_spec(inventory: VsphereInventory, wanted: VsphereMachine) -> Any:
    """Return the place of a machine: host, datastore and pool."""
    place = vim.vm.RelocateSpec(pool=inventory.pool(wanted.resource_pool or ""))
    if wanted.esxi:
        place.host = inventory.host(wanted.esxi)
    if wanted.datastore:
        place.datastore = inventory.datastore(wanted.datastore)
    return place


def clone_spec(
    inventory: VsphereInventory, template: Any, wanted: VsphereMachine, mark: Any
) -> Any:
    """Return the request for a clone; raises BackendError for a linked one without a snapshot."""
    place = place_spec(inventory, wanted)
    spec = vim.vm.CloneSpec(location=place, powerOn=False, template=False)
    spec.config = vim.vm.ConfigSpec(extraConfig=[mark])
    if wanted.clone == "linked":
        snapshot = template.snapshot
        if snapshot is None:
            msg = f"template {wanted.template} has no snapshot, and a linked clone needs one"
            raise BackendError(msg, "take a snapshot of it, or write clone: full")
        place.diskMoveType = "createNewChildDiskBacking"
        spec.snapshot = snapshot.currentSnapshot
    return spec


def fork_spec(inventory: VsphereInventory, wanted: VsphereMachine, mark: Any) -> Any:
    """Return the request for an instant clone, which takes no host: it is that of its source."""
    place = place_spec(inventory, wanted)
    place.host, place.folder = None, inventory.folder()
    return vim.vm.InstantCloneSpec(name=wanted.vm, location=place, config=[mark])


def nr_cards(now: Properties, wanted: VsphereMachine) -> int:
    """Return the network cards of a machine that had the properties BEFORE, once it is as wanted."""
    if wanted.adapters is not None:
        return sum(adapter.kind in NETWORK_KINDS for adapter in adapters_of(wanted))
    return sum(isinstance(device, vim.vm.device.VirtualEthernetCard) for device in now[DEVICES])


def customization(guest: GuestSettings, nr_cards: int) -> Any:
    """Return the settings of the guest: the address for the first card, DHCP for the others."""
    named, dns = vim.vm.customization, guest.dns or []

    def card(address: str | None) -> Any:
        settings = named.IPSettings(dnsServerList=dns, dnsDomain=guest.domain)
        if address in (None, DHCP):
            settings.ip = named.DhcpIpGenerator()
            return settings
        interface = ipaddress.IPv4Interface(address)
        settings.ip = named.FixedIp(ipAddress=str(interface.ip))
        settings.subnetMask = str(interface.netmask)
        if guest.gateway:
            settings.gateway = [guest.gateway]
        return settings

    addresses = [guest.address if i == 0 else DHCP for i in range(nr_cards)]
    return named.Specification(
        identity=named.LinuxPrep(
            hostName=named.FixedName(name=guest.hostname), domain=guest.domain or "local"
        ),
        globalIPSettings=named.GlobalIPSettings(
            dnsServerList=dns, dnsSuffixList=[guest.domain] if guest.domain else []
        ),
        nicSettingMap=[named.AdapterMapping(adapter=card(address)) for address in addresses],
    )
