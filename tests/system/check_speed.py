# SPDX-License-Identifier: Apache-2.0
"""What `nearmetal check performance` blames. A healthy node may be blamed by one run of many."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

RUNS = 3
Blamed = set[tuple[str, str]]
"""Checks, each with a node."""


def blamed(run: Callable[[], dict[str, Any]], expected: Blamed) -> Blamed:
    """Return the findings of nodes that are settled, and not refuted by another run."""
    seen: list[Blamed] = []
    for _ in range(RUNS):
        found = run()
        if any("settle" in why for why in found["not_run"].values()):
            continue
        seen.append({(f["check"], node) for f in found["findings"] for node in f["nodes"]})
        if seen[-1] == expected:
            return expected
    assert seen, "nothing was settled"
    return set.intersection(*seen)
