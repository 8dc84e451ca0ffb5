# SPDX-License-Identifier: Apache-2.0
"""Charts as SVG text: lines and bars. Pure.

Names of series may be of any length. A chart makes room for them, and cuts no text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import log10

from nearmetal.report import numbers, scales
from nearmetal.report.drawing import (
    LABEL,
    LINE,
    TICK,
    legend,
    lines_of_text,
    linked,
    rule,
    sign,
    tag,
    text,
)
from nearmetal.report.lettering import width, wrapped

TOP, BOTTOM = 14, 40
NEAR = 3.0
"""Ratios have an even axis if the largest is at most this many times the smallest."""
_LABEL_GAP = 15.0
_BAR, _BAR_GAP, _GROUP_GAP, _GROUP_NAME = 18, 4, 16, 20
_SIDE = 24
"""Room beside the area for half of the text below its end."""
_NOTE_GAP = 6.0
"""Between neighbouring texts of the horizontal axis."""


@dataclass(frozen=True)
class ChartLayout:
    """The width of a chart; with `ends`, short names stand at line ends, in `right`."""

    width: int
    left: int
    right: int
    bar_left: int
    """Longer names of bars stand above their bars."""
    crowded: int
    """If there are more sizes than this, the axis names powers of two at the distance `step`."""
    step: int
    ends: bool


WIDE = ChartLayout(760, 48, 168, 210, 9, 3, ends=True)
NARROW = ChartLayout(390, 44, _SIDE, 92, 4, 6, ends=False)
"""For telephones, where the text of a wide chart is too small to read."""


@dataclass(frozen=True)
class Mark:
    """One point: its place, its band, its text, and its link."""

    size: int
    value: float
    low: float
    high: float
    text: str
    href: str = ""


@dataclass(frozen=True)
class Series:
    """One line. `style` is a CSS class; `label` stands at its end or in a legend."""

    label: str
    style: str
    marks: tuple[Mark, ...]


@dataclass(frozen=True)
class ChartBar:
    """One bar: its name, its value with band, the text at its end, and its link."""

    label: str
    style: str
    value: float
    low: float
    high: float
    text: str
    href: str = ""


@dataclass(frozen=True)
class Axis:
    """The horizontal axis: its name, and the text of a place on it."""

    name: str = "message size in bytes"
    text: Callable[[int], str] = numbers.short_size


@dataclass(frozen=True)
class Frame:
    """The plotting area and its two scales."""

    left: float
    right: float
    top: float
    bottom: float
    x_range: tuple[float, float]
    y_range: tuple[float, float]
    log_y: bool
    even_x: bool = False

    def x(self, size: int) -> float:
        """Return the horizontal place of a size."""
        low, high = self.x_range
        place = size if self.even_x else scales.place_of(size)
        share = (place - low) / ((high - low) or 1)
        return self.left + share * (self.right - self.left)

    def y(self, value: float) -> float:
        """Return the vertical place of a value."""
        low, high = (log10(v) for v in self.y_range) if self.log_y else self.y_range
        place = log10(max(value, self.y_range[0])) if self.log_y else value
        share = (place - low) / ((high - low) or 1)
        return self.top + (1 - share) * (self.bottom - self.top)


def _notes(frame: Frame, sizes: Sequence[int], axis: Axis) -> list[tuple[float, str]]:
    """Return (place, text) below the area; a text that would touch the one before is left out."""
    found: list[tuple[float, str]] = []
    end = -_SIDE - _NOTE_GAP
    for size in sizes:
        words, x = axis.text(size), frame.x(size)
        half = width(words, TICK) / 2
        if x - half >= end + _NOTE_GAP:
            found.append((x, words))
            end = x + half
    return found


def _grid(
    frame: Frame, notes: list[tuple[float, str]], marks: list[tuple[float, str]], name: str
) -> str:
    parts = []
    for value, words in marks:
        y = frame.y(value)
        parts.append(rule("grid", frame.left, frame.right, y, y))
        parts.append(text(words, "tick", frame.left - 8, y + 4, "end"))
    for x, words in notes:
        parts.append(rule("grid", x, x, frame.top, frame.bottom))
        parts.append(text(words, "tick", x, frame.bottom + 16, "middle"))
    middle = (frame.left + frame.right) / 2
    parts.append(text(name, "axis", middle, frame.bottom + BOTTOM - 4, "middle"))
    return "".join(parts)


def _line(frame: Frame, series: Series, *, signs: bool) -> str:
    def places(*points: tuple[int, float]) -> str:
        return " ".join(f"{frame.x(size):.1f},{frame.y(value):.1f}" for size, value in points)

    marks, style = series.marks, series.style
    band = [(m.size, m.high) for m in marks] + [(m.size, m.low) for m in reversed(marks)]
    return (
        tag("polygon", class_=f"band {style}", points=places(*band))
        + tag(
            "polyline", class_=f"line {style}", points=places(*((m.size, m.value) for m in marks))
        )
        + "".join(
            sign(style, frame.x(m.size), frame.y(m.value), m.text, m.href)
            for m in (marks if signs else ())
        )
    )


def _spread(places: Sequence[float], low: float, high: float) -> list[float]:
    """Return label places, each as near to its own as the gap between neighbours allows."""
    order = sorted(range(len(places)), key=lambda i: places[i])
    result = list(places)
    for i in order:
        result[i] = max(result[i], low)
        low = result[i] + _LABEL_GAP
    for i in reversed(order):
        result[i] = min(result[i], high)
        high = result[i] - _LABEL_GAP
    return result


def _end_labels(frame: Frame, series: Sequence[Series]) -> str:
    parts = []
    ends = [(frame.x(s.marks[-1].size), frame.y(s.marks[-1].value)) for s in series]
    spots = _spread([y for _, y in ends], frame.top + 8, frame.bottom)
    for one, (x, y), spot in zip(series, ends, spots, strict=True):
        parts.append(rule(f"leader {one.style}", x + 5, frame.right + 10, y, float(spot)))
        parts.append(sign(one.style, frame.right + 16, float(spot), one.label))
        parts.append(text(one.label, "label", frame.right + 24, spot + 4.0))
    return "".join(parts)


def _svg(height: float, title: str, description: str, body: str, across: int) -> str:
    return tag(
        "svg",
        body,
        class_="chart",
        viewBox=f"0 0 {across} {height:.0f}",
        role="img",
        aria_label=f"{title}: {description}",
        xmlns="http://www.w3.org/2000/svg",
    )


def line_chart(
    title: str,
    axis: str,
    series: Sequence[Series],
    y_text: Callable[[float], str],
    *,
    height: int = 280,
    x_axis: Axis = Axis(),
    layout: ChartLayout = WIDE,
    ratio: bool = False,
    trace: bool = False,
) -> str:
    """Return lines, both axes logarithmic, in an area of this height. Empty series are left out.

    `ratio` draws the line at 1, where both sides are equal, and near ratios on an even axis.
    `trace` draws values over time, without signs: both axes are even and begin at 0.
    """
    drawn = [s for s in series if s.marks]
    if not drawn:
        return ""
    sizes = sorted({m.size for s in drawn for m in s.marks})
    values = [v for s in drawn for m in s.marks for v in (m.low, m.value, m.high)]
    values += [1.0] if ratio else [0.0] if trace else []
    log = not trace and not (ratio and max(values) <= NEAR * min(values))
    y_range = scales.decades(values) if log else scales.even(values)
    marks = [(t, numbers.tick(y_text(t))) for t in scales.ticks(*y_range, log=log)]

    longest = max(width(s.label, LABEL) for s in drawn)
    at_ends = layout.ends and longest <= layout.right - _SIDE and len(drawn) * _LABEL_GAP <= height
    names, tall = "", 0.0
    if not at_ends:
        names, tall = legend([(s.style, s.label) for s in drawn], layout.width, TOP)
        tall += _NOTE_GAP
    heading = wrapped(axis, layout.width, TICK)
    top = TOP + tall + LINE * len(heading)
    frame = Frame(
        left=max(layout.left, 12 + max(width(words, TICK) for _, words in marks)),
        right=layout.width - (layout.right if at_ends else _SIDE),
        top=top,
        bottom=top + height,
        x_range=(0, sizes[-1])
        if trace
        else (scales.place_of(sizes[0]), scales.place_of(sizes[-1])),
        y_range=y_range,
        log_y=log,
        even_x=trace,
    )
    shown = (
        [round(t) for t in scales.ticks(0, sizes[-1] or 1, log=False)]
        if trace
        else scales.named(sizes, layout.crowded, layout.step)
    )
    body = names + lines_of_text(heading, "axis", 0, TOP + tall)
    body += _grid(frame, _notes(frame, shown, x_axis), marks, x_axis.name)
    if ratio:
        body += rule("one", frame.left, frame.right, frame.y(1), frame.y(1))
    body += "".join(_line(frame, s, signs=not trace) for s in drawn)
    body += _end_labels(frame, drawn) if at_ends else ""
    described = ", ".join(s.label for s in drawn)
    return _svg(frame.bottom + BOTTOM, title, described, body, layout.width)


def ratio_chart(title: str, axis: str, series: Sequence[Series], layout: ChartLayout = WIDE) -> str:
    """Return ratios over message sizes."""
    return line_chart(
        title, axis, series, numbers.plain_times, height=150, layout=layout, ratio=True
    )


def bar_chart(
    title: str, groups: Sequence[tuple[str, Sequence[ChartBar]]], layout: ChartLayout = WIDE
) -> str:
    """Return horizontal bars from zero, in named groups; the whiskers are the bands.

    If a name does not fit beside its bar, all names stand above their bars.
    """
    every = [b for _, bars in groups for b in bars]
    if not every:
        return ""
    longest = max(width(b.label, TICK) for b in every) + 12
    above = longest > layout.bar_left
    left = 0.0 if above else longest
    room = layout.width - left - 12 - max(width(b.text, LABEL) for b in every)
    scale = room / (max(b.high for b in every) or 1)
    parts, y = [], 6.0
    for name, bars in groups:
        if name:
            parts.append(text(name, "group", 0, y + 13))
            y += _GROUP_NAME
        for bar in bars:
            if above:
                lines = wrapped(bar.label, layout.width, TICK)
                parts.append(lines_of_text(lines, "tick", 0, y + 11))
                y += LINE * len(lines)
            else:
                parts.append(text(bar.label, "tick", left - 8, y + _BAR / 2 + 4, "end"))
            parts.append(_bar(bar, left, y, scale))
            y += _BAR + _BAR_GAP
        y += _GROUP_GAP
    described = "; ".join(f"{n} {b.label} {b.text}" for n, bars in groups for b in bars)
    return _svg(y, title, described, "".join(parts), layout.width)


def _bar(bar: ChartBar, left: float, y: float, scale: float) -> str:
    middle = y + _BAR / 2
    end, low, high = (left + value * scale for value in (bar.value, bar.low, bar.high))
    return (
        tag(
            "rect",
            class_=f"bar {bar.style}",
            x=left,
            y=y,
            width=float(max(end - left, 1)),
            height=_BAR,
            rx=2,
        )
        + rule("whisker back", low, high, middle, middle)
        + rule("whisker", low, high, middle, middle)
        + linked(text(bar.text, "value", max(end, high) + 8, middle + 4), bar.href)
    )
