# SPDX-License-Identifier: Apache-2.0
"""Rules over shares: N of M are P %, a part of a whole, what a loss leaves."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

from nearmetal.study.claims.pairs import MEASURES, PARTS, Said, differs, pair_of
from nearmetal.study.claims.quantities import NOUNS, Stated
from nearmetal.study.claims.wording import NEGATED

_SHARE_OF = re.compile(
    r"\s*(?:[a-z]+ )?(?:in \w+ )?(?:out )?of (?:the |its |all |these |our |their )?", re.IGNORECASE
)
FAR = 70
"""Characters between a count and the share that is called its rate."""
_RATE_OF = re.compile(r"\b(?:rate|share|fraction|proportion) of $")
_NEXT_CLAUSE = re.compile(
    r"\b(?:and|but|while|whereas|with|reach\w*|(?:the|an?|its|their) (?:\w+ ){1,3}?(?:is|are|was|were))\b"
    r"|\b(?:overhead|tax|loss|penalty|slowdown|gain)s? (?:is|are|was|were)\b"
)
_SAYS = re.compile(
    r"(?:[,(:]|\b(?:or|is|are|was|were|makes?|gives?|i\.e\.,?|that is,?|account(?:s|ed)? for|costs?"
    r"|amounts? to|(?:rate|share|fraction|proportion|efficiency|yield) of))"
    r"\s*(?:about |only |just |nearly |almost |roughly )?$"
)
"""Between a count and its share."""
_COMPARES_OR_OF = re.compile(
    r"^ (?:more|less|slower|faster|higher|lower|larger|smaller|longer|shorter|above|below|worse|better"
    r"|over|under|slowdown|overhead|loss|gain|of (?P<of>(?:\w+ ){0,3}?\w+)(?=[.,;:)]|$| (?:and|in|for|is|are)\b))"
)
"""After a percentage that compares, or that is a share of something that is named."""
_WHOLES = re.compile(rf"\b(?:{NOUNS}|capacity|total|all|them|whole)(?:e?s)?$", re.IGNORECASE)
"""What a share of counted things is of."""
_OF_ALL = re.compile(r"\b(?:[Oo]f|[Oo]ut of) (?:the |all |our |these )?$")
_THESE = re.compile(r"[^.;:\d%]{0,60}, ")
_PART_OF = re.compile(
    r"\b(?P<most>most|more than half|the majority) of\b|\b(?P<half>[Hh]alf|[Aa] (?:third|quarter)) of\b"
)


_OF_MEASURE = re.compile(r" of (?:the |its |a |an )?(?:[a-z]+ ){0,3}?(?:of )?(?:the )?")
_OF_THE_WHOLE = re.compile(r"\bOf (?:the|its|our) (?:\w+ ){0,2}of $")
_IS_SHARE = re.compile(r"(?: \w+){0,3},? |,? (?:is|are|that is,?|i\.e\.,?) |\s\(")


def _between(text: str, found: Sequence[Stated]) -> Said:
    """A is P % of B, and of A, B is P %."""
    for one, two, three in zip(found, found[1:], found[2:], strict=False):
        if two.dimension == "%":
            part, said, whole = one, two, three
            linked = _IS_SHARE.fullmatch(text[one.end : two.start]) and _OF_MEASURE.fullmatch(
                text[two.end : three.start]
            )
        elif three.dimension == "%":
            whole, part, said = one, two, three
            parted = re.match(r",? of which ", text[one.end :])
            parted = parted or _OF_THE_WHOLE.search(text[: one.start])
            linked = parted and re.fullmatch(
                r",? or |,? i\.e\.,? | \(", text[two.end : three.start]
            )
        else:
            continue
        if linked and part.dimension == whole.dimension in (*MEASURES, *RATES) and whole.value:
            true = 100 * part.value / whole.value
            room = true * (part.half / (part.value or 1) + whole.half / whole.value)
            if differs(text, said, true - room, true + room):
                yield f"{part.text} of {whole.text} is {true:.1f} %, not {said.text}"


RATES = ("TFLOP/s", "GFLOP/s", "TFLOPS", "GFLOPS")


def _of_another(after: str) -> bool:
    """Return whether a percentage is not the share of what was counted."""
    match = _COMPARES_OR_OF.match(after)
    return match is not None and not _WHOLES.search(match["of"] or "")


def _of_all(text: str, found: Sequence[Stated]) -> Said:
    """Of N things, M are P %."""
    if len(found) != 3 or not _OF_ALL.search(text[: found[0].start]):  # noqa: PLR2004 - N, M, P
        return
    whole, one, said = found
    counts = whole.dimension not in ("%", "x", *MEASURES)
    counts = counts and one.dimension in ("", whole.dimension) and 0 < whole.value >= one.value
    beside = re.fullmatch(r"(?: \w+)? \(", text[one.end : said.start])
    these = _THESE.fullmatch(text[whole.end : one.start])
    if counts and said.dimension == "%" and beside and these:
        true = 100 * one.value / whole.value
        if differs(text, said, true, true):
            yield f"{one.text} of {whole.text} is {true:.1f} %, not {said.text}"


def share(text: str, found: Sequence[Stated]) -> Said:
    """N of M things are P %, and most of a whole is more than half."""
    for one, two in pairwise(found):
        counted = two.dimension not in ("%", "x") and one.dimension in ("", two.dimension)
        if (
            not counted
            or not one.value <= two.value
            or not _SHARE_OF.fullmatch(text[one.end : two.start])
        ):
            continue
        said = [q for q in found if q.dimension == "%" and q.start > two.end]
        true = 100 * one.value / two.value if two.value else 0.0
        between = text[two.end : said[0].start] if said else ""
        reach = FAR if _RATE_OF.search(between) else 40
        close = len(between) < reach and not _NEXT_CLAUSE.search(between)
        if len(said) != 1 or not close or not _SAYS.search(between):
            continue
        if not _of_another(text[said[0].end :]) and differs(text, said[0], true, true):
            yield f"{one.text} of {two.text} is {true:.1f} %, not {said[0].text}"
    yield from _of_all(text, found)
    yield from _between(text, found)
    part = _PART_OF.search(text)
    pair = pair_of(found)
    if part is None or pair is None:
        return
    one, two = pair
    if part["half"]:
        wanted = PARTS[part["half"].split()[-1].lower()] * one.value
        if 0 < one.start - part.start() <= len(part[0]) + 5 and not two.low <= wanted <= two.high:
            yield f"{part[0]} {one.text} is not {two.text}"
    elif one.value < two.value / 2:
        yield f"{one.text} is not {part[0]} {two.text}"


_NATIVE = re.compile(
    r"^\s*of (?:the |its |that |a )?(?:\w+ of the )?(?:native|bare|line|peak|host|physical|theoretical|its|that)\b"
)
_TAX = re.compile(
    r"\b(?:overhead|tax|loss|penalty|cost|los\w+|sacrific\w+|gives up|slowdown)\b[^.%]{0,16}$",
    re.IGNORECASE,
)
_LATER_TAX = re.compile(r"^\s*(?:overhead|tax|loss|penalty|slower|less|below|behind)\b")
_OTHERWISE = re.compile(
    r"\b(?:but|while|whereas|although|though|at|for|with|than|another|other|if|on|in)\b|\d"
)

# After `and`, only a loss of the same subject is meant: `reaches 97 % of native and loses 3 %`.
_LOSES = re.compile(r"\band (?:\w+ )?(?:los\w+|sacrific\w+|gives up) $")
_ENDS = re.compile(r"\s*(?:[.;:)]|$)")
_METRIC = re.compile(
    r"\b(?:latency|bandwidth|throughput|run ?time|memory|CPU|message rate|I/O|energy|power|jitter)\b",
    re.IGNORECASE,
)
"""A share of one metric and a loss of another are no parts of one whole."""
_CAUSE = re.compile(r"\b(?:overhead|tax|loss|penalty|cost) of [a-z]")


def complement(text: str, found: Sequence[Stated]) -> Said:
    """P % of native is a loss of 100 - P %."""
    shares = [one for one in found if one.dimension == "%"]
    if len(shares) != 2 or NEGATED.search(text):  # noqa: PLR2004 - both parts
        return
    kept, lost = shares
    between = text[kept.end : lost.start]
    linked = _NATIVE.match(between) and len(between) < LINK and not _OTHERWISE.search(between)
    joined = re.search(r"\band\b", between)
    if joined and not (_LOSES.search(between) and _ENDS.match(text[lost.end :])):
        return
    if len({word.lower() for word in _METRIC.findall(text)}) > 1 or _CAUSE.search(between):
        return
    taxed = _TAX.search(text[: lost.start]) or _LATER_TAX.match(text[lost.end :])
    if not linked or not taxed or not kept.value or kept.value >= 100:  # noqa: PLR2004 - percent
        return
    room = kept.half + lost.half
    # A loss is of the native value; an overhead may also be of what is left.
    if min(abs(100 - kept.value - lost.value), abs(1e4 / kept.value - 100 - lost.value)) > room:
        yield f"{kept.text} and {lost.text} are not 100 %"


LINK = 60
"""Characters between a share and the loss that it leaves."""
