# SPDX-License-Identifier: Apache-2.0
"""Simulate the judge of studies: coverage, false verdicts and power of six intervals of a ratio.

    python -m benchmarks.study_power                   # the tables of docs/design/study-power.md
    python -m benchmarks.study_power --trials 500 --only "two modes"

Each trial draws the launches of two arms. Their true ratio is the margin of 44 of 48 cores for coverage
and false verdicts, and 1 for the power: the share of ACCEPT. `as it is` resamples the 20 launches of
real cells (`tests/data/logs/osu_repeats`): both arms from one cell. `each its own` resamples the two
real arms of one point, each around its median. A row "6 to N" repeats launches as `study run` does,
until the intervals of both medians are within 5 %. "Until decided" looks after each launch and stops at the
first verdict.

The candidates: order statistics of the medians, the same interpolated (Hettmansperger and Sheather
1986, doi:10.1016/0167-7152(86)90021-0), the exact interval of Hodges and Lehmann with 1.3 % and with
2.5 % a side, that of `nearmetal/study/ratios.py` without its rule for two modes (the former one), and
with it.
"""

from __future__ import annotations

import argparse
import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from itertools import count
from math import exp, floor, isnan, log, nan, sqrt
from pathlib import Path
from statistics import median
from typing import NamedTuple

from nearmetal.evidence.parse import parse_log
from nearmetal.study.design import half_width_percent
from nearmetal.study.judge import Verdict
from nearmetal.study.ratios import MODES_ERROR, RATIO_ERROR, PairedArms, critical, ratio
from nearmetal.study.stats import LEVEL, MIN_LAUNCHES, coverage, median_interval

ROOT = Path(__file__).resolve().parents[1]
LOGS = ROOT / "tests/data/logs/osu_repeats"
LIMIT = 48 / 44
COUNTS = (6, 8, 10, 20, 30)
MOST = (10, 20, 30)
WIDTH_PERCENT = 5.0
ALONE = (20, 50)
DEVIATION = 0.05
DISTANCES = (0.5, 1, 1.5, 2, 3, 4)
"""Distances between the true ratio and the margin, in standard deviations of a launch."""
GRID = 0.2

Limits = tuple[float, float]


class Scatter(NamedTuple):
    """A distribution of launches, and its median."""

    draw: Callable[[random.Random], float]
    middle: float


class Noise(NamedTuple):
    """How two arms scatter: `pick` returns one scatter per arm. With a grid, values are rounded."""

    pick: Callable[[random.Random], tuple[Scatter, Scatter]]
    alike: bool = True
    grid: float = 0.0

    def shown(self, values: Sequence[float]) -> list[float]:
        """Return the values as a program prints them."""
        return [round(v / self.grid) * self.grid for v in values] if self.grid else list(values)


@cache
def real_cells() -> tuple[tuple[list[float], list[float]], ...]:
    """Return the values of both real arms at each point, divided by their medians."""
    found: dict[tuple[str, float, str], dict[str, list[float]]] = defaultdict(dict)
    for path in sorted(LOGS.glob("*/osu_*.out")):
        for table in parse_log(path.read_text(encoding="utf-8"), str(path), "osu").tables:
            for row in table.rows:
                for metric in ("latency", "bandwidth"):
                    value = row.values.get(metric)
                    if value:
                        point = found[table.test, row.values.get("size", 0), metric]
                        point.setdefault(path.parent.name, []).append(value)
    arms = ("bare-metal", "usernetes")
    sides = [[p[arm] for arm in arms] for p in found.values() if len(p) == len(arms)]
    return tuple(
        ([v / median(a) for v in a], [v / median(b) for v in b])
        for a, b in sides
        if min(len(a), len(b)) >= max(COUNTS[:-1])
    )


def _from(values: Sequence[float]) -> Scatter:
    return Scatter(lambda source: source.choice(values), 1.0)


def _alike(scatter: Scatter) -> Noise:
    return Noise(lambda _source: (scatter, scatter))


def _different(base: Scatter, test: Scatter) -> Noise:
    return Noise(lambda _source: (base, test), alike=False)


def _one_cell(source: random.Random) -> tuple[Scatter, Scatter]:
    values = source.choice(source.choice(real_cells()))
    return _from(values), _from(values)


def _two_cells(source: random.Random) -> tuple[Scatter, Scatter]:
    sides = [_from(values) for values in source.choice(real_cells())]
    source.shuffle(sides)
    return sides[0], sides[1]


def _drift(source: random.Random) -> tuple[Scatter, Scatter]:
    """Return arms whose launches rise or fall together by up to 10 % in twenty launches."""
    slope = source.uniform(-0.05, 0.05)

    def drifting() -> Scatter:
        at = count()
        return Scatter(lambda source: source.gauss(10, 0.2) + slope * next(at), nan)

    return drifting(), drifting()


