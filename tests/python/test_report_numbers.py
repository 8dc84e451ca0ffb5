# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearmetal.report import numbers
from nearmetal.report.drawing import LABEL
from nearmetal.report.lettering import width, wrapped
from nearmetal.report.svg import (
    NARROW,
    WIDE,
    ChartBar,
    Mark,
    Series,
    bar_chart,
    line_chart,
    ratio_chart,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.01234, "0.0123"),
        (1, "1.00"),
        (9.996, "10.00"),
        (12.34, "12.3"),
        (123.4, "123"),
        (1234567, "1,230,000"),
    ],
)
def test_three_digits(value: float, text: str) -> None:
    assert numbers.digits(value) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (numbers.size(0), "0 B"),
        (numbers.size(8), "8 B"),
        (numbers.size(65536), "64 KiB"),
        (numbers.size(4 << 20), "4 MiB"),
        (numbers.size(1500), "1500 B"),
        (numbers.short_size(8), "8"),
        (numbers.short_size(65536), "64K"),
        (numbers.microseconds(0.25), "250 ns"),
        (numbers.microseconds(25), "25.0 µs"),
        (numbers.microseconds(2500), "2.50 ms"),
        (numbers.megabytes_per_second(0.1), "100 kB/s"),
        (numbers.megabytes_per_second(250), "250 MB/s"),
        (numbers.megabytes_per_second(12345), "12.3 GB/s"),
        (numbers.megamessages_per_second(0.15), "150 k/s"),
        (numbers.megamessages_per_second(12), "12.0 M/s"),
        (numbers.data(10), "10.0 B"),
        (numbers.data(3 * 10**9), "3.00 GB"),
        (numbers.times(20), "20.0\N{MULTIPLICATION SIGN}"),
        (numbers.tick("20.0 µs"), "20 µs"),
        (numbers.tick("2.50 µs"), "2.50 µs"),
        (numbers.tick("0.100"), "0.100"),
        (numbers.tick("1.00\N{MULTIPLICATION SIGN}"), "1\N{MULTIPLICATION SIGN}"),
    ],
)
def test_units_keep_numbers_short(text: str, expected: str) -> None:
    assert text == expected


@given(st.floats(1e-9, 1e12))
def test_digits_stay_near_the_value(value: float) -> None:
    assert float(numbers.digits(value).replace(",", "")) == pytest.approx(value, rel=0.006)


@given(
    st.lists(
        st.tuples(st.sampled_from([0, 1, 8, 64, 4096, 1 << 22]), st.floats(1e-4, 1e7)),
        min_size=1,
        max_size=6,
        unique_by=lambda p: p[0],
    )
)
def test_marks_stay_inside_the_chart(points: list[tuple[int, float]]) -> None:
    marks = tuple(Mark(s, v, v * 0.9, v * 1.1, f"{v}") for s, v in sorted(points))
    for chart in (
        line_chart("t", "a", [Series("x", "auto", marks)], numbers.microseconds),
        ratio_chart("t", "a", [Series("x", "auto", marks)]),
    ):
        height = float(chart.split('viewBox="0 0 760 ')[1].split('"')[0])
        for part in chart.split("translate(")[1:]:
            x, y = (float(v) for v in part.split(")")[0].split(","))
            assert 0 <= x <= 760
            assert 0 <= y <= height


def test_labels_at_one_height_do_not_cover_each_other() -> None:
    series = [Series(f"s{i}", "auto", (Mark(8, 1.0, 1.0, 1.0, ""),)) for i in range(4)]
    chart = line_chart("t", "a", series, numbers.microseconds)
    places = [float(p.split('y="')[1].split('"')[0]) for p in chart.split('class="label')[1:]]
    assert min(b - a for a, b in pairwise(places)) >= 14


def test_charts_of_nothing_are_nothing() -> None:
    assert line_chart("t", "a", [Series("x", "auto", ())], numbers.microseconds) == ""
    assert ratio_chart("t", "a", []) == ""


def test_bars_begin_at_zero_and_keep_their_proportion() -> None:
    bars = [
        ChartBar("a", "auto", 10.0, 9.0, 11.0, "10", "#x"),
        ChartBar("b", "stock", 1.0, 1.0, 1.0, "1"),
    ]
    chart = bar_chart("t", [("g", bars)])
    widths = [float(p.split('width="')[1].split('"')[0]) for p in chart.split("<rect")[1:]]
    assert widths[0] / widths[1] == pytest.approx(10, rel=0.02)
    assert '<a href="#x">' in chart


@given(st.text(st.characters(codec="utf-8"), min_size=1, max_size=200), st.floats(40, 800))
def test_a_wrapped_name_fits_and_loses_no_letter(name: str, room: float) -> None:
    lines = wrapped(name, room, LABEL)
    assert all(width(line, LABEL) <= room for line in lines)
    assert "".join("".join(lines).split()) == "".join(name.split())


def test_long_names_make_room_in_both_charts() -> None:
    name = "a-name-of-an-arm-" * 12
    marks = tuple(Mark(s, 1.0, 1.0, 1.0, "") for s in (8, 64))
    bars = [ChartBar(name, "arm-1", 1.0, 1.0, 1.0, "1.00 µs (+10.0 %)")]
    for layout in (WIDE, NARROW):
        for chart in (
            line_chart("t", name, [Series(name, "arm-1", marks)], str, layout=layout),
            bar_chart("t", [("g", bars)], layout),
        ):
            shown = "".join(re.findall(r">([^<>]+)</text>", chart))
            assert "".join(shown.split()).count(name) >= 1
