# SPDX-License-Identifier: Apache-2.0
"""Reads what a machine has: adapters with SR-IOV and their VFs, IOMMU, vfio. Changes nothing."""

from __future__ import annotations

import contextlib
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from nearmetal.core.errors import HostError
from nearmetal.host.vf.model import Iommu, Link, Machine, PfFacts, VfFacts, VfSettings
from nearmetal.host.vf.pci import Port, acs_of_port, is_address

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nearmetal.host.vf.sysfs import Sysfs

DEVICES = "sys/bus/pci/devices"
MAX_TOTAL = 65535

_TABLES = ("DMAR", "IVRS", "IORT", "VIOT")
_VENDORS = {"GenuineIntel": "intel", "AuthenticAMD": "amd", "HygonGenuine": "amd"}
_ALIAS = re.compile(r"pci:[A-Za-z0-9]{1,128}")
_SWITCH = re.compile(r"(intel_iommu|amd_iommu|iommu|iommu\.passthrough|vfio[a-z0-9_.]*)=\S{1,64}")


class Links(Protocol):
    """Who answers for network devices: the kernel, or a record."""

    def links(self) -> Sequence[Link]:
        """Return all network devices."""


def read_machine(sysfs: Sysfs, links: Links) -> Machine:
    """Return the machine as it is now; raises HostError for what no kernel would say."""
    by_name = {link.name: link for link in links.links()}
    holders = _holders(sysfs)
    addresses = [name for name in sysfs.names(DEVICES) if is_address(name)]
    pfs = [a for a in addresses if (sysfs.number(f"{DEVICES}/{a}/sriov_totalvfs") or 0) > 0]
    return Machine(
        pfs=tuple(_held(_pf(sysfs, by_name, address), holders) for address in pfs),
        iommu=_iommu(sysfs),
        vfio=sysfs.path("sys/bus/pci/drivers/vfio-pci").is_dir(),
        boot=sysfs.text("proc/sys/kernel/random/boot_id"),
        others=_others(sysfs, addresses, frozenset(pfs)),
    )


def _holders(sysfs: Sysfs) -> dict[int, tuple[int, ...]]:
    """Return the processes that have IOMMU groups open, by group; only root sees all."""
    if not sysfs.path("dev/vfio").is_dir():
        return {}
    found: dict[int, set[int]] = {}
    for process in sysfs.names("proc"):
        if not process.isdigit():
            continue
        with contextlib.suppress(OSError):
            for entry in sysfs.path(f"proc/{process}/fd").iterdir():
                with contextlib.suppress(OSError):
                    group = re.fullmatch(r"/dev/vfio/([0-9]{1,9})", str(entry.readlink()))
                    if group:
                        found.setdefault(int(group[1]), set()).add(int(process))
    return {group: tuple(sorted(pids)) for group, pids in found.items()}


def _held(pf: PfFacts, holders: Mapping[int, tuple[int, ...]]) -> PfFacts:
    vfs = [
        vf if vf.group is None else replace(vf, holders=holders.get(vf.group, ())) for vf in pf.vfs
    ]
    return replace(pf, vfs=tuple(vfs))


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
    sysfs: Sysfs, addresses: Sequence[str], pfs: frozenset[str]
) -> tuple[tuple[str, str], ...]:
    """Return what a spec might name and is no adapter with SR-IOV: (name, address)."""
    found = []
    for kind in ("net", "infiniband"):
        for name in sysfs.names(f"sys/class/{kind}"):
            address = sysfs.target(f"sys/class/{kind}/{name}/device")
            if address not in pfs:
                found.append((name, address))
    return (*found, *((address, address) for address in addresses if address not in pfs))


def _links(sysfs: Sysfs, by_name: Mapping[str, Link], device: str) -> tuple[Link, ...]:
    """Return the network devices of a PCI device, by port."""
    names = sysfs.names(f"{device}/net")
    names.sort(key=lambda name: sysfs.number(f"{device}/net/{name}/dev_port") or 0)
    return tuple(by_name[name] for name in names if name in by_name)


