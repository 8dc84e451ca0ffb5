# SPDX-License-Identifier: Apache-2.0
"""Which VF a node gets, and why; or why none. Pure: facts and claims in, a choice out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nearmetal.core.errors import HostError
from nearmetal.host.vf.model import ETHERNET, INFINIBAND, Iommu, Machine, PfFacts, Use, VfFacts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nearmetal.host.vf.request import VfRequest

VFIO = "vfio-pci"
_LISTED = 6


@dataclass(frozen=True)
class Refusal:
    """Why an adapter cannot give a VF, and what would help."""

    what: str
    hint: str


@dataclass(frozen=True)
class Choice:
    """The adapter, and a VF of it; None where `create` VFs have to be created first."""

    pf: PfFacts
    vf: VfFacts | None
    create: int
    reasons: tuple[str, ...]
    notes: tuple[str, ...] = ()


def used_by(vf: VfFacts, claims: Mapping[str, str]) -> str:
    """Return who uses a VF, in words; "" when it is free.

    `claims`: owners by the address of the VF, from the ledger. What is in nobody's ledger counts
    as used as soon as anything says that somebody may have set it aside.
    """
    if vf.address in claims:
        return claims[vf.address]
    if vf.driver == VFIO or vf.driver.startswith(("vfio", "uio", "pci-stub", "igb_uio")):
        return f"bound to {vf.driver} by somebody else"
    if vf.driver_override:
        return f"set aside for {vf.driver_override} by somebody else"
    for link in vf.links:
        if link.enslaved:
            return f"its network device {link.name} is part of a bridge or bond"
        if link.up:
            return f"its network device {link.name} is up on this machine"
    if vf.driver and not vf.links:
        return f"driver {vf.driver} has it, and its network device is in another namespace"
    return ""


def _iommu_hint(iommu: Iommu) -> str:
    """Say which switches to set: first the BIOS's, then the kernel's."""
    table = {"DMAR": "intel", "IVRS": "amd"}
    vendor = next((table[t] for t in iommu.tables if t in table), iommu.vendor)
    bios = {
        "intel": "Intel VT-d (or 'Virtualization Technology for Directed I/O')",
        "amd": "IOMMU (or 'AMD-Vi', 'SVM and IOMMU')",
    }.get(vendor, "the IOMMU (VT-d, AMD-Vi or SMMU)")
    kernel = {
        "intel": "intel_iommu=on iommu=pt",
        "amd": "iommu=pt, and no amd_iommu=off",
    }.get(vendor, "iommu=pt")
    said = f" (now: {' '.join(iommu.switches)})" if iommu.switches else ""
    if iommu.tables:
        return (
            f"the BIOS describes one ({', '.join(iommu.tables)}): boot the kernel with "
            f"{kernel}{said}"
        )
    return (
        f"switch on {bios} and 'SR-IOV Global Enable' in the BIOS, then boot the kernel with "
        f"{kernel}{said}"
    )


def check_iommu(machine: Machine) -> None:
    """Raise HostError when devices cannot be given to virtual machines at all."""
    if not machine.iommu.on:
        msg = "the IOMMU is off: no device of this machine can be given to a virtual machine"
        raise HostError(msg, _iommu_hint(machine.iommu))


def candidates(request: VfRequest, machine: Machine) -> list[PfFacts]:
    """Return the adapters a request allows, in its order; raises HostError for unknown ones."""
    if not request.pfs:
        if not machine.pfs:
            msg = "this machine has no adapter with SR-IOV"
            hint = "switch on SR-IOV in the BIOS and in the adapter's firmware; else leave vf out"
            raise HostError(msg, hint)
        return list(machine.pfs)
    found = []
    for name in request.pfs:
        pf = machine.find(name)
        if pf is None:
            raise _unknown(name, machine)
        if pf not in found:
            found.append(pf)
    return found


def _unknown(name: str, machine: Machine) -> HostError:
    addresses = {other: address for other, address in machine.others if address}
    owner = next(
        (
            pf
            for pf in machine.pfs
            for vf in pf.vfs
            if name == vf.address or any(name == link.name for link in vf.links)
        ),
        None,
    )
    if owner is not None:
        return HostError(f"{name} is itself a VF", f"name its adapter: {owner.name}")
    if name in addresses:
        where = "" if addresses[name] == name else f" (PCI {addresses[name]})"
        hint = (
            "switch on SR-IOV in the BIOS ('SR-IOV Global Enable') and in the adapter's firmware "
            "(mlxconfig: SRIOV_EN, NUM_OF_VFS), or use another adapter"
        )
        return HostError(f"{name}{where} has no SR-IOV", hint)
    listed = ", ".join(pf.name for pf in machine.pfs) or "none with SR-IOV"
    return HostError(f"this machine has no adapter {name!r}", f"it has: {listed}")


def _mismatch(request: VfRequest, pf: PfFacts) -> Refusal | None:
    """Return what the request asks that this adapter's link cannot do."""
    if not pf.driver:
        return Refusal("it has no driver", f"load one: modprobe -R pci:{pf.ids}")
    if pf.link is None:
        hint = "is it in another network namespace, or its driver without one?"
        return Refusal("it has no network device to configure VFs through", hint)
    if pf.link_type not in (ETHERNET, INFINIBAND):
        return Refusal("it is neither Ethernet nor InfiniBand", "use another adapter")
    if pf.link_type == ETHERNET and request.pkey:
        return Refusal("partition keys are InfiniBand's, and it is Ethernet", "use vlan")
    if pf.link_type == INFINIBAND:
        asked = [
            name
            for name, on in (
                ("vlan", request.vlan is not None),
                ("trust", request.trust),
                ("rate", request.rate is not None),
                ("spoof_check: false", not request.spoof_check),
            )
            if on
        ]
        if asked:
            return Refusal(f"{', '.join(asked)}: Ethernet's, and it is InfiniBand", "use pkey")
        if request.pkey and pf.vf_pkeys and _pkey_index(request, pf) is None:
            hint = "add its port to that partition in the subnet manager first"
            return Refusal(f"it is not in partition {request.pkey} itself", hint)
    return None


