# SPDX-License-Identifier: Apache-2.0
"""The linter of claims: sentences whose numbers contradict each other, or data.

The rules are arithmetic and wording; no rule knows a text. Each contradiction has the line, the
claim, and the reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nearmetal.study.claims.measured import against
from nearmetal.study.claims.relations import relations
from nearmetal.study.claims.rules import RULES
from nearmetal.study.claims.text import read
from nearmetal.study.judge import Comparison


@dataclass(frozen=True, order=True)
class Contradiction:
    """The line of a claim, the rule that the claim breaks, and the contradiction in words."""

    line: int
    rule: str
    what: str


def lint(text: str, measured: Sequence[Comparison] = ()) -> list[Contradiction]:
    """Return the contradictions in a text, and between the text and `measured` comparisons."""
    document = read(text)
    found = {
        Contradiction(line, name, what) for name, rule in RULES for line, what in rule(document)
    }
    found |= {Contradiction(line, name, what) for line, name, what in relations(document)}
    data = {Contradiction(line, "data", what) for line, what in against(document, measured)}
    return sorted(found | data)
