# SPDX-License-Identifier: Apache-2.0
"""`nearmetal host apply`: make hosts as their file says, with the reboots that takes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from nearmetal.cli.verbs import Subparsers, add_verb
from nearmetal.cluster.store import state_directory
from nearmetal.core.errors import ExitCode
from nearmetal.host.apply import Applier, Patience
from nearmetal.host.facts import Reach
from nearmetal.host.hosts_file import load_hosts
from nearmetal.host.show import plan_data

if TYPE_CHECKING:
    import argparse

    from nearmetal.cli.view import View

DEFAULT_REBOOT_S = 900
Kind = TypeVar("Kind", bound=Applier)


def register(subparsers: Subparsers) -> None:
    """Add the verb."""
    parser = add_verb(
        subparsers,
        "apply",
        run,
        "apply the changes of the plan to hosts, and reboot hosts where a step needs it",
        "nearmetal host apply examples/hosts/rack1.yaml",
    )
    add_arguments(parser)
    parser.add_argument(
        "--by-hand-done",
        action="store_true",
        help="the manual steps of the plan on ESXi hosts are done; the next reboot activates them",
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what every verb that writes to hosts takes."""
    parser.add_argument("file", metavar="FILE", help="hosts file (YAML), see nearmetal-hosts(5)")
    parser.add_argument(
        "--reboot-timeout",
        type=int,
        default=DEFAULT_REBOOT_S,
        metavar="S",
        help=f"seconds after which a rebooting host counts as lost (default: {DEFAULT_REBOOT_S})",
    )


def applier(args: argparse.Namespace, kind: type[Kind]) -> Kind:
    """Return what such a verb carries out, for its arguments."""
    file = load_hosts(Path(args.file))
    directory = state_directory() / "hosts" / file.name
    patience = Patience(
        reboot_s=args.reboot_timeout, by_hand_done=getattr(args, "by_hand_done", False)
    )
    return kind(file, Reach(), directory, patience)


def run(args: argparse.Namespace, view: View) -> int:
    """Apply the file; an error names the hosts that failed and those that were not begun."""
    plan = applier(args, Applier).apply()
    steps = sum(len(host.steps) for host in plan.hosts)
    reboots = sum(host.reboots for host in plan.hosts)
    done = f"hosts {plan.name}: {steps} steps, {reboots} reboots"
    view.result(plan_data(plan), [done if steps else f"hosts {plan.name}: nothing to do"])
    return ExitCode.DONE
