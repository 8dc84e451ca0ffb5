# SPDX-License-Identifier: Apache-2.0
"""What the page shows, as data: cards, charts, tables, raw files. The template only prints it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from nearmetal.report import numbers
from nearmetal.report.analysis import (
    ARM_TITLES,
    BASELINE,
    MPI_TITLES,
    NETWORK,
    OURS,
    Evidence,
    Point,
    Quantity,
    Source,
    Verdict,
    Which,
    limit,
    rows_of,
    verdicts,
)
from nearmetal.report.page import Cell, Chart, Figure, Grid, both
from nearmetal.report.svg import Bar, Mark, Series, bar_chart, line_chart, ratio_chart

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from nearmetal.evidence import RunFacts

ARM_LABELS = {OURS: "nearmetal", NETWORK: "network only", BASELINE: "MPI's own TCP"}
STYLES = {OURS: "auto", NETWORK: "net", BASELINE: "stock", "": "limit"}
_SHOWN_SIZES = (8, 1 << 10, 1 << 16, 1 << 20, 1 << 22)


@dataclass(frozen=True)
class Card:
    """One headline."""

    title: str
    ratio: str
    spread: str
    quiet: str
    ours: Cell
    baseline: Cell
    network: Cell
    limit: Cell
    limit_name: str
    share_of_limit: str
    goal: str
    reached: bool | None


class Links:
    """Anchors of raw lines: `#f3-l12` is line 12 of the third raw file."""

    def __init__(self, run: RunFacts) -> None:
        """Number the raw files in the order of the launches."""
        files = [name for launch in run.manifest.launches for name, _ in launch.files]
        self.numbers = {file: i for i, file in enumerate(files, 1)}

    def href(self, source: Source) -> str:
        """Return the link to a raw line."""
        return f"#f{self.numbers[source.file]}-l{source.line}"


def _cell(point: Point | None, quantity: Quantity, links: Links) -> Cell:
    if point is None:
        return Cell("not measured")
    return Cell(quantity.show(point.value), links.href(point.source))


def cards(found: Sequence[Verdict], links: Links) -> list[Card]:
    """Return the headlines as they are shown."""
    made = []
    for v in found:
        share = ""
        if v.ours is not None and v.limit is not None and v.limit.value > 0 and v.ours.value > 0:
            factor = (
                v.ours.value / v.limit.value
                if v.quantity.less_is_better
                else v.limit.value / v.ours.value
            )
            share = (
                f"the limit is {numbers.times(factor)} better"
                if factor > 1
                else "above the limit of its block: the cores moved or were disturbed"
            )
        word = "lower" if v.quantity.less_is_better else "higher"
        ratio = "not measured" if v.ratio is None else f"{numbers.times(v.ratio.value)} {word}"
        spread = ""
        if v.ratio is not None:
            spread = (
                f"{numbers.times(v.ratio.low)} to {numbers.times(v.ratio.high)} in "
                f"{v.ratio.blocks} interleaved blocks"
            )
        quiet = ""
        if v.quiet_ratio is not None and v.ours is not None and v.baseline is not None:
            quiet = (
                f"Undisturbed (best of fifty samples): {v.quantity.show(v.ours.best)} against "
                f"{v.quantity.show(v.baseline.best)}, {numbers.times(v.quiet_ratio)}"
            )
        cells = [_cell(p, v.quantity, links) for p in (v.ours, v.baseline, v.network, v.limit)]
        goal = f"at least {numbers.tick(numbers.times(v.goal))}"
        made.append(
            Card(
                v.title,
                ratio,
                spread,
                quiet,
                cells[0],
                cells[1],
                cells[2],
                cells[3],
                v.limit_name,
                share,
                goal,
                v.reached,
            )
        )
    return made


def sentence(found: Sequence[Verdict]) -> str:
    """Return the verdict in one sentence."""
    latency, rate, bandwidth = found
    if latency.ours is None:
        return "nearmetal's own arm was not measured in this run."
    if latency.baseline is None or latency.ratio is None:
        return (
            f"An 8-byte message takes {numbers.microseconds(latency.ours.value)}; the MPI's "
            "own TCP was not measured in this run."
        )
    more = ""
    if rate.ratio is not None and bandwidth.ratio is not None:
        more = (
            f" The message rate is {numbers.times(rate.ratio.value)}, the bandwidth at 1 MiB "
            f"{numbers.times(bandwidth.ratio.value)} that of TCP."
        )
    return (
        f"An 8-byte message takes {numbers.microseconds(latency.ours.value)} between nodes, "
        f"{numbers.microseconds(latency.baseline.value)} over the MPI's own TCP: "
        f"{numbers.times(latency.ratio.value)} lower latency." + more
    )


def _marks(
    points: Iterable[Point], quantity: Quantity, name: str, links: Links
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
    word = "TCP" if against == BASELINE else "network only"
    marks = tuple(
        Mark(
            r.size,
            r.value,
            r.low,
            r.high,
            f"{numbers.size(r.size)}: {numbers.times(r.value)} ({numbers.times(r.low)} to "
            f"{numbers.times(r.high)}, {r.blocks} blocks)",
        )
        for r in evidence.ratios(quantity, which, against)
    )
    return Series(f"against {word}", STYLES[against], marks)


def _charts(
    evidence: Evidence, links: Links, quantity: Quantity, which: Which, floor: str
) -> tuple[Chart, ...]:
    """Return a chart of all arms by size, and one of the ratios beneath."""
    series = [
        Series(
            ARM_LABELS[arm],
            STYLES[arm],
            _marks(evidence.curve(quantity, which.of(arm)), quantity, ARM_TITLES[arm], links),
        )
        for arm in (OURS, NETWORK, BASELINE)
    ]
    name = f"limit: {floor.replace('_', ' ')}"
    series.append(
        Series(name, "limit", _marks(evidence.curve(quantity, limit(floor)), quantity, name, links))
    )
    ratios = [_ratio_series(evidence, quantity, which, arm) for arm in (BASELINE, NETWORK)]
    axis = "half round trip" if quantity is Quantity.TIME else quantity.value
    title = f"{MPI_TITLES.get(which.mpi, which.mpi) or 'libfabric'}: {axis} by message size"
    return both(
        lambda layout: line_chart(title, axis, series, quantity.show, layout=layout),
        lambda layout: ratio_chart(
            f"{title}, ratio", "how many times better", ratios, layout=layout
        ),
    )


def figures(evidence: Evidence, links: Links) -> list[Figure]:
    """Return latency and bandwidth of every MPI, and the message rates of all."""
    made = []
    for mpi in evidence.mpis("patterns"):
        name = MPI_TITLES.get(mpi, mpi)
        which = Which(OURS, mpi, "patterns", "pingpong")
        latency = _charts(evidence, links, Quantity.TIME, which, "one_copy")
        if latency:
            made.append(
                Figure(
                    f"Latency, {name}",
                    latency,
                    (
                        "Half round trip of a ping-pong; less is better. Bands: the middle half of the "
                        "samples; beneath, how many times shorter nearmetal's is (band: range over "
                        "blocks). The limit is one copy out of the other core's cache, from 4 KiB up."
                    ),
                )
            )
        which = replace(which, test="uniband")
        bandwidth = _charts(evidence, links, Quantity.BANDWIDTH, which, "two_copy")
        if bandwidth:
            made.append(
                Figure(
                    f"Bandwidth, {name}",
                    bandwidth,
                    (
                        "Windows of up to 64 messages in one direction; more is better. The limit is a "
                        "pipeline of two copies through shared memory, without any software above it."
                    ),
                )
            )
    rates = _rates(evidence, links)
    return [*made, *([rates] if rates is not None else []), *_fabric(evidence, links)]


def _fabric(evidence: Evidence, links: Links) -> list[Figure]:
    """Return what libfabric alone does, without an MPI above it."""
    latency = _charts(
        evidence, links, Quantity.TIME, Which(OURS, "", "fabric", "fabric_pingpong"), "one_copy"
    )
    stream = _charts(
        evidence, links, Quantity.BANDWIDTH, Which(OURS, "", "fabric", "fabric_stream"), "two_copy"
    )
    if not evidence.tests("fabric"):
        return []
    return [
        Figure(
            "Latency of libfabric alone",
            latency,
            "Half round trip of tagged messages over the public libfabric interface, between two "
            "nodes, without any MPI: what an MPI can have at best.",
        ),
        Figure(
            "Bandwidth of libfabric alone",
            stream,
            "Windows of tagged messages in one direction, without any MPI.",
        ),
    ]


def _rates(evidence: Evidence, links: Links) -> Figure | None:
    groups = []
    for mpi in evidence.mpis("patterns"):
        bars = []
        for arm in evidence.arms(mpi, "patterns"):
            p = evidence.point(Quantity.RATE, Which(arm, mpi, "patterns", "uniband"), 8)
            if p is not None:
                bars.append(
                    Bar(
                        ARM_TITLES[arm],
                        STYLES[arm],
                        p.value,
                        p.low,
                        p.high,
                        numbers.megamessages_per_second(p.value),
                        links.href(p.source),
                    )
                )
        if bars:
            groups.append((MPI_TITLES.get(mpi, mpi), bars))
    if not groups:
        return None
    slots = evidence.point(Quantity.RATE, limit("slots"), 8)
    beside = (
        ""
        if slots is None
        else (
            f" The two cores alone pass {numbers.megamessages_per_second(slots.value)} slots of 64 "
            "bytes."
        )
    )
    return Figure(
        "Message rate at 8 bytes",
        both(lambda layout: bar_chart("message rate at 8 bytes", groups, layout)),
        "Messages per second of one rank to another, in windows of 64; more is better. "
        "Whiskers: the middle half of the samples." + beside,
    )


def by_mpi(evidence: Evidence, links: Links) -> Grid | None:
    """Return the three headlines for every MPI."""
    mpis = evidence.mpis("patterns")
    if not mpis:
        return None
    rows = []
    for mpi in mpis:
        row = [Cell(MPI_TITLES.get(mpi, mpi))]
        for v in verdicts(evidence, mpi):
            row += [
                _cell(v.ours, v.quantity, links),
                _cell(v.baseline, v.quantity, links),
                Cell("" if v.ratio is None else numbers.times(v.ratio.value)),
            ]
        rows.append(tuple(row))
    heads = ("8 B latency", "8 B rate", "1 MiB bandwidth")
    columns = [c for h in heads for c in (f"{h}, nearmetal", "TCP", "ratio")]
    return Grid("Every MPI", ("MPI", *columns), tuple(rows))


def patterns(evidence: Evidence, links: Links, mpi: str) -> Grid | None:
    """Return all patterns of one MPI at a few sizes: nearmetal's time, and the ratio."""
    rows = []
    for test, _ in evidence.tests("patterns"):
        which = Which(OURS, mpi, "patterns", test)
        curve = {p.size: p for p in evidence.curve(Quantity.TIME, which)}
        ratios = {r.size: r for r in evidence.ratios(Quantity.TIME, which, BASELINE)}
        sizes = (0,) if test == "barrier" else _SHOWN_SIZES
        cells = [Cell(test)]
        for size in sizes:
            cell = _cell(curve.get(size), Quantity.TIME, links)
            note = f"{numbers.times(ratios[size].value)} lower" if size in ratios else ""
            cells.append(Cell(cell.text, cell.href, note))
        cells += [Cell("")] * (len(_SHOWN_SIZES) + 1 - len(cells))
        if curve:
            rows.append(tuple(cells))
    if len(rows) <= 2:  # noqa: PLR2004 - ping-pong and streams have charts of their own
        return None
    columns = ("pattern", *(numbers.size(s) for s in _SHOWN_SIZES))
    return Grid(
        f"Patterns under {MPI_TITLES.get(mpi, mpi)}: time of an operation, and how many "
        "times lower than over TCP (barrier: no size)",
        columns,
        tuple(rows),
    )


