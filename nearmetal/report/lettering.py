# SPDX-License-Identifier: Apache-2.0
"""The room that text takes in a chart, where no browser breaks lines. Pure.

The font of a reader is not known. Widths are those of DejaVu Sans Bold, which is wider than the
usual system fonts.
"""

from __future__ import annotations

import re
import unicodedata

_NARROW = frozenset("ijlIftr.,:;|!'`()[]{} -/\\")
_BROAD = frozenset("mwMW%@&")
_EM = {"narrow": 0.48, "usual": 0.72, "capital": 0.85, "broad": 1.1}

_BREAKS = re.compile(r"(?<=[\s_./,:-])(?=[^\s_./,:-])")
"""Where a name may be broken: after a space, or after a sign between words."""


def _em(character: str) -> float:
    """Return the width of a character in units of the font size."""
    if character in _NARROW:
        return _EM["narrow"]
    if character in _BROAD or unicodedata.east_asian_width(character) in "WF":
        return _EM["broad"]
    return _EM["capital" if character.isupper() or ord(character) > 0x2000 else "usual"]  # noqa: PLR2004 - signs


def width(words: str, size: float) -> float:
    """Return an upper estimate of the width of a text of this font size, in the same unit."""
    return size * sum(map(_em, words))


def wrapped(words: str, room: float, size: float) -> list[str]:
    """Return a text as lines that fit into `room`; a word that does not fit is cut into pieces."""
    lines = [""]
    for part in _pieces(words, room, size):
        if lines[-1] and width((lines[-1] + part).rstrip(), size) > room:
            lines.append("")
        lines[-1] += part
    return [line.strip() for line in lines]


def _pieces(words: str, room: float, size: float) -> list[str]:
    found = []
    for word in _BREAKS.split(words):
        piece = ""
        for character in word:
            if piece and width((piece + character).rstrip(), size) > room:
                found.append(piece)
                piece = ""
            piece += character
        found.append(piece)
    return found
