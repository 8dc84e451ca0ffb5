# SPDX-License-Identifier: Apache-2.0
"""`nearmetal study reproduce`: the claims of a published study, tested on the reader's own data."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nearmetal.cli.study_judge import arms_in
from nearmetal.cli.verbs import Subparsers, add_verb
from nearmetal.core.errors import ExitCode, NearmetalError, UsageError
from nearmetal.evidence.published import STUDIES
from nearmetal.study.gate import RecordedFacts
from nearmetal.study.reproduce import (
    CLAIMED,
    ClaimOutcome,
    Data,
    Result,
    Tested,
    claims_of,
    reproduce,
    roles_of,
)
from nearmetal.study.store import Study

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

    from nearmetal.cli.view import View
    from nearmetal.study.model import Arm, Cell, SourceFile

ROLE = "role"
"""The fact of an arm that says which role it has."""

MAX_LINES = 12
"""Raw lines that --json names for a point."""


def register(subparsers: Subparsers) -> None:
    """Add the verb."""
    parser = add_verb(
        subparsers,
        "reproduce",
        run,
        "test the claims of a published study on your own data",
        "nearmetal study reproduce sdsc my-study --arm sr-iov-ib=vm --arm native-ib=metal",
    )
    parser.add_argument(
        "name", metavar="NAME", help=f"name of the published study: {', '.join(CLAIMED)}"
    )
    parser.add_argument(
        "study",
        metavar="STUDY",
        type=Path,
        nargs="?",
        help="study directory that `study import` created (default: none; list the data that the claims need)",
    )
    parser.add_argument(
        "--arm",
        metavar="ROLE=ARM",
        action="append",
        default=[],
        help="arm of STUDY for a role of the claims, for example sr-iov-ib=vm; may be repeated (default: the arm with the name of the role)",
    )


def _roles(words: Sequence[str], name: str, arms: Mapping[str, Arm]) -> dict[str, Arm]:
    """Return the arm of every role: as told, by the fact `role`, or by its own name."""
    known = roles_of(name)
    found = {arm.facts.get(ROLE, arm.name): arm for arm in arms.values()}
    for word in words:
        role, equals, arm = word.partition("=")
        if not equals or role not in known:
            raise UsageError(f"--arm {word}: no role {role!r}", f"roles: {', '.join(known)}")
        if arm not in arms:
            raise NearmetalError(f"no arm {arm!r} in the study", f"arms: {', '.join(arms)}")
        found[role] = arms[arm]
    return {role: arm for role, arm in found.items() if role in known}


def _data(study: Study, roles: dict[str, Arm], sources: dict[str, SourceFile]) -> Data:
    kept: dict[str, list[Cell]] = {}

    def cells(arm: Arm) -> list[Cell]:
        if arm.name not in kept:
            kept[arm.name] = list(study.cells(arm=arm.name))
        return kept[arm.name]

    def versions(cell: Cell) -> set[str]:
        return {sources[o.source].header.get("version", "") for o in cell.observations} - {""}

    return Data(roles, cells, versions, RecordedFacts(sources))


def run(args: argparse.Namespace, view: View) -> int:
    """Print what became of every claim; exit code 4 when one is refuted."""
    name = args.name.lower()
    if name not in CLAIMED:
        raise UsageError(f"no claims of {args.name!r}", f"known: {', '.join(CLAIMED)}")
    sources: dict[str, SourceFile] = {}
    roles: dict[str, Arm] = {}
    data = Data({}, lambda _arm: [], lambda _cell: (), lambda _cell: {})
    if args.study is not None:
        study = Study(args.study)
        sources = {source.source: source for source in study.sources()}
        roles = _roles(args.arm, name, arms_in(study))
        data = _data(study, roles, sources)
    results = reproduce(claims_of(name), data)
    _show(name, results, sources, roles, view)
    refuted = any(result.outcome is ClaimOutcome.REFUTED for result in results)
    return ExitCode.CHECKS_FAILED if refuted else ExitCode.DONE


def _found(result: Result) -> str:
    """Return the range of what was found, with that of its intervals."""
    if not result.tested:
        return ""
    values = [one.quantity.value for one in result.tested]
    lows = [one.quantity.low for one in result.tested if one.quantity.low is not None]
    highs = [one.quantity.high for one in result.tested if one.quantity.high is not None]
    text = " to ".join(dict.fromkeys(f"{value:.3g}" for value in (min(values), max(values))))
    return f"{text} [{min(lows):.3g}, {max(highs):.3g}]" if lows and highs else text


def _limits(result: Result) -> str:
    low, high = result.claim.limits
    if low is None or high is None:
        return f"at most {high:.3g}" if low is None else f"at least {low:.3g}"
    return f"{low:.3g} to {high:.3g}"


def _point(one: Tested, sources: Mapping[str, SourceFile]) -> dict[str, Any]:
    return {
        "test": one.point.test,
        "size": one.point.size,
        "nodes": one.point.nodes,
        "metric": one.point.metric,
        "quantity": one.quantity,
        "launches": one.launches,
        "lines": [f"{sources[o.source].path}:{o.line}" for o in one.observations[:MAX_LINES]],
    }


def _show(
    name: str,
    results: list[Result],
    sources: Mapping[str, SourceFile],
    roles: Mapping[str, Arm],
    view: View,
) -> None:
    columns = ["line", "claim", "arms", "limits", "found", "outcome", "why"]
    view.table(
        columns,
        [
            [
                str(r.claim.line),
                r.claim.text,
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
    told = ", ".join(f"{counts[o]} {o.value}" for o in ClaimOutcome if counts[o])
    missing = [role for role in roles_of(name) if role not in roles]
    lines = [
        f"{STUDIES[name].title}: {told}",
        "limits are of performance by that of the second arm, or of the figure itself",
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
                    "claim": r.claim.text,
                    "roles": r.claim.roles,
                    "limits": r.claim.limits,
                    "outcome": r.outcome.value,
                    "reason": r.reason,
                    "marks": r.marks,
                    "points": [_point(one, sources) for one in r.tested],
                }
                for r in results
            ],
        },
        lines,
    )
