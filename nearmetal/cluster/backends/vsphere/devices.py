# SPDX-License-Identifier: Apache-2.0
"""Adapters of a spec as devices of vSphere, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyVmomi import vim

from nearmetal.cluster.backends.vsphere.spec import NETWORK_KINDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from nearmetal.cluster.backends.vsphere.inventory import Inventory
    from nearmetal.cluster.backends.vsphere.spec import VmAdapter

_DEVICE = vim.vm.device


def is_adapter(device: Any) -> bool:
    """Whether a device is one that a spec's adapters describe."""
    return isinstance(device, _DEVICE.VirtualEthernetCard | _DEVICE.VirtualPCIPassthrough)


def _kind(device: Any) -> str:
    if isinstance(device, _DEVICE.VirtualSriovEthernetCard):
        return "sriov"
    if isinstance(device, _DEVICE.VirtualVmxnet3Vrdma):
        return "pvrdma"
    if isinstance(device, _DEVICE.VirtualVmxnet3):
        return "vmxnet3"
    if isinstance(device, _DEVICE.VirtualPCIPassthrough):
        backing = device.backing
        if isinstance(backing, _DEVICE.VirtualPCIPassthrough.VmiopBackingInfo):
            return "vgpu"
        if isinstance(backing, _DEVICE.VirtualPCIPassthrough.DynamicBackingInfo):
            return "dynamic"
        return "passthrough"
    return type(device).__name__.rpartition(".")[2]


def _port_group(device: Any, groups: Mapping[str, str]) -> str:
    backing = device.backing
    port = getattr(backing, "port", None)
    if port is not None:
        return groups.get(port.portgroupKey, port.portgroupKey or "")
    return str(getattr(backing, "deviceName", "") or "")


def _values(device: Any, groups: Mapping[str, str]) -> dict[str, object]:
    """Return what a device has, by the keys of an adapter."""
    kind = _kind(device)
    values: dict[str, object] = {"kind": kind}
    if isinstance(device, _DEVICE.VirtualEthernetCard):
        values["port_group"] = _port_group(device, groups)
    if kind == "sriov":
        backing = device.sriovBacking
        function = getattr(backing, "physicalFunctionBacking", None)
        values["pf"] = str(function.id).lower() if function is not None else ""
        values["guest_mtu"] = bool(device.allowGuestOSMtuChange)
    elif kind == "pvrdma":
        values["protocol"] = device.deviceProtocol
    elif kind == "passthrough":
        values["device"] = str(getattr(device.backing, "id", "")).lower()
    elif kind == "dynamic":
        allowed = device.backing.allowedDevice or []
        values["models"] = sorted(f"{a.vendorId:04x}:{a.deviceId:04x}" for a in allowed)
        values["label"] = device.backing.customLabel or None
    elif kind == "vgpu":
        values["profile"] = device.backing.vgpu
    return values


def describe(device: Any, groups: Mapping[str, str]) -> str:
    """Return a device in the words of a plan."""
    values = _values(device, groups)
    words = [str(values.pop("kind"))]
    for name, value in values.items():
        if isinstance(value, list):
            words.append(f"{name}={'+'.join(value)}")
        elif value not in (None, ""):
            words.append(f"{name}={str(value).lower() if isinstance(value, bool) else value}")
    return " ".join(words)


def is_like(device: Any, adapter: VmAdapter, groups: Mapping[str, str]) -> bool:
    """Whether a device is what an adapter asks for, in everything that it says."""
    values = _values(device, groups)
    for name in ("kind", "port_group", "pf", "guest_mtu", "protocol", "device", "label", "profile"):
        wanted = getattr(adapter, name)
        if wanted is not None and values.get(name) != wanted:
            return False
    return adapter.models is None or values.get("models") == sorted(adapter.models)


def matched(
    devices: Iterable[Any], adapters: Iterable[VmAdapter], groups: Mapping[str, str]
) -> tuple[list[Any], list[VmAdapter]]:
    """Return the devices that no adapter asks for, and the adapters that have no device."""
    left, missing = [d for d in devices if is_adapter(d)], []
    for adapter in adapters:
        found = next((d for d in left if is_like(d, adapter, groups)), None)
        if found is None:
            missing.append(adapter)
        else:
            left.remove(found)
    return left, missing


