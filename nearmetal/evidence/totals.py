# SPDX-License-Identifier: Apache-2.0
"""Traffic of endpoints summed up by job, node and channel, for Prometheus. Pure.

An endpoint counts from its start to its end, and a sum must not fall when the endpoint goes. So the
sums keep the growth of each endpoint. The number of labels is limited, and no rank, process or peer
is a label: the files come from the processes of users.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from nearmetal.core.metrics import OTHER, Kind, Metric
from nearmetal.evidence.counters import EndpointCounters

MOST_PLACES = 500
"""Pairs of job and node with labels of their own."""

MOST_ENDPOINTS = 1 << 16
KEPT_S = 900.0
"""Seconds for which the sums of a job stay after its end: a scrape must see the last of them."""

_MESSAGES = {"sent": "sent_messages", "received": "received_messages"}
_BYTES = {"sent": "sent_bytes", "received": "received_bytes"}
_TROUBLE = {
    "send_stalls": "Sends that found no room.",
    "copy_fallbacks": "Transfers that fell back to another protocol.",
    "channel_quarantines": "Channels that were given up after invalid bytes.",
}

Sums = Counter[tuple[str, ...]]
"""Numbers by name, for traffic also by channel and direction."""


@dataclass
class _JobOnNode:
    """The sums of a job on a node, and what is there now."""

    sums: Sums = field(default_factory=Counter)
    endpoints: int = 0
    down: int = 0
    peers: Counter[str] = field(default_factory=Counter)
    seen_s: float = 0.0

    def empty(self) -> None:
        """Forget what is there now."""
        self.endpoints = self.down = 0
        self.peers.clear()


class TrafficTotals:
    """Sums over readings of the statistics files."""

    def __init__(self, channels: Iterable[str], most: int = MOST_PLACES) -> None:
        """`channels`: those of the provider; a file may name others, which are summed up."""
        self._channels = {*channels, "none"}
        self._most = most
        self._places: dict[tuple[str, str], _JobOnNode] = {}
        self._last: dict[str, tuple[Sums, float]] = {}

    def read(self, endpoints: Iterable[tuple[EndpointCounters, bool]], now_s: float) -> None:
        """Add the growth since the last reading; `now_s` on any clock that never goes back.

        Each endpoint comes once, with whether it runs. One that ended adds its last messages if an
        earlier reading saw it.
        """
        for place in self._places.values():
            place.empty()
        for endpoint, runs in endpoints:
            if not runs and endpoint.id not in self._last:
                continue
            before = self._last.pop(endpoint.id, None)
            while before is None and len(self._last) >= MOST_ENDPOINTS:
                self._last.pop(next(iter(self._last)))
            now = self._sums(endpoint)
            self._last[endpoint.id] = (now, now_s if runs or before is None else before[1])
            place = self._place(endpoint, now_s)
            # A subtraction of counters drops what fell: a peer beyond the limit of the file.
            place.sums += now - before[0] if before else now
            if not runs:
                continue
            place.seen_s = now_s
            place.endpoints += 1
            place.down += sum(peer.down for peer in endpoint.peers)
            place.peers.update(self._channel(peer.channel) for peer in endpoint.peers)
        # Not before: after a long pause, what still runs keeps its sums.
        self._forget(now_s)

    def _forget(self, now_s: float) -> None:
        late = now_s - KEPT_S
        self._places = {key: one for key, one in self._places.items() if one.seen_s >= late}
        self._last = {key: one for key, one in self._last.items() if one[1] >= late}

    def _place(self, endpoint: EndpointCounters, now_s: float) -> _JobOnNode:
        key = (endpoint.job, endpoint.host)
        if key not in self._places and len(self._places) >= self._most:
            key = (OTHER, OTHER)
        return self._places.setdefault(key, _JobOnNode(seen_s=now_s))

    def _channel(self, name: str) -> str:
        return name if name in self._channels else OTHER

    def _sums(self, endpoint: EndpointCounters) -> Sums:
        sums: Sums = Counter()
        for peer in endpoint.peers:
            for channel, traffic in peer.channels.items():
                for kind, names in (("messages", _MESSAGES), ("message_bytes", _BYTES)):
                    for direction, name in names.items():
                        sums[kind, self._channel(channel), direction] += getattr(traffic, name)
            counts = (peer.stalls, peer.fallbacks, peer.quarantines)
            for name, count in zip(_TROUBLE, counts, strict=True):
                sums[(name,)] += count
        return sums

    def metrics(self) -> list[Metric]:
        """Return the metrics of the last reading."""
        labels = ("channel", "direction")
        return [
            self._counter("messages", "Messages of MPI ranks.", labels),
            self._counter("message_bytes", "Payload bytes of messages of MPI ranks.", labels),
            *(
                self._metric(
                    name,
                    text,
                    ((key, place.sums[(name,)]) for key, place in self._places.items()),
                    kind="counter",
                )
                for name, text in _TROUBLE.items()
            ),
            self._metric(
                "endpoints",
                "Endpoints of running jobs.",
                ((key, place.endpoints) for key, place in self._places.items()),
            ),
            self._metric(
                "peers_down",
                "Peers of running endpoints that are lost or closed.",
                ((key, place.down) for key, place in self._places.items()),
            ),
            self._metric(
                "peers",
                "Peers of running endpoints, by the channel that reaches them.",
                (
                    ((*key, channel), count)
                    for key, place in self._places.items()
                    for channel, count in place.peers.items()
                ),
                ("channel",),
            ),
        ]

    def _counter(self, name: str, text: str, labels: tuple[str, ...]) -> Metric:
        found = (
            ((*key, *rest), value)
            for key, place in self._places.items()
            for (kind, *rest), value in place.sums.items()
            if kind == name
        )
        return self._metric(name, text, found, labels, kind="counter")

    def _metric(
        self,
        name: str,
        text: str,
        samples: Iterable[tuple[tuple[str, ...], float]],
        labels: tuple[str, ...] = (),
        *,
        kind: Kind = "gauge",
    ) -> Metric:
        return Metric(name, kind, text, ("mpi_job", "node", *labels), tuple(sorted(samples)))
