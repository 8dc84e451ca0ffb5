# SPDX-License-Identifier: Apache-2.0
"""Reads the devices of a machine from /sys and /proc, below a root that tests can choose.

All reads are bounded and checked. A name with other than ordinary characters is refused, because
names go into messages, paths and the ledger.
"""

from __future__ import annotations

import contextlib
import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from nearmetal.core.errors import HostError
from nearmetal.host.vf.model import (
    INFINIBAND,
    VFIO,
    AcsPort,
    Iommu,
    Link,
    Machine,
    PfFacts,
    VfFacts,
    VfSettings,
    is_address,
)

DEVICES = "sys/bus/pci/devices"
MAX_TOTAL = 65535

_LIMIT = 65536
_NAME = re.compile(r"[A-Za-z0-9_.:@+-]{1,128}")
_TABLES = ("DMAR", "IVRS", "IORT", "VIOT")
_VENDORS = {"GenuineIntel": "intel", "AuthenticAMD": "amd", "HygonGenuine": "amd"}
_ALIAS = re.compile(r"pci:[A-Za-z0-9]{1,128}")
_SWITCH = re.compile(r"(intel_iommu|amd_iommu|iommu|iommu\.passthrough|vfio[a-z0-9_.]*)=\S{1,64}")

_CAPABILITIES = 0x34
_PCI_EXPRESS = 0x10
_EXTENDED = 0x100
_CONFIG_SIZE = 4096
_ACS = 0x0D
_ROOT_PORT, _DOWNSTREAM_PORT = 4, 6

ISOLATING = 0x1D
"""Access Control Services (ACS) that keep functions below a port from reaching each other: source
validation, request and completion redirect, upstream forwarding (PCI Express Base 4.0, 7.7.8.3).
The kernel requires the same before it gives a function its own IOMMU group."""


class Sysfs:
    """The files of a kernel. A missing file is an empty answer, not an error."""

    def __init__(self, root: Path = Path("/")) -> None:
        """Remember the root; nothing is read yet."""
        self.root = root

    def path(self, name: str) -> Path:
        """Return the path of a file of the kernel, for example `sys/bus/pci/devices`."""
        return self.root / name

    def data(self, name: str, limit: int = _LIMIT) -> bytes:
        """Return at most `limit` bytes of a file; b"" if it cannot be read."""
        try:
            with self.path(name).open("rb") as file:
                return file.read(limit)
        except OSError:
            return b""

    def text(self, name: str) -> str:
        """Return a file as one line of ASCII; raises HostError for unprintable characters."""
        text = self.data(name).decode("ascii", "replace").strip().replace("\n", " ")
        if not text.isprintable() or "\ufffd" in text:
            raise HostError(
                f"{self.path(name)} contains {text[:40]!r}, and no kernel writes that",
                "check that the kernel mounted /sys",
            )
        return text

    def number(self, name: str) -> int | None:
        """Return a file as a whole number; None for other content and for no file."""
        text = self.text(name)
        try:
            return int(text, 0) if len(text) < 20 else None  # noqa: PLR2004 - 64 bits
        except ValueError:
            return None

    def names(self, name: str) -> list[str]:
        """Return the sorted entries of a directory; [] if it does not exist."""
        try:
            entries = sorted(entry.name for entry in self.path(name).iterdir())
        except OSError:
            return []
        return [_checked(entry, self.path(name)) for entry in entries]

    def target(self, name: str) -> str:
        """Return the last part of a link's target; "" if there is no link."""
        try:
            return _checked(self.path(name).readlink().name, self.path(name))
        except OSError:
            return ""

    def above(self, name: str) -> list[str]:
        """Return the names of the directories above a link's target, topmost first."""
        try:
            real = self.path(name).resolve(strict=True).relative_to(self.root.resolve())
        except (OSError, ValueError):
            return []
        return [_checked(part, self.path(name)) for part in real.parent.parts]


def _checked(name: str, where: Path) -> str:
    if not _NAME.fullmatch(name):
        raise HostError(
            f"{where}: {name[:40]!r} is not a name that nearmetal accepts", "rename the device"
        )
    return name


def read_machine(sysfs: Sysfs, links: Iterable[Link]) -> Machine:
    """Return the machine as it is now; raises HostError for values that no kernel reports."""
    return _Devices(sysfs, {link.name: link for link in links}).machine()


