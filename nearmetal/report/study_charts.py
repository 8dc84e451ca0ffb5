# SPDX-License-Identifier: Apache-2.0
"""Charts of a study: curves over sizes with the ratio beneath, bars and scaling over nodes."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from nearmetal.report import numbers
from nearmetal.report.page import Chart, Panel, both
from nearmetal.report.study_view import Anchors, StudyView, scale_title, signed_percent, value_text
from nearmetal.report.svg import Axis, Bar, Mark, Series, bar_chart, line_chart, ratio_chart
from nearmetal.study.effects import efficiency
from nearmetal.study.judge import Comparison
from nearmetal.study.stats import summarize

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nearmetal.evidence import Unit
    from nearmetal.study.model import Arm, Point

STYLES = ("stock", "auto", "net", "limit")
MIN_CURVE = 3
"""Fewer sizes are a table, not a curve."""


class Curve(NamedTuple):
    """What one chart shows: all sizes, or all numbers of nodes, of one metric."""

    program: str
    test: str
    variant: str
    ranks: int | None
    nodes: int | None
    metric: str
    unit: Unit


def style_of(view: StudyView, arm: Arm) -> str:
    """Return the CSS class of an arm."""
    return STYLES[view.arms.index(arm) % len(STYLES)]


def _over_sizes(point: Point) -> Curve:
    return Curve(
        point.program, point.test, point.variant, point.ranks, point.nodes, point.metric, point.unit
    )


def _over_nodes(point: Point) -> Curve:
    return _over_sizes(point)._replace(ranks=None, nodes=None)


def _points(view: StudyView, *, sized: bool) -> dict[Curve, list[Point]]:
    """Return the compared points by curve, in order."""
    found: dict[Curve, dict[Point, None]] = {}
    for judged in view.judged:
        for one in judged.comparisons:
            if (one.point.size is not None) == sized:
                curve = _over_sizes(one.point) if sized else _over_nodes(one.point)
                found.setdefault(curve, {})[one.point] = None
    return {curve: list(points) for curve, points in found.items()}


def _mark(view: StudyView, anchors: Anchors, arm: Arm, point: Point) -> Mark | None:
    cell = view.cell(arm.name, point)
    if cell is None or point.size is None or min(cell.values) <= 0:
        return None
    summary = summarize(cell.values)
    low, high = (summary.minimum, summary.maximum)
    if summary.interval is not None:
        low, high = summary.interval.low, summary.interval.high
    text = (
        f"{arm.name}, {numbers.size(point.size)}: {value_text(summary.median, point.unit)} "
        f"({summary.n} launches)"
    )
    return Mark(point.size, summary.median, low, high, text, anchors.of(arm.name, point))


def _ratio_mark(one: Comparison, anchors: Anchors) -> Mark | None:
    if one.ratio is None or one.point.size is None:
        return None
    low = one.ratio.value if one.ratio.low is None else one.ratio.low
    high = one.ratio.value if one.ratio.high is None else one.ratio.high
    text = f"{one.arms[1]} / {one.arms[0]}, {numbers.size(one.point.size)}: {one.ratio.value:.3f}"
    return Mark(
        one.point.size,
        one.ratio.value,
        low,
        high,
        f"{text}, {one.verdict.value}",
        anchors.of(one.arms[1], one.point),
    )


def _ratios(view: StudyView, anchors: Anchors, points: list[Point]) -> list[Series]:
    series = []
    limits: dict[float, str] = {}
    for judged in view.judged:
        chosen = [one for one in judged.comparisons if one.point in points]
        marks = [mark for one in chosen if (mark := _ratio_mark(one, anchors))]
        series.append(Series(judged.arm.name, style_of(view, judged.arm), tuple(marks)))
        limits |= {one.margin.limit: one.margin.origin for one in chosen if one.margin}
    sizes = [point.size for point in points if point.size is not None]
    for limit, origin in limits.items():
        marks = [
            Mark(size, limit, limit, limit, f"margin: {origin}")
            for size in (min(sizes), max(sizes))
        ]
        series.append(Series("margin", "limit", tuple(marks)))
    return series


def curves(view: StudyView, anchors: Anchors) -> Iterable[Panel]:
    """Return one figure per test, scale and metric that has sizes enough for a curve."""
    for curve, points in _points(view, sized=True).items():
        if len(points) < MIN_CURVE:
            continue
        series = []
        for arm in view.arms:
            marks = [mark for point in points if (mark := _mark(view, anchors, arm, point))]
            series.append(Series(arm.name, style_of(view, arm), tuple(marks)))
        name = " ".join(filter(None, (curve.test, curve.variant)))
        title = ", ".join(filter(None, (f"{name}: {curve.metric}", scale_title(curve))))
        axis = f"{curve.metric} in {curve.unit.value or '1'}"
        charts = _pair(
            title,
            axis,
            series,
            curve.unit,
            (f"ratio to {view.base.name}", _ratios(view, anchors, points)),
        )
        if not charts:
            continue
        better = "less" if points[0].lower_is_better else "more"
        caption = (
            f"Medians of launches; bands are the intervals of the medians, or all launches "
            f"where there are fewer than six. Here {better} is better."
        )
        yield Panel(title, charts, caption)


def _pair(
    title: str, axis: str, series: list[Series], unit: Unit, ratios: tuple[str, list[Series]]
) -> tuple[Chart, ...]:
    """Return a curve and the ratios beneath it."""
    text = partial(value_text, unit=unit)
    return both(
        lambda layout: line_chart(title, axis, series, text, layout=layout),
        lambda layout: ratio_chart(f"{title}, ratio", *ratios, layout=layout),
    )


def _bars(view: StudyView, anchors: Anchors, point: Point) -> list[Bar]:
    bars = []
    for arm in view.arms:
        cell = view.cell(arm.name, point)
        if cell is None:
            continue
        summary = summarize(cell.values)
        text = value_text(summary.median, point.unit)
        for judged in view.judged:
            taxes = [one.tax_percent for one in judged.comparisons if one.point == point]
            if judged.arm == arm and taxes and taxes[0] is not None:
                text += f" ({signed_percent(taxes[0])})"
        bars.append(
            Bar(
                arm.name,
                style_of(view, arm),
                summary.median,
                summary.minimum,
                summary.maximum,
                text,
                anchors.of(arm.name, point),
            )
        )
    return bars


def _speedups(view: StudyView, anchors: Anchors, points: list[Point]) -> list[Series]:
    """Return speed-ups over nodes with the ideal; nothing for a single number of nodes."""
    series, ideal = [], {}
    for arm in view.arms:
        cells = [cell for point in points if (cell := view.cell(arm.name, point))]
        marks = []
        for step in efficiency(cells):
            low = step.speedup.value if step.speedup.low is None else step.speedup.low
            high = step.speedup.value if step.speedup.high is None else step.speedup.high
            ideal[step.nodes] = step.ideal
            [point] = [p for p in points if p.nodes == step.nodes][:1]
            text = f"{arm.name}, {step.nodes} nodes: {step.value:.0%} of the ideal"
            marks.append(
                Mark(step.nodes, step.speedup.value, low, high, text, anchors.of(arm.name, point))
            )
        series.append(Series(arm.name, style_of(view, arm), tuple(marks)))
    if len(ideal) < 2:  # noqa: PLR2004 - one number of nodes has no slope
        return []
    line = [Mark(nodes, value, value, value, "ideal") for nodes, value in sorted(ideal.items())]
    return [*series, Series("ideal", "limit", tuple(line))]


def bars(view: StudyView, anchors: Anchors) -> Iterable[Panel]:
    """Return one figure per test without sizes: bars per number of nodes, and the scaling."""
    for curve, points in _points(view, sized=False).items():
        groups = [(scale_title(point), _bars(view, anchors, point)) for point in points]
        title = " ".join(filter(None, (curve.test, curve.variant))) + f": {curve.metric}"
        caption = (
            f"Medians of launches with all launches as whiskers; in brackets the loss "
            f"against {view.base.name}, negative where the arm is better."
        )
        yield Panel(title, _over(title, groups, _speedups(view, anchors, points)), caption)


def _over(
    title: str, groups: list[tuple[str, list[Bar]]], speedups: list[Series]
) -> tuple[Chart, ...]:
    """Return bars over nodes, and the strong scaling beneath where there is any."""
    return both(
        lambda layout: bar_chart(title, groups, layout),
        lambda layout: line_chart(
            "Strong scaling",
            "speed-up",
            speedups,
            numbers.plain_times,
            x_axis=Axis("nodes", str),
            layout=layout,
        ),
    )
