# SPDX-License-Identifier: Apache-2.0
"""Charts as SVG text. Pure functions; colours are CSS classes, so the scheme of a page applies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from html import escape
from math import ceil, floor, log2, log10

from nearmetal.report import numbers

TOP, BOTTOM = 14, 40
NEAR = 3.0
"""Ratios have an even axis if the largest is at most this many times the smallest."""
_LABEL_GAP = 15.0
_NAME_LINE = 17
_BAR, _BAR_GAP, _GROUP_GAP, _GROUP_NAME = 18, 4, 16, 20
_MOST_TICKS = 6
_MANY_DECADES = 2.2


@dataclass(frozen=True)
class ChartLayout:
    """The width of a chart and the place of its area; with `ends`, names stand at line ends."""

    width: int
    left: int
    right: int
    bar_left: int
    bar_right: int
    crowded: int
    """If there are more sizes than this, the axis does not name all of them."""
    ends: bool


WIDE = ChartLayout(760, 72, 168, 210, 150, 9, ends=True)
NARROW = ChartLayout(390, 60, 12, 92, 116, 4, ends=False)
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
    """One line. `style` is a CSS class; `label` stands at its end."""

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


def tag(name: str, *content: str, **attributes: str | float) -> str:
    """Return an element. `content` is markup; attributes are escaped, floats have one digit."""
    words = "".join(
        f' {key.rstrip("_").replace("_", "-")}="'
        + (f"{value:.1f}" if isinstance(value, float) else escape(str(value)))
        + '"'
        for key, value in attributes.items()
    )
    return f"<{name}{words}>{''.join(content)}</{name}>" if content else f"<{name}{words}/>"


def text(words: str, style: str, x: float, y: float, anchor: str = "") -> str:
    """Return a text at a place; `anchor` is start (the default), middle or end."""
    first = {"class_": style} if style else {}
    last = {"text_anchor": anchor} if anchor else {}
    return tag("text", escape(words), **first, x=x, y=y, **last)


def _rule(style: str, x1: float, x2: float, y1: float, y2: float) -> str:
    return tag("line", class_=style, x1=x1, x2=x2, y1=y1, y2=y2)


def _linked(markup: str, href: str) -> str:
    return tag("a", markup, href=href) if href else markup


def _x_of(size: int) -> float:
    """Return the place of a size on the axis: powers of two are one apart, 0 stands before 1."""
    return -1.0 if size == 0 else log2(size)


@dataclass(frozen=True)
class Frame:
    """The plotting area and its two scales."""

    height: float
    x_range: tuple[float, float]
    y_range: tuple[float, float]
    log_y: bool
    layout: ChartLayout
    top: float

    @property
    def left(self) -> int:
        """The left end of the area."""
        return self.layout.left

    @property
    def right(self) -> int:
        """The right end of the area."""
        return self.layout.width - self.layout.right

    @property
    def bottom(self) -> float:
        """The place of the horizontal axis."""
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
    below, above = 10.0 ** floor(log10(low)), 10.0 ** ceil(log10(high))
    return (
        max(m * below for m in (1, 2, 5) if m * below <= low * 1.0001),
        min(m * above for m in (0.2, 0.5, 1, 2) if m * above >= high * 0.9999),
    )


def _step(span: float) -> float:
    """Return a round step that cuts a span into three to six."""
    power: float = 10.0 ** floor(log10(span))
    return next(m * power for m in (0.2, 0.25, 0.5, 1, 2) if span / (m * power) <= _MOST_TICKS)


def _even(values: Sequence[float]) -> tuple[float, float]:
    """Return bounds of an even axis that hold all values: multiples of its step."""
    low, high = min(values), max(values)
    step = _step(max(high - low, 0.02 * abs(high)))
    return floor(low / step) * step, ceil(high / step) * step


def _ticks(frame: Frame) -> list[float]:
    """Return the values that the vertical axis names."""
    low, high = frame.y_range
    if not frame.log_y:
        step = _step(high - low)
        first, last = ceil(low / step - 1e-6), floor(high / step + 1e-6)
        return [round(n * step, 9) for n in range(first, last + 1)]
    powers = range(floor(log10(low)), ceil(log10(high)) + 1)
    steps = (1,) if log10(high / low) > _MANY_DECADES else (1, 2, 5)
    ticks = [m * 10.0**p for p in powers for m in steps]
    return [t for t in ticks if low * 0.999 <= t <= high * 1.001]


def _named(sizes: Sequence[int], crowded: int) -> Sequence[int]:
    """Return the sizes that the axis names: all, or every third or sixth power of two."""
    if len(sizes) <= crowded:
        return sizes
    step = 3 if crowded == WIDE.crowded else 6
    return [s for s in sizes if s == 0 or log2(s) % step == 0] or [sizes[0], sizes[-1]]


def _grid(
    frame: Frame, sizes: Sequence[int], y_text: Callable[[float], str], title: str, axis: Axis
) -> str:
    parts = []
    for tick in _ticks(frame):
        y, words = frame.y(tick), numbers.tick(y_text(tick))
        parts.append(_rule("grid", frame.left, frame.right, y, y))
        parts.append(text(words, "tick", frame.left - 8, y + 4, "end"))
    for size in _named(sizes, frame.layout.crowded):
        x = frame.x(size)
        parts.append(_rule("grid", x, x, frame.top, frame.bottom))
        parts.append(text(axis.text(size), "tick", x, frame.bottom + 16, "middle"))
    middle = (frame.left + frame.right) / 2
    parts.append(text(axis.name, "axis", middle, frame.height - 4, "middle"))
    parts.append(text(title, "axis", frame.left, frame.top - 3))
    return "".join(parts)


_SHAPES = {
    "auto": "M-3.4,0a3.4,3.4 0 1,0 6.8,0a3.4,3.4 0 1,0 -6.8,0",
    "stock": "M-3,-3h6v6h-6z",
    "net": "M0,-4l4,7h-8z",
    "limit": "M0,-4l4,4l-4,4l-4,-4z",
}


def _marker(style: str, x: float, y: float, mark: Mark) -> str:
    body = tag(
        "path",
        tag("title", escape(mark.text)),
        class_=f"mark {style}",
        d=_SHAPES.get(style, _SHAPES["auto"]),
        transform=f"translate({x:.1f},{y:.1f})",
    )
    return _linked(body, mark.href)


def _line(frame: Frame, series: Series) -> str:
    def places(*points: tuple[int, float]) -> str:
        return " ".join(f"{frame.x(size):.1f},{frame.y(value):.1f}" for size, value in points)

    marks, style = series.marks, series.style
    band = [(m.size, m.high) for m in marks] + [(m.size, m.low) for m in reversed(marks)]
    return (
        tag("polygon", class_=f"band {style}", points=places(*band))
        + tag(
            "polyline", class_=f"line {style}", points=places(*((m.size, m.value) for m in marks))
        )
        + "".join(_marker(style, frame.x(m.size), frame.y(m.value), m) for m in marks)
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


def _labels(frame: Frame, series: Sequence[Series]) -> str:
    parts = []
    if not frame.layout.ends:
        for n, one in enumerate(series):
            height = TOP + _NAME_LINE * n
            mark = replace(one.marks[0], href="", text=one.label)
            parts.append(_marker(one.style, frame.left + 6, height, mark))
            parts.append(text(one.label, f"label {one.style}", frame.left + 16, height + 4))
        return "".join(parts)
    ends = [(frame.x(s.marks[-1].size), frame.y(s.marks[-1].value)) for s in series]
    spots = _spread([y for _, y in ends], frame.top + 8, frame.bottom)
    for one, (x, y), spot in zip(series, ends, spots, strict=True):
        parts.append(_rule(f"leader {one.style}", x + 5, frame.right + 10, y, float(spot)))
        parts.append(text(one.label, f"label {one.style}", frame.right + 14, spot + 4.0))
    return "".join(parts)


def _svg(height: float, title: str, description: str, body: str, width: int) -> str:
    return tag(
        "svg",
        body,
        class_="chart",
        viewBox=f"0 0 {width} {height:.0f}",
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
    height: int = 320,
    x_axis: Axis = Axis(),
    layout: ChartLayout = WIDE,
    ratio: bool = False,
) -> str:
    """Return lines, both axes logarithmic. Series without marks are left out.

    `ratio` draws the line at 1, where both sides are equal, and near ratios on an even axis.
    """
    drawn = [s for s in series if s.marks]
    if not drawn:
        return ""
    sizes = sorted({m.size for s in drawn for m in s.marks})
    values = [v for s in drawn for m in s.marks for v in (m.low, m.value, m.high)]
    values += [1.0] if ratio else []
    even = ratio and max(values) <= NEAR * min(values)
    # A narrow chart has the names above its area.
    names = 0 if layout.ends else _NAME_LINE * len(drawn) + 8
    x_range = (_x_of(sizes[0]), _x_of(sizes[-1]))
    y_range = _even(values) if even else _decades(values)
    frame = Frame(height + names, x_range, y_range, not even, layout, TOP + names)
    body = _grid(frame, sizes, y_text, axis, x_axis)
    if ratio:
        body += _rule("one", frame.left, frame.right, frame.y(1), frame.y(1))
    body += "".join(_line(frame, s) for s in drawn) + _labels(frame, drawn)
    return _svg(frame.height, title, ", ".join(s.label for s in drawn), body, layout.width)


def ratio_chart(title: str, axis: str, series: Sequence[Series], layout: ChartLayout = WIDE) -> str:
    """Return ratios over message sizes."""
    return line_chart(
        title, axis, series, numbers.plain_times, height=190, layout=layout, ratio=True
    )


def bar_chart(
    title: str, groups: Sequence[tuple[str, Sequence[ChartBar]]], layout: ChartLayout = WIDE
) -> str:
    """Return horizontal bars from zero, in named groups; the whiskers are the bands."""
    top = max((b.high for _, bars in groups for b in bars), default=0) or 1
    scale = (layout.width - layout.bar_left - layout.bar_right) / top
    parts, y = [], 6.0
    for name, bars in groups:
        if name:
            parts.append(text(name, "group", 0, y + 13))
            y += _GROUP_NAME
        for bar in bars:
            parts.append(_bar(bar, y, scale, layout))
            y += _BAR + _BAR_GAP
        y += _GROUP_GAP
    described = "; ".join(f"{n} {b.label} {b.text}" for n, bars in groups for b in bars)
    return _svg(y, title, described, "".join(parts), layout.width)


def _bar(bar: ChartBar, y: float, scale: float, layout: ChartLayout) -> str:
    middle, left = y + _BAR / 2, layout.bar_left
    end, low, high = (left + value * scale for value in (bar.value, bar.low, bar.high))
    length = float(max(end - left, 1))
    return (
        text(bar.label, "tick", left - 8, middle + 4, "end")
        + tag("rect", class_=f"bar {bar.style}", x=left, y=y, width=length, height=_BAR, rx=2)
        + _rule("whisker", low, high, middle, middle)
        + _linked(text(bar.text, "value", max(end, high) + 8, middle + 4), bar.href)
    )
