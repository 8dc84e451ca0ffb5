# SPDX-License-Identifier: Apache-2.0
"""What the machine and the software are, as read from the kernel. Starts no process."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import TYPE_CHECKING

import nearmetal
from nearmetal.evidence import Environment, NodePlace
from nearmetal.job.mpi import find_installations

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nearmetal.cluster.backend import NodeStatus

_CPU = Path("/sys/devices/system/cpu")


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _cpuinfo(key: str, text: str) -> str:
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip() == key:
            return value.strip()
    return "unknown"


def _caches(root: Path) -> str:
    """Return the caches of the first core: "L1 Data 32K, L2 1024K (cores 0), ..."."""
    found = []
    for index in sorted((root / "cpu0/cache").glob("index*")):
        level, kind, size = (_read(index / name) for name in ("level", "type", "size"))
        shared = _read(index / "shared_cpu_list")
        name = f"L{level}" if kind == "Unified" else f"L{level} {kind}"
        found.append(f"{name} {size} (cores {shared})")
    return ", ".join(found) or "unknown"


def _hypervisor(cpuinfo: str) -> str:
    if "hypervisor" not in _cpuinfo("flags", cpuinfo).split():
        return "none"
    vendor = _read(Path("/sys/class/dmi/id/sys_vendor"))
    return f"yes{f', {vendor}' if vendor else ''}"


def _memory(meminfo: str) -> str:
    words = _cpuinfo("MemTotal", meminfo).split()
    return f"{int(words[0]) / (1 << 20):.1f} GiB" if words[0].isdigit() else "unknown"


def _system() -> str:
    for line in _read(Path("/etc/os-release")).splitlines():
        if line.startswith("PRETTY_NAME="):
            return line.partition("=")[2].strip('"')
    return "unknown"


def machine_facts() -> tuple[tuple[str, str], ...]:
    """Return names and values of what figures depend on."""
    cpuinfo = _read(Path("/proc/cpuinfo"))
    governor = _read(_CPU / "cpu0/cpufreq/scaling_governor")
    transparent = _read(Path("/sys/kernel/mm/transparent_hugepage/enabled"))
    return (
        ("processor", _cpuinfo("model name", cpuinfo)),
        ("cores", f"{os.cpu_count()} online, {len(os.sched_getaffinity(0))} usable here"),
        ("caches", _caches(_CPU)),
        ("frequency governor", governor or "not visible"),
        ("memory", _memory(_read(Path("/proc/meminfo")))),
        ("transparent huge pages", transparent or "not visible"),
        ("hypervisor", _hypervisor(cpuinfo)),
        ("kernel", platform.release()),
        ("system", _system()),
    )


def software_facts() -> tuple[tuple[str, str], ...]:
    """Return the versions of what was run."""
    mpis = [
        (i.mpi.value, f"{i.mpi.title}, {i.launcher.name}") for i in find_installations().values()
    ]
    return (("nearmetal", nearmetal.__version__), ("python", platform.python_version()), *mpis)


def environment(nodes: Sequence[NodeStatus]) -> Environment:
    """Return everything that is recorded about where a run took place."""
    places = tuple(
        NodePlace(
            name=n.name,
            host=n.host,
            hostname=n.hostname,
            address=n.address,
            cpus=n.cpus,
            slots=n.slots,
        )
        for n in nodes
    )
    return Environment(machine=machine_facts(), software=software_facts(), nodes=places)
