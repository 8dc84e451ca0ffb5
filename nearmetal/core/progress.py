# SPDX-License-Identifier: Apache-2.0
"""Progress of long work: the work reports its steps, a terminal shows them as a bar."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

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


class StepBar:
    """A bar that advances when a step ends."""

    def __init__(self, shown: RichProgress, title: str) -> None:
        self._shown = shown
        self._task = shown.add_task(title, total=None)
        self._running = 0

    def begin(self, total: int) -> None:
        """Set the length."""
        self._shown.update(self._task, total=total)

    def step(self, text: str) -> None:
        """Show the step's text, and advance by the step before it."""
        self._shown.update(self._task, description=printable(text), advance=self._running)
        self._running = 1

    def finish(self) -> None:
        """Advance by the last step."""
        self._shown.update(self._task, advance=self._running)
        self._running = 0


@contextmanager
def bar(title: str) -> Iterator[StepBar]:
    """Show a bar on standard error until the block ends."""
    from rich import console, progress  # noqa: PLC0415 - slow to load

    columns = (
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TimeElapsedColumn(),
    )
    screen = console.Console(stderr=True)
    with progress.Progress(*columns, console=screen, transient=True) as shown:
        steps = StepBar(shown, title)
        yield steps
        steps.finish()
