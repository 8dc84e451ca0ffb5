# SPDX-License-Identifier: Apache-2.0
"""`nearmetal study tax`: what the missing cores cost, and what virtualization costs beside them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from nearmetal.cli.study_judge import arms_in
from nearmetal.cli.verbs import Subparsers, add_verb
from nearmetal.core.errors import ExitCode, NearmetalError
from nearmetal.study.effects import Loss, TaxSplit, split_tax
from nearmetal.study.store import Study

if TYPE_CHECKING:
    import argparse

    from nearmetal.cli.view import View
    from nearmetal.study.model import Cell, Point

COLUMNS = ("test", "variant", "nodes", "metric", "total", "core loss", "virtualization", "")


def register(subparsers: Subparsers) -> None:
    """Add the verb."""
    parser = add_verb(
        subparsers,
        "tax",
        run,
        "split the performance loss of a VM into missing cores and virtualization",
        "nearmetal study tax my-study bare-metal bare-metal-44 vm",
    )
    parser.add_argument(
        "study", metavar="STUDY", type=Path, help="study directory that `study import` created"
    )
    parser.add_argument("full", metavar="FULL", help="name of the arm on bare metal with all cores")
    parser.add_argument(
        "reduced",
        metavar="REDUCED",
        help="name of the arm on bare metal with the number of cores of the VM",
    )
    parser.add_argument("vm", metavar="VM", help="name of the arm in the VM")


def shown(loss: Loss) -> str:
    """Return a share in percent with its limits, if it has any."""
    text = f"{100 * loss.value:.2f} %"
    if loss.low < loss.high:
        text += f" [{100 * loss.low:.2f}, {100 * loss.high:.2f}]"
    return text


def _key(point: Point) -> Point:
    return point._replace(ranks=None)


def run(args: argparse.Namespace, view: View) -> int:
    """Print the split of every point that all three arms have."""
    study = Study(args.study)
    names = (args.full, args.reduced, args.vm)
    known = arms_in(study)
    for name in names:
        if name not in known:
            raise NearmetalError(f"no arm {name!r} in {args.study}", f"arms: {', '.join(known)}")
    cells: list[dict[Point, Cell]] = [
        {_key(cell.point): cell for cell in study.cells(arm=name)} for name in names
    ]
    found: list[tuple[Point, TaxSplit]] = []
    for point, full in cells[0].items():
        if not point.neutral and point in cells[1] and point in cells[2]:
            values = (full.values, cells[1][point].values, cells[2][point].values)
            if min(min(side) for side in values) > 0:
                found.append((point, split_tax(*values, lower_is_better=point.lower_is_better)))
    if not found:
        raise NearmetalError(
            "the three arms have no point in common",
            "the same test, variant, size, nodes and unit are needed",
        )
    view.table(
        COLUMNS,
        [
            (
                p.test + (f" {p.size} B" if p.size is not None else ""),
                p.variant,
                str(p.nodes),
                p.metric,
                shown(t.total),
                shown(t.core_loss),
                shown(t.virtualization),
                t.verdict,
            )
            for p, t in found
        ],
    )
    view.result(
        {
            "taxes": [
                {
                    "test": p.test,
                    "variant": p.variant,
                    "size": p.size,
                    "nodes": p.nodes,
                    "metric": p.metric,
                    "total": t.total,
                    "core_loss": t.core_loss,
                    "virtualization": t.virtualization,
                    "verdict": t.verdict,
                }
                for p, t in found
            ]
        },
        ["1 - total = (1 - core loss) x (1 - virtualization); limits are of 95 %"],
    )
    return ExitCode.DONE
