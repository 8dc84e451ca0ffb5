# SPDX-License-Identifier: Apache-2.0
"""The report of a study: verdict first, every number linked to its raw lines; Markdown and CSV."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import groupby
from statistics import median

from nearmetal.report.page import (
    Card,
    CardShare,
    Grid,
    GridCell,
    csv_text,
    escaped,
    markdown_grid,
    render,
)
from nearmetal.report.study_charts import bars, curves, style_of
from nearmetal.report.study_omitted import ended_early, gaps_grid, losses_grid
from nearmetal.report.study_rules import rules
from nearmetal.report.study_tables import (
    ORDER,
    energy_grid,
    launches_grid,
    special_grids,
    tables,
    tally,
    testbed,
)
from nearmetal.report.study_view import (
    Anchors,
    Judged,
    StudyView,
    legend,
    point_title,
    raw_lines,
    signed_percent,
    verdict_style,
)
from nearmetal.study.gaps import Gap
from nearmetal.study.judge import Comparison, Verdict
from nearmetal.study.model import Point

_STYLES = {Verdict.ACCEPT: "good", Verdict.REJECT: "bad", Verdict.INVALID: "bad"}
SURVIVORS = "survivors only"
"""The mark of an arm that lost other launches than the base."""

MAX_TESTS = 6
"""Number of tests that the line below the headline names."""

MAX_ENDPOINTS = 6
"""Number of endpoints that the card of an arm names."""


def _why(judged: Judged) -> str:
    """Return the reason of the verdict on an arm, at the endpoint that shows it best."""
    verdict, reasons = judged.conclusion.verdict, judged.conclusion.reasons
    chosen = [one for one in judged.endpoints if one.verdict is verdict]
    if verdict in (Verdict.INCONCLUSIVE, Verdict.INVALID):
        first = [f"{point_title(chosen[0].point)}: {chosen[0].reason}"] if chosen else []
        return "; ".join([*first, *reasons]) + "."
    most = max(chosen, key=lambda one: one.tax_percent or 0.0)
    if most.tax_percent is None:
        return most.reason
    loss, where = signed_percent(most.tax_percent), point_title(most.point)
    which = "Largest loss beyond the margin" if verdict is Verdict.REJECT else "Largest loss"
    return "; ".join([f"{which} {loss} at {where}: {most.reason}", *reasons]) + "."


def _worst_first(judged: Judged) -> list[Comparison]:
    """Return the endpoints of an arm, the worst first, then the largest losses."""

    def rank(one: Comparison) -> tuple[int, float]:
        return ORDER.index(one.verdict), -(one.tax_percent or 0.0)

    return sorted(judged.endpoints, key=rank)


def _largest(judged: Judged) -> Comparison | None:
    """Return the endpoint with the largest loss, whatever its verdict."""
    known = [one for one in judged.endpoints if one.tax_percent is not None]
    return max(known, key=lambda one: one.tax_percent or 0.0, default=None)


def _loss(one: Comparison, anchors: Anchors) -> GridCell:
    words = "no ratio" if one.tax_percent is None else signed_percent(one.tax_percent)
    return GridCell(words, f"#{anchors.row(one)}")


def _other_points(judged: Judged) -> str:
    """Return the verdicts of the points beside the endpoints."""
    detail = judged.conclusion.detail
    return ", ".join(f"{detail[v]} {v.value}" for v in ORDER if detail[v])


def overview(view: StudyView, anchors: Anchors) -> Grid | None:
    """Return one line per arm, if there are several: what it is, and the verdict on it."""
    if len(view.judged) == 1:
        return None
    base = GridCell(view.base.name, note=legend(view.base), style=style_of(view, view.base))
    rows = [(base, *map(GridCell, ("base", "", "", "")))]
    for judged in view.judged:
        first, found = _largest(judged), judged.conclusion
        mark = SURVIVORS if found.survivors else ""
        loss = _loss(first, anchors) if first else GridCell("no ratio")
        margin = next((one.margin.origin for one in judged.endpoints if one.margin), "none")
        rows.append(
            (
                GridCell(
                    judged.arm.name, note=legend(judged.arm), style=style_of(view, judged.arm)
                ),
                GridCell(
                    found.verdict.value, note=mark, style=f"verdict {verdict_style(found.verdict)}"
                ),
                GridCell(", ".join(words for _, words in tally(judged.verdicts))),
                replace(loss, note=f"{point_title(first.point)}, {first.verdict.value}")
                if first
                else loss,
                GridCell(margin),
            )
        )
    columns = ("arm", "verdict", "primary endpoints", "worst loss", "margin")
    return Grid("Overview", columns, tuple(rows))


_MEANINGS = {
    Verdict.ACCEPT: "the whole 95 % interval of the loss lies within the margin",
    Verdict.REJECT: "the whole interval lies beyond the margin",
    Verdict.INCONCLUSIVE: "the margin lies in the interval: more launches decide",
    Verdict.REFUSED: "the two arms differ in more than the compared property",
    Verdict.NO_MARGIN: "no acceptable loss is known: give --margin, or cores_per_node in the labels",
    Verdict.INVALID: "physics forbids a value; it is in no ratio, chart or sum",
    Verdict.MISSING: "only one of the arms has this endpoint",
}


def meanings(view: StudyView) -> list[tuple[str, str, str]]:
    """Return (style, word, meaning) of the words of the verdicts in the page."""
    found = {one.verdict for one in view.comparisons}
    found |= {verdict for judged in view.judged for verdict in judged.verdicts}
    found |= {judged.conclusion.verdict for judged in view.judged}
    words = [(verdict_style(v), v.value, _MEANINGS[v]) for v in reversed(ORDER) if v in found]
    return [
        ("", "loss", f"how much worse an arm is than {view.base.name}; negative if it is better"),
        ("", "margin", "the loss that is acceptable, for example the share of cores that it lacks"),
        ("", "endpoint", "a point that was chosen for the verdict before the values were seen"),
        *words,
    ]


def compared(view: StudyView) -> str:
    """Return what was measured: tests, points and launches."""
    tests = list(dict.fromkeys(one.point.test for one in view.comparisons))
    points = len({one.point for one in view.comparisons})
    counts = sorted({side.n for one in view.comparisons for side in (one.base, one.test)})
    launches = " to ".join(dict.fromkeys((str(counts[0]), str(counts[-1]))))
    shown = ", ".join(tests[:MAX_TESTS])
    more = f" and {len(tests) - MAX_TESTS} more" if len(tests) > MAX_TESTS else ""
    return f"{shown}{more}: {points} points, with {launches} launches of each arm"


def cards(view: StudyView, anchors: Anchors) -> list[Card]:
    """Return one card per arm."""
    found = []
    for judged in view.judged:
        verdict, survivors = judged.conclusion.verdict, judged.conclusion.survivors
        style = _STYLES.get(verdict, "doubt")
        rows = _card_rows(judged, anchors)
        more = len(rows) - MAX_ENDPOINTS
        notes = [f"and {more} more endpoints below"] if more > 0 else []
        other = _other_points(judged)
        notes += [f"Other points: {other}"] if other else []
        found.append(
            Card(
                f"{judged.arm.name} against {view.base.name}",
                "doubt" if survivors and style == "good" else style,
                verdict.value,
                tuple(rows[:MAX_ENDPOINTS]),
                tuple((note,) for note in (*notes, _why(judged))),
                below=survivors,
                foot=f"{legend(judged.arm)} against {legend(view.base)}",
                word_style=verdict_style(verdict),
                shares=tuple(
                    CardShare(style, int(words.split()[0]), words)
                    for style, words in tally(judged.verdicts)
                ),
            )
        )
    return found


def _card_rows(judged: Judged, anchors: Anchors) -> list[tuple[GridCell, ...]]:
    """Return the endpoints of an arm, the worst first, with those that one arm lacks."""
    rows = [
        (
            ORDER.index(one.verdict),
            (
                GridCell(point_title(one.point)),
                _loss(one, anchors),
                GridCell(one.verdict.value, style=verdict_style(one.verdict)),
            ),
        )
        for one in _worst_first(judged)
    ]
    missing = Verdict.MISSING
    rows += [
        (
            ORDER.index(missing),
            (
                GridCell(point_title(gap.cell.point)),
                GridCell(f"only {gap.having}", "#not-compared"),
                GridCell(missing.value, style=verdict_style(missing)),
            ),
        )
        for gap in judged.missing
    ]
    return [row for _, row in sorted(rows, key=lambda one: one[0])]


_CLAIMS = {
    Verdict.REJECT: "is beyond the margin",
    Verdict.INCONCLUSIVE: "is not settled",
    Verdict.ACCEPT: "is within the margin",
    Verdict.REFUSED: "cannot be compared",
    Verdict.NO_MARGIN: "has no margin to be judged by",
    Verdict.INVALID: "is invalid, against physics,",
}
_PLURAL = {
    verdict: claim.replace("is ", "are ").replace("has ", "have ")
    for verdict, claim in _CLAIMS.items()
}


def headline(view: StudyView) -> str:
    """Return the headline of the page: one arm in a sentence, of several their numbers."""
    if len(view.judged) == 1:
        return sentence(view)
    counts = Counter(judged.conclusion.verdict for judged in view.judged)
    parts: list[str] = []
    for verdict in reversed(ORDER):
        if counts[verdict]:
            claim = _CLAIMS[verdict] if counts[verdict] == 1 else _PLURAL[verdict]
            of = "" if parts else f" of {len(view.judged)} arms"
            parts.append(f"{counts[verdict]}{of} {claim.rstrip(',')}")
    marked = sum(bool(judged.conclusion.survivors) for judged in view.judged)
    parts += [f"{SURVIVORS} at {marked}"] if marked else []
    return f"Against {view.base.name}, {', '.join(parts)}"


def sentence(view: StudyView) -> str:
    """Return the headline with all verdicts of each arm."""
    parts = []
    for judged in view.judged:
        found, counts = judged.conclusion, judged.verdicts
        total, verdict = counts.total(), found.verdict
        open_ones = total - counts[Verdict.ACCEPT] - counts[Verdict.REJECT]
        count = open_ones if verdict is Verdict.INCONCLUSIVE else counts[verdict]
        noun = "primary endpoint" + "s" * (total > 1)
        where = f"all {total} {noun}" if count == total > 1 else f"{count} of {total} {noun}"
        broken = sum(one.verdict is Verdict.INVALID for one in judged.comparisons)
        left_out = f" ({broken} invalid, left out)" if 0 < broken < len(judged.comparisons) else ""
        other = _other_points(judged)
        detail = f" (other points: {other})" if other else ""
        why = () if verdict in (Verdict.REFUSED, Verdict.NO_MARGIN) else found.reasons
        said = ", ".join((where, *why, *filter(None, [found.survivors])))
        parts.append(f"{judged.arm.name} {_CLAIMS[verdict]} at {said}{detail}{left_out}")
    return f"Against {view.base.name}, " + "; ".join(parts)


def _flags(view: StudyView, anchors: Anchors) -> list[tuple[str, str, str, str]]:
    """Return (arm, point, flag, link), each flag once."""
    found: dict[tuple[str, str, str, str], None] = {}
    for one in view.comparisons:
        for arm, side in zip(one.arms, one.flags, strict=True):
            for flag in side:
                text = f"{flag.kind.value}: {flag.reason}"
                found[arm, point_title(one.point), text, anchors.of(arm, one.point)] = None
    return list(found)


def _refused(view: StudyView) -> list[tuple[str, str, str, int]]:
    """Return (arms, kind, reason, number of points), each reason once."""
    counts: Counter[tuple[str, str, str]] = Counter()
    for one in view.comparisons:
        arms = " / ".join(reversed(one.arms))
        counts.update((arms, "refused", why) for why in one.gate.reasons)
        counts.update((arms, "marked", why) for why in one.gate.watermarks)
    return [(*key, count) for key, count in counts.items()]


def render_study_html(view: StudyView) -> str:
    """Return the whole page."""
    raw, left_out = raw_lines(view)
    anchors = Anchors(view, raw)
    used = {seen.source for cell in view.cells for seen in cell.observations}
    return render(
        "study.html",
        view=view,
        sentence=headline(view),
        compared=compared(view),
        overview=overview(view, anchors),
        words=meanings(view),
        cards=cards(view, anchors),
        testbed=testbed(view),
        launches=launches_grid(view),
        energy=energy_grid(view),
        figures=[*curves(view, anchors), *bars(view, anchors)],
        tables=tables(view, anchors),
        special=special_grids(view, anchors),
        flags=_flags(view, anchors),
        violations=[(v, point_title(v.point)) for v in view.violations],
        refused=_refused(view),
        rules=rules(view),
        gaps=gaps_grid(view),
        losses=losses_grid(view),
        ended_early=ended_early(view),
        sources=[s for s in view.sources.values() if s.path in used],
        left_out=view.left_out,
        raw=[(group, list(cells)) for group, cells in groupby(raw, key=lambda cell: cell.group)],
        raw_left_out=left_out,
    )


def render_study_markdown(view: StudyView) -> str:
    """Return verdicts and tables as Markdown."""
    anchors = Anchors(view, [])
    text = [f"# Study {view.name}", "", sentence(view) + ".", ""]
    text += [
        f"- **{card.word}** {card.title}: {card.notes[-1][0]}" for card in cards(view, anchors)
    ]
    arms = [f"{arm.name} ({legend(arm)})" for arm in view.arms]
    recorded = launches_grid(view)
    optional = (recorded, energy_grid(view), gaps_grid(view), losses_grid(view))
    grids = [replace(testbed(view), columns=("", *arms)), *(one for one in optional if one)]
    for grid in (*grids, *special_grids(view, anchors), *tables(view, anchors)):
        text += markdown_grid(grid)
    lists = {
        "Flags": [f"{arm}, {point}: {what}" for arm, point, what, _ in _flags(view, anchors)],
        "Impossible figures": [
            f"{v.severity.value}: {v.arm}, {point_title(v.point)}: {v.what}"
            for v in view.violations
        ],
        "Refused and marked": [
            f"{arms}: {kind}: {why} ({count} points)" for arms, kind, why, count in _refused(view)
        ],
        "Files that end early": [f"{s.path}: {how}" for s, how in ended_early(view)],
        "Checklist": [
            f"{rule.number}. {rule.asks}: {rule.word}; {rule.why}" for rule in rules(view)
        ],
    }
    for title, found in lists.items():
        text += ["", f"## {title}", "", *([f"- {escaped(one)}" for one in found] or ["None."])]
    return "\n".join(text) + "\n"


CSV_COLUMNS = (
    *("base", "arm", "program", "test", "variant", "setup", "size_bytes", "ranks", "nodes"),
    *("metric", "unit", "base_n", "base_median", "arm_n", "arm_median", "ratio", "ratio_low"),
    *("ratio_high", "loss_percent", "margin", "verdict", "endpoint", "reason", "launches_needed"),
    *("base_lost", "arm_lost"),
)


def _csv_point(point: Point) -> dict[str, object]:
    return {
        "program": point.program,
        "test": point.test,
        "variant": point.variant,
        "setup": point.setup.words,
        "size_bytes": point.size,
        "ranks": point.ranks,
        "nodes": point.nodes,
        "metric": point.metric,
        "unit": point.unit.value,
    }


def _csv_row(one: Comparison) -> dict[str, object]:
    """Return one comparison by column; an unknown value is None."""
    point = one.point
    ratio, low, high = one.ratio or (None, None, None)
    return {
        "base": one.arms[0],
        "arm": one.arms[1],
        **_csv_point(point),
        "base_n": one.base.n,
        "base_median": repr(one.base.median),
        "arm_n": one.test.n,
        "arm_median": repr(one.test.median),
        "ratio": ratio,
        "ratio_low": low,
        "ratio_high": high,
        "loss_percent": one.tax_percent,
        "margin": one.margin and one.margin.limit,
        "verdict": one.verdict.value,
        "endpoint": "yes" if one.primary else "no",
        "reason": one.reason,
        "launches_needed": one.needed,
        "base_lost": one.lost[0],
        "arm_lost": one.lost[1],
    }


def _gap_csv_row(gap: Gap, base: str, arm: str) -> dict[str, object]:
    """Return a point that only one arm has, with the columns of a comparison."""
    point = gap.cell.point
    side = "base" if gap.having == base else "arm"
    values = gap.cell.values
    known: dict[str, object] = {
        **dict.fromkeys(CSV_COLUMNS),
        "base": base,
        "arm": arm,
        **_csv_point(point),
        "base_n": 0,
        "arm_n": 0,
        "verdict": Verdict.MISSING.value,
        "endpoint": "yes" if gap.primary else "no",
        "reason": gap.why,
    }
    return known | {f"{side}_n": len(values), f"{side}_median": repr(median(values))}


def render_study_csv(view: StudyView) -> str:
    """Return all points as CSV, one per line; those that only one arm has come last."""
    rows = [_csv_row(one) for one in view.comparisons]
    rows += [
        _gap_csv_row(gap, view.base.name, judged.arm.name)
        for judged in view.judged
        for gap in judged.gaps
    ]
    return csv_text(CSV_COLUMNS, ([row[name] for name in CSV_COLUMNS] for row in rows))
