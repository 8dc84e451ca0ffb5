# SPDX-License-Identifier: Apache-2.0
"""What was begun and what was finished: one JSON line per record, each on disk before the step.

The journal explains and resumes; what exists is always asked of the backend.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

NAME = "journal.jsonl"


class Event(Enum):
    """What a record says about a step."""

    BEGIN = "begin"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True)
class Record:
    """One line: when (Unix seconds), which step of which verb, and how it went."""

    time_s: float
    verb: str
    step: str
    event: str
    detail: str = ""


class Journal:
    """Appends to a cluster's journal. The directory must exist when the first record comes."""

    def __init__(self, directory: Path) -> None:
        """Remember the place; nothing is opened yet."""
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
        """Return all complete records; a line cut short by a kill is left out."""
        try:
            text = self.path.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return []
        records = []
        for line in text.splitlines():
            try:
                records.append(Record(**json.loads(line)))
            except (ValueError, TypeError):
                continue
        return records

    def unfinished(self) -> Record | None:
        """Return the step that was begun and never ended, if the last one was."""
        records = self.read()
        last = records[-1] if records else None
        return last if last is not None and last.event == Event.BEGIN.value else None
