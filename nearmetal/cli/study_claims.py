# SPDX-License-Identifier: Apache-2.0
"""The verbs of claims: study lint, tax, published and reproduce."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nearmetal.cli.arguments import ARM_HELP, STUDY_HELP, add_study
from nearmetal.core.errors import ExitCode, NearmetalError, UsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from nearmetal.cli.verbs import VerbParser
    from nearmetal.cli.view import View
    from nearmetal.evidence.published import Number
    from nearmetal.study.effects import Loss, SignedTable, TaxSplit
    from nearmetal.study.model import Arm, Cell
    from nearmetal.study.reproduce import Data, Result, Tested
    from nearmetal.study.store import Study

ROLE = "role"
"""The fact of an arm that names its role."""

_MAX_TEXT = 1 << 20
"""Bytes of a text with claims."""

MAX_LINES = 12
"""Raw lines that --json names for a point."""


def lint_options(parser: VerbParser) -> None:
    """Add the arguments of `study lint`."""
    parser.option("texts TEXT", "text or Markdown file to check", nargs="+", type=Path)
    parser.option(
        "--data STUDY",
        f"also compare sentences about two arms of STUDY with its data; {ARM_HELP}. STUDY: {STUDY_HELP}",
    )


def on_lint(args: argparse.Namespace, view: View) -> int:
    """Print findings as file:line; exit code 4 if there is one."""
    from nearmetal.core.files import read_named
    from nearmetal.evidence.recognize import decode
    from nearmetal.study.arms import compare_all
    from nearmetal.study.claims import lint
    from nearmetal.study.store import Study

    measured = compare_all(Study(args.data)) if args.data else []
    found = []
    for path in args.texts:
        try:
            text = decode(read_named(path, _MAX_TEXT), str(path))
        except OSError as error:
            raise NearmetalError(
                f"cannot read {path}: {error.strerror}", "give the path of a text"
            ) from error
        found += [(path, finding) for finding in lint(text, measured)]
    view.result(
        {"findings": [{"file": str(path), **vars(finding)} for path, finding in found]},
        [*(f"{path}:{f.line}: {f.what} [{f.rule}]" for path, f in found), f"{len(found)} findings"],
    )
    return ExitCode.CHECKS_FAILED if found else ExitCode.DONE


def tax_options(parser: VerbParser) -> None:
    """Add the arguments of `study tax`."""
    add_study(parser)
    parser.option(
        "full FULL",
        f"name of the arm on bare metal with all cores; {ARM_HELP}",
    )
    parser.option(
        "reduced REDUCED",
        "name of the arm on bare metal with the number of cores of the VM",
    )
    parser.option("vm VM", "name of the arm in the VM")


def on_tax(args: argparse.Namespace, view: View) -> int:
    """Print the split of each point that all three arms have."""
    from nearmetal.study.arms import split_losses
    from nearmetal.study.store import Study

    found = split_losses(Study(args.study), (args.full, args.reduced, args.vm))
    view.table(
        ("test", "variant", "nodes", "metric", "total", "core loss", "virtualization", ""),
        [
            (
                p.test + (f" {p.size} B" if p.size is not None else ""),
                p.variant,
                str(p.nodes),
                p.metric,
                _percent(t.total),
                _percent(t.core_loss),
                _percent(t.virtualization),
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
                    **_split(t),
                }
                for p, t in found
            ]
        },
        ["1 - total = (1 - core loss) x (1 - virtualization); the limits hold with 95 %"],
    )
    return ExitCode.DONE


def _split(split: TaxSplit) -> dict[str, Any]:
    losses = {name: getattr(split, name) for name in ("total", "core_loss", "virtualization")}
    return {name: loss._asdict() for name, loss in losses.items()} | {"verdict": split.verdict}


def _cells(cells: Mapping[tuple[str, str], float]) -> list[dict[str, Any]]:
    return [{"scale": s, "test": test, "value": value} for (s, test), value in cells.items()]


def _percent(loss: Loss) -> str:
    """Return a share in percent with its limits, if it has any."""
    text = f"{100 * loss.value:.2f} %"
    if loss.low < loss.high:
        text += f" [{100 * loss.low:.2f}, {100 * loss.high:.2f}]"
    return text


def _titles(names: Iterable[str]) -> str:
    from nearmetal.evidence.published import STUDIES

    titles = "; ".join(f"{name}: {STUDIES[name].title} ({STUDIES[name].year})" for name in names)
    return f"name of the published study. {titles}"


def published_options(parser: VerbParser) -> None:
    """Add the arguments of `study published`."""
    from nearmetal.evidence.published import STUDIES

    parser.option("name NAME", _titles(STUDIES))


def on_published(args: argparse.Namespace, view: View) -> int:
    """Print numbers, splits, signed tables, and the figures without published values."""
    from nearmetal.evidence.published import STUDIES, numbers, plots
    from nearmetal.study.effects import RULE

    if args.name not in STUDIES:
        raise UsageError(f"no published study {args.name!r}", f"known: {', '.join(STUDIES)}")
    study = STUDIES[args.name]
    known = numbers(args.name)
    prose = [n for n in known if n.origin == "prose"]
    view.table(
        ("line", "test", "arm", "base", "at", "metric", "value"),
        [(str(n.line), n.test, n.arm, n.base, n.scale, n.metric, _value(n)) for n in prose],
    )
    lines = [
        f"{study.title}, {study.publisher}, {study.year}",
        f"{len(known)} numbers, {len(known) - len(prose)} of them in tables (--json)",
    ]
    split = list(_taxes(args.name))
    for vm, tax in split:
        lines.append(
            f"{vm.test}, {vm.scale}: {_percent(tax.total)} in total, core loss "
            f"{_percent(tax.core_loss)}, virtualization {_percent(tax.virtualization)}; "
            f"{tax.verdict}"
        )
    signed = list(_tables(args.name))
    for table in signed:
        flagged = ", ".join(f"{table.shown(key)} ({', '.join(key)})" for key in table.flagged)
        lines.append(f"plus: {table.first} is faster, minus: {table.second}; {RULE}: {flagged}")
    missing = [p for p in plots() if p.study == args.name]
    lines += [f"unavailable: {p.figure}, {p.test}: {p.shows}" for p in missing]
    view.result(
        {
            "study": vars(study),
            "numbers": [vars(n) for n in known],
            "taxes": [{"test": n.test, "scale": n.scale, **_split(t)} for n, t in split],
            "signed": [
                {
                    "plus": t.first,
                    "minus": t.second,
                    "rule": RULE,
                    "cells": _cells(t.cells),
                    "flagged": _cells(t.flagged),
                }
                for t in signed
            ],
            "unavailable": [vars(p) for p in missing],
        },
        lines,
    )
    return ExitCode.DONE


def _taxes(study: str) -> Iterator[tuple[Number, TaxSplit]]:
    """Return the splits of each loss of a VM by that of reduced bare metal at the same scale."""
    from nearmetal.evidence.published import numbers
    from nearmetal.study.effects import decompose, rounded

    losses = [n for n in numbers(study) if n.metric == "loss" and n.base == "BM.48" and not n.bound]
    for vm in (n for n in losses if n.arm.startswith("VM")):
        for reduced in (n for n in losses if n.arm == "BM.44"):
            if (vm.test, vm.scale) == (reduced.test, reduced.scale):
                yield (
                    vm,
                    decompose(rounded(vm.value, vm.digits), rounded(reduced.value, reduced.digits)),
                )


def _tables(study: str) -> Iterator[SignedTable]:
    """Return the signed tables of a study."""
    from nearmetal.evidence.published import numbers
    from nearmetal.study.effects import SignedTable

    found = [n for n in numbers(study) if n.metric == "faster" and n.origin == "table"]
    for arm, base in dict.fromkeys((n.arm, n.base) for n in found):
        cells = {(n.scale, n.test): n.value for n in found if n.arm == arm}
        yield SignedTable(arm, base, cells)


def _value(number: Number) -> str:
    return f"{number.bound} {number.value:g} {number.unit}".strip()


def reproduce_options(parser: VerbParser) -> None:
    """Add the arguments of `study reproduce`."""
    from nearmetal.study.reproduce.claims import CLAIMED

    parser.option("name NAME", _titles(CLAIMED))
    parser.option(
        "study STUDY",
        f"{STUDY_HELP}; without it, the output lists the data that the claims need",
        nargs="?",
    )
    parser.option(
        "--arm ROLE=ARM",
        "ROLE is an arm of the published study, and ARM the arm of STUDY that takes its place, for example sr-iov-ib=vm; may be repeated (default: the arm of the same name)",
        action="append",
        default=[],
    )


def on_reproduce(args: argparse.Namespace, view: View) -> int:
    """Print the outcome of each claim; exit code 4 if one is refuted."""
    from nearmetal.study.reproduce import ClaimOutcome, Data, reproduce
    from nearmetal.study.reproduce.claims import CLAIMED, claims_of
    from nearmetal.study.store import Study

    name = args.name.lower()
    if name not in CLAIMED:
        raise UsageError(f"no claims of {args.name!r}", f"known: {', '.join(CLAIMED)}")
    roles: dict[str, Arm] = {}
    data = Data({}, lambda _arm: [], lambda _cell: (), lambda _cell: {})
    if args.study is not None:
        study = Study(args.study)
        roles = _roles(args.arm, name, study)
        data = _data(study, roles)
    results = reproduce(claims_of(name), data)
    _show_claims(name, results, roles, view)
    refuted = any(result.outcome is ClaimOutcome.REFUTED for result in results)
    return ExitCode.CHECKS_FAILED if refuted else ExitCode.DONE


def _roles(words: Sequence[str], name: str, study: Study) -> dict[str, Arm]:
    """Return the arm of each role: from --arm, by the fact `role`, or by its own name."""
    from nearmetal.study.arms import arms_in, known_arms
    from nearmetal.study.reproduce.claims import roles_of

    known, arms = roles_of(name), arms_in(study)
    found = {arm.facts.get(ROLE, arm.name): arm for arm in arms.values()}
    for word in words:
        role, equals, arm = word.partition("=")
        if not equals or role not in known:
            raise UsageError(f"--arm {word}: no role {role!r}", f"roles: {', '.join(known)}")
        if arm not in arms:
            raise NearmetalError(f"no arm {arm!r} in the study", known_arms(study, arms))
        found[role] = arms[arm]
    return {role: arm for role, arm in found.items() if role in known}


def _data(study: Study, roles: dict[str, Arm]) -> Data:
    from nearmetal.study.arms import possible
    from nearmetal.study.gate import RecordedFacts
    from nearmetal.study.reproduce import Data

    kept: dict[str, list[Cell]] = {}

    def cells(arm: Arm) -> list[Cell]:
        if arm.name not in kept:
            kept[arm.name] = possible([arm], study.cells(arm=arm.name), recorded)
        return kept[arm.name]

    recorded = RecordedFacts(study.files())
    return Data(roles, cells, recorded.versions, recorded)


def _found(result: Result) -> str:
    """Return the range of the values found, with the range of their intervals."""
    if not result.tested:
        return ""
    values = [one.quantity.value for one in result.tested]
    lows = [one.quantity.low for one in result.tested if one.quantity.low is not None]
    highs = [one.quantity.high for one in result.tested if one.quantity.high is not None]
    text = " to ".join(dict.fromkeys(f"{value:.3g}" for value in (min(values), max(values))))
    return f"{text} [{min(lows):.3g}, {max(highs):.3g}]" if lows and highs else text


def _limits(result: Result) -> str:
    """Return the limits that confirm a claim, and those that refute it if they are others."""
    low, high = result.claim.limits
    if low is None or high is None:
        text = f"at most {high:.4g}" if low is None else f"at least {low:.4g}"
    else:
        text = f"{low:.4g} to {high:.4g}"
    refuting = result.claim.refuting
    return text if refuting == result.claim.limits else f"{text}; refuted {refuting.beyond}"


def _point(one: Tested) -> dict[str, Any]:
    return {
        "test": one.point.test,
        "size": one.point.size,
        "nodes": one.point.nodes,
        "metric": one.point.metric,
        "quantity": one.quantity._asdict(),
        "launches": one.launches,
        "lines": [f"{o.source}:{o.line}" for o in one.observations[:MAX_LINES]],
    }


def _show_claims(
    name: str,
    results: list[Result],
    roles: Mapping[str, Arm],
    view: View,
) -> None:
    from nearmetal.evidence.published import STUDIES
    from nearmetal.study.reproduce import ClaimOutcome
    from nearmetal.study.reproduce.claims import roles_of

    columns = ["line", "claim", "arms", "limits", "found", "outcome", "why"]
    view.table(
        columns,
        [
            [
                str(r.claim.line),
                r.claim.quote,
                " / ".join(r.claim.roles),
                _limits(r),
                _found(r),
                r.outcome.value,
                "; ".join((r.reason, *r.marks)),
            ]
            for r in results
        ],
    )
    counts = Counter(result.outcome for result in results)
    summary = ", ".join(f"{counts[o]} {o.value}" for o in ClaimOutcome if counts[o])
    missing = [role for role in roles_of(name) if role not in roles]
    lines = [
        f"{STUDIES[name].title}: {summary}",
        "the limits are for performance relative to the second arm, or for the figure itself",
    ]
    if missing:
        lines.append(f"roles without an arm (--arm ROLE=ARM): {', '.join(missing)}")
    view.result(
        {
            "study": name,
            "roles": {role: arm.name for role, arm in roles.items()},
            "claims": [
                {
                    "id": r.claim.id,
                    "line": r.claim.line,
                    "claim": r.claim.quote,
                    "roles": r.claim.roles,
                    "limits": r.claim.limits._asdict(),
                    "refuting": r.claim.refuting._asdict(),
                    "outcome": r.outcome.value,
                    "reason": r.reason,
                    "marks": r.marks,
                    "points": [_point(one) for one in r.tested],
                }
                for r in results
            ],
        },
        lines,
    )
