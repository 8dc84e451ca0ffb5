# SPDX-License-Identifier: Apache-2.0
"""`nearmetal report`: one offline page out of a run directory, with Markdown and CSV beside it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from nearmetal.cli.verbs import Subparsers, add_verb
from nearmetal.core.errors import ExitCode
from nearmetal.evidence import load_run
from nearmetal.report import (
    Evidence,
    headlines,
    locality_picture,
    render_csv,
    render_html,
    render_markdown,
)

if TYPE_CHECKING:
    import argparse

    from nearmetal.cli.view import View
    from nearmetal.evidence import RunFacts
    from nearmetal.report import Headline


def register(subparsers: Subparsers) -> None:
    """Add the verb."""
    parser = add_verb(
        subparsers,
        "report",
        make,
        "write a report of the results of `bench`: HTML, Markdown, CSV",
        "nearmetal report results/20260101-120000-two-nodes",
    )
    parser.add_argument(
        "directory", metavar="DIR", type=Path, help="directory with the results of `bench`"
    )
    parser.add_argument(
        "--output",
        metavar="FILE",
        type=Path,
        help="path of the HTML page; the other files go to the same directory (default: DIR/report.html)",
    )


def write_report(run: RunFacts, page: Path) -> list[Path]:
    """Write the page, Markdown, CSV and the locality picture side by side; returns their paths."""
    content = {
        page: render_html(run),
        page.with_suffix(".md"): render_markdown(run),
        page.with_suffix(".csv"): render_csv(run),
        page.with_name(f"{page.stem}-locality.svg"): locality_picture(run.manifest),
    }
    for path, text in content.items():
        path.write_text(text, encoding="utf-8")
    return list(content)


def verdict_data(found: list[Headline]) -> list[dict[str, Any]]:
    """Return the headlines for --json; times in microseconds, rates in 10^6, bandwidth in MB/s."""
    return [
        {
            "title": v.title,
            "quantity": v.quantity.value,
            "size": v.size,
            "nearmetal": v.ours.value if v.ours else None,
            "tcp": v.baseline.value if v.baseline else None,
            "network_only": v.network.value if v.network else None,
            "limit": v.limit.value if v.limit else None,
            "ratio": v.ratio.value if v.ratio else None,
            "interval": [v.ratio.low, v.ratio.high] if v.ratio else None,
            "launches": v.launches,
            "verdict": v.verdict,
            "goal": v.goal,
            "reached": v.reached,
        }
        for v in found
    ]


def make(args: argparse.Namespace, view: View) -> int:
    """Read the run directory again and write the report."""
    run = load_run(args.directory)
    page = args.output or args.directory / "report.html"
    paths = write_report(run, page)
    data = {
        "report": str(page),
        "files": [str(p) for p in paths],
        "verdicts": verdict_data(headlines(Evidence(run))),
    }
    view.result(data, [f"report: {page}", *(f"beside it: {p}" for p in paths[1:])])
    return ExitCode.DONE
