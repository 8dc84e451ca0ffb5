# SPDX-License-Identifier: Apache-2.0
"""The driver stage of a Linux host: kernel arguments, VFs, MTU and clock; module options of ESXi. Pure.

With systemd-networkd, a systemd.link(5) makes the VFs at boot, otherwise a udev rule. udev reads
both, but an administrator of systemd-networkd looks for the former.
"""

from __future__ import annotations

from collections.abc import Mapping

from nearmetal.host.cards import MLX5, Pair
from nearmetal.host.hosts_file import HostGroup, KernelSettings, Port, Power
from nearmetal.host.model import CardFacts, PlatformFacts, PortFacts
from nearmetal.host.places import (
    GRUB,
    HEAD,
    POWER,
    RULES,
    is_link,
    link_file,
    link_text,
    mtu_lines,
    refresh,
    rule_line,
    vfs_in,
)
from nearmetal.host.stages.esxi import plan_without_vcenter
from nearmetal.host.steps import (
    Outcome,
    SetArguments,
    SetGovernor,
    SetMtu,
    SetProfile,
    SetVfs,
    Stage,
    Wait,
    WriteFile,
)

_STAGE = Stage.DRIVER
BOOT = "the kernel reads its command line at boot"

_PAGES = {"2 MiB": "2M", "1 GiB": "1G"}
_SYSTEMD = 251
"""The first systemd with the number of VFs in .link files."""
_OWN = "/usr/lib/systemd/network/"


def plan_driver(
    group: HostGroup, facts: PlatformFacts, pairs: list[Pair], outcome: Outcome
) -> None:
    """Add the missing steps of the operating system."""
    if facts.platform == "esxi":
        plan_without_vcenter(facts, pairs, outcome)
        return
    kernel = group.kernel
    if group.passthrough and (kernel is None or kernel.iommu is None):
        kernel = (kernel or KernelSettings()).model_copy(update={"iommu": "passthrough"})
    if kernel is not None:
        _command_line(kernel, facts, outcome)
    _plan_vfs(facts, pairs, outcome)
    if group.power is not None:
        _clock(group.power, facts, outcome)


def _arguments(kernel: KernelSettings, cpu: str) -> list[str]:
    """Return the arguments of the file, in order."""
    words: list[str] = []
    if kernel.iommu is not None:
        # AMD's IOMMU is on by default, and amd_iommu=on is not a valid argument.
        words += ["intel_iommu=on"] if cpu == "intel" else []
        words += ["iommu=pt"] if kernel.iommu == "passthrough" else []
    if kernel.hugepages is not None:
        size, count = _PAGES[kernel.hugepages.size], kernel.hugepages.count
        words += [f"default_hugepagesz={size}", f"hugepagesz={size}", f"hugepages={count}"]
    if kernel.isolate is not None:
        words.append(f"isolcpus={kernel.isolate}")
    return words + [word for word in kernel.arguments if word not in words]


def _command_line(kernel: KernelSettings, facts: PlatformFacts, outcome: Outcome) -> None:
    wanted = _arguments(kernel, facts.cpu)
    missing = [word for word in wanted if not _in_force(word, facts.cmdline)]
    if facts.loader == "grub.d" and wanted:
        line = " ".join(wanted)
        content = f'{HEAD}GRUB_CMDLINE_LINUX="$GRUB_CMDLINE_LINUX {line}"\n'
        before = facts.files.get(GRUB)
        if before != content and (missing or before is not None):
            write = WriteFile(GRUB, content, before, ("update-grub",))
            why = BOOT if missing else ""
            outcome.step(_STAGE, "kernel", f"kernel arguments: {line}", write, why)
            return
    if not missing:
        return
    listed = " ".join(missing)
    if facts.loader == "grubby":
        names = {word.partition("=")[0] for word in missing}
        now = tuple(word for word in facts.cmdline if word.partition("=")[0] in names)
        action = SetArguments(tuple(missing), now)
        outcome.step(_STAGE, "kernel", f"kernel arguments: {listed}", action, BOOT)
    elif facts.loader == "grub.d":
        text = f"kernel arguments are set, and not in force: {listed}"
        outcome.step(_STAGE, "kernel", text, Wait(), BOOT)
    else:
        outcome.refuse(
            _STAGE,
            f"kernel arguments are missing ({listed}), and the host has neither update-grub nor "
            "grubby",
            "set them in its boot loader",
        )


