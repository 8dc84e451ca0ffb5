# SPDX-License-Identifier: Apache-2.0
"""Tables of a study: verdicts by test, what is signed, jitter, noisy neighbours, the testbed."""

from __future__ import annotations

from collections import Counter
from itertools import combinations
from statistics import median
from typing import TYPE_CHECKING

from nearmetal.core.errors import NearmetalError
from nearmetal.report import numbers
from nearmetal.report.page import Grid, TableCell
from nearmetal.report.study_view import (
    Anchors,
    Judged,
    StudyView,
    legend,
    point_title,
    scale_title,
    signed_percent,
    value_text,
)
from nearmetal.study.effects import (
    RULE,
    Jitter,
    SignedTable,
    by_pair,
    jitter,
    noisy_neighbour,
    tables_of,
)
from nearmetal.study.gate import BANDWIDTHS, FACTS, ONE_WAY, VARIES, fold
from nearmetal.study.judge import Comparison, Verdict, compare
from nearmetal.study.physics import LARGE, line_rate

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from nearmetal.study.model import Arm, Cell, Point
    from nearmetal.study.stats import Summary

ALL_PAIRS = "all_pairs"
ORDER = (Verdict.REJECT, Verdict.INCONCLUSIVE, Verdict.REFUSED, Verdict.NO_MARGIN, Verdict.ACCEPT)
"""The worst first."""

NEIGHBOURS = "neighbours"
"""The fact of an arm that says what shares its adapter: quiet, or busy."""

_UNITS = {"gb": "in GB", "gbit": "in Gbit/s"}


def _fact_name(name: str) -> str:
    """Return a fact in words: `memory_gb` as memory in GB."""
    stem, _, unit = name.rpartition("_")
    if stem and unit in _UNITS:
        name = f"{stem} {_UNITS[unit]}"
    return FACTS.get(name, name).removeprefix("the ").replace("_", " ")


def testbed(view: StudyView) -> Grid:
    """Return what is known of the arms, one row per fact."""
    arms = view.arms
    rows = [
        ("legend", [legend(arm) for arm in arms]),
        ("platform", [arm.platform for arm in arms]),
        ("fabric", [arm.fabric for arm in arms]),
        ("placement", [arm.placement for arm in arms]),
        ("cores per node", [str(arm.cores_per_node or "") for arm in arms]),
    ]
    names = dict.fromkeys((*FACTS, *(name for arm in arms for name in sorted(arm.facts))))
    for name in names:
        values = [str(arm.facts.get(name, "")) for arm in arms]
        if any(values):
            rows.append((_fact_name(name), values))
    columns = ("fact", *(arm.name for arm in arms))
    return Grid(
        "Testbed",
        columns,
        tuple(
            (TableCell(name), *(TableCell(value or "not told", style="words") for value in values))
            for name, values in rows
        ),
    )


def launches_grid(view: StudyView) -> Grid | None:
    """Return what launchers recorded of the launches, one row per fact: an arm's values, each once."""
    headers = {
        arm.name: [
            s.header for s in view.sources.values() if s.arm == arm.name and s.status == "facts"
        ]
        for arm in view.arms
    }
    recorded = {name: fold(found) for name, found in headers.items()}
    names = dict.fromkeys(name for found in recorded.values() for name in found)
    rows = [
        (
            TableCell(_fact_name(name)),
            *(
                TableCell(
                    recorded[arm.name].get(name, "not recorded").removeprefix(VARIES), style="words"
                )
                for arm in view.arms
            ),
        )
        for name in names
    ]
    caption = (
        "Recorded by what started the launches, before and after each. Several values are of "
        "different workloads or launches; the gate looks at each comparison apart."
    )
    columns = ("fact", *(arm.name for arm in view.arms))
    return Grid("Launches", columns, tuple(rows), caption) if rows else None


