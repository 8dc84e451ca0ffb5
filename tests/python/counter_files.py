# SPDX-License-Identifier: Apache-2.0
"""Statistics files as endpoints write them, with what a test wants in them."""

from __future__ import annotations

import struct
from typing import Any

from nearmetal.evidence.counters import KINDS, MAGIC, RELATIONS, VERSION, WAYS, sum_of

CHANNELS = ("none", "self", "shm", "segment", "net", "fifth")


def peer_bytes(**fields: Any) -> bytes:
    """Return one peer. `traffic`: channel to four counts; `accesses`: (way, kind) to two."""
    wanted: dict[str, Any] = {
        "id": bytes(range(6)),
        "relation": "host",
        "channel": "shm",
        "down": False,
        "moves": 0,
        "quarantines": 0,
        "stalls": 0,
        "fallbacks": 0,
        "traffic": {},
        "label": "n2, pid 7",
        "reason": "met in the same bytes",
        "down_reason": "",
        "quarantine_reason": "",
        "fallback_reason": "",
        "choice": "",
        "device": "",
        "protocols": (0,) * 8,
        "accesses": {},
    } | fields
    counts = [n for name in CHANNELS for n in wanted["traffic"].get(name, (0, 0, 0, 0))]
    counts += [0] * (32 - len(counts))
    for way in range(4):
        for kind in range(4):
            known = way < len(WAYS) and kind < len(KINDS)
            name = (WAYS[way], KINDS[kind]) if known else None
            counts += wanted["accesses"].get(name, (0, 0))
    texts = [
        wanted[k].encode("latin-1", "replace")
        for k in (
            "label",
            "reason",
            "down_reason",
            "quarantine_reason",
            "fallback_reason",
            "choice",
            "device",
        )
    ]
    return struct.pack(
        "<6s4BHIQQ8Q64Q96s192s192s192s192s192s192s",
        wanted["id"],
        RELATIONS.index(wanted["relation"]),
        CHANNELS.index(wanted["channel"]),
        1,
        wanted["down"],
        wanted["moves"],
        wanted["quarantines"],
        wanted["stalls"],
        wanted["fallbacks"],
        *wanted["protocols"],
        *counts,
        *texts,
    )


def file_bytes(*peers: bytes, **fields: Any) -> bytes:
    """Return one file."""
    wanted: dict[str, Any] = {
        "magic": MAGIC,
        "version": VERSION,
        "head_size": 256,
        "peer_size": 1856,
        "nr_peers": len(peers),
        "unlisted": 0,
        "state": 2,
        "generation": 9,
        "written_ns": 5 * 10**9,
        "pid": 4711,
        "rank": -1,
        "id": b"abcdef",
        "interface": 0,
        "host": b"n1",
        "job": b"job-1",
    } | fields
    head = struct.pack(
        "<Q6I3QIi6sBx64s64s56s",
        wanted["magic"],
        wanted["version"],
        wanted["head_size"],
        wanted["peer_size"],
        wanted["nr_peers"],
        wanted["unlisted"],
        wanted["state"],
        wanted["generation"],
        10**9,
        wanted["written_ns"],
        wanted["pid"],
        wanted["rank"],
        wanted["id"],
        wanted["interface"],
        wanted["host"],
        wanted["job"],
        ",".join(CHANNELS).encode(),
    )
    content = head + b"".join(peers) + struct.pack("<Q", wanted.get("tail", wanted["generation"]))
    return content + struct.pack("<Q", sum_of(content))
