# SPDX-License-Identifier: Apache-2.0
"""What a move needs of a backend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from nearmetal.cluster.move.checks import MovableMachine, MoveTarget
from nearmetal.cluster.move.phases import MoveAction, Settlement
from nearmetal.cluster.move.record import Move, MoveRecords
from nearmetal.core.errors import BackendError


@dataclass(frozen=True)
class MoveOptions:
    """How machines are moved. Times in seconds."""

    tls: bool = False
    """Whether their memory is encrypted on its way."""
    leave_s: float = 60.0
    """Limit for the processes of a machine to leave the segment."""
    migrate_s: float = 600.0


class MoveSite(Protocol):
    """The machines and hosts of one cluster. Errors are NearmetalError with the reason."""

    @property
    def records(self) -> MoveRecords:
        """The records of moves."""

    def machines(self) -> Mapping[str, MovableMachine]:
        """Return the facts of each node that runs."""

    def places(self) -> Mapping[str, str]:
        """Return the host of each node that runs."""

    def targets(self) -> Mapping[str, MoveTarget]:
        """Return the facts of each host."""

    def check(self, moves: Sequence[Move]) -> None:
        """Look up everything that the moves need, and assign it; changes nothing.

        Raises BackendError for what is missing.
        """

    def act(self, action: MoveAction, move: Move) -> str:
        """Do it; return a remark for the user, "" for none. A second call does the rest."""

    def halt(self) -> None:
        """Cancel the migrations that run; called while other threads are in `act`."""

    def settle(self, move: Move) -> Settlement:
        """Let the two hypervisors agree where the machine is, and return it."""


@runtime_checkable
class MovesNodes(Protocol):
    """A backend whose nodes move between hosts."""

    def moves(self, options: MoveOptions) -> MoveSite:
        """Return the site on which they move."""


def site_of(backend: object, options: MoveOptions) -> MoveSite:
    """Return the site of a backend; BackendError if its nodes do not move."""
    if not isinstance(backend, MovesNodes):
        raise BackendError(
            "the nodes of this backend do not move between hosts",
            "nodes of `backend: libvirt` do",
        )
    return backend.moves(options)
