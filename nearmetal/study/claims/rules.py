# SPDX-License-Identifier: Apache-2.0
"""The rules: arithmetic of numbers in one sentence or two, and wording across sentences."""

from __future__ import annotations

import re
from itertools import combinations
from statistics import median

from nearmetal.study.claims.quantities import WORDS
from nearmetal.study.claims.text import Found, Paragraph, Prose, Sentence
from nearmetal.study.flags import outliers

ROUNDING = 0.06
"""Half a unit of the last digit that percentages usually have, and a little."""

IMPLIED = 0.05
MOST = 0.5
RUN_S = 1.0
"""Times from here on are those of runs, not parts of a message's time."""
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

APART = 1.25
"""Estimates of one thing that differ by more than this factor contradict each other."""

MIN_CELLS = 12

_WITHIN = re.compile(
    r"(?:within|below|under|inside)\b[^%]{0,60}?(\d+(?:\.\d+)?)\s?%", re.IGNORECASE
)
_ALL = re.compile(
    r"\b(?:all (?:the )?(?:other|others|remaining)|all of|every|each of)\b", re.IGNORECASE
)
_ON = re.compile(r"(\d+(?:\.\d+)?)\s?% (?:on|for|in) ([A-Z][\w-]+)")
_BETTER = re.compile(r"(?:improvement|gain|faster|speed-?up)[^%]{0,15}$", re.IGNORECASE)
_EXCEPT = re.compile(r"[Ee]xcept(?: for)? ([^,]+)")
_ADDITIONAL = re.compile(r"(?:additional|extra|further) (\d+(?:\.\d+)?)\s?%")
_GAUGE = re.compile(
    r"(?:delta|difference|overhead|loss)[^.%]{0,40}within (?:this )?(\d+(?:\.\d+)?)\s?%[^.]*accept",
    re.IGNORECASE,
)
_DELTA = re.compile(
    r"(?:delta|difference|overhead|loss)(?:[^.%]|\.(?=\d)){0,60}?(\d+(?:\.\d+)?)\s?%", re.IGNORECASE
)
_ACCEPTABLE = re.compile(r"consider this[^.]*acceptable|is acceptable", re.IGNORECASE)
_BOUND = re.compile(
    r"(?:less than|under|below|at most|no more than|<)\s*(\d+(?:\.\d+)?)\s?%", re.IGNORECASE
)
_QUALIFIED = re.compile(
    r"\b(?:larger than|smaller than|greater than|all but|except|for messages|above|beyond)\b",
    re.IGNORECASE,
)
_EXTRA = re.compile(
    r"(?:extra|additional|overhead|increase|higher)[^.%]{0,60}?\b(latency|bandwidth)\b[^.%]{0,60}?"
    r"(?:order of|about|around|by|of|is)\s+(\d+(?:\.\d+)?)\s?%",
    re.IGNORECASE,
)
_BETWEEN = re.compile(r"(\d+(?:\.\d+)?)\s?%\s*\(([^)]*)\)\s*to\s*(\d+(?:\.\d+)?)\s?%\s*\(([^)]*)\)")
_CHANGE = re.compile(
    r"(?:increases?|loss|slowdown|overhead)[^.%]{0,45}?(\d+(?:\.\d+)?)\s?%"
    r"|(\d+(?:\.\d+)?)\s?%\s+(?:increase|loss|slowdown|more)",
    re.IGNORECASE,
)
_NAME = re.compile(r"[A-Z][A-Za-z]*[A-Z][A-Za-z]*(?: [A-Z]{3,})?|[A-Z][a-z]+ [A-Z]{3,}")
_YEAR = re.compile(r"\b[a-z]+(?:_[a-z]+)+_?((?:19|20)\d\d)\b")
_IDENTIFIER = re.compile(r"(?<![\w$.{-])([a-z]+(?:_[a-z]+)+)(?=:|`)")
_TYPICAL = re.compile(
    r"(?:gap|difference|disparity)\b[^.%]{0,80}?(?:negligible|typically|around|about)[^.%]{0,40}?(\d+(?:\.\d+)?)\s?%",
    re.IGNORECASE,
)
_FABRICS = {"IB": re.compile(r"\bInfiniBand\b|\bIB\b"), "RoCE": re.compile(r"\bRoCE\b")}


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
            said = [one.value for one in sentence.quantities if one.dimension == "time"]
            here = [value * 1e6 for value in said if value < RUN_S]
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
            count = WORDS.get(processors[1]) or int(processors[1])
            due = count * CORES[processors[2]]
            if due != int(total[1]):
                yield line, f"{processors[1]} {processors[2]} have {due} cores, not {total[1]}"
        used = _CORES_NODES.search(text)
        if used and declared:
            each = int(used[1]) / int(used[2])
            if each > declared[0]:
                words = f"line {declared[1]} says {declared[0]}"
                yield line, f"{used[0]} are {each:g} a node, {words}"
            declared = None


