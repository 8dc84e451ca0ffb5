# SPDX-License-Identifier: Apache-2.0
"""The output of verbs: for a person, or as one JSON document on standard output.

Names of files, lines of logs and answers of nodes are foreign: no control character of them reaches
the terminal. JSON has its own escapes.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TextIO

from nearmetal.core import log
from nearmetal.core.errors import NearmetalError, SpecError, UsageError
from nearmetal.core.progress import Progress, Silent, StepLines, bar
from nearmetal.core.text import printable, printable_lines

_RED, _YELLOW, _BOLD, _PLAIN = "31", "33", "1", ""


def _styled(text: str, style: str, stream: TextIO) -> str:
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" or not stream.isatty()
    return text if plain or not style else f"\033[{style}m{text}\033[0m"


class View:
    """Prints results to standard output, everything else to standard error."""

    def __init__(self, *, as_json: bool) -> None:
        """`as_json`: one document on standard output, nothing else there."""
        self.as_json = as_json

    def result(self, data: dict[str, Any], lines: Sequence[str] = ()) -> None:
        """Print a result: `data` as JSON, or `lines` for a person."""
        if self.as_json:
            print(json.dumps(data, indent=2))
            return
        for line in lines:
            print(printable_lines(line))

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Print a table for a person, as wide as its cells; nothing with --json."""
        if self.as_json:
            return
        shown = [[printable(cell) for cell in row] for row in (columns, *rows)]
        widths = [max(map(len, cells)) for cells in zip(*shown, strict=True)]
        for number, row in enumerate(shown):
            cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            line = "  ".join(cells).rstrip()
            print(line if number else _styled(line, _BOLD, sys.stdout))

    def note(self, text: str) -> None:
        """Print a note to standard error."""
        self._print(f"note: {text}", _YELLOW)

    def warn(self, text: str, hint: str = "") -> None:
        """Print a warning to standard error."""
        self._print(f"WARNING: {text}", f"{_BOLD};{_RED}")
        if hint:
            self._print(f"  hint: {hint}", _PLAIN)

    def error(self, error: NearmetalError) -> None:
        """Print an error, and with --json its document too."""
        prefix = "" if isinstance(error, SpecError) else "error: "
        self._print(f"{prefix}{error.message}", _RED)
        if error.hint:
            self._print(f"  hint: {error.hint}", _PLAIN)
        if self.as_json:
            content: dict[str, Any] = {"message": error.message, "hint": error.hint}
            if isinstance(error, SpecError):
                content["problems"] = [vars(problem) for problem in error.problems]
            print(json.dumps({"error": content}, indent=2))

    def ask(self, question: str, plan: Sequence[str] = (), *, yes: bool) -> None:
        """Return if the user agrees, who sees the plan first; raises otherwise.

        `yes`: the command line has agreed with --yes. Without it and without a terminal, nobody
        can be asked: that is a UsageError.
        """
        if yes:
            log.told(f"--yes: {question}")
            return
        for line in plan:
            self._print(line, _PLAIN)
        if not (sys.stdin and sys.stdin.isatty() and sys.stderr.isatty()):
            raise UsageError(
                f"nothing was changed: this would {question}, and there is no terminal to ask at",
                "look at the plan, and add --yes to agree to it",
            )
        answer = ""
        try:
            print(printable(f"{question}? [yes/no] "), end="", file=sys.stderr, flush=True)
            answer = sys.stdin.readline()
        finally:
            if not answer.endswith("\n"):
                print(file=sys.stderr)  # after Ctrl-C or Ctrl-D, the next line is one of its own
        answer = answer.strip().lower()
        log.told(f"{question}? {answer}")
        if answer not in ("y", "yes"):
            raise NearmetalError("nothing was changed: the answer was not yes")

    def _print(self, text: str, style: str) -> None:
        sys.stdout.flush()
        log.told(text)
        text = printable_lines(text)
        print(_styled(text, style, sys.stderr), file=sys.stderr, flush=True)

    @contextmanager
    def steps(self, title: str, *, lines: bool = True) -> Iterator[Progress]:
        """Show the progress of work on standard error, on a terminal also as a bar.

        `lines`: print a line when a step begins; without it, only a terminal shows the steps.
        """
        if sys.stderr.isatty():
            with bar(title, lines=lines) as watched:
                yield watched
        else:
            yield StepLines(_plain_line) if lines else Silent()


def _plain_line(text: str) -> None:
    sys.stdout.flush()
    print(text, file=sys.stderr, flush=True)