def _tailed(source: random.Random) -> float:
    """Return a launch whose logarithm has Student's distribution with three degrees of freedom."""
    return 10 * exp(0.03 * source.gauss(0, 1) / sqrt(source.gammavariate(1.5, 2) / 3))


def _gauss(deviation: float) -> Scatter:
    return Scatter(lambda source: source.gauss(10, deviation), 10)


def _two_modes(share: float, middle: float, deviation: float = 0.1) -> Scatter:
    return Scatter(
        lambda source: source.gauss(10, deviation) + 3 * (source.random() < share), middle
    )


def _equal_medians(base: Scatter, test: Scatter) -> Noise:
    """Return arms of which the test arm is moved onto the median of the base."""
    moved = Scatter(lambda source: test.draw(source) * base.middle / test.middle, base.middle)
    return _different(base, moved)


SKEWED = Scatter(lambda source: 9.5 + 0.5 * source.expovariate(log(2)), 10)
SELDOM, OFTEN = _two_modes(0.3, 10.0566), _two_modes(0.5, 11.5)
"""Arms that take the upper mode in 30 and in 50 % of the launches."""
NARROW, WIDE = _two_modes(0.3, 10.017, 0.03), _two_modes(0.3, 10.0849, 0.15)
NOISES = {
    "real, as it is": Noise(_one_cell),
    "two modes, 30 % above": _alike(SELDOM),
    "two modes, 50 % above": _alike(OFTEN),
    "rounded": _alike(_gauss(0.3))._replace(grid=GRID),
    "Gaussian": _alike(_gauss(0.5)),
    "log-normal": _alike(Scatter(lambda source: source.lognormvariate(0, 0.1), 1)),
    "heavy tails": _alike(Scatter(_tailed, 10)),
    "drift": Noise(_drift),
    "real, each its own": Noise(_two_cells, alike=False),
    "Gaussian, 1 to 2": _different(_gauss(0.25), _gauss(0.5)),
    "Gaussian, 1 to 5": _different(_gauss(0.1), _gauss(0.5)),
    "Gaussian, skewed": _different(_gauss(0.5), SKEWED),
    "two modes, 30 to 50 %": _different(SELDOM, OFTEN),
    "two modes, 50 to 30 %": _different(OFTEN, SELDOM),
    "30 to 50 %, equal medians": _equal_medians(SELDOM, OFTEN),
    "50 to 30 %, equal medians": _equal_medians(OFTEN, SELDOM),
    "one to two modes": _equal_medians(_gauss(0.1), SELDOM),
    "two to one modes": _equal_medians(SELDOM, _gauss(0.1)),
    "two modes, 1 to 5": _equal_medians(NARROW, WIDE),
    "two modes, 5 to 1": _equal_medians(WIDE, NARROW),
}


def _joined(test: Sequence[float], base: Sequence[float], ours: Limits, theirs: Limits) -> Limits:
    """Return the interval of a ratio from those of both medians (MOVER)."""
    a, b = log(median(test)), log(median(base))
    down = sqrt((a - log(ours[0])) ** 2 + (log(theirs[1]) - b) ** 2)
    up = sqrt((log(ours[1]) - a) ** 2 + (b - log(theirs[0])) ** 2)
    return exp(a - b - down), exp(a - b + up)


def _ranks(values: Sequence[float]) -> Limits:
    found = median_interval(values)
    assert found is not None  # noqa: S101 - at least six launches
    return found.low, found.high


