# SPDX-License-Identifier: Apache-2.0
"""`nearmetal host status`: what hosts are now; exit code 4 when they differ from the file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from nearmetal.cli.verbs import Subparsers, add_verb
from nearmetal.cluster.store import state_directory
from nearmetal.core.errors import ExitCode
from nearmetal.host.esxi_marks import Marks
from nearmetal.host.facts import Reach, read_hosts
from nearmetal.host.hosts_file import load_hosts
from nearmetal.host.plan import plan_hosts
from nearmetal.host.show import status_data, status_lines

if TYPE_CHECKING:
    import argparse

    from nearmetal.cli.view import View


def register(subparsers: Subparsers) -> None:
    """Add the verb."""
    parser = add_verb(
        subparsers,
        "status",
        run,
        "show the present state of hosts and the differences from their file",
        "nearmetal host status examples/hosts/rack1.yaml",
    )
    parser.add_argument("file", metavar="FILE", help="hosts file (YAML), see nearmetal-hosts(5)")


def run(args: argparse.Namespace, view: View) -> int:
    """Print what is there and what differs."""
    return show(Path(args.file), Reach(), view)


def show(path: Path, reach: Reach, view: View) -> int:
    """As `run`, for hosts that are reached in any way."""
    file = load_hosts(path)
    found = read_hosts(file, reach)
    facts = Marks(state_directory() / "hosts" / file.name).on_all(found.facts)
    plan = plan_hosts(file, facts, found.unreached)
    view.result(status_data(plan, facts), status_lines(plan, facts))
    return ExitCode.DONE if plan.empty else ExitCode.CHECKS_FAILED
