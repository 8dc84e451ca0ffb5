# SPDX-License-Identifier: Apache-2.0
"""The seam between Slurm and the maker of its jobs' nodes; the watchdog works over it.

Prolog, epilog and watchdog need only launch, reclaim and two lists. `ThisNode` makes containers on
the machine of slurmd. A cloud would ask its API instead: an instance is then a server with the
number of the job in its metadata, and needs no other record.

The watchdog finds and ends leaks without slurmd, because a dead slurmd runs no epilog.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from nearmetal.core.errors import NearmetalError, SlurmError
from nearmetal.core.process import Runner
from nearmetal.slurm.container import ContainerRequest, Launched, launch
from nearmetal.slurm.network import guard, has_tunnel
from nearmetal.slurm.queue import drain, known_jobs
from nearmetal.slurm.reclaim import THIS_MACHINE, reclaim
from nearmetal.slurm.records import STATE, Container, Instance, containers, settled
from nearmetal.slurm.remains import Holder, holders
from nearmetal.slurm.vfs import JobVfs

AnyInstance = TypeVar("AnyInstance", bound=Instance)


class JobBackend(Protocol[AnyInstance]):
    """Makes, finds and ends the instances of jobs. All calls may be repeated after any crash."""

    def launch(self, wish: ContainerRequest) -> Launched:
        """Make it for a job, after the removal of leftovers of an earlier job with that number.

        An impossible request is a refusal, and no error. Raises NearmetalError for a fault of the
        node (or the cloud): then there is nothing, or `found` returns it.
        """

    def reclaim(self, job: int, *, only: AnyInstance | None = None) -> bool:
        """End everything of a job here; return whether there was anything. Nothing is no error.

        `only`: the instance at the time of the verdict; a later one stays. Raises NearmetalError
        if something does not end: then it stays recorded.
        """

    def found(self) -> Sequence[AnyInstance]:
        """Return every instance; any user may ask."""

    def settled(self) -> Sequence[AnyInstance]:
        """As `found`, without unfinished launches; raises NearmetalError without permission."""

    def holders(self) -> Sequence[Holder]:
        """Return processes that held a part of an ended instance and still exist."""


@dataclass(frozen=True)
class ThisNode:
    """Containers on this machine. `state`: the directory of records; `vfs`: the machine's VFs."""

    state: Path = STATE
    vfs: JobVfs = THIS_MACHINE

    def launch(self, wish: ContainerRequest) -> Launched:
        """Make the container of a job."""
        return launch(wish, self.state, self.vfs)

    def reclaim(self, job: int, *, only: Container | None = None) -> bool:
        """End the container of a job and remove its records."""
        return reclaim(job, self.state, only=only, vfs=self.vfs)

    def found(self) -> tuple[Container, ...]:
        """Return every recorded container."""
        return containers(self.state)

    def settled(self) -> tuple[Container, ...]:
        """As `found`, without jobs with a launch or reclaim in progress."""
        return settled(self.state)

    def holders(self) -> tuple[Holder, ...]:
        """Return processes that held a part of an ended container and still exist."""
        return holders(self.state)

    def guard(self, runner: Runner) -> None:
        """Restore the guard of the jobs' tunnels: a firewall reload may have removed it."""
        if any(has_tunnel(c.directory) for c in self.found()):
            guard(self.state, runner)


def leaks(runner: Runner, found: Sequence[AnyInstance]) -> tuple[AnyInstance, ...]:
    """Return those of `found` whose job has ended on their node.

    They must have been read before: an instance made meanwhile is no leak. Raises SlurmError if
    Slurm does not answer.
    """
    known = {node: known_jobs(runner, node) for node in {c.node for c in found}}
    return tuple(c for c in found if c.job not in known[c.node])


def reclaim_ended(
    runner: Runner, backend: JobBackend[AnyInstance], *, drains: bool
) -> tuple[int, ...]:
    """End every leak; return their jobs. `drains`: drain the node if one does not end.

    Raises NearmetalError if one does not end, after the others have ended.
    """
    # A caller without permission fails here, and drains no node for it.
    found = backend.settled()
    ended, stay = [], []
    for leak in leaks(runner, found):
        try:
            if backend.reclaim(leak.job, only=leak):
                ended.append(leak.job)
        except NearmetalError as fault:
            # A launch that was cut short recorded no node; Slurm's default name is the host's.
            stay.append((leak.node or os.uname().nodename.partition(".")[0], fault))
    for node, why in stay if drains else ():
        try:
            drain(runner, node, why.message)
        except NearmetalError as undrained:
            raise SlurmError(f"{why.message}; {undrained.message}", undrained.hint) from why
    if stay:
        raise stay[0][1]
    return tuple(ended)
