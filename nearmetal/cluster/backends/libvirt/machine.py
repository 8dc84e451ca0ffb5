# SPDX-License-Identifier: Apache-2.0
"""The parts of a virtual machine, and its domain XML. Pure: data in, text out.

The XML has libvirt's own elements where they exist. The two views of a segment (its own part,
writable, and the whole, read-only) have none, so they go to QEMU in JSON. Libvirt's memory objects
come before ours, so QEMU's main memory is the first: only so can a machine with ivshmem be migrated.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from xml.etree import ElementTree as ET

NAMESPACE = "urn:nearmetal:cluster:1"
QEMU_NAMESPACE = "http://libvirt.org/schemas/domain/qemu/1.0"
SEED_NAME = "opt/nearmetal/seed"
SHARE_TAG = "files"

OWN_SLOT, ALL_SLOT = 0x10, 0x11
"""Slots of the two ivshmem devices on a guest's root bus; libvirt counts from 1 upwards."""

OWN_PCI, ALL_PCI = (f"0000:00:{slot:02x}.0" for slot in (OWN_SLOT, ALL_SLOT))

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
class Segment:
    """The host's segment as this machine sees it: sizes in bytes; its own part lies within the file."""

    device: str
    path: str
    size: int
    own_offset: int = 0
    own_size: int = 0


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
    vf: str = ""
    """PCI address of its VF, which is bound to vfio-pci already."""
    share: str = ""
    """Directory of the host that the guest may read, and mounts by the tag SHARE_TAG; "": none."""
    label: str = ""
    """User and group of QEMU, in libvirt's form; "" for libvirt's default."""

    def xml(self) -> str:
        """Return the domain XML."""
        top = ET.Element("domain", type="kvm" if self.accel == "kvm" else "qemu")
        _text(top, "name", self.name)
        if self.uuid:
            _text(top, "uuid", self.uuid)
        ET.SubElement(top, "metadata").append(self.owner.element())
        self._memory(top)
        self._processors(top)
        self._boot(top)
        self._features(top)
        self._cpu(top)
        ET.SubElement(top, "clock", offset="utc")
        for event in ("on_poweroff", "on_reboot", "on_crash"):
            # The domain ends with its guest, because a domain that does not run does not exist.
            _text(top, event, "destroy")
        self._devices(ET.SubElement(top, "devices"))
        if self.label:
            # Files get QEMU's user when they are made, and shared files keep their owner.
            tag = ET.SubElement(top, "seclabel", type="static", model="dac", relabel="no")
            _text(tag, "label", self.label)
        self._commandline(top)
        ET.indent(top)
        return ET.tostring(top, encoding="unicode") + "\n"

    def _memory(self, top: ET.Element) -> None:
        if self._has_slots:
            total = self.memory + self._segment_of.size + (1 << 30)
            _text(top, "maxMemory", str(total >> 10), slots="2", unit="KiB")
        _text(top, "memory", str(self.memory >> 10), unit="KiB")
        backing = ET.SubElement(top, "memoryBacking")
        if self.hugepages:
            pages = ET.SubElement(backing, "hugepages")
            ET.SubElement(pages, "page", size=str(self.hugepages >> 10), unit="KiB")
        ET.SubElement(backing, "nosharepages")
        if self.locked:
            ET.SubElement(backing, "locked")
        ET.SubElement(backing, "source", type="memfd")
        ET.SubElement(backing, "access", mode="shared")

    def _processors(self, top: ET.Element) -> None:
        _text(top, "vcpu", str(self.nr_cpus), placement="static")
        if self.pins or self.emulator_pins:
            tune = ET.SubElement(top, "cputune")
            for i in range(self.nr_cpus if self.pins else 0):
                core = str(self.pins[i % len(self.pins)])
                ET.SubElement(tune, "vcpupin", vcpu=str(i), cpuset=core)
            if self.emulator_pins:
                cores = ",".join(map(str, self.emulator_pins))
                ET.SubElement(tune, "emulatorpin", cpuset=cores)
        if self.cells:
            tune = ET.SubElement(top, "numatune")
            nodes = ",".join(str(cell.host_cell) for cell in self.cells)
            ET.SubElement(tune, "memory", mode="strict", nodeset=nodes)
            for i, cell in enumerate(self.cells):
                ET.SubElement(
                    tune, "memnode", cellid=str(i), mode="strict", nodeset=str(cell.host_cell)
                )

    def _boot(self, top: ET.Element) -> None:
        if self.seed:
            info = ET.SubElement(top, "sysinfo", type="fwcfg")
            ET.SubElement(info, "entry", name=SEED_NAME, file=self.seed)
        system = ET.SubElement(top, "os")
        _text(system, "type", "hvm", arch="x86_64", machine="q35")
        if self.kernel is None:
            ET.SubElement(system, "boot", dev="hd")
        else:
            _text(system, "kernel", self.kernel.kernel)
            if self.kernel.initrd:
                _text(system, "initrd", self.kernel.initrd)
            _text(system, "cmdline", self.kernel.arguments)

    def _features(self, top: ET.Element) -> None:
        features = ET.SubElement(top, "features")
        ET.SubElement(features, "acpi")
        ET.SubElement(features, "apic")
        if self.viommu:
            ET.SubElement(features, "ioapic", driver="qemu")

    def _cpu(self, top: ET.Element) -> None:
        if self.accel == "kvm":
            cpu = ET.SubElement(top, "cpu", mode="host-passthrough", check="none")
        else:
            cpu = ET.SubElement(top, "cpu", mode="maximum", check="none")
        count = str(self.nr_cpus)
        ET.SubElement(cpu, "topology", sockets="1", dies="1", cores=count, threads="1")
        cells = self.cells
        if not cells and self._has_slots:
            # A memory device needs a NUMA node to belong to.
            cells = (NumaCell(0, tuple(range(self.nr_cpus)), self.memory),)
        if cells:
            numa = ET.SubElement(cpu, "numa")
            for i, cell in enumerate(cells):
                ET.SubElement(
                    numa,
                    "cell",
                    id=str(i),
                    cpus=",".join(map(str, cell.cpus)),
                    memory=str(cell.memory >> 10),
                    unit="KiB",
                    memAccess="shared",
                )

    def _devices(self, devices: ET.Element) -> None:
        if self.emulator:
            _text(devices, "emulator", self.emulator)
        self._disks(devices)
        ET.SubElement(devices, "controller", type="usb", model="none")
        for link in self.links:
            kind = "bridge" if link.bridge else "network"
            tag = ET.SubElement(devices, "interface", type=kind)
            ET.SubElement(tag, "mac", address=link.mac)
            ET.SubElement(tag, "source", {kind: link.bridge or link.network})
            ET.SubElement(tag, "model", type="virtio")
            ET.SubElement(tag, "mtu", size=str(link.mtu))
        if self.vf:
            _host_device(devices, self.vf)
        if self.share:
            # Root in a guest can read everything there, and write nothing.
            tag = ET.SubElement(devices, "filesystem", type="mount", accessmode="passthrough")
            tag.set("multidevs", "remap")
            ET.SubElement(tag, "source", dir=self.share)
            ET.SubElement(tag, "target", dir=SHARE_TAG)
            ET.SubElement(tag, "readonly")
        for name in ("serial", "console"):
            tag = ET.SubElement(devices, name, type="file")
            ET.SubElement(tag, "source", path=self.console, append="on")
            ET.SubElement(tag, "target", {"port": "0", **_PORTS[name]})
        rng = ET.SubElement(devices, "rng", model="virtio")
        _text(rng, "backend", "/dev/urandom", model="random")
        ET.SubElement(devices, "memballoon", model="none")
        if self.viommu:
            iommu = ET.SubElement(devices, "iommu", model="intel")
            driver = ET.SubElement(iommu, "driver", intremap="on")
            if self.vf:
                # The guest reports every mapping, because the host maps the same for the device.
                driver.set("caching_mode", "on")
        if self._has_slots:
            self._memory_device(devices)

    def _disks(self, devices: ET.Element) -> None:
        for disk in self.disks:
            tag = ET.SubElement(devices, "disk", type="file", device=disk.device)
            ET.SubElement(tag, "driver", name="qemu", type=disk.form)
            ET.SubElement(tag, "source", file=disk.path)
            bus = "virtio" if disk.device == "disk" else "sata"
            ET.SubElement(tag, "target", dev=disk.target, bus=bus)
            if disk.read_only:
                ET.SubElement(tag, "readonly")
                if disk.device == "disk":
                    ET.SubElement(tag, "shareable")
            if disk.serial:
                _text(tag, "serial", disk.serial)

    @property
    def _has_slots(self) -> bool:
        """Whether the segment is a memory device, for which libvirt has an element."""
        return self.segment is not None and self.segment.device in ("virtio-pmem", "nvdimm")

    @property
    def _segment_of(self) -> Segment:
        assert self.segment is not None  # noqa: S101 - callers checked it
        return self.segment

    def _memory_device(self, devices: ET.Element) -> None:
        segment = self._segment_of
        tag = ET.SubElement(devices, "memory", model=segment.device, access="shared")
        source = ET.SubElement(tag, "source")
        _text(source, "path", segment.path)
        target = ET.SubElement(tag, "target")
        _text(target, "size", str(segment.size >> 10), unit="KiB")
        if segment.device == "nvdimm":
            _text(target, "node", "0")

    def _commandline(self, top: ET.Element) -> None:
        segment = self.segment
        if segment is not None and segment.device == "ivshmem":
            words = ivshmem_words(segment.path, segment.size, segment.own_offset, segment.own_size)
            tag = ET.SubElement(top, f"{{{QEMU_NAMESPACE}}}commandline")
            for word in words:
                ET.SubElement(tag, f"{{{QEMU_NAMESPACE}}}arg", value=word)


