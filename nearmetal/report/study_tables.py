# SPDX-License-Identifier: Apache-2.0
"""Tables of a study: verdicts by test, signed tables, jitter, noisy neighbours, the testbed."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import combinations
from statistics import median

from nearmetal.core.errors import NearmetalError
from nearmetal.evidence.line_rate import line_rate
from nearmetal.report import numbers
from nearmetal.report.page import Grid, GridCell
from nearmetal.report.study_view import (
    Anchors,
    Judged,
    StudyView,
    legend,
    point_title,
    scale_title,
    signed_percent,
    value_text,
    verdict_style,
)
from nearmetal.study.effects import RULE, SignedTable, by_pair, jitter, noisy_neighbour, tables_of
from nearmetal.study.gate import BANDWIDTHS, FACTS, ONE_WAY, VARIES, fold
from nearmetal.study.judge import Comparison, Verdict, compare
from nearmetal.study.model import JOULES, LAUNCH, Arm, Cell, Point
from nearmetal.study.physics import LARGE
from nearmetal.study.stats import Ratio, Summary, summarize

ALL_PAIRS = "all_pairs"
ORDER = (
    Verdict.INVALID,
    Verdict.REJECT,
    Verdict.INCONCLUSIVE,
    Verdict.MISSING,
    Verdict.REFUSED,
    Verdict.NO_MARGIN,
    Verdict.ACCEPT,
)
"""The worst first."""

NEIGHBOURS = "neighbours"
"""The fact of an arm about the other users of its adapter: quiet, or busy."""

WIDEST = 8
"""Number of columns that a page has room for."""

_JOULES = re.compile(r"\d{1,15}\.\d{3}")

_UNITS = {"gb": "in GB", "gbit": "in Gbit/s"}


def _fact_name(name: str) -> str:
    """Return a fact in words: `memory_gb` as memory in GB."""
    stem, _, unit = name.rpartition("_")
    if stem and unit in _UNITS:
        name = f"{stem} {_UNITS[unit]}"
    return FACTS.get(name, name).removeprefix("the ").replace("_", " ")


def _facts_grid(
    view: StudyView, title: str, facts: Mapping[str, Mapping[str, str]], missing: str, caption: str
) -> Grid:
    """Return one row per fact that an arm has, and one column per arm; facts that differ first."""
    different: list[tuple[GridCell, ...]] = []
    same: list[tuple[GridCell, ...]] = []
    for name in dict.fromkeys(name for known in facts.values() for name in known):
        values = [facts[arm.name].get(name, "") for arm in view.arms]
        equal = len(set(values)) == 1
        style = "words same" if equal else "words"
        cells = [GridCell(value or missing, style=style) for value in values]
        if any(values) or name in _LABELS:
            (same if equal else different).append((GridCell(_fact_name(name)), *cells))
    columns = ("fact", *(arm.name for arm in view.arms))
    return Grid(title, columns, (*different, *same), caption)


_LABELS = ("legend", "platform", "fabric", "placement", "cores per node")


def testbed(view: StudyView) -> Grid:
    """Return the known facts of the arms."""
    facts = {}
    for arm in view.arms:
        cores = str(arm.cores_per_node or "")
        labels = (legend(arm), arm.platform, arm.fabric, arm.placement, cores)
        known = {name: str(arm.facts.get(name, "")) for name in (*FACTS, *sorted(arm.facts))}
        facts[arm.name] = dict(zip(_LABELS, labels, strict=True)) | known
    caption = "Facts that differ come first; facts that all arms share are grey."
    return _facts_grid(view, "Testbed", facts, "not known", caption)


def launches_grid(view: StudyView) -> Grid | None:
    """Return the facts that launchers recorded: each value of an arm once."""
    facts = {}
    for arm in view.arms:
        headers = [s.header for s in view.sources.values() if s.arm == arm.name]
        found = fold(headers)
        found.pop(JOULES, None)  # it has a table of its own
        facts[arm.name] = {k: v.removeprefix(VARIES) for k, v in found.items()}
    caption = (
        "Recorded by the starter of the launches, before and after each launch. Several values "
        "belong to different workloads or launches; the gate checks each comparison by itself."
    )
    grid = _facts_grid(view, "Records of the launches", facts, "not recorded", caption)
    return grid if grid.rows else None


def _energies(view: StudyView, arm: Arm) -> dict[str, list[float]]:
    """Return the joules of the launches of an arm, by test."""
    by_test: dict[str, dict[str, float]] = {}
    for cell in view.cells:
        for seen in cell.observations if cell.arm == arm.name else ():
            said = view.sources[seen.source].header.get(LAUNCH + JOULES, "")
            if _JOULES.fullmatch(said):
                by_test.setdefault(cell.point.test, {})[seen.source] = float(said)
    return {test: list(found.values()) for test, found in by_test.items()}


def energy_grid(view: StudyView) -> Grid | None:
    """Return the energy of the hosts during the launches of each test, if an arm has it."""
    arms = {arm.name: _energies(view, arm) for arm in view.arms}
    rows = []
    for test in dict.fromkeys(test for found in arms.values() for test in found):
        summaries = (summarize(found[test]) if test in found else None for found in arms.values())
        cells = (
            GridCell(f"{numbers.digits(s.median)} J", note=_spread(s)) if s else GridCell("-")
            for s in summaries
        )
        rows.append((GridCell(test), *cells))
    caption = (
        "Median of the launches, by the counters of the processors. All processes of the hosts "
        "count, also while a launch starts and ends."
    )
    return Grid("Energy of a launch", ("", *arms), tuple(rows), caption) if rows else None


def _spread(summary: Summary) -> str:
    note = f"n {summary.n}"
    if summary.interval is not None:
        low, high = summary.interval.low, summary.interval.high
        note += f", {numbers.digits(low)} to {numbers.digits(high)}"
    return note


def _summary(summary: Summary, point: Point, href: str) -> GridCell:
    return GridCell(value_text(summary.median, point.unit), href, _spread(summary))


def _common(values: Iterable[str]) -> str | None:
    """Return the value that all have; None if they differ."""
    found = set(values)
    return found.pop() if len(found) == 1 else None


def _label(point: Point, *, scale: bool) -> str:
    """Return the label that distinguishes a row from others of its table."""
    parts = [] if point.size is None else [numbers.size(point.size)]
    if point.test == ALL_PAIRS:
        parts.append(point.variant)
    return ", ".join(filter(None, (*parts, scale_title(point) if scale else ""))) or point.metric


def _interval(ratio: Ratio | None, digits: int) -> str:
    if ratio is None or ratio.low is None or ratio.high is None:
        return ""
    return f"{ratio.low:.{digits}f} to {ratio.high:.{digits}f}"


def _row(
    one: Comparison, anchors: Anchors, *, scale: bool, margin: bool, marks: bool
) -> list[GridCell]:
    needed = (
        f"an interval needs {one.needed} more launch{'es' * (one.needed > 1)}" if one.needed else ""
    )
    sides = zip((one.base, one.test), one.arms, strict=True)
    cells = [
        GridCell(
            _label(one.point, scale=scale),
            note="endpoint" if one.primary else "",
            anchor=anchors.row(one),
        ),
        GridCell(one.verdict.value, note=needed, style=verdict_style(one.verdict)),
        GridCell("-" if one.tax_percent is None else signed_percent(one.tax_percent)),
        GridCell(f"{one.ratio.value:.3f}" if one.ratio else "-", note=_interval(one.ratio, 3)),
        *(_summary(side, one.point, anchors.of(arm, one.point)) for side, arm in sides),
    ]
    cells += [GridCell(one.margin.origin if one.margin else "-")] if margin else []
    return cells + ([GridCell("; ".join(one.gate.watermarks), style="words")] if marks else [])


def tally(counts: Mapping[Verdict, int]) -> tuple[tuple[str, str], ...]:
    """Return the number of points by verdict, the worst first, as (style, words)."""
    return tuple((verdict_style(v), f"{counts[v]} {v.value}") for v in ORDER if counts.get(v))


def groups_of(judged: Judged) -> dict[tuple[str, str, str], list[Comparison]]:
    """Return the comparisons of an arm by test, variant and metric; pairs of nodes together.

    If two programs have tests of one name, such as PingPong, the program's name stands before it.
    """
    programs: dict[str, set[str]] = {}
    for one in judged.comparisons:
        programs.setdefault(one.point.test, set()).add(one.point.program)
    setups: dict[tuple[str, str], set[str]] = {}
    for one in judged.comparisons:
        setup = one.point.curve.setup
        setups.setdefault((one.point.test, one.point.variant), set()).add(setup.words)
    groups: dict[tuple[str, str, str], list[Comparison]] = {}
    for one in judged.comparisons:
        point = one.point
        variant = "" if point.test == ALL_PAIRS else point.variant
        if variant == point.variant and len(setups[point.test, variant]) > 1:
            variant = point.curve.setup.words or variant
        same_name = len(programs[point.test]) > 1
        test = f"{point.program} {point.test}" if same_name else point.test
        groups.setdefault((test, variant, point.metric), []).append(one)
    return groups


def tables(view: StudyView, anchors: Anchors) -> list[Grid]:
    """Return one table per arm, test and metric; the caption has the facts that all rows share."""
    grids = []
    for judged in view.judged:
        for (test, variant, metric), members in groups_of(judged).items():
            scale = _common(scale_title(one.point) for one in members)
            margin = _common(one.margin.origin if one.margin else "no margin" for one in members)
            marks = any(one.gate.watermarks for one in members)
            better = "less" if members[0].point.lower_is_better else "more"
            said = [f"Here {better} is better; a loss is positive", scale or ""]
            said.append(f"margin: {margin}" if margin else "")
            setup = _common(one.point.curve.setup.words for one in members)
            said.append(f"configuration: {setup}" if setup else "")
            columns = ["", "verdict", "loss", "ratio", view.base.name, judged.arm.name]
            columns += ([] if margin else ["margin"]) + (["marks"] if marks else [])
            rows = tuple(
                tuple(_row(one, anchors, scale=scale is None, margin=margin is None, marks=marks))
                for one in members
            )
            name = " ".join(filter(None, (test, variant)))
            title = f"{name}, {metric}: {judged.arm.name} against {view.base.name}"
            caption = "; ".join(filter(None, said)) + "."
            grids.append(
                Grid(
                    title,
                    tuple(columns),
                    rows,
                    caption,
                    tally(Counter(one.verdict for one in members)),
                )
            )
    return grids


def signed_tables(view: StudyView) -> Iterator[tuple[str, SignedTable]]:
    """Return the signed tables of arms that differ in their fabric only, with their titles."""
    for first, second in combinations(view.arms, 2):
        alike = first.platform.lower() == second.platform.lower()
        if alike and first.fabric.lower() != second.fabric.lower():
            sides = [(arm, [c for c in view.valid if c.arm == arm.name]) for arm in (second, first)]
            seen = view.observed
            yield from tables_of(compare(*sides, versions=seen.versions, observed=seen)).items()


def signed_grids(view: StudyView) -> list[Grid]:
    """Return the differences between fabrics in percent, signed, as in papers."""
    grids = []
    for name, table in signed_tables(view):
        names = tuple(dict.fromkeys(row for row, _ in table.cells))
        columns = tuple(dict.fromkeys(column for _, column in table.cells))
        rows = [[_signed_cell(table, (name, column)) for column in columns] for name in names]
        if len(columns) > max(WIDEST, len(names)):
            names, columns = columns, names
            rows = [list(row) for row in zip(*rows, strict=True)]
        lines = tuple((GridCell(name), *row) for name, row in zip(names, rows, strict=True))
        caption = (
            f"Plus: {table.first} is faster; minus: {table.second}. Medians; refused comparisons "
            f"are left out. {RULE[0].upper()}{RULE[1:]}: {len(table.flagged)}."
        )
        title = f"{name}: {table.first} against {table.second}"
        grids.append(Grid(title, ("", *columns), lines, caption))
    return grids


def _signed_cell(table: SignedTable, key: tuple[str, str]) -> GridCell:
    if key not in table.cells:
        return GridCell("")
    text = table.shown(key).replace("-", "\N{MINUS SIGN}")
    if key not in table.flagged:
        return GridCell(text)
    return GridCell(text, note="stands out", style=verdict_style(Verdict.INCONCLUSIVE))


def jitter_grid(view: StudyView) -> Grid | None:
    """Return the jitter over all pairs of nodes, if an arm has matrices of them."""
    rows = []
    for arm in view.arms:
        ours = [c for c in view.valid if c.arm == arm.name and c.point.test == ALL_PAIRS]
        for metric in dict.fromkeys(c.point.metric for c in ours):
            cells = [c for c in ours if c.point.metric == metric]
            point = cells[0].point
            try:
                found = jitter(by_pair(cells), lower_is_better=point.lower_is_better)
            except NearmetalError:
                continue  # a single value has no spread
            spread = (found.mean, found.three_sigma, found.median, found.p95, found.p99)
            words = (*(value_text(value, point.unit) for value in spread), f"{found.tail:.2f}")
            rows.append(
                (
                    GridCell(arm.name, note=metric),
                    *map(GridCell, (str(found.pairs), str(found.values), *words)),
                    GridCell(found.worst[0], note=value_text(found.worst[1], point.unit)),
                )
            )
    spread_columns = ("mean", "3 sigma", "median", "p95", "p99", "p99 / median")
    caption = (
        "Over all pairs of nodes and their launches. Papers show three standard deviations; the "
        "tails are the times for which a rank waits. The tails of rates are the low ends."
    )
    columns = ("", "pairs", "values", *spread_columns, "worst pair")
    return Grid("Jitter over all pairs", columns, tuple(rows), caption) if rows else None


def neighbour_grid(view: StudyView) -> Grid | None:
    """Return the cost of busy neighbours on the same adapter, if two arms differ in them."""
    rows = []
    for judged in view.judged:
        quiet, busy = (arm.facts.get(NEIGHBOURS) for arm in (view.base, judged.arm))
        if quiet is not None and busy is not None and quiet != busy:
            rows += [row for one in judged.comparisons if (row := _inflation(view, one))]
    columns = ("", "busy", "median, times", "95 %", "tail, times", "launches")
    caption = (
        "Latency beside busy neighbours, divided by latency beside quiet ones. The tail is the 99th "
        "percentile of launches; with fewer than 100 launches it is the slowest."
    )
    return Grid("Noisy neighbours", columns, tuple(rows), caption) if rows else None


def _inflation(view: StudyView, one: Comparison) -> tuple[GridCell, ...] | None:
    quiet, busy = (view.cell(name, one.point) for name in one.arms)
    if not quiet or not busy or not one.point.lower_is_better:
        return None
    try:
        found = noisy_neighbour(quiet.values, busy.values)
    except NearmetalError:
        return None  # a latency of zero has no ratio; its row in the table shows it
    words = (
        point_title(one.point),
        one.arms[1],
        f"{found.median.value:.2f}",
        _interval(found.median, 2) or "-",
        f"{found.tail:.2f}",
        f"{one.base.n}, {one.test.n}",
    )
    return tuple(map(GridCell, words))


def _fullest(view: StudyView, arm: Arm) -> tuple[Cell, float] | None:
    """Return the cell with the largest one-way bandwidth of large messages, in Gbit/s."""
    found = [
        (cell, median(cell.values) * BANDWIDTHS[cell.point.unit])
        for cell in view.valid
        if cell.arm == arm.name
        and cell.point.unit in BANDWIDTHS
        and cell.point.test in ONE_WAY
        and (cell.point.size or 0) >= LARGE
    ]
    return max(found, key=lambda one: one[1]) if found else None


def line_grid(view: StudyView, anchors: Anchors) -> Grid | None:
    """Return the used share of the lines of the arms, if line rates are known."""
    rows = []
    for arm in view.arms:
        rate, fullest = arm.facts.get("line_rate_gbit"), _fullest(view, arm)
        if rate is None or fullest is None:
            continue
        cell, measured = fullest
        mtu = arm.facts.get("mtu", "")
        found = line_rate(arm.fabric, float(rate), measured, int(mtu) if mtu.isdigit() else None)
        rows.append(
            (
                GridCell(arm.name, note=point_title(cell.point)),
                GridCell(f"{found.nominal:g}"),
                GridCell(f"{found.data:.4g}"),
                GridCell(f"{found.payload:.4g}"),
                GridCell(f"{measured:.4g}", anchors.of(arm.name, cell.point)),
                GridCell(f"{found.share:.1%}"),
                GridCell(found.verdict, style="words"),
            )
        )
    rates = ("nominal", "after the encoding", "without headers", "measured")
    caption = (
        "Gbit/s. The largest median of one-way bandwidth from 64 KiB on, against the payload that "
        "the line can carry in packets of the MTU (fact mtu, or the usual one)."
    )
    columns = ("", *rates, "share", "verdict")
    return Grid("Line rate", columns, tuple(rows), caption) if rows else None


def special_grids(view: StudyView, anchors: Anchors) -> list[Grid]:
    """Return line rates, jitter, noisy neighbours and signed tables, if the study has them."""
    made = (line_grid(view, anchors), jitter_grid(view), neighbour_grid(view), *signed_grids(view))
    return [grid for grid in made if grid is not None]
