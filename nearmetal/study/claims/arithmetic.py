# SPDX-License-Identifier: Apache-2.0
"""Rules of arithmetic: numbers in one sentence, or in two, that cannot all be right."""

from __future__ import annotations

import re

from nearmetal.study.claims.text import Found, Prose

ROUNDING = 0.06
"""Half a unit of the last digit that percentages usually have, and a little."""

IMPLIED = 0.05
MOST = 0.5
TIMES = {
    "ns": 1e-3,
    "nanosecond": 1e-3,
    "nanoseconds": 1e-3,
    "µs": 1.0,
    "\u03bcs": 1.0,
    "us": 1.0,
    "microsecond": 1.0,
    "microseconds": 1.0,
    "ms": 1e3,
    "milliseconds": 1e3,
}
CORES = {
    "Gold 6240": 18,
    "Gold 6248R": 24,
    "Gold 6248": 20,
    "Gold 6230": 20,
    "Platinum 8358": 32,
    "Platinum 8280": 28,
    "E5-2660": 8,
    "E5-2670": 8,
    "E5-2680v2": 10,
    "E5-2680 v4": 14,
    "EPYC 7742": 64,
    "EPYC 7763": 64,
}
"""Cores by processor, from the makers' data sheets."""

_RANGE = re.compile(
    r"(?<![\d.])(\d+(?:\.\d+)?)\s?(%|[xX]\b|\N{MULTIPLICATION SIGN})\s?(?:to|-)\s?(\d+(?:\.\d+)?)\s?\2"
)
_MORE = re.compile(
    r"(\d+)\s+([A-Za-z]+)\b[^.%]{0,60}?(\d+(?:\.\d+)?)\s?%\s+(more|fewer|less)\s+\w+\s+than\s+(\d+)\s+\2"
)
_PARENTHESES = re.compile(
    r"\((\d+) ([A-Za-z]+)\).{0,80}?\((\d+) \2\).{0,120}?(\d+(?:\.\d+)?)\s?% (decrease|increase)"
)
_TIME = re.compile(r"(\d+(?:\.\d+)?)\s?(" + "|".join(sorted(TIMES, key=len, reverse=True)) + r")\b")
_RESPECTIVELY = re.compile(
    r"(\d+(?:\.\d+)?)\s?% and (\d+(?:\.\d+)?)\s?% (higher|more|larger)\b(.*?)\bthan (?:the )?(\S+) and (\S+?),?"
    r"(?: .*?)?\brespectively"
)
_PROCESSORS = re.compile(
    r"\b(two|2|dual|four|4)\b[^.]{0,40}?\b("
    + "|".join(re.escape(name) for name in sorted(CORES, key=len, reverse=True))
    + r")\b"
)
_TOTAL = re.compile(r"total of (\d+) cores")
_CORES_NODES = re.compile(r"(\d+) cores \((\d+) nodes\)")
_COUNTS = {"two": 2, "2": 2, "dual": 2, "four": 4, "4": 4}


def empty_range(document: Prose) -> Found:
    """A range with equal ends."""
    for line, match in document.matches(_RANGE):
        if float(match[1]) == float(match[3]):
            yield line, f"{match[0]!r} has one end only"


def more_than(document: Prose) -> Found:
    """N is p % more than M, or fewer: the share depends on the base."""
    for line, match in document.matches(_MORE):
        first, said, word, second = int(match[1]), float(match[3]), match[4], int(match[5])
        true = abs(first / second - 1) * 100
        if abs(true - said) > ROUNDING:
            yield line, f"{first} is {true:.1f} % {word} than {second}, not {said:g} %"
    for line, match in document.matches(_PARENTHESES):
        first, second, said = int(match[1]), int(match[3]), float(match[4])
        true = abs(second / first - 1) * 100
        if abs(true - said) > ROUNDING:
            yield line, f"from {first} to {second} is {true:.1f} %, not {said:g} %"


def most_of(document: Prose) -> Found:
    """A part that is called "most of" a whole, but is not."""
    for paragraph in document.paragraphs:
        times: list[float] = []
        for sentence in paragraph.sentences:
            here = [float(m[1]) * TIMES[m[2]] for m in _TIME.finditer(sentence.text)]
            if "most of" in sentence.text and here and times and here[0] < MOST * max(times):
                share = f"{here[0] / max(times):.1%} of {max(times):g} µs"
                yield sentence.line, f"{here[0]:g} µs are {share}, not most of them"
            times += here


def implied(document: Prose) -> Found:
    """A is x % above B and y % above C: the text does not give the ratio of B and C."""
    for line, match in document.matches(_RESPECTIVELY):
        first, second = float(match[1]), float(match[2])
        ratio = (1 + first / 100) / (1 + second / 100) - 1
        if abs(ratio) > IMPLIED:
            above, below = (match[6], match[5]) if ratio > 0 else (match[5], match[6])
            words = f"{above} is {abs(ratio):.0%} above {below}"
            yield line, f"{first:g} % and {second:g} % mean that {words}"


def cores(document: Prose) -> Found:
    """More cores than the processors or the node have."""
    declared: tuple[int, int] | None = None
    for line, text in ((sentence.line, sentence.text) for sentence in document.sentences):
        total, processors = _TOTAL.search(text), _PROCESSORS.search(text)
        if total:
            declared = (int(total[1]), line)
        if total and processors:
            due = _COUNTS[processors[1]] * CORES[processors[2]]
            if due != int(total[1]):
                yield line, f"{processors[1]} {processors[2]} have {due} cores, not {total[1]}"
        used = _CORES_NODES.search(text)
        if used and declared:
            each = int(used[1]) / int(used[2])
            if each > declared[0]:
                words = f"line {declared[1]} says {declared[0]}"
                yield line, f"{used[0]} are {each:g} a node, {words}"
            declared = None


RULES = (
    ("range", empty_range),
    ("share", more_than),
    ("part", most_of),
    ("implied", implied),
    ("cores", cores),
)
