# SPDX-License-Identifier: Apache-2.0
"""Charts as SVG text. Pure functions; colours are CSS classes, so a page's scheme applies."""

from __future__ import annotations

from dataclasses import dataclass, replace
from html import escape
from math import ceil, floor, log2, log10
from typing import TYPE_CHECKING

from nearmetal.report import numbers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

TOP, BOTTOM = 14, 40
_LABEL_GAP = 15.0
_NAME_LINE = 17


@dataclass(frozen=True)
class Layout:
    """How wide a chart is, and where its area lies; `ends`: names stand at the ends of lines."""

    width: int
    left: int
    right: int
    bar_left: int
    bar_right: int
    crowded: int
    """More sizes than this are not all named on the axis."""
    ends: bool


WIDE = Layout(760, 72, 168, 210, 150, 9, ends=True)
NARROW = Layout(390, 60, 12, 92, 116, 4, ends=False)
"""For telephones: there, a wide chart's text would be too small to read."""


@dataclass(frozen=True)
class Mark:
    """One point: where, its band, what it says on its own, and where it links to."""

    size: int
    value: float
    low: float
    high: float
    text: str
    href: str = ""


@dataclass(frozen=True)
class Series:
    """One line. `style` is a CSS class; `label` stands at its end."""

    label: str
    style: str
    marks: tuple[Mark, ...]


def _x_of(size: int) -> float:
    """Return the place of a size on the axis: powers of two are one apart, 0 stands before 1."""
    return -1.0 if size == 0 else log2(size)


@dataclass(frozen=True)
class Frame:
    """The plotting area and its two scales."""

    height: float
    x_range: tuple[float, float]
    y_range: tuple[float, float]
    log_y: bool = True
    layout: Layout = WIDE
    top: float = TOP

    @property
    def left(self) -> int:
        """Return where the area begins."""
        return self.layout.left

    @property
    def right(self) -> int:
        """Return where the area ends."""
        return self.layout.width - self.layout.right

    @property
    def bottom(self) -> float:
        """Return where the horizontal axis is."""
        return self.height - BOTTOM

    def x(self, size: int) -> float:
        """Return the horizontal place of a size."""
        low, high = self.x_range
        share = (_x_of(size) - low) / ((high - low) or 1)
        return self.left + share * (self.right - self.left)

    def y(self, value: float) -> float:
        """Return the vertical place of a value."""
        low, high = (log10(v) for v in self.y_range) if self.log_y else self.y_range
        place = log10(max(value, self.y_range[0])) if self.log_y else value
        share = (place - low) / ((high - low) or 1)
        return self.top + (1 - share) * (self.bottom - self.top)


def _decades(values: Sequence[float]) -> tuple[float, float]:
    """Return bounds of a logarithmic axis that hold all values: 1, 2 or 5 times a power of ten."""
    positive = [v for v in values if v > 0]
    if not positive:
        return 0.1, 10.0
    low, high = min(positive), max(positive)
    return _step_below(low), _step_above(high)


def _step_below(value: float) -> float:
    power = 10.0 ** floor(log10(value))
    return max(m * power for m in (1, 2, 5) if m * power <= value * 1.0001)


def _step_above(value: float) -> float:
    power = 10.0 ** ceil(log10(value))
    return min(m * power for m in (0.2, 0.5, 1, 2) if m * power >= value * 0.9999)


def _step(span: float) -> float:
    """Return a round step that cuts a span into three to six."""
    power: float = 10.0 ** floor(log10(span))
    return next(m * power for m in (0.2, 0.25, 0.5, 1, 2) if span / (m * power) <= 6)  # noqa: PLR2004 - ticks


def _even(values: Sequence[float]) -> tuple[float, float]:
    """Return bounds of an even axis that hold all values: multiples of its step."""
    low, high = min(values), max(values)
    step = _step(max(high - low, 0.02 * abs(high)))
    return floor(low / step) * step, ceil(high / step) * step


def _even_ticks(bounds: tuple[float, float]) -> list[float]:
    low, high = bounds
    step = _step(high - low)
    return [
        round(n * step, 9) for n in range(ceil(low / step - 1e-6), floor(high / step + 1e-6) + 1)
    ]


def _y_ticks(bounds: tuple[float, float]) -> list[float]:
    low, high = bounds
    powers = range(floor(log10(low)), ceil(log10(high)) + 1)
    few = [10.0**p for p in powers]
    many = [m * 10.0**p for p in powers for m in (1, 2, 5)]
    chosen = few if log10(high / low) > 2.2 else many  # noqa: PLR2004 - about two decades
    return [t for t in chosen if low * 0.999 <= t <= high * 1.001]


@dataclass(frozen=True)
class Axis:
    """The horizontal axis: its name, and how a place on it is written."""

    name: str = "message size in bytes"
    text: Callable[[int], str] = numbers.short_size