def _in_force(word: str, cmdline: tuple[str, ...]) -> bool:
    """Whether an argument is in force: the kernel mostly takes the last of one name."""
    name = word.partition("=")[0]
    same = [w for w in cmdline if w.partition("=")[0] == name]
    repeated = name in ("hugepages", "hugepagesz")
    return word in same if repeated else same[-1:] == [word]


def _plan_vfs(facts: PlatformFacts, pairs: list[Pair], outcome: Outcome) -> None:
    """Add the missing steps for VFs and MTU."""
    ports = [(want, port, p.card) for p in pairs for _, want, port in p.ports()]
    if not ports:
        return
    for path, content in _files([(want, port) for want, port, _ in ports], facts).items():
        before = facts.files.get(path)
        if content != before:
            action = WriteFile(path, content, before, refresh(path) or ())
            key = "rules" if path == RULES else f"link {path.rpartition('/')[2]}"
            outcome.step(_STAGE, key, _at_boot(path, content), action)
    for want, port, card in ports:
        _count(want.vfs, port, card, outcome)
    for want, port, _ in ports:
        if want.mtu is not None and not outcome.reboots:
            _mtu(want.mtu, port, outcome)


def _files(ports: list[tuple[Port, PortFacts]], facts: PlatformFacts) -> dict[str, str | None]:
    """Return the wanted content of every file of nearmetal; None: no file."""
    # A file with an interrupted change reads as "", and may be complete.
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


def _by_link(port: PortFacts, facts: PlatformFacts) -> bool:
    """Whether a .link file makes the VFs. udev uses one such file: it must not hide a foreign one."""
    free = port.link_file.startswith(_OWN) or port.link_file == link_file(port.address)
    return facts.networkd >= _SYSTEMD and bool(port.netdev) and free


def _at_boot(path: str, content: str | None) -> str:
    found = vfs_in(path, content)
    vfs = ", ".join(f"{address} {vfs}" for address, vfs in found.items()) or "none"
    where = "" if path == RULES else " by systemd"
    mtu = " and MTU" if content and "ATTR{mtu}" in content else ""
    return f"VFs{mtu} at every boot{where}: {vfs}"


def _count(vfs: int, port: PortFacts, card: CardFacts, outcome: Outcome) -> None:
    configurable = card.config is not None and "NUM_OF_VFS" in card.config
    if vfs > port.total_vfs and not configurable and port.driver not in MLX5:
        what = (
            f"{vfs} VFs are requested of {port.address}, its driver offers {port.total_vfs}"
            if port.total_vfs
            else f"{card.text} has no SR-IOV, or the BIOS has switched it off"
        )
        hint = f"request at most {port.total_vfs}" if port.total_vfs else "see bios.sriov"
        outcome.refuse(_STAGE, what, hint)
    else:
        plan_count(port, vfs, f"{vfs} are requested", outcome)


def plan_count(port: PortFacts, vfs: int, wish: str, outcome: Outcome) -> None:
    """Add the step that sets the number of VFs now, unless a reboot does; `wish`: in words."""
    if vfs != port.vfs and port.used_vfs:
        outcome.refuse(
            _STAGE,
            f"{port.address} has {port.vfs} VFs, {wish}, and virtual machines have "
            f"{port.used_vfs} of them",
            "end the virtual machines: the kernel can only remove all VFs and create them again",
        )
    elif vfs != port.vfs and not outcome.reboots:
        text = f"{port.netdev or port.address}: {port.vfs} -> {vfs} VFs"
        action = SetVfs(port.address, vfs, port.vfs)
        outcome.step(_STAGE, f"vfs {port.address}", text, action, after=("rules",))


def _mtu(mtu: int, port: PortFacts, outcome: Outcome) -> None:
    if port.mtu:
        plan_mtu(port, mtu, dict.fromkeys(port.vf_mtus, mtu), outcome)
        return
    outcome.refuse(
        _STAGE,
        f"{port.address} has no network device, and MTU {mtu} is requested of it",
        "load its driver (ib_ipoib for InfiniBand), or remove mtu",
    )


