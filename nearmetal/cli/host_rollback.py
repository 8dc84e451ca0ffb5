# SPDX-License-Identifier: Apache-2.0
"""`nearmetal host rollback`: make hosts as they were before the first `host apply`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nearmetal.cli.host_apply import add_arguments, applier
from nearmetal.cli.verbs import Subparsers, add_verb
from nearmetal.core.errors import ExitCode
from nearmetal.host.rollback import Rollback
from nearmetal.host.show import plan_data, plan_lines

if TYPE_CHECKING:
    import argparse

    from nearmetal.cli.view import View


def register(subparsers: Subparsers) -> None:
    """Add the verb."""
    parser = add_verb(
        subparsers,
        "rollback",
        run,
        "restore the state of hosts before the first `apply`; reboots hosts too",
        "nearmetal host rollback examples/hosts/rack1.yaml --dry-run",
    )
    add_arguments(parser)
    parser.add_argument("--dry-run", action="store_true", help="show the plan; change nothing")


def run(args: argparse.Namespace, view: View) -> int:
    """Roll back, or print the plan; what cannot be put back is exit code 4."""
    return carry_out(applier(args, Rollback), view, dry_run=args.dry_run)


def carry_out(rollback: Rollback, view: View, *, dry_run: bool) -> int:
    """As `run`, for hosts that are reached in any way."""
    plan = rollback.plan() if dry_run else rollback.apply()
    lines = plan_lines(plan, rollback.goal)
    if not plan.hosts:
        lines = [*lines[:-1], "nothing is kept of the hosts of this file"]
    if not dry_run and plan.hosts:
        lines = [
            f"done: {lines[-1]}",
            *(
                f"{host.name}: left: {remark.text}"
                for host in plan.hosts
                for remark in host.remarks
            ),
        ]
    left = {name: list(keys) for name, keys in rollback.left.items() if keys}
    view.result(plan_data(plan) | {"left": left}, lines)
    if dry_run and plan.refused:
        return ExitCode.ERROR
    if dry_run and not plan.empty:
        return ExitCode.CHANGES
    return ExitCode.CHECKS_FAILED if left else ExitCode.DONE
