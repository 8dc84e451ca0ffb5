# SPDX-License-Identifier: Apache-2.0
"""Hosts as nodes of Slurm: drained before a reboot, and back in service by whom they were drained."""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from nearmetal.core.errors import CommandError, HostError
from nearmetal.core.process import Command, LocalRunner, Runner

if TYPE_CHECKING:
    from collections.abc import Callable

ANSWER_S = 60.0
REASON = "nearmetal host: "
"""What a reason of ours begins with; the name of the hosts file follows."""

_STATE = re.compile(r"(?:^|\s)State=([A-Z_+*~#!%$@^-]{1,200})(?:\s|$)")
_REASON = re.compile(r"(?:^|\s)Reason=(.{0,1000}?) \[[^\[\]]*@[^\[\]]*\]")


@dataclass(frozen=True)
class NodeState:
    """What slurmctld says of a node."""

    drained: bool
    reason: str


class Scheduler(Protocol):
    """Slurm's controller."""

    def look(self, node: str) -> NodeState:
        """Return a node's state; raises HostError where there is no such node, or no answer."""

    def jobs(self, node: str) -> int:
        """Return how many jobs have the node."""

    def drain(self, node: str, reason: str) -> None:
        """Let the node get no further jobs."""

    def resume(self, node: str) -> None:
        """Let it get jobs again."""


class SlurmTools:
    """slurmctld by scontrol(1) and squeue(1) of this machine."""

    def __init__(self, runner: Runner | None = None) -> None:
        """Nothing is started yet."""
        self._runner = runner or LocalRunner()

    def look(self, node: str) -> NodeState:
        """Return a node's state; raises HostError where there is no such node, or no answer."""
        return parse_node(self._say("scontrol", "-o", "show", "node", node))

    def jobs(self, node: str) -> int:
        """Return how many jobs have the node, those that are ending too."""
        return len(self._say("squeue", "-a", "-h", "-o", "%A", "-w", node).split())

    def drain(self, node: str, reason: str) -> None:
        """Let the node get no further jobs."""
        self._say("scontrol", "update", f"nodename={node}", "state=drain", f"reason={reason}")

    def resume(self, node: str) -> None:
        """Let it get jobs again."""
        self._say("scontrol", "update", f"nodename={node}", "state=resume")

    def _say(self, *argv: str) -> str:
        try:
            # SQUEUE_STATES, SQUEUE_USERS and the like would hide jobs.
            env = {name: v for name, v in os.environ.items() if not name.startswith("SQUEUE_")}
            done = self._runner.run(Command(argv, env), timeout_s=ANSWER_S)
        except CommandError as error:
            raise HostError(
                f"Slurm: {error.message}",
                "run this where scontrol works, or remove slurm from the file",
            ) from error
        if done.code or done.timed_out:
            why = " ".join(done.error_tail.split())[-300:] or f"exit code {done.code}"
            raise HostError(
                f"Slurm: {argv[0]}: {'no answer' if done.timed_out else why}",
                "does `scontrol ping` answer here, and is slurm.node a node of it?",
            )
        return done.text


def parse_node(text: str) -> NodeState:
    """Return the state out of `scontrol -o show node NAME`; raises HostError."""
    state = _STATE.search(text)
    if state is None:
        raise HostError(
            "Slurm: scontrol says nothing of the node's state",
            "is slurm.node the name of one node?",
        )
    flags = re.split(r"[^A-Z_]+", state[1])
    reason = _REASON.search(text)
    return NodeState(
        bool({"DRAIN", "DRAINED", "DRAINING"} & set(flags)), reason[1].strip() if reason else ""
    )


@dataclass(frozen=True)
class Service:
    """One node on its way out of service and back. `name`: of the hosts file."""

    scheduler: Scheduler
    node: str
    name: str

    @property
    def reason(self) -> str:
        """What Slurm shows as the reason, and by which we know that it was us."""
        return f"{REASON}{self.name}"

    def drained_by_us(self) -> bool:
        """Whether it is drained, and by a run for this file."""
        now = self.scheduler.look(self.node)
        return now.drained and now.reason == self.reason

    def drained(self) -> bool:
        """Whether it is drained, by whomever."""
        return self.scheduler.look(self.node).drained

    def drain(self) -> None:
        """Let it get no further jobs."""
        self.scheduler.drain(self.node, self.reason)

    def resume(self) -> None:
        """Let it get jobs again."""
        self.scheduler.resume(self.node)

    def wait_idle(self, limit_s: float, pause: Callable[[], None]) -> None:
        """Wait for its jobs to end; raises HostError when they are late."""
        deadline = time.monotonic() + limit_s
        while jobs := self.scheduler.jobs(self.node):
            if time.monotonic() >= deadline:
                raise HostError(
                    f"{jobs} jobs still run on {self.node} after {limit_s:g} s",
                    "end them, or give them more time with slurm.drain; nothing was "
                    "written for this reboot",
                )
            pause()
