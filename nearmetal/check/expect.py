# SPDX-License-Identifier: Apache-2.0
"""What checks expect: a table of keys, each with its default and the source of that. Pure.

A profile may change each value; the source is then the line of the profile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from nearmetal.config.size import parse_size

TUNED_HPC = "tuned, profile hpc-compute"
TUNED_SPEED = "tuned, profile throughput-performance, which hpc-compute includes"
OWN = "chosen by nearmetal"
_MOST_WORDS = 64

DAEMONS = (
    "sshd",
    "slurmd",
    "munged",
    "systemd",
    "opensm",
    "irqbalance",
    "tuned",
    "libvirtd",
    "init",
)
"""The processes for which the agent looks."""

Value = Any
"""A checked value: int, float, str, a tuple of texts, or a table of texts; None: not expected."""


def _words(value: Value) -> tuple[str, ...]:
    items = value if isinstance(value, list) else [value]
    if len(items) > _MOST_WORDS or not all(isinstance(item, str) and item for item in items):
        raise ValueError("is not a list of words|write for example [always, madvise]")
    return tuple(items)


def _priorities(value: Value) -> tuple[str, ...]:
    items = value if isinstance(value, list) else [value]
    if not items or not all(type(item) is int and 0 <= item < 8 for item in items):  # noqa: PLR2004
        raise ValueError("is not a list of priorities from 0 to 7|write for example [3]")
    return tuple(str(item) for item in sorted(set(items)))


def _daemons(value: Value) -> tuple[str, ...]:
    unknown = [name for name in _words(value) if name not in DAEMONS]
    if unknown:
        why = f"has {unknown[0][:40]!r}, for which the agent does not look"
        raise ValueError(f"{why}|it knows {', '.join(DAEMONS)}")
    return _words(value)


def _table(value: Value) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(v, str | int) for v in value.values()):
        raise ValueError("is not a table of words|write for example {libfabric1: 1.17.0-3}")
    return {key: str(item) for key, item in value.items()}


def _number(value: Value) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise ValueError("is not a number of at least 0|write for example 1.5")
    return float(value)


def _bytes(value: Value) -> float:
    if value == "unlimited":
        return float("inf")
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return float(value)
    if not isinstance(value, str):
        raise ValueError("is not a size|write for example 64 GiB, or unlimited")
    return float(parse_size(value))


@dataclass(frozen=True)
class Expected:
    """One expectation: how a profile writes it, its default, and the source of the default."""

    read: Callable[[Value], Value]
    default: Value
    source: str
    text: str


KEYS: Mapping[str, Expected] = {
    "clock_s": Expected(
        _number, 1.0, OWN, "largest offset of a node's clock from the collector's, in seconds"
    ),
    "memlock": Expected(
        _bytes,
        float("inf"),
        "Open MPI, mailing list: a limit of 128 MiB hangs osu_bibw",
        "least limit of locked memory on nodes with RDMA",
    ),
    "open_files": Expected(_number, None, "", "least soft limit of open files"),
    "services": Expected(_daemons, None, "", f"daemons that must run, of {', '.join(DAEMONS)}"),
    "mounts": Expected(_words, None, "", "mount points that must be there"),
    "huge_pages": Expected(_number, None, "", "least number of huge pages of the default size"),
    "transparent": Expected(
        _words, ("always", "madvise"), TUNED_HPC, "modes of transparent huge pages to accept"
    ),
    "numa_balancing": Expected(
        _words, ("0",), TUNED_HPC, "values of kernel.numa_balancing with several NUMA nodes"
    ),
    "governors": Expected(_words, ("performance",), TUNED_SPEED, "frequency governors to accept"),
    "idle_latency_us": Expected(_number, None, "", "highest latency of an enabled idle state"),
    "memory_per_core_gib": Expected(_number, None, "", "least memory for each core, in GiB"),
    "link_gbit": Expected(_number, None, "", "least rate of an active RDMA port, in Gbit/s"),
    "mtu": Expected(_number, None, "", "least MTU of interfaces of RDMA devices"),
    "pfc": Expected(_priorities, None, "", "the priorities with flow control of RoCE interfaces"),
    "ecn": Expected(_priorities, None, "", "priorities of RoCE with congestion control (ECN)"),
    "gpu_region": Expected(
        _bytes, float(1 << 30), OWN, "least memory of a GPU that adapters reach at a time (BAR1)"
    ),
    "vfs": Expected(
        _number, None, "", "least number of virtual functions of an adapter with SR-IOV"
    ),
    "clocks": Expected(
        _words,
        ("tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter", "xen"),
        OWN,
        "clock sources to accept",
    ),
    "steal_percent": Expected(_number, 1.0, OWN, "highest share of stolen time since boot"),
    "fill_percent": Expected(_number, 95.0, OWN, "share of a file system that counts as full"),
    "answer_s": Expected(
        _number, 1.0, OWN, "longest answer of a file system to a query of its size"
    ),
    "shm_bytes": Expected(_bytes, None, "", "least size of /dev/shm"),
    "packages": Expected(_table, None, "", "packages with their versions"),
    "kernel": Expected(_words, None, "", "releases of the kernel to accept"),
}


@dataclass(frozen=True)
class Expectations:
    """The values of one profile, and the sources of those that it sets itself."""

    values: Mapping[str, Value] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)

    def value(self, key: str) -> Value:
        """Return the value of a key of KEYS."""
        return self.values.get(key, KEYS[key].default)

    def source(self, key: str) -> str:
        """Return the source of that value."""
        return self.sources.get(key) or KEYS[key].source
