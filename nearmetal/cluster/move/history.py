# SPDX-License-Identifier: Apache-2.0
"""The moves that a journal has recorded, with the time of each action. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from nearmetal.cluster.move.phases import MoveAction
from nearmetal.cluster.move.record import Move
from nearmetal.core.journal import Event, Record

VERB = "migrate"
"""The verb of all records of moves, also of those that `drain` makes."""

_STEP = re.compile(r"node ([a-z0-9-]{1,63}): (.+)")
_WAY = re.compile(r"from ([a-z0-9-]{1,63}) to ([a-z0-9-]{1,63})")
_ACTIONS = {action.value: action for action in MoveAction}
_LAST = {MoveAction.RELEASE: True, MoveAction.GIVE_UP: False}
"""The actions that end a move, and whether the machine then runs at the destination."""


def step_text(node: str, action: MoveAction) -> str:
    """Return the step of the records of an action."""
    return f"node {node}: {action.value}"


def way_text(move: Move) -> str:
    """Return the detail of the record with which an action begins."""
    return f"from {move.source} to {move.target}"


@dataclass
class PastAction:
    """One try of an action. Times in seconds; `began` by the clock of the host, since 1970."""

    action: MoveAction
    began: float
    seconds: float | None = None
    """None: no end is recorded, because the command was interrupted or still runs."""
    failure: str = ""


@dataclass
class PastMove:
    """One move. `moved`: whether the machine reached the destination; None: it has not ended."""

    node: str
    source: str
    target: str
    actions: list[PastAction] = field(default_factory=list)
    moved: bool | None = None

    @property
    def seconds(self) -> float:
        """The sum of all actions, without the pauses between commands."""
        return sum(one.seconds or 0.0 for one in self.actions)

    def data(self) -> dict[str, Any]:
        """Return it as JSON data."""
        return {
            "node": self.node,
            "source": self.source,
            "target": self.target,
            "moved": self.moved,
            "seconds": round(self.seconds, 3),
            "actions": [
                {
                    "action": one.action.value,
                    "began": one.began,
                    "seconds": one.seconds,
                    "failure": one.failure,
                }
                for one in self.actions
            ],
        }


def past_moves(records: Iterable[Record]) -> list[PastMove]:
    """Return all moves in the order of their begin. Records without a source are left out."""
    found: list[PastMove] = []
    under_way: dict[str, PastMove] = {}
    for record in records:
        step = _STEP.fullmatch(record.step) if record.verb == VERB else None
        action = _ACTIONS.get(step[2]) if step else None
        if step is None or action is None:
            continue
        node = step[1]
        move = under_way.get(node)
        if record.event == Event.BEGIN.value:
            way = _WAY.fullmatch(record.detail)
            if way is None:
                continue
            if move is None or _is_another(move, action, way):
                move = under_way[node] = PastMove(node, way[1], way[2])
                found.append(move)
            move.actions.append(PastAction(action, record.time_s))
        elif move is not None and _is_open(move.actions[-1], action):
            _end(move, record)
            if move.moved is not None:
                del under_way[node]
    return found


def _is_open(last: PastAction, action: MoveAction) -> bool:
    return last.action is action and last.seconds is None


def _is_another(move: PastMove, action: MoveAction, way: re.Match[str]) -> bool:
    """Whether an action begins another move, although the end of this one is not recorded."""
    begun = any(one.action is not MoveAction.PREPARE for one in move.actions)
    return (move.source, move.target) != (way[1], way[2]) or (
        action is MoveAction.PREPARE and begun
    )


def _end(move: PastMove, record: Record) -> None:
    last = move.actions[-1]
    last.seconds = round(max(0.0, record.time_s - last.began), 3)
    if record.event == Event.FAILED.value:
        last.failure = record.detail
    else:
        move.moved = _LAST.get(last.action)
