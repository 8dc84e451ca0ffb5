# SPDX-License-Identifier: Apache-2.0
"""`nearmetal study report`: one offline page of a study, with Markdown, CSV and the charts beside it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from nearmetal.cli.study_judge import impossible, judge, pick
from nearmetal.cli.verbs import Subparsers, add_verb
from nearmetal.core.errors import ExitCode, UsageError
from nearmetal.report.study_charts import bars, curves
from nearmetal.report.study_page import (
    overall,
    render_study_csv,
    render_study_html,
    render_study_markdown,
    sentence,
)
from nearmetal.report.study_view import MAX_RAW, Anchors, Judged, StudyView
from nearmetal.study.store import Study

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable

    from nearmetal.cli.view import View
    from nearmetal.study.model import Cell


def register(subparsers: Subparsers) -> None:
    """Add the verb."""
    parser = add_verb(
        subparsers,
        "report",
        run,
        "write the report of a study: HTML, Markdown, CSV, SVG",
        "nearmetal study report my-study bare-metal vm",
    )
    parser.add_argument(
        "study", metavar="STUDY", type=Path, help="study directory that `study import` created"
    )
    parser.add_argument("base", metavar="BASE", help="name of the reference arm")
    parser.add_argument(
        "arms", metavar="ARM", nargs="+", help="names of the arms to compare with BASE"
    )
    parser.add_argument(
        "--margin",
        metavar="PERCENT",
        type=float,
        help="acceptable loss of performance in percent (default: the loss that the missing cores explain)",
    )
    parser.add_argument(
        "--only", metavar="TEST", help="compare only this test, for example osu_latency"
    )
    parser.add_argument(
        "--output",
        metavar="FILE",
        type=Path,
        help="path of the HTML page; the other files go to the same directory (default: STUDY/report.html)",
    )


def study_view(
    study: Study, base: str, arms: list[str], *, percent: float | None, only: str | None
) -> StudyView:
    """Judge the arms and collect what the page shows."""
    if base in arms or len(set(arms)) < len(arms):
        raise UsageError("an arm is named twice", "name BASE once, and every other ARM once")
    first, *others = pick(study, (base, *arms))
    judged = []
    cells: dict[tuple[object, ...], Cell] = {}
    for arm in others:
        found, both = judge(study, first, arm, percent=percent, only=only)
        judged.append(Judged(arm, tuple(found)))
        points = {one.point._replace(ranks=None) for one in found}
        cells |= {
            (cell.arm, cell.point): cell
            for cell in both
            if cell.point._replace(ranks=None) in points
        }
    chosen = tuple(cells.values())
    return StudyView(
        name=study.directory.resolve().name.removesuffix(".study"),
        base=first,
        judged=tuple(judged),
        cells=chosen,
        violations=tuple(impossible((first, *others), chosen)),
        sources={s.source: s for s in study.sources()},
        lines=_lines(study, chosen),
    )


def _lines(study: Study, cells: Iterable[Cell]) -> dict[tuple[str, int], str]:
    """Return the raw lines of as many cells as the page shows, each file read once."""
    wanted: dict[str, set[int]] = {}
    room = MAX_RAW
    for cell in cells:
        if len(cell.observations) <= room:
            room -= len(cell.observations)
            for seen in cell.observations:
                wanted.setdefault(seen.source, set()).add(seen.line)
    found: dict[tuple[str, int], str] = {}
    for source, numbers in wanted.items():
        lines = study.raw(source).decode("utf-8", "replace").splitlines()
        found |= {(source, n): lines[n - 1].strip() for n in numbers if n <= len(lines)}
    return found


def run(args: argparse.Namespace, view: View) -> int:
    """Write the page and what stands beside it."""
    shown = study_view(Study(args.study), args.base, args.arms, percent=args.margin, only=args.only)
    page: Path = args.output or args.study / "report.html"
    content = {
        page: render_study_html(shown),
        page.with_suffix(".md"): render_study_markdown(shown),
        page.with_suffix(".csv"): render_study_csv(shown),
    }
    anchors = Anchors(shown, [])
    charts = [c for f in (*curves(shown, anchors), *bars(shown, anchors)) for c in f.charts]
    content |= {page.with_name(f"{page.stem}-{n}.svg"): c.wide for n, c in enumerate(charts, 1)}
    for path, text in content.items():
        # Whoever is ended here leaves the old page or the new one.
        fresh = path.with_name(path.name + ".new")
        fresh.write_text(text, encoding="utf-8")
        fresh.replace(path)
    verdicts = {judged.arm.name: overall(judged).value for judged in shown.judged}
    view.result(
        {"report": str(page), "files": [str(path) for path in content], "verdicts": verdicts},
        [
            sentence(shown),
            f"report: {page}",
            f"beside it: {page.with_suffix('.md')}, {page.with_suffix('.csv')}, {len(charts)} charts",
        ],
    )
    return ExitCode.DONE
