# SPDX-License-Identifier: Apache-2.0
"""The seam between Slurm and whoever makes the nodes of its jobs.

Prolog, epilog and watchdog need three things of it, and no more. `ThisNode` makes containers on the
machine that slurmd runs on. A cloud would ask its API instead: an instance then is a server with
the number of the job in its metadata, which is all the record that this seam needs.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from nearmetal.slurm import guard
from nearmetal.slurm.container import launch
from nearmetal.slurm.reclaim import THIS_MACHINE, reclaim
from nearmetal.slurm.records import STATE, Container, containers, settled

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nearmetal.core.process import Runner
    from nearmetal.slurm.container import Launched, Wish
    from nearmetal.slurm.vfs import JobVfs


class Instance(Protocol):
    """What was made for a job on one node of Slurm, as it is on record."""

    @property
    def job(self) -> int:
        """The job."""

    @property
    def uid(self) -> int:
        """Its user; -1: not on record."""

    @property
    def node(self) -> str:
        """What Slurm calls the node; "": not on record."""

    @property
    def since(self) -> float:
        """When it was made, in Unix seconds."""

    @property
    def request(self) -> str:
        """What was asked for."""

    @property
    def refusal(self) -> str:
        """Why the job was given nothing; "": it was."""

    def lives(self) -> bool:
        """Whether it is still there, and not only its record."""


AnyInstance = TypeVar("AnyInstance", bound=Instance)


class Backend(Protocol[AnyInstance]):
    """Makes, finds and ends what jobs run in. All may be called again after a crash anywhere."""

    def launch(self, wish: Wish) -> Launched:
        """Make it for a job; what an earlier job of the same number left goes first.

        What the job cannot have is a refusal, and no error. Raises NearmetalError when the node
        (or the cloud) is to blame: then there is nothing, or what there is can be found.
        """

    def reclaim(self, job: int, *, only: AnyInstance | None = None) -> bool:
        """End what a job has here; returns whether there was anything. Nothing is no error.

        `only`: what was found when it was judged; what was made since then stays. Raises
        NearmetalError when something does not end: then it stays on record.
        """

    def found(self) -> Sequence[AnyInstance]:
        """Return everything that was made, whoever looks."""

    def settled(self) -> Sequence[AnyInstance]:
        """As `found`, without launches half done; raises NearmetalError for who may not reclaim."""


class ThisNode:
    """Containers on the machine we run on."""

    def __init__(self, state: Path = STATE, vfs: JobVfs = THIS_MACHINE) -> None:
        """`state`: where records are; `vfs`: the VFs of the machine."""
        self._state = state
        self._vfs = vfs

    def launch(self, wish: Wish) -> Launched:
        """Make the container of a job."""
        return launch(wish, self._state, self._vfs)

    def reclaim(self, job: int, *, only: Container | None = None) -> bool:
        """End the container of a job and forget it."""
        return reclaim(job, self._state, only=only, vfs=self._vfs)

    def found(self) -> tuple[Container, ...]:
        """Return every container on record."""
        return containers(self._state)

    def settled(self) -> tuple[Container, ...]:
        """As `found`, but for jobs that are being launched or reclaimed."""
        return settled(self._state)

    def guard(self, runner: Runner) -> None:
        """Guard the tunnels of jobs again: who loads a firewall anew may have removed that."""
        if any(guard.has_tunnel(c.directory) for c in self.found()):
            guard.renew(self._state, runner)
