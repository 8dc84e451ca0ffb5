# SPDX-License-Identifier: Apache-2.0
"""All rules over one text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nearmetal.study.claims import arithmetic, wording
from nearmetal.study.claims.data import against
from nearmetal.study.claims.text import read

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nearmetal.study.claims.finding import Finding
    from nearmetal.study.judge import Comparison


def lint(text: str, measured: Sequence[Comparison] = ()) -> list[Finding]:
    """Return what contradicts itself in a text, and what `measured` comparisons contradict."""
    document = read(text)
    found = {finding for rule in (*arithmetic.RULES, *wording.RULES) for finding in rule(document)}
    return sorted(found | set(against(document, measured)))
