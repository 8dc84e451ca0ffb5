# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
from pathlib import Path

from nearmetal.cluster.backends.local.driver import LocalBackend
from nearmetal.cluster.store import Store
from nearmetal.core.process import Command, Completed, LocalRunner


class Recorder(LocalRunner):
    """Counts what it is asked to run."""

    def __init__(self) -> None:
        self.asked: list[Command] = []

    def run(self, command: Command, *, timeout_s: float) -> Completed:
        self.asked.append(command)
        return super().run(command, timeout_s=timeout_s)


def test_the_kernel_is_asked_once_for_user_namespaces(tmp_path: Path) -> None:
    runner = Recorder()
    backend = LocalBackend("c", Store(tmp_path), runner)
    assert backend.facts() == backend.facts()
    # A user who is not root cannot do without them, so there is no question.
    expected = ["unshare"] if os.geteuid() == 0 else []
    assert [command.argv[0] for command in runner.asked] == expected
