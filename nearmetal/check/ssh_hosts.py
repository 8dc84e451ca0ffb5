# SPDX-License-Identifier: Apache-2.0
"""Hosts that are no cluster, for agents and jobs that go on: commands on them, and their end."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nearmetal.check.collect import TIMEOUT_S, login
from nearmetal.cluster.backend import SWEEP, swept
from nearmetal.core.errors import BackendError, CommandError
from nearmetal.core.process import Command, Runner


@dataclass(frozen=True)
class SshHosts:
    """Hosts that the user's own ssh reaches without questions."""

    names: Sequence[str]
    user: str
    runner: Runner

    def on_node(self, node: str, argv: Sequence[str], *, env: Mapping[str, str]) -> Command:
        """Return the command that runs `argv` on a host, with these variables."""
        given = [f"{name}={value}" for name, value in env.items()]
        text = f"exec {shlex.join(['env', *given, *argv])}"
        return Command(login(node, self.user).argv(text))

    def end_marked(self, marker: str) -> int:
        """Kill the user's processes with this variable; raises BackendError if a host is silent."""
        argv = ["sh", "-c", f"marker=$1{SWEEP}echo $killed", "sh", marker]
        try:
            ends = self.runner.run_all(
                [self.on_node(name, argv, env={}) for name in self.names], timeout_s=TIMEOUT_S
            )
        except CommandError as error:
            raise BackendError(error.message, error.hint) from error
        silent = [
            n for n, done in zip(self.names, ends, strict=True) if done.code or done.timed_out
        ]
        if silent:
            raise BackendError(f"no answer of {', '.join(silent[:3])}")
        return sum(swept(done.text) for done in ends)
