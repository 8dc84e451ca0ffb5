# SPDX-License-Identifier: Apache-2.0
"""What every parser needs: errors with file:line, and numbers that are numbers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from nearmetal.errors import LogError
from nearmetal.evidence.model import Column, Row

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_SHOWN = 80


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
        raise fail(file, line, f"{shown(word)} is no number", "the row is damaged") from None
    if not math.isfinite(value) or value < 0:
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


def row(words: Sequence[str], header: Sequence[Column], file: str, line: int) -> Row:
    """Return one row; raises LogError unless it has exactly the header's columns."""
    if len(words) != len(header):
        raise fail(file, line, f"{len(words)} values for {len(header)} columns",
                   "the row is cut off or damaged")  # fmt: skip
    values = {c.metric: number(w, file, line) for c, w in zip(header, words, strict=True)}
    return Row(line, values)