def fabric_of(sysfs: Sysfs, pf: PfFacts) -> str:
    """Return what an adapter is connected to: the type of its link.

    On InfiniBand also the prefix of its subnet, which differs between fabrics if the subnet manager
    sets it.
    """
    if pf.link_type != INFINIBAND or not pf.rdma:
        return pf.link_type
    gid = sysfs.text(f"sys/class/infiniband/{pf.rdma[0]}/ports/1/gids/0")
    return (
        f"{INFINIBAND} {gid[:19]}"
        if re.fullmatch(r"([0-9a-f]{4}:){7}[0-9a-f]{4}", gid)
        else INFINIBAND
    )


@dataclass
class _Devices:
    """The devices below one root. `holders`: processes that have an IOMMU group open, by group."""

    sysfs: Sysfs
    by_name: Mapping[str, Link]
    holders: dict[int, tuple[int, ...]] = field(default_factory=dict)

    def machine(self) -> Machine:
        sysfs = self.sysfs
        self.holders = _holders(sysfs)
        addresses = [name for name in sysfs.names(DEVICES) if is_address(name)]
        pfs = [a for a in addresses if (sysfs.number(f"{DEVICES}/{a}/sriov_totalvfs") or 0) > 0]
        return Machine(
            pfs=tuple(self._pf(address) for address in pfs),
            iommu=_iommu(sysfs),
            vfio=sysfs.path(f"sys/bus/pci/drivers/{VFIO}").is_dir(),
            boot=sysfs.text("proc/sys/kernel/random/boot_id"),
            others=_others(sysfs, addresses, pfs),
        )

    def _pf(self, address: str) -> PfFacts:
        sysfs, device = self.sysfs, f"{DEVICES}/{address}"
        links = self._links(device)
        rdma = tuple(sysfs.names(f"{device}/infiniband"))
        iov = f"sys/class/infiniband/{rdma[0]}/iov" if rdma else ""
        total = sysfs.number(f"{device}/sriov_totalvfs") or 0
        if total > MAX_TOTAL:
            raise HostError(
                f"adapter {address} claims to offer {total} VFs",
                "check that the kernel mounted /sys",
            )
        has_pkeys = bool(iov) and sysfs.path(iov).is_dir()
        settings = dict(links[0].vfs) if links else {}
        return PfFacts(
            address=address,
            ids=f"{sysfs.text(f'{device}/vendor')[2:]}:{sysfs.text(f'{device}/device')[2:]}",
            driver=sysfs.target(f"{device}/driver"),
            numa=self._numa(device),
            total=total,
            vfs=self._vfs(device, settings, iov if has_pkeys else ""),
            # Kernels before 4.12 always probe.
            autoprobe=sysfs.text(f"{device}/sriov_drivers_autoprobe") != "0",
            links=links,
            rdma=rdma,
            ports=self._ports(address),
            pkeys=self._pkeys(rdma[0]) if rdma else (),
            vf_pkeys=has_pkeys,
        )

    def _vfs(
        self, device: str, settings: Mapping[int, VfSettings], iov: str
    ) -> tuple[VfFacts, ...]:
        found = []
        for entry in self.sysfs.names(device):
            function = re.fullmatch(r"virtfn([0-9]{1,5})", entry)
            address = self.sysfs.target(f"{device}/{entry}") if function else ""
            if function is None or not is_address(address):
                continue
            number = int(function[1])
            mine = settings.get(number, VfSettings())
            if iov:
                index = self.sysfs.number(f"{iov}/{address}/ports/1/pkey_idx/0")
                mine = replace(mine, pkey_index=index)
            found.append(self._vf(number, address, mine))
        return tuple(sorted(found, key=lambda vf: vf.number))

    def _vf(self, number: int, address: str, settings: VfSettings) -> VfFacts:
        sysfs, device = self.sysfs, f"{DEVICES}/{address}"
        text = sysfs.target(f"{device}/iommu_group")
        group = int(text) if text.isdigit() else None
        others = [n for n in sysfs.names(f"{device}/iommu_group/devices") if n != address]
        override = sysfs.text(f"{device}/driver_override")
        alias = sysfs.text(f"{device}/modalias")
        return VfFacts(
            address=address,
            number=number,
            driver=sysfs.target(f"{device}/driver"),
            driver_override="" if override == "(null)" else override,
            group=group,
            group_others=tuple(others),
            numa=self._numa(device),
            links=self._links(device),
            settings=settings,
            holders=() if group is None else self.holders.get(group, ()),
            rdma=tuple(sysfs.names(f"{device}/infiniband")),
            alias=alias if _ALIAS.fullmatch(alias) else "",
        )

    def _links(self, device: str) -> tuple[Link, ...]:
        """Return the network devices of a PCI device, by port."""
        names = self.sysfs.names(f"{device}/net")
        names.sort(key=lambda name: self.sysfs.number(f"{device}/net/{name}/dev_port") or 0)
        return tuple(self.by_name[name] for name in names if name in self.by_name)

    def _numa(self, device: str) -> int:
        node = self.sysfs.number(f"{device}/numa_node")
        return -1 if node is None else max(node, -1)

    def _ports(self, address: str) -> tuple[AcsPort, ...]:
        """Return the ports above an adapter whose ACS decides whether its VFs are isolated."""
        above = [name for name in self.sysfs.above(f"{DEVICES}/{address}") if is_address(name)]
        configs = {name: self.sysfs.data(f"{DEVICES}/{name}/config", 4096) for name in above}
        ports = [acs_of_port(name, config) for name, config in configs.items()]
        return tuple(port for port in ports if port is not None)

    def _pkeys(self, rdma: str) -> tuple[int, ...]:
        """Return the partition keys of an adapter's first port, by index."""
        directory = f"sys/class/infiniband/{rdma}/ports/1/pkeys"
        entries = sorted(int(name) for name in self.sysfs.names(directory) if name.isdigit())
        return tuple(self.sysfs.number(f"{directory}/{index}") or 0 for index in entries)


