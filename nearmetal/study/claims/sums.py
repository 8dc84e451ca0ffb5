# SPDX-License-Identifier: Apache-2.0
"""Rules of arithmetic: differences, remainders, means, worst values, shortest times.

Each rule is quiet if the sentence has numbers that it does not understand.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean, median

from nearmetal.study.claims.pairs import MEASURES, ROUNDED, SLACK, Said, ends_of, pair_of
from nearmetal.study.claims.quantities import SHORT_NUMBER, Stated
from nearmetal.study.claims.wholes import line_of
from nearmetal.study.claims.wording import CACHED, MOST, NEGATED, SOMETIMES

_MORE = r"more|higher|longer|slower|larger|greater|above|over|extra|additional"
_LESS = r"less|lower|shorter|faster|smaller|fewer|below|under|earlier"
_CHANGE_BY = re.compile(
    r"\b(?:by|i\.e\.,?|that is,?|difference of|rise of|increase of)\s+(?:about )?$"
)
_CHANGE = re.compile(rf"^\s*(?:{_MORE}|{_LESS})\b(?!\s+(?:\w+\s+)?than)")
_GAP = re.compile(
    rf"\s+(?P<word>{_MORE}|{_LESS})\s+(?:than\s+)?(?:the |its |those? |that of )?(?:than |the )?(?:[A-Z][\w-]+ (?:with|at|of|needs|takes) )?",
    re.IGNORECASE,
)


def difference(text: str, found: Sequence[Stated]) -> Said:
    """From A to B is B - A, and A is D below B if B - A is D."""
    ends = ends_of(text, found) or _grown(text, found)
    if ends:
        one, two = ends
        rest = [q for q in found if q.dimension == one.dimension and q not in ends]
        true, room = abs(two.value - one.value), one.half + two.half
        if len(rest) == 1 and rest[0].start > two.end:
            said = rest[0]
            near = text[two.end : said.start]
            meant = _CHANGE_BY.search(text[: said.start]) or _CHANGE.match(text[said.end :])
            by = bool(meant) and len(near) < NEAR and not re.search(r"\bto\s*$", near)
            if by and abs(said.value - true) > room + said.half + 1e-3 * true:
                yield f"{one.text} to {two.text} is not {said.text}"
        return
    for one, gap, two in zip(found, found[1:], found[2:], strict=False):
        match = _GAP.fullmatch(text[gap.end : two.start])
        alike = one.dimension == gap.dimension == two.dimension and one.dimension in MEASURES
        count = sum(q.dimension == one.dimension for q in found)
        if not match or not alike or count > 3 or len(text[one.end : gap.start]) > 3:  # noqa: PLR2004
            continue
        room = one.half + gap.half + two.half
        if abs(abs(two.value - one.value) - gap.value) > room + 1e-3 * gap.value:
            yield f"{one.text} is not {gap.text} {match['word']} {two.text}"


NEAR = 40
"""Characters between a change and its amount."""

_GROWN = re.compile(
    r"\b(?:gr[eo]w\w*|ris\w+|rose|fell|falls?|drop\w*|increas\w+|decreas\w+|chang\w+)\b"
)


def _grown(text: str, found: Sequence[Stated]) -> tuple[Stated, Stated] | None:
    """Return A and B of `A to B is`."""
    for one, two in pairwise(found):
        to = re.fullmatch(r"\s*(?:to|\N{RIGHTWARDS ARROW}|->)\s*", text[one.end : two.start])
        alike = one.dimension == two.dimension and one.dimension in MEASURES
        if (
            to
            and alike
            and (_GROWN.search(text[: one.start]) or re.match(r"\s+is\b", text[two.end :]))
        ):
            return one, two
    return None


_LEAVES = re.compile(r"\b(?:leav(?:es|ing)|remain(?:s|ing)?|left)\s+(?:with\s+)?(?:only\s+)?$")
_TAKEN = re.compile(
    r"\b(?:discard|remov|exclud|reserv|drop|omit|fail|lost|los|keep|kept|set aside|reject|skip)\w*\b"
)

_THING = re.compile(r" (?:(?:more|usable|valid|good|spare|free) )?(?P<word>[A-Za-z]{3,})")
_NO_THING = re.compile(
    r"for|that|which|with|from|are|were|can|usable|valid|good|free|spare|active|available|left|remaining"
    r"|idle|and|behind"
)
_REPEATED = (*("launch", "run", "sample", "measurement", "repetition", "trial", "case"), "test")
"""Nouns for one launch of a program and its result."""


def _other_thing(text: str, one: Stated, rest: Stated) -> bool:
    """Return whether a rest is of other things than those that were counted."""
    if rest.dimension and one.dimension not in ("", "x"):
        return rest.dimension != one.dimension and not (
            rest.dimension in _REPEATED and one.dimension in _REPEATED
        )
    match = _THING.match(text[rest.end :])
    thing = match["word"] if match and not _NO_THING.fullmatch(match["word"]) else ""
    return (
        bool(thing)
        and thing.rstrip("s") not in text[one.end : rest.start]
        and (rest.dimension not in _REPEATED)
    )


def remainder(text: str, found: Sequence[Stated]) -> Said:
    """N less M leaves N - M."""
    if len(found) != 3 or not _TAKEN.search(text):  # noqa: PLR2004 - N, M and the rest
        return
    one, two, rest = found
    if _other_thing(text, one, rest):
        return
    plain = all(q.dimension not in ("%", *MEASURES) and q.value == int(q.value) for q in found)
    if plain and _LEAVES.search(text[: rest.start]) and "each" not in text and "per " not in text:
        true = abs(one.value - two.value)
        if rest.value != true:
            yield f"{one.text} without {two.text} leave {true:g}, not {rest.text}"


_LISTED = re.compile(r"\s*(?:,|,?\s*and|,?\s*or|/|;)\s*")
_MEAN = re.compile(r"\b(?:mean|averages?|averaged|averaging|average of|median)\b", re.IGNORECASE)
_NO_MEAN = re.compile(
    r"\b(?:geometric|harmonic|weighted|trimmed|such as|including|e\.g\.|for example|first|last|deviation|over|across|of all|other|another|overall|per)\b",
    re.IGNORECASE,
)

_OF_LIST = re.compile(r"\b(?:(?:mean|median|average) of (?:the )?|averaging )$", re.IGNORECASE)
_PLACE = re.compile(
    r"^,? (?:on|in|at|for|with|under|inside|within|when|after) (?!average\b|total\b)"
)
"""After a mean of its own place, such as `in the VM`: the list may be of another one."""


def _list_of(text: str, found: Sequence[Stated]) -> list[Stated]:
    """Return the longest list of numbers, the unit of the last one given to all."""
    best: list[Stated] = []
    here: list[Stated] = []
    for one in found:
        ended = len(here) > 1 and "and" in text[here[-2].end : here[-1].start]
        linked = bool(here) and not ended and _LISTED.fullmatch(text[here[-1].end : one.start])
        here = [*here, one] if linked else [one]
        best = max(best, here, key=len)
    kinds = {one.dimension for one in best[:-1]} - {""}
    return best if len(best) > 2 and kinds <= {best[-1].dimension} else []  # noqa: PLR2004


def mean(text: str, found: Sequence[Stated]) -> Said:
    """The mean or the median of a list is that of its numbers."""
    values = _list_of(text, found)
    others = [one for one in found if one not in values and one.dimension not in ("", "x")]
    words = {word.lower() for word in _MEAN.findall(text)}
    if not values or not words or _NO_MEAN.search(text):
        return
    last = values[-1]
    others = [one for one in others if one.dimension == last.dimension] or [
        one for one in found if one not in values and one.start > last.end and not last.dimension
    ]
    if len(others) != 1 or any(
        one.dimension in ("", last.dimension)
        and one not in (*values, *others)
        and one.start > last.end
        for one in found
    ):
        return
    scale = last.value / (_first(last) or 1.0) or 1.0
    shown = [one.value * (1.0 if one.dimension else scale) for one in values]
    said = others[0]
    true = median(shown) if words == {"median"} else fmean(shown)
    before = text[: values[0].start]
    if _PLACE.match(text[said.end :]) and not _OF_LIST.search(before):
        return
    about = _MEAN.search(before) or _MEAN.search(text[last.end : said.start])
    about = about or _MEAN.search(text[said.end : said.end + 20])
    if about and abs(said.value - true) > said.half + ROUNDED * last.half:
        name = "median" if words == {"median"} else "mean"
        yield f"the {name} of {values[0].text} to {last.text} is {true / scale:.4g}, not {said.text}"


def _first(one: Stated) -> float:
    """Return the number of a quantity as printed; 0: it is a word."""
    number = re.match(SHORT_NUMBER, one.text)
    return float(number[0].replace(",", "")) if number else 0.0


_WORST = re.compile(
    r"\b(?:worst|largest|highest|maximum|biggest|peak)\b(?: \w+){0,2}?,?(?: \w+){0,2} $"
    r"|\b(?:maximum|peak|worst case) of $|\bpeak(?:s|ing|ed) at $",
    re.IGNORECASE,
)
_LIMIT = re.compile(r"\b(?:never|not|no\w*)\b[^.;,]{0,40}\bexceed\w*\s+$", re.IGNORECASE)
_SOME = re.compile(
    r"\b(?:except|apart from|but|however|only|otherwise|average|mean|median|typical\w*|mostly|most|usually"
    r"|often|while|whereas|although|though|if|remaining|others?|without|in \d+ of|for \d+ of|possible|theoretical)\b",
    re.IGNORECASE,
)


def worst(text: str, found: Sequence[Stated]) -> Said:
    """The worst value is within the limit that the sentence states."""
    if _SOME.search(text):
        return
    for limit in found:
        before = text[: limit.start]
        kind = limit.dimension in ("%", "time")
        if not kind or not (MOST.search(before) or _LIMIT.search(before)):
            continue
        if SOMETIMES.match(text[limit.end :]):
            continue
        for one in found:
            later = one.dimension == limit.dimension and one.start > limit.end
            called = later and _WORST.search(text[limit.end : one.start])
            if called and one.low > limit.value and not MOST.search(text[: one.start]):
                yield f"the worst, {one.text}, is above the limit of {limit.text}"


_TAKES = re.compile(
    r"\b(?:takes?|took|lasts?|lasted|needs?|needed|requires?|required|crosse[sd]|cross|arrives?|arrived"
    r"|transfer\w*|mov\w+|sen[dt]\w*|cop\w+|deliver\w*|complet\w*)\b",
    re.IGNORECASE,
)
_NOT_ALL = re.compile(
    r"\b(?:more|less|faster|slower|extra|additional|saves?|saved|overhead|downtime|pause|compress\w*|per"
    r"|shared|local|loopback|intra|deduplicat\w*|first|start\w*|setup|by|difference|each)\b",
    re.IGNORECASE,
)


def too_fast(text: str, found: Sequence[Stated]) -> Said:
    """No transfer takes less time than its size at the rate of its line."""
    kinds = [[q for q in found if q.dimension == kind] for kind in ("size", "time", "rate")]
    if any(len(kind) != 1 for kind in kinds) or NEGATED.search(text):
        return
    if _NOT_ALL.search(text) or CACHED.search(text):
        return
    (size,), (time,), (rate,) = kinds
    if line_of(text, found) is not rate or not _TAKES.search(text):
        return
    least = size.low * 8 / rate.high
    if time.high < least * (1 - SLACK):
        yield f"{size.text} at {rate.text} take {least:.3g} s at least, not {time.text}"


_WITHIN = re.compile(r"\bwithin $")
_CHANGES = re.compile(
    r"\b(?:ris|rose|gr[eo]w|increas|climb|fall|fell|drop|decreas|declin|then|later)\w*\b"
)
"""The second number is of another place than the first."""
_OF_IT = re.compile(r"^ of (?:the |its |their )?[^.;,\d]{0,40}$")


def within(text: str, found: Sequence[Stated]) -> Said:
    """What stays within P % of A is no farther from it."""
    pair = pair_of(found)
    shares = [one for one in found if one.dimension == "%"]
    if pair is None or len(shares) != 1 or NEGATED.search(text):
        return
    one, two = pair
    said = shares[0]
    if said.start > one.end:
        one, two = two, one
    sized = any(q.dimension == "size" and q.start > one.end for q in found)
    if sized or _CHANGES.search(text[one.end : two.start]):
        return
    reference = _OF_IT.match(text[said.end : one.start]) if said.end <= one.start else None
    if reference and _WITHIN.search(text[: said.start]) and one.dimension != "size":
        away = 100 * (abs(two.value - one.value) - one.half - two.half) / one.value
        if away > said.high:
            yield f"{two.text} is not within {said.text} of {one.text}"


_PER = re.compile(r"^ (?:per|for each|for every|an?) (?P<what>[a-z]{2,12})\b")
_FOR = re.compile(r"^ (?:for|over|on|across|with) (?:the |all )?$")


def scaled(text: str, found: Sequence[Stated]) -> Said:
    """A per thing is N x A for N things."""
    for one, two, number in zip(found, found[1:], found[2:], strict=False):
        match = _PER.match(text[one.end :])
        alike = one.dimension == two.dimension and one.dimension in ("time", "rate", "size")
        others = sum(q.dimension == one.dimension for q in found)
        if not match or not alike or others != 2 or not _FOR.match(text[two.end : number.start]):  # noqa: PLR2004
            continue
        things = re.match(rf" {match['what']}s\b", text[number.end :])
        true, room = one.value * number.value, one.half * number.value * ROUNDED + two.half
        if things and number.value > 1 and abs(two.value - true) > room:
            yield f"{number.text} x {one.text} are not {two.text}"