def _listed(sentences: tuple[Sentence, ...]) -> list[tuple[str, float, int]]:
    """Return (name, percent, line) of lists such as `8.4% on GROMACS`; gains are left out."""
    return [
        (match[2], float(match[1]), sentence.line)
        for sentence in sentences
        for match in _ON.finditer(sentence.text)
        if not _BETTER.search(sentence.text[: match.start()][-40:])
    ]


def beyond_the_bound(document: Prose) -> Found:
    """All others are within p %, but a value that was listed before is not."""
    for paragraph in document.paragraphs:
        for position, sentence in enumerate(paragraph.sentences):
            limit = _WITHIN.search(sentence.text)
            if limit is None or not _ALL.search(sentence.text):
                continue
            bound = float(limit[1])
            excepted = _EXCEPT.search(sentence.text)
            listed = _listed(paragraph.sentences[:position])
            for name, value, _ in listed:
                if value > bound and not (excepted and name in excepted[1]):
                    yield sentence.line, f"{name} has {value:g} %, which is not within {bound:g} %"
            yield from _additional(sentence, bound, excepted[1] if excepted else "", listed)


def _additional(
    sentence: Sentence, bound: float, excepted: str, listed: list[tuple[str, float, int]]
) -> Found:
    extra = _ADDITIONAL.search(sentence.text)
    values = [value for name, value, _ in listed if name in excepted]
    if extra is None or not values:
        return
    said = float(extra[1])
    if all(abs(value - bound - said) > ROUNDING for value in values):
        most = max(values)
        yield sentence.line, f"{most:g} % is {most - bound:.1f} % above {bound:g} %, not {said:g} %"


def above_the_gauge(document: Prose) -> Found:
    """A gauge limits the acceptable difference, but a larger one is called acceptable."""
    gauge: tuple[float, int] | None = None
    for paragraph in document.paragraphs:
        if match := _GAUGE.search(paragraph.text):
            gauge = (float(match[1]), paragraph.line)
            continue
        if gauge is None or not _ACCEPTABLE.search(paragraph.text):
            continue
        values = [float(m[1]) for m in _DELTA.finditer(paragraph.text)]
        if values and max(values) > gauge[0]:
            accepts = f"line {gauge[1]} accepts up to {gauge[0]:g} %"
            yield paragraph.line, f"{max(values):g} % is called acceptable, {accepts}"


def other_fabric(document: Prose) -> Found:
    """A paragraph about one fabric judges an arm of the other: copied text."""
    for paragraph in document.paragraphs:
        opening = paragraph.sentences[0].text[:40]
        about = [name for name, words in _FABRICS.items() if words.search(opening)]
        if len(about) != 1:
            continue
        (other,) = (name for name in _FABRICS if name not in about)
        for sentence in paragraph.sentences[1:]:
            arm = re.search(rf"\b\w+-{other}\b", sentence.text)
            if arm and not _FABRICS[about[0]].search(sentence.text):
                yield sentence.line, f"{arm[0]} in a paragraph about {about[0]}"


