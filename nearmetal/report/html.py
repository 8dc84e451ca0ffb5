# SPDX-License-Identifier: Apache-2.0
"""The page: one file, no network, every number linked to its raw line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nearmetal.report import sections
from nearmetal.report.analysis import MPI_TITLES, Evidence, headlines, primary_mpi
from nearmetal.report.checks import run_checks
from nearmetal.report.page import Grid, render
from nearmetal.report.picture import channel_class

if TYPE_CHECKING:
    from nearmetal.evidence import Launch, NodePair, RunFacts


@dataclass(frozen=True)
class RawFile:
    """One raw file with its lines, each an anchor."""

    number: int
    name: str
    launch: Launch
    sha256: str
    lines: tuple[str, ...]


@dataclass(frozen=True)
class MatrixRow:
    """One node's row of the locality matrix: its host, and (class, pair) per peer."""

    node: str
    host: str
    cells: tuple[tuple[str, NodePair | None], ...]


def _raw(run: RunFacts, links: sections.Links) -> list[RawFile]:
    files = []
    for launch in run.manifest.launches:
        for name, sha256 in launch.files:
            lines = tuple(run.texts[name].splitlines())
            if lines:
                files.append(RawFile(links.numbers[name], name, launch, sha256, lines))
    return files


def _matrix(run: RunFacts) -> tuple[list[str], list[MatrixRow]]:
    pairs = {(p.node, p.peer): p for p in run.manifest.locality}
    names = list(dict.fromkeys(p.node for p in run.manifest.locality))
    hosts = {n.name: n.host for n in run.manifest.environment.nodes}
    rows = []
    for name in names:
        found = [pairs.get((name, peer)) for peer in names]
        cells = tuple((channel_class(p.channel) if p else "none", p) for p in found)
        rows.append(MatrixRow(name, hosts.get(name, ""), cells))
    return names, rows


def _reasons(run: RunFacts) -> list[tuple[str, str, str, list[str]]]:
    """Return (channel, relation, reason, pairs): equal reasons are told once."""
    groups: dict[tuple[str, str, str], list[str]] = {}
    for p in run.manifest.locality:
        integrity = "" if p.integrity in ("", "-") else f", integrity {p.integrity}"
        key = (p.channel, p.relation + integrity, p.reason)
        groups.setdefault(key, []).append(f"{p.node} → {p.peer}")
    return [(*key, pairs) for key, pairs in groups.items()]


def _software(run: RunFacts) -> list[tuple[str, str]]:
    """Return what was recorded, and what every MPI said about itself."""
    said: dict[str, str] = {}
    for launch in run.manifest.launches:
        log = run.logs.get(launch.file)
        if log is not None and "library" in log.header:
            said.setdefault(launch.mpi, log.header["library"])
    return [(n, said.get(n, v)) for n, v in run.manifest.environment.software]


def _tables(run: RunFacts, evidence: Evidence, links: sections.Links) -> list[Grid]:
    grids = [sections.by_mpi(evidence, links)]
    grids += [sections.patterns(evidence, links, m) for m in evidence.mpis("patterns")]
    grids += [sections.windows(evidence, links, m) for m in evidence.mpis("window")]
    programs = dict.fromkeys(
        launch.program for launch in run.manifest.launches if launch.log_format != "nearmetal-bench"
    )
    grids += [sections.third_party(evidence, links, p) for p in programs]
    return [g for g in grids if g is not None]


def render_html(run: RunFacts) -> str:
    """Return the whole page. Text of logs and specs is escaped; charts are our own markup."""
    evidence = Evidence(run)
    links = sections.Links(run)
    found = headlines(evidence)
    mpi = primary_mpi(evidence)
    names, rows = _matrix(run)
    return render(
        "report.html",
        manifest=run.manifest,
        mpi=MPI_TITLES.get(mpi, mpi) if mpi else "no MPI",
        sentence=sections.sentence(found),
        cards=sections.cards(found, links),
        checks=run_checks(evidence),
        names=names,
        matrix=rows,
        reasons=_reasons(run),
        figures=sections.figures(evidence, links),
        tables=_tables(run, evidence, links),
        software=_software(run),
        raw=_raw(run, links),
    )
