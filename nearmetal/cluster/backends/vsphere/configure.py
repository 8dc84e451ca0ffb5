# SPDX-License-Identifier: Apache-2.0
"""What vCenter is asked to make of a machine: configuration, customization, where it is cloned to."""

from __future__ import annotations

import ipaddress
import json
from typing import TYPE_CHECKING, Any

from pyVmomi import vim

from nearmetal.cluster.backends.vsphere.devices import changes
from nearmetal.cluster.backends.vsphere.observe import MARK, MARKED, MMIO_ON, MMIO_SIZE, NUMA, P2P
from nearmetal.cluster.backends.vsphere.spec import DHCP
from nearmetal.config.size import parse_size
from nearmetal.core.errors import BackendError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nearmetal.cluster.backends.vsphere.inventory import Inventory
    from nearmetal.cluster.backends.vsphere.spec import VmAdapter

GIB = 1 << 30


def mark_option(cluster: str, node: str, wanted: Mapping[str, str], state: str) -> Any:
    """Return the mark of a machine. `state`: begun, or made."""
    told = {"cluster": cluster, "node": node, "state": state}
    told |= {name: wanted[name] for name in MARKED}
    return vim.option.OptionValue(key=MARK, value=json.dumps(told, sort_keys=True))


def _shares(word: str) -> Any:
    if word.isdigit():
        return vim.SharesInfo(level="custom", shares=int(word))
    return vim.SharesInfo(level=word, shares=0)


def shares_spec(wanted: Mapping[str, str]) -> Any:
    """Return the shares alone, which a running machine takes."""
    return vim.vm.ConfigSpec(
        cpuAllocation=vim.ResourceAllocationInfo(shares=_shares(wanted["cpu_shares"])),
        memoryAllocation=vim.ResourceAllocationInfo(shares=_shares(wanted["memory_shares"])),
    )


def _options(wanted: Mapping[str, str]) -> list[Any]:
    options = {P2P: "TRUE" if wanted["p2p"] == "yes" else "", NUMA: wanted["numa"]}
    size = wanted["mmio"]
    options[MMIO_ON] = "TRUE" if size else ""
    options[MMIO_SIZE] = str(-(-parse_size(size) // GIB)) if size else ""
    return [vim.option.OptionValue(key=key, value=value) for key, value in options.items()]


def config_spec(
    inventory: Inventory,
    config: Any,
    host: Any,
    wanted: Mapping[str, str],
    adapters: list[VmAdapter] | None,
) -> Any:
    """Return the whole configuration of a machine of that configuration on that host."""
    hardware = config.hardware
    spec = vim.vm.ConfigSpec(extraConfig=_options(wanted))
    vcpus = int(wanted["vcpus"] or hardware.numCPU)
    memory = parse_size(wanted["memory"]) >> 20 if wanted["memory"] else hardware.memoryMB
    spec.numCPUs, spec.memoryMB = vcpus, memory
    if wanted["cores_per_socket"]:
        spec.numCoresPerSocket = int(wanted["cores_per_socket"])
    full = wanted["memory_reservation"] == "full"
    spec.memoryReservationLockedToMax = full
    spec.memoryAllocation = vim.ResourceAllocationInfo(
        reservation=memory if full else 0, shares=_shares(wanted["memory_shares"])
    )
    spec.cpuAllocation = vim.ResourceAllocationInfo(
        reservation=vcpus * inventory.mhz(host) if wanted["cpu_reservation"] == "full" else 0,
        shares=_shares(wanted["cpu_shares"]),
    )
    spec.latencySensitivity = vim.LatencySensitivity(level=wanted["latency"])
    numbers = [int(word) for word in wanted["affinity"].split(",") if word]
    if numbers or (config.cpuAffinity and config.cpuAffinity.affinitySet):
        spec.cpuAffinity = vim.vm.AffinityInfo(affinitySet=numbers)
    if adapters is not None:
        spec.deviceChange = changes(inventory, hardware.device, adapters, host)
    return spec


def relocate_spec(inventory: Inventory, wanted: Mapping[str, str]) -> Any:
    """Return where a clone goes."""
    place = vim.vm.RelocateSpec(pool=inventory.pool(wanted["resource_pool"]))
    if wanted["esxi"]:
        place.host = inventory.host(wanted["esxi"])
    if wanted["datastore"]:
        place.datastore = inventory.datastore(wanted["datastore"])
    return place


def clone_spec(inventory: Inventory, template: Any, wanted: Mapping[str, str], mark: Any) -> Any:
    """Return how a machine is cloned; raises BackendError for a linked one without a snapshot."""
    place = relocate_spec(inventory, wanted)
    spec = vim.vm.CloneSpec(location=place, powerOn=False, template=False)
    spec.config = vim.vm.ConfigSpec(extraConfig=[mark])
    if wanted["clone"] == "linked":
        snapshot = template.snapshot
        if snapshot is None:
            msg = f"template {wanted['template']} has no snapshot, which a linked clone hangs on"
            raise BackendError(msg, "take a snapshot of it, or write clone: full")
        place.diskMoveType = "createNewChildDiskBacking"
        spec.snapshot = snapshot.currentSnapshot
    return spec


def _settings(told: Mapping[str, Any], address: str) -> Any:
    settings = vim.vm.customization.IPSettings(
        dnsServerList=told.get("dns", []), dnsDomain=told.get("domain")
    )
    if address == DHCP:
        settings.ip = vim.vm.customization.DhcpIpGenerator()
        return settings
    interface = ipaddress.IPv4Interface(address)
    settings.ip = vim.vm.customization.FixedIp(ipAddress=str(interface.ip))
    settings.subnetMask = str(interface.netmask)
    if "gateway" in told:
        settings.gateway = [told["gateway"]]
    return settings


def customization(guest: str, nr_cards: int) -> Any:
    """Return what the guest is told; the first card gets the address, others ask by DHCP."""
    told = json.loads(guest)
    named = vim.vm.customization
    maps = [
        named.AdapterMapping(adapter=_settings(told, told["address"] if i == 0 else DHCP))
        for i in range(nr_cards)
    ]
    identity = named.LinuxPrep(
        hostName=named.FixedName(name=told["hostname"]), domain=told.get("domain", "local")
    )
    common = named.GlobalIPSettings(
        dnsServerList=told.get("dns", []),
        dnsSuffixList=[told["domain"]] if "domain" in told else [],
    )
    return named.Specification(identity=identity, globalIPSettings=common, nicSettingMap=maps)
