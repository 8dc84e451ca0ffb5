# SPDX-License-Identifier: Apache-2.0
"""The directories in which running jobs leave their statistics, and the clusters of this user."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from nearmetal.cluster.backend import Backend, open_backend
from nearmetal.cluster.model import ClusterSpec
from nearmetal.cluster.store import Store, state_directory
from nearmetal.core.errors import BackendError, NearmetalError, UsageError
from nearmetal.core.journal import Journal
from nearmetal.core.metrics import OTHER, Metric
from nearmetal.core.process import LocalRunner

MOST_CLUSTERS = 100
"""Clusters that are looked at; the others are counted."""

_SHM = Path("/dev/shm")  # noqa: S108 - the place of the rundirs


def of_cluster(backend: Backend, spec: ClusterSpec) -> list[Path]:
    """Return the directories in which jobs of a running cluster leave their statistics.

    Raises UsageError if they are in the memory of machines.
    """
    if not backend.shares_files:
        raise UsageError(
            f"cluster {spec.name} has nodes that are machines: counters of running jobs are in "
            "their memory, and only files of this machine are read",
            "`nearmetal run --json` prints the counters when a job has ended",
        )
    found = []
    for host in spec.hosts:
        try:
            base = backend.meeting_directory(host.name)
            found += [base, *sorted(p for p in base.iterdir() if p.is_dir())]
        except (BackendError, OSError):
            continue  # the cluster went down meanwhile
    return found


def of_all_clusters(store: Store) -> list[Path]:
    """Return these directories of every cluster that has a readable record."""
    found = []
    for name in store.names():
        # A cluster of machines, without a readable record, or without the library of its backend
        # has no jobs that can be seen; the other clusters have.
        with contextlib.suppress(NearmetalError):
            spec = store.recorded(name)
            if spec is not None:
                found += of_cluster(open_backend(spec, store, LocalRunner()), spec)
    return found


def everywhere(*, of_users: bool = False) -> list[Path]:
    """Return the directories of this user's jobs; `of_users`: also of those of all users."""
    own = [os.environ.get(name, "") for name in ("NEARMETAL_STATS_DIR", "NEARMETAL_RUNDIR")]
    name = f"nearmetal-{os.geteuid()}"
    others = sorted(_SHM.glob("nearmetal-*")) if of_users else sorted(_SHM.glob(f"{name}.*"))
    places = [*(Path(p) for p in own if p), _SHM / name, *others]
    return list(dict.fromkeys([*places, *of_all_clusters(Store(state_directory()))]))


@dataclass(frozen=True)
class ClusterState:
    """A cluster as its record and its backend show it. None: not known."""

    name: str
    nodes: int | None
    healthy: int | None
    interrupted: bool | None


def cluster_states(store: Store) -> list[ClusterState]:
    """Return the state of every cluster; a backend that does not answer is no error."""
    found = []
    for number, name in enumerate(store.names()):
        spec, healthy, interrupted = None, None, None
        try:
            interrupted = Journal(store.cluster(name)).unfinished() is not None
            spec = store.recorded(name)
            if spec is not None and number < MOST_CLUSTERS:
                nodes = open_backend(spec, store, LocalRunner()).status()
                healthy = sum(node.healthy for node in nodes)
        except (NearmetalError, OSError):
            pass  # what is None is not known
        found.append(
            ClusterState(name, None if spec is None else len(spec.nodes), healthy, interrupted)
        )
    return found


def cluster_metrics(states: Iterable[ClusterState]) -> list[Metric]:
    """Return the metrics of clusters; those beyond a limit are one cluster."""
    rows: dict[str, dict[str, int]] = {"nodes": {}, "healthy": {}, "interrupted": {}}
    for number, state in enumerate(states):
        label = state.name if number < MOST_CLUSTERS else OTHER
        for name, of_label in rows.items():
            value = getattr(state, name)
            if value is not None:
                of_label[label] = of_label.get(label, 0) + int(value)
    texts = {
        "cluster_nodes": ("nodes", "Nodes in the record of a cluster."),
        "cluster_nodes_healthy": ("healthy", "Nodes that answer; missing: the backend is silent."),
        "cluster_interrupted": ("interrupted", "1: the last command on the cluster has not ended."),
    }
    return [
        Metric(
            name,
            "gauge",
            text,
            ("cluster",),
            tuple(((label,), value) for label, value in rows[row].items()),
        )
        for name, (row, text) in texts.items()
    ]
