# SPDX-License-Identifier: Apache-2.0
"""The quantities of a sentence: value, dimension, what is counted, and the digits as printed."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

WORDS = {
    "one": 1,
    "two": 2,
    "three": 3,
    "four": 4,
    "five": 5,
    "six": 6,
    "seven": 7,
    "eight": 8,
    "nine": 9,
    "ten": 10,
    "eleven": 11,
    "twelve": 12,
    "sixteen": 16,
    "twenty": 20,
    "a pair of": 2,
    "dual": 2,
}
FACTORS = {
    "twice": 2,
    "double": 2,
    "doubled": 2,
    "doubles": 2,
    "triple": 3,
    "tripled": 3,
    "quadrupled": 4,
    "twofold": 2,
    "threefold": 3,
    "fourfold": 4,
    "fivefold": 5,
    "sixfold": 6,
    "eightfold": 8,
    "tenfold": 10,
}
WORD_STEP = 0.03
"""Share by which a factor in words is rounded."""
_SCALES = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_TIMES = {
    "ns": 1e-9,
    "nanoseconds": 1e-9,
    "\N{MICRO SIGN}s": 1e-6,
    "\N{GREEK SMALL LETTER MU}s": 1e-6,
    "us": 1e-6,
    "microseconds": 1e-6,
    "ms": 1e-3,
    "milliseconds": 1e-3,
    "s": 1.0,
    "seconds": 1.0,
    "min": 60.0,
    "minutes": 60.0,
    "h": 3600.0,
    "hours": 3600.0,
}
NOUNS = (
    "core|node|rank|process|run|launch|processor|CPU|machine|server|VM|vCPU|socket|thread|host|card"
    "|blade|system|measurement|case|device|adapter|guest|slot|rack|switch|user|job|sample|repetition|container|benchmark|transport|application|program|test"
    "|GPU|port|DIMM|instance|trial"
)
CONTAINERS = (
    *("node", "processor", "cpu", "machine", "server", "vm", "socket", "host", "container"),
    *("blade", "system", "guest", "rack", "switch", "dimm", "instance"),
)
"""Nouns that hold other counted things."""

SHORT_NUMBER = r"\d{1,9}(?:,\d{3})*(?:\.\d{1,6})?"
"""A number of few digits: a long row of digits takes no longer."""

_NUMBER = r"\d{1,3}(?:,\d{3})+|\d+(?:\.\d+)?"
_UNIT = (
    r"(?P<rate>(?P<rs>[kKMGT])(?P<ru>B/s|Bps|bit/s|b/s|bps|bE\b|bits/s))"
    r"|(?P<size>(?P<ss>[kKMGT]?)(?P<si>i?)(?:B|[bB]ytes?)\b(?!/)|(?P<sw>kilo|mega|giga|tera)bytes)"
    r"|(?P<other>ns/day|(?:T|G)FLOP/?s?)"
    r"|(?P<time>" + "|".join(sorted(_TIMES, key=len, reverse=True)) + r")\b"
    r"|(?P<percent>%|percent\b)|(?P<factor>[xX]\b|\N{MULTIPLICATION SIGN}|times\b|-fold\b)"
    r"|(?P<million>million)"
)
_NOUN = re.compile(rf"(?:[A-Za-z][\w-]*\s+){{0,2}}?(?P<noun>{NOUNS})(?:s|es)?\b", re.IGNORECASE)
_FAR_NOUN = re.compile(rf"(?:[\w-]+\s+){{0,4}}?(?P<noun>{NOUNS})(?:s|es)?\b", re.IGNORECASE)
_FOUND = re.compile(
    rf"(?<![\w.,-])(?P<number>{_NUMBER})(?:[\s-]?(?:{_UNIT}))?"
    rf"|\b(?P<word>(?i:{'|'.join(WORDS)}))\b(?P<times>\s+times\b)?"
    rf"|\b(?P<fold>(?i:{'|'.join(FACTORS)}))\b",
)
_BINARY = {"k": 1, "K": 1, "M": 2, "G": 3, "T": 4}


@dataclass(frozen=True)
class Stated:
    """One number with its dimension: time, rate, size, %, x, a counted noun, or empty."""

    value: float
    dimension: str
    half: float
    """Half a unit of the last printed digit."""
    start: int
    end: int
    text: str
    line_rate: bool = False

    @property
    def low(self) -> float:
        """The smallest value that is printed so."""
        return self.value - self.half

    @property
    def high(self) -> float:
        """The largest value that is printed so."""
        return self.value + self.half


def _digits(number: str) -> float:
    return 0.5 * 10.0 ** -len(number.partition(".")[2])


def _scaled(match: re.Match[str]) -> tuple[str, float]:
    """Return the dimension and the scale of a unit."""
    if match["rate"]:
        return "rate", _SCALES[match["rs"]] * (8.0 if match["ru"] in ("B/s", "Bps") else 1.0)
    if match["size"]:
        word = match["sw"]
        prefix = word[0].upper() if word else match["ss"]
        binary = match["si"] and prefix
        return "size", 1024.0 ** _BINARY[prefix] if binary else _SCALES[prefix]
    if match["time"]:
        return "time", _TIMES[match["time"]]
    if match["million"]:
        return "million", 1e6
    if match["other"]:
        return match["other"], 1.0
    return ("%", 1.0) if match["percent"] else ("x", 1.0) if match["factor"] else ("", 1.0)


def _counted(text: str, at: int, pattern: re.Pattern[str]) -> str:
    noun = pattern.match(text, at)
    return noun["noun"].lower() if noun else ""


def _one(text: str, match: re.Match[str]) -> Stated:
    here = (match.start(), match.end(), match[0])
    if match["fold"]:
        times = FACTORS[match["fold"].lower()]
        return Stated(times, "x", WORD_STEP * times, *here)
    if match["word"]:
        value = float(WORDS[match["word"].lower()])
        if match["times"]:
            return Stated(value, "x", 0.5 if value > 2 else 0.0, *here)  # noqa: PLR2004 - twice
        at = match.end() + 1
        noun = _counted(text, at, _FAR_NOUN)
        return Stated(value, noun, 0.0, *here)
    dimension, scale = _scaled(match)
    number = match["number"].replace(",", "")
    noun = "" if dimension else _counted(text, match.end() + 1, _NOUN)
    half = 0.0 if noun else _digits(number) * scale
    line_rate = bool(match["ru"]) and match["ru"].endswith("bE")
    return Stated(float(number) * scale, dimension or noun, half, *here, line_rate)


def _is_a_name(text: str, one: Stated) -> bool:
    """Return whether a number belongs to a name: Gold 6252, Figure 5."""
    before = _NAME.search(text[: one.start])
    if before is None or not one.text.isdigit():
        return False
    return before.start() > 0 or before[1] in _LABELS


_NAME = re.compile(r"\b([A-Z][\w-]*)\s$")
_RATIO = re.compile(
    r"\b(?:speed-?up|factor)\s+(?:of|by)\s+(?:about\s+|almost\s+|nearly\s+)?$", re.IGNORECASE
)
_LABELS = ("Figure", "Fig", "Table", "Section", "Chapter", "Part", "Step", "Line", "Version")


def _compound(text: str, found: list[Stated]) -> list[Stated]:
    """Return the quantities with `2 h 30 min` as one time."""
    joined: list[Stated] = []
    for one in found:
        last = joined[-1] if joined else one
        both = last.dimension == one.dimension == "time" and last is not one
        if both and text[last.end : one.start] == " " and one.value < last.value:
            text_of_both = text[last.start : one.end]
            joined[-1] = replace(
                one, value=last.value + one.value, start=last.start, text=text_of_both
            )
        else:
            joined.append(one)
    return joined


def quantities(text: str) -> list[Stated]:
    """Return the quantities of a sentence in order; `1.0 to 1.3 µs` has the unit twice."""
    all_of_it = [_one(text, match) for match in _FOUND.finditer(text)]
    found = _compound(text, [one for one in all_of_it if not _is_a_name(text, one)])
    for at, one in enumerate(found):
        if not one.dimension and _RATIO.search(text[: one.start]):
            found[at] = replace(one, dimension="x")
    for at in range(len(found) - 2, -1, -1):
        here, after = found[at], found[at + 1]
        between = text[here.end : after.start]
        if not here.dimension and re.fullmatch(
            r"\s*(?:to|and|or|->?|\N{EN DASH}|\N{RIGHTWARDS ARROW})\s*", between
        ):
            number = after.text.strip()
            printed = float(re.sub(r"[^\d.]", "", number.split()[0]) or 1)
            scale = after.value / printed if printed else 0.0
            if scale and after.dimension and not after.text.isalpha() and here.text[0].isdigit():
                found[at] = Stated(
                    here.value * scale,
                    after.dimension,
                    here.half * scale if after.half else 0.0,
                    here.start,
                    here.end,
                    here.text,
                )
    return found
