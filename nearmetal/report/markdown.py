# SPDX-License-Identifier: Apache-2.0
"""The report as Markdown: the same verdict, checks and tables, without charts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nearmetal.report import sections
from nearmetal.report.analysis import Evidence, verdicts
from nearmetal.report.checks import run_checks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nearmetal.evidence import RunFacts
    from nearmetal.report.page import Cell


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = ["| " + " | ".join(map(_escaped, columns)) + " |", "|" + "---|" * len(columns)]
    return lines + ["| " + " | ".join(map(_escaped, row)) + " |" for row in rows]


def _text(cell: Cell) -> str:
    return f"{cell.text} ({cell.note})" if cell.note else cell.text


def render_markdown(run: RunFacts) -> str:
    """Return the document; numbers stand in the CSV file with their raw lines."""
    evidence, links = Evidence(run), sections.Links(run)
    found = verdicts(evidence)
    lines = [f"# nearmetal report: {_escaped(run.manifest.name)}", "", sections.sentence(found), ""]
    heads = (
        "",
        "nearmetal",
        "MPI's own TCP",
        "ratio",
        "network only",
        "limit of the cores",
        "goal",
    )
    lines += _table(
        heads,
        [
            (
                c.title,
                c.ours.text,
                c.baseline.text,
                f"{c.ratio} ({c.spread})" if c.spread else c.ratio,
                c.network.text,
                f"{c.limit.text}, {c.limit_name}",
                f"{c.goal}: {'reached' if c.reached else 'not reached'}",
            )
            for c in sections.cards(found, links)
        ],
    )
    lines += ["", "## Can the figures be believed?", ""]
    lines += [
        f"- {check.state.value}: {check.title} ({_escaped(check.reason)})"
        for check in run_checks(evidence)
    ]
    lines += ["", "## Who is near whom, and why", ""]
    lines += _table(
        ("from", "to", "relation", "channel", "reason"),
        [(p.node, p.peer, p.relation, p.channel, p.reason) for p in run.manifest.locality],
    )
    grid = sections.by_mpi(evidence, links)
    if grid is not None:
        lines += ["", f"## {grid.title}", ""]
        lines += _table(grid.columns, [[_text(c) for c in row] for row in grid.rows])
    lines += ["", "## Testbed", ""]
    lines += _table(("", ""), run.manifest.environment.machine)
    return "\n".join(lines) + "\n"
