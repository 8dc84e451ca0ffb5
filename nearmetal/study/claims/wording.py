# SPDX-License-Identifier: Apache-2.0
"""Words around a number that all readers of sentences take in the same sense."""

from __future__ import annotations

import re

MOST = re.compile(
    r"\b(?:up to|at most|less than|no more than|smaller than|under|below|within|until)\s+$",
    re.IGNORECASE,
)
"""Before an upper limit."""
LEAST = re.compile(r"\b(?:at least|more than|larger than|over|above|beyond)\s+$", re.IGNORECASE)
"""Before a lower limit."""
NEGATED = re.compile(r"\b(?:not|no|never|neither|hardly|if|unless|whether)\b", re.IGNORECASE)
"""A sentence with these words may say the contrary of its comparison."""
