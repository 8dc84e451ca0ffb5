# SPDX-License-Identifier: Apache-2.0
"""What Slurm knows: the jobs of a node, which tells a container in use from a leak; and draining."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from nearmetal.errors import SlurmError
from nearmetal.run import Command

if TYPE_CHECKING:
    from nearmetal.run import Completed, Runner

SQUEUE = ("squeue", "--noheader", "--all", "--states=all", "--format=%A %t")
_ENDED = frozenset({"BF", "CA", "CD", "DL", "F", "NF", "OOM", "TO", "PD", "RQ", "RH", "SE"})
"""States in which nothing of a job is on a node, its epilog included; CG is not among them."""

_QUERY_S = 60.0
_NARROWING = ("SQUEUE_", "SINFO_", "SCONTROL_")
"""Variables that are options of these programs: with one, squeue leaves out jobs that run."""


def known_jobs(runner: Runner, node: str) -> frozenset[int]:
    """Return the jobs that may have something on a node; "": on any node.

    A job that was put back into the queue may run elsewhere: there it is known, here it is not.
    Raises SlurmError when Slurm does not answer: nothing is a leak without its word.
    """
    where = (f"--nodelist={node}",) if node else ()
    done = _ask(runner, (*SQUEUE, *where))
    if done.code != 0 or done.timed_out:
        raise SlurmError(
            f"squeue does not tell which jobs there are: {done.error_tail or 'no answer in time'}",
            "is slurmctld running?",
        )
    return parse(done.text)


def _ask(runner: Runner, argv: tuple[str, ...]) -> Completed:
    """Run a program of Slurm: of this cluster, whatever the caller's variables ask it for."""
    env = {name: value for name, value in os.environ.items()
           if name != "SLURM_CLUSTERS" and not name.startswith(_NARROWING)}  # fmt: skip
    return runner.run(Command(argv, env=env), timeout_s=_QUERY_S)


def parse(text: str) -> frozenset[int]:
    """Return the jobs in use of what squeue wrote; raises SlurmError for anything else."""
    jobs = set()
    for line in text.splitlines():
        words = line.split()
        if len(words) != 2 or not words[0].isdecimal():  # noqa: PLR2004 - job and state
            raise SlurmError(f"squeue wrote {line[:80]!r}, not a job and its state")
        if words[1] not in _ENDED:
            jobs.add(int(words[0]))
    return frozenset(jobs)


def drain(runner: Runner, node: str, reason: str) -> None:
    """Take a node out of service, unless it is: the first reason stays. Raises SlurmError."""
    state = _ask(runner, ("sinfo", "-h", "-n", node, "-o", "%T"))
    if state.code == 0 and state.text.startswith("drain"):
        return
    update = (
        "scontrol",
        "update",
        f"NodeName={node}",
        "State=DRAIN",
        f"Reason=nearmetal: {reason}",
    )
    done = _ask(runner, update)
    if done.code != 0 or done.timed_out:
        raise SlurmError(
            f"node {node} cannot be drained: {done.error_tail or 'no answer in time'}",
            "is slurmctld running, and are you root?",
        )
