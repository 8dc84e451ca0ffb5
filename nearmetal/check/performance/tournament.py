# SPDX-License-Identifier: Apache-2.0
"""Rounds of disjoint pairs, in which all nodes are busy at once. Pure.

The circle method: one node stays, the others turn. Each pair meets once in n - 1 rounds, and with
an odd number of nodes in n rounds, in each of which one node rests.
"""

from __future__ import annotations

from collections.abc import Sequence

Pair = tuple[str, str]
Round = tuple[Pair, ...]


def tournament(names: Sequence[str]) -> list[Round]:
    """Return the rounds in which each pair meets once."""
    places: list[str | None] = [*names]
    if len(places) % 2:
        places.append(None)
    count = len(places)
    found: list[Round] = []
    for _ in range(count - 1):
        facing = zip(places[: count // 2], reversed(places[count // 2 :]), strict=True)
        found.append(tuple((a, b) for a, b in facing if a is not None and b is not None))
        places.insert(1, places.pop())
    return found


def packed(pairs: Sequence[Pair], most: int) -> list[list[Pair]]:
    """Return the pairs in few groups of at most `most` disjoint pairs."""
    groups: list[tuple[list[Pair], set[str]]] = []
    for pair in pairs:
        for group, busy in groups:
            if len(group) < most and busy.isdisjoint(pair):
                group.append(pair)
                busy.update(pair)
                break
        else:
            groups.append(([pair], set(pair)))
    return [group for group, _ in groups]


def completed(names: Sequence[str], fixed: Sequence[Pair], turn: int) -> Round:
    """Return a round that has the fixed pairs; the other nodes meet as in a tournament's `turn`."""
    busy = {name for pair in fixed for name in pair}
    rest = tournament([name for name in names if name not in busy])
    return (*fixed, *(rest[turn % len(rest)] if rest else ()))
