# SPDX-License-Identifier: Apache-2.0
"""Which algorithm is chosen from which times."""

from __future__ import annotations

import random

import pytest

from nearmetal.study.choose import OWN, choose, choose_whole, gains, promising, ranges


def noisy(seed: int, middle: float, n: int = 10) -> list[float]:
    numbers = random.Random(seed)
    return [middle * numbers.uniform(0.9, 1.1) for _ in range(n)]


def test_a_clear_gain_is_chosen_and_noise_is_not() -> None:
    times = {
        ("alltoall", 8): {OWN: noisy(1, 10), "clear": noisy(2, 6), "clearer": noisy(3, 5)},
        ("alltoall", 64): {OWN: noisy(4, 10), "equal": noisy(5, 10)},
        ("bcast", 8): {OWN: noisy(6, 10), "small": noisy(7, 9.7)},
    }
    chosen = choose(times)
    assert {point: gain.algorithm for point, gain in chosen.items()} == {("alltoall", 8): "clearer"}
    gain = chosen["alltoall", 8]
    assert gain.interval is not None
    assert 0.4 < gain.interval.low < gain.ratio < gain.interval.high < 0.65


def test_launches_are_compared_with_those_of_their_own_turn() -> None:
    # Other work made every launch but the first ten times slower, and then slower again.
    load = [1, 10, 20, 40, 60, 80, 100, 120, 150, 200]
    times = {("bcast", 8): {OWN: [10.0 * x for x in load], "half": [5.0 * x for x in load]}}
    assert choose(times)["bcast", 8].ratio == pytest.approx(0.5)


def test_among_many_comparisons_few_launches_decide_nothing() -> None:
    fast = {OWN: [10.0] * 6, "fast": [5.0] * 6}
    assert choose({("bcast", 8): fast})
    equal = {OWN: [10.0] * 6, "fast": [10.0] * 6}
    many = {("bcast", size): equal for size in range(16, 100)}
    assert not choose({("bcast", 8): fast} | many)


def test_noise_alone_is_rarely_chosen() -> None:
    wrong = sum(
        bool(
            choose(
                {
                    ("bcast", size): {OWN: noisy(100 * run + size, 10), "x": noisy(-run - size, 10)}
                    for size in range(5)
                }
            )
        )
        for run in range(1, 41)
    )
    assert wrong <= 4


def test_a_choice_for_all_sizes_must_not_be_slower_at_any() -> None:
    harmless = {OWN: [10.0] * 8, "1": [10.0] * 8, "2": [12.0] * 8}
    fast = {OWN: [10.0] * 8, "1": [8.0] * 8, "2": [5.0] * 8}
    chosen = choose_whole({("bcast", 8): fast, ("bcast", 64): harmless})
    assert {point: gain.algorithm for point, gain in chosen.items()} == {
        ("bcast", 8): "1",
        ("bcast", 64): "1",
    }
    assert not choose_whole({("bcast", 64): harmless})
    unmeasured = {OWN: [10.0] * 8}
    assert not choose_whole({("bcast", 8): fast, ("bcast", 64): unmeasured})


def test_a_launch_that_is_missing_at_the_end_is_left_out() -> None:
    assert gains({OWN: [10.0, 10.0, 10.0], "x": [5.0, 5.0]})[0].ratio == 0.5


def test_promising_algorithms_were_the_fastest_somewhere() -> None:
    times = {
        8: {OWN: [10.0, 12.0], "a": [50.0, 9.0], "b": [9.5, 9.5], "c": [30.0]},
        64: {OWN: [10.0], "a": [20.0], "b": [11.0], "c": [7.0]},
        512: {OWN: [10.0], "d": [11.0]},
        4096: {"d": [1.0]},
    }
    assert promising(times, 3) == ["c", "a"]
    assert promising(times, 1) == ["c"]


def test_ranges_meet_at_the_geometric_means() -> None:
    sizes = [8, 512, 8192]
    assert ranges(sizes, {8: "a"}) == [(8, 63, "a")]
    assert ranges(sizes, {512: "a"}) == [(64, 2047, "a")]
    assert ranges(sizes, {8192: "a"}) == [(2048, 16383, "a")]
    assert ranges(sizes, {8: "a", 512: "a", 8192: "b"}) == [(8, 2047, "a"), (2048, 16383, "b")]
    assert ranges([64], {64: "a"}) == [(64, 127, "a")]
    assert ranges(sizes, {}) == []