def _pkey_index(request: VfRequest, pf: PfFacts) -> int | None:
    return (
        pf.pkeys.index(int(request.pkey, 16))
        if request.pkey and (int(request.pkey, 16) in pf.pkeys)
        else None
    )


def _shared_group(pf: PfFacts, vf: VfFacts) -> Refusal:
    blame = [port.address for port in pf.ports if port.acs is False]
    listed = ", ".join(vf.group_others[:_LISTED])
    why = f"; no ACS at {', '.join(blame)}" if blame else ""
    return Refusal(
        f"VF {vf.address} shares IOMMU group {vf.group} with {listed}{why}",
        "put the adapter into a slot whose root port has ACS (or switch ACS on in the BIOS): "
        "devices of one group cannot be kept apart",
    )


def _examine(
    request: VfRequest, pf: PfFacts, claims: Mapping[str, str], use: Use
) -> tuple[VfFacts | None, int] | Refusal:
    """Return a free VF of this adapter, or how many to create, or why neither."""
    wrong = _mismatch(request, pf)
    if wrong is not None:
        return wrong
    asked = 0 if request.create == "auto" else request.create
    if asked > pf.total:
        return Refusal(
            f"{asked} VFs are asked for, and it offers {pf.total}",
            "ask for fewer, or raise the number in the adapter's firmware (NUM_OF_VFS)",
        )
    if pf.link is not None and pf.link.up and not pf.link.carrier:
        hint = f"check the cable and the switch's port of {pf.name}, or the subnet manager"
        return Refusal("its link is down", hint)
    if not pf.vfs:
        return None, asked or pf.total
    uses = {vf.address: used_by(vf, claims) for vf in pf.vfs}
    free = [vf for vf in pf.vfs if not uses[vf.address]]
    # Who shares a group matters only to devices that are given away.
    alone = [vf for vf in free if use == "host" or not vf.group_others]
    if alone:
        return alone[0], 0
    if free:
        return _shared_group(pf, free[0])
    listed = [f"{address}: {use}" for address, use in uses.items()]
    more = f", and {len(listed) - _LISTED} more" if len(listed) > _LISTED else ""
    return Refusal(
        f"its {len(uses)} VFs are in use ({'; '.join(listed[:_LISTED])}{more})",
        "wait until one is given back, name another adapter, or create more when none is used: "
        f"it offers {pf.total}"
        if len(uses) < pf.total
        else "wait until one is given back, or name another adapter",
    )


def choose(
    request: VfRequest,
    machine: Machine,
    claims: Mapping[str, str],
    numa: frozenset[int] = frozenset(),
    use: Use = "machine",
) -> Choice:
    """Return the VF a node should get; raises HostError with every adapter's reason.

    `numa`: the NUMA nodes its processors run on; empty for anywhere. Nearest first, then VFs that
    exist before those that must be created, then the adapter with most left.
    """
    if use == "machine":
        check_iommu(machine)
    allowed = candidates(request, machine)
    possible: list[tuple[tuple[int, int, int, int], PfFacts, VfFacts | None, int]] = []
    refused: list[tuple[PfFacts, Refusal]] = []
    for place, pf in enumerate(allowed):
        found = _examine(request, pf, claims, use)
        if isinstance(found, Refusal):
            refused.append((pf, found))
            continue
        vf, create = found
        left = create or sum(not used_by(other, claims) for other in pf.vfs)
        far = int(bool(numa) and pf.numa >= 0 and pf.numa not in numa)
        possible.append(((far, int(create > 0), -left, place), pf, vf, create))
    if not possible:
        raise _refuse(refused)
    (far, *_), pf, vf, create = min(possible, key=lambda entry: entry[0])
    return Choice(pf, vf, create, _reasons(pf, create, numa, len(allowed), far=bool(far)))


def _refuse(refused: list[tuple[PfFacts, Refusal]]) -> HostError:
    if len(refused) == 1:
        pf, why = refused[0]
        return HostError(f"adapter {pf.name} ({pf.address}): {why.what}", why.hint)
    lines = [f"  {pf.name} ({pf.address}): {why.what}" for pf, why in refused]
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
