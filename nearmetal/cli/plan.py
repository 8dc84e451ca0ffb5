# SPDX-License-Identifier: Apache-2.0
"""`nearmetal plan`: what `up` would do; exit code 3 when it would do something."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from nearmetal.cli.target import add_spec, open_target
from nearmetal.cli.verbs import Subparsers, add_verb
from nearmetal.cluster.apply import describe, plan_up
from nearmetal.cluster.diff import Action, Plan
from nearmetal.cluster.spec import json_schema
from nearmetal.core.errors import ExitCode, UsageError

if TYPE_CHECKING:
    import argparse

    from nearmetal.cli.view import View


def register(subparsers: Subparsers) -> None:
    """Add the verb."""
    parser = add_verb(
        subparsers,
        "plan",
        show,
        "show the changes that `up` would make",
        "nearmetal plan examples/two-nodes.yaml",
    )
    add_spec(parser, required=False)
    parser.add_argument(
        "--schema",
        action="store_true",
        help="print the JSON Schema of cluster specs; SPEC is not needed",
    )


def as_data(plan: Plan) -> dict[str, Any]:
    """Return a plan for --json."""
    return {
        "cluster": plan.cluster,
        "changes": [
            {
                "action": change.action.name.lower(),
                "kind": change.key.kind.value,
                "name": change.key.name,
                "before": dict(change.before),
                "after": dict(change.after),
                "reason": change.reason or change.why,
            }
            for change in plan.changes
        ],
        "notes": list(plan.notes),
    }


def as_lines(plan: Plan) -> list[str]:
    """Return a plan for a person."""
    lines = [f"cluster {plan.cluster}:"]
    for change in plan.effective:
        lines.append("  " + describe(change))
        if change.action is Action.CREATE:
            lines += [f"      {name}: {value}" for name, value in change.after if value]
    counts = (plan.count(action) for action in (Action.CREATE, Action.CHANGE, Action.DELETE))
    made, changed, gone = counts
    lines.append(f"plan: {made} to make, {changed} to change, {gone} to remove")
    return lines


def show(args: argparse.Namespace, view: View) -> int:
    """Print the plan or the schema."""
    if args.schema:
        schema = json_schema()
        view.result(json.loads(schema), schema.splitlines())
        return ExitCode.DONE
    if args.spec is None:
        raise UsageError("plan needs a SPEC", "nearmetal plan examples/two-nodes.yaml")
    cluster, spec = open_target(args.spec)
    plan = plan_up(cluster, spec)
    up_to_date = [f"cluster {plan.cluster}: nothing to do"]
    view.result(as_data(plan), up_to_date if plan.empty else as_lines(plan))
    for note in plan.notes:
        view.note(note)
    return ExitCode.DONE if plan.empty else ExitCode.CHANGES
