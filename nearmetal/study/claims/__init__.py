# SPDX-License-Identifier: Apache-2.0
"""The linter of claims: sentences whose numbers contradict each other, or data.

The rules are arithmetic and wording; no rule knows a text. Each contradiction has the line, the
claim, and the reason.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from nearmetal.study.claims.relations import relations
from nearmetal.study.claims.rules import RULES
from nearmetal.study.claims.text import Found, Prose, read
from nearmetal.study.judge import Comparison, Verdict


@dataclass(frozen=True, order=True)
class Contradiction:
    """The line of a claim, the rule that the claim breaks, and the contradiction in words."""

    line: int
    rule: str
    what: str


_CHANGE = re.compile(
    r"(less than|under|below|at most|up to|about|around)?\s*(\d+(?:\.\d+)?)\s?%\s+"
    r"(?:\w+ ){0,2}?(higher|lower|more|less|slower|faster|loss|overhead|worse|better)",
    re.IGNORECASE,
)
_BOUNDS = ("less than", "under", "below", "at most", "up to")
_WORSE_TIME = ("higher", "more", "slower", "loss", "overhead", "worse")
_WORSE_RATE = ("lower", "less", "slower", "loss", "overhead", "worse")


def _names(comparison: Comparison) -> tuple[str, ...]:
    test = comparison.point.test
    return (test, test.removeprefix("osu_"))


def _tax(comparison: Comparison) -> tuple[float, float] | None:
    """Return the limits of the tax in percent: those of the interval, where there is one."""
    found = comparison.ratio
    if found is None:
        return None
    limits = [found.value] if found.low is None or found.high is None else [found.low, found.high]
    taxes = [(r - 1) * 100 if comparison.point.lower_is_better else (1 - r) * 100 for r in limits]
    return min(taxes), max(taxes)


def against(document: Prose, measured: Sequence[Comparison]) -> Found:
    """Return the claims that no measured point confirms."""
    usable = [c for c in measured if c.verdict is not Verdict.REFUSED]
    for line, match in document.matches(_CHANGE):
        text = match.string.lower()
        here = [
            c
            for c in usable
            if all(re.search(rf"\b{re.escape(arm.lower())}\b", text) for arm in c.arms)
            and any(re.search(rf"\b{re.escape(name.lower())}\b", text) for name in _names(c))
        ]
        taxes = [tax for c in here if (tax := _tax(c)) is not None]
        if not taxes:
            continue
        lower = here[0].point.lower_is_better
        worse = match[3].lower() in (_WORSE_TIME if lower else _WORSE_RATE)
        said = float(match[2]) if worse else -float(match[2])
        bound = (match[1] or "").lower() in _BOUNDS
        most, least = max(high for _, high in taxes), min(low for low, _ in taxes)
        worst = max(low for low, _ in taxes)
        if worst > said if bound else not least - 1 <= said <= most + 1:
            somewhere = f", at least {worst:.1f} % somewhere" if bound else ""
            found = f"{least:.1f} % to {most:.1f} %{somewhere}"
            yield line, f"{match[0].strip()}: measured are {found}"


def lint(text: str, measured: Sequence[Comparison] = ()) -> list[Contradiction]:
    """Return the contradictions in a text, and between the text and `measured` comparisons."""
    document = read(text)
    found = {
        Contradiction(line, name, what) for name, rule in RULES for line, what in rule(document)
    }
    found |= {Contradiction(line, name, what) for line, name, what in relations(document)}
    data = {Contradiction(line, "data", what) for line, what in against(document, measured)}
    return sorted(found | data)