def _backing(inventory: Inventory, adapter: VmAdapter) -> Any:
    network: Any = inventory.network(adapter.port_group or "", adapter.switch)
    if isinstance(network, vim.dvs.DistributedVirtualPortgroup):
        switch: Any = network.config.distributedVirtualSwitch
        port = vim.dvs.PortConnection(switchUuid=switch.uuid, portgroupKey=network.key)
        return _DEVICE.VirtualEthernetCard.DistributedVirtualPortBackingInfo(port=port)
    return _DEVICE.VirtualEthernetCard.NetworkBackingInfo(deviceName=network.name, network=network)


def _card(adapter: VmAdapter) -> Any:
    if adapter.kind == "pvrdma":
        card = _DEVICE.VirtualVmxnet3Vrdma()
        if adapter.protocol is not None:
            card.deviceProtocol = adapter.protocol
        return card
    if adapter.kind == "sriov":
        function = _DEVICE.VirtualPCIPassthrough.DeviceBackingInfo(
            id=adapter.pf, deviceId="0", systemId="BYPASS", vendorId=0, deviceName=""
        )
        card = _DEVICE.VirtualSriovEthernetCard()
        card.allowGuestOSMtuChange = bool(adapter.guest_mtu)
        card.sriovBacking = _DEVICE.VirtualSriovEthernetCard.SriovBackingInfo(
            physicalFunctionBacking=function
        )
        return card
    return _DEVICE.VirtualVmxnet3()


def _passed(inventory: Inventory, adapter: VmAdapter, host: Any) -> Any:
    """Return the backing of a device of the host."""
    passed = _DEVICE.VirtualPCIPassthrough
    if adapter.kind == "vgpu":
        return passed.VmiopBackingInfo(vgpu=adapter.profile)
    if adapter.kind == "dynamic":
        allowed = [
            passed.AllowedDevice(vendorId=int(m[:4], 16), deviceId=int(m[5:], 16))
            for m in adapter.models or []
        ]
        return passed.DynamicBackingInfo(
            deviceName="", allowedDevice=allowed, customLabel=adapter.label or ""
        )
    target = inventory.compute.environmentBrowser.QueryConfigTarget(host)
    known = {
        str(i.pciDevice.id).lower(): i for i in (target.pciPassthrough if target else None) or []
    }
    found = known.get(adapter.device or "")
    return passed.DeviceBackingInfo(
        id=adapter.device,
        deviceId=f"{(found.pciDevice.deviceId if found else 0) & 0xFFFF:x}",
        systemId=found.systemId if found else "BYPASS",
        vendorId=found.pciDevice.vendorId if found else 0,
        deviceName=found.pciDevice.deviceName if found else "",
    )


def made(inventory: Inventory, adapter: VmAdapter, host: Any, key: int) -> Any:
    """Return the device of an adapter; `key` tells the new ones of one call apart."""
    if adapter.kind in NETWORK_KINDS:
        device = _card(adapter)
        device.backing = _backing(inventory, adapter)
        device.addressType = "generated"
        device.connectable = _DEVICE.VirtualDevice.ConnectInfo(
            startConnected=True, connected=True, allowGuestControl=True
        )
    else:
        device = _DEVICE.VirtualPCIPassthrough(backing=_passed(inventory, adapter, host))
    device.key = -key
    return device


def changes(
    inventory: Inventory, devices: Iterable[Any], adapters: Iterable[VmAdapter], host: Any
) -> list[Any]:
    """Return what to do so that a machine has these adapters and no others."""
    surplus, missing = matched(devices, adapters, inventory.group_names())
    spec = _DEVICE.VirtualDeviceSpec
    gone = [spec(operation="remove", device=device) for device in surplus]
    come = [
        spec(operation="add", device=made(inventory, adapter, host, 100 + i))
        for i, adapter in enumerate(missing)
    ]
    return [*gone, *come]
