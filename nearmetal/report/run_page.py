# SPDX-License-Identifier: Apache-2.0
"""The report of a run: one page without network, with every number linked; Markdown and CSV."""

from __future__ import annotations

from dataclasses import dataclass, fields

from nearmetal.evidence import Fact, Launch, RunFacts, Unit
from nearmetal.report import sections
from nearmetal.report.analysis import MPI_TITLES, Evidence, headlines, primary_mpi
from nearmetal.report.checks import run_checks
from nearmetal.report.device_tables import device_tables
from nearmetal.report.matrix import channel_style, matrix, reasons
from nearmetal.report.page import Grid, csv_text, escaped, markdown_grid, markdown_table, render


@dataclass(frozen=True)
class RawFile:
    """One raw file with its lines, each an anchor."""

    number: int
    name: str
    launch: Launch
    sha256: str
    lines: tuple[str, ...]


def _raw(run: RunFacts, links: sections.RawLinks) -> list[RawFile]:
    files = []
    for launch in run.manifest.launches:
        for name, sha256 in launch.files:
            lines = tuple(run.texts[name].splitlines())
            if lines:
                files.append(RawFile(links.numbers[name], name, launch, sha256, lines))
    return files


def _software(run: RunFacts) -> list[tuple[str, str]]:
    """Return the recorded software; the output of an MPI may name its version more exactly."""
    said: dict[str, str] = {}
    for launch in run.manifest.launches:
        log = run.logs.get(launch.file)
        if log is not None and "library" in log.header:
            said.setdefault(launch.mpi, log.header["library"])
    return [(n, said.get(n, v)) for n, v in run.manifest.environment.software]


def _tables(run: RunFacts, evidence: Evidence, links: sections.RawLinks) -> list[Grid]:
    grids = [sections.by_mpi(evidence, links)]
    for program in ("patterns", "window"):
        grids += [
            sections.operations(evidence, links, mpi, program) for mpi in evidence.mpis(program)
        ]
    programs = dict.fromkeys(
        launch.program for launch in run.manifest.launches if launch.log_format != "nearmetal-bench"
    )
    grids += device_tables(evidence, links)
    grids += [sections.third_party(evidence, links, program) for program in programs]
    return [grid for grid in grids if grid is not None]


def render_html(run: RunFacts) -> str:
    """Return the whole page."""
    evidence = Evidence(run)
    links = sections.RawLinks(run)
    found = headlines(evidence)
    mpi = primary_mpi(evidence)
    names, rows = matrix(run.manifest)
    return render(
        "report.html",
        channel_style=channel_style(".matrix .{0},.chip.{0}{{background:{1}}}"),
        manifest=run.manifest,
        mpi=MPI_TITLES.get(mpi, mpi) if mpi else "no MPI",
        sentence=sections.sentence(found),
        cards=sections.cards(found, links),
        checks=run_checks(evidence),
        names=names,
        matrix=rows,
        reasons=reasons(run.manifest),
        figures=sections.figures(evidence, links),
        tables=_tables(run, evidence, links),
        software=_software(run),
        raw=_raw(run, links),
    )


def render_markdown(run: RunFacts) -> str:
    """Return verdict, checks and tables as Markdown, without charts."""
    evidence, links = Evidence(run), sections.RawLinks(run)
    found = headlines(evidence)
    table = sections.headline_table(found)
    lines = [f"# nearmetal report: {escaped(run.manifest.name)}", "", sections.sentence(found), ""]
    lines += markdown_table(table.columns, [[cell.text for cell in row] for row in table.rows])
    lines += ["", "## Can the figures be believed?", ""]
    lines += [
        f"- {check.state.value}: {check.title} ({escaped(check.reason)})"
        for check in run_checks(evidence)
    ]
    lines += ["", "## Which nodes are near each other, and why", ""]
    lines += markdown_table(
        ("from", "to", "relation", "channel", "reason"),
        [(p.node, p.peer, p.relation, p.channel, p.reason) for p in run.manifest.locality],
    )
    for grid in (sections.by_mpi(evidence, links), *device_tables(evidence, links)):
        lines += markdown_grid(grid) if grid is not None else []
    lines += ["", "## Testbed", ""]
    lines += markdown_table(("", ""), run.manifest.environment.machine)
    return "\n".join(lines) + "\n"


def render_csv(run: RunFacts) -> str:
    """Return all facts as CSV, one value per line, in the order of the raw files."""
    names = [field.name for field in fields(Fact)]

    def text(value: object) -> object:
        if isinstance(value, Unit):
            return value.value
        return repr(value) if isinstance(value, float) else value

    rows = ([text(getattr(fact, name)) for name in names] for fact in run.facts)
    return csv_text(["size_bytes" if name == "size" else name for name in names], rows)
