# SPDX-License-Identifier: Apache-2.0
"""Calls into a library that may never return: each has a thread and a time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from nearmetal.core.errors import BackendError

_Given = TypeVar("_Given")


class Deadline:
    """Limits each of its calls to a time."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._busy: dict[str, threading.Thread] = {}

    def call(self, key: str, what: str, work: Callable[[], _Given]) -> _Given:
        """Return what `work` returns, or raise what it raises; BackendError after the time.

        Until such a late call ends, no other call of the same key begins.
        """
        self._busy = {name: thread for name, thread in self._busy.items() if thread.is_alive()}
        if key in self._busy:
            raise BackendError(f"{what} has not answered yet")
        results: list[_Given] = []
        faults: list[BaseException] = []

        def run() -> None:
            try:
                results.append(work())
            except BaseException as error:  # noqa: BLE001 - raised below, in the thread that waits
                faults.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        thread.join(self._limit_s)
        if thread.is_alive():
            self._busy[key] = thread
            raise BackendError(f"{what} does not answer within {self._limit_s:g} s")
        if faults:
            raise faults[0]
        return results[0]