def plan_mtu(port: PortFacts, mtu: int, vfs: Mapping[str, int], outcome: Outcome) -> None:
    """Add the step for the MTU of a function's network device, and of its VFs', by address."""
    others = [f"{now} -> {vfs[vf]}" for vf, now in port.vf_mtus.items() if vfs.get(vf, now) != now]
    if port.mtu == mtu and not others:
        return
    changes = ", ".join(dict.fromkeys(others))
    change = f" {port.mtu} -> {mtu}" if port.mtu != mtu else f" of its VFs {changes}"
    different = {vf: vfs[vf] for vf in port.vf_mtus if vfs.get(vf, mtu) != mtu}
    action = SetMtu(port.address, mtu, port.mtu, different, dict(port.vf_mtus))
    outcome.step(_STAGE, f"mtu {port.address}", f"{port.netdev}: MTU{change}", action)


def _clock(wanted: Power, facts: PlatformFacts, outcome: Outcome) -> None:
    """Add the missing steps for governor or profile. Neither needs a reboot."""
    governor = wanted.governor
    if wanted.profile is not None:
        plan_profile(wanted.profile, facts, outcome)
    elif governor is not None and not facts.governors:
        outcome.remark(
            _STAGE,
            f"governor {governor} is not offered here: the host has no cpufreq "
            "(a virtual machine has none, and BIOS settings can hide it)",
        )
    elif governor is not None and facts.tuned:
        outcome.refuse(
            _STAGE,
            f"tuned runs here (profile {facts.tuned}) and sets the governor",
            "use a profile instead",
        )
    elif governor is not None:
        place = "/sys/devices/system/cpu/cpu*/cpufreq/scaling_governor"
        content = f"{HEAD}w {place} - - - - {governor}\n"
        before = facts.files.get(POWER)
        if content != before:
            file = WriteFile(POWER, content, before, ("true",))
            outcome.step(_STAGE, "power", f"governor at every boot: {governor}", file)
        plan_governor("governor", governor, facts, outcome)


def plan_governor(key: str, governor: str, facts: PlatformFacts, outcome: Outcome) -> None:
    """Add the step that gives every core this governor now."""
    others = [found for found in facts.governors if found != governor]
    if others:
        text = f"governor: {', '.join(others)} -> {governor}"
        outcome.step(_STAGE, key, text, SetGovernor(governor, others[0]))


def plan_profile(profile: str, facts: PlatformFacts, outcome: Outcome) -> None:
    """Add the step that makes these the active profiles of tuned; "" is none."""
    if facts.tuned is None:
        outcome.refuse(
            _STAGE,
            f"tuned does not run here, and {_named(profile)} is requested",
            "install and start tuned, or use a governor",
        )
    elif facts.tuned != profile:
        text = f"tuned: {_named(facts.tuned)} -> {_named(profile)}"
        outcome.step(_STAGE, "profile", text, SetProfile(profile, facts.tuned))


def _named(profile: str) -> str:
    return f"profile {profile}" if profile else "no profile"


def plan_checks(
    group: HostGroup, facts: PlatformFacts, pairs: list[Pair], outcome: Outcome
) -> None:
    """Refuse a host that needs no step and still cannot give VFs to virtual machines."""
    ports = [port for p in pairs for _, want, port in p.ports() if want.vfs]
    asked = ports and group.kernel is not None and group.kernel.iommu is not None
    whole = facts.platform == "linux" and group.passthrough
    if outcome.steps or not (asked or whole):
        return
    if facts.iommu_groups == 0:
        outcome.refuse(
            _STAGE,
            "the IOMMU is off, although all settings of the file are in force",
            "switch VT-d or AMD's IOMMU on in the BIOS (bios.iommu)",
        )
    for port in ports if asked else []:
        if port.shared_vfs:
            outcome.refuse(
                _STAGE,
                f"{port.shared_vfs} of {port.vfs} VFs of {port.address} share IOMMU groups, so "
                "they cannot go to different virtual machines",
                "use a slot with ACS at its ports, or switch ACS on in the BIOS; `nearmetal host "
                "vf` on the host names the ports; without kernel.iommu there is no such check",
            )
