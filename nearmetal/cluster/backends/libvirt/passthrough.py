# SPDX-License-Identifier: Apache-2.0
"""Whole devices of this machine for its virtual machines, as sysfs shows them."""

from __future__ import annotations

from collections.abc import Iterable

from nearmetal.cluster.resource import Region
from nearmetal.core.errors import BackendError
from nearmetal.host.parse.regions import regions_of
from nearmetal.host.stages.devices import VFIO_DRIVER
from nearmetal.host.vf.facts import Sysfs

_DEVICES = "sys/bus/pci/devices"
_HARMLESS = ("", "pcieport", "pci-stub", VFIO_DRIVER)
"""Drivers of a device that may stay in an IOMMU group of a machine."""

_GIVE = "give it to a machine first: passthrough in the file of hosts, and `nearmetal host apply`"


def survey(sysfs: Sysfs, devices: Iterable[str]) -> list[Region]:
    """Return the regions of devices; raises BackendError for one that no machine can get."""
    wanted = list(devices)
    return [_region(sysfs, address, wanted) for address in wanted]


def _region(sysfs: Sysfs, address: str, wanted: list[str]) -> Region:
    place = f"{_DEVICES}/{address}"
    if address not in sysfs.names(_DEVICES):
        raise BackendError(f"this machine has no device {address}", "look for it with lspci -D")
    if sysfs.target(f"{place}/physfn"):
        hint = "use vf, which assigns virtual functions, or the address of its adapter"
        raise BackendError(f"{address} is a virtual function", hint)
    driver = sysfs.target(f"{place}/driver")
    if driver != VFIO_DRIVER:
        what = f"{address} has {f'the driver {driver}' if driver else 'no driver'}"
        raise BackendError(f"{what}, not {VFIO_DRIVER}", _GIVE)
    if not sysfs.target(f"{place}/iommu_group"):
        hint = "switch the IOMMU on: `nearmetal host plan` shows how"
        raise BackendError(f"{address} has no IOMMU group", hint)
    for mate in sysfs.names(f"{place}/iommu_group/devices"):
        other = sysfs.target(f"{_DEVICES}/{mate}/driver")
        if mate not in wanted and other not in _HARMLESS:
            what = f"{address} shares its IOMMU group with {mate}, which has the driver {other}"
            raise BackendError(what, _GIVE.replace("it", mate, 1))
    return Region(address, tuple(size for size, _ in regions_of(_listed(sysfs, address))))


def _listed(sysfs: Sysfs, address: str) -> str:
    return sysfs.data(f"{_DEVICES}/{address}/resource").decode("ascii", "replace")


def group_files(sysfs: Sysfs, devices: Iterable[str]) -> list[str]:
    """Return the files of vfio by which QEMU opens these devices."""
    groups = (sysfs.target(f"{_DEVICES}/{address}/iommu_group") for address in devices)
    return sorted({f"/dev/vfio/{group}" for group in groups if group})
