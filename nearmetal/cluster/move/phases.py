# SPDX-License-Identifier: Apache-2.0
"""The phases of a move, what follows each, and the side on which a machine is after a crash. Pure.

A phase names what is complete. The record of the move has it before the next action begins, so an action may
have begun, too: each one can be repeated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from nearmetal.core.errors import StateError


class MovePhase(Enum):
    """What is complete. The second half is the way back to the source."""

    PLANNED = "planned"
    PREPARED = "prepared"
    """The destination has a part of the segment, a VF and the files for the machine."""
    QUIESCED = "quiesced"
    """All endpoints of the machine left the segment, and the network if its device goes."""
    DETACHED = "detached"
    ARRIVED = "arrived"
    """The machine runs at the destination: from here on there is only the way forward."""
    ATTACHED = "attached"
    RESUMED = "resumed"
    RELEASED = "released"
    """The source has nothing of the machine any more: the end."""

    STAYED = "stayed"
    """The migration was undone: the machine runs at the source, without its devices."""
    REATTACHED = "reattached"
    REOPENED = "reopened"
    """All endpoints are asked to attach again, or were never asked to leave."""
    GIVEN_UP = "given up"
    """The destination has nothing of the machine any more: the end."""


class MoveAction(Enum):
    """What follows a phase. Each action can be repeated."""

    PREPARE = "prepare the destination"
    QUIESCE = "ask its processes to leave the segment"
    DETACH = "unplug the devices"
    MIGRATE = "migrate"
    ATTACH = "plug in the devices of the destination"
    RESUME = "let its processes return to a segment"
    RELEASE = "remove its files at the source"
    REATTACH = "plug in the devices of the source again"
    REOPEN = "let its processes return to the segment of the source"
    GIVE_UP = "remove its files at the destination"


ACTIONS: Mapping[MovePhase, MoveAction] = {
    MovePhase.PLANNED: MoveAction.PREPARE,
    MovePhase.PREPARED: MoveAction.QUIESCE,
    MovePhase.QUIESCED: MoveAction.DETACH,
    MovePhase.DETACHED: MoveAction.MIGRATE,
    MovePhase.ARRIVED: MoveAction.ATTACH,
    MovePhase.ATTACHED: MoveAction.RESUME,
    MovePhase.RESUMED: MoveAction.RELEASE,
    MovePhase.STAYED: MoveAction.REATTACH,
    MovePhase.REATTACHED: MoveAction.REOPEN,
    MovePhase.REOPENED: MoveAction.GIVE_UP,
}


class MoveOutcome(Enum):
    """How the action that follows a phase ended."""

    DONE = "done"
    FAILED = "failed"


_DONE, _FAILED = MoveOutcome.DONE, MoveOutcome.FAILED

PHASES: Mapping[tuple[MovePhase, MoveOutcome], MovePhase] = {
    (MovePhase.PLANNED, _DONE): MovePhase.PREPARED,
    (MovePhase.PLANNED, _FAILED): MovePhase.REOPENED,
    (MovePhase.PREPARED, _DONE): MovePhase.QUIESCED,
    # Some endpoints may have left, and no device was touched.
    (MovePhase.PREPARED, _FAILED): MovePhase.REATTACHED,
    (MovePhase.QUIESCED, _DONE): MovePhase.DETACHED,
    # One of the devices may be unplugged already.
    (MovePhase.QUIESCED, _FAILED): MovePhase.STAYED,
    (MovePhase.DETACHED, _DONE): MovePhase.ARRIVED,
    (MovePhase.DETACHED, _FAILED): MovePhase.STAYED,
    (MovePhase.ARRIVED, _DONE): MovePhase.ATTACHED,
    # Without its devices the machine goes on over the network that it has.
    (MovePhase.ARRIVED, _FAILED): MovePhase.ATTACHED,
    (MovePhase.ATTACHED, _DONE): MovePhase.RESUMED,
    (MovePhase.ATTACHED, _FAILED): MovePhase.ATTACHED,
    (MovePhase.RESUMED, _DONE): MovePhase.RELEASED,
    (MovePhase.RESUMED, _FAILED): MovePhase.RESUMED,
    (MovePhase.STAYED, _DONE): MovePhase.REATTACHED,
    (MovePhase.STAYED, _FAILED): MovePhase.REATTACHED,
    (MovePhase.REATTACHED, _DONE): MovePhase.REOPENED,
    (MovePhase.REATTACHED, _FAILED): MovePhase.REATTACHED,
    (MovePhase.REOPENED, _DONE): MovePhase.GIVEN_UP,
    (MovePhase.REOPENED, _FAILED): MovePhase.REOPENED,
}
"""A phase that follows itself is repeated: there is no other way from it."""

ENDS = frozenset({MovePhase.RELEASED, MovePhase.GIVEN_UP})

_BEFORE_ARRIVAL = frozenset(
    {MovePhase.PLANNED, MovePhase.PREPARED, MovePhase.QUIESCED, MovePhase.DETACHED}
)
_AFTER_ARRIVAL = frozenset({MovePhase.ARRIVED, MovePhase.ATTACHED, MovePhase.RESUMED})


class Presence(Enum):
    """A machine as one hypervisor shows it."""

    ABSENT = "absent"
    RUNNING = "running"
    PAUSED = "paused"
    """By a migration. A machine that a user or a fault has paused counts as running."""


@dataclass(frozen=True)
class Settlement:
    """Where a machine runs, and what makes the two hypervisors agree."""

    at_source: bool
    at_destination: bool
    end_source: bool = False
    """The source has a rest of it, which never runs again."""
    end_destination: bool = False
    """The destination has a copy of it that never ran."""
    continue_source: bool = False


_ABSENT, _RUNNING, _PAUSED = Presence.ABSENT, Presence.RUNNING, Presence.PAUSED

SETTLEMENTS: Mapping[tuple[Presence, Presence], Settlement] = {
    (_RUNNING, _ABSENT): Settlement(True, False),
    (_RUNNING, _PAUSED): Settlement(True, False, end_destination=True),
    (_PAUSED, _ABSENT): Settlement(True, False, continue_source=True),
    # libvirt starts the copy before it ends the source, so this copy never ran.
    (_PAUSED, _PAUSED): Settlement(True, False, end_destination=True, continue_source=True),
    (_PAUSED, _RUNNING): Settlement(False, True, end_source=True),
    (_ABSENT, _RUNNING): Settlement(False, True),
    # It may lack memory: the source ended before it was started.
    (_ABSENT, _PAUSED): Settlement(False, False, end_destination=True),
    (_ABSENT, _ABSENT): Settlement(False, False),
    (_RUNNING, _RUNNING): Settlement(True, True),
}
"""By the machine at the source and at the destination, after a migration that did not end well."""


def resumed_phase(phase: MovePhase, *, at_source: bool, at_destination: bool) -> MovePhase:
    """Return the phase from which an interrupted move continues.

    The two hypervisors decide: they say whether the machine runs there. StateError if that cannot
    be after PHASE.
    """
    if at_source and at_destination:
        raise StateError(
            "the machine runs on both hosts", "end it on the one whose copy the job does not use"
        )
    if not at_source and not at_destination:
        raise StateError("the machine runs on neither host", "its job has ended; remove its node")
    if phase in ENDS:
        return phase
    if at_destination:
        if phase is MovePhase.DETACHED:
            return MovePhase.ARRIVED
        if phase in _AFTER_ARRIVAL:
            return phase
        raise StateError(
            f"the machine runs at the destination, but the record says '{phase.value}'",
            "another program moved it; compare both hosts before you continue",
        )
    if phase in _AFTER_ARRIVAL:
        raise StateError(
            f"the machine runs at the source, but the record says '{phase.value}'",
            "another program moved it back; compare both hosts before you continue",
        )
    return PHASES[phase, _FAILED] if phase in _BEFORE_ARRIVAL else phase
