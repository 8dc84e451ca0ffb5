# SPDX-License-Identifier: Apache-2.0
"""`nearmetal host plan`: what hosts still need; exit code 3 when that is something."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from nearmetal.cli.verbs import Subparsers, add_verb
from nearmetal.cluster.store import state_directory
from nearmetal.core.errors import ExitCode, UsageError
from nearmetal.host.esxi_marks import Marks
from nearmetal.host.facts import Reach, read_hosts
from nearmetal.host.hosts_file import hosts_schema, load_hosts
from nearmetal.host.plan import plan_hosts
from nearmetal.host.show import plan_data, plan_lines

if TYPE_CHECKING:
    import argparse

    from nearmetal.cli.view import View


def register(subparsers: Subparsers) -> None:
    """Add the verb."""
    parser = add_verb(
        subparsers,
        "plan",
        run,
        "show the missing steps of hosts, from BIOS to virtual functions, and the reboots",
        "nearmetal host plan examples/hosts/rack1.yaml",
    )
    parser.add_argument(
        "file", metavar="FILE", nargs="?", help="hosts file (YAML), see nearmetal-hosts(5)"
    )
    parser.add_argument(
        "--schema",
        action="store_true",
        help="print the JSON Schema of hosts files; FILE is not needed",
    )


def run(args: argparse.Namespace, view: View) -> int:
    """Print the plan or the schema; exit code 3 for steps, 1 where a host is refused."""
    if args.schema:
        schema = hosts_schema()
        view.result(json.loads(schema), schema.splitlines())
        return ExitCode.DONE
    if args.file is None:
        raise UsageError("host plan needs a FILE", "nearmetal host plan examples/hosts/rack1.yaml")
    return show(Path(args.file), Reach(), view)


def show(path: Path, reach: Reach, view: View) -> int:
    """As `run`, for hosts that are reached in any way."""
    file = load_hosts(path)
    found = read_hosts(file, reach)
    facts = Marks(state_directory() / "hosts" / file.name).on_all(found.facts)
    plan = plan_hosts(file, facts, found.unreached)
    view.result(plan_data(plan), plan_lines(plan))
    if plan.refused:
        return ExitCode.ERROR
    return ExitCode.DONE if plan.empty else ExitCode.CHANGES
