# SPDX-License-Identifier: Apache-2.0
"""`nearmetal up`: create the cluster that a spec describes, or complete it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nearmetal.cli.plan import as_data
from nearmetal.cli.target import add_spec, open_target
from nearmetal.cli.verbs import Subparsers, add_verb
from nearmetal.cluster.apply import describe, up
from nearmetal.core.errors import ExitCode

if TYPE_CHECKING:
    import argparse

    from nearmetal.cli.view import View


def register(subparsers: Subparsers) -> None:
    """Add the verb."""
    parser = add_verb(
        subparsers,
        "up",
        make,
        "create the cluster that a spec describes, or complete a partly created one",
        "nearmetal up examples/two-nodes.yaml",
    )
    add_spec(parser)
    parser.add_argument(
        "--replace",
        action="store_true",
        help="if a cluster of this name runs under another spec, change or remove its resources to match SPEC (default: refuse)",
    )


def make(args: argparse.Namespace, view: View) -> int:
    """Carry the plan out; what it changes is shown first."""
    cluster, spec = open_target(args.spec)
    unfinished = cluster.journal.unfinished()
    if unfinished is not None:
        view.note(f"an earlier `{unfinished.verb}` was cut short at: {unfinished.step}")
    with view.steps(f"up {cluster.name}") as steps:
        plan = up(cluster, spec, replace=args.replace, progress=steps)
    done = [f"{describe(change)}" for change in plan.effective]
    nodes = ", ".join(f"{n.name} {n.address}" for n in cluster.backend.status())
    closing = f"cluster {cluster.name} is up: {nodes}"
    view.result(as_data(plan), [*done, closing])
    for note in plan.notes:
        view.note(note)
    return ExitCode.DONE
