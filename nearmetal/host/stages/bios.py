# SPDX-License-Identifier: Apache-2.0
"""The BIOS stage: from neutral settings to attributes of a vendor, by tables with sources. Pure.

A vendor's names differ by generation and by processor, so each setting has several attributes. The
first attribute that the machine has is used, with the spelling of values that the machine uses.

A registry may lock an attribute while another one has a value. For example, HPE's PowerRegulator is
locked until WorkloadProfile is Custom. Then the other one changes first, and a boot lies between.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass

from nearmetal.host.hosts_file import Bios
from nearmetal.host.model import BiosFacts, BiosValue, Lock, PlatformFacts
from nearmetal.host.steps import Outcome, SetBios, Stage, Wait

Wanted = bool | int | str


@dataclass(frozen=True)
class Attribute:
    """One spelling of a setting. `free`: its present value may be in no group (a profile)."""

    name: str
    groups: tuple[Mapping[Wanted, str], ...]
    free: bool = False


@dataclass(frozen=True)
class Vendor:
    """The table of a vendor.

    `suffixed`: names end in a number and have marks, and both differ between machines.
    """

    name: str
    manufacturers: tuple[str, ...]
    settings: Mapping[str, tuple[Attribute, ...]]
    sources: tuple[str, ...]
    suffixed: bool = False


_ENABLED: dict[Wanted, str] = {True: "Enabled", False: "Disabled"}
_ENABLE: dict[Wanted, str] = {True: "Enable", False: "Disable"}


def _switch(*names: str) -> tuple[Attribute, ...]:
    return tuple(Attribute(name, (_ENABLED, _ENABLE)) for name in names)


def _profile(name: str, **values: str) -> tuple[Attribute, ...]:
    return (Attribute(name, (dict(values.items()),), free=True),)


VENDORS = (
    Vendor(
        "Dell",
        ("dell",),
        {
            # On Intel machines ProcVirtualization is also the switch of VT-d.
            "virtualization": _switch("ProcVirtualization"),
            "iommu": _switch("IommuSupport", "ProcVirtualization"),
            "sriov": _switch("SriovGlobalEnable"),
            "smt": _switch("LogicalProc"),
            "numa_per_socket": (
                Attribute("NumaNodesPerSocket", ({1: "1", 2: "2", 4: "4"},)),
                Attribute(
                    "SubNumaCluster",
                    ({1: "Disabled", 2: "Enabled"}, {1: "Disabled", 2: "2-way", 4: "4-way"}),
                ),
            ),
            "power": _profile(
                "SysProfile", performance="PerfOptimized", os="PerfPerWattOptimizedOs"
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
                Attribute("SubNumaClustering", ({1: "Disabled", 2: "Enabled"},)),
                Attribute(
                    "NumaMemoryDomainsPerSocket",
                    (
                        {
                            1: "OneMemoryDomainPerSocket",
                            2: "TwoMemoryDomainsPerSocket",
                            4: "FourMemoryDomainsPerSocket",
                        },
                    ),
                    free=True,
                ),
            ),
            "power": _profile("PowerRegulator", performance="StaticHighPerf", os="OsControl"),
        },
        (
            "HPE iLO 5 RESTful API documentation, Bios resource definitions",
            "OpenStack Ironic, iLO driver: BIOS configuration",
            "libredfish (NVIDIA), mockup of a DL385 Gen10 Plus v2",
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
                Attribute(
                    "Processors_SNC", ({1: "Disabled", 2: "Enabled"}, {1: "Disable", 2: "Enable"})
                ),
            ),
            "power": (
                *_profile("OperatingModes_ChooseOperatingMode", performance="MaximumPerformance"),
                *_profile("Power_PowerPerformanceBias", os="OSControlled"),
            ),
        },
        (
            "Lenovo XClarity Controller REST API Guide, BIOS attribute registries",
            "Lenovo Press LP1477, Tuning UEFI Settings",
            "python-redfish-lenovo, examples",
            "libredfish (NVIDIA), mockup of an SR670 V2",
        ),
    ),
    Vendor(
        "Supermicro",
        ("supermicro", "super micro"),
        {
            "virtualization": _switch("IntelVirtualizationTechnology", "SVMMode"),
            "iommu": _switch("IntelVTforDirectedI/O(VT-d)", "IOMMU"),
            "sriov": _switch("SR-IOVSupport"),
            "smt": _switch("Hyper-Threading[ALL]", "SMTControl"),
            "numa_per_socket": (
                Attribute(
                    "SNC",
                    (
                        {
                            1: "Disable",
                            2: "Enable SNC2 (2-clusters)",
                            4: "Enable SNC4 (4-clusters)",
                        },
                    ),
                    free=True,
                ),
            ),
        },
        (
            "Supermicro Redfish Reference Guide, BIOS Configuration",
            "libredfish (NVIDIA), attributes of Supermicro machines, mockup of a SYS-821GE-TNHR",
        ),
        suffixed=True,
    ),
)


_STAGE = Stage.BIOS
_WHY = "the BIOS reads its settings at boot"
_SUFFIX = re.compile(r"[_#][0-9A-Fa-f]{4}$")
_MARKS = re.compile(r"[^A-Za-z0-9]")
_NEUTRAL = ("virtualization", "iommu", "sriov", "smt", "numa_per_socket", "power")
_CUSTOM = "custom"
"""The beginning of the value of a profile that locks nothing, and changes no other attribute."""


def vendor_of(manufacturer: str) -> Vendor | None:
    """Return the table for the manufacturer that a BMC reports."""
    word = manufacturer.strip().lower()
    return next((v for v in VENDORS if word.startswith(v.manufacturers)), None)


def plan_bios(wanted: Bios, facts: PlatformFacts, outcome: Outcome) -> None:
    """Add the missing steps for the BIOS."""
    chosen = {name: value for name in _NEUTRAL if (value := getattr(wanted, name)) is not None}
    if not chosen and not wanted.attributes:
        return
    bios = facts.bios
    if bios is None:
        outcome.refuse(_STAGE, "the BIOS could not be read", "see the reason above")
        return
    targets: dict[str, BiosValue] = {}
    vendor = vendor_of(bios.vendor)
    if vendor is None and chosen:
        outcome.refuse(
            _STAGE,
            f"no table of BIOS names for {bios.vendor[:40]!r}",
            "name its own attributes under bios.attributes",
        )
    elif vendor is not None:
        for setting, value in chosen.items():
            _translate(vendor, bios, (setting, value), targets, outcome)
    for name, raw in wanted.attributes.items():
        if name not in bios.attributes:
            outcome.refuse(
                _STAGE, f"this {bios.vendor} BIOS has no attribute {name!r}", _close(name, bios)
            )
        elif targets.setdefault(name, raw) != raw:
            outcome.refuse(
                _STAGE,
                f"bios.attributes sets {name} to {raw!r}, and another setting "
                f"of the file to {targets[name]!r}",
                "remove one of them",
            )
    # A profile that locks others comes after them.
    locking = {lock.other for name in targets for lock in bios.locks.get(name, ())}
    for name in sorted(targets, key=lambda name: name in locking):
        _plan_unlocked(bios, name, targets, outcome)


def _translate(
    vendor: Vendor,
    bios: BiosFacts,
    want: tuple[str, Wanted],
    targets: dict[str, BiosValue],
    outcome: Outcome,
) -> None:
    setting, value = want
    attributes = vendor.settings.get(setting, ())
    if not attributes:
        outcome.refuse(
            _STAGE,
            f"the table for {vendor.name} has no {setting}",
            "name its attribute under bios.attributes",
        )
        return
    for attribute in attributes:
        name = _find(attribute.name, bios, suffixed=vendor.suffixed)
        if name is None or not any(value in group for group in attribute.groups):
            continue
        target = _value(attribute, name, value, bios)
        if target is None:
            known = bios.allowed.get(name) or (str(bios.attributes[name]),)
            outcome.refuse(
                _STAGE,
                f"no known value of {name} means {setting}: {_word(value)} on this {vendor.name} "
                f"(it has {', '.join(known[:8])})",
                "name attribute and value under bios.attributes",
            )
        elif targets.setdefault(name, target) != target:
            outcome.refuse(
                _STAGE,
                f"{setting}: {_word(value)} needs {name} {target}, and another setting of the "
                f"file needs {targets[name]}: this {vendor.name} has one switch for both",
                "use the same value for both",
            )
        return
    names = " or ".join(attribute.name for attribute in attributes)
    outcome.refuse(
        _STAGE,
        f"this {vendor.name} BIOS has no attribute for {setting}: {_word(value)} ({names})",
        f"{_close(attributes[0].name, bios)}; a BIOS may have no such switch: then remove "
        f"bios.{setting}",
    )


def _find(name: str, bios: BiosFacts, *, suffixed: bool) -> str | None:
    if name in bios.attributes or not suffixed:
        return name if name in bios.attributes else None
    wanted = _bare(name)
    return next((a for a in sorted(bios.attributes) if _bare(_SUFFIX.sub("", a)) == wanted), None)


def _bare(name: str) -> str:
    """Return `SRIOVSupport` for `SR-IOVSupport` and for `SR_IOVSupport`."""
    return _MARKS.sub("", name)


def _value(attribute: Attribute, name: str, wanted: Wanted, bios: BiosFacts) -> str | None:
    """Return the wanted value in the spelling of this machine."""
    groups = [group for group in attribute.groups if wanted in group]
    allowed = bios.allowed.get(name)
    if allowed:
        spelling = {value.casefold(): value for value in allowed}
        found = (spelling.get(group[wanted].casefold()) for group in groups)
        return next((value for value in found if value is not None), None)
    now = bios.attributes[name]
    fitting = [g for g in groups if now in g.values()] or (groups if attribute.free else [])
    return fitting[0][wanted] if fitting else None


def _close(name: str, bios: BiosFacts) -> str:
    near = difflib.get_close_matches(name, list(bios.attributes), 3, 0.5)
    there = f"it has {', '.join(near)};" if near else "list them with Redfish, and"
    return f"{there} name one under bios.attributes"


def _word(value: BiosValue) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _plan_unlocked(
    bios: BiosFacts, name: str, targets: Mapping[str, BiosValue], outcome: Outcome
) -> None:
    """Add the step for an attribute, after the one that unlocks it."""
    locks = bios.locks.get(name, ())
    held = next((lock for lock in locks if lock.holds(bios.attributes)), None)
    if held is None or bios.attributes[name] == targets[name]:
        plan_attribute(bios, name, targets[name], outcome)
        return
    opening = _opening(bios, [lock for lock in locks if lock.other == held.other])
    wanted = targets.get(held.other, next((v for v in opening if _is_custom(v)), None))
    if wanted not in opening:
        now = _word(bios.attributes[held.other])
        outcome.refuse(
            _STAGE,
            f"{name} is locked while {held.other} is {now}",
            f"set {held.other} under bios.attributes: {', '.join(opening[:8]) or 'another value'}",
        )
        return
    if held.other not in targets and all(s.key != _key(held.other) for s in outcome.steps):
        plan_attribute(bios, held.other, wanted, outcome, why=f"unlocks {name}")
    plan_attribute(bios, name, targets[name], outcome, after=(_key(held.other),))


def _opening(bios: BiosFacts, locks: list[Lock]) -> tuple[str, ...]:
    """Return the values of one attribute under which none of its locks holds."""
    other = locks[0].other
    known = bios.allowed.get(other) or tuple(lock.value for lock in locks)
    return tuple(v for v in known if not any(lock.holds({other: v}) for lock in locks))


def _is_custom(value: str) -> bool:
    return value.casefold().startswith(_CUSTOM)


def _key(name: str) -> str:
    return f"bios {name}"


def plan_attribute(
    bios: BiosFacts,
    name: str,
    target: BiosValue,
    outcome: Outcome,
    *,
    why: str = "",
    after: tuple[str, ...] = (),
) -> None:
    """Add the step for the value of an attribute that this BIOS has.

    `why`: what it is for, if the file does not have it; `after`: keys of steps that unlock it. A
    value that locks other attributes comes after their steps.
    """
    now = bios.attributes[name]
    staged = bios.pending.get(name, now)
    locked = tuple(
        step.key
        for step in outcome.steps
        if isinstance(step.action, SetBios | Wait)
        and any(
            lock.other == name and lock.holds({name: target}) and not lock.holds(bios.attributes)
            for lock in bios.locks.get(step.key.removeprefix(_key("")), ())
        )
    )
    after, note = (*after, *locked), f" ({why})" if why else ""
    if staged != target:
        text = f"{name}: {_word(staged)} -> {_word(target)}{note}"
        reason = "" if now == target else _WHY
        action = SetBios(name, target, now)
        outcome.step(_STAGE, _key(name), text, action, reason, after=after)
    elif now != target:
        text = f"{name}: {_word(target)} is staged, {_word(now)} is in force{note}"
        outcome.step(_STAGE, _key(name), text, Wait(), _WHY, after=after)
