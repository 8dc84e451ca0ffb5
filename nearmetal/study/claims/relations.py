# SPDX-License-Identifier: Apache-2.0
"""Rules over the quantities of a sentence: totals, changes, factors, rates, order, shares."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from nearmetal.study.claims.quantities import CONTAINERS, WORDS, Quantity, quantities
from nearmetal.study.claims.text import Found, Prose

SLACK = 0.02
"""Share by which rounded numbers may differ in addition to their digits."""

VAGUE = 0.15
"""The same after `about`, `roughly`, `nearly`."""

ROUNDED = 0.3
"""Share of the rounding of two numbers that their ratio may use: both rarely err against it."""

NEAR = 60
"""Characters between a number and the pair that it is about."""

_VAGUE = re.compile(
    r"\b(?:about|around|roughly|approximately|nearly|almost|some|close to)\s+(?:a\s+)?$|~\s*$", re.I
)
_MOST = re.compile(r"\b(?:up to|at most|less than|no more than|under|below|within)\s+$", re.I)
_LEAST = re.compile(r"\b(?:at least|more than|over|above|beyond)\s+$", re.I)
_MEASURES = ("time", "rate", "size", "million", "ns/day")

Said = Iterator[str]
Rule = Callable[[str, Sequence[Quantity]], Said]


def _slack(text: str, at: Quantity) -> float:
    return VAGUE if _VAGUE.search(text[: at.start]) else SLACK


def _differs(text: str, said: Quantity, low: float, high: float) -> bool:
    """Return whether a stated number lies outside of what follows from others."""
    slack = _slack(text, said)
    before = text[: said.start]
    under = said.high < low * (1 - slack)
    over = said.low > high * (1 + slack)
    if _MOST.search(before):
        return over and said.dimension != "%"
    return over if _LEAST.search(before) else under or over


def _pair(found: Sequence[Quantity]) -> tuple[Quantity, Quantity] | None:
    """Return the only two measures of one dimension, if there is no third."""
    for dimension in (*_MEASURES, "x"):
        same = [one for one in found if one.dimension == dimension and not one.line_rate]
        if len(same) == 2 and same[0].value > 0 and same[1].value > 0:  # noqa: PLR2004 - a pair
            return same[0], same[1]
    return None


_EACH = re.compile(r"^[^.;:]{0,24}?\b(?:each|apiece|per\s+(?P<per>\w+?)s?\b)|^\s*/\s*(?P<of>\w+)")
_EACH_OF = re.compile(r"\b[Ee](?:ach|very)(?:\s+one)? of (?:the |our )?$")
_ALL = re.compile(r"\b(?:total|in all|altogether|overall|combined|in sum)\b", re.IGNORECASE)
_ONE_PER_CORE = re.compile(r"\bone\b[^.]{0,20}\b(?:per|on (?:every|each)) core")
_LIKE_CORES = ("core", "process", "rank", "thread", "vcpu")


def total(text: str, found: Sequence[Quantity]) -> Said:
    """N things with M each are N x M."""
    each: tuple[Quantity, str] | None = None
    for at, one in enumerate(found):
        after = found[at + 1].start if at + 1 < len(found) else len(text)
        match = _EACH.match(text[one.end : after])
        if one.dimension in ("", "%", "x", "time", "rate"):
            continue
        if match:
            each = one, (match["per"] or match["of"] or "").lower()
        elif at and _EACH_OF.search(text[: found[at - 1].start]) and each is None:
            each = one, found[at - 1].dimension
    if each is None:
        return
    item, container = each
    alike = _LIKE_CORES if item.dimension == "core" and _ONE_PER_CORE.search(text) else ()
    holders = [
        one
        for one in found
        if one is not item
        and one.dimension in CONTAINERS
        and (not container or one.dimension == container)
        and one.dimension != item.dimension
        and one.value != 1
    ]
    sums = [
        one
        for one in found
        if one is not item and one.dimension in (item.dimension, *alike) and one not in holders
    ]
    if item.dimension == "size" and not _ALL.search(text):
        return
    if len(holders) == 1 and len(sums) == 1:
        product = holders[0].value * item.value
        if _differs(text, sums[0], product, product):
            yield f"{holders[0].text} x {item.text} are {product:g}, not {sums[0].text}"


_UP = re.compile(r"\b(?:increas|r[io]se|grew|grow|climb|gain)\w*\b", re.IGNORECASE)
_DOWN = re.compile(r"\b(?:decreas|fell|fall|drop|reduc|declin|shr[au]nk)\w*\b", re.IGNORECASE)
_BETTER = re.compile(r"\bimprov\w+\s+from", re.IGNORECASE)


def _ends(text: str, found: Sequence[Quantity]) -> tuple[Quantity, Quantity] | None:
    """Return A and B of `from A to B`."""
    for one, two in zip(found, found[1:], strict=False):
        between = text[one.end : two.start]
        same = one.dimension == two.dimension and one.dimension in _MEASURES
        if same and re.search(r"\bfrom\s+$", text[: one.start]):
            if re.fullmatch(r"[^.;,]{0,40}?\b(?:down |up )?to\s+(?:about )?", between):
                return one, two
    return None


def direction(text: str, found: Sequence[Quantity]) -> Said:
    """What rose from A to B ends higher."""
    ends = _ends(text, found)
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
    r"\b(?:increase|rise|growth|gain|more|higher|above|longer|larger|greater|additional)\b", re.I
)
_LESS_THAN = re.compile(
    r"\b(?:reduction|decrease|loss|drop|decline|less|lower|below|behind|cheaper|shorter|smaller"
    r"|fewer|saving)\b",
    re.IGNORECASE,
)
_EITHER = re.compile(
    r"\b(?:faster|slower|difference|overhead|better|worse|quicker|penalty|tax|beyond)\b", re.I
)


def _between(one: Quantity, two: Quantity) -> tuple[float, float]:
    """Return the smallest and largest ratio of the larger to the smaller."""
    small, large = sorted((one, two), key=lambda quantity: quantity.value)
    low = (large.value - ROUNDED * large.half) / (small.value + ROUNDED * small.half)
    return max(low, 1e-9), (large.value + ROUNDED * large.half) / (
        small.value - ROUNDED * small.half
    )


def percentage(text: str, found: Sequence[Quantity]) -> Said:
    """A and B differ by P %, of the larger or the smaller as the words say."""
    pair = _ends(text, found) or _pair(found)
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
    if _EITHER.search(near):
        bad = _differs(text, said, *more) and _differs(text, said, *less)
    elif _LESS_THAN.search(near) and not _MORE_THAN.search(near):
        bad = _differs(text, said, *less)
    elif _MORE_THAN.search(near) and not _LESS_THAN.search(near):
        bad = _differs(text, said, *more)
    else:
        return
    if bad:
        words = f"{more[0]:.1f} % more or {less[0]:.1f} % less"
        yield f"{pair[0].text} and {pair[1].text} are {words}, not {said.text}"


def _is_near(text: str, said: Quantity, pair: tuple[Quantity, Quantity]) -> bool:
    one, two = pair
    gap = text[two.end : said.start] if said.start > two.start else text[said.end : one.start]
    return len(gap) <= NEAR and ";" not in gap


_HALF = re.compile(r"\b(halved|halves)\b|\bby (?:a|one) (half|third|quarter)\b", re.IGNORECASE)
_PARTS = {"half": 1 / 2, "third": 1 / 3, "quarter": 1 / 4}


def factor(text: str, found: Sequence[Quantity]) -> Said:
    """A is N times B."""
    pair = _ends(text, found)
    if pair is None:
        measures = [one for one in found if one.dimension != "x"]
        pair = _pair(measures)
    said = [one for one in found if one.dimension == "x"]
    if pair is None:
        return
    low, high = _between(*pair)
    if len(said) == 1:
        if _differs(text, said[0], low, high):
            yield f"{pair[0].text} and {pair[1].text} are a factor of {low:.3g}, not {said[0].text}"
        return
    part = _HALF.search(text)
    ends = _ends(text, found)
    if part and ends:
        share = 1 / 2 if part[1] else _PARTS[part[2].lower()]
        rises = not part[1] and ends[1].value > ends[0].value
        true = abs(ends[1].value / ends[0].value - 1)
        if abs(true - share) > SLACK + (VAGUE / 3 if rises else SLACK):
            yield f"{ends[0].text} to {ends[1].text} is a change by {true:.0%}, not {part[0]}"


_HIGHER = r"higher|more|larger|greater|above|longer"
_LOWER = r"lower|less|smaller|below|shorter"
_COMPARED = re.compile(
    rf"\b(?:(?P<up>{_HIGHER})|(?P<down>{_LOWER})|(?P<fast>faster|quicker)|(?P<slow>slower))\s+than\b"
)
_NEGATED = re.compile(r"\b(?:not|no|never|hardly|if|unless|whether)\b", re.IGNORECASE)


def comparison(text: str, found: Sequence[Quantity]) -> Said:
    """A is higher, lower, faster or slower than B."""
    pair = _pair([one for one in found if one.dimension != "x"])
    match = _COMPARED.search(text)
    if pair is None or match is None or _NEGATED.search(text):
        return
    one, two = pair
    if not one.end <= match.start() or not match.end() <= two.start:
        return
    time = one.dimension == "time"
    up = bool(match["up"]) or bool(match["slow"] if time else match["fast"])
    if (one.value < two.value) if up else (one.value > two.value):
        yield f"{one.text} is not {match[0]} {two.text}"


_OF_N = re.compile(r"\b(?:Of|Out of) (?:the |all |our )?$")
_REST = re.compile(r"\b(?:rest|remaining|remainder)\b", re.IGNORECASE)


def parts(text: str, found: Sequence[Quantity]) -> Said:
    """Parts make at most the whole, and shares with a rest make 100 %."""
    counted = found and found[0].dimension not in ("", "%", "x", *_MEASURES)
    if counted and len(found) > 2 and _OF_N.search(text[: found[0].start]):  # noqa: PLR2004
        pieces = [one for one in found[1:] if one.dimension in ("", found[0].dimension)]
        whole = sum(one.value for one in pieces)
        if len(pieces) == len(found) - 1 and whole > found[0].value:
            yield f"the parts are {whole:g}, not {found[0].value:g}"
    shares = [one for one in found if one.dimension == "%"]
    whole = sum(one.value for one in shares)
    room = sum(one.half for one in shares)
    if len(shares) > 2 and _REST.search(text) and abs(whole - 100) > room:  # noqa: PLR2004
        yield f"the shares make {whole:g} %"


_STATISTIC = re.compile(
    r"\b(?P<least>minimum|lowest|smallest|fastest|shortest|best)\b"
    r"|\b(?P<middle>mean|average|median)\b"
    r"|(?P<rank>9\d(?:th)? percentile|p9\d)\b"
    r"|\b(?P<most>maximum|highest|largest|slowest|longest|worst)\b",
    re.IGNORECASE,
)
_LEVELS = {"least": 0, "middle": 1, "rank": 2, "most": 3}
_REVERSED = ("fastest", "best", "slowest", "worst")
_RANGE = re.compile(r"\brang\w+\s+from\s+$")


def order(text: str, found: Sequence[Quantity]) -> Said:
    """Minimum, mean, percentile and maximum are in this order."""
    seen: list[tuple[int, Quantity]] = []
    matches = list(_STATISTIC.finditer(text))
    for at, match in enumerate(matches):
        until = matches[at + 1].start() if at + 1 < len(matches) else len(text)
        until = min(until, match.end() + 40)
        near = [q for q in found if match.end() <= q.start < until and q.dimension in _MEASURES]
        if near:
            level = _LEVELS[str(match.lastgroup)]
            if match[0].lower() in _REVERSED and near[0].dimension != "time":
                level = 3 - level
            seen.append((level, near[0]))
    ends = _ends(text, found)
    if ends and _RANGE.search(text[: ends[0].start]):
        seen += [(0, ends[0]), (3, ends[1])]
    for level, one in seen:
        for other, two in seen:
            alike = one.dimension == two.dimension
            if level < other and alike and one.low > two.high:
                yield f"{one.text} is above {two.text}"
                return


_EFFICIENCY = re.compile(r"\befficiency\b[^.%]{0,20}$")
_SPEEDUP = re.compile(r"\bspeed-?up\b[^.]{0,24}$", re.IGNORECASE)


def efficiency(text: str, found: Sequence[Quantity]) -> Said:
    """A speedup of S on N nodes is an efficiency of S / N."""
    said = [q for q in found if q.dimension == "%" and _EFFICIENCY.search(text[: q.start])]
    gains = [q for q in found if q.dimension == "x"] or [
        q for q in found if not q.dimension and _SPEEDUP.search(text[: q.start])
    ]
    counts = [q for q in found if q.dimension in (*CONTAINERS, "core", "rank") and q.value > 1]
    if len(said) == len(gains) == len(counts) == 1:
        true = 100 * gains[0].value / counts[0].value
        if _differs(text, said[0], true, true):
            yield f"{gains[0].text} on {counts[0].text} is {true:.0f} %, not {said[0].text}"


_MOVES = re.compile(r"\b(?:transfer|writ|read|cop[yi]|send|mov|load)\w*\b", re.IGNORECASE)


def transfer(text: str, found: Sequence[Quantity]) -> Said:
    """Size and rate give the time."""
    kinds = {one.dimension: one for one in found if one.dimension in ("size", "rate", "time")}
    if len(kinds) == 3 == len(found) and _MOVES.search(text):  # noqa: PLR2004 - one of each
        true = kinds["size"].value * 8 / kinds["rate"].value
        if _differs(text, kinds["time"], true * (1 - VAGUE), true * (1 + VAGUE)):
            yield f"{kinds['size'].text} at {kinds['rate'].text} take {true:.3g} s"


_EQUALS = re.compile(
    r"\s*\(\s*$|\s*=\s*$|,?\s*(?:i\.e\.,?|that is,?|in other words,?|or rather)\s*$"
)


def conversion(text: str, found: Sequence[Quantity]) -> Said:
    """One quantity in two units is one quantity."""
    for one, two in zip(found, found[1:], strict=False):
        same = one.dimension == two.dimension and one.dimension in ("rate", "size", "time")
        link = _EQUALS.fullmatch(text[one.end : two.start])
        closed = "(" not in text[one.end : two.start] or text[two.end : two.end + 1] == ")"
        if same and link and closed and one.text != two.text:
            unlike = re.sub(r"[\d.,\s]", "", one.text) != re.sub(r"[\d.,\s]", "", two.text)
            wide = 1.08 if one.dimension == "size" and "i" not in one.text + two.text else 1.0
            low, high = one.low / wide, one.high * wide
            if one.dimension == "size" and "i" in one.text:
                low = high = one.value
            if unlike and not low <= two.high or unlike and not two.low <= high:
                yield f"{one.text} is not {two.text}"


_LINE = re.compile(
    r"^[\s-]*(?:\w+[\s-]){0,2}?(?:link|line|port|network|ethernet|infiniband|card|adapter|nic|cable)"
    r"\b",
    re.IGNORECASE,
)
_NOT_THE_LINE = re.compile(r"memory|STREAM|PCIe|NVLink|GPU|shared|ports|rails|links|nodes", re.I)
_OTHERS = re.compile(r"\b(?:comparison|compared|against|versus|vs|than|while|whereas|but)\b")
_BOTH_WAYS = re.compile(r"bi-?directional|full.duplex|both (?:directions|ways)", re.IGNORECASE)
_EACH_WAY = re.compile(r"^\s*(?:each way|(?:in|per) each direction|per direction|in each direction)")


def line_rate(text: str, found: Sequence[Quantity]) -> Said:
    """No rate is above that of its line."""
    rates = [one for one in found if one.dimension == "rate"]
    lines = [one for one in rates if one.line_rate or _LINE.match(text[one.end :])]
    if len(lines) != 1 or _NOT_THE_LINE.search(text) or _OTHERS.search(text):
        return
    for one in rates:
        both = _BOTH_WAYS.search(text) and not _EACH_WAY.match(text[one.end :])
        most = lines[0].value * (2 if both else 1)
        if one is not lines[0] and not one.line_rate and one.low > most:
            yield f"{one.text} is above the line of {lines[0].text}"


_SHARE_OF = re.compile(r"\s*(?:out )?of (?:the |its |all |these )?")
_PART_OF = re.compile(
    r"\b(?P<most>most|more than half|the majority) of\b|\b(?P<half>[Hh]alf|[Aa] (?:third|quarter)) of\b"
)


def share(text: str, found: Sequence[Quantity]) -> Said:
    """N of M things are P %, and most of a whole is more than half."""
    for one, two in zip(found, found[1:], strict=False):
        counted = two.dimension not in ("", "%", "x") and one.dimension in ("", two.dimension)
        if not counted or not _SHARE_OF.fullmatch(text[one.end : two.start]):
            continue
        said = [q for q in found if q.dimension == "%" and q.start > two.end]
        true = 100 * one.value / two.value if two.value else 0.0
        close = said and len(text[two.end : said[0].start]) < 40  # noqa: PLR2004 - characters
        if close and len(said) == 1 and _differs(text, said[0], true, true):
            yield f"{one.text} of {two.text} is {true:.1f} %, not {said[0].text}"
    part = _PART_OF.search(text)
    pair = _pair(found)
    if part is None or pair is None:
        return
    one, two = pair
    if part["half"]:
        wanted = _PARTS[part["half"].split()[-1].lower()] * one.value
        if 0 < one.start - part.start() <= len(part[0]) + 5 and not two.low <= wanted <= two.high:
            yield f"{part[0]} {one.text} is not {two.text}"
    elif one.value < two.value / 2:
        yield f"{one.text} is not {part[0]} {two.text}"


_NATIVE = re.compile(r"^\s*of (?:the )?(?:native|bare|line|peak|host|theoretical|its|that)\b")
_TAX = re.compile(r"\b(?:overhead|tax|loss|penalty|cost)\b[^.%]{0,16}$", re.IGNORECASE)
_SO = re.compile(r"\b(?:so|thus|hence|therefore|i\.e\.|meaning|that is)\b")


def complement(text: str, found: Sequence[Quantity]) -> Said:
    """P % of native is a loss of 100 - P %."""
    shares = [one for one in found if one.dimension == "%"]
    if len(shares) != 2 or not _SO.search(text):  # noqa: PLR2004 - both parts
        return
    kept, lost = shares
    if _NATIVE.match(text[kept.end :]) and _TAX.search(text[: lost.start]):
        if abs(kept.value + lost.value - 100) > kept.half + lost.half:
            yield f"{kept.text} and {lost.text} are not 100 %"


_EVERY = re.compile(r"\b(?:all|every|each|always|any)\b", re.IGNORECASE)


def listed(text: str, found: Sequence[Quantity]) -> Said:
    """A limit for all holds for each number of the list after it."""
    head, colon, _ = text.partition(": ")
    shares = [one for one in found if one.dimension == "%"]
    if not colon or not _EVERY.search(head) or len(shares) < 2:  # noqa: PLR2004 - limit and list
        return
    limit = shares[0]
    if limit.end > len(head) or not _MOST.search(text[: limit.start]):
        return
    for one in shares[1:]:
        if one.start > len(head) and one.value > limit.value:
            yield f"{one.text} is not within {limit.text}"


_ITEMS = re.compile(
    r"\b(?P<n>two|three|four|five|six|seven)\s+(?:[\w-]+\s+)?\w+s(?:\s+were\s+\w+)?:\s*"
    r"(?P<items>[^.;:()]{3,120}?\band\b[^.;:()]{1,40})\.?$",
    re.IGNORECASE,
)
MAX_ITEM = 3


def enumeration(text: str, _found: Sequence[Quantity]) -> Said:
    """N things are followed by N names."""
    match = _ITEMS.search(text)
    if match is None:
        return
    items = [one for one in re.split(r",\s*(?:and\s+)?|\s+and\s+", match["items"]) if one.strip()]
    if all(len(one.split()) <= MAX_ITEM for one in items) and len(items) != WORDS[match["n"].lower()]:
        yield f"{match['n']} are announced, {len(items)} follow"


RULES: tuple[tuple[str, Rule], ...] = (
    ("total", total),
    ("direction", direction),
    ("percentage", percentage),
    ("factor", factor),
    ("comparison", comparison),
    ("parts", parts),
    ("order", order),
    ("efficiency", efficiency),
    ("transfer", transfer),
    ("conversion", conversion),
    ("line", line_rate),
    ("share", share),
    ("complement", complement),
    ("bound", listed),
    ("list", enumeration),
)

_LARGEST = re.compile(r"\b(?:largest|highest|worst|maximum|biggest)\b", re.IGNORECASE)
_OWNED = re.compile(r"\b(?:has|have|consists of|comprises|contains|provides)\s+$")
_USED = re.compile(r"\b(?:used|uses|all|ran|runs|occupied)\b", re.IGNORECASE)
_LOSS = re.compile(r"\b(?:slow\w*|loss|overhead|tax|delta|difference|penalty)\b", re.IGNORECASE)


def _next(before: str, after: str) -> Said:
    """Return contradictions of a sentence and the next one."""
    first, second = quantities(before), quantities(after)
    for one in first:
        if one.dimension == "%" and _MOST.search(before[: one.start]) and _LOSS.search(before):
            for two in second:
                near = _LARGEST.search(after[: two.start]) and _LOSS.search(after)
                if two.dimension == "%" and near and two.value > one.value:
                    yield f"{two.text} is above the limit of {one.text} before"
        if one.dimension in CONTAINERS and _OWNED.search(before[: one.start]):
            for two in second:
                more = two.dimension == one.dimension and two.value > one.value
                if more and _USED.search(after[: two.start]):
                    yield f"{two.text} {two.dimension}s, but {one.text} before"


def relations(document: Prose) -> Iterator[tuple[int, str, str]]:
    """Return line, rule and contradiction of each sentence, and of each with the next."""
    for paragraph in document.paragraphs:
        for sentence in paragraph.sentences:
            found = quantities(sentence.text)
            for name, rule in RULES:
                for what in rule(sentence.text, found):
                    yield sentence.line, name, what
        for first, second in zip(paragraph.sentences, paragraph.sentences[1:], strict=False):
            for what in _next(first.text, second.text):
                yield second.line, "bound", what
