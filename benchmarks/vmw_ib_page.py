# SPDX-License-Identifier: Apache-2.0
"""The report of `benchmarks.vmw_ib`: Markdown and a page, the figures of the study beside ours."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nearmetal.check.snapshot import Snapshot
from nearmetal.core.process import Completed
from nearmetal.core.text import printable_lines
from nearmetal.report.page import Grid, GridCell, markdown_table, render

COLUMNS = ("section", "step", "the study", "this cluster")
STUDY = (
    "The study: two virtual machines (3.1) or 16 (3.2) with virtual functions of ConnectX-5 of 100 "
    "Gbit/s, PowerEdge R740 with two Xeon Gold 6248R, vSphere 7.0U2. Another cluster is not "
    "expected to reach its figures."
)
EMULATED = (
    "These figures show that each step runs. They are no figures of hardware, and the distance to "
    "the study says nothing about a fabric."
)
MOST_TEXT = 1 << 18


@dataclass(frozen=True)
class Line:
    """A line of the report. `fails`: the cluster is not as it should be. `raw`: its output."""

    section: str
    what: str
    study: str
    here: str
    fails: bool = False
    raw: str = ""


@dataclass(frozen=True)
class RawOutput:
    """The output of a step."""

    name: str
    command: str
    code: int
    text: str
    sha256: str

    @property
    def anchor(self) -> str:
        """The name of its place in the page."""
        return f"raw-{self.name}"


def raw_output(name: str, done: Completed) -> RawOutput:
    """Return the output of a step for the page."""
    content = done.stdout + done.stderr
    text = content.decode("utf-8", "replace")
    rest = len(text) - MOST_TEXT
    text = text[:MOST_TEXT] + (f"\n[{rest} more characters in raw/{name}.txt]" if rest > 0 else "")
    return RawOutput(
        name,
        shlex.join(done.command.argv),
        done.code,
        printable_lines(text),
        hashlib.sha256(content).hexdigest(),
    )


def place_notes(verified: Mapping[str, Any], snapshots: Sequence[Snapshot]) -> Iterator[str]:
    """Yield where the figures come from: emulated processors, devices in software, one kernel."""
    yield STUDY
    models = sorted({node.text("processor", "model") for node in snapshots} - {""})
    if models:
        yield f"This cluster: {len(snapshots)} nodes, {'; '.join(models)}."
    software = sorted(
        {
            str(device["name"])
            for node in verified.get("nodes", {}).values()
            for device in node["devices"]
            if device["is_software"]
        }
    )
    emulated = any("TCG" in model for model in models)
    if emulated:
        yield "The processors are emulated (QEMU TCG)."
    if software:
        yield f"The RDMA devices are software: {', '.join(software)}. They have no line rate."
    kernels = [node.text("system", "boot_id") for node in snapshots]
    shared = len(kernels) > 1 and len(set(kernels)) == 1
    if shared:
        yield "All nodes share one kernel."
    if emulated or software or shared:
        yield EMULATED


def report(title: str, lines: Sequence[Line], notes: Sequence[str]) -> str:
    """Return the report as Markdown."""
    rows = [(each.section, each.what, each.study or "-", each.here or "-") for each in lines]
    said = [f"- {note}" for note in notes]
    return "\n".join([f"# {title}", "", *said, "", *markdown_table(COLUMNS, rows)]) + "\n"


def page(title: str, lines: Sequence[Line], notes: Sequence[str], raw: Sequence[RawOutput]) -> str:
    """Return the report as one HTML file."""
    known = {file.name: f"#{file.anchor}" for file in raw}
    rows = tuple(
        (
            GridCell(each.section),
            GridCell(each.what, known.get(each.raw, ""), style="words"),
            GridCell(each.study or "-", style="words"),
            GridCell(
                each.here or "-", note="not as it should be" if each.fails else "", style="words"
            ),
        )
        for each in lines
    )
    failed = sum(each.fails for each in lines)
    absent = sum(each.here.startswith("not run") for each in lines)
    verdict = f"{failed} of {len(lines)} lines are not as they should be, {absent} did not run"
    return render(
        "beside.html",
        title=title,
        sentence=verdict,
        meta="Section 3 of VMW-IB, Functionality Evaluation",
        notes=notes,
        grid=Grid("The study beside this cluster", COLUMNS, rows, "Each step leads to its output."),
        raw=raw,
    )
