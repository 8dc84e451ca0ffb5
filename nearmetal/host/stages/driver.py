# SPDX-License-Identifier: Apache-2.0
"""The driver stage: how a Linux host boots and gets its VFs, and the module options of ESXi. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nearmetal.host.places import GRUB, HEAD
from nearmetal.host.stages.esxi import plan_without_vcenter
from nearmetal.host.stages.power import plan_clock
from nearmetal.host.stages.vfs import plan_vfs
from nearmetal.host.steps import Outcome, SetArguments, Stage, Step, Wait, WriteFile

if TYPE_CHECKING:
    from nearmetal.host.cards import Pair
    from nearmetal.host.hosts_file import HostGroup, Kernel
    from nearmetal.host.model import HostFacts

_STAGE = Stage.DRIVER
BOOT = "the kernel reads its command line at boot"

_PAGES = {"2 MiB": "2M", "1 GiB": "1G"}


def plan_driver(group: HostGroup, facts: HostFacts, pairs: list[Pair], outcome: Outcome) -> None:
    """Add what the system's side still needs."""
    if facts.platform == "esxi":
        plan_without_vcenter(facts, pairs, outcome)
        return
    if group.kernel is not None:
        _command_line(group.kernel, facts, outcome)
    plan_vfs(facts, pairs, outcome)
    plan_clock(group.power, facts, outcome)


def arguments(kernel: Kernel, cpu: str) -> tuple[str, ...]:
    """Return the arguments that the file asks for, in order."""
    words: list[str] = []
    if kernel.iommu is not None:
        # AMD's is on by default, and amd_iommu=on is no argument of it.
        words += ["intel_iommu=on"] if cpu == "intel" else []
        words += ["iommu=pt"] if kernel.iommu == "passthrough" else []
    if kernel.hugepages is not None:
        size = _PAGES[kernel.hugepages.size]
        words += [
            f"default_hugepagesz={size}",
            f"hugepagesz={size}",
            f"hugepages={kernel.hugepages.count}",
        ]
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
        content = f'{HEAD}GRUB_CMDLINE_LINUX="$GRUB_CMDLINE_LINUX {line}"\n'
        before = facts.files.get(GRUB)
        if before != content and (missing or before is not None):
            action = WriteFile(GRUB, content, before, ("update-grub",))
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
        outcome.refuse(
            _STAGE,
            f"kernel arguments are missing ({' '.join(missing)}), and the host "
            "has neither update-grub nor grubby",
            "set them in its boot loader",
        )
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
