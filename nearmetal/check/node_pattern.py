# SPDX-License-Identifier: Apache-2.0
"""Which nodes a text such as `compute-[01-04],login` names, without a list of them all. Pure.

A range of a billion nodes in a file of a user costs no more than one of two.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

MOST_PARTS = 256
NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
"""A name of a node."""

_PART = re.compile(
    r"([A-Za-z0-9][A-Za-z0-9._-]*|)(?:\[([0-9]{1,9}(?:-[0-9]{1,9})?(?:,[0-9]{1,9}(?:-[0-9]{1,9})?)*)\]"
    r"([A-Za-z0-9._-]*))?"
)
_BETWEEN = re.compile(r",(?![^\[]*\])")


@dataclass(frozen=True)
class NodePattern:
    """Names, and names with one range of numbers."""

    names: frozenset[str]
    ranges: tuple[tuple[re.Pattern[str], tuple[tuple[int, int], ...], int], ...]

    def has(self, name: str) -> bool:
        """Whether it names this node."""
        if name in self.names:
            return True
        for pattern, spans, width in self.ranges:
            found = pattern.fullmatch(name)
            if found and (len(found[1]) == width or (found[1][0] != "0" and width < len(found[1]))):
                number = int(found[1])
                if any(low <= number <= high for low, high in spans):
                    return True
        return False


def node_pattern(text: str) -> NodePattern:
    """Return the pattern of a text; raises ValueError whose text is "why|hint"."""
    parts = _BETWEEN.split(text)
    if len(parts) > MOST_PARTS:
        raise ValueError(f"has more than {MOST_PARTS} parts|split it")
    names, ranges = set(), []
    for part in parts:
        found = _PART.fullmatch(part.strip())
        if found is None or not part.strip():
            raise ValueError("is not a set of nodes|write for example compute-[01-04],login1")
        if found[2] is None:
            names.add(found[0])
            continue
        spans = []
        for span in found[2].split(","):
            low, _, high = span.partition("-")
            spans.append((int(low), int(high or low)))
        width = len(found[2].partition(",")[0].partition("-")[0])
        pattern = re.compile(f"{re.escape(found[1])}([0-9]{{1,9}}){re.escape(found[3])}")
        ranges.append((pattern, tuple(spans), width))
    return NodePattern(frozenset(names), tuple(ranges))


def expand(text: str, most: int) -> list[str]:
    """Return the names of a text in its order; raises ValueError whose text is "why|hint"."""
    node_pattern(text)
    found: list[str] = []
    for part in _BETWEEN.split(text):
        parts = _PART.fullmatch(part.strip())
        assert parts is not None  # noqa: S101 - `node_pattern` has checked it
        if parts[2] is None:
            found.append(parts[0])
            continue
        for span in parts[2].split(","):
            first, _, last = span.partition("-")
            if int(last or first) - int(first) >= most - len(found):
                raise ValueError(f"names more than {most} nodes|split it")
            found += [
                f"{parts[1]}{number:0{len(first)}d}{parts[3]}"
                for number in range(int(first), int(last or first) + 1)
            ]
    if len(found) > most:
        raise ValueError(f"names more than {most} nodes|split it")
    wrong = next((name for name in found if not NODE.fullmatch(name)), None)
    if wrong is not None:
        raise ValueError(f"{wrong[:40]!r} is not the name of a node|use letters and digits")
    return list(dict.fromkeys(found))
