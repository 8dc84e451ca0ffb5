# SPDX-License-Identifier: Apache-2.0
"""`nearmetal study judge`: one arm of a study against another, as verdicts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from nearmetal.cli.verbs import Subparsers, add_verb
from nearmetal.core.errors import ExitCode, NearmetalError
from nearmetal.study.flags import MIN_OUTLIER
from nearmetal.study.gate import RecordedFacts
from nearmetal.study.judge import Comparison, Verdict, compare
from nearmetal.study.labels import arms_of, load_labels
from nearmetal.study.model import Arm, Cell
from nearmetal.study.physics import Violation, violations
from nearmetal.study.store import LABELS, Study

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable

    from nearmetal.cli.view import View


def register(subparsers: Subparsers) -> None:
    """Add the verb."""
    parser = add_verb(
        subparsers,
        "judge",
        run,
        "compare one arm of a study with another, with a verdict for each point",
        "nearmetal study judge my-study bare-metal vm",
    )
    parser.add_argument(
        "study", metavar="STUDY", type=Path, help="study directory that `study import` created"
    )
    parser.add_argument("base", metavar="BASE", help="name of the reference arm")
    parser.add_argument("arm", metavar="ARM", help="name of the arm to compare with BASE")
    parser.add_argument(
        "--margin",
        metavar="PERCENT",
        type=float,
        help="acceptable loss of performance in percent (default: the loss that the missing cores explain)",
    )
    parser.add_argument(
        "--only", metavar="TEST", help="compare only this test, for example osu_latency"
    )


def arms_in(study: Study) -> dict[str, Arm]:
    """Return the arms of a study: described by its labels, or known by name only."""
    file = study.directory / LABELS
    known = arms_of(load_labels(file)[0]) if file.stat().st_size else {}
    names = dict.fromkeys(s.arm for s in study.sources() if s.status == "facts")
    return {name: known.get(name, Arm(name)) for name in names}


def judge(
    study: Study, base: Arm, arm: Arm, *, percent: float | None = None, only: str | None = None
) -> tuple[list[Comparison], list[Cell]]:
    """Return the comparisons of two arms, and the cells of both."""
    sources = {s.source: s for s in study.sources()}
    versions = {name: s.header.get("version", "") for name, s in sources.items()}
    wanted = {"test": only} if only else {}
    cells = [list(study.cells(arm=side.name, **wanted)) for side in (base, arm)]
    found = compare(
        (base, cells[0]),
        (arm, cells[1]),
        percent=percent,
        versions=lambda cell: _versions(cell, versions),
        observed=RecordedFacts(sources),
        cell_count=study.cell_count(MIN_OUTLIER),
    )
    if not found:
        raise NearmetalError(
            f"{base.name} and {arm.name} have no point in common",
            "the same test, size, ranks or nodes, and unit are needed",
        )
    return found, [*cells[0], *cells[1]]


def impossible(arms: Iterable[Arm], cells: Iterable[Cell]) -> list[Violation]:
    """Return what cannot be, or hardly can, in the cells of some arms."""
    known = list(cells)
    return [
        v
        for arm in arms
        for v in violations([cell for cell in known if cell.arm == arm.name], _line_rate(arm))
    ]


def pick(study: Study, names: Iterable[str]) -> list[Arm]:
    """Return arms by name; raises NearmetalError when one is not in the study."""
    arms = arms_in(study)
    for name in names:
        if name not in arms:
            raise NearmetalError(
                f"no arm {name!r} in {study.directory}", f"arms: {', '.join(arms)}"
            )
    return [arms[name] for name in names]


def run(args: argparse.Namespace, view: View) -> int:
    """Print the verdicts; exit code 4 when one is REJECT."""
    study = Study(args.study)
    base, arm = pick(study, (args.base, args.arm))
    found, cells = judge(study, base, arm, percent=args.margin, only=args.only)
    _show(found, impossible((base, arm), cells), view)
    return ExitCode.CHECKS_FAILED if any(c.verdict is Verdict.REJECT for c in found) else 0


def _versions(cell: Cell, known: dict[str, str]) -> set[str]:
    return {known[seen.source] for seen in cell.observations} - {""}


def _line_rate(arm: Arm) -> float | None:
    text = arm.facts.get("line_rate_gbit", "")
    try:
        return float(text) if text else None
    except ValueError as error:
        raise NearmetalError(f"arm {arm.name}: line_rate_gbit {text!r}", "give a number") from error


def as_data(one: Comparison) -> dict[str, Any]:
    """Return a comparison for --json."""
    return {
        "program": one.point.program,
        "test": one.point.test,
        "variant": one.point.variant,
        "size": one.point.size,
        "ranks": one.point.ranks,
        "nodes": one.point.nodes,
        "metric": one.point.metric,
        "unit": one.point.unit.value,
        "base": {"n": one.base.n, "median": one.base.median, "interval": one.base.interval},
        "arm": {"n": one.test.n, "median": one.test.median, "interval": one.test.interval},
        "ratio": one.ratio,
        "tax_percent": one.tax_percent,
        "margin": one.margin and {"limit": one.margin.limit, "origin": one.margin.origin},
        "verdict": one.verdict.value,
        "reason": one.reason,
        "launches_needed": one.needed,
        "flags": [[f"{f.kind.value}: {f.reason}" for f in side] for side in one.flags],
        "watermarks": one.gate.watermarks,
    }


def _row(one: Comparison) -> list[str]:
    size = "" if one.point.size is None else str(one.point.size)
    interval = ""
    if one.ratio and one.ratio.low is not None and one.ratio.high is not None:
        interval = f"{one.ratio.low:.3f}-{one.ratio.high:.3f}"
    marks = "".join("!" for side in one.flags if side) + "*" * bool(one.gate.watermarks)
    needed = f" (+{one.needed} launches)" if one.needed else ""
    return [
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


def _show(found: list[Comparison], against_physics: list[Violation], view: View) -> None:
    arms = found[0].arms
    columns = ["test", "size", "metric", *arms, "unit", "ratio", "95 %", "n", "", "verdict"]
    view.table(columns, [_row(one) for one in found])
    counts = {v.value: sum(one.verdict is v for one in found) for v in Verdict}
    told = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    view.result(
        {
            "comparisons": [as_data(one) for one in found],
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
        [told, "! flags of either arm; * what else differs; --json tells both"],
    )
    for violation in against_physics:
        view.warn(
            f"{violation.severity.value}: {violation.arm} {violation.point.test} "
            f"{violation.point.size or ''}: {violation.what}"
        )
