# SPDX-License-Identifier: Apache-2.0
"""The parts of the report of a run, as data: cards, charts, tables. The template only prints them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from nearmetal.evidence import RunFacts
from nearmetal.report import numbers
from nearmetal.report.analysis import (
    ARM_TITLES,
    BASELINE,
    MPI_TITLES,
    NETWORK,
    OURS,
    CurvePoint,
    Evidence,
    Headline,
    Quantity,
    RawLine,
    Which,
    headlines,
    limit,
    rows_of,
)
from nearmetal.report.page import Card, Chart, Grid, GridCell, Panel, both
from nearmetal.report.svg import ChartBar, Mark, Series, bar_chart, line_chart, ratio_chart
from nearmetal.study.stats import Ratio

LIMIT = "limit"
"""CSS class of a limit; arms have their names as classes."""
_SHOWN_SIZES = (8, 1 << 10, 1 << 16, 1 << 20, 1 << 22)
_SIZE_COLUMNS = tuple(numbers.size(size) for size in _SHOWN_SIZES)
_CHARTED = 2
"""Patterns that have charts: a table of them alone would repeat the charts."""


class RawLinks:
    """Anchors of raw lines: `#f3-l12` is line 12 of the third raw file."""

    def __init__(self, run: RunFacts) -> None:
        files = [name for launch in run.manifest.launches for name, _ in launch.files]
        self.numbers = {file: i for i, file in enumerate(files, 1)}

    def href(self, source: RawLine) -> str:
        """Return the link to a raw line."""
        return f"#f{self.numbers[source.file]}-l{source.line}"

    def cell(self, point: CurvePoint | None, quantity: Quantity, note: str = "") -> GridCell:
        """Return a point as a number with its link."""
        if point is None:
            return GridCell("not measured", note=note)
        return GridCell(quantity.show(point.value), self.href(point.source), note)


def interval_text(ratio: Ratio) -> str:
    """Return the interval of a ratio in words."""
    if ratio.low is None or ratio.high is None:
        return "unknown"
    return f"{numbers.times(ratio.low)} to {numbers.times(ratio.high)}"


def _mpi(name: str) -> str:
    return MPI_TITLES.get(name, name)


def _share_of_limit(v: Headline) -> str:
    """Return the distance between nearmetal's figure and the limit of the cores, in words."""
    if v.ours is None or v.limit is None or v.limit.value <= 0 or v.ours.value <= 0:
        return ""
    factor = v.ours.value / v.limit.value
    factor = factor if v.quantity.less_is_better else 1 / factor
    if factor > 1:
        return f"the limit is {numbers.times(factor)} better"
    return "above the limit of its block: the cores moved or were disturbed"


def _ratio_words(v: Headline) -> tuple[str, str]:
    """Return the ratio of a headline, and its interval; without a ratio, the interval is empty."""
    if v.ratio is None:
        return "no ratio", ""
    word = "lower" if v.quantity.less_is_better else "higher"
    interval = f"95 % interval {interval_text(v.ratio)}, {v.launches} launches"
    return f"{numbers.times(v.ratio.value)} {word}", interval


def _goal(v: Headline) -> str:
    return f"at least {numbers.tick(numbers.times(v.goal))}"


def cards(found: Sequence[Headline], links: RawLinks) -> list[Card]:
    """Return one card per headline."""
    made = []
    for v in found:
        ratio, interval = _ratio_words(v)
        share = _share_of_limit(v)
        rows = (
            (ARM_TITLES[OURS], OURS, v.ours),
            (ARM_TITLES[BASELINE], BASELINE, v.baseline),
            (ARM_TITLES[NETWORK], NETWORK, v.network),
            (v.limit_name, LIMIT, v.limit),
        )
        notes = [(f"Goal {_goal(v)}: ", v.verdict, f"; {share}" if share else "")]
        if v.ours is not None and v.baseline is not None:
            best, theirs = (v.quantity.show(point.best) for point in (v.ours, v.baseline))
            text = f"Undisturbed (best of fifty samples): {best} against {theirs}"
            notes.insert(0, (text, "", ""))
        made.append(
            Card(
                v.title,
                "good" if v.reached else "plain",
                ratio,
                tuple(
                    (GridCell(name, style=style), links.cell(point, v.quantity))
                    for name, style, point in rows
                ),
                tuple(notes),
                below=f"than TCP; {interval}" if interval else v.verdict,
            )
        )
    return made


