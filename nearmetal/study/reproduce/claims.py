# SPDX-License-Identifier: Apache-2.0
"""Claims as data: two arms, a test, a sentence, and the limits within which the claim holds.

Every claim becomes limits of one quantity. With a base, the quantity is the performance of the arm
divided by that of the base: the ratio of rates, or of times inverted. Without a base, it is the
value itself, or its share of the line rate. A printed number stands for all numbers that round to
it. The words around it say more: `about` and a number without a word allow a quarter of the number
on either side, `almost` a quarter below it, `at most`, `less than` and `at least` are one limit,
`between` are two, and `up to` is the best point. The limits are fixed here, before the data are
seen.
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

from nearmetal.evidence.published import find
from nearmetal.study.model import Point

TOLERANCE = 0.25
"""Share of the number that is allowed on either side, of a percentage also of what is left to 100."""

FLOOR = 1.0
"""Percent that is always allowed: no study here resolves less."""

CLAIMED = ("vmw-ib", "vmw-adapter", "vmw-gdr", "sdsc", "osu")
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

    @property
    def beyond(self) -> str:
        """The values outside of the limits in words."""
        low, high = self
        ends = ((low, "below"), (high, "above"))
        return " or ".join(f"{word} {end:.4g}" for end, word in ends if end is not None)


def _performance(kind: ClaimKind, value: float) -> float:
    """Return the performance, divided by that of the base, that the number states."""
    share = value / 100
    if kind is ClaimKind.LOSS:
        return 1 - share
    if kind in (ClaimKind.GAIN, ClaimKind.DIFFERENCE):
        return 1 + share
    if kind in (ClaimKind.HIGHER, ClaimKind.MORE_TIME):
        return 1 / (1 + share)
    if kind is ClaimKind.LOWER:
        return 1 / (1 - share) if share < 1 else float("inf")
    if kind is ClaimKind.SLOWER:
        return 1 / value
    return share if kind is ClaimKind.SHARE else value


_FALLS = (ClaimKind.LOSS, ClaimKind.HIGHER, ClaimKind.MORE_TIME, ClaimKind.SLOWER)
"""Kinds whose larger number means less performance."""

_PLAIN = (ClaimKind.TIMES, ClaimKind.SLOWER, ClaimKind.MICROSECONDS, ClaimKind.GIGABITS)
"""Kinds whose number is no percentage."""

_OF_A_HUNDRED = (ClaimKind.LOSS, ClaimKind.LOWER, ClaimKind.SHARE)
"""Kinds whose percentage cannot exceed 100."""

BOUNDS = ("", "about", "almost", "at most", "less than", "at least", "between", "up to")
SHARP = ("at most", "less than", "at least", "between")
"""Words that make the printed number a limit: what lies beyond it is never confirmed."""

OVERS = ("", "some", "average", "typical", "peak")


@dataclass(frozen=True)
class Claim:
    """One claim. `line` is in the text of the source; `nodes` and sizes None: all.

    `over` says which points count: each, `some` point, their `average`, the `typical` one, or the
    `peak`. `to` is the other end of `between`. `quote` has the words of the source. One of the
    `tests` may end with the place of its buffers: `osu_bw D D`.
    """

    study: str
    id: str
    line: int
    value: float
    to: float | None
    kind: ClaimKind
    bound: str
    over: str
    arm: str
    base: str
    tests: tuple[str, ...]
    metrics: tuple[str, ...]
    from_size: int | None
    to_size: int | None
    nodes: str
    quote: str

    @property
    def roles(self) -> tuple[str, ...]:
        """The roles that need an arm."""
        return (self.arm, self.base) if self.base else (self.arm,)

    @property
    def one_point_is_enough(self) -> bool:
        """Whether the best point decides."""
        return self.over == "some" or self.bound == "up to"

    @property
    def limits(self) -> ClaimLimits:
        """The limits that confirm the claim."""
        return self._limits(self._allowed(self.value), self._allowed(self.to or self.value))

    @property
    def refuting(self) -> ClaimLimits:
        """The limits outside of which the claim is refuted: a stated limit is as sharp as printed.

        A number that is not reached (`less than`) is exact; any other stands for what rounds to it.
        """
        if self.bound == "less than":
            return self._limits(0.0, 0.0)
        if self.bound in SHARP:
            return self._limits(self._rounding(self.value), self._rounding(self.to or self.value))
        return self.limits

    def _rounding(self, value: float) -> float:
        """Return half a unit of the last printed digit; 0 is exact."""
        printed = find(self.study, line=self.line, value=value) if value else []
        return 0.5 * 10.0 ** -printed[0].digits if printed else 0.0

    def _allowed(self, value: float) -> float:
        if self.kind in _PLAIN:
            return max(TOLERANCE * value, self._rounding(value))
        rest = min(value, 100 - value) if self.kind in _OF_A_HUNDRED else value
        return max(TOLERANCE * rest, self._rounding(value), FLOOR)

    def _limits(self, below: float, above: float) -> ClaimLimits:
        """Return limits of the performance from those of the number."""
        low: float | None = self.value - below
        high: float | None = (self.to or self.value) + above
        if self.kind is ClaimKind.DIFFERENCE:
            share = (self.value + above) / 100
            return ClaimLimits(1 - share, 1 + share)
        if self.bound == "almost":
            high = self.value + self._rounding(self.value)
        low = None if self.bound in ("at most", "less than") else low
        high = None if self.bound == "at least" else high
        ends = [None if end is None else _performance(self.kind, end) for end in (low, high)]
        return ClaimLimits(*(ends if self.raises else ends[::-1]))

    @property
    def raises(self) -> bool:
        """Whether a larger number means more performance."""
        return self.kind not in _FALLS

    @property
    def across(self) -> bool:
        """Whether the arms have different fabrics: their line rates belong to the claim."""
        fabrics = [role.rpartition("-")[2] for role in self.roles]
        return len(set(fabrics) & {"ib", "roce", "ethernet"}) > 1

    def fits(self, point: Point) -> bool:
        """Return whether the claim is about this point."""
        low, high, size = self.from_size, self.to_size, point.size
        sized = (low is None and high is None) or (
            size is not None and size >= (low or 0) and (high is None or size <= high)
        )
        number = self.nodes.removeprefix("not ")
        other = number != self.nodes
        here = not number or (str(point.nodes) == number) is not other
        placed = f"{point.test} {point.setup.buffers}"
        named = point.test in self.tests or placed in self.tests
        return sized and here and named and point.metric in self.metrics


def _whole(word: str) -> int | None:
    return int(word) if word else None


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split("|"))


_COLUMNS: dict[str, Callable[[str], Any]] = {
    "line": int,
    "value": float,
    "to": lambda word: float(word) if word else None,
    "kind": ClaimKind,
    "tests": _words,
    "metrics": _words,
    "from_size": _whole,
    "to_size": _whole,
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
