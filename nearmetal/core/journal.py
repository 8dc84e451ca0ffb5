# SPDX-License-Identifier: Apache-2.0
"""The journal of a cluster: one JSON line per begun and finished step, on disk before the step.

It explains an interruption and helps to resume. Only the backend knows which resources exist.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path

from nearmetal.core.errors import StateError
from nearmetal.core.files import MAX_STATE, read_regular

NAME = "journal.jsonl"


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


class Journal:
    """The journal in the directory of a cluster."""

    def __init__(self, directory: Path) -> None:
        """Keep the path; nothing is opened yet."""
        self.path = directory / NAME

    def write(self, verb: str, step: str, event: Event, detail: str = "") -> None:
        """Append one record and force it to disk; raises OSError (a full disk, for example)."""
        record = Record(round(time.time(), 3), verb, step, event.value, detail)
        line = json.dumps(asdict(record)) + "\n"
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(descriptor, line.encode())
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def read(self) -> list[Record]:
        """Return all complete records; an incomplete last line of a killed process is left out.

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
            try:
                records.append(Record(**json.loads(line)))
            except (ValueError, TypeError, RecursionError):
                continue
        return records

    def unfinished(self) -> Record | None:
        """Return the last record if its step was begun and not ended."""
        records = self.read()
        last = records[-1] if records else None
        return last if last is not None and last.event == Event.BEGIN.value else None
