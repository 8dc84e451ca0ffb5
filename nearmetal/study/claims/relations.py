# SPDX-License-Identifier: Apache-2.0
"""All rules over the quantities of a sentence, and of a sentence and the next."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

from nearmetal.study.claims import expressions, pairs, shares, sums, wholes
from nearmetal.study.claims.pairs import Said
from nearmetal.study.claims.quantities import CONTAINERS, Stated
from nearmetal.study.claims.text import Prose, Sentence
from nearmetal.study.claims.wording import MOST, SOMETIMES

Rule = Callable[[str, Sequence[Stated]], Said]

RULES: tuple[tuple[str, Rule], ...] = (
    ("total", wholes.total),
    ("direction", pairs.direction),
    ("percentage", pairs.percentage),
    ("factor", pairs.factor),
    ("comparison", pairs.comparison),
    ("parts", wholes.parts),
    ("order", pairs.order),
    ("cost", pairs.cost),
    ("total", wholes.repeated),
    ("total", wholes.mixed),
    ("total", expressions.arithmetic),
    ("difference", sums.difference),
    ("parts", sums.remainder),
    ("mean", sums.mean),
    ("bound", sums.worst),
    ("bound", sums.within),
    ("total", sums.scaled),
    ("transfer", sums.too_fast),
    ("efficiency", wholes.efficiency),
    ("transfer", wholes.transfer),
    ("conversion", wholes.conversion),
    ("line", wholes.line_rate),
    ("share", shares.share),
    ("complement", shares.complement),
    ("bound", wholes.listed),
    ("list", wholes.enumeration),
)

_LARGEST = re.compile(r"\b(?:largest|highest|worst|maximum|biggest)\b", re.IGNORECASE)
_OWNED = re.compile(r"\b(?:has|have|consists of|comprises|contains|provides)\s+$")
_USED = re.compile(r"\b(?:used|uses|all|ran|runs|occupied)\b", re.IGNORECASE)
_LOSS = re.compile(r"\b(?:slow\w*|loss|overhead|tax|delta|difference|penalty)\b", re.IGNORECASE)


def _next(first: Sentence, second: Sentence) -> Said:
    """Return contradictions of a sentence and the next one."""
    before, after = first.text, second.text
    for one in first.quantities:
        limit = one.dimension == "%" and MOST.search(before[: one.start])
        if limit and _LOSS.search(before) and not SOMETIMES.match(before[one.end :]):
            for two in second.quantities:
                near = _LARGEST.search(after[: two.start]) and _LOSS.search(after)
                if two.dimension == "%" and near and two.value > one.value:
                    yield f"{two.text} is above the limit of {one.text} before"
        if one.dimension in CONTAINERS and _OWNED.search(before[: one.start]):
            for two in second.quantities:
                more = two.dimension == one.dimension and two.value > one.value
                if more and _USED.search(after[: two.start]):
                    yield f"{two.text} {two.dimension}s, but {one.text} before"


def relations(document: Prose) -> Iterator[tuple[int, str, str]]:
    """Return line, rule and contradiction of each sentence, and of each with the next."""
    for paragraph in document.paragraphs:
        for sentence in paragraph.sentences:
            for name, rule in RULES:
                for what in rule(sentence.text, sentence.quantities):
                    yield sentence.line, name, what
        for first, second in pairwise(paragraph.sentences):
            for what in _next(first, second):
                yield second.line, "bound", what