def headline_table(found: Sequence[Headline]) -> Grid:
    """Return the headlines as one table, for Markdown."""
    rows = []
    for v in found:
        ratio, interval = _ratio_words(v)
        ours, baseline, network, floor = (
            v.quantity.show(p.value) if p else "not measured"
            for p in (v.ours, v.baseline, v.network, v.limit)
        )
        words = (v.title, ours, baseline, f"{ratio} ({interval})" if interval else ratio, network)
        more = (f"{floor}, {v.limit_name}", f"{_goal(v)}: {v.verdict}")
        rows.append(tuple(map(GridCell, (*words, *more))))
    columns = ("nearmetal", "MPI's own TCP", "ratio", "network only", "limit of the cores", "goal")
    return Grid("Headlines", ("", *columns), tuple(rows))


def sentence(found: Sequence[Headline]) -> str:
    """Return the verdict in one sentence."""
    latency, rate, *_, bandwidth = found
    if latency.ours is None:
        return "nearmetal's own arm was not measured in this run."
    ours = f"An 8-byte message takes {numbers.microseconds(latency.ours.value)} between nodes"
    if latency.baseline is None:
        return f"{ours}; the MPI's own TCP was not measured in this run."
    text = f"{ours}, {numbers.microseconds(latency.baseline.value)} over the MPI's own TCP"
    if latency.ratio is None:
        return f"{text}. No ratio is given: {latency.verdict}."

    def words(ratio: Ratio, middle: str = "") -> str:
        return f"{numbers.times(ratio.value)}{middle} ({interval_text(ratio)})"

    text += f": {words(latency.ratio, ' lower latency')}."
    if rate.ratio is None or bandwidth.ratio is None:
        return text
    return (
        f"{text} The message rate is {words(rate.ratio)}, the bandwidth at 1 MiB "
        f"{words(bandwidth.ratio)} that of TCP."
    )


def _marks(
    points: Iterable[CurvePoint], quantity: Quantity, name: str, links: RawLinks
) -> tuple[Mark, ...]:
    return tuple(
        Mark(
            p.size,
            p.value,
            p.low,
            p.high,
            f"{name}, {numbers.size(p.size)}: {quantity.show(p.value)} (middle half of samples "
            f"{quantity.show(p.low)} to {quantity.show(p.high)}; {p.launches} launches)",
            links.href(p.source),
        )
        for p in points
        if p.value > 0
    )


def _ratio_series(evidence: Evidence, quantity: Quantity, which: Which, against: str) -> Series:
    marks = []
    for size, r in evidence.ratios(quantity, which, against).items():
        if r.low is not None and r.high is not None:
            interval = f"95 % interval {interval_text(r)}"
            text = f"{numbers.size(size)}: {numbers.times(r.value)} ({interval})"
            marks.append(Mark(size, r.value, r.low, r.high, text))
    word = "TCP" if against == BASELINE else "network only"
    return Series(f"against {word}", against, tuple(marks))


def _charts(
    evidence: Evidence, links: RawLinks, quantity: Quantity, which: Which, floor: str
) -> tuple[Chart, ...]:
    """Return a chart of all arms by size, and one of the ratios beneath."""
    floor_name = f"limit: {floor.replace('_', ' ')}"
    lines = [
        (which.of(arm), label, ARM_TITLES[arm], arm)
        for arm, label in (
            (OURS, ARM_TITLES[OURS]),
            (NETWORK, "network only"),
            (BASELINE, ARM_TITLES[BASELINE]),
        )
    ]
    series = [
        Series(label, style, _marks(evidence.curve(quantity, one), quantity, name, links))
        for one, label, name, style in (*lines, (limit(floor), floor_name, floor_name, LIMIT))
    ]
    ratios = [_ratio_series(evidence, quantity, which, arm) for arm in (BASELINE, NETWORK)]
    axis = "half round trip" if quantity is Quantity.TIME else quantity.value
    title = f"{_mpi(which.mpi) or 'libfabric'}: {axis} by message size"
    return both(
        lambda layout: line_chart(title, axis, series, quantity.show, layout=layout),
        lambda layout: ratio_chart(f"{title}, ratio", "factor, more is better", ratios, layout),
    )


