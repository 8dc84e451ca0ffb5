# SPDX-License-Identifier: Apache-2.0
"""The processes that end a job if we are killed: they wait for the end of a pipe that we hold."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from typing import IO

from nearmetal.core.errors import CommandError, LaunchError
from nearmetal.core.process import Command, Dialogue, Runner

DONE = "done"
"""The last line of a run that has not been killed."""

_READY_S = 60.0
_END_S = 30.0
_LATE_S = 10.0
"""The time-out of a job is ours; that of a guard is for the case that we stand still."""


def later(timeout_s: float | None) -> float | None:
    """Return the deadline of a guard for a job with this time-out."""
    return None if timeout_s is None else timeout_s + _LATE_S


@contextlib.contextmanager
def guarded(
    commands: Sequence[Command], runner: Runner, stderr: IO[bytes] | None
) -> Iterator[None]:
    """Keep a job alive during the block; its guards end with the block, or with this process.

    Raises LaunchError with the reason of a guard that cannot work.
    """
    running: list[Dialogue] = []
    try:
        running += [runner.converse(command, stderr=stderr) for command in commands]
        for guard in running:
            _check(guard.receive(_READY_S))
        yield
    finally:
        for guard in running:
            with contextlib.suppress(CommandError):
                guard.send(DONE)
        for guard in running:
            guard.finish(_END_S)


def _check(line: str | None) -> None:
    """Raise LaunchError unless this is the first line of a working guard."""
    reason = "no answer"
    try:
        answer = json.loads(line or "")
        if isinstance(answer, dict) and "pid" in answer:
            return
        reason = str(answer["error"])
    except (ValueError, KeyError, TypeError):
        pass
    raise LaunchError(f"the job cannot be supervised: {reason}", "run `nearmetal up` again")
