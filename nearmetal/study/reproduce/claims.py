# SPDX-License-Identifier: Apache-2.0
"""Claims as data: two arms, a test, and the limits within which the claim holds.

Every claim becomes limits of one quantity. With a base, the quantity is the performance of the arm
divided by that of the base: the ratio of rates, or of times inverted. Without a base, it is the
value itself, or its share of the line rate. `about` allows a quarter of the number on either side;
`at most` and `at least` are one limit. The limits are fixed here, before the data are seen.
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

from nearmetal.study.model import Point

TOLERANCE = 0.25
"""Share of the number that `about` allows on either side."""

CLAIMED = ("vmw-ib", "vmw-adapter", "sdsc", "osu")
"""Published studies with claims."""


class ClaimKind(Enum):
    """Meaning of the number of a claim."""

    LOSS = "loss"
    GAIN = "gain"
    HIGHER = "higher"
    LOWER = "lower"
    MORE_TIME = "more-time"
    TIMES = "times"
    SLOWER = "slower"
    DIFFERENCE = "difference"
    SHARE = "share"
    MICROSECONDS = "us"
    GIGABITS = "gbit"

    @property
    def absolute(self) -> bool:
        """Whether the claim is about one arm alone."""
        return self in (ClaimKind.SHARE, ClaimKind.MICROSECONDS, ClaimKind.GIGABITS)


class ClaimLimits(NamedTuple):
    """Limits of a quantity; None: no limit on that side."""

    low: float | None
    high: float | None

    def hold(self, value: float) -> bool:
        """Return whether a value lies within the limits."""
        low, high = self
        return (low is None or value >= low) and (high is None or value <= high)


def _performance(kind: ClaimKind, value: float) -> float:
    """Return the performance, divided by that of the base, that the number states."""
    share = value / 100
    return {
        ClaimKind.LOSS: 1 - share,
        ClaimKind.GAIN: 1 + share,
        ClaimKind.HIGHER: 1 / (1 + share),
        ClaimKind.MORE_TIME: 1 / (1 + share),
        ClaimKind.LOWER: 1 / (1 - share) if share < 1 else float("inf"),
        ClaimKind.TIMES: value,
        ClaimKind.SLOWER: 1 / value,
        ClaimKind.SHARE: share,
        ClaimKind.MICROSECONDS: value,
        ClaimKind.GIGABITS: value,
    }[kind]


_MORE_IS_BETTER = (ClaimKind.GAIN, ClaimKind.LOWER, ClaimKind.TIMES)
"""Kinds whose larger number means more performance."""


@dataclass(frozen=True)
class Claim:
    """One claim. `line` is in the text of the source; `nodes` and sizes None: all."""

    study: str
    id: str
    line: int
    value: float
    kind: ClaimKind
    bound: str
    arm: str
    base: str
    tests: tuple[str, ...]
    metrics: tuple[str, ...]
    from_size: int | None
    to_size: int | None
    nodes: int | None
    text: str

    @property
    def roles(self) -> tuple[str, ...]:
        """The roles that need an arm."""
        return (self.arm, self.base) if self.base else (self.arm,)

    @property
    def one_point_is_enough(self) -> bool:
        """Whether the claim is `up to`: the best point decides."""
        return self.bound == "reaches"

    @property
    def limits(self) -> ClaimLimits:
        """The limits within which the claim holds."""
        if self.kind is ClaimKind.DIFFERENCE:
            return ClaimLimits(1 - self.value / 100, 1 + self.value / 100)
        exact = _performance(self.kind, self.value)
        if self.bound in ("about", "reaches"):
            ends = sorted(
                _performance(self.kind, self.value * (1 + side)) for side in (-TOLERANCE, TOLERANCE)
            )
            return ClaimLimits(ends[0], None if self.one_point_is_enough else ends[1])
        better = (self.bound == "at least") is (self.kind in _MORE_IS_BETTER or self.kind.absolute)
        return ClaimLimits(exact, None) if better else ClaimLimits(None, exact)

    def fits(self, point: Point) -> bool:
        """Return whether the claim is about this point."""
        low, high, size = self.from_size, self.to_size, point.size
        sized = (low is None and high is None) or (
            size is not None and size >= (low or 0) and (high is None or size <= high)
        )
        here = self.nodes in (None, point.nodes)
        return sized and here and point.test in self.tests and point.metric in self.metrics


def _whole(word: str) -> int | None:
    return int(word) if word else None


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split("|"))


_COLUMNS: dict[str, Callable[[str], Any]] = {
    "line": int,
    "value": float,
    "kind": ClaimKind,
    "tests": _words,
    "metrics": _words,
    "from_size": _whole,
    "to_size": _whole,
    "nodes": _whole,
}
"""How a column is read; the others are text."""


@cache
def _all() -> tuple[Claim, ...]:
    file = resources.files(__package__).joinpath("claims.csv")
    rows = csv.DictReader(file.read_text(encoding="utf-8").splitlines())
    return tuple(
        Claim(**{name: _COLUMNS.get(name, str)(text) for name, text in row.items()}) for row in rows
    )


def claims_of(study: str) -> tuple[Claim, ...]:
    """Return the claims of a study, in the order of its text."""
    return tuple(claim for claim in _all() if claim.study == study)


def roles_of(study: str) -> tuple[str, ...]:
    """Return the roles in the claims of a study."""
    return tuple(dict.fromkeys(role for claim in claims_of(study) for role in claim.roles))
