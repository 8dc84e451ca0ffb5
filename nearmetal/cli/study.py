# SPDX-License-Identifier: Apache-2.0
"""The verbs of studies: study run, import, judge and report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from nearmetal.cli.arguments import ARM_HELP, add_study, open_running, report_file, write_new
from nearmetal.core.errors import ExitCode, NearmetalError, UsageError
from nearmetal.core.text import counted

if TYPE_CHECKING:
    import argparse

    from nearmetal.cli.verbs import VerbParser
    from nearmetal.cli.view import View
    from nearmetal.study.arms import Compared
    from nearmetal.study.gaps import GapGroup
    from nearmetal.study.importer import ImportSummary
    from nearmetal.study.judge import Comparison
    from nearmetal.study.physics import Violation
    from nearmetal.study.stats import Interval

_MAX_REFUSED = 20
_MAX_GAPS = 20

_BASE = f"name of the arm to compare with; {ARM_HELP}, for example bare-metal or vm"
_VERDICTS = """\
A point is one test with one configuration, message size, number of nodes, metric and unit. The
verdict compares the 95 % interval of the ratio of the two arms at this point with a limit: the
value of BASE, made worse by the margin.
ACCEPT        the whole interval is better than the limit
REJECT        the whole interval is worse than the limit
INCONCLUSIVE  the limit is inside the interval, or an arm has fewer than six launches
NO MARGIN     the labels have no core counts, and --margin is not given
REFUSED       another difference between the arms can explain the result
INVALID       a value of the point is physically impossible; the point is left out
MISSING       an endpoint that only one arm has
The primary endpoints (=) make the headline: one metric per test, for a short and for a long
message, at the largest scale; nearmetal-study(1) has the rule. All other points are detail.
The headline is ACCEPT only if every endpoint is ACCEPT. The exit code 0 means that no point is
REJECT or INVALID and that the arms can be compared, and not that every point is ACCEPT."""


def run_options(parser: VerbParser) -> None:
    """Add the arguments of `study run`."""
    parser.option("file STUDY.yaml", "study file, see nearmetal-study(1)", type=Path)
    parser.option(
        "--output DIR",
        "directory for the results; if it has an interrupted run of this study file, the command continues that run (default: results/NAME, with the `name` of the study file)",
    )


def on_run(args: argparse.Namespace, view: View) -> int:
    """Run or resume the study; exit code 1 if launches failed."""
    from nearmetal.config.document import read_text
    from nearmetal.core.lock import locked
    from nearmetal.study.design import load_design, unsettled
    from nearmetal.study.runner.session import StudySession
    from nearmetal.study.runner.workloads import WORKLOADS

    # Only the site knows which port of which adapter perftest uses.
    pairs = [name for name, module in WORKLOADS.items() if module.sizes]
    design = load_design(args.file, WORKLOADS, pairs)
    directory: Path = args.output or Path("results") / design.name
    directory.mkdir(parents=True, exist_ok=True)
    hint = "wait for it, or give another --output"
    with locked(directory / ".lock", f"study {directory}", hint=hint):
        text = read_text(args.file, "a study")
        session = StudySession(design, text, directory, open_running, view.warn)
        with view.steps(f"study {design.name}") as steps:
            why = session.run(steps)
        session.launches.finish()
    made = session.launches.launches
    failed = sum(not launch.good for launch in made)
    wide = len(unsettled(session.values, design.launches))
    view.result(
        {
            "directory": str(directory),
            "launches": len(made),
            "failed": failed,
            "ended": why,
            "unsettled": wide,
        },
        [
            f"{len(made)} launches, {failed} failed: {why}",
            f"{wide} of {len(session.values)} intervals are wider than the design allows",
            f"now `nearmetal study import {directory}`",
        ],
    )
    return ExitCode.ERROR if failed else ExitCode.DONE


def import_options(parser: VerbParser) -> None:
    """Add the arguments of `study import`."""
    parser.option("folders DIR", "directories of raw logs", nargs="*")
    parser.option(
        "--labels FILE",
        f"YAML file with the labels that the logs lack, above all the arm of each log; {ARM_HELP}, for example bare-metal or vm (default: study-labels.yaml in the first DIR)",
    )
    parser.option(
        "--output STUDY",
        "new directory for the study (default: path of the first DIR with the ending .study)",
    )
    parser.option("--draft FILE", "write a template of labels to FILE, and import nothing")
    parser.option(
        "--keep-going",
        "exit with code 0 even if files were refused; the other files are imported in any case",
    )
    parser.option(
        "--again STUDY",
        "read the raw files in STUDY again, for example with a newer nearmetal; needs no DIR",
    )


def on_import(args: argparse.Namespace, view: View) -> int:
    """Import logs, write a template of labels, or derive the tables again."""
    from nearmetal.study.importer import derive_again, import_study

    if args.again is not None:
        return _show_import(derive_again(args.again), args.again, view, keep_going=args.keep_going)
    if not args.folders:
        raise UsageError("study import needs a DIR", "nearmetal study import logs")
    if args.draft is not None:
        return _write_draft(args, view)
    target = args.output or args.folders[0].with_name(args.folders[0].resolve().name + ".study")
    with view.steps("import", lines=False) as steps:
        summary = import_study(args.folders, args.labels, target, steps)
    return _show_import(summary, target, view, keep_going=args.keep_going)


def _write_draft(args: argparse.Namespace, view: View) -> int:
    from nearmetal.study.importer import find_files
    from nearmetal.study.labels import draft

    paths = [file.path for file in find_files(args.folders) if file.label is None]
    if not paths:
        raise NearmetalError("all these files contain their labels", "import them without --labels")
    text = draft(args.folders[0].resolve().name, paths)
    write_new(args.draft, text)
    view.result(
        {"draft": str(args.draft), "files": len(paths)},
        [f"{len(paths)} files: fill in {args.draft}"],
    )
    return ExitCode.DONE


def _show_import(summary: ImportSummary, target: Path, view: View, *, keep_going: bool) -> int:
    for reason in list(summary.refused.values())[:_MAX_REFUSED]:
        view.warn(f"refused: {reason}")
    if len(summary.refused) > _MAX_REFUSED:
        view.warn(f"and {len(summary.refused) - _MAX_REFUSED} more, see {target}/sources.parquet")
    view.result(
        {
            "study": str(target),
            **vars(summary),
            "launches": {arm: one._asdict() for arm, one in summary.launches.items()},
        },
        [
            f"{summary.read} of {summary.files} files read, {summary.facts} numbers: {target}",
            f"{len(summary.refused)} refused, {summary.ignored} ignored",
            *(one.words(arm) for arm, one in summary.launches.items() if one.lost),
        ],
    )
    return ExitCode.ERROR if summary.refused and not keep_going else ExitCode.DONE


def judge_options(parser: VerbParser) -> None:
    """Add the arguments of `study judge`."""
    add_study(parser)
    parser.option("base BASE", _BASE)
    parser.option("arm ARM", "name of the arm that is judged")
    _add_comparison(parser)
    parser.add_argument_group("verdicts", _VERDICTS)


def _add_comparison(parser: VerbParser) -> None:
    parser.option(
        "--margin PERCENT",
        "acceptable loss of performance in percent; 0 asks if ARM is at least as good as BASE (default: the share of cores that ARM lacks, from `cores_per_node` of the labels: 6.25 for 30 of 32 cores)",
        type=float,
    )
    parser.option("--only TEST", "compare only this test, for example osu_latency")
    text = "write a JUnit report to FILE, with a test case for each verdict"
    parser.option("--junit FILE", text, type=report_file)


def on_judge(args: argparse.Namespace, view: View) -> int:
    """Print the verdicts; exit code 4 if one is REJECT."""
    from nearmetal.core.files import replace_file
    from nearmetal.report.study_junit import render_study_junit
    from nearmetal.report.study_view import Judged, study_name
    from nearmetal.study.arms import compare_arms, impossible, pick_arms
    from nearmetal.study.gate import RecordedFacts
    from nearmetal.study.judge import Verdict
    from nearmetal.study.physics import Severity
    from nearmetal.study.store import Study

    study = Study(args.study)
    base, arm = pick_arms(study, (args.base, args.arm))
    found = compare_arms(study, base, arm, percent=args.margin, only=args.only)
    recorded = RecordedFacts(study.files())
    against_physics = impossible((base, arm), found.cells, recorded)
    if args.junit is not None:
        judged = Judged(arm, tuple(found.comparisons), tuple(found.gaps), found.losses)
        text = render_study_junit(study_name(study), base.name, [judged], against_physics)
        replace_file(args.junit, text, mode=0o644)
    _show_verdicts(found, against_physics, view)
    broken = any(v.severity is Severity.INVALID for v in against_physics)
    failed = broken or any(c.verdict is Verdict.REJECT for c in found.comparisons)
    refused = found.conclusion.verdict is Verdict.REFUSED
    return ExitCode.CHECKS_FAILED if failed or refused else ExitCode.DONE


def _comparison_data(one: Comparison) -> dict[str, Any]:
    return {
        **one.point._asdict(),
        "setup": one.point.setup._asdict(),
        "unit": one.point.unit.value,
        "base": {
            "n": one.base.n,
            "median": one.base.median,
            "interval": _limits(one.base.interval),
        },
        "arm": {"n": one.test.n, "median": one.test.median, "interval": _limits(one.test.interval)},
        "ratio": one.ratio and one.ratio._asdict(),
        "tax_percent": one.tax_percent,
        "margin": one.margin and {"limit": one.margin.limit, "origin": one.margin.origin},
        "verdict": one.verdict.value,
        "reason": one.reason,
        "endpoint": one.primary,
        "launches_needed": one.needed,
        "launches_lost": {"base": one.lost[0], "arm": one.lost[1]},
        "flags": [[f"{f.kind.value}: {f.reason}" for f in side] for side in one.flags],
        "watermarks": one.gate.watermarks,
    }


def _limits(interval: Interval | None) -> dict[str, float] | None:
    return interval and interval._asdict()


def _comparison_row(one: Comparison) -> list[str]:
    size = "" if one.point.size is None else str(one.point.size)
    interval = ""
    if one.ratio and one.ratio.low is not None and one.ratio.high is not None:
        interval = f"{one.ratio.low:.3f}-{one.ratio.high:.3f}"
    marks = "".join("!" for side in one.flags if side) + "*" * bool(one.gate.watermarks)
    needed = f" (+{counted(one.needed, 'launch')})" if one.needed else ""
    return [
        "=" if one.primary else "",
        one.point.test,
        size,
        one.point.metric,
        f"{one.base.median:g}",
        f"{one.test.median:g}",
        one.point.unit.value,
        f"{one.ratio.value:.3f}" if one.ratio else "",
        interval,
        f"{one.base.n}/{one.test.n}",
        marks,
        one.verdict.value + needed,
    ]


def _gap_data(group: GapGroup) -> dict[str, Any]:
    return {
        **group.point._asdict(),
        "setup": group.point.setup._asdict(),
        "unit": group.point.unit.value,
        "sizes": group.sizes,
        "points": group.points,
        "only": group.having,
        "why": group.why,
        "endpoint": bool(group.primary),
        "endpoint_sizes": group.primary,
    }


def _refusals(found: Compared) -> list[str]:
    """Return why points have no verdict, each reason once."""
    from nearmetal.study.judge import Verdict

    counts: dict[tuple[str, str], int] = {}
    for one in found.comparisons:
        if one.verdict in (Verdict.REFUSED, Verdict.NO_MARGIN):
            key = (one.verdict.value, one.reason)
            counts[key] = counts.get(key, 0) + 1
    return [f"{word}: {why} ({counted(count, 'point')})" for (word, why), count in counts.items()]


def _losses(found: Compared) -> list[str]:
    """Return the lost launches of both arms; empty if none was lost."""
    known = {arm: found.losses.of(arm) for arm in found.comparisons[0].arms}
    if not any(one.lost for one in known.values()):
        return []
    return [one.words(arm) for arm, one in known.items()]


def _show_verdicts(found: Compared, against_physics: list[Violation], view: View) -> None:
    from nearmetal.study.gaps import grouped, sentences
    from nearmetal.study.judge import Verdict

    compared = found.comparisons
    arms = compared[0].arms
    columns = ["", "test", "size", "metric", *arms, "unit", "ratio", "95 %", "n", "", "verdict"]
    rows = [_comparison_row(one) for one in compared]
    tables = len({tuple(row[1:4]) for row in rows}) < len(rows)
    if tables or any(one.point.setup.pair for one in compared):
        columns.insert(2, "variant")
        for row, one in zip(rows, compared, strict=True):
            row.insert(2, one.point.variant)
    view.table(columns, rows)
    counts = {v.value: sum(one.verdict is v for one in compared) for v in Verdict}
    summary = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    headline = found.conclusion
    only_one = list(sentences(found.gaps))
    more = [f"and {len(only_one) - _MAX_GAPS} more" if len(only_one) > _MAX_GAPS else ""]
    view.result(
        {
            "verdict": headline.verdict.value,
            "endpoints": {v.value: n for v, n in headline.primary.items()},
            "reasons": headline.reasons,
            "survivors": headline.survivors,
            "launches": {arm: found.losses.of(arm)._asdict() for arm in arms},
            "comparisons": [_comparison_data(one) for one in compared],
            "not_compared": [_gap_data(group) for group in grouped(found.gaps)],
            "violations": [
                {
                    "severity": v.severity.value,
                    "arm": v.arm,
                    "test": v.point.test,
                    "size": v.point.size,
                    "what": v.what,
                }
                for v in against_physics
            ],
        },
        [
            f"{headline.verdict.value}: {headline.words}",
            f"all points: {summary}",
            *_refusals(found),
            *only_one[:_MAX_GAPS],
            *filter(None, more),
            *_losses(found),
            "= primary endpoint; ! flags of either arm; * other differences; --json shows both",
        ],
    )
    for violation in against_physics:
        view.warn(
            f"{violation.severity.value}: {violation.arm} {violation.point.test} "
            f"{violation.point.size or ''}: {violation.what}"
        )


def report_options(parser: VerbParser) -> None:
    """Add the arguments of `study report`."""
    add_study(parser)
    parser.option("base BASE", _BASE)
    parser.option("arms ARM", "names of the arms that are judged", nargs="+")
    _add_comparison(parser)
    parser.option(
        "--output FILE",
        "path for the HTML page; the other files go to the same directory (default: STUDY/report.html)",
    )


def on_report(args: argparse.Namespace, view: View) -> int:
    """Write the page, and Markdown, CSV and charts beside it; exit code 4 for an INVALID point."""
    from nearmetal.core.files import replace_file
    from nearmetal.report.page import standalone
    from nearmetal.report.study_charts import bars, curves
    from nearmetal.report.study_junit import render_study_junit
    from nearmetal.report.study_page import (
        render_study_csv,
        render_study_html,
        render_study_markdown,
        sentence,
    )
    from nearmetal.report.study_view import Anchors, study_view
    from nearmetal.study.store import Study

    shown = study_view(Study(args.study), args.base, args.arms, percent=args.margin, only=args.only)
    page: Path = args.output or args.study / "report.html"
    content = {
        page: render_study_html(shown),
        page.with_suffix(".md"): render_study_markdown(shown),
        page.with_suffix(".csv"): render_study_csv(shown),
    }
    anchors = Anchors(shown, [])
    charts = [c for f in (*curves(shown, anchors), *bars(shown, anchors)) for c in f.charts]
    for number, chart in enumerate(charts, 1):
        content[page.with_name(f"{page.stem}-{number}.svg")] = standalone(chart.wide)
    if args.junit is not None:
        if args.junit in {path.resolve() for path in content}:
            raise UsageError(f"{args.junit} is a file of the report", "give --junit another path")
        content[args.junit] = render_study_junit(
            shown.name, shown.base.name, shown.judged, shown.violations
        )
    for path, text in content.items():
        replace_file(path, text, mode=0o644, sync=False)
    verdicts = {judged.arm.name: judged.conclusion.verdict.value for judged in shown.judged}
    view.result(
        {"report": str(page), "files": [str(path) for path in content], "verdicts": verdicts},
        [
            sentence(shown),
            f"report: {page}",
            f"beside it: {page.with_suffix('.md')}, {page.with_suffix('.csv')}, {len(charts)} charts",
        ],
    )
    return ExitCode.CHECKS_FAILED if shown.broken else ExitCode.DONE
