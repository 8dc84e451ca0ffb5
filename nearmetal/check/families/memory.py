# SPDX-License-Identifier: Apache-2.0
"""The family `memory`: errors, modules, NUMA nodes, huge pages. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

from nearmetal.check.expect import OWN, Expectations
from nearmetal.check.model import Gravity, HealthCheck, Spotted
from nearmetal.check.snapshot import Snapshot
from nearmetal.core.text import printable

_EDAC = "kernel, Documentation/ABI/testing/sysfs-devices-edac"
_MODULE = re.compile(r"([0-9]+) MiB, ([0-9]+) MT/s of ([0-9]+)")
_GROUP = re.compile(r"([0-9]+) MiB in ([0-9]+) of ([0-9]+) slots")


def _errors(node: Snapshot, kind: str, remedy: str, reason: str) -> Iterator[Spotted]:
    for controller, counters in sorted(node.table("memory", "edac").items()):
        count = node.count("memory", "edac", controller, kind)
        if count:
            modules = [label for label in sorted(counters) if label not in ("ce", "ue")]
            named = f" ({', '.join(modules[:4])})" if modules else ""
            yield Spotted(
                "errors since boot", "none", reason, remedy, printable(f"{controller}{named}")[:120]
            )


def _uncorrected(node: Snapshot, _: Expectations) -> Iterator[Spotted]:
    yield from _errors(node, "ue", "replace the module", "memory lost data")


def _corrected(node: Snapshot, _: Expectations) -> Iterator[Spotted]:
    yield from _errors(
        node,
        "ce",
        "grep . /sys/devices/system/edac/mc/mc*/dimm*/dimm_ce_count",
        "memory errors were corrected, and such modules fail more often later",
    )


def _poisoned(node: Snapshot, _: Expectations) -> Iterator[Spotted]:
    size = node.number("memory", "HardwareCorrupted")
    if size:
        yield Spotted(
            f"{size:g} KiB",
            "0 KiB",
            "the kernel took damaged pages out of use",
            "replace the module",
        )


def _slow_modules(node: Snapshot, _: Expectations) -> Iterator[Spotted]:
    for place, text in sorted(node.table("memory", "modules").items()):
        found = _MODULE.fullmatch(str(text))
        if found and 0 < int(found[2]) < int(found[3]):
            yield Spotted(
                f"{found[2]} MT/s",
                f"{found[3]} MT/s",
                "the module runs below its rated speed; many modules for a channel also do that",
                "check the memory settings of the BIOS",
                printable(place)[:40],
            )


def _uneven_modules(node: Snapshot, _: Expectations) -> Iterator[Spotted]:
    sizes = {
        found[1]
        for text in node.table("memory", "modules").values()
        if (found := _MODULE.fullmatch(str(text)))
    }
    if len(sizes) > 1:
        yield Spotted(
            ", ".join(f"{int(size) >> 10} GiB" for size in sorted(sizes, key=int)),
            "one size",
            "modules of different sizes are not fully interleaved over the channels",
            "dmidecode -t memory",
        )


def _unequal_groups(node: Snapshot, _: Expectations) -> Iterator[Spotted]:
    found = {
        name: match
        for name, text in sorted(node.table("memory", "groups").items())
        # Slots of a processor that is not there are empty, and `memory.empty_node` knows the others.
        if (match := _GROUP.fullmatch(str(text))) and int(match[1])
    }
    if len({match[1] for match in found.values()}) > 1:
        yield Spotted(
            printable(", ".join(f"{name}: {match[0]}" for name, match in found.items()))[:160],
            "equal sizes",
            "a processor or controller with less memory has fewer channels or a missing module",
            "dmidecode -t memory",
        )


def _empty_node(node: Snapshot, _: Expectations) -> Iterator[Spotted]:
    for name, numa in sorted(node.table("memory", "nodes").items()):
        if isinstance(numa, dict) and numa.get("cpus") and numa.get("MemTotal") == 0:
            yield Spotted(
                "no memory",
                "memory",
                "processors of this NUMA node have no memory of their own",
                "dmidecode -t memory",
                f"NUMA node {printable(name)[:8]}",
            )


def _per_core(node: Snapshot, wanted: Expectations) -> Iterator[Spotted]:
    total, cores = node.number("memory", "MemTotal"), node.number("processor", "cores")
    least = wanted.value("memory_per_core_gib")
    if least is not None and total and cores and total / cores < least * (1 << 20):
        yield Spotted(
            f"{total / cores / (1 << 20):.1f} GiB for each core",
            f"at least {least:g} GiB",
            "a rank for each core has too little memory",
            "add memory, or run fewer ranks",
            source=wanted.source("memory_per_core_gib"),
        )


def _huge_pages(node: Snapshot, wanted: Expectations) -> Iterator[Spotted]:
    pages, least = node.number("memory", "HugePages_Total"), wanted.value("huge_pages")
    if least is not None and pages is not None and pages < least:
        yield Spotted(
            f"{pages:.0f}",
            f"at least {least:.0f}",
            "programs that need huge pages do not start",
            f"sysctl -w vm.nr_hugepages={least:.0f}",
            source=wanted.source("huge_pages"),
        )


def _transparent(node: Snapshot, wanted: Expectations) -> Iterator[Spotted]:
    mode = node.text("memory", "transparent", "enabled")
    accepted = wanted.value("transparent")
    if mode and mode not in accepted:
        yield Spotted(
            mode,
            " or ".join(accepted),
            "programs with large arrays miss the translation cache more often",
            f"echo {accepted[0]} >/sys/kernel/mm/transparent_hugepage/enabled",
            source=wanted.source("transparent"),
        )


CHECKS = (
    HealthCheck("memory.uncorrected", Gravity.FAULT, "no memory error", _EDAC, _uncorrected),
    HealthCheck(
        "memory.corrected", Gravity.WARNING, "no corrected memory error", _EDAC, _corrected
    ),
    HealthCheck("memory.poisoned", Gravity.FAULT, "no damaged page", OWN, _poisoned),
    HealthCheck(
        "memory.speed", Gravity.NOTE, "modules run at their speed", "SMBIOS", _slow_modules
    ),
    HealthCheck("memory.sizes", Gravity.WARNING, "modules have one size", OWN, _uneven_modules),
    HealthCheck(
        "memory.spread", Gravity.WARNING, "processors have equal memory", OWN, _unequal_groups
    ),
    HealthCheck("memory.empty_node", Gravity.WARNING, "NUMA nodes have memory", OWN, _empty_node),
    HealthCheck("memory.per_core", Gravity.FAULT, "memory for each core", "", _per_core),
    HealthCheck("memory.huge_pages", Gravity.FAULT, "enough huge pages", "", _huge_pages),
    HealthCheck("memory.transparent", Gravity.WARNING, "transparent huge pages", "", _transparent),
)
