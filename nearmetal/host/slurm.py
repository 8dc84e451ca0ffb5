# SPDX-License-Identifier: Apache-2.0
"""Hosts as nodes of Slurm: drained before a reboot, and resumed by the run that drained them."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass

from nearmetal.core.errors import CommandError, HostError
from nearmetal.core.process import Command, LocalRunner, Runner

ANSWER_S = 60.0
REASON = "nearmetal host: "
"""The beginning of our reasons; the name of the hosts file follows."""

_STATE = re.compile(r"(?:^|\s)State=([A-Z_+*~#!%$@^-]{1,200})(?:\s|$)")
_REASON = re.compile(r"(?:^|\s)Reason=(.{0,1000}?) \[[^\[\]]*@[^\[\]]*\]")


@dataclass(frozen=True)
class NodeState:
    """The state of a node in slurmctld."""

    drained: bool
    reason: str


class SlurmTools:
    """slurmctld by scontrol(1) and squeue(1) of this machine. All methods raise HostError."""

    def __init__(self, runner: Runner | None = None) -> None:
        self._runner = runner or LocalRunner()

    def look(self, node: str) -> NodeState:
        """Return a node's state."""
        return parse_node(self._output("scontrol", "-o", "show", "node", node))

    def jobs(self, node: str) -> int:
        """Return the number of jobs on the node, with those that are ending."""
        return len(self._output("squeue", "-a", "-h", "-o", "%A", "-w", node).split())

    def drain(self, node: str, reason: str) -> None:
        """Stop new jobs on the node."""
        self._output("scontrol", "update", f"nodename={node}", "state=drain", f"reason={reason}")

    def resume(self, node: str) -> None:
        """Allow new jobs on the node."""
        self._output("scontrol", "update", f"nodename={node}", "state=resume")

    def _output(self, *argv: str) -> str:
        # SQUEUE_STATES, SQUEUE_USERS and the like would hide jobs.
        env = {name: v for name, v in os.environ.items() if not name.startswith("SQUEUE_")}
        try:
            done = self._runner.run(Command(argv, env), timeout_s=ANSWER_S)
        except CommandError as error:
            raise HostError(
                f"Slurm: {error.message}",
                "run this on a machine with scontrol, or remove slurm from the file",
            ) from error
        if done.code or done.timed_out:
            why = " ".join(done.error_tail.split())[-300:] or f"exit code {done.code}"
            raise HostError(
                f"Slurm: {argv[0]}: {'no answer' if done.timed_out else why}",
                "does `scontrol ping` answer here, and is slurm.node one of its nodes?",
            )
        return done.text


def parse_node(text: str) -> NodeState:
    """Return the state from `scontrol -o show node NAME`; raises HostError."""
    state = _STATE.search(text)
    if state is None:
        raise HostError(
            "Slurm: the answer of scontrol has no state of the node",
            "is slurm.node the name of one node?",
        )
    flags = set(re.split(r"[^A-Z_]+", state[1]))
    reason = _REASON.search(text)
    drained = bool({"DRAIN", "DRAINED", "DRAINING"} & flags)
    return NodeState(drained, reason[1].strip() if reason else "")


@dataclass(frozen=True)
class Service:
    """One node that leaves service and returns. `name`: name of the hosts file."""

    scheduler: SlurmTools
    node: str
    name: str

    @property
    def reason(self) -> str:
        """The reason in Slurm, which also identifies our drain."""
        return f"{REASON}{self.name}"

    def drained_by_us(self) -> bool:
        """Whether a run for this file drained it."""
        now = self.scheduler.look(self.node)
        return now.drained and now.reason == self.reason

    def drained(self) -> bool:
        """Whether it is drained, by any user."""
        return self.scheduler.look(self.node).drained

    def drain(self) -> None:
        """Stop new jobs on it."""
        self.scheduler.drain(self.node, self.reason)

    def resume(self) -> None:
        """Allow new jobs on it."""
        self.scheduler.resume(self.node)

    def wait_idle(self, limit_s: float, pause: Callable[[], None]) -> None:
        """Wait until its jobs end; raises HostError after the limit."""
        deadline = time.monotonic() + limit_s
        while jobs := self.scheduler.jobs(self.node):
            if time.monotonic() >= deadline:
                raise HostError(
                    f"{jobs} jobs still run on {self.node} after {limit_s:g} s",
                    "end them, or give them more time with slurm.drain; nothing was "
                    "written for this reboot",
                )
            pause()
