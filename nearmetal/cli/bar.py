# SPDX-License-Identifier: Apache-2.0
"""The progress bar on a terminal."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    from collections.abc import Iterator


class BarSteps:
    """Steps as a bar: it advances when the next step begins."""

    def __init__(self, progress: Progress, title: str) -> None:
        """Start without a length: `begin` gives it."""
        self._progress = progress
        self._task = progress.add_task(title, total=None)
        self._running = 0

    def begin(self, total: int) -> None:
        """There will be `total` steps."""
        self._progress.update(self._task, total=total)

    def step(self, text: str) -> None:
        """The next step begins."""
        self._progress.update(self._task, description=text, advance=self._running)
        self._running = 1

    def finish(self) -> None:
        """The last step is done."""
        self._progress.update(self._task, advance=self._running)


@contextmanager
def bar(title: str) -> Iterator[BarSteps]:
    """Show a bar on standard error until the block ends."""
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        steps = BarSteps(progress, title)
        yield steps
        steps.finish()
