# SPDX-License-Identifier: Apache-2.0
"""The processes that end a job if we are killed: they wait for the end of a pipe that we hold."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from math import ceil
from typing import IO

from nearmetal.core.errors import CommandError, LaunchError
from nearmetal.core.process import Command, Dialogue, Runner
from nearmetal.core.ssh import NO_CONNECTION

DONE = "done"
"""The last line of a run that has not been killed."""

_PATIENCE = "NEARMETAL_NET_TIMEOUT_MS"
_PATIENCE_MS = 30000
"""Its default in the provider."""

_READY_S = 60.0
_END_S = 30.0
_LATE_S = 10.0
"""The time-out of a job is ours; that of a guard is for the case that we stand still."""


def later(timeout_s: float | None) -> float | None:
    """Return the deadline of a guard for a job with this time-out."""
    return None if timeout_s is None else timeout_s + _LATE_S


def patience(env: Mapping[str, str]) -> float:
    """Return the time in seconds for which a machine may stand still under a job.

    The provider's knob says it: for this time, peers on the network wait for an answer.
    """
    text = env.get(_PATIENCE, "")
    return (int(text) if re.fullmatch("[1-9][0-9]{3,6}", text) else _PATIENCE_MS) / 1000


def lost_words(nodes: Sequence[str], patience_s: float) -> str:
    """Say that ssh has given up these nodes, and when it does so; "" if there are none."""
    return (
        f"ssh has no connection to node {', '.join(nodes)} any more; a node that does not answer "
        f"for {5 * ceil(patience_s / 3)} s counts as lost (five thirds of {_PATIENCE})"
        if nodes
        else ""
    )


@contextlib.contextmanager
def guarded(
    commands: Sequence[Command], runner: Runner, stderr: IO[bytes] | None
) -> Iterator[list[int]]:
    """Keep a job alive during the block; its guards end with the block, or with this process.

    Yields a list that gets the numbers of the guards to which the connection was lost: they have
    ended the job. Raises LaunchError with the reason of a guard that cannot work.
    """
    running: list[Dialogue] = []
    gone: list[int] = []
    try:
        running += [runner.converse(command, stderr=stderr) for command in commands]
        for guard in running:
            _check(guard.receive(_READY_S))
        yield gone
    finally:
        for guard in running:
            with contextlib.suppress(CommandError):
                guard.send(DONE)
        codes = [guard.finish(_END_S) for guard in running]
        gone += [number for number, code in enumerate(codes) if code == NO_CONNECTION]


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
