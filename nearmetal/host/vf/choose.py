# SPDX-License-Identifier: Apache-2.0
"""The choice of a VF for a node, with the reasons. Pure: facts and claims in, a choice out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from nearmetal.core.errors import HostError
from nearmetal.host.vf.model import (
    ETHERNET,
    INFINIBAND,
    Iommu,
    Machine,
    PfFacts,
    Use,
    VfFacts,
    VfSettings,
)
from nearmetal.host.vf.request import VfRequest

_LISTED = 6


@dataclass(frozen=True)
class Choice:
    """The adapter and its VF; None if `create` VFs have to be created first."""

    pf: PfFacts
    vf: VfFacts | None
    create: int
    reasons: tuple[str, ...]
    notes: tuple[str, ...] = ()

    def applied(self, machine: Machine) -> Machine:
        """Return the machine as it will be with the VFs that this choice creates."""
        address, numa = self.pf.address, self.pf.numa
        vfs = tuple(
            VfFacts(f"{address} VF {number}", number, "", "", None, (), numa, (), VfSettings())
            for number in range(self.create)
        )
        pfs = (replace(pf, vfs=vfs) if pf.address == address else pf for pf in machine.pfs)
        return replace(machine, pfs=tuple(pfs))


def used_by(vf: VfFacts, claims: Mapping[str, str]) -> str:
    """Return the user of a VF in words; "" for a free VF.

    `claims`: owners by the address of the VF, from the ledger. A VF that is not in the ledger is
    in use as soon as anything shows that another program may have set it aside.
    """
    if vf.address in claims:
        return claims[vf.address]
    if vf.driver.startswith(("vfio", "uio", "pci-stub", "igb_uio")):
        return f"bound to {vf.driver} by another program"
    if vf.driver_override:
        return f"set aside for {vf.driver_override} by another program"
    for link in vf.links:
        if link.enslaved:
            return f"its network device {link.name} is part of a bridge or bond"
        if link.up:
            return f"its network device {link.name} is up on this machine"
    if vf.driver and not vf.links:
        return f"driver {vf.driver} has it, and its network device is in another namespace"
    return ""


_IOMMU_TABLES = {"DMAR": "intel", "IVRS": "amd"}
_IOMMU_SWITCHES = {
    "intel": (
        "Intel VT-d (or 'Virtualization Technology for Directed I/O')",
        "intel_iommu=on iommu=pt",
    ),
    "amd": ("IOMMU (or 'AMD-Vi', 'SVM and IOMMU')", "iommu=pt, and no amd_iommu=off"),
}
"""By vendor of the processor: the switch in the BIOS, and the kernel's arguments."""


def _iommu_hint(iommu: Iommu) -> str:
    """Return the switches to set: first in the BIOS, then of the kernel."""
    vendor = next((_IOMMU_TABLES[t] for t in iommu.tables if t in _IOMMU_TABLES), iommu.vendor)
    unknown = "the IOMMU (VT-d, AMD-Vi or SMMU)", "iommu=pt"
    bios, kernel = _IOMMU_SWITCHES.get(vendor, unknown)
    boot = f"boot the kernel with {kernel}"
    boot += f" (now: {' '.join(iommu.switches)})" if iommu.switches else ""
    if iommu.tables:
        return f"the BIOS describes an IOMMU ({', '.join(iommu.tables)}): {boot}"
    return f"switch on {bios} and 'SR-IOV Global Enable' in the BIOS, then {boot}"


def check_iommu(machine: Machine) -> None:
    """Raise HostError if devices cannot be given to virtual machines at all."""
    if not machine.iommu.on:
        raise HostError(
            "the IOMMU is off: no device of this machine can be given to a virtual machine",
            _iommu_hint(machine.iommu),
        )


def candidates(request: VfRequest, machine: Machine) -> list[PfFacts]:
    """Return the adapters that a request allows, in its order; HostError for unknown names."""
    if not request.pfs:
        if not machine.pfs:
            raise HostError(
                "this machine has no adapter with SR-IOV",
                "switch on SR-IOV in the BIOS and in the adapter's firmware, or leave vf out",
            )
        return list(machine.pfs)
    return list(dict.fromkeys(_named(name, machine) for name in request.pfs))


def _named(name: str, machine: Machine) -> PfFacts:
    pf = machine.find(name)
    if pf is not None:
        return pf
    for pf in machine.pfs:
        for vf in pf.vfs:
            if name in (vf.address, *(link.name for link in vf.links)):
                raise HostError(f"{name} is itself a VF", f"name its adapter: {pf.name}")
    address = next((a for other, a in reversed(machine.others) if a and other == name), "")
    if address:
        where = "" if address == name else f" (PCI {address})"
        raise HostError(
            f"{name}{where} has no SR-IOV",
            "switch on SR-IOV in the BIOS ('SR-IOV Global Enable') and in the adapter's firmware "
            "(mlxconfig: SRIOV_EN, NUM_OF_VFS), or use another adapter",
        )
    listed = ", ".join(pf.name for pf in machine.pfs) or "none with SR-IOV"
    raise HostError(f"this machine has no adapter {name!r}", f"it has: {listed}")


