# SPDX-License-Identifier: Apache-2.0
"""What a rule found."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class Finding:
    """One contradiction: the line of the claim, the rule's name, and why it cannot stand."""

    line: int
    rule: str
    what: str