def figures(evidence: Evidence, links: RawLinks) -> list[Panel]:
    """Return latency and bandwidth of every MPI and of libfabric, and the message rates of all."""
    made = []

    def add(title: str, quantity: Quantity, which: Which, caption: str) -> None:
        floor = "one_copy" if quantity is Quantity.TIME else "two_copy"
        charts = _charts(evidence, links, quantity, which, floor)
        if charts or which.program == "fabric":
            made.append(Panel(title, charts, caption))

    for mpi in evidence.mpis("patterns"):
        which = Which(OURS, mpi, "patterns", "pingpong")
        add(
            f"Latency, {_mpi(mpi)}",
            Quantity.TIME,
            which,
            "Half round trip of a ping-pong; less is better. Bands: the middle half of the samples. "
            "Beneath: the factor by which nearmetal's time is shorter, with its 95 % interval. The limit is "
            "one copy out of the other core's cache, from 4 KiB up.",
        )
        add(
            f"Bandwidth, {_mpi(mpi)}",
            Quantity.BANDWIDTH,
            replace(which, test="uniband"),
            "Windows of up to 64 messages in one direction; more is better. The limit is a "
            "pipeline of two copies through shared memory, without any software above it.",
        )
    if rates := _rates(evidence, links):
        made.append(rates)
    if evidence.tests("fabric"):
        which = Which(OURS, "", "fabric", "fabric_pingpong")
        add(
            "Latency of libfabric alone",
            Quantity.TIME,
            which,
            "Half round trip of tagged messages over the public libfabric interface, between two "
            "nodes, without any MPI: the best that an MPI can reach.",
        )
        add(
            "Bandwidth of libfabric alone",
            Quantity.BANDWIDTH,
            replace(which, test="fabric_stream"),
            "Windows of tagged messages in one direction, without any MPI.",
        )
    return made


def _rates(evidence: Evidence, links: RawLinks) -> Panel | None:
    show, groups = Quantity.RATE.show, []
    for mpi in evidence.mpis("patterns"):
        bars = []
        for arm in evidence.arms(mpi, "patterns"):
            p = evidence.point(Quantity.RATE, Which(arm, mpi, "patterns", "uniband"), 8)
            if p is not None:
                values = (p.value, p.low, p.high)
                href = links.href(p.source)
                bars.append(ChartBar(ARM_TITLES[arm], arm or LIMIT, *values, show(p.value), href))
        if bars:
            groups.append((_mpi(mpi), bars))
    if not groups:
        return None
    caption = (
        "Messages per second of one rank to another, in windows of 64; more is better. "
        "Whiskers: the middle half of the samples."
    )
    slots = evidence.point(Quantity.RATE, limit("slots"), 8)
    if slots is not None:
        caption += f" The two cores alone pass {show(slots.value)} slots of 64 bytes."
    title = "Message rate at 8 bytes"
    return Panel(title, both(lambda layout: bar_chart(title.lower(), groups, layout)), caption)


def by_mpi(evidence: Evidence, links: RawLinks) -> Grid | None:
    """Return the headlines for every MPI."""
    rows = []
    for mpi in evidence.mpis("patterns"):
        row = [GridCell(_mpi(mpi))]
        for v in headlines(evidence, mpi):
            row += [links.cell(point, v.quantity) for point in (v.ours, v.baseline)]
            row.append(GridCell("" if v.ratio is None else numbers.times(v.ratio.value)))
        rows.append(tuple(row))
    heads = ("8 B latency", "8 B rate", "64 KiB bandwidth", "1 MiB bandwidth")
    columns = [c for h in heads for c in (f"{h}, nearmetal", "TCP", "ratio")]
    return Grid("Every MPI", ("MPI", *columns), tuple(rows)) if rows else None