def _summary(summary: Summary, point: Point, href: str) -> TableCell:
    note = f"n {summary.n}"
    if summary.interval is not None:
        low, high = summary.interval.low, summary.interval.high
        note += f", {numbers.digits(low)} to {numbers.digits(high)}"
    return TableCell(value_text(summary.median, point.unit), href, note)


def _common(values: Iterable[str]) -> str | None:
    """Return what all of them say; None when they differ."""
    found = set(values)
    return found.pop() if len(found) == 1 else None


def _label(point: Point, *, scale: bool) -> str:
    """Return what tells a row apart from others of its table."""
    parts = [] if point.size is None else [numbers.size(point.size)]
    if point.test == ALL_PAIRS:
        parts.append(point.variant)
    return ", ".join(filter(None, (*parts, scale_title(point) if scale else ""))) or point.metric


def _row(
    one: Comparison, anchors: Anchors, *, scale: bool, margin: bool, marks: bool
) -> list[TableCell]:
    ratio, interval = "-", ""
    if one.ratio is not None:
        ratio = f"{one.ratio.value:.3f}"
        if one.ratio.low is not None and one.ratio.high is not None:
            interval = f"{one.ratio.low:.3f} to {one.ratio.high:.3f}"
    tax = "-" if one.tax_percent is None else signed_percent(one.tax_percent)
    needed = f"about {one.needed} more launches" if one.needed else ""
    cells = [
        TableCell(_label(one.point, scale=scale)),
        _summary(one.base, one.point, anchors.of(one.arms[0], one.point)),
        _summary(one.test, one.point, anchors.of(one.arms[1], one.point)),
        TableCell(ratio, note=interval),
        TableCell(tax),
        TableCell(one.verdict.value, note=needed, style=one.verdict.value.split()[0]),
    ]
    cells += [TableCell(one.margin.origin if one.margin else "-")] if margin else []
    return cells + ([TableCell("; ".join(one.gate.watermarks), style="words")] if marks else [])


def tally(found: Iterable[Comparison]) -> tuple[tuple[str, str], ...]:
    """Return how many points have which verdict, the worst first, as (style, words)."""
    counts = Counter(one.verdict for one in found)
    return tuple((v.value.split()[0], f"{counts[v]} {v.value}") for v in ORDER if counts[v])


def groups_of(judged: Judged) -> dict[tuple[str, str, str], list[Comparison]]:
    """Return the comparisons of an arm by test, variant and metric; pairs of nodes together.

    Where two programs have tests of one name, as PingPong, the program's name stands before it.
    """
    programs: dict[str, set[str]] = {}
    for one in judged.comparisons:
        programs.setdefault(one.point.test, set()).add(one.point.program)
    groups: dict[tuple[str, str, str], list[Comparison]] = {}
    for one in judged.comparisons:
        variant = "" if one.point.test == ALL_PAIRS else one.point.variant
        same_name = len(programs[one.point.test]) > 1
        test = f"{one.point.program} {one.point.test}" if same_name else one.point.test
        groups.setdefault((test, variant, one.point.metric), []).append(one)
    return groups


def tables(view: StudyView, anchors: Anchors) -> list[Grid]:
    """Return one table per arm, test and metric; what all rows share stands in the caption."""
    grids = []
    for judged in view.judged:
        for (test, variant, metric), members in groups_of(judged).items():
            scale = _common(scale_title(one.point) for one in members)
            margin = _common(one.margin.origin if one.margin else "no margin" for one in members)
            marks = any(one.gate.watermarks for one in members)
            name = " ".join(filter(None, (test, variant)))
            better = "less" if members[0].point.lower_is_better else "more"
            said = filter(
                None,
                (
                    f"Here {better} is better; a loss is positive",
                    scale,
                    margin and f"margin: {margin}",
                ),
            )
            columns = (
                "",
                view.base.name,
                judged.arm.name,
                "ratio",
                "loss",
                "verdict",
                *([] if margin else ["margin"]),
                *(["marks"] if marks else []),
            )
            rows = tuple(
                tuple(_row(one, anchors, scale=scale is None, margin=margin is None, marks=marks))
                for one in members
            )
            title = f"{name}, {metric}: {judged.arm.name} against {view.base.name}"
            grids.append(Grid(title, columns, rows, "; ".join(said) + ".", tally(members)))
    return grids


