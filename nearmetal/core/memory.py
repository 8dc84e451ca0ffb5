# SPDX-License-Identifier: Apache-2.0
"""A memory of answers that are slow to find."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nearmetal.core.files import read_json, replace_file


@dataclass(frozen=True)
class Memory:
    """Answers that are remembered between commands: a file of lists, the newest `limit` of them."""

    path: Path
    limit: int

    def _all(self) -> dict[str, Any]:
        data = read_json(self.path)
        return data if isinstance(data, dict) else {}

    def recall(self, key: str) -> list[Any] | None:
        """Return an answer; None if there is none."""
        known = self._all().get(key)
        return known if isinstance(known, list) else None

    def remember(self, key: str, answer: list[Any]) -> None:
        """Keep an answer, in place of the earlier one."""
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        others = [entry for entry in self._all().items() if entry[0] != key]
        kept = dict(others[-self.limit :]) | {key: answer}
        replace_file(self.path, json.dumps(kept) + "\n", sync=False, shared=True)
