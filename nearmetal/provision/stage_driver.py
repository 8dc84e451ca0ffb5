# SPDX-License-Identifier: Apache-2.0
"""The driver stage: how a Linux host boots and gets its VFs, and the module options of ESXi. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from nearmetal.provision.cards import ESXI_DRIVER, MLX5, max_vfs
from nearmetal.provision.steps import (
    Install,
    Outcome,
    SetArguments,
    SetOptions,
    SetVfs,
    Stage,
    Step,
    Wait,
    WriteFile,
)

if TYPE_CHECKING:
    from nearmetal.provision.cards import Pair
    from nearmetal.provision.model import HostFacts
    from nearmetal.spec.hosts import HostGroup, Kernel

_STAGE = Stage.DRIVER
BOOT = "the kernel reads its command line at boot"

RULES = "/etc/udev/rules.d/90-nearmetal-sriov.rules"
GRUB = "/etc/default/grub.d/90-nearmetal.cfg"
REFRESH = {RULES: ("udevadm", "control", "--reload"), GRUB: ("update-grub",)}
"""The files that nearmetal keeps on hosts, and what makes a new one count."""

_HEAD = "# Written by nearmetal host apply; it writes this file anew.\n"

_RULE = re.compile(
    r'^ACTION==.*KERNEL=="(?P<address>[0-9a-f:.]+)".*ATTR\{sriov_numvfs\}="(?P<vfs>[0-9]{1,5})"$',
    re.MULTILINE,
)
_PAGES = {"2 MiB": "2M", "1 GiB": "1G"}


def plan_driver(group: HostGroup, facts: HostFacts, pairs: list[Pair], outcome: Outcome) -> None:
    """Add what the system's side still needs."""
    if facts.platform == "esxi":
        _module_options(facts, pairs, outcome)
        return
    if group.kernel is not None:
        _command_line(group.kernel, facts, outcome)
    _persistent_vfs(facts, pairs, outcome)


def arguments(kernel: Kernel, cpu: str) -> tuple[str, ...]:
    """Return the arguments that the file asks for, in order."""
    words: list[str] = []
    if kernel.iommu is not None:
        # AMD's is on by default, and amd_iommu=on is no argument of it.
        words += ["intel_iommu=on"] if cpu == "intel" else []
        words += ["iommu=pt"] if kernel.iommu == "passthrough" else []
    if kernel.hugepages is not None:
        size = _PAGES[kernel.hugepages.size]
        words += [f"default_hugepagesz={size}", f"hugepagesz={size}",
                  f"hugepages={kernel.hugepages.count}"]  # fmt: skip
    if kernel.isolate is not None:
        words.append(f"isolcpus={kernel.isolate}")
    words += [word for word in kernel.arguments if word not in words]
    return tuple(words)


def _command_line(kernel: Kernel, facts: HostFacts, outcome: Outcome) -> None:
    wanted = arguments(kernel, facts.cpu)
    if not wanted:
        return
    missing = [word for word in wanted if not _in_force(word, facts.cmdline)]
    if facts.loader == "grub.d":
        line = " ".join(wanted)
        content = f'{_HEAD}GRUB_CMDLINE_LINUX="$GRUB_CMDLINE_LINUX {line}"\n'
        before = facts.files.get(GRUB)
        if before != content and (missing or before is not None):
            action = WriteFile(GRUB, content, before, REFRESH[GRUB])
            text = f"kernel arguments: {line}"
            outcome.steps.append(Step(_STAGE, "kernel", text, action, BOOT if missing else ""))
            return
    elif facts.loader == "grubby":
        if missing:
            now = tuple(w for w in facts.cmdline if w.partition("=")[0] in _names(missing))
            text = f"kernel arguments: {' '.join(missing)}"
            action_ = SetArguments(tuple(missing), now)
            outcome.steps.append(Step(_STAGE, "kernel", text, action_, BOOT))
            return
    elif missing:
        outcome.refuse(_STAGE, f"kernel arguments are missing ({' '.join(missing)}), and the host "
                       "has neither update-grub nor grubby", "set them in its boot loader")  # fmt: skip
        return
    if missing:
        text = f"kernel arguments are set, and not in force: {' '.join(missing)}"
        outcome.steps.append(Step(_STAGE, "kernel", text, Wait(), BOOT))


