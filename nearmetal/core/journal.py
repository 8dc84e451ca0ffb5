# SPDX-License-Identifier: Apache-2.0
"""The journal of a cluster: one JSON line per begun and finished step, on disk before the step.

It explains an interruption and helps to resume. Only the backend knows which resources exist.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import time
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path

from nearmetal.core.errors import StateError
from nearmetal.core.files import MAX_STATE, read_regular

NAME = "journal.jsonl"
_END_OF_TIME_S = 253402300800.0
"""The year 10000: no calendar of Python has it."""


class Event(Enum):
    """State of a step in a record."""

    BEGIN = "begin"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True)
class Record:
    """One line: the time (Unix seconds), the verb, its step, and the state of the step."""

    time_s: float
    verb: str
    step: str
    event: str
    detail: str = ""


def _sound(record: Record) -> Record:
    """Return a record whose values are what `write` makes; raises ValueError or TypeError."""
    for text in (record.verb, record.step, record.event, record.detail):
        str.encode(text)  # a part of a surrogate pair cannot be written
    if isinstance(record.time_s, bool) or not 0 <= record.time_s < _END_OF_TIME_S:
        raise ValueError(record.time_s)
    return record


class Journal:
    """The journal in the directory of a cluster."""

    def __init__(self, directory: Path) -> None:
        """Keep the path; nothing is opened yet."""
        self.path = directory / NAME

    def write(self, verb: str, step: str, event: Event, detail: str = "") -> None:
        """Append one record and force it to disk; raises OSError (a full disk, for example)."""
        detail = detail.encode(errors="replace").decode()
        record = Record(round(time.time(), 3), verb, step, event.value, detail)
        line = json.dumps(asdict(record)) + "\n"
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            size = os.fstat(descriptor).st_size
            # What a killed process or a full disk has cut short takes no other record with it.
            torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
            data = (b"\n" if torn else b"") + line.encode()
            if os.write(descriptor, data) < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def read(self) -> list[Record]:
        """Return all sound records; an incomplete line of a killed process is left out.

        No file: no records. Raises StateError if the file cannot be read, or is too large.
        """
        try:
            text = read_regular(self.path, MAX_STATE).decode("utf-8", "replace")
        except FileNotFoundError:
            return []
        except OSError as error:
            raise StateError(
                f"cannot read {self.path}: {error.strerror}",
                "move it away: it only tells what earlier commands did",
            ) from error
        records = []
        for line in text.splitlines():
            with contextlib.suppress(ValueError, TypeError, RecursionError):
                records.append(_sound(Record(**json.loads(line))))
        return records

    def unfinished(self) -> Record | None:
        """Return the last record if its step was begun and not ended."""
        records = self.read()
        last = records[-1] if records else None
        return last if last is not None and last.event == Event.BEGIN.value else None
