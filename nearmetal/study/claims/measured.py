# SPDX-License-Identifier: Apache-2.0
"""Sentences about the arms of a study, against its data: percentages, order, and values."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from math import inf

from nearmetal.evidence import Unit
from nearmetal.study.claims.quantities import Stated
from nearmetal.study.claims.text import Found, Prose, Sentence
from nearmetal.study.claims.wording import LEAST, MOST, NEGATED
from nearmetal.study.gate import BANDWIDTHS
from nearmetal.study.judge import Comparison, Verdict
from nearmetal.study.stats import Summary

_CHANGE = re.compile(
    r"(\d+(?:\.\d+)?)\s?%\s+"
    r"(?:\w+ ){0,2}?(higher|lower|more|less|slower|faster|loss|overhead|worse|better)",
    re.IGNORECASE,
)
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
    for one in measured:
        base, test = (_named(arm, lowered) for arm in one.arms)
        named = any(_named(name, lowered) >= 0 for name in _names(one))
        if min(base, test) >= 0 and named and fits(one.point.size):
            yield one, base < test


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


def _percentage(match: re.Match[str], taxes: _Taxes, *, lower: bool) -> Iterator[str]:
    worse = match[2].lower() in (_WORSE_TIME if lower else _WORSE_RATE)
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
    if match is None or NEGATED.search(text):
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


def against(document: Prose, measured: Sequence[Comparison]) -> Found:
    """Return the claims that no measured point confirms: of these arms, tests and sizes."""
    usable = [one for one in measured if one.verdict is not Verdict.REFUSED]
    for sentence in document.sentences:
        text = sentence.text
        here = list(_about(sentence, usable))
        taxes = [tax for one, swapped in here if (tax := _tax(one, swapped=swapped)) is not None]
        changes = list(_CHANGE.finditer(text))
        lower = bool(here) and here[0][0].point.lower_is_better
        if taxes:
            for match in changes:
                for what in _percentage(match, taxes, lower=lower):
                    yield sentence.line, what
            if not changes:
                for what in _order(text, taxes, lower=lower):
                    yield sentence.line, what
        if not here:
            for what in _values(sentence, usable):
                yield sentence.line, what
