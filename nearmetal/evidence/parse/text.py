# SPDX-License-Identifier: Apache-2.0
"""What every parser needs: errors with file:line, and numbers that are numbers."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

from nearmetal.core.errors import LogError
from nearmetal.evidence.model import Column, Log, Row, Table

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

Rule = tuple[re.Pattern[str], "Callable[[int, re.Match[str]], None]"]
"""A pattern at a line's beginning, and what to do with its number and the match."""

_SHOWN = 80
_COMMA = re.compile(r"\d+,\d+")


def split_lines(text: str) -> list[str]:
    """Return the lines as editors count them, without a byte order mark and line ends."""
    lines = [line.rstrip("\r") for line in text.removeprefix("\ufeff").split("\n")]
    return lines[:-1] if len(lines) > 1 and not lines[-1] else lines


def fail(file: str, line: int, what: str, why: str) -> LogError:
    """Return the error for a line that cannot be read."""
    return LogError(f"{file}:{line}: {what}, {why}")


def shown(text: str) -> str:
    """Return a line as it may appear in a message."""
    return repr(text if len(text) <= _SHOWN else text[:_SHOWN] + "...")


def number(word: str, file: str, line: int) -> float:
    """Return a finite, non-negative number; raises LogError, also for a decimal comma."""
    try:
        value = float(word)
    except ValueError:
        why = "a decimal comma?" if _COMMA.fullmatch(word) else "the row is damaged"
        raise fail(file, line, f"{shown(word)} is no number", why) from None
    if "_" in word:
        raise fail(file, line, f"{shown(word)} is no number", "the row is damaged")
    if not 0 <= value < math.inf:
        raise fail(file, line, f"{shown(word)} is no measured value", "it must be finite and >= 0")
    return value


def columns(
    words: Sequence[str], known: Mapping[str, Column], file: str, line: int
) -> tuple[Column, ...]:
    """Return what the words of a header mean; raises LogError for an unknown or repeated one."""
    found = []
    for word in words:
        if word not in known:
            raise fail(file, line, f"unknown column {shown(word)}", f"known: {', '.join(known)}")
        if known[word] in found:
            raise fail(file, line, f"column {shown(word)} stands twice", "the header is damaged")
        found.append(known[word])
    return tuple(found)


def spaced_columns(
    text: str, known: Mapping[str, Column], file: str, line: int
) -> tuple[Column, ...]:
    """Return what a header means whose names may hold spaces: the longest name that fits comes first.

    Raises LogError for an unknown or repeated one.
    """
    rest = " ".join(text.split())
    names = sorted(known, key=len, reverse=True)
    found: list[str] = []
    while rest:
        name = next((n for n in names if rest == n or rest.startswith(n + " ")), None)
        if name is None:
            raise fail(file, line, f"unknown column {shown(rest)}", f"known: {', '.join(known)}")
        found.append(name)
        rest = rest[len(name) :].lstrip()
    return columns(found, known, file, line)


def row(words: Sequence[str], header: Sequence[Column], file: str, line: int) -> Row:
    """Return one row; raises LogError unless it has exactly the header's columns."""
    if len(words) != len(header):
        raise fail(
            file,
            line,
            f"{len(words)} values for {len(header)} columns",
            "the row is cut off or damaged",
        )
    values = {c.metric: number(w, file, line) for c, w in zip(header, words, strict=True)}
    return Row(line, values)


def whole(word: str, file: str, line: int) -> int:
    """Return a whole number >= 0; raises LogError for anything else."""
    value = number(word, file, line)
    if not value.is_integer():
        raise fail(file, line, f"{shown(word)} is no whole number", "the row is damaged")
    return int(value)


def walk(lines: Sequence[str], rules: Sequence[Rule]) -> None:
    """Hand every line to the first rule that matches its beginning."""
    for nr, line in enumerate(lines, 1):
        for pattern, handler in rules:
            if match := pattern.match(line):
                handler(nr, match)
                break


class Figures:
    """Collects single figures that programs print in sentences: one value per line."""

    def __init__(self, file: str) -> None:
        """Start empty, for one file."""
        self.file = file
        self.header: dict[str, str] = {}
        self.remarks: list[tuple[int, str]] = []
        self.processes: int | None = None
        self._tables: list[Table] = []

    def add(
        self, test: str, column: Column, word: str | float, line: int, variant: str = ""
    ) -> None:
        """Add one figure; raises LogError unless it is a measured value."""
        value = number(word, self.file, line) if isinstance(word, str) else word
        found = Row(line, {column.metric: value})
        self._tables.append(Table(test, line, (column,), (found,), variant))

    def has(self, metric: str) -> bool:
        """Return whether a figure of that name was found."""
        return any(column.metric == metric for t in self._tables for column in t.columns)

    def log(self, name: str) -> Log:
        """Return what was found."""
        tables = tuple(
            Table(t.test, t.line, t.columns, t.rows, t.variant, self.processes)
            for t in self._tables
        )
        return Log(self.file, name, self.header, tables, tuple(self.remarks))
