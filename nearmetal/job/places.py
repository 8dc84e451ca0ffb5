# SPDX-License-Identifier: Apache-2.0
"""A job's directories, where its ranks find them: shared with this machine, or in every node."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from nearmetal.core.errors import BackendError
from nearmetal.job.node_places import NodePlaces
from nearmetal.job.stale import MARKER, is_stale
from nearmetal.job.stats import cause, read_exit_codes, read_stats

if TYPE_CHECKING:
    from nearmetal.cluster.backend import Backend
    from nearmetal.cluster.spec import ClusterSpec
    from nearmetal.core.process import Runner

Files = Sequence[tuple[Path, str]]
"""Files or directories here, and the directory each gets among those staged in a node."""

SUFFIXES = ("", ".stats", ".providers")


@dataclass(frozen=True)
class Wanted:
    """What a job needs beside its directories."""

    providers: tuple[Path, ...] = ()
    """Each gets a link in the job's directory of providers."""
    files: Files = ()
    """What is brought to nodes that do not see ours."""
    seen: tuple[Path, ...] = ()
    """Files that such nodes must have themselves."""


class Places(Protocol):
    """The directories of one job: segments, statistics, links to providers."""

    @property
    def job(self) -> str:
        """The job's name."""

    def make(self, wanted: Wanted) -> None:
        """Make them, and see to what is wanted; raises LaunchError."""

    def stats(self) -> list[dict[str, Any]]:
        """Return what every endpoint left; the launcher has ended."""

    def first_failure(self) -> int | None:
        """Return the exit code of the rank that failed first, where one was recorded."""

    def end(self) -> None:
        """End what still runs of the job, and remove them; no error when they are not there."""


@dataclass(frozen=True)
class SharedPlaces:
    """Directories of hosts that this machine sees as its own."""

    backend: Backend
    bases: tuple[Path, ...]
    job: str

    @property
    def all(self) -> list[Path]:
        """Every directory of the job."""
        return [base / (self.job + suffix) for base in self.bases for suffix in SUFFIXES]

    def make(self, wanted: Wanted) -> None:
        """Make them here; the nodes see our files."""
        for path in self.all:
            path.mkdir(mode=0o700)
            if path.suffix == ".providers":
                for library in wanted.providers:
                    (path / library.name).symlink_to(library)

    def stats(self) -> list[dict[str, Any]]:
        """Read them here."""
        return [e for base in self.bases for e in read_stats(base / f"{self.job}.stats")]

    def first_failure(self) -> int | None:
        """Read it here."""
        places = (base / f"{self.job}.stats" for base in self.bases)
        return cause([failure for place in places for failure in read_exit_codes(place)])

    def end(self) -> None:
        """Remove them here; the cluster may be gone by now."""
        try:
            self.backend.end_marked(f"{MARKER}={self.job}")
        except BackendError:
            return
        finally:
            for path in self.all:
                shutil.rmtree(path, ignore_errors=True)


def places_for(
    backend: Backend, spec: ClusterSpec, nodes: Sequence[str], job: str, runner: Runner
) -> Places:
    """Return the directories of a job on these nodes; nothing is made yet."""
    if not backend.shares_files:
        everyone = [node.name for _, node in spec.nodes]
        return NodePlaces(backend, nodes, job, runner, everyone=everyone)
    used = sorted({host.name for host, node in spec.nodes if node.name in nodes})
    return SharedPlaces(backend, tuple(backend.meeting_directory(host) for host in used), job)


def end_stale(backend: Backend, spec: ClusterSpec, runner: Runner) -> tuple[str, ...]:
    """End and remove every job whose owner on this machine is gone; returns their names.

    In machines a job sees to that when it makes its directories: a login less.
    """
    if not backend.shares_files:
        return ()
    nodes = [node.name for _, node in spec.nodes]
    names: set[str] = set()
    for host in spec.hosts:
        names |= {path.name for path in backend.meeting_directory(host.name).iterdir()}
    jobs = sorted({name.partition(".")[0] for name in names if is_stale(name)})
    for job in jobs:
        places_for(backend, spec, nodes, job, runner).end()
    return tuple(jobs)
