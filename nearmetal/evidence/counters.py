# SPDX-License-Identifier: Apache-2.0
"""Statistics files of endpoints, as src/transport/stats_layout.h defines them. All bytes are foreign.

An endpoint rewrites its file while it runs, so a reader may see parts of two versions. Then the
generations at both ends differ, or the sum is wrong, and the bytes are refused.
"""

from __future__ import annotations

import json
import struct
from dataclasses import asdict, astuple, dataclass, field
from typing import Any

MAGIC = 0x317374617473
VERSION = 5
MAX_PEERS = 4096
MAX_CHANNELS = 8
SUFFIX = ".stats"

SELF, NETWORK = "self", "net"
"""Channels with a special meaning in Python: not memory of the host that other processes share.

`src/base/channel.h` is the only list of channels: `channel_names` reads it, and a statistics file
holds the names that its writer knows.
"""

RELATIONS = ("unknown", "self", "node", "host", "network")
INTEGRITIES = ("-", "enforced", "by convention")
PROTOCOLS = ("eager", "pool", "pool past cache", "pull", "both halves", "heap")
"""Protocols of large messages, named as in `nm_protocol_name`."""

WAYS = ("direct", "cma", "served")
"""The mover of the bytes of a put, get or atomic: the initiator, the kernel, or the target."""

KINDS = ("put", "get", "atomic")

INTERFACES = ("libfabric", "ucx")
"""The interface by which the program uses the endpoint, by number."""

STATES = {1: "running", 2: "closed"}

_HEAD = struct.Struct("<Q6I3QIi6sBx64s64s56s")
_PEER = struct.Struct("<6s4BHIQQ8Q32Q32Q96s192s192s192s192s192s192s")
_TAIL = struct.Struct("<QQ")
_MASK = (1 << 64) - 1

MAX_BYTES = _HEAD.size + MAX_PEERS * _PEER.size + _TAIL.size


class TornError(ValueError):
    """The bytes are not one whole version; read again."""


@dataclass(frozen=True)
class Traffic:
    """Messages and bytes of one channel."""

    sent_messages: int = 0
    sent_bytes: int = 0
    received_messages: int = 0
    received_bytes: int = 0


@dataclass(frozen=True)
class Accesses:
    """Operations of one kind on a peer's memory, all done in one way."""

    operations: int = 0
    bytes: int = 0


@dataclass(frozen=True)
class PeerCounters:
    """State of one peer in an endpoint. Texts are words of the peer or of the provider."""

    id: str
    label: str
    relation: str
    channel: str
    integrity: str
    reason: str
    down: bool
    down_reason: str
    stalls: int
    fallbacks: int
    fallback_reason: str
    moves: int
    """Changes of the way to the peer between memory and the network, in order."""
    quarantines: int
    quarantine_reason: str
    choice: str
    """The current protocol of large messages, and the reason for the last change."""
    device: str
    """The way of large messages between devices, and the reason; "" without FI_HMEM."""
    protocols: dict[str, int] = field(default_factory=dict)
    """Bytes of large messages received, by protocol."""
    channels: dict[str, Traffic] = field(default_factory=dict)
    """Channels that carried messages."""
    accesses: dict[str, dict[str, Accesses]] = field(default_factory=dict)
    """Operations of this endpoint on the peer's memory, by way, then by kind."""

    @property
    def total(self) -> Traffic:
        """Messages and bytes of all channels."""
        columns = zip(*(astuple(traffic) for traffic in self.channels.values()), strict=True)
        return Traffic(*map(sum, columns))


@dataclass(frozen=True)
class EndpointCounters:
    """The content of one file."""

    id: str
    host: str
    pid: int
    rank: int | None
    job: str
    interface: str
    state: str
    generation: int
    started_s: float
    written_s: float
    unlisted: int
    peers: tuple[PeerCounters, ...]

    def data(self) -> dict[str, Any]:
        """Return the data for JSON."""
        return {
            "identity": self.id,
            "host": self.host,
            "pid": self.pid,
            "rank": self.rank,
            "job": self.job,
            "interface": self.interface,
            "state": self.state,
            "started": self.started_s,
            "written": self.written_s,
            "unlisted_peers": self.unlisted,
            "peers": [asdict(peer) | vars(peer.total) for peer in self.peers],
        }


def channel_names(abi: str) -> tuple[str, ...]:
    """Return all channels from the output of `nearmetal-info --abi`; raises ValueError."""
    data = json.loads(abi)
    names = data.get("channels") if isinstance(data, dict) else None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError("the output has no list of channels")
    return tuple(name for name in names if name != "none")


