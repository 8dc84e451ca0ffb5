# SPDX-License-Identifier: Apache-2.0
"""The watchdog: finds and ends leaks without slurmd, of whom no epilog can come that has died."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from nearmetal.core.errors import NearmetalError, SlurmError
from nearmetal.slurm.backend import AnyInstance, Backend
from nearmetal.slurm.queue import drain, known_jobs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nearmetal.core.process import Runner


def leaks(runner: Runner, found: Sequence[AnyInstance]) -> tuple[AnyInstance, ...]:
    """Return those of `found` whose job is over on their node.

    They must have been read before: what is made in between is no leak. Raises SlurmError when
    Slurm does not answer.
    """
    known = {node: known_jobs(runner, node) for node in {c.node for c in found}}
    return tuple(c for c in found if c.job not in known[c.node])


def reclaim_ended(
    runner: Runner, backend: Backend[AnyInstance], *, drains: bool
) -> tuple[int, ...]:
    """End every leak; returns their jobs. `drains`: take the node out of service for one that stays.

    Raises NearmetalError when one stays, after the others have been ended.
    """
    # Who may not reclaim is told so here, and drains no node for it.
    found = backend.settled()
    ended, stay = [], []
    for leak in leaks(runner, found):
        try:
            if backend.reclaim(leak.job, only=leak):
                ended.append(leak.job)
        except NearmetalError as fault:
            stay.append((leak.node or _own_name(), fault))
    for node, why in stay if drains else ():
        try:
            drain(runner, node, why.message)
        except NearmetalError as undrained:
            words = f"{why.message}; {undrained.message}"
            raise SlurmError(words, undrained.hint) from why
    if stay:
        raise stay[0][1]
    return tuple(ended)


def _own_name() -> str:
    """What Slurm calls a node unless told otherwise: a launch that was cut short left no name."""
    return os.uname().nodename.partition(".")[0]