def _grid(
    frame: Frame, sizes: Sequence[int], y_text: Callable[[float], str], title: str, axis: Axis
) -> str:
    parts = []
    for tick in _y_ticks(frame.y_range) if frame.log_y else _even_ticks(frame.y_range):
        y = frame.y(tick)
        parts.append(
            f'<line class="grid" x1="{frame.left}" x2="{frame.right}" y1="{y:.1f}" y2="{y:.1f}"/>'
        )
        parts.append(
            f'<text class="tick" x="{frame.left - 8}" y="{y + 4:.1f}" text-anchor="end">'
            f"{escape(numbers.tick(y_text(tick)))}</text>"
        )
    for size in _named(sizes, frame.layout.crowded):
        x = frame.x(size)
        parts.append(
            f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{frame.top}" y2="{frame.bottom}"/>'
        )
        parts.append(
            f'<text class="tick" x="{x:.1f}" y="{frame.bottom + 16}" '
            f'text-anchor="middle">{escape(axis.text(size))}</text>'
        )
    parts.append(
        f'<text class="axis" x="{(frame.left + frame.right) / 2:.1f}" '
        f'y="{frame.height - 4}" text-anchor="middle">{escape(axis.name)}</text>'
    )
    parts.append(f'<text class="axis" x="{frame.left}" y="{frame.top - 3}">{escape(title)}</text>')
    return "".join(parts)


def _named(sizes: Sequence[int], crowded: int) -> list[int]:
    """Return the sizes that the axis names: all, or every third or sixth power of two."""
    if len(sizes) <= crowded:
        return list(sizes)
    step = 3 if crowded == WIDE.crowded else 6
    return [s for s in sizes if s == 0 or log2(s) % step == 0] or [sizes[0], sizes[-1]]


_SHAPES = {
    "auto": "M-3.4,0a3.4,3.4 0 1,0 6.8,0a3.4,3.4 0 1,0 -6.8,0",
    "stock": "M-3,-3h6v6h-6z",
    "net": "M0,-4l4,7h-8z",
    "limit": "M0,-4l4,4l-4,4l-4,-4z",
}


def _marker(style: str, x: float, y: float, mark: Mark) -> str:
    shape = _SHAPES.get(style, _SHAPES["auto"])
    body = (
        f'<path class="mark {style}" d="{shape}" transform="translate({x:.1f},{y:.1f})">'
        f"<title>{escape(mark.text)}</title></path>"
    )
    return f'<a href="{escape(mark.href)}">{body}</a>' if mark.href else body


def _line(frame: Frame, series: Series) -> str:
    places = [(frame.x(m.size), frame.y(m.value), m) for m in series.marks]
    upper = [f"{frame.x(m.size):.1f},{frame.y(m.high):.1f}" for m in series.marks]
    lower = [f"{frame.x(m.size):.1f},{frame.y(m.low):.1f}" for m in reversed(series.marks)]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in places)
    return (
        f'<polygon class="band {series.style}" points="{" ".join(upper + lower)}"/>'
        f'<polyline class="line {series.style}" points="{path}"/>'
        + "".join(_marker(series.style, x, y, m) for x, y, m in places)
    )


def _spread(places: Sequence[float], low: float, high: float) -> list[float]:
    """Return label places, each as near to its own as the gap between neighbours allows."""
    order = sorted(range(len(places)), key=lambda i: places[i])
    result = list(places)
    floor_ = low
    for i in order:
        result[i] = max(result[i], floor_)
        floor_ = result[i] + _LABEL_GAP
    ceiling = high
    for i in reversed(order):
        result[i] = min(result[i], ceiling)
        ceiling = result[i] - _LABEL_GAP
    return result


def _labels(frame: Frame, series: Sequence[Series]) -> str:
    if not frame.layout.ends:
        return "".join(
            _marker(
                s.style,
                frame.left + 6,
                TOP + _NAME_LINE * n,
                replace(s.marks[0], href="", text=s.label),
            )
            + f'<text class="label {s.style}" x="{frame.left + 16}" '
            f'y="{TOP + _NAME_LINE * n + 4}">{escape(s.label)}</text>'
            for n, s in enumerate(series)
        )
    ends = [(s, frame.x(s.marks[-1].size), frame.y(s.marks[-1].value)) for s in series]
    spots = _spread([y for _, _, y in ends], frame.top + 8, frame.bottom)
    parts = []
    for (item, x, y), spot in zip(ends, spots, strict=True):
        parts.append(
            f'<line class="leader {item.style}" x1="{x + 5:.1f}" y1="{y:.1f}" '
            f'x2="{frame.right + 10}" y2="{spot:.1f}"/>'
        )
        parts.append(
            f'<text class="label {item.style}" x="{frame.right + 14}" '
            f'y="{spot + 4:.1f}">{escape(item.label)}</text>'
        )
    return "".join(parts)