def windows(evidence: Evidence, links: Links, mpi: str) -> Grid | None:
    """Return one-sided operations of one MPI at a few sizes."""
    rows = []
    for test, _ in evidence.tests("window"):
        which = Which(OURS, mpi, "window", test)
        curve = {p.size: p for p in evidence.curve(Quantity.TIME, which)}
        ratios = {r.size: r for r in evidence.ratios(Quantity.TIME, which, BASELINE)}
        cells = [Cell(test.replace("_", " "))]
        for size in _SHOWN_SIZES:
            cell = _cell(curve[size], Quantity.TIME, links) if size in curve else Cell("")
            note = f"{numbers.times(ratios[size].value)} lower" if size in ratios else ""
            cells.append(Cell(cell.text, cell.href, note))
        if curve:
            rows.append(tuple(cells))
    if not rows:
        return None
    columns = ("operation", *(numbers.size(s) for s in _SHOWN_SIZES))
    return Grid(
        f"One-sided operations under {MPI_TITLES.get(mpi, mpi)}: time of an operation, "
        "and how many times lower than the MPI's own",
        columns,
        tuple(rows),
    )


def third_party(evidence: Evidence, links: Links, program: str) -> Grid | None:
    """Return a third-party benchmark at a few sizes: the value of every arm."""
    rows = []
    for mpi in evidence.mpis(program):
        for test, variant in evidence.tests(program):
            for arm in evidence.arms(mpi, program):
                which = Which(arm, mpi, program, test, variant)
                rows += _third_party_row(evidence, links, which)
    if not rows:
        return None
    columns = ("MPI", "test", "arm", "figure", *(numbers.size(s) for s in _SHOWN_SIZES))
    return Grid(
        f"{program}: as it prints them (lower median of the launches)", columns, tuple(rows)
    )


