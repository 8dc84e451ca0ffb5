# SPDX-License-Identifier: Apache-2.0
"""Simulated nodes for `nearmetal check`: a healthy one, and what a test changes of it."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable
from datetime import date
from typing import Any

from nearmetal.check.analyse import analyse
from nearmetal.check.model import Analysis, CheckFinding
from nearmetal.check.profile import CheckProfile, load_profile, parse_profile
from nearmetal.check.snapshot import Snapshot, parse_snapshot

TODAY = date(2026, 1, 15)

DIFF = "nearmetal check diff GOOD BAD"
"""The remedy of a finding that has no better one."""

PORT = {
    "state": "ACTIVE",
    "phys_state": "LinkUp",
    "rate": "100 Gb/sec (4X EDR)",
    "link_layer": "InfiniBand",
    "lid": "0x7",
    "sm_lid": "0x1",
    "pkeys": "0xffff",
    "netdev": "ib0",
    "gids": {},
    "counters": {"symbol_error": 0, "link_downed": 0, "port_rcv_errors": 0},
}

FACTS: dict[str, Any] = {
    "system": {
        "kernel": "6.1.0-18-amd64",
        "architecture": "x86_64",
        "os": {"id": "debian", "version_id": "12"},
        "dmi": {"product_name": "Model 1", "bios_version": "2.1"},
        "boot_id": "b",
        "uptime_s": 1000.0,
    },
    "services": {"sshd": "runs", "time": "chronyd"},
    "names": {"addresses": "10.0.0.1"},
    "limits": {"memlock": {"soft": -1, "hard": -1}, "nofile": {"soft": 65536, "hard": 65536}},
    "sysctl": {"kernel.numa_balancing": "0", "vm.swappiness": "10"},
    "processor": {
        "model": "Model P",
        "microcode": "0x2b",
        "packages": 2,
        "cores": 8,
        "threads": 8,
        "usable": 8,
        "smt": "notsupported",
        "online": "0-7",
        "present": "0-7",
        "governors": {"performance": "0-7"},
        "highest_khz": {"3000000": "0-7"},
        "allowed_khz": {"3000000": "0-7"},
        "idle": {"POLL": 0, "C1": 2},
        "throttled": 0,
    },
    "memory": {
        "MemTotal": 64 << 20,
        "SwapTotal": 0,
        "SwapFree": 0,
        "HardwareCorrupted": 0,
        "HugePages_Total": 0,
        "transparent": {"enabled": "always"},
        "nodes": {
            "0": {"cpus": "0-3", "MemTotal": 32 << 20},
            "1": {"cpus": "4-7", "MemTotal": 32 << 20},
        },
        "modules": {"A1": "32768 MiB, 3200 MT/s of 3200", "B1": "32768 MiB, 3200 MT/s of 3200"},
        "edac": {"mc0": {"ce": 0, "ue": 0}},
    },
    "net": {"ib0": {"mtu": 4092, "kind": 32, "mac": "00", "driver": "mlx5_core"}},
    "fabric": {
        "mlx5_0": {
            "node_guid": "0002:c903:0000:0000",
            "fw_ver": "20.31.1014",
            "board_id": "MT_0000000010",
            "software": False,
            "numa": 0,
            "driver": "mlx5_core",
            "ports": {"1": PORT},
        }
    },
    "pci": {
        "0000:17:00.0": {
            "numa": 0,
            "driver": "mlx5_core",
            "current_link_speed": "8.0 GT/s PCIe",
            "max_link_speed": "8.0 GT/s PCIe",
            "current_link_width": "16",
            "max_link_width": "16",
            "vfs_possible": 16,
            "vfs": 16,
        }
    },
    "virtual": {"guest": False, "clock": "tsc", "iommu_groups": 40, "steal_percent": 0.0},
    "storage": {
        "/": {
            "type": "ext4",
            "options": "rw",
            "seconds": 0.001,
            "bytes": 1 << 40,
            "free": 1 << 39,
            "inodes": 1 << 20,
            "inodes_free": 1 << 19,
        }
    },
    "software": {
        "modules": {"ib_uverbs": "kernel"},
        "packages": {"linux-image-6.1.0-18-amd64": "6.1.76-1", "libfabric1": "1.17.0-3"},
    },
    "nearmetal": {
        "folders": {"/dev/shm": {"mode": "1777", "writable": True}},
        "shm_bytes": 32 << 30,
    },
}
"""Two sockets, one InfiniBand adapter, Debian 12: the values that a healthy node of this kind has."""


def facts_of(number: int, changes: Iterable[tuple[str, Any]] = ()) -> dict[str, Any]:
    """Return the facts of a node; each change is a path with `>` between its keys, and a value.

    Ellipsis removes the place.
    """
    facts = copy.deepcopy(FACTS)
    facts["system"]["hostname"] = f"compute-{number:02d}"
    facts["fabric"]["mlx5_0"]["node_guid"] = f"0002:c903:0000:{number + 1:04x}"
    for path, value in changes:
        *keys, last = path.split(">")
        place = facts
        for key in keys:
            place = place.setdefault(key, {})
        if value is ...:
            del place[last]
        else:
            place[last] = value
    return facts


def content_of(facts: dict[str, Any], **more: Any) -> bytes:
    """Return the bytes of a snapshot."""
    data = {
        "format": "nearmetal-snapshot",
        "version": 1,
        "root": True,
        "quick": False,
        "seconds": 0.5,
        "taken": 1_700_000_000.0,
        "unseen": {},
        "facts": facts,
    }
    return json.dumps(data | more).encode()


def node(
    number: int,
    *changes: tuple[str, Any],
    clock: tuple[float, float] | None = (-0.1, 0.1),
    **more: Any,
) -> Snapshot:
    """Return a healthy node with changes."""
    name = f"compute-{number:02d}"
    return parse_snapshot(content_of(facts_of(number, changes), **more), name, name, clock)


def cluster(*odd: Snapshot, size: int = 6) -> list[Snapshot]:
    """Return healthy nodes, with these in the places of their names."""
    given = {one.name: one for one in odd}
    return [given.get(f"compute-{i:02d}") or node(i) for i in range(1, size + 1)]


def judged(
    nodes: Iterable[Snapshot],
    profile: str = "health_extended",
    silent: dict[str, str] | None = None,
) -> Analysis:
    """Return the analysis of nodes by a profile: a name, or the text of a file."""
    found: CheckProfile = (
        parse_profile(profile, "site.yaml") if "\n" in profile else load_profile(profile)
    )
    return analyse(nodes, found, silent=silent or {}, today=TODAY)


def named(analysis: Analysis) -> list[tuple[str, str, str]]:
    """Return (check, severity, nodes) of each finding."""
    return [(f.check, f.grade.word, f.folded) for f in analysis.findings]


def only(analysis: Analysis) -> CheckFinding:
    """Return the one finding."""
    (finding,) = analysis.findings
    return finding