def _svg(height: float, title: str, description: str, body: str, width: int) -> str:
    return (
        f'<svg class="chart" viewBox="0 0 {width} {height:.0f}" role="img" '
        f'aria-label="{escape(title)}: {escape(description)}" '
        f'xmlns="http://www.w3.org/2000/svg">{body}</svg>'
    )


def line_chart(
    title: str,
    axis: str,
    series: Sequence[Series],
    y_text: Callable[[float], str],
    *,
    height: float = 320,
    x_axis: Axis = Axis(),
    layout: Layout = WIDE,
) -> str:
    """Return lines, both axes logarithmic. Series without marks are left out."""
    drawn = [s for s in series if s.marks]
    if not drawn:
        return ""
    sizes = sorted({m.size for s in drawn for m in s.marks})
    values = [v for s in drawn for m in s.marks for v in (m.low, m.value, m.high)]
    frame = _frame(layout, height, drawn, sizes, _decades(values))
    body = _grid(frame, sizes, y_text, axis, x_axis)
    body += "".join(_line(frame, s) for s in drawn) + _labels(frame, drawn)
    return _svg(frame.height, title, ", ".join(s.label for s in drawn), body, layout.width)


def _frame(
    layout: Layout,
    height: float,
    series: Sequence[Series],
    sizes: Sequence[int],
    y_range: tuple[float, float],
    *,
    log_y: bool = True,
) -> Frame:
    """Return the frame; a narrow one has the names above its area."""
    names = 0 if layout.ends else _NAME_LINE * len(series) + 8
    return Frame(
        height + names, (_x_of(sizes[0]), _x_of(sizes[-1])), y_range, log_y, layout, TOP + names
    )


NEAR = 3.0
"""Ratios of which the largest is at most so many times the smallest have an even axis."""


def ratio_chart(
    title: str, axis: str, series: Sequence[Series], height: float = 190, layout: Layout = WIDE
) -> str:
    """Return ratios over message sizes, with the line at 1 where both are equal."""
    drawn = [s for s in series if s.marks]
    if not drawn:
        return ""
    sizes = sorted({m.size for s in drawn for m in s.marks})
    values = [v for s in drawn for m in s.marks for v in (m.low, m.value, m.high)]
    values.append(1.0)
    even = max(values) <= NEAR * min(values)
    bounds = _even(values) if even else _decades(values)
    frame = _frame(layout, height, drawn, sizes, bounds, log_y=not even)
    one = frame.y(1)
    body = _grid(frame, sizes, numbers.plain_times, axis, Axis())
    body += (
        f'<line class="one" x1="{frame.left}" x2="{frame.right}" y1="{one:.1f}" y2="{one:.1f}"/>'
    )
    body += "".join(_line(frame, s) for s in drawn) + _labels(frame, drawn)
    return _svg(frame.height, title, ", ".join(s.label for s in drawn), body, layout.width)


@dataclass(frozen=True)
class Bar:
    """One bar: its name, its value with band, the text at its end, and where it links to."""

    label: str
    style: str
    value: float
    low: float
    high: float
    text: str
    href: str = ""


_BAR, _BAR_GAP, _GROUP_GAP = 18, 4, 16


def bar_chart(
    title: str, groups: Sequence[tuple[str, Sequence[Bar]]], layout: Layout = WIDE
) -> str:
    """Return horizontal bars from zero, in named groups; the whiskers are the bands."""
    top = max((b.high for _, bars in groups for b in bars), default=0) or 1
    room = layout.width - layout.bar_left - layout.bar_right
    parts, y = [], 6.0
    for name, bars in groups:
        if name:
            parts.append(f'<text class="group" x="0" y="{y + 13:.1f}">{escape(name)}</text>')
            y += 20
        for bar in bars:
            parts.append(_bar(bar, y, room / top, layout))
            y += _BAR + _BAR_GAP
        y += _GROUP_GAP
    described = "; ".join(f"{n} {b.label} {b.text}" for n, bars in groups for b in bars)
    return _svg(y, title, described, "".join(parts), layout.width)


def _bar(bar: Bar, y: float, scale: float, layout: Layout) -> str:
    middle, left = y + _BAR / 2, layout.bar_left
    end = left + bar.value * scale
    low, high = left + bar.low * scale, left + bar.high * scale
    text = (
        f'<text class="value" x="{max(end, high) + 8:.1f}" y="{middle + 4:.1f}">'
        f"{escape(bar.text)}</text>"
    )
    if bar.href:
        text = f'<a href="{escape(bar.href)}">{text}</a>'
    return (
        f'<text class="tick" x="{left - 8}" y="{middle + 4:.1f}" text-anchor="end">'
        f"{escape(bar.label)}</text>"
        f'<rect class="bar {bar.style}" x="{left}" y="{y:.1f}" '
        f'width="{max(end - left, 1):.1f}" height="{_BAR}" rx="2"/>'
        f'<line class="whisker" x1="{low:.1f}" x2="{high:.1f}" y1="{middle:.1f}" y2="{middle:.1f}"/>'
        + text
    )
