# SPDX-License-Identifier: Apache-2.0
"""The page of a study: one file, no network, verdict first, every number linked to its raw lines."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from nearmetal.report import numbers
from nearmetal.report.study_charts import bars, curves
from nearmetal.report.study_rules import rules
from nearmetal.report.study_view import (
    Anchors,
    Judged,
    StudyView,
    legend,
    point_title,
    raw_lines,
    signed_percent,
    value_text,
)
from nearmetal.study.gate import FACTS
from nearmetal.study.judge import Comparison, Verdict

if TYPE_CHECKING:
    from nearmetal.study.model import Arm, Point
    from nearmetal.study.stats import Summary

_TEMPLATES = Path(__file__).parent / "templates"

ORDER = (Verdict.REJECT, Verdict.INCONCLUSIVE, Verdict.REFUSED, Verdict.NO_MARGIN, Verdict.ACCEPT)
"""The worst first: it is the verdict on an arm."""

WORDS = {
    Verdict.ACCEPT: "within the margin",
    Verdict.REJECT: "beyond the margin",
    Verdict.INCONCLUSIVE: "not settled",
    Verdict.REFUSED: "not comparable",
    Verdict.NO_MARGIN: "without a margin",
}
_STYLES = {Verdict.ACCEPT: "good", Verdict.REJECT: "bad"}


@dataclass(frozen=True)
class Cell:
    """One place of a table."""

    text: str
    href: str = ""
    note: str = ""
    style: str = ""


@dataclass(frozen=True)
class Grid:
    """One table."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    caption: str = ""


@dataclass(frozen=True)
class Card:
    """The verdict on one arm."""

    title: str
    word: str
    style: str
    legend: str
    counts: tuple[tuple[str, int], ...]
    why: str


def overall(judged: Judged) -> Verdict:
    """Return the worst verdict on an arm; REFUSED and NO MARGIN only where nothing else was said."""
    for verdict in (Verdict.REJECT, Verdict.INCONCLUSIVE, Verdict.ACCEPT, *ORDER):
        if judged.count(verdict):
            return verdict
    return Verdict.REFUSED


def _why(judged: Judged, verdict: Verdict) -> str:
    chosen = [one for one in judged.comparisons if one.verdict is verdict]
    if verdict is Verdict.INCONCLUSIVE:
        needed = [one.needed for one in chosen if one.needed]
        more = f"; about {max(needed)} more launches would settle all that can be" if needed else ""
        return chosen[0].reason + more
    worst = max(chosen, key=lambda one: one.tax_percent or 0.0)
    if worst.tax_percent is None:
        return worst.reason
    return f"largest loss {signed_percent(worst.tax_percent)} at {point_title(worst.point)}; {worst.reason}"


def cards(view: StudyView) -> list[Card]:
    """Return one card per arm."""
    found = []
    for judged in view.judged:
        verdict = overall(judged)
        counts = tuple((WORDS[v], judged.count(v)) for v in ORDER if judged.count(v))
        title = f"{judged.arm.name} against {view.base.name}"
        short = f"{legend(judged.arm)} against {legend(view.base)}"
        found.append(Card(title, verdict.value, _STYLES.get(verdict, "doubt"), short, counts,
                          _why(judged, verdict)))  # fmt: skip
    return found


def sentence(view: StudyView) -> str:
    """Return the headline."""
    parts = []
    for judged in view.judged:
        total = len(judged.comparisons)
        told = [f"{judged.count(v)} {WORDS[v]}" for v in reversed(ORDER) if judged.count(v)]
        points = "point" if total == 1 else "points"
        parts.append(f"{judged.arm.name}: of {total} {points}, {', '.join(told)}")
    return f"Against {view.base.name}, " + "; ".join(parts)


def testbed(view: StudyView) -> list[tuple[str, list[str]]]:
    """Return what is known of the arms, one row per fact."""

    def row(name: str, values: list[str]) -> tuple[str, list[str]]:
        return name, [value or "not told" for value in values]

    arms = view.arms
    rows = [
        row("legend", [legend(arm) for arm in arms]),
        row("platform", [arm.platform for arm in arms]),
        row("fabric", [arm.fabric for arm in arms]),
        row("placement", [arm.placement for arm in arms]),
        row("cores per node", [str(arm.cores_per_node or "") for arm in arms]),
    ]
    names = dict.fromkeys((*FACTS, *(name for arm in arms for name in sorted(arm.facts))))
    for name in names:
        values = [str(arm.facts.get(name, "")) for arm in arms]
        if any(values):
            rows.append(row(FACTS.get(name, name.replace("_", " ")), values))
    return rows


