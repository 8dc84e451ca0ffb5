# SPDX-License-Identifier: Apache-2.0
"""Carries out moves: one phase after the other, and from any of them to an end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from nearmetal.cluster.move.history import VERB, step_text, way_text
from nearmetal.cluster.move.phases import (
    ACTIONS,
    ENDS,
    PHASES,
    MoveAction,
    MoveOutcome,
    MovePhase,
    Settlement,
    resumed_phase,
)
from nearmetal.cluster.move.record import Move
from nearmetal.cluster.move.site import MoveSite
from nearmetal.core.errors import Interrupted, NearmetalError, StateError
from nearmetal.core.journal import Event, Journal
from nearmetal.core.progress import Progress, Silent

_MAX_TRIES = 3
"""Tries of an action from whose phase no other way leads."""


@dataclass
class MoveReport:
    """What became of a move. `times`: seconds of each action, in their order."""

    node: str
    source: str
    target: str
    times: list[tuple[MoveAction, float]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    reason: str = ""
    """Why the machine stayed; "" if it moved."""
    hint: str = ""

    @property
    def moved(self) -> bool:
        """Whether the machine runs at the destination."""
        return not self.reason


@dataclass(frozen=True)
class Mover:
    """Moves the machines of one cluster."""

    site: MoveSite
    journal: Journal | None = None
    progress: Progress = field(default_factory=Silent)
    clock: Callable[[], float] = time.monotonic
    pause_s: float = 2.0
    """Time between two tries: a network that has just lost a machine may need a moment."""
    _halted: threading.Event = field(default_factory=threading.Event)
    """No action begins any more."""

    def move(self, move: Move) -> MoveReport:
        """Move a machine, or leave it where it is. StateError if no end is reached.

        The record of the move stays then, and `complete` continues.
        """
        report = MoveReport(move.node, move.source, move.target)
        tries = 0
        while move.phase not in ENDS:
            self.site.records.write(move)
            before = move.phase
            if self._halted.wait(self.pause_s if tries else 0):
                raise StateError(
                    f"the move of node {move.node} was interrupted after '{before.value}'",
                    "run `nearmetal migrate` for this cluster to complete it",
                )
            move = self._next(move, report)
            tries = tries + 1 if move.phase is before else 0
            if tries == _MAX_TRIES:
                raise StateError(
                    f"the move of node {move.node} from {move.source} to {move.target} stands still "
                    f"after '{before.value}': {report.notes[-1]}",
                    "remove the cause, then run `nearmetal migrate` for this cluster again",
                )
        if move.phase is MovePhase.GIVEN_UP and not report.reason:
            report.reason = "an earlier command was interrupted"
        self.site.records.forget(move.node)
        return report

    def _next(self, move: Move, report: MoveReport) -> Move:
        action, began = ACTIONS[move.phase], self.clock()
        step = step_text(move.node, action)
        self.progress.step(step)
        self._write(step, Event.BEGIN, way_text(move))
        try:
            note = self.site.act(action, move)
            outcome = MoveOutcome.DONE
        except Interrupted:
            raise
        except NearmetalError as error:
            note, outcome = error.message, MoveOutcome.FAILED
            self._write(step, Event.FAILED, note)
            move = self._failed(move, error, report)
        else:
            self._write(step, Event.DONE, note)
        report.times.append((action, self.clock() - began))
        if note:
            report.notes.append(note)
        if move.phase is MovePhase.ARRIVED and action is MoveAction.MIGRATE:
            return move
        return move.at(PHASES[move.phase, outcome])

    def _write(self, step: str, event: Event, detail: str = "") -> None:
        if self.journal is not None:
            self.journal.write(VERB, step, event, detail)

    def _failed(self, move: Move, error: NearmetalError, report: MoveReport) -> Move:
        if move.phase in (MovePhase.ARRIVED, MovePhase.STAYED):
            # A host that does not answer has refused nothing: the next command tries again.
            self._settle(move, error.message)
            return move.model_copy(update={"near": False})
        if (
            move.phase is MovePhase.DETACHED
            and self._where(move, error.message) is MovePhase.ARRIVED
        ):
            # Only the answer was lost.
            return move.at(MovePhase.ARRIVED)
        if PHASES[move.phase, MoveOutcome.FAILED] is not move.phase and not report.reason:
            report.reason, report.hint = error.message, error.hint
        return move

    def _settle(self, move: Move, before: str = "") -> Settlement:
        """Return where the machine runs. `before`: the error that led to the question.

        StateError, and nothing is decided, if one of the two hypervisors does not answer.
        """
        try:
            return self.site.settle(move)
        except Interrupted:
            raise
        except NearmetalError as error:
            causes = "; ".join(dict.fromkeys(text for text in (before, error.message) if text))
            raise StateError(
                f"the move of node {move.node} stands still after '{move.phase.value}': not both of "
                f"hosts {move.source} and {move.target} say where the machine runs: {causes}",
                "remove the cause, then run `nearmetal migrate` for this cluster again",
            ) from error

    def _where(self, move: Move, before: str = "") -> MovePhase:
        """Return the phase from which the move continues after an interruption."""
        found = self._settle(move, before)
        try:
            return resumed_phase(
                move.phase, at_source=found.at_source, at_destination=found.at_destination
            )
        except StateError:
            if not found.at_source and not found.at_destination:
                self.site.act(MoveAction.GIVE_UP, move)
                self.site.records.forget(move.node)
            raise

    def complete(self) -> list[MoveReport]:
        """Bring every move to an end that an earlier command began.

        StateError, after all of them were tried, if one has no end.
        """
        reports, errors = list[MoveReport](), list[NearmetalError]()
        for move in self.site.records.all():
            try:
                reports.append(self.move(move.at(self._where(move))))
            except Interrupted:
                raise
            except NearmetalError as error:
                errors.append(error)
        if errors:
            raise StateError("\n".join(error.message for error in errors), errors[0].hint)
        return reports

    def waves(self, waves: Sequence[Sequence[Move]]) -> list[MoveReport]:
        """Move the machines of each wave at the same time; end with a wave that is not complete."""
        reports: list[MoveReport] = []
        for wave in waves:
            if len(wave) == 1:
                reports.append(self.move(wave[0]))
            else:
                reports += self._together(wave)
            if not all(report.moved for report in reports):
                break
        return reports

    def _together(self, wave: Sequence[Move]) -> list[MoveReport]:
        with ThreadPoolExecutor(len(wave)) as pool:
            try:
                return list(pool.map(self.move, wave))
            except Interrupted:
                # Only this thread gets signals. The pool waits for the others.
                self._halted.set()
                self.site.halt()
                raise
