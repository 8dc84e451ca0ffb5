# SPDX-License-Identifier: Apache-2.0
"""What a comparison leaves out: points that only one arm has, and launches that were lost."""

from __future__ import annotations

from nearmetal.evidence.model import NO_END
from nearmetal.report.page import Grid, GridCell
from nearmetal.report.study_view import StudyView, point_title, verdict_style
from nearmetal.study.gaps import GapGroup, grouped
from nearmetal.study.judge import Verdict
from nearmetal.study.losses import ArmLosses
from nearmetal.study.model import SourceFile


def gaps_grid(view: StudyView) -> Grid | None:
    """Return what is not compared, because only one arm has it."""
    rows = [_gap_row(group) for judged in view.judged for group in grouped(judged.gaps)]
    columns = ("only in", "not in", "test", "sizes", "endpoint", "why")
    caption = (
        "Points that only one of two arms has. An endpoint among them is undecided: it is MISSING, "
        "and the headline is not ACCEPT."
    )
    return Grid("Not compared", columns, tuple(rows), caption) if rows else None


def _gap_row(group: GapGroup) -> tuple[GridCell, ...]:
    style = verdict_style(Verdict.MISSING) if group.primary else ""
    return (
        GridCell(group.having),
        GridCell(group.lacking, style="words"),
        GridCell(point_title(group.point), style="words"),
        GridCell(group.size_words or "-", style="words"),
        GridCell(group.primary_words or "-", style=style),
        GridCell(group.why, style="words"),
    )


def losses_grid(view: StudyView) -> Grid | None:
    """Return the launches of each arm and how many were lost, if any was."""
    known: dict[str, ArmLosses] = {}
    for judged in view.judged:
        if judged.losses:
            known |= {arm.name: judged.losses.of(arm.name) for arm in (view.base, judged.arm)}
    if not any(one.lost for one in known.values()):
        return None
    rows = tuple(
        tuple(map(GridCell, (arm, str(one.launches), str(one.failed), str(one.early))))
        for arm, one in known.items()
    )
    caption = (
        "Launches that failed or whose file was refused, and launches whose table ends before that "
        "of the others. Where an arm lost launches, its values are those of survivors: a verdict "
        "also holds if the lost launches count as worst, else it is INCONCLUSIVE."
    )
    return Grid("Lost launches", ("", "launches", "gave no numbers", "ended early"), rows, caption)


def ended_early(view: StudyView) -> list[tuple[SourceFile, str]]:
    """Return the files whose tables end early, each with the reason."""
    found: dict[str, SourceFile] = {}
    for judged in view.judged:
        found |= {s.path: s for s in judged.losses.early} if judged.losses else {}
    return [(source, _how(source)) for source in found.values()]


def _how(source: SourceFile) -> str:
    said = [text for _, text in source.remarks if " ends at " in text or NO_END in text]
    return "; ".join(said) or "ends before the other launches"
