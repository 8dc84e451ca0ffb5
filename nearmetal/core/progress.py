# SPDX-License-Identifier: Apache-2.0
"""Progress of long work: the work reports its steps, each is a line, a terminal has a bar too."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from nearmetal.core import log
from nearmetal.core.text import printable

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress  # slow to load, and a help needs no bar


class Progress(Protocol):
    """Receives the steps of some work."""

    def begin(self, total: int) -> None:
        """The work has `total` steps."""

    def step(self, text: str) -> None:
        """The next step begins, and the step before it has ended."""


class Silent:
    """Shows nothing."""

    def begin(self, total: int) -> None:
        """Ignore it."""

    def step(self, text: str) -> None:
        """Ignore it."""


class Part(Silent):
    """Passes the steps of a part on to the whole, which has announced their number."""

    def __init__(self, whole: Progress) -> None:
        self._whole = whole

    def step(self, text: str) -> None:
        """A step of the part is a step of the whole."""
        self._whole.step(text)


class StepLines:
    """Writes a line when a step begins: the time since the start, the number, the text.

    Several threads may report steps.
    """

    def __init__(self, write: Callable[[str], None]) -> None:
        """`write`: prints one line."""
        self._write = write
        self._begin = time.monotonic()
        self._lock = threading.Lock()
        self._total = 0
        self._number = 0

    def begin(self, total: int) -> None:
        """Number the steps from now on."""
        with self._lock:
            self._total, self._number = total, 0

    def step(self, text: str) -> None:
        """Write the line of the step."""
        with self._lock:
            self._number += 1
            number = f"[{self._number}/{self._total}] " if self._total else ""
            log.told(f"step {number}{text}")
            self._write(f"{time.monotonic() - self._begin:8.1f} s  {number}{printable(text)}")


class StepBar:
    """A bar that advances when a step ends, below the lines of the steps.

    It appears with the first step: before that, the work may ask the user a question.
    """

    def __init__(self, shown: RichProgress, title: str, *, lines: bool) -> None:
        """Show nothing yet."""
        self._shown = shown
        self._task = shown.add_task(title, total=None)
        self._running = 0
        self._lines = StepLines(self._print if lines else lambda _: None)

    def begin(self, total: int) -> None:
        """Set the length."""
        self._lines.begin(total)
        self._shown.update(self._task, total=total)

    def step(self, text: str) -> None:
        """Show the step's text, and advance by the step before it."""
        self._shown.start()
        self._lines.step(text)
        self._shown.update(self._task, description=printable(text), advance=self._running)
        self._running = 1

    def finish(self) -> None:
        """Advance by the last step."""
        self._shown.update(self._task, advance=self._running)
        self._running = 0

    def _print(self, line: str) -> None:
        self._shown.console.print(line, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def bar(title: str, *, lines: bool) -> Iterator[StepBar]:
    """Show the steps on standard error, a terminal, until the block ends."""
    from rich import console, progress  # noqa: PLC0415 - slow to load

    columns = (
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TimeElapsedColumn(),
    )
    screen = console.Console(stderr=True)
    shown = progress.Progress(*columns, console=screen, transient=True, redirect_stdout=False)
    steps = StepBar(shown, title, lines=lines)
    try:
        yield steps
        steps.finish()
    finally:
        shown.stop()
