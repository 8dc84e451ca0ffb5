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
ABOUT = re.compile(
    r"\b(?:about|around|roughly|approximately|nearly|almost|some|close to)\s+(?:(?:a|the)\s+)?$|~\s*$",
    re.IGNORECASE,
)
"""Before a number that is rounded."""
NEGATED = re.compile(r"\b(?:not|no|never|neither|hardly|if|unless|whether)\b", re.IGNORECASE)
"""A sentence with these words may say the contrary of its comparison."""
OPERATOR_BEFORE = re.compile(
    r"(?:(?<=\S )-|[+*/^\N{MULTIPLICATION SIGN}\N{MIDDLE DOT}\N{DIVISION SIGN}\N{MINUS SIGN}]|[\w)]-"
    r"|(?<![A-Za-z])x|\b(?:plus|minus|times|twice|half|double|divided by|% of))\s*\(?$"
)
"""Before a number that an operator joins to what stands before. A dash of a list is none."""
OPERATOR_AFTER = re.compile(
    r"(?: ?[A-Za-z/%\N{MICRO SIGN}]{1,20}){0,2}? ?(?:[-/] ?[\d(]"
    r"|(?:[+*^\N{MULTIPLICATION SIGN}\N{MIDDLE DOT}\N{DIVISION SIGN}\N{MINUS SIGN}]"
    r"|\b(?:x|plus|minus|times)\b) ?[\w(])"
)
"""After a number that an operator joins to what follows; its unit may stand between."""
SOMETIMES = re.compile(
    r"^,? ?(?:(?:for|at|on|in|with|above|below|from|beyond|once|when|if|under|over|during|after|up to)"
    r" (?!(?:all|every|any|each|the whole|the entire)\b)|typically|usually)"
)
"""After a limit that holds under a condition only."""
CACHED = re.compile(
    r"\b(?:cache[ds]?|caching|ram|ramdisk|tmpfs|memory|prefetch\w*)\b", re.IGNORECASE
)
"""Data that need not cross the line."""
