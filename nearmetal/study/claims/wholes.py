# SPDX-License-Identifier: Apache-2.0
"""Rules over a whole and its parts: totals, shares, limits, rates against lines."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import combinations, pairwise
from math import prod

from nearmetal.study.claims.pairs import MEASURES, VAGUE, Said, differs
from nearmetal.study.claims.quantities import CONTAINERS, WORDS, Stated
from nearmetal.study.claims.wording import CACHED, MOST, OPERATOR_AFTER, OPERATOR_BEFORE

_EACH = re.compile(
    r"^[^.;:]{0,24}?\b(?:each|apiece|per\s+(?P<per>\w+?)s?\b)|^\s*/\s*(?P<of>\w+)"
    rf"|^\s\w+s an? (?P<a>{'|'.join(CONTAINERS)})\b"
)
_HAS_EACH = re.compile(
    r"^[^.;:,\d]{0,24}(?:, each (?:of (?:which|them) )?"
    r"(?:has|had|holds?|hosts?|contain\w*|carr\w+|offer\w*|provid\w+)"
    r"|,? each (?:of (?:which|them) )?(?:with|having|hosting|containing|of|equipped))\b"
)
_OF_THEM = re.compile(rf"\b(?:{'|'.join(CONTAINERS)})s? of $", re.IGNORECASE)
_EVERY_HAS = re.compile(
    rf"\b(?:each|every)\s(?:[\w-]+\s){{0,3}}?(?:{'|'.join(CONTAINERS)})\s"
    r"(?:has|had|hosts|holds|carries|contains|offers|provides|runs|with)\s$",
    re.IGNORECASE,
)
_OF_OR_WITH = re.compile(r"\s\w+ (?:of|with) ")
_PART = re.compile(
    r"\b(?:leav\w+|left|remain\w*|reserv\w+|idle|available|free|only|share)\b", re.IGNORECASE
)
_EACH_OF = re.compile(r"\b[Ee](?:ach|very)(?:\s+one)? of (?:the |our )?$")
_ALL = re.compile(r"\b(?:total|in all|altogether|overall|combined|in sum)\b", re.IGNORECASE)
_SUM = re.compile(r"\b(?:total(?:s|ling)?|in all)(?:\s(?:of|is))?[:,]?\s+$", re.IGNORECASE)
NAME = 24
"""Characters of a name between a number and what each of its things has."""

_ONE_PER_CORE = re.compile(r"\bone\b[^.]{0,20}\b(?:per|on (?:every|each)) core")
_LIKE_CORES = ("core", "process", "rank", "thread", "vcpu")


def _items(text: str, found: Sequence[Stated]) -> list[Stated]:
    """Return what each of some things has: the item of `N things with M each`."""
    each: list[Stated] = []
    for at, one in enumerate(found):
        after = found[at + 1].start if at + 1 < len(found) else len(text)
        if one.dimension in ("", "%", "x", "time", "rate") or one.value == 1:
            continue
        if _HAS_EACH.match(text[one.end :]):
            continue
        of_each = not each and at and _EACH_OF.search(text[: found[at - 1].start])
        if _EACH.match(text[one.end : after]) or of_each:
            each = [one]
    if each or _PART.search(text):
        return each
    return [
        one
        for one in found
        if one.dimension not in ("", "%", "x", "time", "rate", "size", *CONTAINERS)
        and (
            text[one.end : one.end + 1] == "-"
            or _OF_THEM.search(text[: one.start])
            or _EVERY_HAS.search(text[: one.start])
        )
    ]


def total(text: str, found: Sequence[Stated]) -> Said:
    """N things with M each are N x M."""
    for item in _items(text, found):
        yield from _total(text, found, item)


def _total(text: str, found: Sequence[Stated], item: Stated) -> Said:
    alike = _LIKE_CORES if item.dimension == "core" and _ONE_PER_CORE.search(text) else ()
    others = [one for one in found if one is not item]
    holders = [
        one
        for one in others
        if one.dimension in CONTAINERS and one.dimension != item.dimension and one.value != 1
    ]
    if not holders:
        holders = [one for one in others if not one.dimension and 0 < item.start - one.end < NAME]
    sums = [
        one
        for one in others
        if one not in holders
        and (
            one.dimension in (item.dimension, *alike)
            or (not one.dimension and _SUM.search(text[: one.start]))
        )
    ]
    if item.dimension == "size" and not _ALL.search(text):
        return
    if not 1 <= len(holders) <= MAX_HOLDERS or len(sums) != 1:
        return
    values = [one.value for one in holders]
    # Numbers of unknown things may be factors too, as in "8 of 20 nodes".
    free = [one.value for one in others if not one.dimension and one not in (*holders, sums[0])]
    factors = [prod(some) for some in _subsets([*values, *free[:MAX_HOLDERS]])]
    if sums[0].value < item.value:
        # The number with "each" may be the total of one holder.
        agree = any(sums[0].value * factor == item.value for factor in factors)
    else:
        agree = not all(
            differs(text, sums[0], one, one) for one in (item.value * f for f in factors)
        )
    if not agree:
        words = " x ".join([*(one.text for one in holders), item.text])
        yield f"{words} are {item.value * prod(values):g}, not {sums[0].text}"


def mixed(text: str, found: Sequence[Stated]) -> Said:
    """N things with M each, and K things with L each, are N x M + K x L."""
    if len(found) != 5:  # noqa: PLR2004 - two products and their sum
        return
    n, m, k, other, whole = found
    kinds = n.dimension == k.dimension in CONTAINERS and m.dimension == other.dimension
    linked = all(
        _OF_OR_WITH.fullmatch(text[one.end : two.start]) for one, two in ((n, m), (k, other))
    )
    if kinds and linked and whole.dimension == m.dimension and _ALL.search(text, other.end):
        true = n.value * m.value + k.value * other.value
        if differs(text, whole, true, true):
            yield f"{n.value:g} x {m.text} and {k.value:g} x {other.text} are {true:g}, not {whole.text}"


MAX_HOLDERS = 3


def _subsets(values: Sequence[float]) -> list[tuple[float, ...]]:
    """Return all choices of at least one value."""
    return [some for n in range(1, len(values) + 1) for some in combinations(values, n)]


_ON_EACH = re.compile(r"\s*(?:on|for|in|with) (?:each|every one) of (?:the |our )?")
_IN_TOTAL = re.compile(r"^\s*\w+ (?:in total|altogether|in all)\b")
_FEWER = re.compile(r"^\s*(?P<word>fewer|less|more) than (?:the )?")


_GIVES = re.compile(
    r"^,? (?:which |that |for )?(?:gives?|giving|makes?|making|is|i\.e\.|yields?|yielding|a total of),? $"
)


def repeated(text: str, found: Sequence[Stated]) -> Said:
    """N times on each of M things are N x M, and A is D fewer than B if B - A is D."""
    for one, two in pairwise(found):
        if one.dimension == "x" and _ON_EACH.fullmatch(text[one.end : two.start]):
            for whole in found:
                product = one.value * two.value
                if _IN_TOTAL.match(text[whole.end :]) and whole.value != product:
                    yield f"{one.text} on {two.text} are {product:g}, not {whole.text}"
    if len(found) == 3 and found[1].dimension == "x":  # noqa: PLR2004 - N things, M times, in all
        things, times, whole = found
        product = things.value * times.value
        counts = things.dimension not in ("%", "x", *MEASURES) and whole.dimension not in (
            "%",
            "x",
            *MEASURES,
        )
        linked = _GIVES.search(text[times.end : whole.start])
        if counts and linked and _EACH_OF.search(text[: things.start]) and whole.value != product:
            yield f"{times.text} for {things.text} are {product:g}, not {whole.text}"
    for first, gap, last in zip(found, found[1:], found[2:], strict=False):
        match = _FEWER.match(text[gap.end :])
        counted = first.dimension and first.dimension not in ("%", "x", *MEASURES)
        if not match or match.end() + gap.end != last.start or gap.dimension or not counted:
            continue
        true = first.value - last.value if match["word"] == "more" else last.value - first.value
        if true != gap.value and last.dimension not in ("%", "x", *MEASURES):
            yield f"{first.text} is {true:g} {match['word']} than {last.text}, not {gap.text}"


_OF_N = re.compile(r"\b(?:Of|Out of) (?:the |all |our )?$")
_REST = re.compile(r"\b(?:rest|remaining|remainder)\b", re.IGNORECASE)


_ACCOUNTS = re.compile(
    r"\b(?:accounts?|accounted) for \d+(?:\.\d+)? ?% of (?:the|its|our) (?:\w+ ){1,3}and (?:\w+ ){1,3}for \d"
)


def parts(text: str, found: Sequence[Stated]) -> Said:
    """Parts make at most the whole, and shares with a rest make 100 %."""
    counted = found and found[0].dimension not in ("", "%", "x", *MEASURES)
    if counted and len(found) > 2 and _OF_N.search(text[: found[0].start]):  # noqa: PLR2004
        pieces = [one for one in found[1:] if one.dimension in ("", found[0].dimension)]
        whole = sum(one.value for one in pieces)
        if len(pieces) == len(found) - 1 and whole > found[0].value:
            yield f"the parts are {whole:g}, not {found[0].value:g}"
    shares = [one for one in found if one.dimension == "%"]
    whole = sum(one.value for one in shares)
    room = sum(one.half for one in shares)
    if len(shares) == len(found) > 1 and whole > 100 + room and _ACCOUNTS.search(text):
        yield f"the shares make {whole:g} %"
    if len(shares) > 2 and _REST.search(text) and abs(whole - 100) > room:  # noqa: PLR2004
        yield f"the shares make {whole:g} %"


_EFFICIENCY = re.compile(r"\befficiency\b[^.%]{0,20}$")
_SPEEDUP = re.compile(r"\bspeed-?up\b[^.]{0,24}$", re.IGNORECASE)


def efficiency(text: str, found: Sequence[Stated]) -> Said:
    """A speedup of S on N nodes is an efficiency of S / N."""
    shares = [q for q in found if q.dimension == "%"]
    said = [q for q in shares if _EFFICIENCY.search(text[: q.start])]
    if not said and len(shares) == 1 and re.match("Efficiency", text):
        said = shares
    gains = [q for q in found if q.dimension == "x"] or [
        q for q in found if not q.dimension and _SPEEDUP.search(text[: q.start])
    ]
    counts = [q for q in found if q.dimension in (*CONTAINERS, "core", "rank") and q.value > 1]
    if len(said) == len(gains) == len(counts) == 1:
        true = 100 * gains[0].value / counts[0].value
        if differs(text, said[0], true, true):
            yield f"{gains[0].text} on {counts[0].text} is {true:.0f} %, not {said[0].text}"


_MOVES = re.compile(r"\b(?:transfer|writ|read|cop[yi]|send|mov|load)\w*\b", re.IGNORECASE)


def transfer(text: str, found: Sequence[Stated]) -> Said:
    """Size and rate give the time."""
    kinds = {one.dimension: one for one in found if one.dimension in ("size", "rate", "time")}
    if len(kinds) == 3 == len(found) and _MOVES.search(text):  # noqa: PLR2004 - one of each
        if CACHED.search(text):
            return
        true = kinds["size"].value * 8 / kinds["rate"].value
        if differs(text, kinds["time"], true * (1 - VAGUE), true * (1 + VAGUE)):
            yield f"{kinds['size'].text} at {kinds['rate'].text} take {true:.3g} s"


_EQUALS = re.compile(
    r"\s*\(\s*$|\s*=\s*$|,?\s*(?:i\.e\.,?|that is,?|in other words,?|or rather)\s*$"
    r"|\s*(?:corresponds? to|equals?|amounts? to)\s*$"
)

_ENDS = re.compile(r"\s*(?:[.;:)]|$)")
_MANY = re.compile(
    rf"(?:\d|\b(?:{'|'.join(WORDS)}|several|many))\S* (?:[\w-]+ ){{1,2}}(?:of|with|at) (?:up to )?$",
    re.IGNORECASE,
)
"""Before the size of each of many things: `4 buffers of 256 KiB`."""


def _joined(text: str, one: Stated, two: Stated) -> bool:
    """Return whether an operator or a count joins two quantities to others."""
    before = text[max(0, one.start - BEFORE) : one.start]
    many = _MANY.search(before) or OPERATOR_BEFORE.search(before)
    return bool(many or OPERATOR_AFTER.match(text[two.end :]))


BEFORE = 60
"""Characters before a quantity that may count it."""


def conversion(text: str, found: Sequence[Stated]) -> Said:
    """One quantity in two units is one quantity."""
    for one, two in pairwise(found):
        same = one.dimension == two.dimension and one.dimension in ("rate", "size", "time")
        between = text[one.end : two.start]
        link = _EQUALS.fullmatch(between) or (
            one.dimension == "rate" and between == ", or " and _ENDS.match(text[two.end :])
        )
        closed = "(" not in text[one.end : two.start] or text[two.end : two.end + 1] == ")"
        if same and link and closed and one.text != two.text and not _joined(text, one, two):
            unlike = re.sub(r"[\d.,\s]", "", one.text) != re.sub(r"[\d.,\s]", "", two.text)
            wide = 1.08 if one.dimension == "size" and "i" not in one.text + two.text else 1.0
            low, high = one.low / wide, one.high * wide
            if one.dimension == "size" and "i" in one.text:
                low = high = one.value
            if (unlike and not low <= two.high) or (unlike and not two.low <= high):
                yield f"{one.text} is not {two.text}"


_LINE = re.compile(
    r"^[\s-]*(?:\w+[\s-]){0,2}?(?:link|line|port|network|ethernet|infiniband|card|adapter|nic|cable)"
    r"\b",
    re.IGNORECASE,
)
_OVER = re.compile(r"\b(?:over|across|through|via)\s+(?:an? |the |its |our )?$")
_IN_PARENTHESES = re.compile(
    r"\b(?:link|line|port|network|card|adapter|nic|fabric)\s\($", re.IGNORECASE
)
_NOT_THE_LINE = re.compile(
    r"memory|(?-i:STREAM)|PCIe|NVLink|GPU|shared|ports|rails|links|nodes", re.IGNORECASE
)
_OTHERS = re.compile(r"\b(?:comparison|compared|against|versus|vs|than|while|whereas|but)\b")
_BOTH_WAYS = re.compile(r"bi-?directional|full.duplex|both (?:directions|ways)", re.IGNORECASE)
_EACH_WAY = re.compile(
    r"^\s*(?:each way|(?:in|per) each direction|per direction|in each direction)"
)


def line_of(text: str, found: Sequence[Stated]) -> Stated | None:
    """Return the rate of the only line in a sentence about one."""
    lines = [
        one
        for one in found
        if one.dimension == "rate"
        and (
            one.line_rate
            or _LINE.match(text[one.end :])
            or _OVER.search(text[: one.start])
            or (_IN_PARENTHESES.search(text[: one.start]) and text[one.end : one.end + 1] == ")")
        )
    ]
    if len(lines) != 1 or _NOT_THE_LINE.search(text) or _OTHERS.search(text):
        return None
    return lines[0]


def line_rate(text: str, found: Sequence[Stated]) -> Said:
    """No rate is above that of its line."""
    line = line_of(text, found)
    if line is None:
        return
    for one in found:
        both = _BOTH_WAYS.search(text) and not _EACH_WAY.match(text[one.end :])
        most = line.value * (2 if both else 1)
        if one.dimension == "rate" and one is not line and not one.line_rate and one.low > most:
            yield f"{one.text} is above the line of {line.text}"


_NONE = re.compile(r"\b(?:No|None)\b[^.;,]*\b(?:more than|above|over|exceed\w*)\s+$")
_EVERY = re.compile(r"\b(?:all|every|each|always|any)\b", re.IGNORECASE)


def listed(text: str, found: Sequence[Stated]) -> Said:
    """A limit for all holds for each number of the list after it."""
    head, colon, _ = text.partition(": ")
    shares = [one for one in found if one.dimension == "%"]
    if len(shares) < 2:  # noqa: PLR2004 - limit and list
        return
    limit = shares[0]
    if not colon and _NONE.search(text[: limit.start]):
        head = text[: limit.end]
    elif not colon or not _EVERY.search(head) or not MOST.search(text[: limit.start]):
        return
    if limit.end > len(head):
        return
    for one in shares[1:]:
        if one.start > len(head) and one.value > limit.value:
            yield f"{one.text} is not within {limit.text}"


_ITEMS = re.compile(
    r"\b(?P<n>two|three|four|five|six|seven)\s+(?:[\w-]+\s+)?\w+s(?:\s+were\s+\w+)?"
    r"(?P<are>:\s*|(?:\s+[\w-]+){0,3}\s+are\s+)"
    r"(?P<items>[^.;:()]{3,120}?\band\b[^.;:()]{1,40})\.?$",
    re.IGNORECASE,
)
MAX_ITEM = 3


def enumeration(text: str, _found: Sequence[Stated]) -> Said:
    """N things are followed by N names."""
    match = _ITEMS.search(text)
    if match is None:
        return
    items = [one for one in re.split(r",\s*(?:and\s+)?|\s+and\s+", match["items"]) if one.strip()]
    named = ":" in match["are"] or all(re.match(r"\s*[A-Z]|\S*[\d_]", one) for one in items)
    if (
        named
        and all(len(one.split()) <= MAX_ITEM for one in items)
        and len(items) != WORDS[match["n"].lower()]
    ):
        yield f"{match['n']} are announced, {len(items)} follow"
