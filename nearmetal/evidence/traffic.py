# SPDX-License-Identifier: Apache-2.0
"""Traffic of running endpoints by peer and channel: totals and rates. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from enum import Enum

from nearmetal.evidence.counters import EndpointCounters, PeerCounters, Traffic


@dataclass(frozen=True)
class Line:
    """One endpoint, one peer, one channel. Rates are per second; None after the first look."""

    endpoint: EndpointCounters
    peer: PeerCounters
    channel: str
    traffic: Traffic
    rate: tuple[float, float, float, float] | None = None
    """Sent messages and bytes, received messages and bytes."""

    @property
    def who(self) -> str:
        """The endpoint as a user knows it."""
        if self.endpoint.rank is not None:
            return f"rank {self.endpoint.rank}"
        return f"pid {self.endpoint.pid}"


class Sort(Enum):
    """The order of the lines."""

    RATE = "rate"
    BYTES = "bytes"
    MESSAGES = "messages"
    TROUBLE = "trouble"
    RANK = "rank"


def lines(now: Iterable[EndpointCounters], before: Iterable[EndpointCounters] = ()) -> list[Line]:
    """Return one line per endpoint, peer and channel, with rates if `before` has the endpoint."""
    old = {endpoint.id: endpoint for endpoint in before}
    found = []
    for endpoint in now:
        earlier = old.get(endpoint.id)
        peers = {peer.id: peer for peer in earlier.peers} if earlier else {}
        span = endpoint.written_s - earlier.written_s if earlier else 0.0
        for peer in endpoint.peers:
            # A peer without traffic also has one line: it shows how the peer is reached.
            channels = peer.channels or {peer.channel: Traffic()}
            for channel, traffic in channels.items():
                past = peers[peer.id].channels.get(channel, Traffic()) if peer.id in peers else None
                rate = _rate(traffic, past, span) if earlier else None
                found.append(Line(endpoint, peer, channel, traffic, rate))
    return found


def _rate(now: Traffic, before: Traffic | None, span_s: float) -> tuple[float, float, float, float]:
    """Return growth per second; 0 if the file was not written again, or a counter fell."""
    if span_s <= 0:
        return (0.0, 0.0, 0.0, 0.0)
    pairs = zip(astuple(now), astuple(before or Traffic()), strict=True)
    first, second, third, fourth = (max(0, a - b) / span_s for a, b in pairs)
    return (first, second, third, fourth)


def ordered(found: Sequence[Line], sort: Sort) -> list[Line]:
    """Return the lines in an order; equal lines by rank and peer."""

    def key(line: Line) -> tuple[float, str, int, str, str]:
        traffic, peer = line.traffic, line.peer
        weight = {
            Sort.RATE: sum(line.rate[1::2]) if line.rate else 0.0,
            Sort.BYTES: traffic.sent_bytes + traffic.received_bytes,
            Sort.MESSAGES: traffic.sent_messages + traffic.received_messages,
            Sort.TROUBLE: peer.down * 1e12 + peer.quarantines * 1e9 + peer.fallbacks + peer.stalls,
            Sort.RANK: 0.0,
        }[sort]
        rank = line.endpoint.rank if line.endpoint.rank is not None else line.endpoint.pid
        return (-weight, line.endpoint.job, rank, line.peer.label, line.channel)

    return sorted(found, key=key)


def accesses(peer: PeerCounters) -> str:
    """Return the operations on a peer's memory by way, in words; "" for none."""
    return ", ".join(
        f"{sum(done.operations for done in kinds.values()):,} {way}"
        for way, kinds in peer.accesses.items()
    )


def trouble(peer: PeerCounters) -> str:
    """Return the trouble with a peer, in words; "" if there was none."""
    words = []
    if peer.down:
        words.append(f"down: {peer.down_reason or 'closed'}")
    if peer.quarantines:
        words.append(f"quarantined: {peer.quarantine_reason}")
    if peer.fallbacks:
        words.append(f"{peer.fallbacks} fallbacks: {peer.fallback_reason}")
    return "; ".join(words)


def remarks(line: Line) -> str:
    """Return what else there is to say of a line, in words; "" if nothing."""
    peer = line.peer
    words = [trouble(peer) or (peer.reason if line.channel in {"net", "none"} else "")]
    if peer.device and line.channel == peer.channel:
        words.append(f"GPU memory {peer.device}")
    return "; ".join(filter(None, words))
