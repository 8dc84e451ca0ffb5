# SPDX-License-Identifier: Apache-2.0
"""What changed between two collections, or two snapshots. Pure."""

from __future__ import annotations

import fnmatch
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from nearmetal.check.snapshot import Snapshot, leaves, shown
from nearmetal.core.text import printable

_VOLATILE = [
    "system.uptime_s",
    "system.load_1",
    "system.processes.*",
    "memory.MemAvailable",
    "memory.Committed_AS",
    "memory.Shmem",
    "memory.Mlocked",
    "memory.SwapFree",
    "memory.HugePages_Free",
    "names.seconds",
    "storage.*.inodes_free",
    "storage.*seconds",
    "storage.*free",
    "virtual.steal_percent",
    "virtual.guests.*resident_kib",
    "nearmetal.shm_free",
    "*.port_xmit_wait",
    "net.*dropped",
]
"""Facts that change all the time, as patterns of dotted places."""

_COUNTERS = ("*.counters.*", "memory.edac.*.ce", "memory.edac.*.ue", "processor.throttled")
_SHOWN = 100


@dataclass(frozen=True)
class NodeChange:
    """One change, the same on all of its nodes. `grown`: an error counter that grew."""

    place: str
    before: str
    after: str
    nodes: tuple[str, ...]
    grown: bool = False


def compare(before: Iterable[Snapshot], after: Iterable[Snapshot]) -> list[NodeChange]:
    """Return what changed, each change with its nodes, error counters first."""
    old = {node.name: node for node in before}
    found: dict[tuple[bool, str, str, str], list[str]] = defaultdict(list)
    met = set()
    for node in after:
        met.add(node.name)
        if node.name in old:
            for change in _of_node(old[node.name], node):
                found[change].append(node.name)
        else:
            found[False, "node", "absent", "there"].append(node.name)
    for name in old:
        if name not in met:
            found[False, "node", "there", "absent"].append(name)
    changes = [
        NodeChange(place, was, now, tuple(sorted(nodes)), grown)
        for (grown, place, was, now), nodes in found.items()
    ]
    return sorted(changes, key=lambda change: (not change.grown, change.place, change.nodes))


def _of_node(old: Snapshot, new: Snapshot) -> Iterator[tuple[bool, str, str, str]]:
    was, now = dict(leaves(old.facts)), dict(leaves(new.facts))
    rebooted = old.text("system", "boot_id") != new.text("system", "boot_id")
    for path in sorted(was.keys() | now.keys()):
        before, after = was.get(path), now.get(path)
        if before == after:
            continue
        place, plain = shown(path), ".".join(path)
        if any(fnmatch.fnmatchcase(plain, pattern) for pattern in _VOLATILE):
            continue
        if any(fnmatch.fnmatchcase(plain, pattern) for pattern in _COUNTERS):
            if not rebooted and _grew(before, after):
                yield True, place, _text(before), _text(after)
            continue
        yield False, place, _text(before), _text(after)


def _grew(before: Any, after: Any) -> bool:
    numbers = isinstance(before, int | float) and isinstance(after, int | float)
    return numbers and after > before


def _text(value: Any) -> str:
    return "absent" if value is None else printable(str(value))[:_SHOWN] or "empty"
