# SPDX-License-Identifier: Apache-2.0
"""The page of a study: one file, no network, verdict first, every number linked to its raw lines."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from nearmetal.report.page import Grid, render
from nearmetal.report.study_charts import bars, curves
from nearmetal.report.study_rules import rules
from nearmetal.report.study_tables import (
    ORDER,
    groups_of,
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
)
from nearmetal.study.judge import Comparison, Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nearmetal.study.model import Arm

_STYLES = {Verdict.ACCEPT: "good", Verdict.REJECT: "bad"}
MAX_TESTS = 6
"""Tests that the verdict on an arm names one by one."""


@dataclass(frozen=True)
class TestLine:
    """One test in the verdict on an arm: the range of its losses, and its worst verdict."""

    name: str
    losses: str
    verdict: str
    style: str


@dataclass(frozen=True)
class Card:
    """The verdict on one arm."""

    title: str
    word: str
    style: str
    legend: str
    shares: tuple[tuple[str, int, str], ...]
    tests: tuple[TestLine, ...]
    more: int
    why: str


def worst(found: Sequence[Comparison]) -> Verdict:
    """Return the worst verdict; REFUSED and NO MARGIN only where nothing else was said."""
    said = {one.verdict for one in found}
    order = (Verdict.REJECT, Verdict.INCONCLUSIVE, Verdict.ACCEPT, *ORDER)
    return next((verdict for verdict in order if verdict in said), Verdict.REFUSED)


def overall(judged: Judged) -> Verdict:
    """Return the verdict on an arm."""
    return worst(judged.comparisons)


def _why(judged: Judged, verdict: Verdict) -> str:
    chosen = [one for one in judged.comparisons if one.verdict is verdict]
    if verdict is Verdict.INCONCLUSIVE:
        needed = [one.needed for one in chosen if one.needed]
        more = f"; about {max(needed)} more launches would settle all that can be" if needed else ""
        return chosen[0].reason + more
    most = max(chosen, key=lambda one: one.tax_percent or 0.0)
    if most.tax_percent is None:
        return most.reason
    return (
        f"Largest loss {signed_percent(most.tax_percent)} at {point_title(most.point)}: "
        f"{most.reason}."
    )


def _test_lines(judged: Judged) -> list[TestLine]:
    """Return the tests of an arm, the worst first, then the largest losses."""
    lines: list[tuple[int, float, int, TestLine]] = []
    for (test, _variant, metric), found in groups_of(judged).items():
        taxes = sorted(one.tax_percent for one in found if one.tax_percent is not None)
        losses = "no ratio"
        if taxes:
            ends = dict.fromkeys(signed_percent(tax) for tax in (taxes[0], taxes[-1]))
            losses = " to ".join(ends)
        verdict = worst(found)
        line = TestLine(f"{test}, {metric}", losses, verdict.value, verdict.value.split()[0])
        lines.append((ORDER.index(verdict), -taxes[-1] if taxes else 0.0, len(lines), line))
    return [line for *_, line in sorted(lines, key=lambda entry: entry[:3])]


def cards(view: StudyView) -> list[Card]:
    """Return one card per arm."""
    found = []
    for judged in view.judged:
        verdict = overall(judged)
        shares = tuple(
            (style, int(words.split()[0]), words) for style, words in tally(judged.comparisons)
        )
        lines = _test_lines(judged)
        short = f"{legend(judged.arm)} against {legend(view.base)}"
        found.append(
            Card(
                f"{judged.arm.name} against {view.base.name}",
                verdict.value,
                _STYLES.get(verdict, "doubt"),
                short,
                shares,
                tuple(lines[:MAX_TESTS]),
                max(0, len(lines) - MAX_TESTS),
                _why(judged, verdict),
            )
        )
    return found


_CLAIMS = {
    Verdict.REJECT: "is beyond the margin",
    Verdict.INCONCLUSIVE: "is not settled",
    Verdict.ACCEPT: "is within the margin",
    Verdict.REFUSED: "cannot be compared",
    Verdict.NO_MARGIN: "has no margin to be judged by",
}


def sentence(view: StudyView) -> str:
    """Return the headline."""
    parts = []
    for judged in view.judged:
        verdict, total = overall(judged), len(judged.comparisons)
        count = judged.count(verdict)
        points = "point" if total == 1 else "points"
        where = f"all {total} {points}" if count == total > 1 else f"{count} of {total} {points}"
        parts.append(f"{judged.arm.name} {_CLAIMS[verdict]} at {where}")
    return f"Against {view.base.name}, " + "; ".join(parts)


def _flags(view: StudyView, anchors: Anchors) -> list[tuple[str, str, str, str]]:
    found: dict[tuple[str, str, str, str], None] = {}
    for judged in view.judged:
        for one in judged.comparisons:
            for arm, side in zip(one.arms, one.flags, strict=True):
                for flag in side:
                    text = f"{flag.kind.value}: {flag.reason}"
                    href = anchors.of(arm, one.point)
                    found[arm, point_title(one.point), text, href] = None
    return list(found)


def _refused(view: StudyView) -> list[tuple[str, str, str, int]]:
    """Return (arms, kind, why, how many points), each reason once."""
    counts: Counter[tuple[str, str, str]] = Counter()
    for judged in view.judged:
        for one in judged.comparisons:
            arms = " / ".join(reversed(one.arms))
            counts.update((arms, "refused", why) for why in one.gate.reasons)
            counts.update((arms, "marked", why) for why in one.gate.watermarks)
    return [(*key, count) for key, count in counts.items()]


def _in_use(view: StudyView) -> set[str]:
    return {seen.source for cell in view.cells for seen in cell.observations}


def render_study_html(view: StudyView) -> str:
    """Return the whole page. Text of logs and labels is escaped; charts are our own markup."""
    raw, left_out = raw_lines(view)
    anchors = Anchors(view, raw)
    used = _in_use(view)
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


def _arm(arm: Arm) -> str:
    return f"{arm.name} ({legend(arm)})"


def render_study_markdown(view: StudyView) -> str:
    """Return verdicts and tables as Markdown."""
    anchors = Anchors(view, [])

    def line(words: list[str]) -> str:
        return "| " + " | ".join(word.replace("|", "\\|") for word in words) + " |"

    text = [f"# Study {view.name}", "", sentence(view) + ".", ""]
    text += [f"- **{card.word}** {card.title}: {card.why}" for card in cards(view)]
    bed = testbed(view)
    recorded = launches_grid(view)
    grids = [
        Grid(bed.title, ("", *map(_arm, view.arms)), bed.rows, bed.caption),
        *([recorded] if recorded else []),
    ]
    for grid in (*grids, *special_grids(view, anchors), *tables(view, anchors)):
        text += ["", f"## {grid.title}", "", *([grid.caption, ""] if grid.caption else [])]
        text += [line(list(grid.columns)), line(["---"] * len(grid.columns))]
        text += [
            line([f"{c.text} ({c.note})" if c.note else c.text for c in row]) for row in grid.rows
        ]
    for title, found in (
        ("Flags", [f"- {arm}, {point}: {what}" for arm, point, what, _ in _flags(view, anchors)]),
        (
            "Impossible figures",
            [
                f"- {v.severity.value}: {v.arm}, {point_title(v.point)}: {v.what}"
                for v in view.violations
            ],
        ),
        (
            "Refused and marked",
            [
                f"- {arms}: {kind}: {why} ({count} points)"
                for arms, kind, why, count in _refused(view)
            ],
        ),
        (
            "Checklist",
            [
                f"- {rule.number}. {rule.asks}: "
                f"{'n/a' if rule.met is None else 'yes' if rule.met else 'no'}; {rule.why}"
                for rule in rules(view)
            ],
        ),
    ):
        text += ["", f"## {title}", "", *(found or ["None."])]
    return "\n".join(text) + "\n"
