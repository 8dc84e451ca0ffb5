# SPDX-License-Identifier: Apache-2.0
"""Charts of a study: curves over sizes with the ratio beneath, bars and scaling over nodes."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from nearmetal.report import numbers
from nearmetal.report.page import Panel, both
from nearmetal.report.study_view import Anchors, StudyView, scale_title, signed_percent, value_text
from nearmetal.report.svg import (
    Axis,
    ChartBar,
    ChartLayout,
    Mark,
    Series,
    bar_chart,
    line_chart,
    ratio_chart,
)
from nearmetal.study.effects import efficiency
from nearmetal.study.judge import Comparison
from nearmetal.study.model import Arm, Point
from nearmetal.study.stats import Ratio, summarize

MIN_CURVE = 3
"""Fewer sizes are a table, not a curve."""


def style_of(view: StudyView, arm: Arm) -> str:
    """Return the CSS class of an arm."""
    return f"arm-{view.arms.index(arm) + 1}"


def _curves(view: StudyView, *, sized: bool) -> dict[Point, list[Point]]:
    """Return the compared points by curve: a curve goes over all sizes, or all numbers of nodes."""
    found: dict[Point, dict[Point, None]] = {}
    for one in view.comparisons:
        if (one.point.size is not None) == sized:
            curve = one.point.curve
            curve = curve if sized else curve._replace(ranks=None, nodes=None)
            found.setdefault(curve, {})[one.point] = None
    return {curve: list(points) for curve, points in found.items()}


def _title(curve: Point) -> str:
    return " ".join(filter(None, (curve.test, curve.variant))) + f": {curve.metric}"


def _ends(ratio: Ratio) -> tuple[float, float]:
    """Return the interval of a ratio; without one, the value twice."""
    low = ratio.value if ratio.low is None else ratio.low
    return low, ratio.value if ratio.high is None else ratio.high


def _mark(view: StudyView, anchors: Anchors, arm: Arm, point: Point) -> Mark | None:
    cell = view.cell(arm.name, point)
    if cell is None or point.size is None or min(cell.values) <= 0:
        return None
    summary = summarize(cell.values)
    low, high = summary.minimum, summary.maximum
    if summary.interval is not None:
        low, high = summary.interval.low, summary.interval.high
    value = value_text(summary.median, point.unit)
    text = f"{arm.name}, {numbers.size(point.size)}: {value} ({summary.n} launches)"
    return Mark(point.size, summary.median, low, high, text, anchors.of(arm.name, point))


def _ratio_mark(one: Comparison, anchors: Anchors) -> Mark | None:
    if one.ratio is None or one.point.size is None:
        return None
    base, arm = one.arms
    text = f"{arm} / {base}, {numbers.size(one.point.size)}: {one.ratio.value:.3f}"
    return Mark(
        one.point.size,
        one.ratio.value,
        *_ends(one.ratio),
        f"{text}, {one.verdict.value}",
        anchors.of(arm, one.point),
    )


def _ratios(view: StudyView, anchors: Anchors, points: list[Point]) -> list[Series]:
    series = []
    limits: dict[float, str] = {}
    for judged in view.judged:
        chosen = [one for one in judged.comparisons if one.point in points]
        marks = tuple(mark for one in chosen if (mark := _ratio_mark(one, anchors)))
        series.append(Series(judged.arm.name, style_of(view, judged.arm), marks))
        limits |= {one.margin.limit: one.margin.origin for one in chosen if one.margin}
    sizes = [point.size for point in points if point.size is not None]
    for limit, origin in limits.items():
        ends = (min(sizes), max(sizes))
        marks = tuple(Mark(size, limit, limit, limit, f"margin: {origin}") for size in ends)
        series.append(Series("margin", "limit", marks))
    return series


def curves(view: StudyView, anchors: Anchors) -> Iterable[Panel]:
    """Return one figure per test, scale and metric with enough sizes for a curve."""
    for curve, points in _curves(view, sized=True).items():
        if len(points) < MIN_CURVE:
            continue
        series = []
        for arm in view.arms:
            marks = tuple(m for point in points if (m := _mark(view, anchors, arm, point)))
            series.append(Series(arm.name, style_of(view, arm), marks))
        title = ", ".join(filter(None, (_title(curve), scale_title(curve))))
        charts = both(
            partial(_curve, title, curve, series),
            partial(
                ratio_chart,
                f"{title}, ratio",
                f"ratio to {view.base.name}",
                _ratios(view, anchors, points),
            ),
        )
        better = "less" if points[0].lower_is_better else "more"
        caption = (
            "Medians of launches; bands are the intervals of the medians, or all launches "
            f"if there are fewer than six. Here {better} is better."
        )
        if charts:
            yield Panel(title, charts, caption)


def _curve(title: str, curve: Point, series: list[Series], layout: ChartLayout) -> str:
    better = "" if curve.neutral else f", {'less' if curve.lower_is_better else 'more'} is better"
    return line_chart(
        title,
        f"{curve.metric}{better}",
        series,
        partial(value_text, unit=curve.unit),
        layout=layout,
    )


def _bars(view: StudyView, anchors: Anchors, point: Point) -> list[ChartBar]:
    bars = []
    taxes = {one.arms[1]: one.tax_percent for one in view.comparisons if one.point == point}
    for arm in view.arms:
        cell = view.cell(arm.name, point)
        if cell is None:
            continue
        summary = summarize(cell.values)
        text = value_text(summary.median, point.unit)
        tax = taxes.get(arm.name)
        text += "" if tax is None else f" ({signed_percent(tax)})"
        values = (summary.median, summary.minimum, summary.maximum)
        href = anchors.of(arm.name, point)
        bars.append(ChartBar(arm.name, style_of(view, arm), *values, text, href))
    return bars


def _speedups(view: StudyView, anchors: Anchors, points: list[Point]) -> list[Series]:
    """Return speed-ups over nodes with the ideal; nothing for a single number of nodes."""
    series, ideal = [], {}
    for arm in view.arms:
        cells = [cell for point in points if (cell := view.cell(arm.name, point))]
        marks = []
        for step in efficiency(cells):
            ideal[step.nodes] = step.ideal
            href = anchors.of(arm.name, next(p for p in points if p.nodes == step.nodes))
            text = f"{arm.name}, {step.nodes} nodes: {step.value:.0%} of the ideal"
            ends = _ends(step.speedup)
            marks.append(Mark(step.nodes, step.speedup.value, *ends, text, href))
        series.append(Series(arm.name, style_of(view, arm), tuple(marks)))
    if len(ideal) < 2:  # noqa: PLR2004 - one number of nodes has no slope
        return []
    line = [Mark(nodes, value, value, value, "ideal") for nodes, value in sorted(ideal.items())]
    return [*series, Series("ideal", "limit", tuple(line))]


def bars(view: StudyView, anchors: Anchors) -> Iterable[Panel]:
    """Return one figure per test without sizes: bars per number of nodes, and the scaling."""
    for curve, points in _curves(view, sized=False).items():
        title = _title(curve)
        groups = [(scale_title(point), _bars(view, anchors, point)) for point in points]
        caption = (
            "Medians of launches with all launches as whiskers; in brackets the loss "
            f"against {view.base.name}, negative if the arm is better."
        )
        charts = both(
            partial(bar_chart, title, groups), partial(_scaling, _speedups(view, anchors, points))
        )
        yield Panel(title, charts, caption)


def _scaling(speedups: list[Series], layout: ChartLayout) -> str:
    axis, text = Axis("nodes", str), numbers.plain_times
    return line_chart("Strong scaling", "speed-up", speedups, text, x_axis=axis, layout=layout)
