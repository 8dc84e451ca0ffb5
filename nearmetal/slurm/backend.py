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
from nearmetal.slurm.reclaim import SERVERS_HERE, THIS_MACHINE, reclaim
from nearmetal.slurm.records import STATE, Container, Instance, containers, locked, settled
from nearmetal.slurm.remains import Holder, holders
from nearmetal.slurm.servers import DamagedServers, JobServers, ServerStore
from nearmetal.slurm.vfs import JobVfs

AnyInstance = TypeVar("AnyInstance", bound=Instance)
OfJob = Container | JobServers | DamagedServers


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
    store: ServerStore = SERVERS_HERE

    def launch(self, wish: ContainerRequest) -> Launched:
        """Make the container of a job."""
        return launch(wish, self.state, self.vfs, self.store)

    def reclaim(self, job: int, *, only: OfJob | None = None) -> bool:
        """End the container of a job, or servers without one, and remove its records."""
        if isinstance(only, DamagedServers):
            raise only.error
        if isinstance(only, JobServers):
            return self._end(only)
        ended = reclaim(job, self.state, only=only, vfs=self.vfs, store=self.store)
        if only is None and not ended:
            for one in self._left(()):
                if one.job == job:
                    ended |= self._end(one)
            for damaged in self.store.damaged(job):
                raise damaged.error
        return ended

    def _end(self, judged: JobServers) -> bool:
        """Remove servers that no container's end will remove. Raises SlurmError if they stay."""
        with locked(self.state, judged.job):
            if judged not in self._left(containers(self.state)):
                return False
            if fault := self.store.end(judged):
                raise SlurmError(
                    f"job {judged.job}: its servers {judged.name} stay in the cloud: {fault}"
                )
        return True

    def _left(self, found: Sequence[Container]) -> tuple[JobServers, ...]:
        return self.store.left_behind(one.job for one in found)

    def found(self) -> tuple[OfJob, ...]:
        """Return every recorded container, servers that have none, and damaged records."""
        found = containers(self.state)
        return (*found, *self._left(found), *self.store.damaged())

    def settled(self) -> tuple[OfJob, ...]:
        """As `found`, without jobs with a launch or reclaim in progress."""
        # A container that comes after this is found by `reclaim`.
        left = self._left(containers(self.state))
        return (*settled(self.state), *left, *self.store.damaged())

    def holders(self) -> tuple[Holder, ...]:
        """Return processes that held a part of an ended container and still exist."""
        return holders(self.state)

    def guard(self, runner: Runner) -> None:
        """Restore the guard of the jobs' tunnels: a firewall reload may have removed it."""
        if any(has_tunnel(c.directory) for c in containers(self.state)):
            guard(self.state, runner)


def leaks(runner: Runner, found: Sequence[AnyInstance]) -> tuple[AnyInstance, ...]:
    """Return those of `found` whose job has ended on their node.

    They must have been read before: an instance made meanwhile is no leak. Raises SlurmError if
    Slurm does not answer.
    """
    known = {node: known_jobs(runner, node) for node in {c.node for c in found}}
    return tuple(c for c in found if c.is_leak(known=c.job in known[c.node]))


def reclaim_ended(
    runner: Runner, backend: JobBackend[AnyInstance], *, drains: bool
) -> tuple[int, ...]:
    """End every leak; return their jobs. `drains`: drain the node if one does not end.

    Raises NearmetalError if one does not end, after the others have ended.
    """
    # A caller without permission fails here, and drains no node for it.
    found = backend.settled()
    ended: list[int] = []
    faults: list[NearmetalError] = []
    stay: list[tuple[AnyInstance, NearmetalError]] = []
    for node in dict.fromkeys(c.node for c in found):
        # Slurm may not know the node of an old record.
        try:
            left = leaks(runner, [c for c in found if c.node == node])
        except NearmetalError as fault:
            faults.append(fault)
            continue
        for leak in left:
            try:
                if backend.reclaim(leak.job, only=leak):
                    ended.append(leak.job)
            except NearmetalError as fault:
                stay.append((leak, fault))
            except Exception as fault:  # noqa: BLE001 - no leak may hide those after it
                words = f"job {leak.job}: {type(fault).__name__}: {fault}"
                stay.append((leak, SlurmError(words, "run it again, and report this if it stays")))
    if drains:
        _drain(runner, stay)
    _raise([*(why for _, why in stay), *faults])
    return tuple(ended)


def _drain(runner: Runner, stay: Sequence[tuple[Instance, NearmetalError]]) -> None:
    """Drain the nodes of what does not end, unless they are sound. Raises SlurmError."""
    for leak, why in stay:
        if not leak.blames_node:
            continue
        # A launch that was cut short recorded no node; Slurm's default name is the host's.
        node = leak.node or os.uname().nodename.partition(".")[0]
        try:
            drain(runner, node, why.message)
        except NearmetalError as undrained:
            raise SlurmError(f"{why.message}; {undrained.message}", undrained.hint) from why


def _raise(faults: Sequence[NearmetalError]) -> None:
    """Raise an error with all faults, if there are any."""
    if len(faults) == 1:
        raise faults[0]
    if faults:
        hints = dict.fromkeys(one.hint for one in faults if one.hint)
        raise SlurmError("; ".join(one.message for one in faults), "; ".join(hints))