_PORTS: dict[str, dict[str, str]] = {
    "serial": {"type": "isa-serial"},
    "console": {"type": "serial"},
}


def _host_device(devices: ET.Element, address: str) -> None:
    """Add a PCI device of the host, which is bound already and stays so."""
    domain, bus, place = address.split(":")
    slot, function = place.split(".")
    tag = ET.SubElement(devices, "hostdev", mode="subsystem", type="pci", managed="no")
    ET.SubElement(tag, "driver", name="vfio")
    numbers = {"domain": domain, "bus": bus, "slot": slot, "function": function}
    source = ET.SubElement(tag, "source")
    ET.SubElement(source, "address", {name: f"0x{text}" for name, text in numbers.items()})


def _text(parent: ET.Element, name: str, text: str, **attributes: str) -> None:
    tag = ET.SubElement(parent, name, attributes)
    tag.text = text


def ivshmem_words(path: str, size: int, own_offset: int, own_size: int) -> list[str]:
    """Return QEMU's words for the two views. Sizes in bytes; `own_offset` within the file."""
    base = {"qom-type": "memory-backend-file", "mem-path": path, "share": True}
    own = base | {"id": "nm-own", "offset": own_offset, "size": own_size}
    # rom: a write by the guest is dropped instead of ending the machine.
    whole = base | {"id": "nm-all", "size": size, "readonly": True, "rom": "on"}
    words = []
    for backend, slot in ((own, OWN_SLOT), (whole, ALL_SLOT)):
        device = {
            "driver": "ivshmem-plain",
            "id": f"{backend['id']}-device",
            "memdev": backend["id"],
            "bus": "pcie.0",
            "addr": hex(slot),
        }
        words += ["-object", json.dumps(backend), "-device", json.dumps(device)]
    return words


@dataclass(frozen=True)
class MadeNetwork:
    """A network that libvirt makes: a bridge without a way out, DHCP or name service."""

    name: str
    owner: OwnerMark
    bridge: str
    mtu: int
    address: str
    prefix: int

    def xml(self) -> str:
        """Return the network XML."""
        top = ET.Element("network")
        _text(top, "name", self.name)
        ET.SubElement(top, "metadata").append(self.owner.element())
        # open: libvirt leaves the firewall alone, so a cluster does not need one.
        ET.SubElement(top, "forward", mode="open")
        ET.SubElement(top, "bridge", name=self.bridge, stp="off", delay="0")
        ET.SubElement(top, "mtu", size=str(self.mtu))
        ET.SubElement(top, "dns", enable="no")
        ET.SubElement(top, "ip", address=self.address, prefix=str(self.prefix))
        ET.indent(top)
        return ET.tostring(top, encoding="unicode") + "\n"
