# SPDX-License-Identifier: Apache-2.0
"""The parts of a virtual machine, and its domain XML. Pure: data in, text out.

The XML has libvirt's own elements where they exist. The two views of a segment (its own part,
writable, and the whole, read-only) have none, so they go to QEMU in JSON. Libvirt's memory objects
come before ours, so QEMU's main memory is the first: only so can a machine with ivshmem be migrated.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from jinja2 import Environment

NAMESPACE = "urn:nearmetal:cluster:1"
QEMU_NAMESPACE = "http://libvirt.org/schemas/domain/qemu/1.0"
SEED_NAME = "opt/nearmetal/seed"
SHARE_TAG = "files"

OWN_SLOT, ALL_SLOT = 0x10, 0x11
"""Slots of the ports of the two ivshmem devices on a guest's root bus; libvirt counts from 1 up."""

OWN_PCI, ALL_PCI = (f"0000:00:{slot:02x}.0" for slot in (OWN_SLOT, ALL_SLOT))
"""The addresses of the two devices in a guest that has them on its root bus itself."""

VIEW_DRIVER = "ivshmem-plain"

PORTS = ("nm-own-port", "nm-all-port")

ET.register_namespace("nearmetal", NAMESPACE)
ET.register_namespace("qemu", QEMU_NAMESPACE)


@dataclass(frozen=True)
class OwnerMark:
    """The owner of a domain or network, written into it, and read before any change to it."""

    cluster: str
    identity: str
    name: str
    attributes: tuple[tuple[str, str], ...] = ()
    ready: bool = False

    def element(self, namespace: str = f"{{{NAMESPACE}}}") -> ET.Element:
        """Return the element below <metadata>."""
        tag = ET.Element(f"{namespace}resource")
        tag.set("cluster", self.cluster)
        tag.set("identity", self.identity)
        tag.set("name", self.name)
        tag.set("ready", "yes" if self.ready else "no")
        for name, value in self.attributes:
            ET.SubElement(tag, f"{namespace}attribute", {"name": name, "value": value})
        return tag

    def text(self) -> str:
        """Return the element as libvirt's metadata calls take it: they add the namespace."""
        return ET.tostring(self.element(namespace=""), encoding="unicode")

    @classmethod
    def read(cls, document: str) -> OwnerMark | None:
        """Return the mark in a domain's or network's XML; None if it is not ours."""
        tag = ET.fromstring(document).find(f".//{{{NAMESPACE}}}resource")  # noqa: S314 - libvirt's own
        if tag is None:
            return None
        pairs = tuple(
            (a.get("name", ""), a.get("value", ""))
            for a in tag.findall(f"{{{NAMESPACE}}}attribute")
        )
        return cls(
            tag.get("cluster", ""),
            tag.get("identity", ""),
            tag.get("name", ""),
            pairs,
            tag.get("ready") == "yes",
        )


@dataclass(frozen=True)
class GuestKernel:
    """A kernel that QEMU starts itself."""

    kernel: str
    initrd: str
    arguments: str


@dataclass(frozen=True)
class Disk:
    """One disk. `device` is disk or cdrom."""

    path: str
    form: str
    target: str
    read_only: bool = False
    device: str = "disk"
    serial: str = ""


@dataclass(frozen=True)
class Nic:
    """A network interface on a bridge, or on a network of libvirt."""

    mac: str
    mtu: int
    bridge: str = ""
    network: str = ""


@dataclass(frozen=True)
class SegmentView:
    """A view of a segment's file: QEMU's memory object, and the device that shows it."""

    memory: Mapping[str, Any]
    device: Mapping[str, Any]

    def words(self, place: Mapping[str, str] | None = None) -> list[str]:
        """Return QEMU's words. `place`: another bus for the device."""
        device = {**self.device, **(place or {})}
        return ["-object", json.dumps(self.memory), "-device", json.dumps(device)]


@dataclass(frozen=True)
class Segment:
    """The host's segment as this machine sees it: sizes in bytes; its own part lies within the file."""

    device: str
    path: str
    size: int
    own_offset: int = 0
    own_size: int = 0

    @property
    def views(self) -> list[SegmentView]:
        """The two views by ivshmem."""
        return ivshmem_views(self.path, self.size, self.own_offset, self.own_size)


@dataclass(frozen=True)
class NumaCell:
    """Guest memory on one NUMA node of the host. `cpus`: virtual processors, from 0."""

    host_cell: int
    cpus: tuple[int, ...]
    memory: int


