# SPDX-License-Identifier: Apache-2.0
"""`nearmetal host rollback`: make Linux hosts as they were before the first `host apply`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from nearmetal.backend import state_directory
from nearmetal.cli.host_apply import DEFAULT_REBOOT_S
from nearmetal.cli.verbs import Subparsers, add_verb
from nearmetal.errors import ExitCode
from nearmetal.provision.apply import Patience
from nearmetal.provision.read import Network
from nearmetal.provision.rollback import Rollback
from nearmetal.provision.show import plan_data, plan_lines
from nearmetal.spec.hosts import load_hosts

if TYPE_CHECKING:
    import argparse

    from nearmetal.cli.view import View


def register(subparsers: Subparsers) -> None:
    """Add the verb."""
    parser = add_verb(
        subparsers, "rollback", run, "make Linux hosts as they were before the first apply",
        "nearmetal host rollback examples/hosts/rack1.yaml --dry-run",
    )  # fmt: skip
    parser.add_argument("file", metavar="FILE", help="a hosts file")
    parser.add_argument("--dry-run", action="store_true", help="show the plan, and write nothing")
    parser.add_argument(
        "--reboot-timeout", type=int, default=DEFAULT_REBOOT_S, metavar="S",
        help=f"seconds after which a host that reboots counts as lost ({DEFAULT_REBOOT_S})",
    )  # fmt: skip


def run(args: argparse.Namespace, view: View) -> int:
    """Roll back, or print the plan; what cannot be put back is exit code 4."""
    file = load_hosts(Path(args.file))
    directory = state_directory() / "hosts" / file.name
    patience = Patience(reboot_s=args.reboot_timeout)
    return carry_out(Rollback(file, Network(), directory, patience), view, dry_run=args.dry_run)


def carry_out(rollback: Rollback, view: View, *, dry_run: bool) -> int:
    """As `run`, for hosts that are reached in any way."""
    plan = rollback.plan() if dry_run else rollback.apply()
    lines = plan_lines(plan, rollback.goal)
    if not plan.hosts:
        lines = [*lines[:-1], "nothing is kept of the hosts of this file"]
    if not dry_run and plan.hosts:
        lines = [f"done: {lines[-1]}", *(f"{host.name}: left: {remark.text}" for host in plan.hosts
                                         for remark in host.remarks)]  # fmt: skip
    left = {name: list(keys) for name, keys in rollback.left.items() if keys}
    view.result(plan_data(plan) | {"left": left}, lines)
    if dry_run and plan.refused:
        return ExitCode.ERROR
    if dry_run and not plan.empty:
        return ExitCode.CHANGES
    return ExitCode.CHECKS_FAILED if left else ExitCode.DONE