def _check_link(request: VfRequest, pf: PfFacts) -> None:
    """Raise HostError if this adapter's link cannot do what the request contains."""
    if not pf.driver:
        raise HostError("it has no driver", f"load one: modprobe -R pci:{pf.ids}")
    if pf.link is None:
        raise HostError(
            "it has no network device to configure VFs through",
            "is the device in another network namespace, or its driver without one?",
        )
    if pf.link_type not in (ETHERNET, INFINIBAND):
        raise HostError("it is neither Ethernet nor InfiniBand", "use another adapter")
    if pf.link_type == ETHERNET and request.pkey:
        raise HostError("partition keys are InfiniBand's, and it is Ethernet", "use vlan")
    if pf.link_type == INFINIBAND:
        asked = {
            "vlan": request.vlan is not None,
            "trust": request.trust,
            "rate": request.rate is not None,
            "spoof_check: false": not request.spoof_check,
        }
        if any(asked.values()):
            names = ", ".join(name for name, on in asked.items() if on)
            raise HostError(f"{names}: Ethernet's, and it is InfiniBand", "use pkey")
        if request.pkey and pf.vf_pkeys and int(request.pkey, 16) not in pf.pkeys:
            hint = "add its port to that partition in the subnet manager first"
            raise HostError(f"it is not in partition {request.pkey} itself", hint)


def _shared_group(pf: PfFacts, vf: VfFacts) -> HostError:
    blame = [port.address for port in pf.ports if port.acs is False]
    listed = ", ".join(vf.group_others[:_LISTED])
    why = f"; no ACS at {', '.join(blame)}" if blame else ""
    return HostError(
        f"VF {vf.address} shares IOMMU group {vf.group} with {listed}{why}",
        "put the adapter into a slot whose root port has ACS (or switch ACS on in the BIOS): "
        "devices of one group cannot be kept apart",
    )


def _examine(
    request: VfRequest, pf: PfFacts, claims: Mapping[str, str], use: Use
) -> tuple[VfFacts | None, int]:
    """Return a free VF of this adapter, or the number of VFs to create; HostError for neither."""
    _check_link(request, pf)
    asked = 0 if request.create == "auto" else request.create
    if asked > pf.total:
        raise HostError(
            f"{asked} VFs are requested, and it offers {pf.total}",
            "request fewer, or raise the number in the adapter's firmware (NUM_OF_VFS)",
        )
    if pf.link is not None and pf.link.up and not pf.link.carrier:
        hint = f"check the cable and the switch's port of {pf.name}, or the subnet manager"
        raise HostError("its link is down", hint)
    if not pf.vfs:
        return None, asked or pf.total
    uses = {vf.address: used_by(vf, claims) for vf in pf.vfs}
    free = [vf for vf in pf.vfs if not uses[vf.address]]
    # A shared group matters only for devices that are given to a virtual machine.
    alone = [vf for vf in free if use == "host" or not vf.group_others]
    if alone:
        return alone[0], 0
    if free:
        raise _shared_group(pf, free[0])
    listed = [f"{address}: {use}" for address, use in uses.items()]
    more = f", and {len(listed) - _LISTED} more" if len(listed) > _LISTED else ""
    raise HostError(
        f"its {len(uses)} VFs are in use ({'; '.join(listed[:_LISTED])}{more})",
        "wait until a VF is returned, name another adapter, or create more when none is used: "
        f"it offers {pf.total}"
        if len(uses) < pf.total
        else "wait until a VF is returned, or name another adapter",
    )


def choose(
    request: VfRequest,
    machine: Machine,
    claims: Mapping[str, str],
    numa: frozenset[int] = frozenset(),
    use: Use = "machine",
) -> Choice:
    """Return the VF for a node; raises HostError with every adapter's reason.

    `numa`: the NUMA nodes of its processors, empty for any. The nearest adapter comes first, then
    existing VFs before VFs that must be created, then the adapter with the most VFs left.
    """
    if use == "machine":
        check_iommu(machine)
    allowed = candidates(request, machine)
    possible: list[tuple[tuple[int, int, int, int], PfFacts, VfFacts | None, int]] = []
    refused: list[tuple[PfFacts, HostError]] = []
    for place, pf in enumerate(allowed):
        try:
            vf, create = _examine(request, pf, claims, use)
        except HostError as error:
            refused.append((pf, error))
            continue
        left = create or sum(not used_by(other, claims) for other in pf.vfs)
        far = int(bool(numa) and pf.numa >= 0 and pf.numa not in numa)
        possible.append(((far, int(create > 0), -left, place), pf, vf, create))
    if not possible:
        raise _refuse(refused)
    (far, *_), pf, vf, create = min(possible, key=lambda entry: entry[0])
    return Choice(pf, vf, create, _reasons(pf, create, numa, len(allowed), far=bool(far)))


def _refuse(refused: list[tuple[PfFacts, HostError]]) -> HostError:
    if len(refused) == 1:
        pf, why = refused[0]
        return HostError(f"adapter {pf.name} ({pf.address}): {why.message}", why.hint)
    lines = [f"  {pf.name} ({pf.address}): {why.message}" for pf, why in refused]
    hints = dict.fromkeys(why.hint for _, why in refused)
    return HostError("\n".join(["no adapter can give a VF:", *lines]), "; ".join(hints))


def _reasons(
    pf: PfFacts, create: int, numa: frozenset[int], allowed: int, *, far: bool
) -> tuple[str, ...]:
    nodes = ",".join(map(str, sorted(numa)))
    if far:
        near = f"NUMA node {pf.numa}, while the processors are on {nodes}: nothing nearer is free"
    elif pf.numa < 0 or not numa:
        near = "its distance makes no difference here"
    else:
        near = f"on NUMA node {pf.numa}, as the processors are"
    found = [f"adapter {pf.name} ({pf.address}): {near}"]
    if allowed > 1:
        found.append(f"best of {allowed} adapters")
    if create:
        found.append(f"it has no VFs yet: {create} of {pf.total} are created")
    return tuple(found)
