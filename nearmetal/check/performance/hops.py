# SPDX-License-Identifier: Apache-2.0
"""Groups of nodes behind one switch, as latencies show them: snapshots do not know switches. Pure.

A pair within a group is near, a pair of two groups is far. Groups are accepted only if nearly all
pairs agree with them, and a group has at least three nodes. So neither one slow node, nor one
slow pair, nor noise makes a class of its own in which it would be normal.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import combinations
from statistics import fmean, median_low

from nearmetal.check.performance.robust import FLOOR

_LEAST_GROUP = 3
_AGREE = 0.9
_FEW = 0.1
"""Pairs that may be slow by themselves, as a share of all."""

_MOSTLY = 0.5
_STEPS = 6

Near = Mapping[tuple[str, str], bool]


def groups(names: Sequence[str], slow: Mapping[tuple[str, str], float]) -> dict[str, int] | None:
    """Return the group of each node, from the slowness of pairs in both directions.

    None: the pairs have two levels that no grouping explains. A pair without a value is far.
    """
    one = dict.fromkeys(names, 0)
    values = {
        (a, b): (slow[a, b] + slow[b, a]) / 2
        for a, b in combinations(names, 2)
        if (a, b) in slow and (b, a) in slow
    }
    near = _near(names, values)
    if near is None:
        return one
    found = _settled(names, near, _seeded(names, near))
    agree = sum(is_near == (found[a] == found[b]) for (a, b), is_near in near.items())
    if agree < _AGREE * len(near):
        minority = min(sum(near.values()), len(near) - sum(near.values()))
        return None if minority > max(1, _FEW * len(near)) else one
    sizes = Counter(found.values())
    usual = [name for name in names if sizes[found[name]] >= _LEAST_GROUP]
    if len(usual) == len(names):
        return found
    if len(usual) <= len(names) / 2:
        return None
    inner = groups(usual, slow)
    return inner and _with_few(inner, [name for name in names if name not in inner], values)


def _with_few(
    inner: Mapping[str, int], few: Sequence[str], values: Mapping[tuple[str, str], float]
) -> dict[str, int]:
    """Return groups with the nodes that are far from all others, each in the least far group.

    They are slow, or alone behind a switch. Their values remain, so they can be seen.
    """
    found = dict(inner)
    for name in few:
        apart: dict[int, list[float]] = defaultdict(list)
        for other, group in inner.items():
            value = values.get((name, other), values.get((other, name)))
            if value is not None:
                apart[group].append(value)
        found[name] = min(apart, key=lambda group: fmean(apart[group]), default=0)
    return found


def _near(names: Sequence[str], values: Mapping[tuple[str, str], float]) -> Near | None:
    """Return which pairs are near; None: all are alike.

    The slowness of a pair is that of its distance and that of both nodes: each is fitted by turns.
    """
    if len(values) < _LEAST_GROUP * 2:
        return None
    partners: dict[str, list[tuple[tuple[str, str], str]]] = {name: [] for name in names}
    for a, b in values:
        partners[a].append(((a, b), b))
        partners[b].append(((a, b), a))
    own = dict.fromkeys(names, 0.0)
    near: dict[tuple[str, str], bool] = {}
    for _ in range(_STEPS):
        left = {pair: value - own[pair[0]] - own[pair[1]] for pair, value in values.items()}
        limit = _limit(list(left.values()))
        near = {pair: value <= limit for pair, value in left.items()}
        levels = [
            median_low([value for pair, value in left.items() if near[pair] is side] or [limit])
            for side in (True, False)
        ]
        if levels[1] - levels[0] < FLOOR:
            return None
        own = {
            name: median_low(
                [values[pair] - levels[0 if near[pair] else 1] - own[other] for pair, other in ours]
                or [0.0]
            )
            for name, ours in partners.items()
        }
        # Levels and nodes may exchange a constant: the middle node has none.
        shift = median_low(list(own.values()))
        own = {name: value - shift for name, value in own.items()}
    return near


def _limit(values: list[float]) -> float:
    """Return the limit that splits values into two sets with the least squared distances."""
    ordered = sorted(values)
    total, count = sum(ordered), len(ordered)
    below, best, limit = 0.0, -1.0, ordered[-1]
    for index, value in enumerate(ordered[:-1], 1):
        below += value
        apart = below / index - (total - below) / (count - index)
        gain = index * (count - index) * apart * apart
        if gain > best:
            best, limit = gain, (value + ordered[index]) / 2
    return limit


def _seeded(names: Sequence[str], near: Near) -> dict[str, int]:
    found: dict[str, int] = {}
    for group, seed in enumerate(names):
        if seed in found:
            continue
        found[seed] = group
        for name in names:
            if name not in found and _is_near(near, seed, name):
                found[name] = group
    return found


def _settled(names: Sequence[str], near: Near, found: dict[str, int]) -> dict[str, int]:
    """Move each node to the group to most of whose nodes it is near, until none moves."""
    for _ in range(_STEPS):
        before = dict(found)
        for own, name in enumerate(names):
            members: dict[int, list[bool]] = {}
            for other in names:
                if other != name:
                    members.setdefault(found[other], []).append(_is_near(near, name, other))
            shares = {group: fmean(ours) for group, ours in members.items()}
            best = max(shares, key=lambda group: shares[group])
            found[name] = best if shares[best] > _MOSTLY else len(names) + own
        if found == before:
            break
    return found


def _is_near(near: Near, a: str, b: str) -> bool:
    return near.get((a, b), near.get((b, a), False))
