# SPDX-License-Identifier: Apache-2.0
"""How vendors call BIOS settings, in Redfish's `Attributes`. Data, each table with its sources.

A vendor spells one setting differently by generation and by processor, so each has alternatives:
the first whose name the machine has is taken, and of its value groups the one the machine uses.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Wanted = bool | int | str


@dataclass(frozen=True)
class Alternative:
    """One spelling. `free`: its present value may be one that no group has (a profile)."""

    name: str
    groups: tuple[Mapping[Wanted, str], ...]
    free: bool = False


@dataclass(frozen=True)
class Vendor:
    """A vendor's table. `suffixed`: names end in a number that differs between machines."""

    name: str
    manufacturers: tuple[str, ...]
    settings: Mapping[str, tuple[Alternative, ...]]
    sources: tuple[str, ...]
    suffixed: bool = False


_ENABLED: dict[Wanted, str] = {True: "Enabled", False: "Disabled"}
_ENABLE: dict[Wanted, str] = {True: "Enable", False: "Disable"}
_EITHER = (_ENABLED, _ENABLE)


def _switch(*names: str) -> tuple[Alternative, ...]:
    return tuple(Alternative(name, _EITHER) for name in names)


VENDORS = (
    Vendor(
        "Dell",
        ("dell",),
        {
            # On Intel machines VT-d has no switch of its own: ProcVirtualization is both.
            "virtualization": _switch("ProcVirtualization"),
            "iommu": _switch("IommuSupport", "ProcVirtualization"),
            "sriov": _switch("SriovGlobalEnable"),
            "smt": _switch("LogicalProc"),
            "numa_per_socket": (
                Alternative("NumaNodesPerSocket", ({1: "1", 2: "2", 4: "4"},)),
                Alternative(
                    "SubNumaCluster",
                    ({1: "Disabled", 2: "Enabled"}, {1: "Disabled", 2: "2-way", 4: "4-way"}),
                ),
            ),
            "power": (
                Alternative(
                    "SysProfile",
                    ({"performance": "PerfOptimized", "os": "PerfPerWattOptimizedOs"},),
                    free=True,
                ),
            ),
        },
        (
            "Dell DCIM BIOS and Boot Management Profile (DCIM1040)",
            "OpenStack Ironic, iDRAC driver: BIOS configuration",
        ),
    ),
    Vendor(
        "HPE",
        ("hpe", "hewlett packard", "hewlettpackard", "hp"),
        {
            "virtualization": _switch("ProcVirtualization"),
            "iommu": _switch("IntelProcVtd", "ProcAmdIoVt"),
            "sriov": _switch("Sriov"),
            "smt": _switch("ProcHyperthreading", "ProcSMT"),
            "numa_per_socket": (
                Alternative("SubNumaClustering", ({1: "Disabled", 2: "Enabled"},)),
            ),
            # Writable where WorkloadProfile is Custom.
            "power": (
                Alternative(
                    "PowerRegulator",
                    ({"performance": "StaticHighPerf", "os": "OsControl"},),
                    free=True,
                ),
            ),
        },
        (
            "HPE iLO 5 RESTful API documentation, Bios resource definitions",
            "OpenStack Ironic, iLO driver: BIOS configuration",
        ),
    ),
    Vendor(
        "Lenovo",
        ("lenovo",),
        {
            "virtualization": _switch(
                "Processors_IntelVirtualizationTechnology", "Processors_SVMMode"
            ),
            "iommu": _switch(
                "DevicesandIOPorts_IntelVTforDirectedIOVTd",
                "Devices_and_IO_Ports_IntelVTforDirectedIOVTd",
            ),
            "sriov": _switch("DevicesandIOPorts_SRIOV", "Devices_and_IO_Ports_SRIOV"),
            "smt": _switch("Processors_HyperThreading", "Processors_SMTMode"),
            "numa_per_socket": (
                Alternative(
                    "Processors_SNC",
                    ({1: "Disabled", 2: "Enabled"}, {1: "Disable", 2: "Enable"}),
                ),
            ),
            "power": (
                Alternative(
                    "OperatingModes_ChooseOperatingMode",
                    ({"performance": "MaximumPerformance"},),
                    free=True,
                ),
            ),
        },
        (
            "Lenovo XClarity Controller REST API Guide, BIOS attribute registries",
            "Lenovo Press LP1477, Tuning UEFI Settings",
            "python-redfish-lenovo, examples",
        ),
    ),
    Vendor(
        "Supermicro",
        ("supermicro", "super micro"),
        {
            "virtualization": _switch("IntelVirtualizationTechnology", "SVMMode"),
            "iommu": _switch("IntelVTforDirectedI/O(VT-d)", "IntelVTforDirectedI_O_VT_d", "IOMMU"),
            "sriov": _switch("SR-IOVSupport", "SR_IOVSupport"),
            "smt": _switch("Hyper-Threading[ALL]", "SMTControl"),
        },
        (
            "Supermicro Redfish Reference Guide, BIOS Configuration",
            "libredfish (NVIDIA), attributes of Supermicro machines",
        ),
        suffixed=True,
    ),
)


def vendor_of(manufacturer: str) -> Vendor | None:
    """Return the table for what a BMC calls its manufacturer."""
    word = manufacturer.strip().lower()
    return next((v for v in VENDORS if any(word.startswith(m) for m in v.manufacturers)), None)
