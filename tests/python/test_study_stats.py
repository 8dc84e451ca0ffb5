# SPDX-License-Identifier: Apache-2.0
"""Statistics against closed forms, published examples, and simulation."""

import random
from collections.abc import Callable
from math import factorial, log, sqrt
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearmetal.study.flags import anderson_darling, modes, outliers, trend
from nearmetal.study.stats import (
    adjust,
    adjust_all,
    coverage,
    mad,
    median_interval,
    percentile,
    summarize,
)

Draw = Callable[[random.Random], float]
SHAPES: dict[str, tuple[Draw, float]] = {
    "normal": (lambda r: r.gauss(10, 1), 10.0),
    "exponential": (lambda r: r.expovariate(1), log(2)),
    "lognormal": (lambda r: r.lognormvariate(0, 1), 1.0),
    "two modes": (lambda r: r.gauss(10, 0.1) + 3 * (r.random() < 0.3), 10.0562),
}
"""Distributions with their medians; that of the last was found numerically."""


@pytest.mark.parametrize(
    ("n", "rank", "expected"),
    # P(at least one on either side), and the table of every textbook on order statistics
    [(5, 1, 0.9375), (6, 1, 0.96875), (10, 2, 0.978516), (20, 6, 0.958611), (30, 10, 0.957226)],
)
def test_coverage_of_order_statistics(n: int, rank: int, expected: float) -> None:
    assert coverage(n, rank) == pytest.approx(expected, abs=5e-6)


def test_five_launches_give_no_interval_and_six_do() -> None:
    assert median_interval([1, 2, 3, 4, 5]) is None
    assert median_interval([1, 2, 3, 4, 5, 9]) == (1, 9, 0.96875)
    many = median_interval(range(1, 21))
    assert many is not None
    assert many[:2] == (6, 15)


def test_a_summary_keeps_every_value_and_says_only_what_n_allows() -> None:
    few = summarize([3.0, 1.0, 2.0])
    assert (few.values, few.median, few.minimum, few.maximum) == ((3.0, 1.0, 2.0), 2.0, 1.0, 3.0)
    assert (few.interval, few.p95, few.p99, few.mad, few.stdev) == (None, None, None, 1.0, 1.0)
    assert summarize([7.0]).stdev is None
    many = summarize([float(i) for i in range(1, 101)])
    assert (many.p95, many.p99) == (95.0, 99.0)
    assert summarize([float(i) for i in range(1, 21)]).p95 == 19.0


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40), st.floats(0, 100))
def test_percentiles_and_medians_are_ordered(values: list[float], percent: float) -> None:
    assert percentile(values, percent) in values
    assert min(values) <= percentile(values, percent) <= max(values)
    interval = median_interval(values)
    assert (interval is None) == (len(values) < 6)
    if interval:
        assert interval.low <= median(values) <= interval.high
        assert interval.coverage >= 0.95


@pytest.mark.parametrize("n", [6, 10, 20])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_interval_of_a_median_covers_as_often_as_it_says(shape: str, n: int) -> None:
    draw, truth = SHAPES[shape]
    source = random.Random(f"{shape} {n}")
    trials, hits, said = 2000, 0, 0.0
    for _ in range(trials):
        interval = median_interval([draw(source) for _ in range(n)])
        assert interval is not None
        hits += interval.low <= truth <= interval.high
        said = interval.coverage
    # four standard deviations of a share of 2000 trials
    assert abs(hits / trials - said) < 4 * sqrt(said * (1 - said) / trials)


def test_adjusted_errors_are_those_of_benjamini_and_hochberg() -> None:
    # their example of 1995: of these fifteen the first four are significant at 5 %
    errors = [
        0.0001,
        0.0004,
        0.0019,
        0.0095,
        0.0201,
        0.0278,
        0.0298,
        0.0344,
        0.0459,
        0.3240,
        0.4262,
        0.5719,
        0.6528,
        0.7590,
        1.0,
    ]
    adjusted = adjust(errors)
    assert [error <= 0.05 for error in adjusted] == [True] * 4 + [False] * 11
    assert adjusted[0] == pytest.approx(0.0015)
    shuffled = list(reversed(errors))
    assert adjust(shuffled) == list(reversed(adjusted))
    assert adjust([]) == []


def test_errors_of_any_wrong_decision_are_those_of_hochberg() -> None:
    assert adjust_all([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.04, 0.04])
    # Equal errors do not grow, so that six launches can decide any number of endpoints.
    assert adjust_all([2 / 924] * 30) == pytest.approx([2 / 924] * 30)
    assert adjust_all([0.002, *[1.0] * 19])[0] == pytest.approx(0.04)


def test_outliers_of_a_published_example() -> None:
    # Iglewicz and Hoaglin's two high values beside eight near 2.4
    values = [2.1, 2.6, 2.4, 2.5, 2.3, 2.1, 2.3, 2.6, 8.2, 8.3]
    assert outliers(values) == (8, 9)
    assert outliers([1.0, 5.0]) == ()
    assert outliers([1.0, 1.0, 1.0, 1.005]) == ()
    assert outliers([1.0, 1.0, 1.0, 1.2]) == ()  # a grid of 0.2 says no more
    assert outliers([1.0, 1.0, 1.0, 1.0, 1.0, 1.23]) == (5,)
    assert mad([1.0, 2.0, 3.0, 4.0, 100.0]) == 1.0


def test_trend_in_closed_form() -> None:
    rising = [float(i) for i in range(10)]
    assert trend(rising)[0] == 45
    assert trend(rising)[1] == pytest.approx(2 / factorial(10))
    assert trend(rising[::-1])[0] == -45
    assert trend(rising[::-1])[1] == pytest.approx(2 / factorial(10))
    assert trend([1.0] * 10) == (0, 1.0)
    assert trend([2.0, 1.0, 3.0]) == (1, 1.0)


def test_the_normality_test_errs_in_one_case_of_twenty() -> None:
    source = random.Random(7)
    rejected = sum(
        anderson_darling([source.gauss(0, 1) for _ in range(20)]) > 0.752 for _ in range(2000)
    )
    assert abs(rejected / 2000 - 0.05) < 4 * sqrt(0.05 * 0.95 / 2000)
    skewed = sum(
        anderson_darling([source.expovariate(1) for _ in range(50)]) > 0.752 for _ in range(200)
    )
    assert skewed > 180
    assert anderson_darling([2.0] * 9) == 0.0


def test_two_modes() -> None:
    assert modes([1.0, 1.1, 1.05, 1.0, 2.0, 2.1, 2.05, 2.0]) == (4, 1.55)
    assert modes([float(i) for i in range(20)]) is None
    assert modes([1.0, 1.1, 5.0]) is None
    source = random.Random(3)
    wrong = sum(modes([source.gauss(10, 1) for _ in range(10)]) is not None for _ in range(1000))
    assert wrong < 60
