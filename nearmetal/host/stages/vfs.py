# SPDX-License-Identifier: Apache-2.0
"""The driver stage: VFs and MTU of a Linux host, now and at every boot, and whether VFs are apart. Pure.

At boot VFs come from a systemd.link(5) where systemd-networkd has the network, else from a udev
rule. Both are read by udev; the former is where who keeps that network looks for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nearmetal.host.cards import MLX5
from nearmetal.host.places import (
    HEAD,
    RULES,
    is_link,
    link_file,
    link_text,
    mtu_lines,
    refresh,
    rule_line,
    vfs_in,
)
from nearmetal.host.steps import Outcome, SetMtu, SetVfs, Stage, Step, WriteFile

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nearmetal.host.cards import Pair
    from nearmetal.host.hosts_file import HostGroup, Port
    from nearmetal.host.model import CardFacts, HostFacts, PortFacts

_STAGE = Stage.DRIVER
_SYSTEMD = 251
"""The first systemd whose .link files number VFs."""
_OWN = "/usr/lib/systemd/network/"


def plan_vfs(facts: HostFacts, pairs: list[Pair], outcome: Outcome) -> None:
    """Add what makes VFs and MTU so."""
    ports = [(want, port, p.card) for p in pairs for _, want, port in p.ports()]
    if not ports:
        return
    at_boot = any(step.reboot for step in outcome.steps)
    files = _files([(want, port) for want, port, _ in ports], facts)
    for path, content in files.items():
        before = facts.files.get(path)
        if content != before:
            action = WriteFile(path, content, before, refresh(path) or ())
            key = "rules" if path == RULES else f"link {path.rpartition('/')[2]}"
            outcome.steps.append(Step(_STAGE, key, _at_boot(path, content), action))
    for want, port, card in ports:
        _count(want, port, card, outcome, at_boot=at_boot)
    for want, port, _ in ports:
        _mtu(want, port, outcome, at_boot=at_boot)


def _files(ports: list[tuple[Port, PortFacts]], facts: HostFacts) -> dict[str, str | None]:
    """Return every file of ours as it shall be; None: not there."""
    # One whose change was cut short reads as "", and may be there whole.
    ours = [path for path, text in facts.files.items() if is_link(path) and text is not None]
    files: dict[str, str | None] = dict.fromkeys([RULES, *ours])
    lines = ""
    for want, port in ports:
        if want.vfs and _by_link(port, facts):
            files[link_file(port.address)] = link_text(port.address, want.vfs)
        elif want.vfs:
            lines += rule_line(port.address, want.vfs)
    for want, port in ports:
        lines += mtu_lines(port.address, want.mtu) if want.mtu is not None else ""
    files[RULES] = HEAD + lines if lines else None
    return files


def _by_link(port: PortFacts, facts: HostFacts) -> bool:
    """Whether a .link file makes the VFs: only one counts, and another's must not be hidden."""
    free = port.link_file.startswith(_OWN) or port.link_file == link_file(port.address)
    return facts.networkd >= _SYSTEMD and bool(port.netdev) and free


def _at_boot(path: str, content: str | None) -> str:
    found = vfs_in(path, content)
    vfs = ", ".join(f"{address} {vfs}" for address, vfs in found.items()) or "none"
    where = "" if path == RULES else " by systemd"
    mtu = " and MTU" if content and "ATTR{mtu}" in content else ""
    return f"VFs{mtu} at every boot{where}: {vfs}"


def _count(
    want: Port, port: PortFacts, card: CardFacts, outcome: Outcome, *, at_boot: bool
) -> None:
    vfs = want.vfs
    configurable = card.config is not None and "NUM_OF_VFS" in card.config
    if vfs > port.total_vfs and not configurable and port.driver not in MLX5:
        what = (
            f"{vfs} VFs are asked of {port.address}, its driver offers {port.total_vfs}"
            if port.total_vfs
            else f"{card.text} has no SR-IOV, or the BIOS has switched it off"
        )
        hint = f"ask for at most {port.total_vfs}" if port.total_vfs else "see bios.sriov"
        outcome.refuse(_STAGE, what, hint)
    elif vfs != port.vfs and port.used_vfs:
        outcome.refuse(
            _STAGE,
            f"{port.address} has {port.vfs} VFs, {vfs} are asked for, and virtual machines "
            f"have {port.used_vfs} of them",
            "the kernel can only remove all and make them anew: end the machines first",
        )
    elif vfs != port.vfs and not at_boot:
        action = SetVfs(port.address, vfs, port.vfs)
        text = f"{port.netdev or port.address}: {port.vfs} -> {vfs} VFs"
        outcome.steps.append(Step(_STAGE, f"vfs {port.address}", text, action, "", ("rules",)))


def _mtu(want: Port, port: PortFacts, outcome: Outcome, *, at_boot: bool) -> None:
    if want.mtu is None or at_boot:
        return
    if not port.mtu:
        outcome.refuse(
            _STAGE,
            f"{port.address} has no network device, and MTU {want.mtu} is asked of it",
            "load its driver (ib_ipoib for InfiniBand), or remove mtu",
        )
    else:
        plan_mtu(port, want.mtu, dict.fromkeys(port.vf_mtus, want.mtu), outcome)


def plan_mtu(port: PortFacts, mtu: int, vfs: Mapping[str, int], outcome: Outcome) -> None:
    """Add what gives the network devices of a function and of its VFs, by address, these MTUs."""
    others = [f"{now} -> {vfs[vf]}" for vf, now in port.vf_mtus.items() if vfs.get(vf, now) != now]
    if port.mtu == mtu and not others:
        return
    told = ", ".join(dict.fromkeys(others))
    change = f" {port.mtu} -> {mtu}" if port.mtu != mtu else f" of its VFs {told}"
    text = f"{port.netdev}: MTU{change}"
    different = {vf: vfs[vf] for vf in port.vf_mtus if vfs.get(vf, mtu) != mtu}
    action = SetMtu(port.address, mtu, port.mtu, different, dict(port.vf_mtus))
    outcome.steps.append(Step(_STAGE, f"mtu {port.address}", text, action))


def plan_checks(group: HostGroup, facts: HostFacts, pairs: list[Pair], outcome: Outcome) -> None:
    """Refuse a host that needs no step and still cannot give VFs to machines of its own."""
    ports = [port for p in pairs for _, want, port in p.ports() if want.vfs]
    if outcome.steps or not ports or group.kernel is None or group.kernel.iommu is None:
        return
    if facts.iommu_groups == 0:
        outcome.refuse(
            _STAGE,
            "the IOMMU is off, although everything that the file asks for is in force",
            "switch VT-d or AMD's IOMMU on in the BIOS (bios.iommu)",
        )
    for port in ports:
        if port.shared_vfs:
            outcome.refuse(
                _STAGE,
                f"{port.shared_vfs} of {port.vfs} VFs of {port.address} share IOMMU groups: they "
                "cannot be given to machines apart",
                "put the card into a slot whose ports have ACS, or switch ACS on in the BIOS; "
                "`nearmetal host vf` there names the ports; without kernel.iommu this is not asked",
            )
