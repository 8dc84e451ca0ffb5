# SPDX-License-Identifier: Apache-2.0
"""Studies made of the numbers of publications: what their authors would import."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import exp

from nearmetal.evidence import Unit
from nearmetal.evidence.published import STUDIES, find
from nearmetal.study.model import Arm, Cell, Observation, Point
from nearmetal.study.reproduce import Data
from nearmetal.study.reproduce.claims import Claim, ClaimKind, claims_of

SIZES = (1, 64, 1024, 65536, 4194304)
NODES = (1, 3, 4, 6, 12, 16, 32)
RUNS = 10
"""Runs of a study that does not print their number."""

BELOW = 0.75
"""Share of a number that authors who write "less than" have measured: not the number itself."""

SMALL = ("latency", "time", "bandwidth")
UNITS = {
    "latency": Unit.MICROSECONDS,
    "time": Unit.MICROSECONDS,
    "bandwidth": Unit.MEGABYTES_PER_SECOND,
    "speed": Unit.NANOSECONDS_PER_DAY,
    "rate": Unit.MEGAOPS,
    "harmonic_mean_teps": Unit.TRAVERSED_EDGES,
}
CORES = {48: 1, 96: 2, 192: 4, 384: 8, 576: 12, 768: 16}
"""Nodes by the cores of the tables of VMW-ADAPTER."""

Key = tuple[str, Point]


def points(study: str) -> list[Point]:
    """Return the points of the claims of a study."""
    found: dict[Point, None] = {}
    for claim in claims_of(study):
        test, metric = claim.tests[0], claim.metrics[0]
        unit = UNITS.get(metric, Unit.SECONDS)
        micro = metric in SMALL
        for size in SIZES if micro else (None,):
            for nodes in NODES if not micro or claim.nodes else (2,):
                point = Point(test.partition("_")[0], test, "", size, 2, nodes, metric, unit)
                if claim.fits(point):
                    found[point] = None
    return list(found)


def printed(claim: Claim, point: Point) -> float | None:
    """Return the performance that the text gives the arm at a point, relative to its base."""
    if claim.over == "typical":
        return _of_a_table(point)
    number = claim.value
    if claim.bound == "between" and claim.to:
        number = (claim.value * claim.to) ** 0.5
    if claim.one_point_is_enough and point.size not in (None, 1):
        number /= 3
    if number == 0:
        number = 1.0
    if claim.bound == "less than":
        number *= BELOW
    if claim.kind in (ClaimKind.TIMES, ClaimKind.SLOWER) and number < 1:
        number = 1.0
    stated: float = PERFORMANCE[claim.kind](number)
    return stated


PERFORMANCE = {
    ClaimKind.LOSS: lambda n: 1 - n / 100,
    ClaimKind.GAIN: lambda n: 1 + n / 100,
    ClaimKind.HIGHER: lambda n: 100 / (100 + n),
    ClaimKind.MORE_TIME: lambda n: 100 / (100 + n),
    ClaimKind.LOWER: lambda n: 100 / (100 - n),
    ClaimKind.TIMES: lambda n: n,
    ClaimKind.SLOWER: lambda n: 1 / n,
    ClaimKind.MICROSECONDS: lambda n: 1 / n,
    ClaimKind.GIGABITS: lambda n: n / 8e-3,
    ClaimKind.SHARE: lambda n: n / 100 / 8e-3,
}
"""Performance that a number states: 1/µs and MB/s where it stands alone, shares per Gbit/s."""


def _of_a_table(point: Point) -> float | None:
    """Return IB against RoCE as in table 4 of VMW-ADAPTER."""
    for number in find("vmw-adapter", arm="SR-IOV IB", base="SR-IOV RoCE", metric="faster"):
        if number.test.lower() == point.test and CORES[int(number.scale.split()[0])] == point.nodes:
            return 1 + number.value / 100
    return None


LINE_RATES = {
    "sdsc": {"ethernet": 10},
    "vmw-ib": {},
    "vmw-adapter": {},
    "vmw-gdr": {"ib": 56, "roce": 40},
    "osu": {},
}


def arm_of(study: str, role: str) -> Arm:
    """Return the arm of a role."""
    fabric = role.rpartition("-")[2]
    rate = LINE_RATES[study].get(fabric, 32 if study == "sdsc" else 100)
    return Arm(role, "p", fabric, "far", facts={"line_rate_gbit": str(rate)})


def _order(claim: Claim) -> int:
    """Numbers without a word are nearer to what was measured than limits."""
    return (claim.bound in ("at most", "at least")) * 3 + claim.one_point_is_enough


def performances(study: str) -> dict[Key, float]:
    """Return the performance of each role at each point, from the numbers of the text."""
    found: dict[Key, float] = {}
    claims = sorted(claims_of(study), key=lambda claim: (not claim.kind.absolute, _order(claim)))
    for point in points(study):
        here = [claim for claim in claims if claim.fits(point)]
        while any(_place(study, claim, point, found, start=False) for claim in here) or any(
            _place(study, claim, point, found, start=True) for claim in here
        ):
            pass
    return found


def _place(study: str, claim: Claim, point: Point, found: dict[Key, float], *, start: bool) -> bool:
    """Give the arm or the base of a claim its performance; return whether it had none."""
    stated = printed(claim, point)
    if stated is None:
        return False
    arm, base = (claim.arm, point), (claim.base, point)
    if claim.kind.absolute:
        rate = float(arm_of(study, claim.arm).facts["line_rate_gbit"])
        value = stated * (rate if claim.kind is ClaimKind.SHARE else 1)
        return found.setdefault(arm, value) is value
    if base in found:
        return arm not in found and found.setdefault(arm, found[base] * stated) > 0
    if arm in found:
        return found.setdefault(base, found[arm] / stated) > 0
    return start and found.setdefault(base, 1.0) > 0


@dataclass(frozen=True)
class Published:
    """A study made of printed numbers, with launches that differ by noise."""

    study: str
    known: Mapping[Key, float]
    runs: int

    @classmethod
    def of(cls, study: str) -> Published:
        """Return the study of a publication."""
        return cls(study, performances(study), STUDIES[study].runs or RUNS)

    def data(self, noise: float, seed: int) -> Data:
        """Return the data of one repetition of the study."""
        dice = random.Random(seed)
        cells: dict[str, list[Cell]] = {}
        for (role, point), performance in self.known.items():
            values = self._launches(performance, point, noise, dice)
            seen = tuple(Observation("r", i, None, v, "s", 1) for i, v in enumerate(values))
            cells.setdefault(role, []).append(Cell(role, point, seen))
        arms = {role: arm_of(self.study, role) for role in cells}
        return Data(arms, lambda arm: cells[arm.name], lambda _cell: (), lambda _cell: {})

    def _launches(
        self, performance: float, point: Point, noise: float, dice: random.Random
    ) -> Iterator[float]:
        for _ in range(self.runs):
            value = performance * exp(dice.gauss(0, noise))
            yield 1 / value if point.lower_is_better else value