def sum_of(content: bytes) -> int:
    """Return the sum that the writer puts last; the length is a multiple of 8."""
    value = 0xCBF29CE484222325
    for (word,) in struct.iter_unpack("<Q", content):
        value = ((value ^ word) * 0x100000001B3) & _MASK
    return value


def _text(raw: bytes) -> str:
    """Return a fixed field's text: printable ASCII, everything else replaced."""
    words = raw.split(b"\0", 1)[0]
    return "".join(chr(c) if 0x20 <= c < 0x7F else "?" for c in words)  # noqa: PLR2004 - ASCII


def _word(words: tuple[str, ...], index: int) -> str:
    return words[index] if index < len(words) else words[0]


def _traffic(words: tuple[int, ...], channels: tuple[str, ...]) -> dict[str, Traffic]:
    counts = ((name, words[4 * i : 4 * i + 4]) for i, name in enumerate(channels))
    return {name: Traffic(*four) for name, four in counts if any(four)}


def _accesses(counts: tuple[int, ...]) -> dict[str, dict[str, Accesses]]:
    found: dict[str, dict[str, Accesses]] = {}
    for i, way in enumerate(WAYS):
        for j, kind in enumerate(KINDS):
            operations, volume = counts[8 * i + 2 * j : 8 * i + 2 * j + 2]
            if operations:
                found.setdefault(way, {})[kind] = Accesses(operations, volume)
    return found


def _protocols(counts: tuple[int, ...]) -> dict[str, int]:
    names = (*PROTOCOLS, *(f"protocol {i}" for i in range(len(PROTOCOLS), len(counts))))
    return {name: count for name, count in zip(names, counts, strict=True) if count}


def _peer(content: bytes, channels: tuple[str, ...]) -> PeerCounters:
    values = _PEER.unpack(content)
    who, relation, channel, integrity, down, moves, quarantines, stalls, fallbacks = values[:9]
    texts = map(_text, values[81:])
    label, reason, down_reason, quarantine_reason, fallback_reason, choice, device = texts
    return PeerCounters(
        id=who.hex(),
        label=label,
        relation=_word(RELATIONS, relation),
        channel=_word(channels, channel),
        integrity=_word(INTEGRITIES, integrity),
        reason=reason,
        down=bool(down),
        down_reason=down_reason,
        stalls=stalls,
        fallbacks=fallbacks,
        fallback_reason=fallback_reason,
        moves=moves,
        quarantines=quarantines,
        quarantine_reason=quarantine_reason,
        choice=choice,
        device=device,
        protocols=_protocols(values[9:17]),
        channels=_traffic(values[17:49], channels),
        accesses=_accesses(values[49:81]),
    )


def parse_counters(content: bytes) -> EndpointCounters:
    """Read one file; raises TornError for a half-written file, ValueError for a foreign one."""
    if len(content) < _HEAD.size + _TAIL.size:
        raise TornError("shorter than its head")
    head = _HEAD.unpack_from(content)
    magic, version, head_size, peer_size, nr_peers, unlisted, state = head[:7]
    if magic != MAGIC:
        raise ValueError("not the statistics of an endpoint")
    if (version, head_size, peer_size) != (VERSION, _HEAD.size, _PEER.size):
        raise ValueError(f"statistics of version {version}, this reads version {VERSION}")
    end = _HEAD.size + nr_peers * _PEER.size
    if nr_peers > MAX_PEERS or end + _TAIL.size > len(content):
        raise TornError("shorter than its peers")
    generation, total = _TAIL.unpack_from(content, end)
    if generation != head[7] or total != sum_of(content[: end + 8]):
        raise TornError("half of one version and half of another")
    if state not in STATES:
        raise ValueError(f"unknown state {state}")
    _, started_ns, written_ns, pid, rank, who, interface, host, job, names = head[7:]
    if interface >= len(INTERFACES):
        raise ValueError(f"unknown interface {interface}")
    channels = tuple(_text(names).split(",")[:MAX_CHANNELS])
    places = range(_HEAD.size, end, _PEER.size)
    peers = tuple(_peer(content[at : at + _PEER.size], channels) for at in places)
    return EndpointCounters(
        id=who.hex(),
        host=_text(host),
        pid=pid,
        rank=None if rank < 0 else rank,
        job=_text(job),
        interface=INTERFACES[interface],
        state=STATES[state],
        generation=generation,
        started_s=started_ns / 1e9,
        written_s=written_ns / 1e9,
        unlisted=unlisted,
        peers=peers,
    )