def broken_bound(document: Prose) -> Found:
    """One sentence says less than p % more latency, without a condition; another has more."""
    bounds = []
    for line, match in document.matches(_BOUND):
        behind = match.string[match.end() : match.end() + 40]
        quantity = re.search(r"\b(latency|bandwidth)\b", behind)
        if quantity and "increase" in behind and not _QUALIFIED.search(match.string):
            bounds.append((float(match[1]), quantity[1], line))
    for here, match in document.matches(_EXTRA):
        value = float(match[2])
        for bound, bounded, line in bounds:
            if bounded == match[1].lower() and value > bound and here != line:
                has = f"line {here} has {value:g} %"
                yield line, f"less than {bound:g} % more {bounded}, but {has}"


def _changes(paragraphs: list[Paragraph], name: str, without: int) -> list[tuple[float, int]]:
    return [
        (float(match[1] or match[2]), paragraph.line)
        for paragraph in paragraphs
        if name in paragraph.text and paragraph.line != without
        for match in _CHANGE.finditer(paragraph.text)
    ]


def concluded(document: Prose) -> Found:
    """The range of a conclusion is far from the measured values of the same names."""
    for line, match in document.matches(_BETWEEN):
        for said, words in ((float(match[1]), match[2]), (float(match[3]), match[4])):
            for name in _NAME.findall(words):
                seen = _changes(document.paragraphs, name, line)
                near = [v for v, _ in seen if 1 / APART <= v / said <= APART] if said else []
                if seen and not near:
                    values = ", ".join(f"{v:g} % (line {n})" for v, n in seen[:3])
                    yield line, f"{said:g} % for {name}, measured were {values}"


def years(document: Prose) -> Found:
    """One name with two years."""
    seen: dict[str, tuple[str, int]] = {}
    for number, line in enumerate(document.lines, 1):
        for match in _YEAR.finditer(line):
            stem = match[0].replace(match[1], "")
            before = seen.setdefault(stem, (match[1], number))
            if before[0] != match[1]:
                yield number, f"{match[0]}, but {before[0]} in line {before[1]}"


def near_names(document: Prose) -> Found:
    """Two names of parameters that differ by one letter."""
    seen: dict[str, int] = {}
    for number, line in enumerate(document.lines, 1):
        for match in _IDENTIFIER.finditer(line):
            seen.setdefault(match[1], number)
    for first, second in combinations(seen, 2):
        plural = {first, second} == {first.rstrip("s"), first.rstrip("s") + "s"}
        if plural:
            continue
        if abs(len(first) - len(second)) == 1 and _one_letter(*sorted((first, second), key=len)):
            yield seen[second], f"{second!r}, but {first!r} in line {seen[first]}"


def _one_letter(short: str, long: str) -> bool:
    return any(long[:i] + long[i + 1 :] == short for i in range(len(long)))


def typical(document: Prose) -> Found:
    """A difference is called typical, but a cell of the table in the text is an outlier."""
    claims = [(float(match[1]), line) for line, match in document.matches(_TYPICAL)]
    for table in document.tables:
        if not claims or len(table.cells) < MIN_CELLS:
            continue
        said, line = claims[0]
        values = [cell.value for cell in table.cells]
        at = _farthest(values)
        if at in outliers(values) and abs(values[at]) > 3 * said:
            cell = table.cells[at]
            words = f"is an outlier of its own table; line {line} says about {said:g} %"
            yield cell.line, f"{cell.value:g} % ({cell.column}, {cell.row}) {words}"


def _farthest(values: list[float]) -> int:
    """Return the position of the value farthest from the median."""
    middle = median(values)
    return max(range(len(values)), key=lambda position: abs(values[position] - middle))


RULES = (
    ("range", empty_range),
    ("share", more_than),
    ("part", most_of),
    ("implied", implied),
    ("cores", cores),
    ("bound", beyond_the_bound),
    ("gauge", above_the_gauge),
    ("copied", other_fabric),
    ("bound", broken_bound),
    ("conclusion", concluded),
    ("version", years),
    ("name", near_names),
    ("outlier", typical),
)
