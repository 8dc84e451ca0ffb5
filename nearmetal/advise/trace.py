# SPDX-License-Identifier: Apache-2.0
"""The profile of a program's messages, from a summary of an MPI trace.

The summary is a CSV file with the columns `size_B,count`: how many messages of which size. The
tracers' own reports give it (mpiP: message size histograms; TAU, Score-P: size distributions).
"""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING

from nearmetal.advise.needs import Messages
from nearmetal.core.errors import NearmetalError

if TYPE_CHECKING:
    from pathlib import Path

COLUMNS = ["size_B", "count"]
SMALL_B = 1024
LARGE_B = 64 * 1024
SHARE = 0.9
_MAX_BYTES = 16 << 20
_MAX_NUMBER = 1 << 60


def load_trace(path: Path) -> Messages:
    """Read a summary; raises NearmetalError with file and line."""
    try:
        with path.open("rb") as stream:
            raw = stream.read(_MAX_BYTES + 1)
        text = raw.decode("ascii")
    except OSError as error:
        raise NearmetalError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise NearmetalError(f"{path}:{line}: not ASCII text", "give a CSV file") from error
    if len(raw) > _MAX_BYTES:
        raise NearmetalError(f"{path}: larger than 16 MiB", "give counts by size, not messages")
    rows = csv.reader(text.splitlines())
    if next(rows, None) != COLUMNS:
        msg = f"{path}:1: not the columns of a message summary"
        raise NearmetalError(msg, f"the first line is {','.join(COLUMNS)}")
    return profile([_row(row, f"{path}:{rows.line_num}") for row in rows if row], str(path))


def _row(row: list[str], where: str) -> tuple[int, int]:
    numbers = [int(cell) for cell in row if cell.strip().isdecimal()]
    if len(row) != len(COLUMNS) or len(numbers) != len(COLUMNS) or max(numbers) > _MAX_NUMBER:
        msg = f"{where}: {','.join(row)[:40]!r} is not a size and a count"
        raise NearmetalError(msg, "write for example 1024,2000000")
    return numbers[0], numbers[1]


def profile(messages: list[tuple[int, int]], file: str = "<trace>") -> Messages:
    """Judge sizes and counts: small when 90 % of the messages are, large when 90 % of bytes are."""
    number = sum(count for _, count in messages)
    volume = sum(size * count for size, count in messages)
    if number == 0:
        raise NearmetalError(f"{file}: no messages", "give counts by size")
    if sum(count for size, count in messages if size <= SMALL_B) >= SHARE * number:
        return Messages.SMALL
    if sum(size * count for size, count in messages if size >= LARGE_B) >= SHARE * volume:
        return Messages.LARGE
    return Messages.MIXED