def _names(words: list[str]) -> set[str]:
    return {word.partition("=")[0] for word in words}


def _in_force(word: str, cmdline: tuple[str, ...]) -> bool:
    """Whether an argument counts: of two with one name the kernel mostly takes the last."""
    name = word.partition("=")[0]
    same = [w for w in cmdline if w.partition("=")[0] == name]
    repeated = name in ("hugepages", "hugepagesz")
    return word in same if repeated else bool(same) and same[-1] == word


def rule_line(address: str, vfs: int) -> str:
    """Return the udev rule that creates VFs when the driver has taken the physical function."""
    return (
        f'ACTION=="add|bind", SUBSYSTEM=="pci", KERNEL=="{address}", DRIVER=="?*", '
        f'ATTR{{sriov_numvfs}}=="0", ATTR{{sriov_numvfs}}="{vfs}"\n'
    )


def parse_rules(text: str) -> dict[str, int]:
    """Return VFs by physical function from rules that `rule_line` made."""
    return {found["address"]: int(found["vfs"]) for found in _RULE.finditer(text)}


def _persistent_vfs(facts: HostFacts, pairs: list[Pair], outcome: Outcome) -> None:
    ports = [(port, want.vfs, p.card) for p in pairs for _, want, port in p.ports()]
    if not ports:
        return
    at_boot = bool([step for step in outcome.steps if step.reboot])
    lines = "".join(rule_line(port.address, vfs) for port, vfs, _ in ports if vfs)
    content = _HEAD + lines if lines else None
    before = facts.files.get(RULES)
    if content != before:
        text = "VFs at every boot: " + (
            ", ".join(f"{port.address} {vfs}" for port, vfs, _ in ports if vfs) or "none"
        )
        action = WriteFile(RULES, content, before, REFRESH[RULES])
        outcome.steps.append(Step(_STAGE, "rules", text, action))
    for port, vfs, card in ports:
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
            action_ = SetVfs(port.address, vfs, port.vfs)
            text = f"{port.netdev or port.address}: {port.vfs} -> {vfs} VFs"
            outcome.steps.append(Step(_STAGE, f"vfs {port.address}", text, action_, "", ("rules",)))


def parse_options(text: str) -> dict[str, str]:
    """Return a module's options, as `esxcli system module parameters set -p` takes them."""
    return dict(word.partition("=")[::2] for word in text.split() if "=" in word)


def _module_options(facts: HostFacts, pairs: list[Pair], outcome: Outcome) -> None:
    if not any(p.wanted.ports for p in pairs):
        return
    before = facts.options.get(ESXI_DRIVER, "")
    now = parse_options(before)
    numbers = max_vfs(pairs, facts, now)
    for p in pairs:
        others = [q for _, _, q in p.ports() if q.driver not in ("", ESXI_DRIVER)]
        if others:
            outcome.refuse(_STAGE, f"{others[0].address} belongs to {others[0].driver}, and only "
                           f"VFs of {ESXI_DRIVER} are planned", "leave its ports out")  # fmt: skip
            return
    if not numbers or now.get("max_vfs", "").strip('"') == numbers:
        return
    old = now.get("max_vfs", "")
    ports = numbers.count(",") + 1
    if old and len(old.split(",")) != ports:
        outcome.remark(_STAGE, f"max_vfs={old} does not fit {ports} ports")
    # `set -p` replaces every option of the module: those that are set are said again.
    options = " ".join(f"{name}={value}" for name, value in (now | {"max_vfs": numbers}).items())
    text = f'{ESXI_DRIVER}: max_vfs="{numbers}"' + (
        f", keeping {' '.join(f'{n}={v}' for n, v in now.items() if n != 'max_vfs')}"
        if set(now) - {"max_vfs"}
        else ""
    )
    action = SetOptions(ESXI_DRIVER, options, before)
    # The driver asks the firmware for VFs when it loads, so they go together.
    tools = tuple(step.key for step in outcome.steps if isinstance(step.action, Install))
    why = "ESXi reads options of modules at boot"
    outcome.steps.append(Step(_STAGE, "options", text, action, why, tools))
