# SPDX-License-Identifier: Apache-2.0
"""Claims as data: who against whom, in which test, and within which limits they hold.

Every claim becomes limits of one quantity. With a base it is the performance of the arm by that of
the base: the ratio of rates, or of times turned over; without one it is the figure itself, or its
share of the line rate. `about` leaves a quarter of what is claimed on either side; `at most` and
`at least` leave what the claim says. Limits are fixed here, before data are seen.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from enum import Enum
from functools import cache
from importlib import resources
from typing import NamedTuple

TOLERANCE = 0.25
"""What `about` leaves open on either side, as a share of what is claimed."""

CLAIMED = ("vmw-ib", "vmw-adapter", "sdsc", "osu")
"""Studies whose claims are here."""


class Kind(Enum):
    """What the number of a claim says."""

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
        """Whether it is of one arm alone."""
        return self in (Kind.SHARE, Kind.MICROSECONDS, Kind.GIGABITS)


class Limits(NamedTuple):
    """Where a quantity must lie; None: open on that side."""

    low: float | None
    high: float | None


def _performance(kind: Kind, value: float) -> float:
    """Return the performance by that of the base at which the claim says exactly so."""
    share = value / 100
    return {
        Kind.LOSS: 1 - share,
        Kind.GAIN: 1 + share,
        Kind.HIGHER: 1 / (1 + share),
        Kind.MORE_TIME: 1 / (1 + share),
        Kind.LOWER: 1 / (1 - share) if share < 1 else float("inf"),
        Kind.TIMES: value,
        Kind.SLOWER: 1 / value,
        Kind.SHARE: share,
        Kind.MICROSECONDS: value,
        Kind.GIGABITS: value,
    }[kind]


_MORE_IS_BETTER = (Kind.GAIN, Kind.LOWER, Kind.TIMES)
"""Kinds whose larger number is more performance."""


@dataclass(frozen=True)
class Claim:
    """One claim. `line` is that of the source's text; `nodes` and sizes None: all."""

    study: str
    id: str
    line: int
    value: float
    kind: Kind
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
        """The roles that it needs arms for."""
        return (self.arm, self.base) if self.base else (self.arm,)

    @property
    def one_point_is_enough(self) -> bool:
        """Whether `up to` is claimed: the best point decides."""
        return self.bound == "reaches"

    @property
    def limits(self) -> Limits:
        """Where the quantity must lie for the claim to hold."""
        if self.kind is Kind.DIFFERENCE:
            return Limits(1 - self.value / 100, 1 + self.value / 100)
        exact = _performance(self.kind, self.value)
        if self.bound in ("about", "reaches"):
            ends = sorted(
                _performance(self.kind, self.value * (1 + side)) for side in (-TOLERANCE, TOLERANCE)
            )
            return Limits(ends[0], None if self.one_point_is_enough else ends[1])
        better = (self.bound == "at least") is (self.kind in _MORE_IS_BETTER or self.kind.absolute)
        return Limits(exact, None) if better else Limits(None, exact)

    def fits(self, test: str, metric: str, size: int | None, nodes: int | None) -> bool:
        """Return whether a point is one that the claim is about."""
        sized = (self.from_size is None or (size is not None and size >= self.from_size)) and (
            self.to_size is None or (size is not None and size <= self.to_size)
        )
        here = self.nodes is None or nodes == self.nodes
        return sized and here and test in self.tests and metric in self.metrics


def _whole(word: str) -> int | None:
    return int(word) if word else None


@cache
def _all() -> tuple[Claim, ...]:
    file = resources.files(__package__).joinpath("claims.csv")
    rows = csv.DictReader(file.read_text(encoding="utf-8").splitlines())
    return tuple(
        Claim(
            row["study"],
            row["id"],
            int(row["line"]),
            float(row["value"]),
            Kind(row["kind"]),
            row["bound"],
            row["arm"],
            row["base"],
            tuple(row["tests"].split("|")),
            tuple(row["metrics"].split("|")),
            _whole(row["from_size"]),
            _whole(row["to_size"]),
            _whole(row["nodes"]),
            row["text"],
        )
        for row in rows
    )


def claims_of(study: str) -> tuple[Claim, ...]:
    """Return the claims of a study, in the order of its text."""
    return tuple(claim for claim in _all() if claim.study == study)


def roles_of(study: str) -> tuple[str, ...]:
    """Return the roles that the claims of a study name."""
    return tuple(dict.fromkeys(role for claim in claims_of(study) for role in claim.roles))
