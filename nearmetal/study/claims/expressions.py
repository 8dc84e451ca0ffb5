# SPDX-License-Identifier: Apache-2.0
"""The rule of printed expressions: A x B = C, and A + B = C, with or without units.

It is quiet if the expression is a piece of a longer one, or if its units do not fit together.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from nearmetal.study.claims.pairs import MEASURES, Said
from nearmetal.study.claims.quantities import NOUNS, SHORT_NUMBER, Stated, quantities
from nearmetal.study.claims.wording import OPERATOR_AFTER, OPERATOR_BEFORE

_LETTER = r"[A-Za-z/%\N{MICRO SIGN}\N{GREEK SMALL LETTER MU}]"
_WORDS = rf"(?: ?{_LETTER}{{1,20}}){{0,2}}"
_EXPRESSION = re.compile(
    rf"(?<![\w.,-])(?P<left>{SHORT_NUMBER}{_WORDS}(?: ?(?P<sign>[x*+\N{{MULTIPLICATION SIGN}}]) ?{SHORT_NUMBER}{_WORDS}"
    rf")(?: ?(?P=sign) ?{SHORT_NUMBER}{_WORDS}){{0,3}}) ?= ?(?P<whole>{SHORT_NUMBER})(?P<unit>{_WORDS})(?![\d.]*\d)"
)
_TERM = re.compile(rf"({SHORT_NUMBER})({_WORDS})")
_PER_THING = re.compile(r"(?<=[A-Za-z])/[a-z]{3,}")
"""What each thing has: `8 GPUs/node`."""
_PLAIN = re.compile(
    rf"(?:{NOUNS})(?:s|es)?|[a-z]{{4,}}|[A-Z]{{2,}}s|per|in|of|all|and", re.IGNORECASE
)
"""Words that name things. Others, such as kW and dozen, may scale the number."""
_SCALE_WORDS = re.compile(r"(?:dozen|pair|hundred|thousand|billion|percent\w+)s?", re.IGNORECASE)
UNLIKE_SIZES = 1.1
"""Factor between decimal and binary prefixes: `64 kB x 1024 = 64 MB` may mean either."""
BEFORE = 24
"""Characters before an expression that may join it to another."""


@dataclass(frozen=True)
class _Term:
    """A number of an expression in base units, and what it measures."""

    value: float
    half: float
    """Half a unit of the last digit; a whole number may be exact."""
    exact: bool
    kind: str
    """Time, rate, size, %, or empty for a count."""
    unit: str
    """The unit as printed."""
    unknown: frozenset[str]
    """Words that may be units of their own."""


def _term(text: str) -> _Term | None:
    match = _TERM.match(text.strip())
    if match is None:
        return None
    unit = _PER_THING.sub("", match[2].strip())
    found = quantities(f"{match[1]} {unit}")
    if len(found) != 1:
        return None
    measured = found[0].dimension in (*MEASURES, "%")
    number = float(match[1].replace(",", ""))
    scale = found[0].value / number if number and measured else 1.0
    scale /= 100 if found[0].dimension == "%" else 1
    digits = len(match[1].partition(".")[2])
    words = [] if measured else unit.split()
    unknown = {word for word in words if not _PLAIN.fullmatch(word) or _SCALE_WORDS.fullmatch(word)}
    kind = found[0].dimension if measured and found[0].dimension != "million" else ""
    exact = not digits and kind != "%"
    half = 0.5 * 10.0**-digits * scale
    return _Term(number * scale, half, exact, kind, unit, frozenset(unknown))


def _fit(terms: Sequence[_Term], whole: _Term, *, plus: bool) -> bool:
    """Return whether the units of the terms give that of the whole."""
    kinds = [term.kind for term in terms]
    unknown = [term.unknown for term in terms]
    if plus:
        return {*kinds} == {whole.kind} and len({*unknown, whole.unknown}) == 1
    measures = [kind for kind in kinds if kind not in ("", "%")]
    if sum(bool(one) for one in unknown) > 1 or frozenset().union(*unknown) != whole.unknown:
        return False
    return measures == ([] if whole.kind in ("", "%") else [whole.kind])


def arithmetic(text: str, _found: Sequence[Stated]) -> Said:
    """A x B = C, and A + B = C."""
    for match in _EXPRESSION.finditer(text):
        after = text[match.end("whole") :]
        before = text[max(0, match.start() - BEFORE) : match.start()]
        if OPERATOR_BEFORE.search(before) or OPERATOR_AFTER.match(after):
            continue
        read = [_term(term) for term in match["left"].split(match["sign"])]
        terms = [term for term in read if term]
        whole = _term(match["whole"] + match["unit"])
        plus = match["sign"] == "+"
        if whole is None or len(terms) != len(read) or not _fit(terms, whole, plus=plus):
            continue
        alike = all(term.unit == whole.unit for term in terms if term.kind == whole.kind)
        halves = [0.0 if term.exact else term.half for term in terms]
        if plus:
            true = sum(term.value for term in terms)
            room = sum(halves)
        else:
            true = prod(term.value for term in terms)
            room = true * sum(
                half / (term.value or 1) for half, term in zip(halves, terms, strict=True)
            )
        # A whole in another unit is rounded, as in `95 s + 30 s = 2 min`.
        room += whole.half if not whole.exact or (whole.kind and not alike) else 0.0
        decimal = whole.kind == "size" and not alike and "i" not in whole.unit
        room += true * (UNLIKE_SIZES - 1) if decimal else 0.0
        if abs(whole.value - true) > room + 1e-9 * max(1e-3, true):
            scale = whole.value / float(match["whole"].replace(",", "")) if whole.value else 1.0
            yield f"{match['left'].strip()} are {true / scale:g}, not {match['whole']}"