def _holders(sysfs: Sysfs) -> dict[int, tuple[int, ...]]:
    """Return the processes that have IOMMU groups open, by group; only root sees all."""
    if not sysfs.path("dev/vfio").is_dir():
        return {}
    found: dict[int, set[int]] = {}
    for process in filter(str.isdigit, sysfs.names("proc")):
        with contextlib.suppress(OSError):
            for entry in sysfs.path(f"proc/{process}/fd").iterdir():
                with contextlib.suppress(OSError):
                    group = re.fullmatch(r"/dev/vfio/([0-9]{1,9})", str(entry.readlink()))
                    if group:
                        found.setdefault(int(group[1]), set()).add(int(process))
    return {group: tuple(sorted(pids)) for group, pids in found.items()}


def _iommu(sysfs: Sysfs) -> Iommu:
    words = sysfs.text("proc/cmdline").split()
    cpu = sysfs.data("proc/cpuinfo", 4096).decode("ascii", "replace")
    vendor = re.search(r"^vendor_id\s*:\s*(\w+)", cpu, re.MULTILINE)
    return Iommu(
        nr_groups=len(sysfs.names("sys/kernel/iommu_groups")),
        tables=tuple(t for t in sysfs.names("sys/firmware/acpi/tables") if t in _TABLES),
        switches=tuple(word for word in words if _SWITCH.fullmatch(word)),
        vendor=_VENDORS.get(vendor[1] if vendor else "", ""),
    )


def _others(
    sysfs: Sysfs, addresses: Sequence[str], pfs: Sequence[str]
) -> tuple[tuple[str, str], ...]:
    """Return (name, address) of devices without SR-IOV that a spec may name."""
    found = [
        (name, sysfs.target(f"sys/class/{kind}/{name}/device"))
        for kind in ("net", "infiniband")
        for name in sysfs.names(f"sys/class/{kind}")
    ]
    found += [(address, address) for address in addresses]
    return tuple(entry for entry in found if entry[1] not in pfs)


def _express_type(config: bytes) -> int | None:
    """Return the port type of a PCI Express function; None for others and for broken lists."""
    place = config[_CAPABILITIES] & ~3
    for _ in range(48):  # a longer list is a loop
        if place < 0x40 or place + 4 > min(len(config), 256):  # noqa: PLR2004 - the standard header
            return None
        if config[place] == _PCI_EXPRESS:
            return config[place + 2] >> 4
        place = config[place + 1] & ~3
    return None


def acs_of_port(address: str, config: bytes) -> AcsPort | None:
    """Return the isolation by a bridge; None for a bridge that has nothing to do with ACS.

    `config` is the readable part: 64 bytes without privileges, 4096 with.
    """
    if len(config) < _EXTENDED:
        return AcsPort(address, None)
    if _express_type(config) not in (_ROOT_PORT, _DOWNSTREAM_PORT):
        return None
    if len(config) < _CONFIG_SIZE:
        return AcsPort(address, None)
    place = _EXTENDED
    for _ in range((_CONFIG_SIZE - _EXTENDED) // 8):
        if place < _EXTENDED or place + 8 > _CONFIG_SIZE:
            break
        (header,) = struct.unpack_from("<I", config, place)
        if header & 0xFFFF == _ACS:
            (control,) = struct.unpack_from("<H", config, place + 6)
            return AcsPort(address, control & ISOLATING == ISOLATING)
        place = header >> 20 & ~3
    return AcsPort(address, acs=False)