def _pairs_of_fabrics(view: StudyView) -> Iterator[tuple[Arm, Arm]]:
    """Return every two arms on one kind of platform over different fabrics."""
    for first, second in combinations(view.arms, 2):
        alike = first.platform.lower() == second.platform.lower()
        if alike and first.fabric.lower() != second.fabric.lower():
            yield first, second


def signed_tables(view: StudyView) -> list[tuple[str, SignedTable]]:
    """Return the signed tables of arms that differ in their fabric, with their titles."""
    found = []
    for first, second in _pairs_of_fabrics(view):
        cells = [[c for c in view.cells if c.arm == arm.name] for arm in (first, second)]
        comparisons = compare(
            (second, cells[1]), (first, cells[0]), versions=view.versions_of, observed=view.observed
        )
        for title, table in tables_of(comparisons).items():
            found.append((title, table))
    return found


def signed_grids(view: StudyView) -> list[Grid]:
    """Return by how many percent one fabric is faster than another, signed, as papers show it."""
    grids = []
    for title, table in signed_tables(view):
        rows = list(dict.fromkeys(row for row, _ in table.cells))
        columns = list(dict.fromkeys(column for _, column in table.cells))
        flagged = table.flagged
        lines = [
            (TableCell(row), *(_signed_cell(table, (row, column), flagged) for column in columns))
            for row in rows
        ]
        grids.append(
            Grid(
                f"{title}: {table.first} against {table.second}",
                ("", *columns),
                tuple(lines),
                f"Plus: {table.first} is faster; minus: {table.second}. Medians; refused comparisons are "
                f"left out. {RULE[0].upper()}{RULE[1:]}: {len(flagged)}.",
            )
        )
    return grids


def _signed_cell(
    table: SignedTable, key: tuple[str, str], flagged: dict[tuple[str, str], float]
) -> TableCell:
    if key not in table.cells:
        return TableCell("")
    text = table.shown(key).replace("-", "\N{MINUS SIGN}")
    return TableCell(
        text,
        note="stands out" if key in flagged else "",
        style="INCONCLUSIVE" if key in flagged else "",
    )


def _spread_row(arm: str, name: str, found: Jitter, text: Point) -> tuple[TableCell, ...]:
    def shown(value: float) -> TableCell:
        return TableCell(value_text(value, text.unit))

    return (
        TableCell(arm, note=name),
        TableCell(str(found.pairs)),
        TableCell(str(found.values)),
        shown(found.mean),
        shown(found.three_sigma),
        shown(found.median),
        shown(found.p95),
        shown(found.p99),
        TableCell(f"{found.tail:.2f}"),
        TableCell(found.worst[0], note=value_text(found.worst[1], text.unit)),
    )


def jitter_grid(view: StudyView) -> Grid | None:
    """Return the jitter over all pairs of nodes, where an arm has matrices of them."""
    rows = []
    for arm in view.arms:
        ours = [c for c in view.cells if c.arm == arm.name and c.point.test == ALL_PAIRS]
        for metric in dict.fromkeys(c.point.metric for c in ours):
            cells = [c for c in ours if c.point.metric == metric]
            try:
                found = jitter(by_pair(cells), lower_is_better=cells[0].point.lower_is_better)
            except NearmetalError:
                continue  # one value has no spread, and nothing is said of it
            rows.append(_spread_row(arm.name, metric, found, cells[0].point))
    columns = (
        "",
        "pairs",
        "values",
        "mean",
        "3 sigma",
        "median",
        "p95",
        "p99",
        "p99 / median",
        "worst pair",
    )
    caption = (
        "Over all pairs of nodes and their launches. Three standard deviations are what papers "
        "show; the tails say what a rank waits for. Of rates, the tails are the low ends."
    )
    return Grid("Jitter over all pairs", columns, tuple(rows), caption) if rows else None


