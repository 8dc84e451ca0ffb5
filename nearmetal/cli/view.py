# SPDX-License-Identifier: Apache-2.0
"""How results are shown: to a person, or as one JSON document on standard output."""

from __future__ import annotations

import json
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from nearmetal.errors import NearmetalError, SpecError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class Steps:
    """Shows steps: a bar when a person watches, nothing otherwise."""

    def __init__(self, bar: Progress | None, title: str) -> None:
        """Without a bar every call does nothing."""
        self._bar = bar
        self._task = None if bar is None else bar.add_task(title, total=None)
        self._started = False

    def begin(self, total: int) -> None:
        """There will be `total` steps."""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, total=total)

    def step(self, text: str) -> None:
        """The next step begins."""
        if self._bar is not None and self._task is not None:
            advance = 1 if self._started else 0
            self._bar.update(self._task, description=text, advance=advance)
        self._started = True

    def finish(self) -> None:
        """The last step is done."""
        if self._bar is not None and self._task is not None and self._started:
            self._bar.update(self._task, advance=1)


class View:
    """Prints results to standard output, everything else to standard error."""

    def __init__(self, *, as_json: bool) -> None:
        """`as_json`: one document on standard output, nothing else there."""
        self.as_json = as_json
        self.out = Console(highlight=False, soft_wrap=True)
        self.err = Console(stderr=True, highlight=False, soft_wrap=True)

    def result(self, data: dict[str, Any], lines: Sequence[str] = ()) -> None:
        """Print a result: `data` as JSON, or `lines` for a person."""
        if self.as_json:
            print(json.dumps(data, indent=2))
            return
        for line in lines:
            self.out.print(Text(line))

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Print a table for a person; nothing with --json."""
        if self.as_json:
            return
        table = Table(box=None, pad_edge=False, header_style="bold")
        for column in columns:
            table.add_column(column, overflow="fold")
        for row in rows:
            table.add_row(*(Text(cell) for cell in row))
        self.out.print(table)

    def note(self, text: str) -> None:
        """Tell something worth knowing."""
        self.err.print(Text(f"note: {text}", style="yellow"))

    def warn(self, text: str, hint: str = "") -> None:
        """Tell loudly that something is not as wished."""
        self.err.print(Text(f"WARNING: {text}", style="bold red"))
        if hint:
            self.err.print(Text(f"  hint: {hint}"))

    def error(self, error: NearmetalError) -> None:
        """Print an error, and with --json its document too."""
        prefix = "" if isinstance(error, SpecError) else "error: "
        self.err.print(Text(f"{prefix}{error.message}", style="red"))
        if error.hint:
            self.err.print(Text(f"  hint: {error.hint}"))
        if self.as_json:
            content: dict[str, Any] = {"message": error.message, "hint": error.hint}
            if isinstance(error, SpecError):
                content["problems"] = [vars(problem) for problem in error.problems]
            print(json.dumps({"error": content}, indent=2))

    @contextmanager
    def steps(self, title: str) -> Iterator[Steps]:
        """Show progress on standard error when it is a terminal."""
        if not sys.stderr.isatty():
            yield Steps(None, title)
            return
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
                   TimeElapsedColumn())  # fmt: skip
        with Progress(*columns, console=self.err, transient=True) as bar:
            steps = Steps(bar, title)
            yield steps
            steps.finish()