@dataclass(frozen=True)
class VirtualMachine:
    """One virtual machine. `pins`: the host's cores of its virtual processors; () for any."""

    name: str
    uuid: str
    owner: OwnerMark
    accel: str
    memory: int
    nr_cpus: int
    console: str
    disks: tuple[Disk, ...]
    links: tuple[Nic, ...]
    kernel: GuestKernel | None = None
    seed: str = ""
    emulator: str = ""
    pins: tuple[int, ...] = ()
    emulator_pins: tuple[int, ...] = ()
    cells: tuple[NumaCell, ...] = ()
    hugepages: int = 0
    locked: bool = False
    viommu: bool = False
    segment: Segment | None = None
    devices: tuple[str, ...] = ()
    """PCI addresses of its VF and of whole devices, which are bound to vfio-pci already."""
    efi: str = ""
    """Path of its EFI firmware; "" for BIOS."""
    variables: str = ""
    """Path of its own EFI variables."""
    mmio: int = 0
    """Size of the 64-bit MMIO window in bytes; 0 for that of the firmware."""
    share: str = ""
    """Directory of the host that the guest may read, and mounts by the tag SHARE_TAG; "": none."""
    label: str = ""
    """User and group of QEMU, in libvirt's form; "" for libvirt's default."""

    def xml(self) -> str:
        """Return the domain XML."""
        segment, cells, words = self.segment, self.cells, list[str]()
        slot = segment if segment and segment.device in ("virtio-pmem", "nvdimm") else None
        if segment and segment.device == "ivshmem":
            words = port_words(segment.own_size, segment.size)
            for view in segment.views:
                words += view.words()
        if self.mmio:
            # libvirt reserves the names of OVMF, so the setting is none of its <sysinfo>.
            words += ["-fw_cfg", f"name=opt/ovmf/X-PciMmio64Mb,string={self.mmio >> 20}"]
        if not cells and slot:
            # A memory device must belong to a NUMA node.
            cells = (NumaCell(0, tuple(range(self.nr_cpus)), self.memory),)
        return _xml("domain.xml", self.owner, m=self, slot=slot, guest_cells=cells, words=words)


def ivshmem_views(path: str, size: int, own_offset: int, own_size: int) -> list[SegmentView]:
    """Return the two views of a segment. Sizes in bytes; `own_offset` within the file."""
    base = {"qom-type": "memory-backend-file", "mem-path": path, "share": True}
    own = base | {"id": "nm-own", "offset": own_offset, "size": own_size}
    # rom: a write by the guest is dropped instead of ending the machine.
    whole = base | {"id": "nm-all", "size": size, "readonly": True, "rom": "on"}
    return [_view(memory, port) for memory, port in zip((own, whole), PORTS, strict=True)]


def _view(memory: dict[str, Any], port: str) -> SegmentView:
    name = str(memory["id"])
    return SegmentView(
        memory,
        {"driver": VIEW_DRIVER, "id": f"{name}-device", "memdev": name, "bus": port},
    )


def ivshmem_words(path: str, size: int, own_offset: int, own_size: int) -> list[str]:
    """Return QEMU's words for the two views on the root bus, where they stay until its end."""
    words = []
    views = ivshmem_views(path, size, own_offset, own_size)
    for view, slot in zip(views, (OWN_SLOT, ALL_SLOT), strict=True):
        place = {"bus": "pcie.0", "addr": hex(slot)}
        words += view.words(place)
    return words


def port_words(own_size: int, size: int) -> list[str]:
    """Return QEMU's words for the ports of the two views. A device on a port can be unplugged.

    The firmware reserves room for these sizes, so that a device can be plugged in later.
    """
    words = []
    for name, slot, room in zip(PORTS, (OWN_SLOT, ALL_SLOT), (own_size, size), strict=True):
        port = {
            "driver": "pcie-root-port",
            "id": name,
            "bus": "pcie.0",
            "addr": hex(slot),
            "chassis": slot,
            "slot": slot,
            "pref64-reserve": room,
        }
        words += ["-device", json.dumps(port)]
    return words


def hostdev_xml(address: str) -> str:
    """Return the XML of a PCI device that is bound to vfio-pci already."""
    return _templates().get_template("hostdev.xml").render(device=address)


def read_hostdevs(document: str) -> set[str]:
    """Return the PCI addresses of the devices of the host that a domain has. Pure."""
    found = set()
    for place in ET.fromstring(document).findall("devices/hostdev/source/address"):  # noqa: S314 - libvirt's
        names = ("domain", "bus", "slot", "function")
        domain, bus, slot, function = (int(place.get(name, "0"), 0) for name in names)
        found.add(f"{domain:04x}:{bus:02x}:{slot:02x}.{function:x}")
    return found


def network_xml(owner: OwnerMark, **values: str | int) -> str:
    """Return the XML of a network that libvirt makes."""
    return _xml("network.xml", owner, **values)


@cache
def _templates() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # noqa: PLC0415 - slow to load

    made = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        undefined=StrictUndefined,
        autoescape=True,
    )
    made.globals.update(qemu_namespace=QEMU_NAMESPACE, seed_name=SEED_NAME, share_tag=SHARE_TAG)
    return made


def _xml(template: str, owner: OwnerMark, **values: Any) -> str:
    """Fill a template and put the mark of the owner into its metadata."""
    top = ET.fromstring(_templates().get_template(template).render(values))  # noqa: S314 - our own
    for metadata in top.iter("metadata"):
        metadata.append(owner.element())
    ET.indent(top)
    return ET.tostring(top, encoding="unicode") + "\n"