def _between(values: Sequence[float]) -> Limits:
    """Return the interval of the median, interpolated between two ranks."""
    n, ordered = len(values), sorted(values)
    rank = sum(coverage(n, r) >= LEVEL for r in range(1, n // 2 + 1))
    if rank == n // 2:
        return ordered[rank - 1], ordered[-rank]
    wide, narrow = coverage(n, rank), coverage(n, rank + 1)
    share = (wide - LEVEL) / (wide - narrow)
    share = (n - rank) * share / (rank + (n - 2 * rank) * share)
    return (
        (1 - share) * ordered[rank - 1] + share * ordered[rank],
        (1 - share) * ordered[-rank] + share * ordered[-rank - 1],
    )


def _medians(test: Sequence[float], base: Sequence[float]) -> Limits:
    return _joined(test, base, _ranks(test), _ranks(base))


def _interpolated(test: Sequence[float], base: Sequence[float]) -> Limits:
    return _joined(test, base, _between(test), _between(base))


def _hodges_lehmann(test: Sequence[float], base: Sequence[float], *, error: float) -> Limits:
    """Return the exact interval of arms that scatter alike."""
    arms = PairedArms(sorted(map(log, base)), sorted(map(log, test)))
    rank = critical(len(base), len(test), error)
    low, high = arms.at(rank, arms.pairs - 1 - rank)
    return exp(low), exp(high)


def _pairs(test: Sequence[float], base: Sequence[float]) -> Limits:
    found = ratio(test, base)
    assert found is not None and found.low is not None and found.high is not None  # noqa: S101, PT018
    return found.low, found.high


def _former(test: Sequence[float], base: Sequence[float]) -> Limits:
    """Return the interval without the rule for two modes."""
    arms = PairedArms(sorted(map(log, base)), sorted(map(log, test)))
    middle = arms.pairs / 2
    most = critical(len(base), len(test), RATIO_ERROR)
    rank = max(0, floor(middle - arms.stretch() * (middle - most)))
    low, high = arms.at(rank, arms.pairs - 1 - rank)
    value = median(test) / median(base)
    return min(value, exp(low)), max(value, exp(high))


METHODS: dict[str, Callable[[Sequence[float], Sequence[float]], Limits]] = {
    "medians": _medians,
    "interpolated": _interpolated,
    "Hodges-Lehmann": partial(_hodges_lehmann, error=RATIO_ERROR),
    "Mann-Whitney, 2.5 %": partial(_hodges_lehmann, error=MODES_ERROR),
    "former": _former,
    "chosen": _pairs,
}


class Rates(NamedTuple):
    """Shares of trials: the interval holds the ratio, false verdicts at the margin, power."""

    coverage: float
    accept: float
    reject: float
    power: float

    @classmethod
    def of(cls, trials: Sequence[tuple[Limits, Limits]]) -> Rates:
        """Return the shares over trials, each an interval at the margin and one of equal arms."""
        at_margin = [verdict(at) for at, _ in trials]
        n = len(trials)
        accept, reject = (at_margin.count(v) / n for v in (Verdict.ACCEPT, Verdict.REJECT))
        power = sum(verdict(same) is Verdict.ACCEPT for _, same in trials) / n
        return cls(sum(_holds(at) for at, _ in trials) / n, accept, reject, power)


def _above(value: float, limit: float) -> bool:
    return value > limit * (1 + 1e-12)


def _holds(limits: Limits) -> bool:
    return not _above(limits[0], LIMIT) and not _above(LIMIT, limits[1])


def verdict(limits: Limits) -> Verdict:
    """Return the verdict on one point, as the judge gives it: an end at the limit decides nothing."""
    if _above(limits[0], LIMIT):
        return Verdict.REJECT
    return Verdict.ACCEPT if _above(LIMIT, limits[1]) else Verdict.INCONCLUSIVE


def _launches(
    source: random.Random, scatters: Sequence[Scatter], least: int, most: int
) -> list[list[float]]:
    """Return the launches of each arm: `least`, and more until all medians are known well."""
    sides = [[scatter.draw(source) for _ in range(least)] for scatter in scatters]
    while len(sides[0]) < most and any(
        (half_width_percent(side) or 0.0) > WIDTH_PERCENT for side in sides
    ):
        _add(source, scatters, sides)
    return sides


def _add(source: random.Random, scatters: Sequence[Scatter], sides: list[list[float]]) -> None:
    for side, scatter in zip(sides, scatters, strict=True):
        side.append(scatter.draw(source))


def simulate(
    noise: Noise, least: int, most: int, trials: int, seed: str
) -> tuple[dict[str, Rates], float, float]:
    """Return the rates of each method, the coverage of a median's interval, and the mean of n."""
    source = random.Random(seed)  # noqa: S311 - a simulation, no secret
    found: dict[str, list[tuple[Limits, Limits]]] = {name: [] for name in METHODS}
    held, total = 0.0, 0
    for _ in range(trials):
        scatters = noise.pick(source)
        base, test = _launches(source, scatters, least, most)
        total += len(base)
        shown = noise.shown(base)
        for name, method in METHODS.items():
            same = method(noise.shown(test), shown)
            at = (same[0] * LIMIT, same[1] * LIMIT)
            if noise.grid:  # else each interval grows with the arm
                at = method(noise.shown([v * LIMIT for v in test]), shown)
            found[name].append((at, same))
        low, high = _ranks(base)
        held += nan if isnan(scatters[0].middle) else low <= scatters[0].middle <= high
    return {name: Rates.of(seen) for name, seen in found.items()}, held / trials, total / trials


def until_decided(noise: Noise, most: int, trials: int, seed: str) -> tuple[float, float]:
    """Return false ACCEPT and REJECT at the margin of a reader who stops at the first verdict."""
    source = random.Random(seed)  # noqa: S311 - a simulation, no secret
    found: list[Verdict] = []
    for _ in range(trials):
        scatters = noise.pick(source)
        sides = [[scatter.draw(source) for _ in range(MIN_LAUNCHES)] for scatter in scatters]
        while True:
            shown = (noise.shown([v * LIMIT for v in sides[1]]), noise.shown(sides[0]))
            said = verdict(_pairs(*shown))
            if said is not Verdict.INCONCLUSIVE or len(sides[0]) >= most:
                break
            _add(source, scatters, sides)
        found.append(said)
    return found.count(Verdict.ACCEPT) / trials, found.count(Verdict.REJECT) / trials


def rows(names: Sequence[str], trials: int, seed: int) -> Iterator[str]:
    """Return the table, line by line."""
    yield "| noise | launches | mean | median holds | " + " | ".join(METHODS) + " |"
    yield "|---|---|---|---|" + "---|" * len(METHODS)
    for name in names:
        plans = [(n, n) for n in COUNTS] + [(MIN_LAUNCHES, n) for n in MOST]
        for least, most in plans:
            rates, held, mean = simulate(
                NOISES[name], least, most, trials, f"{seed}/{name}/{least}/{most}"
            )
            launches = str(most) if least == most else f"{least} to {most}"
            known = "" if isnan(held) else f"{100 * held:.1f}"
            cells = [
                f"{100 * r.coverage:.1f} / {100 * r.accept:.1f} / {100 * r.reject:.1f} / {100 * r.power:.0f}"
                for r in rates.values()
            ]
            yield f"| {name} | {launches} | {mean:.0f} | {known} | {' | '.join(cells)} |"


def plan(trials: int, seed: int) -> Iterator[str]:
    """Return the share of decided points by number of launches and distance from the margin."""
    yield "| distance / deviation | " + " | ".join(map(str, COUNTS)) + " |"
    yield "|---|" + "---|" * len(COUNTS)
    for distance in DISTANCES:
        source = random.Random(f"{seed}/plan/{distance}")  # noqa: S311 - a simulation, no secret
        shares = []
        for n in COUNTS:
            decided = 0
            for _ in range(trials):
                base, test = ([source.lognormvariate(0, DEVIATION) for _ in range(n)] for _ in "ab")
                limits = _pairs([v * exp(-distance * DEVIATION) for v in test], base)
                decided += limits[1] < 1
            shares.append(f"{100 * decided / trials:.0f}")
        yield f"| {distance:g} | {' | '.join(shares)} |"


def alone(trials: int, seed: int) -> Iterator[str]:
    """Return how often the interval of one median holds it, if its own width ends the launches."""
    yield "| noise | " + " | ".join(f"6 to {most}" for most in ALONE) + " |"
    yield "|---|" + "---|" * len(ALONE)
    scatters = {f"Gaussian, {10 * d:g} %": _gauss(d) for d in (0.3, 0.5, 0.8, 1.0)}
    for name, scatter in (scatters | {"skewed, 7 %": SKEWED}).items():
        shares = []
        for most in ALONE:
            source = random.Random(f"{seed}/alone/{name}/{most}")  # noqa: S311 - a simulation
            held = 0
            for _ in range(trials):
                (values,) = _launches(source, (scatter,), MIN_LAUNCHES, most)
                low, high = _ranks(values)
                held += low <= scatter.middle <= high
            shares.append(f"{100 * held / trials:.1f}")
        yield f"| {name} | {' | '.join(shares)} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False, prog="python -m benchmarks.study_power", description=__doc__
    )
    parser.add_argument("--trials", type=int, default=3000, help="trials per row")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=NOISES, help="only this noise")
    args = parser.parse_args()
    names = [args.only] if args.only else list(NOISES)
    text = "In percent: coverage / false ACCEPT / false REJECT / power."
    print(f"{text} {args.trials} trials a row, seed {args.seed}.\n")
    for line in rows(names, args.trials, args.seed):
        print(line, flush=True)
    few = max(1, args.trials // 4)
    print("\n| noise | until decided, 6 to 30: false ACCEPT | false REJECT |\n|---|---|---|")
    for name in names:
        if NOISES[name].alike:
            accept, reject = until_decided(NOISES[name], MOST[-1], few, f"{args.seed}/{name}")
            print(f"| {name} | {100 * accept:.1f} | {100 * reject:.1f} |", flush=True)
    print(f"\nMedians of one arm in their intervals, in percent; {args.trials} trials a cell.\n")
    for line in alone(args.trials, args.seed):
        print(line, flush=True)
    print(f"\nDecided points in percent, by launches of each arm; {few} trials a cell.\n")
    for line in plan(few, args.seed):
        print(line, flush=True)


if __name__ == "__main__":
    main()
