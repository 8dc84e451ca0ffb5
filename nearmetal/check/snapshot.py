# SPDX-License-Identifier: Apache-2.0
"""A snapshot: the facts of one node, as the agent wrote them. Pure.

A snapshot comes from a node or by mail, and is hostile: its size, depth, number of values and the
length of texts are bounded. A fact of another type than expected counts as absent.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from nearmetal.core.errors import LogError
from nearmetal.core.text import printable

FORMAT = "nearmetal-snapshot"
VERSION = 1
MAX_BYTES = 1 << 20
MAX_DEPTH = 10
MAX_VALUES = 30_000
MAX_TEXT = 1024
MAX_KEY = 256
_WHOLE = 1 << 64
_MOST_DIGITS = 18
_HINT = "collect it again with `nearmetal check collect`"
_PLAIN = re.compile(r"[A-Za-z0-9_-]+")

Path = tuple[str, ...]


@dataclass(frozen=True)
class Snapshot:
    """The facts of one node. `early`, `late`: limits of its clock minus ours in seconds."""

    name: str
    facts: Mapping[str, Any]
    unseen: Mapping[str, str] = field(default_factory=dict)
    root: bool = False
    quick: bool = False
    taken: float = 0.0
    seconds: float = 0.0
    digest: str = ""
    early: float | None = None
    late: float | None = None

    def _at(self, path: Path) -> Any:
        value: Any = self.facts
        for key in path:
            if not isinstance(value, dict):
                return None
            value = value.get(key)
        return value

    def text(self, *path: str) -> str:
        """Return a text; "" for anything else."""
        value = self._at(path)
        return value if isinstance(value, str) else ""

    def number(self, *path: str) -> float | None:
        """Return a number, also of decimal text; None for anything else."""
        value = self._at(path)
        if isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,18}", value):
            return int(value)
        return value if isinstance(value, int | float) and not isinstance(value, bool) else None

    def count(self, *path: str) -> int:
        """Return a whole number; 0 if there is none."""
        return int(self.number(*path) or 0)

    def flag(self, *path: str) -> bool:
        """Whether a fact is true."""
        return self._at(path) is True

    def table(self, *path: str) -> Mapping[str, Any]:
        """Return a table; an empty one for anything else."""
        value = self._at(path)
        return value if isinstance(value, dict) else {}


def parse_snapshot(
    content: bytes, name: str, file: str, clock: tuple[float, float] | None = None
) -> Snapshot:
    """Return a snapshot; raises LogError with the file and the fault.

    `clock`: the limits of the offset of the node's clock, if they were measured.
    """
    data = load_bounded(content, file)
    if data.get("format") != FORMAT:
        raise LogError(f"{file}: not a snapshot of nearmetal", _HINT)
    if data.get("version") != VERSION:
        version = printable(str(data.get("version"))[:20])
        raise LogError(
            f"{file}: a snapshot of version {version}", f"this nearmetal reads version {VERSION}"
        )
    facts, unseen = data.get("facts"), data.get("unseen")
    if not isinstance(facts, dict) or not isinstance(unseen, dict):
        raise LogError(f"{file}: damaged: it has no facts", _HINT)
    early, late = clock or (None, None)
    return Snapshot(
        name=name,
        facts=facts,
        unseen={str(key): str(value) for key, value in unseen.items()},
        root=data.get("root") is True,
        quick=data.get("quick") is True,
        taken=real(data.get("taken")),
        seconds=real(data.get("seconds")),
        digest=digest_of(content),
        early=early,
        late=late,
    )


def digest_of(content: bytes) -> str:
    """Return the name of a content: its SHA-256."""
    return hashlib.sha256(content).hexdigest()


def load_bounded(
    content: bytes,
    file: str,
    *,
    most_bytes: int = MAX_BYTES,
    most_values: int = MAX_VALUES,
    hint: str = _HINT,
) -> dict[str, Any]:
    """Return a JSON object within the limits of this module; raises LogError."""
    if len(content) > most_bytes:
        raise LogError(f"{file}: larger than {most_bytes >> 20} MiB", hint)
    try:
        data: Any = json.loads(content, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        line = getattr(error, "lineno", 1)
        raise LogError(f"{file}:{line}: not valid JSON: {str(error)[:100]}", hint) from error
    if not isinstance(data, dict):
        raise LogError(f"{file}: not a JSON object", hint)
    why = _excess(data, most_values)
    if why:
        raise LogError(f"{file}: {why}", hint)
    return data


def _refuse(word: str) -> float:
    raise ValueError(f"{word} is not a number")


def _excess(data: dict[str, Any], most_values: int) -> str:
    """Return the limit that a value exceeds; "" if it keeps all."""
    left = most_values
    pending: list[tuple[dict[str, Any] | list[Any], int]] = [(data, 1)]
    while pending:
        value, depth = pending.pop()
        if depth > MAX_DEPTH:
            return f"nested deeper than {MAX_DEPTH} levels"
        items: list[Any] = value if isinstance(value, list) else list(value.values())
        left -= len(items)
        if left < 0:
            return f"more than {most_values} values"
        if isinstance(value, dict) and any(len(key) > MAX_KEY for key in value):
            return f"a key of more than {MAX_KEY} characters"
        for item in items:
            if isinstance(item, str):
                if len(item) > MAX_TEXT:
                    return f"a text of more than {MAX_TEXT} characters"
            elif isinstance(item, dict | list):
                pending.append((item, depth + 1))
            elif isinstance(item, int | float) and not -_WHOLE < item < _WHOLE:
                return "a number out of range"
    return ""


def real(value: Any) -> float:
    """Return a number of JSON; 0 for anything else."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else 0.0


def is_decimal(text: str) -> bool:
    """Whether `int` takes a text as a whole number without a sign, in few digits."""
    return len(text) <= _MOST_DIGITS and text.isascii() and text.isdigit()


def shown(path: Path) -> str:
    """Return a path as people write it: `sysctl[vm.swappiness]`."""
    text = "".join(f".{key}" if _PLAIN.fullmatch(key) else f"[{key}]" for key in path)
    return printable(text.removeprefix("."))


def leaves(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield each value that is no table, with its path."""
    if isinstance(value, dict):
        for key in sorted(value):
            yield from leaves(value[key], (*path, key))
    else:
        yield path, value
