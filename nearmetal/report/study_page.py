# SPDX-License-Identifier: Apache-2.0
"""The report of a study: verdict first, every number linked to its raw lines; Markdown and CSV."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import groupby

from nearmetal.report.page import (
    Card,
    CardShare,
    GridCell,
    csv_text,
    escaped,
    markdown_grid,
    render,
)
from nearmetal.report.study_charts import bars, curves
from nearmetal.report.study_rules import rules
from nearmetal.report.study_tables import (
    ORDER,
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
from nearmetal.study.endpoints import conclude, worst
from nearmetal.study.judge import Comparison, Verdict

_STYLES = {Verdict.ACCEPT: "good", Verdict.REJECT: "bad"}
MAX_ENDPOINTS = 6
"""Number of endpoints that the card of an arm names."""


def _why(judged: Judged, verdict: Verdict) -> str:
    chosen = [one for one in judged.endpoints if one.verdict is verdict]
    if verdict is Verdict.INCONCLUSIVE:
        return f"{point_title(chosen[0].point)}: {chosen[0].reason}."
    most = max(chosen, key=lambda one: one.tax_percent or 0.0)
    if most.tax_percent is None:
        return most.reason
    loss, where = signed_percent(most.tax_percent), point_title(most.point)
    return f"Largest loss {loss} at {where}: {most.reason}."


def _endpoint_rows(judged: Judged) -> list[tuple[GridCell, ...]]:
    """Return the endpoints of an arm, the worst first, then the largest losses."""

    def rank(one: Comparison) -> tuple[int, float]:
        return ORDER.index(one.verdict), -(one.tax_percent or 0.0)

    return [
        (
            GridCell(point_title(one.point)),
            GridCell("no ratio" if one.tax_percent is None else signed_percent(one.tax_percent)),
            GridCell(one.verdict.value, style=verdict_style(one.verdict)),
        )
        for one in sorted(judged.endpoints, key=rank)
    ]


def _other_points(judged: Judged) -> str:
    """Return the verdicts of the points beside the endpoints."""
    detail = conclude(judged.comparisons).detail
    return ", ".join(f"{detail[v]} {v.value}" for v in ORDER if detail[v])


def cards(view: StudyView) -> list[Card]:
    """Return one card per arm."""
    found = []
    for judged in view.judged:
        verdict = worst(judged.endpoints)
        rows = _endpoint_rows(judged)
        more = len(rows) - MAX_ENDPOINTS
        notes = [f"and {more} more endpoints below"] if more > 0 else []
        other = _other_points(judged)
        notes += [f"Other points: {other}"] if other else []
        found.append(
            Card(
                f"{judged.arm.name} against {view.base.name}",
                _STYLES.get(verdict, "doubt"),
                verdict.value,
                tuple(rows[:MAX_ENDPOINTS]),
                tuple((note,) for note in (*notes, _why(judged, verdict))),
                foot=f"{legend(judged.arm)} against {legend(view.base)}",
                word_style=verdict_style(verdict),
                shares=tuple(
                    CardShare(style, int(words.split()[0]), words)
                    for style, words in tally(judged.endpoints)
                ),
            )
        )
    return found


_CLAIMS = {
    Verdict.REJECT: "is beyond the margin",
    Verdict.INCONCLUSIVE: "is not settled",
    Verdict.ACCEPT: "is within the margin",
    Verdict.REFUSED: "cannot be compared",
    Verdict.NO_MARGIN: "has no margin to be judged by",
    Verdict.INVALID: "is against physics",
}


def sentence(view: StudyView) -> str:
    """Return the headline."""
    parts = []
    for judged in view.judged:
        verdict, total = worst(judged.endpoints), len(judged.endpoints)
        count = sum(one.verdict is verdict for one in judged.endpoints)
        noun = "primary endpoint" + "s" * (total > 1)
        where = f"all {total} {noun}" if count == total > 1 else f"{count} of {total} {noun}"
        broken = sum(one.verdict is Verdict.INVALID for one in judged.comparisons)
        left_out = f" ({broken} invalid, left out)" if 0 < broken < len(judged.comparisons) else ""
        other = _other_points(judged)
        detail = f" (other points: {other})" if other else ""
        parts.append(f"{judged.arm.name} {_CLAIMS[verdict]} at {where}{detail}{left_out}")
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
        sentence=sentence(view),
        cards=cards(view),
        testbed=testbed(view),
        launches=launches_grid(view),
        figures=[*curves(view, anchors), *bars(view, anchors)],
        tables=tables(view, anchors),
        special=special_grids(view, anchors),
        flags=_flags(view, anchors),
        violations=[(v, point_title(v.point)) for v in view.violations],
        refused=_refused(view),
        rules=rules(view),
        sources=[s for s in view.sources.values() if s.source in used],
        left_out=[s for s in view.sources.values() if s.status != "facts"],
        raw=[(group, list(cells)) for group, cells in groupby(raw, key=lambda cell: cell.group)],
        raw_left_out=left_out,
    )


def render_study_markdown(view: StudyView) -> str:
    """Return verdicts and tables as Markdown."""
    anchors = Anchors(view, [])
    text = [f"# Study {view.name}", "", sentence(view) + ".", ""]
    text += [f"- **{card.word}** {card.title}: {card.notes[-1][0]}" for card in cards(view)]
    arms = [f"{arm.name} ({legend(arm)})" for arm in view.arms]
    recorded = launches_grid(view)
    grids = [replace(testbed(view), columns=("", *arms)), *([recorded] if recorded else [])]
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
        "Checklist": [
            f"{rule.number}. {rule.asks}: {rule.word}; {rule.why}" for rule in rules(view)
        ],
    }
    for title, found in lists.items():
        text += ["", f"## {title}", "", *([f"- {escaped(one)}" for one in found] or ["None."])]
    return "\n".join(text) + "\n"


def _csv_row(one: Comparison) -> dict[str, object]:
    """Return one comparison by column; an unknown value is None."""
    point = one.point
    ratio, low, high = one.ratio or (None, None, None)
    return {
        "base": one.arms[0],
        "arm": one.arms[1],
        "program": point.program,
        "test": point.test,
        "variant": point.variant,
        "setup": point.setup.words,
        "size_bytes": point.size,
        "ranks": point.ranks,
        "nodes": point.nodes,
        "metric": point.metric,
        "unit": point.unit.value,
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
    }


def render_study_csv(view: StudyView) -> str:
    """Return all comparisons as CSV, one point per line."""
    rows = [_csv_row(one) for one in view.comparisons]
    return csv_text(list(rows[0]) if rows else [], (row.values() for row in rows))
