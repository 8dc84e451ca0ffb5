# SPDX-License-Identifier: Apache-2.0
"""The metrics of jobs and clusters, read again and again. It only reads."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import nearmetal
from nearmetal.cluster.store import Store
from nearmetal.core.metrics import Metric, one
from nearmetal.core.process import LocalRunner
from nearmetal.evidence.counters import EndpointCounters
from nearmetal.evidence.totals import MOST_ENDPOINTS, TrafficTotals
from nearmetal.job.locality import known_channels
from nearmetal.job.stats import counters_in
from nearmetal.job.watched import cluster_metrics, cluster_states

READING_S = 10.0
"""Time for the statistics files of one reading: users may fill their directories."""


class Exporter:
    """The metrics of the last reading."""

    def __init__(self, places: Callable[[], Sequence[Path]], store: Store) -> None:
        """`places` returns the directories of statistics files; each reading calls it."""
        self._places = places
        self._store = store
        self._totals = TrafficTotals(known_channels(LocalRunner()) or ())
        self._whole = True
        self._metrics: list[Metric] = []

    def read(self) -> None:
        """Read everything once."""
        self._whole = True
        self._totals.read(self._endpoints(), time.monotonic())
        found = [
            *self._totals.metrics(),
            *cluster_metrics(cluster_states(self._store)),
            one("reading_complete", "0: too many files, and some were not read.", int(self._whole)),
            one("reading_timestamp_seconds", "Time of the last reading.", time.time()),
            Metric(
                "build_info",
                "gauge",
                "The version of nearmetal.",
                ("version",),
                (((nearmetal.__version__,), 1),),
            ),
        ]
        # The server reads in its own threads: it sees the old list or the new one.
        self._metrics = found

    def metrics(self) -> list[Metric]:
        """Return the metrics of the last reading."""
        return self._metrics

    def _endpoints(self) -> Iterator[tuple[EndpointCounters, bool]]:
        """Yield each endpoint once, and whether it runs, for a limited time."""
        end = time.monotonic() + READING_S
        met: set[str] = set()
        for directory in self._places():
            for seen in counters_in(directory):
                if time.monotonic() > end or len(met) >= MOST_ENDPOINTS:
                    self._whole = False
                    return
                if seen.counters.id not in met:
                    met.add(seen.counters.id)
                    yield seen.counters, seen.alive and seen.counters.state == "running"


def keep_reading(exporter: Exporter, interval_s: float, publish: Callable[[], None]) -> None:
    """Read and publish until a signal ends it."""
    while True:
        publish()
        time.sleep(interval_s)
        exporter.read()
