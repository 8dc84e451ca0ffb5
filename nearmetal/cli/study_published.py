# SPDX-License-Identifier: Apache-2.0
"""`nearmetal study published`: numbers of published studies, and what follows from them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nearmetal.cli.study_tax import shown
from nearmetal.cli.verbs import Subparsers, add_verb
from nearmetal.core.errors import ExitCode, UsageError
from nearmetal.evidence.published import STUDIES, Number, numbers, plots
from nearmetal.study.effects import RULE, SignedTable, TaxSplit, decompose, rounded

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from nearmetal.cli.view import View

COLUMNS = ("line", "test", "arm", "base", "at", "metric", "value")


def register(subparsers: Subparsers) -> None:
    """Add the verb."""
    parser = add_verb(
        subparsers,
        "published",
        run,
        "show the numbers of a published study and their source lines",
        "nearmetal study published vmw-adapter",
    )
    parser.add_argument(
        "name", metavar="NAME", help=f"name of the published study: {', '.join(STUDIES)}"
    )


def taxes(study: str) -> Iterator[tuple[Number, TaxSplit]]:
    """Return the splits that follow: a loss of a VM and of reduced bare metal, at one scale."""
    losses = [n for n in numbers(study) if n.metric == "loss" and n.base == "BM.48" and not n.bound]
    for vm in (n for n in losses if n.arm.startswith("VM")):
        for reduced in (n for n in losses if n.arm == "BM.44"):
            if (vm.test, vm.scale) == (reduced.test, reduced.scale):
                yield (
                    vm,
                    decompose(rounded(vm.value, vm.digits), rounded(reduced.value, reduced.digits)),
                )


def tables(study: str) -> Iterator[SignedTable]:
    """Return the signed tables of a study."""
    found = [n for n in numbers(study) if n.metric == "faster" and n.origin == "table"]
    for arm, base in dict.fromkeys((n.arm, n.base) for n in found):
        cells = {(n.scale, n.test): n.value for n in found if n.arm == arm}
        yield SignedTable(arm, base, cells)


def _value(number: Number) -> str:
    return f"{number.bound} {number.value:g} {number.unit}".strip()


def run(args: argparse.Namespace, view: View) -> int:
    """Print numbers, splits, signed tables, and the figures whose values are unavailable."""
    if args.name not in STUDIES:
        raise UsageError(f"no published study {args.name!r}", f"known: {', '.join(STUDIES)}")
    study = STUDIES[args.name]
    known = numbers(args.name)
    prose = [n for n in known if n.origin == "prose"]
    view.table(
        COLUMNS, [(str(n.line), n.test, n.arm, n.base, n.scale, n.metric, _value(n)) for n in prose]
    )
    lines = [
        f"{study.title}, {study.publisher}, {study.year}",
        f"{len(known)} numbers, {len(known) - len(prose)} of them in tables (--json)",
    ]
    split = list(taxes(args.name))
    for vm, tax in split:
        lines.append(
            f"{vm.test}, {vm.scale}: {shown(tax.total)} in total, core loss "
            f"{shown(tax.core_loss)}, virtualization {shown(tax.virtualization)}; "
            f"{tax.verdict}"
        )
    signed = list(tables(args.name))
    for table in signed:
        flagged = ", ".join(f"{table.shown(key)} ({', '.join(key)})" for key in table.flagged)
        lines.append(f"plus: {table.first} is faster, minus: {table.second}; {RULE}: {flagged}")
    missing = [p for p in plots() if p.study == args.name]
    lines += [f"unavailable: {p.figure}, {p.test}: {p.shows}" for p in missing]
    view.result(
        {
            "study": vars(study),
            "numbers": [vars(n) for n in known],
            "taxes": [
                {
                    "test": n.test,
                    "at": n.scale,
                    "total": t.total,
                    "core_loss": t.core_loss,
                    "virtualization": t.virtualization,
                    "verdict": t.verdict,
                }
                for n, t in split
            ],
            "signed": [
                {
                    "plus": t.first,
                    "minus": t.second,
                    "rule": RULE,
                    "cells": [[*key, value] for key, value in t.cells.items()],
                    "flagged": [[*key, value] for key, value in t.flagged.items()],
                }
                for t in signed
            ],
            "unavailable": [vars(p) for p in missing],
        },
        lines,
    )
    return ExitCode.DONE