def _pf(sysfs: Sysfs, by_name: Mapping[str, Link], address: str) -> PfFacts:
    device = f"{DEVICES}/{address}"
    links = _links(sysfs, by_name, device)
    settings = dict(links[0].vfs) if links else {}
    rdma = tuple(sysfs.names(f"{device}/infiniband"))
    iov = f"sys/class/infiniband/{rdma[0]}/iov" if rdma else ""
    total = sysfs.number(f"{device}/sriov_totalvfs") or 0
    if total > MAX_TOTAL:
        msg = f"adapter {address} claims to offer {total} VFs"
        raise HostError(msg, "is /sys really the kernel's?")
    has_pkeys = bool(iov) and sysfs.path(iov).is_dir()
    return PfFacts(
        address=address,
        ids=f"{sysfs.text(f'{device}/vendor')[2:]}:{sysfs.text(f'{device}/device')[2:]}",
        driver=sysfs.target(f"{device}/driver"),
        numa=_numa(sysfs, device),
        total=total,
        vfs=_vfs(sysfs, by_name, device, settings, iov if has_pkeys else ""),
        # Kernels before 4.12 always probe.
        autoprobe=sysfs.text(f"{device}/sriov_drivers_autoprobe") != "0",
        links=links,
        rdma=rdma,
        ports=_ports(sysfs, address),
        pkeys=_pkeys(sysfs, rdma[0]) if rdma else (),
        vf_pkeys=has_pkeys,
    )


def _vfs(
    sysfs: Sysfs,
    by_name: Mapping[str, Link],
    device: str,
    settings: Mapping[int, VfSettings],
    iov: str,
) -> tuple[VfFacts, ...]:
    found = []
    for entry in sysfs.names(device):
        if not re.fullmatch(r"virtfn[0-9]{1,5}", entry):
            continue
        number, address = int(entry.removeprefix("virtfn")), sysfs.target(f"{device}/{entry}")
        if not is_address(address):
            continue
        mine = settings.get(number, VfSettings())
        if iov:
            index = sysfs.number(f"{iov}/{address}/ports/1/pkey_idx/0")
            mine = replace(mine, pkey_index=index)
        found.append(_vf(sysfs, by_name, (number, address), mine))
    return tuple(sorted(found, key=lambda vf: vf.number))


def _vf(
    sysfs: Sysfs, by_name: Mapping[str, Link], who: tuple[int, str], settings: VfSettings
) -> VfFacts:
    number, address = who
    device = f"{DEVICES}/{address}"
    group = sysfs.target(f"{device}/iommu_group")
    others = [n for n in sysfs.names(f"{device}/iommu_group/devices") if n != address]
    override = sysfs.text(f"{device}/driver_override")
    alias = sysfs.text(f"{device}/modalias")
    return VfFacts(
        address=address,
        number=number,
        driver=sysfs.target(f"{device}/driver"),
        driver_override="" if override == "(null)" else override,
        group=int(group) if group.isdigit() else None,
        group_others=tuple(others),
        numa=_numa(sysfs, device),
        links=_links(sysfs, by_name, device),
        settings=settings,
        rdma=tuple(sysfs.names(f"{device}/infiniband")),
        alias=alias if _ALIAS.fullmatch(alias) else "",
    )


def _numa(sysfs: Sysfs, device: str) -> int:
    node = sysfs.number(f"{device}/numa_node")
    return -1 if node is None else max(node, -1)


def _ports(sysfs: Sysfs, address: str) -> tuple[Port, ...]:
    """Return the ports above an adapter whose ACS decides whether its VFs are isolated."""
    above = [name for name in sysfs.above(f"{DEVICES}/{address}") if is_address(name)]
    ports = [acs_of_port(name, sysfs.data(f"{DEVICES}/{name}/config", 4096)) for name in above]
    return tuple(port for port in ports if port is not None)


def _pkeys(sysfs: Sysfs, rdma: str) -> tuple[int, ...]:
    """Return the partition keys of an adapter's first port, by index."""
    directory = f"sys/class/infiniband/{rdma}/ports/1/pkeys"
    entries = sorted(int(name) for name in sysfs.names(directory) if name.isdigit())
    return tuple(sysfs.number(f"{directory}/{index}") or 0 for index in entries)
