# SPDX-License-Identifier: Apache-2.0
"""`nearmetal down`: remove a cluster and every trace of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nearmetal.cli.plan import as_data
from nearmetal.cli.target import add_spec, open_target
from nearmetal.cli.verbs import Subparsers, add_verb
from nearmetal.cluster.apply import describe, down
from nearmetal.core.errors import ExitCode

if TYPE_CHECKING:
    import argparse

    from nearmetal.cli.view import View


def register(subparsers: Subparsers) -> None:
    """Add the verb."""
    parser = add_verb(
        subparsers,
        "down",
        remove,
        "remove a cluster with its jobs, processes, devices and records",
        "nearmetal down examples/two-nodes.yaml",
    )
    add_spec(parser)


def remove(args: argparse.Namespace, view: View) -> int:
    """Remove it; no error when it is not there."""
    cluster, _ = open_target(args.spec)
    with view.steps(f"down {cluster.name}") as steps:
        plan = down(cluster, progress=steps)
    closing = "is down" if plan.effective else "was not up"
    lines = [*(describe(change) for change in plan.effective), f"cluster {cluster.name} {closing}"]
    view.result(as_data(plan), lines)
    for note in plan.notes:
        view.note(note)
    return ExitCode.DONE
