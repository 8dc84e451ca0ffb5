# SPDX-License-Identifier: Apache-2.0
"""Whole PCI devices for virtual machines: who has them at boot, and what their machines need. Pure.

The order is that of vSphere: the BIOS maps large regions, the adapters get ATS, the host gives the
device away at a reboot, and the machine gets EFI, locked memory and a window for the regions.
"""

from __future__ import annotations

from itertools import takewhile

from nearmetal.host.cards import Pair
from nearmetal.host.hosts_file import HostGroup, Passthrough
from nearmetal.host.model import DeviceFacts, PlatformFacts
from nearmetal.host.places import HEAD, VFIO, acs_line, refresh, vfio_line
from nearmetal.host.steps import (
    Outcome,
    SetDirectPath,
    Stage,
    Wait,
    WriteFile,
)

GIB = 1 << 30
AT_BOOT = "the host gives devices away at boot"
VFIO_DRIVER = "vfio-pci"

ABOVE_4G = {
    "Dell": "MmioAbove4Gb: Enabled",
    "Supermicro": "its attribute Above 4G Decoding",
}
"""By vendor: the BIOS attribute for regions above 4 GiB."""

_REDIRECT, _TRANSLATED = 0x04, 0x40
"""Bits of ACS: requests between devices go up to the IOMMU; translated ones pass."""

_PEERS = {
    "linux": "for GPUDirect the machine needs ats=on at both devices, below one virtual root port "
    "or switch",
    "esxi": "for GPUDirect put GPU and adapter into one root complex, and give their machine "
    "pciPassthru.allowP2P and pciPassthru.RelaxACSforP2P: TRUE",
}

_STAGE = Stage.DRIVER
_MAX_NAMED = 8


def window(bars: list[int]) -> int:
    """Return the GiB of a 64-bit window for these regions: their sum up to a power of two."""
    gib = -(-sum(bars) // GIB)
    return 1 << (gib - 1).bit_length() if gib else 0


def plan_devices(
    group: HostGroup, facts: PlatformFacts, pairs: list[Pair], outcome: Outcome
) -> None:
    """Add the steps that give the devices of the file away, and state what machines need."""
    if not group.passthrough:
        return
    if facts.platform == "esxi" and facts.esxi is None:
        hint = "add its vcenter, or switch DirectPath on in the host's own client"
        outcome.refuse(_STAGE, "passthrough on ESXi goes through a vCenter", hint)
        return
    devices = [device for want in group.passthrough for device in _found(want, facts, outcome)]
    devices = list(dict.fromkeys(devices))
    split = {port.address for p in pairs for _, want, port in p.ports() if want.vfs}
    for device in devices:
        if device.address in split:
            what = f"{device.text} goes to a machine whole, and ports request VFs of it"
            outcome.refuse(_STAGE, what, "remove one of them")
        elif device.used and device.driver != VFIO_DRIVER and not device.enabled:
            what = f"{device.text} is in use by the host: {device.used}"
            outcome.refuse(_STAGE, what, "use another interface for that, or another device")
    if facts.platform == "esxi":
        for device in devices:
            _directpath(device, facts, outcome)
    else:
        bridges = _bridges(devices, facts, pairs, outcome) if group.gpudirect else []
        _vfio(devices, bridges, facts, outcome)
    _machines(devices, facts, outcome)
    if group.gpudirect:
        outcome.remark(Stage.GUEST, _PEERS[facts.platform])


def _found(want: Passthrough, facts: PlatformFacts, outcome: Outcome) -> list[DeviceFacts]:
    found = [
        device
        for device in facts.devices
        if device.ids == want.device and want.address in (None, device.address)
    ]
    if not found:
        at = f" at {want.address}" if want.address else ""
        names = [device.text for device in facts.devices]
        more = [f"{len(names) - _MAX_NAMED} more"] if len(names) > _MAX_NAMED else []
        have = ", ".join(names[:_MAX_NAMED] + more) or "none"
        outcome.refuse(_STAGE, f"no device {want.device}{at}", f"adapters and GPUs here: {have}")
    return found


def _directpath(device: DeviceFacts, facts: PlatformFacts, outcome: Outcome) -> None:
    """Add DirectPath I/O of ESXi for a device."""
    if not device.capable:
        hint = "check VT-d in the BIOS (bios.iommu), and the list of devices that ESXi supports"
        outcome.refuse(_STAGE, f"ESXi cannot give {device.text} to a machine", hint)
        return
    if device.parent not in ("", device.address):
        text = f"with {device.text}, all devices below {device.parent} leave ESXi"
        outcome.remark(_STAGE, text)
        below = [
            d for d in facts.devices if d.parent == device.parent and d.address != device.address
        ]
        if used := [f"{d.text} ({d.used})" for d in below if d.used and not d.enabled]:
            what = f"with {device.text}, devices in use leave ESXi: {', '.join(used[:_MAX_NAMED])}"
            outcome.refuse(_STAGE, what, "use another interface for that, or another slot")
    plan_directpath(device, outcome, wanted=True)


def plan_directpath(device: DeviceFacts, outcome: Outcome, *, wanted: bool) -> None:
    """Add the step that switches DirectPath I/O of a device on or off."""
    key, word = f"passthrough {device.address}", "on" if wanted else "off"
    if device.enabled != wanted:
        action = SetDirectPath(device.address, wanted, device.enabled)
        outcome.step(_STAGE, key, f"{device.text}: DirectPath I/O {word}", action, AT_BOOT)
    elif device.active != wanted:
        text = f"{device.text}: DirectPath I/O is set to {word}, and not in force"
        outcome.step(_STAGE, key, text, Wait(), AT_BOOT)


def _bridges(
    devices: list[DeviceFacts], facts: PlatformFacts, pairs: list[Pair], outcome: Outcome
) -> list[str]:
    """Return the bridges between GPUs and adapters that let translated requests pass."""
    ports = {port.address for p in pairs if p.wanted.ats for port in p.card.ports}
    adapters = [device for device in facts.devices if device.address in ports]
    found: list[str] = []
    for gpu in (device for device in devices if device.address not in ports):
        near = [adapter for adapter in adapters if adapter.above[:1] == gpu.above[:1]]
        if not near:
            where = ", ".join(f"{a.address} below {a.above[0]}" for a in adapters if a.above)
            outcome.refuse(
                _STAGE,
                f"{gpu.text} is below {'/'.join(gpu.above[:1])}, its adapters are not: {where}",
                "GPUDirect needs both in slots of one root complex, best of one switch",
            )
        for adapter in near:
            pairs_ = zip(gpu.above, adapter.above, strict=False)
            common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs_))
            found += [*gpu.above[common:], *adapter.above[common:]]
    for bridge in dict.fromkeys(found):
        capable, control = facts.acs.get(bridge, (0, 0))
        if control & _REDIRECT and not capable & _TRANSLATED:
            outcome.refuse(
                _STAGE,
                f"the PCI bridge {bridge} redirects requests between devices (ACS), and cannot "
                "let translated ones pass",
                "use slots below another switch",
            )
    return [b for b in dict.fromkeys(found) if facts.acs.get(b, (0, 0))[0] & _TRANSLATED]