def _summary(summary: Summary, point: Point, href: str) -> Cell:
    note = f"n {summary.n}"
    if summary.interval is not None:
        low, high = summary.interval.low, summary.interval.high
        note += f", {numbers.digits(low)} to {numbers.digits(high)}"
    return Cell(value_text(summary.median, point.unit), href, note)


def _row(one: Comparison, anchors: Anchors) -> tuple[Cell, ...]:
    ratio, interval = "-", ""
    if one.ratio is not None:
        ratio = f"{one.ratio.value:.3f}"
        if one.ratio.low is not None and one.ratio.high is not None:
            interval = f"{one.ratio.low:.3f} to {one.ratio.high:.3f}"
    tax = "-" if one.tax_percent is None else signed_percent(one.tax_percent)
    needed = f"about {one.needed} more launches" if one.needed else ""
    point = point_title(one.point._replace(test="", variant="", metric="")) or one.point.metric
    return (
        Cell(point),
        _summary(one.base, one.point, anchors.of(one.arms[0], one.point)),
        _summary(one.test, one.point, anchors.of(one.arms[1], one.point)),
        Cell(ratio, note=interval),
        Cell(tax),
        Cell(one.margin.origin if one.margin else "-"),
        Cell(one.verdict.value, note=needed, style=one.verdict.value.split()[0]),
        Cell("; ".join(one.gate.watermarks), style="words"),
    )


def tables(view: StudyView, anchors: Anchors) -> list[Grid]:
    """Return one table per arm, test and metric."""
    grids = []
    for judged in view.judged:
        groups: dict[tuple[str, str, str], list[Comparison]] = {}
        for one in judged.comparisons:
            key = (one.point.test, one.point.variant, one.point.metric)
            groups.setdefault(key, []).append(one)
        for (test, variant, metric), members in groups.items():
            name = " ".join(filter(None, (test, variant)))
            better = "less" if members[0].point.lower_is_better else "more"
            grids.append(Grid(
                f"{name}, {metric}: {judged.arm.name} against {view.base.name}",
                ("", view.base.name, judged.arm.name, "ratio", "loss", "margin", "verdict", "marks"),
                tuple(_row(one, anchors) for one in members),
                f"Medians of launches with their 95 % intervals; {better} is better; a loss is positive.",
            ))  # fmt: skip
    return grids


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
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = environment.from_string((_TEMPLATES / "study.html").read_text(encoding="utf-8"))
    used = _in_use(view)
    figures = [*curves(view, anchors), *bars(view, anchors)]
    return template.render(
        style=Markup((_TEMPLATES / "style.css").read_text(encoding="utf-8")),  # noqa: S704 - ours
        view=view,
        sentence=sentence(view),
        cards=cards(view),
        testbed=testbed(view),
        figures=[(f, [Markup(c) for c in f.charts]) for f in figures],  # noqa: S704 - svg.py escapes
        tables=tables(view, anchors),
        flags=_flags(view, anchors),
        violations=[(v, point_title(v.point)) for v in view.violations],
        refused=_refused(view),
        rules=rules(view),
        sources=[s for s in view.sources.values() if s.source in used],
        left_out=[s for s in view.sources.values() if s.status != "facts"],
        raw=raw,
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
    text += ["", "## Testbed", "", line(["", *map(_arm, view.arms)])]
    text += [line(["---"] * (len(view.arms) + 1))]
    text += [line([name, *values]) for name, values in testbed(view)]
    for grid in tables(view, anchors):
        text += ["", f"## {grid.title}", "", grid.caption, "", line(list(grid.columns))]
        text += [line(["---"] * len(grid.columns))]
        text += [line([f"{c.text} ({c.note})" if c.note else c.text for c in row])
                 for row in grid.rows]  # fmt: skip
    for title, found in (
        ("Flags", [f"- {arm}, {point}: {what}" for arm, point, what, _ in _flags(view, anchors)]),
        ("Impossible figures",
         [f"- {v.severity.value}: {v.arm}, {point_title(v.point)}: {v.what}"
          for v in view.violations]),
        ("Refused and marked", [f"- {arms}: {kind}: {why} ({count} points)"
                                for arms, kind, why, count in _refused(view)]),
        ("Checklist", [f"- {rule.number}. {rule.asks}: "
                       f"{'n/a' if rule.met is None else 'yes' if rule.met else 'no'}; {rule.why}"
                       for rule in rules(view)]),
    ):  # fmt: skip
        text += ["", f"## {title}", "", *(found or ["None."])]
    return "\n".join(text) + "\n"