def neighbour_grid(view: StudyView) -> Grid | None:
    """Return what busy neighbours on the same adapter cost, where two arms differ in them."""
    rows = []
    for judged in view.judged:
        told = [arm.facts.get(NEIGHBOURS) for arm in (view.base, judged.arm)]
        if None in told or told[0] == told[1]:
            continue
        for one in judged.comparisons:
            quiet, busy = (view.cell(name, one.point) for name in one.arms)
            if quiet and busy and one.point.lower_is_better:
                row = _inflation(one, quiet, busy)
                rows += [row] if row else []
    columns = ("", "busy", "median, times", "95 %", "tail, times", "launches")
    caption = (
        "Latency beside busy neighbours by latency beside quiet ones. The tail is the 99th "
        "percentile of launches, with fewer than 100 the slowest."
    )
    return Grid("Noisy neighbours", columns, tuple(rows), caption) if rows else None


def _inflation(one: Comparison, quiet: Cell, busy: Cell) -> tuple[TableCell, ...] | None:
    try:
        found = noisy_neighbour(quiet.values, busy.values)
    except NearmetalError:
        return None  # a latency of zero has no ratio; its row in the table says so
    interval = "-"
    if found.median.low is not None and found.median.high is not None:
        interval = f"{found.median.low:.2f} to {found.median.high:.2f}"
    return (
        TableCell(point_title(one.point)),
        TableCell(one.arms[1]),
        TableCell(f"{found.median.value:.2f}"),
        TableCell(interval),
        TableCell(f"{found.tail:.2f}"),
        TableCell(f"{one.base.n}, {one.test.n}"),
    )


def _fullest(view: StudyView, arm: Arm) -> tuple[Cell, float] | None:
    """Return the cell with the largest one-way bandwidth of large messages, in Gbit/s of its median."""
    found = [
        (cell, median(cell.values) * BANDWIDTHS[cell.point.unit])
        for cell in view.cells
        if cell.arm == arm.name
        and cell.point.unit in BANDWIDTHS
        and cell.point.test in ONE_WAY
        and (cell.point.size or 0) >= LARGE
    ]
    return max(found, key=lambda one: one[1]) if found else None


def line_grid(view: StudyView, anchors: Anchors) -> Grid | None:
    """Return how much of their lines the arms fill, where line rates were told."""
    rows = []
    for arm in view.arms:
        told, fullest = arm.facts.get("line_rate_gbit"), _fullest(view, arm)
        if told is None or fullest is None:
            continue
        cell, measured = fullest
        mtu = arm.facts.get("mtu", "")
        found = line_rate(arm.fabric, float(told), measured, int(mtu) if mtu.isdigit() else None)
        rows.append(
            (
                TableCell(arm.name, note=point_title(cell.point)),
                TableCell(f"{found.nominal:g}"),
                TableCell(f"{found.data:.4g}"),
                TableCell(f"{found.payload:.4g}"),
                TableCell(f"{measured:.4g}", anchors.of(arm.name, cell.point)),
                TableCell(f"{found.share:.1%}"),
                TableCell(found.verdict, style="words"),
            )
        )
    columns = ("", "told", "behind the encoding", "less headers", "measured", "share", "verdict")
    caption = (
        "Gbit/s. The largest median of one-way bandwidth from 64 KiB on, against what the line "
        "leaves for payload in packets of the MTU (fact mtu; else the usual one)."
    )
    return Grid("Line rate", columns, tuple(rows), caption) if rows else None


def special_grids(view: StudyView, anchors: Anchors) -> list[Grid]:
    """Return line rates, jitter, noisy neighbours and signed tables, where the study holds them."""
    made: Sequence[Grid | None] = (
        line_grid(view, anchors),
        jitter_grid(view),
        neighbour_grid(view),
        *signed_grids(view),
    )
    return [grid for grid in made if grid is not None]