def _vfio(
    devices: list[DeviceFacts], bridges: list[str], facts: PlatformFacts, outcome: Outcome
) -> None:
    """Add the udev rules for vfio-pci, after what the devices themselves refuse."""
    ours = {device.address: device.ids for device in devices}
    for device in devices:
        # Sound and USB of its slot go with it; another port or a storage function must be in the file.
        ours |= dict(device.companions)
    vendor = facts.bios.vendor if facts.bios else ""
    for device in devices:
        if device.unmapped:
            attribute = next((text for v, text in ABOVE_4G.items() if vendor.startswith(v)), "")
            outcome.refuse(
                _STAGE,
                f"{device.text}: the BIOS has no address for {_size(device.unmapped)} of its regions",
                "switch addresses above 4 GiB on in the BIOS"
                + (f" (bios.attributes, {attribute})" if attribute else " (bios.attributes)"),
            )
        strangers = [mate for mate in device.mates if mate not in ours]
        if strangers:
            outcome.refuse(
                _STAGE,
                f"{device.text} shares its IOMMU group with {', '.join(strangers[:_MAX_NAMED])}",
                "add them to passthrough, use a slot with ACS at its ports, or switch ACS on in "
                "the BIOS",
            )
    if not devices:
        return
    content = HEAD + "".join(vfio_line(address, ids) for address, ids in ours.items())
    content += "".join(map(acs_line, bridges))
    before, listed = facts.files.get(VFIO), ", ".join(device.text for device in devices)
    others = [f"{d.text} has {d.driver or 'no driver'}" for d in devices if d.driver != VFIO_DRIVER]
    others += [
        f"{bridge} lets no translated requests pass"
        for bridge in bridges
        if not facts.acs[bridge][1] & _TRANSLATED
    ]
    why = AT_BOOT if others else ""
    if content != before:
        action = WriteFile(VFIO, content, before, refresh(VFIO) or ())
        text = f"{VFIO_DRIVER} at every boot: {listed}"
        text += f"; ACS lets GPUDirect pass {', '.join(bridges)}" if bridges else ""
        outcome.step(_STAGE, "vfio", text, action, why)
    elif others and not facts.iommu_groups and not outcome.reboots:
        what = f"the IOMMU is off, so {VFIO_DRIVER} cannot take {listed}"
        hint = "switch VT-d or AMD's IOMMU on in the BIOS (bios.iommu)"
        outcome.refuse(_STAGE, what, hint)
    elif others:
        text = f"{VFIO_DRIVER} is set, and not in force: {', '.join(others)}"
        outcome.step(_STAGE, "vfio", text, Wait(), why)


def _size(size: int) -> str:
    return f"{size / GIB:.4g} GiB" if size >= GIB else f"{-(-size >> 20)} MiB"


def _machines(devices: list[DeviceFacts], facts: PlatformFacts, outcome: Outcome) -> None:
    """State what the machines of the devices need."""
    kinds = {
        device.ids: [d for d in devices if d.ids == device.ids] for device in devices if device.bars
    }
    for ids, same in kinds.items():
        one, all_ = window(list(same[0].bars)), window([bar for d in same for bar in d.bars])
        every = f", with all {len(same)} {all_} GiB" if len(same) > 1 else ""
        outcome.remark(
            Stage.GUEST,
            f"{ids} has regions of {_size(sum(same[0].bars))}: a machine with one needs a 64-bit "
            f"MMIO window of {one} GiB{every} (their sum, up to a power of two; OVMF: "
            f"opt/ovmf/X-PciMmio64Mb={one * 1024})",
        )
    if devices and facts.platform == "linux":
        outcome.remark(
            Stage.GUEST,
            "vfio locks all memory of a machine with a device: its limit of locked memory must be "
            "as large, and kernel.hugepages should cover it",
        )
    elif devices:
        outcome.remark(
            Stage.GUEST,
            "a machine with a GPU needs EFI firmware, a reservation of all its memory, and `mmio`: "
            "the sum of the device's regions, up to a power of two",
        )
