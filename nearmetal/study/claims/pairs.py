# SPDX-License-Identifier: Apache-2.0
"""Rules over two quantities of a sentence: changes, factors, comparisons, order."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

from nearmetal.study.claims.quantities import Stated
from nearmetal.study.claims.wording import ABOUT, LEAST, MOST, NEGATED

SLACK = 0.02
"""Share by which rounded numbers may differ in addition to their digits."""

VAGUE = 0.15
"""The same after `about`, `roughly`, `nearly`."""

ROUNDED = 0.3
"""Share of the rounding of two numbers that their ratio may use: both rarely err against it."""

NEAR = 60
"""Characters between a number and the pair that it is about."""

MEASURES = ("time", "rate", "size", "million", "ns/day")

Said = Iterator[str]


def _slack(text: str, at: Stated) -> float:
    return VAGUE if ABOUT.search(text[: at.start]) else SLACK


def differs(text: str, said: Stated, low: float, high: float) -> bool:
    """Return whether a stated number lies outside of what follows from others."""
    slack = _slack(text, said)
    before = text[: said.start]
    under = said.high < low * (1 - slack)
    over = said.low > high * (1 + slack)
    if MOST.search(before):
        return over and said.dimension != "%"
    return over if LEAST.search(before) else under or over


def pair_of(found: Sequence[Stated]) -> tuple[Stated, Stated] | None:
    """Return the only two measures of one dimension, if there is no third."""
    for dimension in (*MEASURES, "x"):
        same = [one for one in found if one.dimension == dimension and not one.line_rate]
        if len(same) == 2 and same[0].value > 0 and same[1].value > 0:  # noqa: PLR2004 - a pair
            return same[0], same[1]
    return None


_FROM = re.compile(r"\bfrom\s+$")
_UNTIL = re.compile(r"[^.;,]{0,40}?\b(?:down |up )?to\s+(?:about )?")
_UP = re.compile(r"\b(?:increas|r[io]se|grew|grow|climb|gain)\w*\b", re.IGNORECASE)
_DOWN = re.compile(r"\b(?:decreas|fell|fall|drop|reduc|declin|shr[au]nk)\w*\b", re.IGNORECASE)
_BETTER = re.compile(r"\bimprov\w+\s+from", re.IGNORECASE)


def ends_of(text: str, found: Sequence[Stated]) -> tuple[Stated, Stated] | None:
    """Return A and B of `from A to B`."""
    for one, two in pairwise(found):
        between = text[one.end : two.start]
        same = one.dimension == two.dimension and one.dimension in MEASURES
        if same and _FROM.search(text[: one.start]) and _UNTIL.fullmatch(between):
            return one, two
    return None


def direction(text: str, found: Sequence[Stated]) -> Said:
    """What rose from A to B ends higher."""
    ends = ends_of(text, found)
    if ends is None:
        return
    one, two = ends
    before = text[: one.start]
    up, down = bool(_UP.search(before)), bool(_DOWN.search(before))
    if _BETTER.search(before):
        up, down = one.dimension != "time", one.dimension == "time"
    if up is not down and ((up and two.value < one.value) or (down and two.value > one.value)):
        word = "rises" if up else "falls"
        yield f"{one.text} to {two.text} is not what {word}"


_MORE_THAN = re.compile(
    r"\b(?:increase|rise|growth|gain|more|higher|above|longer|larger|greater|additional)\b",
    re.IGNORECASE,
)
_LESS_THAN = re.compile(
    r"\b(?:reduction|decrease|loss|drop|decline|less|lower|below|behind|cheaper|shorter|smaller"
    r"|fewer|saving)\b",
    re.IGNORECASE,
)
_EITHER = re.compile(
    r"\b(?:faster|slower|slowdown|difference|differs?|overhead|better|worse|quicker|penalty|tax|beyond)\b",
    re.IGNORECASE,
)


def _between(one: Stated, two: Stated) -> tuple[float, float]:
    """Return the smallest and largest ratio of the larger to the smaller."""
    small, large = sorted((one, two), key=lambda quantity: quantity.value)
    low = (large.value - ROUNDED * large.half) / (small.value + ROUNDED * small.half)
    return max(low, 1e-9), (large.value + ROUNDED * large.half) / (
        small.value - ROUNDED * small.half
    )


def percentage(text: str, found: Sequence[Stated]) -> Said:
    """A and B differ by P %, of the larger or the smaller as the words say."""
    pair = ends_of(text, found) or pair_of(found)
    shares = [one for one in found if one.dimension == "%"]
    if pair is None or len(shares) != 1 or re.match(r"\s*of\b", text[shares[0].end :]):
        return
    said = shares[0]
    if not _is_near(text, said, pair):
        return
    near = text[max(0, said.start - 32) : said.end + 32]
    low, high = _between(*pair)
    more = ((low - 1) * 100, (high - 1) * 100)
    less = ((1 - 1 / low) * 100, (1 - 1 / high) * 100)
    if ends_of(text, found):
        # From A to B: the share is of A, as the direction says.
        change = more if pair[1].value > pair[0].value else less
        bad = differs(text, said, *change) and not (
            _EITHER.search(near) and not differs(text, said, *more)
        )
    elif re.search(r"[+]\s?$", text[: said.start]):
        rises = (low - 1) * 100 if pair[1].value > pair[0].value else -1.0
        bad = differs(text, said, rises, more[1])
    elif _EITHER.search(near):
        bad = differs(text, said, *more) and differs(text, said, *less)
    elif _LESS_THAN.search(near) and not _MORE_THAN.search(near):
        bad = differs(text, said, *less)
    elif _MORE_THAN.search(near) and not _LESS_THAN.search(near):
        bad = differs(text, said, *more)
    else:
        return
    if bad:
        small, large = sorted((pair[0].value, pair[1].value))
        words = f"{large / small - 1:.1%} more or {1 - small / large:.1%} less"
        yield f"{pair[0].text} and {pair[1].text} are {words}, not {said.text}"


_OTHER_THING = re.compile(r", and \b|\band \w+ (?:the|its|an?) ")


def _is_near(text: str, said: Stated, pair: tuple[Stated, Stated]) -> bool:
    one, two = pair
    gap = text[two.end : said.start] if said.start > two.start else text[said.end : one.start]
    return len(gap) <= NEAR and not _OTHER_THING.search(gap)


_HALF = re.compile(
    r"\b(halved|halves|cut in half)\b"
    r"|\b(?:by|loses?|lost|gains?|gained|saves?|saved) (?:an? |one )?(half|third|quarter|fifth|tenth)\b",
    re.IGNORECASE,
)
PARTS = {"half": 1 / 2, "third": 1 / 3, "quarter": 1 / 4, "fifth": 1 / 5, "tenth": 1 / 10}


def factor(text: str, found: Sequence[Stated]) -> Said:
    """A is N times B."""
    pair = ends_of(text, found)
    if pair is None:
        measures = [one for one in found if one.dimension != "x"]
        pair = pair_of(measures)
    # The x of `3 x 8 B` is an operator.
    said = [q for q in found if q.dimension == "x" and not re.match(r" ?\d", text[q.end :])]
    if pair is None:
        return
    low, high = _between(*pair)
    if len(said) == 1:
        if differs(text, said[0], low, high):
            yield f"{pair[0].text} and {pair[1].text} are a factor of {low:.3g}, not {said[0].text}"
        return
    part = _HALF.search(text)
    ends = ends_of(text, found) or (part and pair)
    if part and ends:
        share = 1 / 2 if part[1] else PARTS[part[2].lower()]
        rises = not part[1] and ends[1].value > ends[0].value
        true = abs(ends[1].value / ends[0].value - 1)
        if abs(true - share) > SLACK + (VAGUE / 3 if rises else SLACK):
            yield f"{ends[0].text} to {ends[1].text} is a change by {true:.0%}, not {part[0]}"


_HIGHER = r"higher|more|larger|greater|above|longer"
_LOWER = r"lower|less|smaller|below|shorter"
_COMPARED = re.compile(
    rf"\b(?:(?P<up>{_HIGHER})|(?P<down>{_LOWER})|(?P<fast>faster|quicker)|(?P<slow>slower))\b[^.;]{0, 30}?\bthan\b"
)
_BEYOND = re.compile(r"\b(?:t[ao]kes?|took|lasts?|lasted|needs?|needed|ran|waited|los[et]s?) $")
"""Verbs before a comparison with a limit: the other number is of something else."""
_BEATS = re.compile(r"\b(?:outperform|beat|surpass)\w*\b|\bis ahead of\b")
_SLOWS = re.compile(r"\b(?:slowdown|overhead|penalty|tax|loss|slower)\b", re.IGNORECASE)
_NATIVE = re.compile(r"\b(?:native|natively|bare.metal|host)\b", re.IGNORECASE)
_BESIDE = 16
"""Characters after a number that say whose it is."""


def comparison(text: str, found: Sequence[Stated]) -> Said:
    """A is higher, lower, faster or slower than B."""
    pair = pair_of([one for one in found if one.dimension != "x"])
    if pair is None or NEGATED.search(text):
        return
    one, two = pair
    beats = _BEATS.search(text, one.end, two.start)
    if beats and ((one.value > two.value) is (one.dimension == "time")) and one.value != two.value:
        yield f"{one.text} does not beat {two.text}"
    match = _COMPARED.search(text)
    if match is None or _BEYOND.search(text[: match.start()]):
        return
    if not one.end <= match.end() - len("than") or not match.end() <= two.start:
        return
    time = one.dimension == "time"
    up = bool(match["up"]) or bool(match["slow"] if time else match["fast"])
    if (one.value < two.value) if up else (one.value > two.value):
        yield f"{one.text} is not {match[0]} {two.text}"


_CLAUSE = re.compile(r"\b(?:and|but|while|whereas|against|versus|vs)\b|[,;]")


def _owner(text: str, one: Stated) -> str:
    """Return the words right before and right after a number, within its clause."""
    before = _CLAUSE.split(text[max(0, one.start - _BESIDE) : one.start])[-1]
    after = _CLAUSE.split(text[one.end : one.end + _BESIDE])[0]
    return before + after


def cost(text: str, found: Sequence[Stated]) -> Said:
    """What is called slower than native is slower."""
    pair = pair_of([one for one in found if one.dimension != "x"])
    slows = _SLOWS.search(text)
    if pair is None or slows is None or NEGATED.search(text):
        return
    native = [one for one in pair if _NATIVE.search(_owner(text, one))]
    if len(native) != 1 or slows.start() < pair[1].end:
        return
    other = pair[0] if native[0] is pair[1] else pair[1]
    faster = (other.value < native[0].value) is (other.dimension == "time")
    if faster and other.value != native[0].value:
        yield f"{other.text} is no {slows[0]} against {native[0].text}"


_STATISTIC = re.compile(
    r"\b(?P<least>minimum|lowest|smallest|fastest|shortest|best)\b"
    r"|\b(?P<middle>mean|average|median|p50)\b"
    r"|(?P<rank>9\d(?:th)? percentile|p9\d)\b"
    r"|\b(?P<most>maximum|highest|largest|slowest|longest|worst)\b",
    re.IGNORECASE,
)
_LEVELS = {"least": 0, "middle": 1, "rank": 2, "most": 3}
_REVERSED = ("fastest", "best", "slowest", "worst")
_ORDERED = (*MEASURES, "%")
_RANGE = re.compile(r"\brang\w+\s+from\s+$")


def _range(text: str, found: Sequence[Stated]) -> list[tuple[int, Stated]]:
    """Return the ends of `ranges from A to B` and of `between A and B`, with their levels."""
    seen: list[tuple[int, Stated]] = []
    ends = ends_of(text, found)
    if ends and _RANGE.search(text[: ends[0].start]):
        seen += [(0, ends[0]), (3, ends[1])]
    for one, two in pairwise(found):
        both = one.dimension == two.dimension and text[one.end : two.start].strip() == "and"
        if both and one.dimension in _ORDERED and re.search(r"\bbetween\s$", text[: one.start]):
            seen += [(0, one), (3, two)]
    return seen


def order(text: str, found: Sequence[Stated]) -> Said:
    """Minimum, mean, percentile and maximum are in this order."""
    seen: list[tuple[int, Stated]] = []
    matches = list(_STATISTIC.finditer(text))
    for at, match in enumerate(matches):
        until = matches[at + 1].start() if at + 1 < len(matches) else len(text)
        until = min(until, match.end() + 40)
        near = [q for q in found if match.end() <= q.start < until and q.dimension in _ORDERED]
        reverse = match[0].lower() in _REVERSED and near and near[0].dimension != "time"
        # The worst percentage may be the largest or the smallest.
        if near and not (reverse and near[0].dimension == "%"):
            level = _LEVELS[str(match.lastgroup)]
            seen.append((3 - level if reverse else level, near[0]))
    seen += _range(text, found)
    for level, one in seen:
        for other, two in seen:
            alike = one.dimension == two.dimension
            if level < other and alike and one.low > two.high:
                yield f"{one.text} is above {two.text}"
                return