def _times(
    evidence: Evidence, links: RawLinks, which: Which, sizes: Sequence[int]
) -> tuple[GridCell, ...] | None:
    """Return nearmetal's times at a few sizes with the ratios; None if nothing was measured."""
    curve = {p.size: p for p in evidence.curve(Quantity.TIME, which)}
    ratios = evidence.ratios(Quantity.TIME, which, BASELINE)
    cells = []
    for size in sizes:
        note = f"{numbers.times(ratios[size].value)} lower" if size in ratios else ""
        if size not in curve and which.program == "window":
            cells.append(GridCell("", note=note))
        else:
            cells.append(links.cell(curve.get(size), Quantity.TIME, note))
    cells += [GridCell("")] * (len(_SHOWN_SIZES) - len(cells))
    return tuple(cells) if curve else None


def operations(evidence: Evidence, links: RawLinks, mpi: str, program: str) -> Grid | None:
    """Return all tests of `patterns` or `window` of one MPI at a few sizes."""
    rows = []
    for test, _ in evidence.tests(program):
        sizes = (0,) if test == "barrier" else _SHOWN_SIZES
        cells = _times(evidence, links, Which(OURS, mpi, program, test), sizes)
        if cells:
            name = test.replace("_", " ") if program == "window" else test
            rows.append((GridCell(name), *cells))
    if program == "window":
        name = "operation"
        title = (
            f"One-sided operations under {_mpi(mpi)}: time of an operation, "
            "and the factor by which it is lower than the MPI's own"
        )
    else:
        name = "pattern"
        title = (
            f"Patterns under {_mpi(mpi)}: time of an operation, and "
            "the factor by which it is lower than over TCP (barrier: no size)"
        )
        if len(rows) <= _CHARTED:
            return None
    return Grid(title, (name, *_SIZE_COLUMNS), tuple(rows)) if rows else None


def third_party(evidence: Evidence, links: RawLinks, program: str) -> Grid | None:
    """Return a third-party benchmark at a few sizes: the value of every arm."""
    rows = [
        row
        for mpi in evidence.mpis(program)
        for test, variant in evidence.tests(program)
        for arm in evidence.arms(mpi, program)
        if (row := _third_party_row(evidence, links, Which(arm, mpi, program, test, variant)))
    ]
    columns = ("MPI", "test", "arm", "figure", *_SIZE_COLUMNS)
    title = f"{program}: as it prints them (lower median of the launches)"
    return Grid(title, columns, tuple(rows)) if rows else None


_FIGURES = ("time", "time_max", "time_pure", "rate", "bandwidth")


def _third_party_row(
    evidence: Evidence, links: RawLinks, which: Which
) -> tuple[GridCell, ...] | None:
    rows = rows_of(evidence.facts(which))
    metrics = {m for row in rows.values() for m in row}
    metric = next((m for m in _FIGURES if m in metrics), None)
    if metric is None:
        return None
    cells = [GridCell("")] * len(_SHOWN_SIZES)
    unit = ""
    # A barrier has no sizes; atomics have one.
    sizes = sorted({size for _, size in rows})
    for at, size in enumerate(_SHOWN_SIZES if len(sizes) > 1 else sizes):
        found = [row[metric] for (_, s), row in rows.items() if s == size and metric in row]
        if found:
            found.sort(key=lambda f: (f.value, f.launch))
            fact = found[(len(found) - 1) // 2]
            unit = fact.unit.value
            href = links.href(RawLine(fact.file, fact.line))
            cells[at] = GridCell(numbers.digits(fact.value), href)
    name = f"{which.test}, {which.variant}" if which.variant else which.test
    words = (_mpi(which.mpi), name, ARM_TITLES[which.arm], f"{metric}, {unit}")
    return (*map(GridCell, words), *cells)
