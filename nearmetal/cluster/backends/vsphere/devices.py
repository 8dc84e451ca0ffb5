# SPDX-License-Identifier: Apache-2.0
"""Adapters of a spec as devices of vSphere, and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pyVmomi import vim

from nearmetal.cluster.backends.vsphere.inventory import VsphereInventory
from nearmetal.cluster.backends.vsphere.settings import NETWORK_KINDS, VmAdapter, adapter_text

_DEVICE = vim.vm.device
_CARD, _PCI = _DEVICE.VirtualEthernetCard, _DEVICE.VirtualPCIPassthrough

_KINDS = (
    (_DEVICE.VirtualSriovEthernetCard, "sriov"),
    (_DEVICE.VirtualVmxnet3Vrdma, "pvrdma"),
    (_DEVICE.VirtualVmxnet3, "vmxnet3"),
)
_BACKINGS = ((_PCI.VmiopBackingInfo, "vgpu"), (_PCI.DynamicBackingInfo, "dynamic"))


def is_adapter(device: Any) -> bool:
    """Whether a device is of a kind that the adapters of a spec describe."""
    return isinstance(device, _CARD | _PCI)


def _kind(device: Any) -> str:
    kind = next((kind for type_, kind in _KINDS if isinstance(device, type_)), "")
    if isinstance(device, _PCI):
        found = (kind for type_, kind in _BACKINGS if isinstance(device.backing, type_))
        kind = next(found, "passthrough")
    return kind or type(device).__name__.rpartition(".")[2]


def _port_group(device: Any, groups: Mapping[str, str]) -> str:
    backing = device.backing
    port = getattr(backing, "port", None)
    if port is not None:
        return groups.get(port.portgroupKey, port.portgroupKey or "")
    return str(getattr(backing, "deviceName", "") or "")


def _values(device: Any, groups: Mapping[str, str]) -> dict[str, Any]:
    """Return the values of a device by the keys of an adapter."""
    kind, backing = _kind(device), device.backing
    values: dict[str, Any] = {"kind": kind}
    if isinstance(device, _CARD):
        values["port_group"] = _port_group(device, groups)
    if kind == "sriov":
        function = getattr(device.sriovBacking, "physicalFunctionBacking", None)
        values["pf"] = str(function.id).lower() if function is not None else ""
        values["guest_mtu"] = bool(device.allowGuestOSMtuChange)
    elif kind == "pvrdma":
        values["protocol"] = device.deviceProtocol
    elif kind == "passthrough":
        values["device"] = str(getattr(backing, "id", "")).lower()
    elif kind == "dynamic":
        allowed = backing.allowedDevice or []
        values["models"] = sorted(f"{a.vendorId:04x}:{a.deviceId:04x}" for a in allowed)
        values["label"] = backing.customLabel or None
    elif kind == "vgpu":
        values["profile"] = backing.vgpu
    return values


def describe(device: Any, groups: Mapping[str, str]) -> str:
    """Return a device in the words of a plan."""
    return adapter_text(_values(device, groups))


def is_like(device: Any, adapter: VmAdapter, groups: Mapping[str, str]) -> bool:
    """Whether a device has every value that an adapter has."""
    wanted = adapter.model_dump(exclude_none=True, exclude={"switch"})
    if "models" in wanted:
        wanted["models"] = sorted(wanted["models"])
    values = _values(device, groups)
    return all(values.get(name) == value for name, value in wanted.items())


def matched(
    devices: Iterable[Any], adapters: Iterable[VmAdapter], groups: Mapping[str, str]
) -> tuple[list[Any], list[VmAdapter]]:
    """Return the devices without an adapter, and the adapters without a device."""
    left, missing = [d for d in devices if is_adapter(d)], []
    for adapter in adapters:
        found = next((d for d in left if is_like(d, adapter, groups)), None)
        if found is None:
            missing.append(adapter)
        else:
            left.remove(found)
    return left, missing


def _backing(inventory: VsphereInventory, adapter: VmAdapter) -> Any:
    network: Any = inventory.network(adapter.port_group or "", adapter.switch)
    if isinstance(network, vim.dvs.DistributedVirtualPortgroup):
        switch: Any = network.config.distributedVirtualSwitch
        port = vim.dvs.PortConnection(switchUuid=switch.uuid, portgroupKey=network.key)
        return _CARD.DistributedVirtualPortBackingInfo(port=port)
    return _CARD.NetworkBackingInfo(deviceName=network.name, network=network)


def _card(adapter: VmAdapter) -> Any:
    if adapter.kind == "pvrdma":
        card = _DEVICE.VirtualVmxnet3Vrdma()
        if adapter.protocol is not None:
            card.deviceProtocol = adapter.protocol
        return card
    if adapter.kind == "sriov":
        function = _PCI.DeviceBackingInfo(
            id=adapter.pf, deviceId="0", systemId="BYPASS", vendorId=0, deviceName=""
        )
        card = _DEVICE.VirtualSriovEthernetCard()
        card.allowGuestOSMtuChange = bool(adapter.guest_mtu)
        card.sriovBacking = _DEVICE.VirtualSriovEthernetCard.SriovBackingInfo(
            physicalFunctionBacking=function
        )
        return card
    return _DEVICE.VirtualVmxnet3()


def _passed(inventory: VsphereInventory, adapter: VmAdapter, host: Any) -> Any:
    """Return the backing of a device of the host."""
    if adapter.kind == "vgpu":
        return _PCI.VmiopBackingInfo(vgpu=adapter.profile)
    if adapter.kind == "dynamic":
        allowed = [
            _PCI.AllowedDevice(vendorId=int(m[:4], 16), deviceId=int(m[5:], 16))
            for m in adapter.models or []
        ]
        label = adapter.label or ""
        return _PCI.DynamicBackingInfo(deviceName="", allowedDevice=allowed, customLabel=label)
    target = inventory.compute.environmentBrowser.QueryConfigTarget(host)
    devices = (target.pciPassthrough if target else None) or []
    found = next((i for i in devices if str(i.pciDevice.id).lower() == adapter.device), None)
    return _PCI.DeviceBackingInfo(
        id=adapter.device,
        deviceId=f"{(found.pciDevice.deviceId if found else 0) & 0xFFFF:x}",
        systemId=found.systemId if found else "BYPASS",
        vendorId=found.pciDevice.vendorId if found else 0,
        deviceName=found.pciDevice.deviceName if found else "",
    )


def _made(inventory: VsphereInventory, adapter: VmAdapter, host: Any, key: int) -> Any:
    """Return the device of an adapter; `key` is unique among the new devices of one call."""
    if adapter.kind in NETWORK_KINDS:
        device = _card(adapter)
        device.backing = _backing(inventory, adapter)
        device.addressType = "generated"
        device.connectable = _DEVICE.VirtualDevice.ConnectInfo(
            startConnected=True, connected=True, allowGuestControl=True
        )
    else:
        device = _PCI(backing=_passed(inventory, adapter, host))
    device.key = -key
    return device


def changes(
    inventory: VsphereInventory, devices: Iterable[Any], adapters: Iterable[VmAdapter], host: Any
) -> list[Any]:
    """Return the changes that give a machine exactly these adapters."""
    surplus, missing = matched(devices, adapters, inventory.group_names())
    spec = _DEVICE.VirtualDeviceSpec
    gone = [spec(operation="remove", device=device) for device in surplus]
    come = [
        spec(operation="add", device=_made(inventory, adapter, host, 100 + i))
        for i, adapter in enumerate(missing)
    ]
    return [*gone, *come]
