# SPDX-License-Identifier: Apache-2.0
"""Patterns of paths: `*`, `?`, `**/`, and marks such as `{arm}` whose text becomes a label. Pure."""

from __future__ import annotations

import re
import string
from enum import Enum
from operator import or_

MAX_MARKS = 40
"""Marks in one pattern."""

MAX_DIGITS = 9
"""Digits of a number."""

NUMBERS = ("launch", "block", "nodes", "ranks")
WORDS = ("arm", "fabric", "placement", "_")
_TOKEN = re.compile(r"\{(\w+)\}|(\*\*/)|(\*)|(\?)")


class _Mark(Enum):
    """What a mark of a pattern stands for."""

    NUMBER = "a number of at most nine digits"
    WORD = "text within a name, as short as possible, not empty"
    ANY = "text within a name, as short as possible"
    REST = "text within a name, as long as possible"
    ONE = "one character of a name"
    FOLDERS = "folders, as many as possible"


class Pattern:
    """A pattern of paths. A match takes time in proportion to marks times characters.

    A regular expression takes time to the power of the marks, and an adversary may have made the
    folder with its labels.
    """

    def __init__(self, text: str) -> None:
        """Raises ValueError "why|hint"."""
        self._parts: list[tuple[str, _Mark | None]] = []
        """Text with None, or a mark with its name."""
        at, names = 0, set()
        for token in _TOKEN.finditer(text):
            self._add(text[at : token.start()], None)
            at = token.end()
            name = token[1]
            if name is None:
                mark = _Mark.FOLDERS if token[2] else _Mark.REST if token[3] else _Mark.ONE
                self._add("", mark)
            elif name == "_":
                self._add("", _Mark.ANY)
            else:
                if name not in NUMBERS and name not in WORDS:
                    known = ", ".join((*WORDS[:-1], *NUMBERS, "_"))
                    raise ValueError(f"{{{name}}} is unknown|known: {known}")
                if name in names:
                    raise ValueError(f"{{{name}}} stands twice|remove one")
                names.add(name)
                self._add(name, _Mark.NUMBER if name in NUMBERS else _Mark.WORD)
        self._add(text[at:], None)
        if sum(mark is not None for _, mark in self._parts) > MAX_MARKS:
            raise ValueError(f"has more than {MAX_MARKS} marks|use * or **/ for several of them")

    def _add(self, text: str, mark: _Mark | None) -> None:
        if mark is not None or text:
            self._parts.append((text, mark))

    def match(self, path: str) -> dict[str, str] | None:
        """Return the texts of the named marks; None: the path does not match."""
        begin, end = self._parts[0], self._parts[-1]
        if not (begin[1] or path.startswith(begin[0])) or not (end[1] or path.endswith(end[0])):
            return None  # most paths that do not match
        # By part: the places from which it and all later parts match the rest of the path.
        good = [bytearray(len(path)) + b"\1"]
        for text, mark in reversed(self._parts):
            good.append(_places(text, mark, path, good[-1]))
        good.reverse()
        if not good[0][0]:
            return None
        found, at = {}, 0
        for (text, mark), after in zip(self._parts, good[1:], strict=True):
            start, at = at, _end(text, mark, path, at, after)
            if text and mark is not None:
                found[text] = path[start:at]
        return found


def _places(text: str, mark: _Mark | None, path: str, after: bytearray) -> bytearray:
    """Return the places (1) at which a part may begin if it may end at the places `after`."""
    here = bytearray(len(after))
    match mark:
        case None:
            at = path.find(text)
            while at >= 0:
                here[at] = after[at + len(text)]
                at = path.find(text, at + 1)
        case _Mark.NUMBER:
            digits = 0
            for at in _backwards(path):
                digits = digits + 1 if path[at] in string.digits else 0
                here[at] = digits > 0 and 1 in after[at + 1 : at + 1 + min(digits, MAX_DIGITS)]
        case _Mark.ONE:
            for at in _backwards(path):
                here[at] = path[at] != "/" and after[at + 1]
        case _Mark.FOLDERS:
            _fill(here, path, after, folders=True)
        case _Mark.WORD:
            _fill(here, path, after, folders=False)
        case _:
            _fill(here, path, after, folders=False)
            return bytearray(map(or_, here, after))
    return here


def _backwards(path: str) -> range:
    return range(len(path) - 1, -1, -1)


def _fill(here: bytearray, path: str, after: bytearray, *, folders: bool) -> None:
    """Note where folders, or at least one character within a name, may begin."""
    later = 0
    if folders:
        here[-1] = after[-1]
    for at in _backwards(path):
        if folders:
            later |= path[at] == "/" and after[at + 1]
            here[at] = after[at] | later
        else:
            later = 0 if path[at] == "/" else later | after[at + 1]
            here[at] = later


def _end(text: str, mark: _Mark | None, path: str, at: int, after: bytearray) -> int:
    """Return the preferred place in `after` at which a part that begins at `at` ends."""
    match mark:
        case None:
            return at + len(text)
        case _Mark.ONE:
            return at + 1
        case _Mark.NUMBER:
            most = min(at + MAX_DIGITS, len(path))
            last = next((i for i in range(at, most) if path[i] not in string.digits), most)
            return after.rfind(1, at, last + 1)
        case _Mark.REST:
            slash = path.find("/", at)
            return after.rfind(1, at, len(path) + 1 if slash < 0 else slash + 1)
        case _Mark.FOLDERS:
            folders = (i for i in range(len(path), at, -1) if path[i - 1] == "/" and after[i])
            return next(folders, at)
        case _:
            return after.find(1, at + (mark is _Mark.WORD))
