# SPDX-License-Identifier: Apache-2.0
"""Processes that end by kill -9 at a chosen moment of their work."""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from typing import TYPE_CHECKING, Any

import pytest
from pyVmomi import vim, vmodl

from nearmetal.core.journal import Journal
from nearmetal.host.vcenter.session import Session

if TYPE_CHECKING:
    from collections.abc import Callable


class Fuse:
    """Kills its process when it was touched so often."""

    def __init__(self, moment: int) -> None:
        self.left = moment

    def touch(self) -> None:
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self.left -= 1

    def after(self) -> None:
        """Count the moment after a call, too."""
        self.touch()

    def at_records(self) -> None:
        """Burn at each record that is on the disk."""
        write = Journal.write

        def written(*args: Any, **options: Any) -> None:
            write(*args, **options)
            self.touch()

        Journal.write = written  # type: ignore[method-assign]

    def at_tasks(self) -> None:
        """Burn when a task was started, and when it has ended."""
        wait, touch = Session.wait, self.touch

        def waited(self: Session, what: str, start: Callable[[], Any]) -> Any:
            def started() -> Any:
                task = start()
                touch()
                return task

            result = wait(self, what, started)
            touch()
            return result

        Session.wait = waited  # type: ignore[method-assign]

    def at_calls(self) -> None:
        """Burn before and after each call that changes something of a switch."""

        def called(self: Session, what: str, work: Callable[[], Any]) -> Any:
            def done() -> Any:
                touch()
                result = work()
                after()
                return result

            return call(self, what, done if what.startswith(CHANGING) else work)

        def waited(self: Session, what: str, start: Callable[[], Any]) -> Any:
            # A task is asked for its state in words of its own.
            task = self.call(what, start)
            return wait(self, f"waiting for {what}", lambda: task)

        call, wait, touch, after = Session.call, Session.wait, self.touch, self.after
        Session.call = called  # type: ignore[method-assign]
        Session.wait = waited  # type: ignore[method-assign]

    def at_changes(self) -> None:
        """Burn before, in and after each call that changes something of a machine."""

        def waited(self: Session, what: str, start: Callable[[], Any]) -> Any:
            def started() -> Any:
                touch()
                task = start()
                after()
                return task

            # Tasks of an earlier run are only looked at.
            result = wait(self, what, start if "earlier" in what else started)
            after()
            return result

        def called(self: Session, what: str, work: Callable[[], Any]) -> Any:
            def done() -> Any:
                touch()
                result = work()
                after()
                return result

            return call(self, what, done if what.startswith("shutting") else work)

        call, wait, touch, after = Session.call, Session.wait, self.touch, self.after
        Session.call = called  # type: ignore[method-assign]
        Session.wait = waited  # type: ignore[method-assign]


class Refusal(Fuse):
    """Refuses a call as vCenter does, when it was touched so often."""

    def touch(self) -> None:
        self.left -= 1
        if self.left == -1:
            raise vim.fault.InvalidState

    def after(self) -> None:
        """A refusal comes before the call."""


CHANGING = ("changing", "joining", "making", "removing", "taking")
"""How the names of calls begin that change something of a switch."""


def survives(work: Callable[[], object], burn: Callable[[], None]) -> bool:
    """Work in a process of its own with a fuse lit; whether it came to its end."""
    status = ended(work, burn)
    assert status in (0, -signal.SIGKILL)
    return status == 0


def ended(work: Callable[[], object], burn: Callable[[], None]) -> int:
    """Work in a process of its own with a fuse lit; returns its exit code, 1 for an error."""
    child = os.fork()
    if child == 0:
        try:
            burn()
            work()
            os._exit(0)
        except BaseException:  # noqa: BLE001 - this process must not go on as the tests
            traceback.print_exc(file=sys.__stderr__)
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def settle(content: Any) -> None:
    """Wait for what vCenter goes on with when who asked for it is dead."""
    collector = vmodl.query.PropertyCollector
    state = collector.PropertySpec(type=vim.Task, pathSet=["info.state"])
    for _ in range(600):
        tasks = [collector.ObjectSpec(obj=task) for task in content.taskManager.recentTask]
        spec = collector.FilterSpec(objectSet=tasks, propSet=[state])
        found = content.propertyCollector.RetrieveContents([spec])
        if all(item.propSet[0].val in ("success", "error") for item in found):
            return
        time.sleep(0.1)
    pytest.fail("a task never ended")
