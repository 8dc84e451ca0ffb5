# SPDX-License-Identifier: Apache-2.0
"""Sentences about the arms of a study, against its data: percentages, order, and values."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from math import inf

from nearmetal.evidence import Unit
from nearmetal.study.claims.quantities import Stated
from nearmetal.study.claims.text import Found, Prose, Sentence
from nearmetal.study.claims.wording import ABOUT, LEAST, MOST, NEGATED
from nearmetal.study.gate import BANDWIDTHS
from nearmetal.study.judge import Comparison, Verdict
from nearmetal.study.stats import Summary

_CHANGE = re.compile(
    r"(\d+(?:\.\d+)?)\s?%\s+"
    r"(?:\w+ ){0,2}?(higher|lower|more|less|slower|faster|loss|overhead|worse|better)",
    re.IGNORECASE,
)
_LOSES = re.compile(r"\b(?:loses?|lost) (?:about |only )?(\d+(?:\.\d+)?)\s?%", re.IGNORECASE)
_OTHER_BASE = re.compile(r"\b(?:than|against|compared|relative|versus|vs|of an?other)\b")
_FACTOR = re.compile(
    r"\b(?:(?P<twice>twice)|(?P<double>doubles?d?)|(?P<halve>halves|halved)|(?P<half>half)"
    r"|(?P<n>\d+(?:\.\d+)?)(?:\s?x\b| times))"
    r"(?P<fast> as (?:fast|quick)| faster| quicker)?(?P<slow> as slow| slower)?",
    re.IGNORECASE,
)
_AS_MUCH = re.compile(
    r"\s(?:as (?:high|large|long|much)|that|those|higher|larger|greater|longer)\b"
)
_WORD_SLACK = 0.1
"""Share by which a ratio may differ from a factor in words."""
_ORDER = re.compile(r"\b(higher|lower|more|less|slower|faster|worse|better)\b[^.;]{0,40}?\bthan\b")
_WORSE_TIME = ("higher", "more", "slower", "loss", "overhead", "worse")
_WORSE_RATE = ("lower", "less", "slower", "loss", "overhead", "worse")

_SLACK = 1.0
"""Percent that a rounded number in a sentence may differ."""

_VALUE_SLACK = 0.02
_FROM = re.compile(r"\bfrom\s+$", re.IGNORECASE)
_TO = re.compile(r"\s*(?:to|and|-|\N{EN DASH})\s*")


def _named(name: str, text: str) -> int:
    """Return where a name stands in a text as a word; -1: nowhere."""
    match = re.search(rf"(?<![\w-]){re.escape(name.lower())}(?![\w-])", text)
    return match.start() if match else -1


def _names(comparison: Comparison) -> tuple[str, ...]:
    test = comparison.point.test
    return (test, test.removeprefix("osu_"), comparison.point.metric)


def _sizes_of(sentence: Sentence) -> Callable[[int | None], bool]:
    """Return which message sizes a sentence is about: those that it names, else all."""
    text = sentence.text
    found = [one for one in sentence.quantities if one.dimension == "size"]
    if not found:
        return lambda _size: True
    one = found[0]
    # A size in decimal words is often binary: 1 KB is 1024 bytes.
    exact = {one.value, one.value * 1.024, one.value * 1.024**2, one.value * 1.024**3}
    if len(found) > 1 and _TO.fullmatch(text[one.end : found[1].start]):
        high = found[1].value * 1.024**3
        return lambda size: size is not None and one.value <= size <= high
    before = text[: one.start]
    if MOST.search(before):
        return lambda size: size is not None and size <= max(exact)
    if LEAST.search(before) or _FROM.search(before):
        return lambda size: size is not None and size >= one.value
    return lambda size: size in {round(value) for value in exact}


def _about(sentence: Sentence, measured: Sequence[Comparison]) -> Iterator[tuple[Comparison, bool]]:
    """Return the comparisons of a sentence, and whether its subject is the base of each."""
    lowered, fits = sentence.text.lower(), _sizes_of(sentence)
    loses = _LOSES.search(lowered) and not _OTHER_BASE.search(lowered)
    alone = loses and len({one.arms for one in measured}) == 1
    for one in measured:
        base, test = (_named(arm, lowered) for arm in one.arms)
        named = any(_named(name, lowered) >= 0 for name in _names(one))
        # A loss of the only compared arm is against the base, whether or not that is named.
        both = min(base, test) >= 0 or (alone and base < 0 <= test)
        if both and named and fits(one.point.size):
            yield one, 0 <= base < test


def _tax(comparison: Comparison, *, swapped: bool) -> tuple[float, float] | None:
    """Return the limits of the tax in percent: those of the interval, where there is one.

    The tax is of the test arm against the base, or the other way round.
    """
    found = comparison.ratio
    if found is None:
        return None
    limits = [found.value] if found.low is None or found.high is None else [found.low, found.high]
    ratios = [1 / limit if swapped else limit for limit in limits]
    taxes = [(r - 1) * 100 if comparison.point.lower_is_better else (1 - r) * 100 for r in ratios]
    return min(taxes), max(taxes)


_Taxes = list[tuple[float, float]]


def _factor(text: str, here: Sequence[tuple[Comparison, bool]]) -> Iterator[str]:
    """A factor in words or digits: the first arm of the sentence against the other."""
    match = _FACTOR.search(text)
    if match is None or NEGATED.search(text) or len(_FACTOR.findall(text)) > 1:
        return
    before, after = text[: match.start()], text[match.end() :]
    metric = here[0][0].point.metric
    of_metric = re.match(rf"\s(?:the )?(?:\w+ )?{re.escape(metric)}\b", after, re.IGNORECASE)
    verb = match["double"] or match["halve"]
    itself = verb and re.search(rf"\b{re.escape(metric)}\b[^,;]{{0,20}}$", before, re.IGNORECASE)
    speed = match["fast"] or match["slow"]
    if not (of_metric or itself or speed or (not verb and _AS_MUCH.match(after))):
        return
    said = float(match["n"] or (0.5 if match["half"] or match["halve"] else 2))
    slack = (2 if ABOUT.search(before) else 1) * _WORD_SLACK
    ratios: list[float] = []
    for one, swapped in here:
        if one.ratio is None or one.ratio.low is None or one.ratio.high is None:
            continue
        lower = one.point.lower_is_better
        inverse = bool(match["fast"]) if lower else bool(match["slow"])
        ends = (one.ratio.low, one.ratio.high)
        ratios += [1 / end if swapped is not inverse else end for end in ends]
    if not ratios:
        return
    under, over = max(ratios) * (1 + slack) < said, min(ratios) > said * (1 + slack)
    if (over and not LEAST.search(before)) or (under and not MOST.search(before)):
        yield f"{match[0].strip()}: measured is a factor of {min(ratios):.3g} to {max(ratios):.3g}"


def _percentage(match: re.Match[str], taxes: _Taxes, *, lower: bool) -> Iterator[str]:
    worse = match.re is _LOSES or match[2].lower() in (_WORSE_TIME if lower else _WORSE_RATE)
    said = float(match[1]) if worse else -float(match[1])
    bound = MOST.search(match.string[: match.start()])
    most, least = max(high for _, high in taxes), min(low for low, _ in taxes)
    worst = max(low for low, _ in taxes)
    if worst > said if bound else not least - _SLACK <= said <= most + _SLACK:
        somewhere = f", at least {worst:.1f} % somewhere" if bound else ""
        found = f"{least:.1f} % to {most:.1f} %{somewhere}"
        yield f"{bound[0] if bound else ''}{match[0]}: measured are {found}"


def _order(text: str, taxes: _Taxes, *, lower: bool) -> Iterator[str]:
    match = _ORDER.search(text)
    if match is None or NEGATED.search(text) or _FACTOR.search(text):
        return
    worse = match[1].lower() in (_WORSE_TIME if lower else _WORSE_RATE)
    against = [low if not worse else -high for low, high in taxes]
    if max(against, default=-inf) > 0:
        least, most = min(low for low, _ in taxes), max(high for _, high in taxes)
        yield f"{match[1]} than: measured is a tax of {least:.1f} % to {most:.1f} %"


def _scaled(one: Stated, unit: Unit) -> float | None:
    """Return a value of a sentence in the unit of a point; None: another dimension."""
    if one.dimension == "time" and unit in (Unit.MICROSECONDS, Unit.SECONDS):
        return one.value * (1e6 if unit is Unit.MICROSECONDS else 1)
    scale = BANDWIDTHS.get(unit)
    return one.value / 1e9 / scale if one.dimension == "rate" and scale else None


def _values(sentence: Sentence, measured: Sequence[Comparison]) -> Iterator[str]:
    """Return values of one arm at one size that no launch of it had."""
    said = [one for one in sentence.quantities if one.dimension in ("time", "rate")]
    if len(said) != 1:
        return
    lowered, fits = sentence.text.lower(), _sizes_of(sentence)
    seen: list[Summary] = []
    values: list[float] = []
    for one in measured:
        if not fits(one.point.size) or all(_named(name, lowered) < 0 for name in _names(one)):
            continue
        value = _scaled(said[0], one.point.unit)
        sides = zip(one.arms, (one.base, one.test), strict=True)
        named = [summary for arm, summary in sides if _named(arm, lowered) >= 0]
        if value is not None and len(named) == 1:
            seen += named
            values.append(value)
    within = [
        one.minimum * (1 - _VALUE_SLACK) <= value <= one.maximum * (1 + _VALUE_SLACK)
        for one, value in zip(seen, values, strict=True)
    ]
    if seen and not any(within):
        least, most = min(one.minimum for one in seen), max(one.maximum for one in seen)
        yield f"{said[0].text}: measured are {least:.4g} to {most:.4g}"


def _two_values(sentence: Sentence, here: Sequence[tuple[Comparison, bool]]) -> Iterator[str]:
    """Return values of two arms, each beside the name of its arm, that no launch of it had."""
    said = [one for one in sentence.quantities if one.dimension in ("time", "rate")]
    if len(said) != 2 or _CHANGE.search(sentence.text):  # noqa: PLR2004 - one of each arm
        return
    lowered = sentence.text.lower()
    for at in (0, 1):
        near: list[str] = []
        for one, swapped in here:
            sides = list(zip(one.arms, (one.base, one.test), strict=True))
            arms = sides if swapped else sides[::-1]
            places = [_named(arm, lowered) for arm, _ in arms]
            spots = sorted(
                [(places[i], f"arm{i}") for i in (0, 1)] + [(q.start, "value") for q in said]
            )
            order = [kind.rstrip("01") for _, kind in spots]
            value = _scaled(said[at], one.point.unit)
            if value is None or order not in (["arm", "value"] * 2, ["value", "arm"] * 2):
                return
            seen = arms[at][1]
            if seen.minimum * (1 - _VALUE_SLACK) <= value <= seen.maximum * (1 + _VALUE_SLACK):
                break
            near.append(f"{seen.minimum:.4g} to {seen.maximum:.4g}")
        else:
            yield f"{said[at].text}: measured are {near[0]}"


def _compared(text: str, here: Sequence[tuple[Comparison, bool]]) -> Iterator[str]:
    """Return what contradicts the measured taxes and factors of two arms."""
    taxes = [tax for one, swapped in here if (tax := _tax(one, swapped=swapped)) is not None]
    if not taxes:
        return
    lower = here[0][0].point.lower_is_better
    changes = [*_LOSES.finditer(text), *_CHANGE.finditer(text)]
    for match in changes:
        yield from _percentage(match, taxes, lower=lower)
    if not changes:
        yield from _factor(text, here)
        yield from _order(text, taxes, lower=lower)


def against(document: Prose, measured: Sequence[Comparison]) -> Found:
    """Return the claims that no measured point confirms: of these arms, tests and sizes."""
    usable = [one for one in measured if one.verdict is not Verdict.REFUSED]
    for sentence in document.sentences:
        here = list(_about(sentence, usable))
        for what in _compared(sentence.text, here):
            yield sentence.line, what
        for what in _two_values(sentence, here) if here else _values(sentence, usable):
            yield sentence.line, what