_FIGURES = ("time", "time_max", "time_pure", "rate", "bandwidth")


def _third_party_row(evidence: Evidence, links: Links, which: Which) -> list[tuple[Cell, ...]]:
    rows = rows_of(evidence.facts(which))
    metrics = {m for row in rows.values() for m in row}
    metric = next((m for m in _FIGURES if m in metrics), None)
    if metric is None:
        return []
    cells = []
    unit = ""
    # A barrier has no sizes; atomics have one.
    sizes = sorted({size for _, size in rows})
    shown = _SHOWN_SIZES if len(sizes) > 1 else (sizes[0], *([-1] * (len(_SHOWN_SIZES) - 1)))
    for size in shown:
        found = sorted(
            (row[metric] for (_, s), row in rows.items() if s == size and metric in row),
            key=lambda f: (f.value, f.launch),
        )
        if not found:
            cells.append(Cell(""))
            continue
        fact = found[(len(found) - 1) // 2]
        unit = fact.unit.value
        cells.append(Cell(numbers.digits(fact.value), links.href(Source(fact.file, fact.line))))
    name = f"{which.test}, {which.variant}" if which.variant else which.test
    return [
        (
            Cell(MPI_TITLES.get(which.mpi, which.mpi)),
            Cell(name),
            Cell(ARM_TITLES[which.arm]),
            Cell(f"{metric}, {unit}"),
            *cells,
        )
    ]
