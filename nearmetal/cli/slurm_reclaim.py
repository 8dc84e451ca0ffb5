# SPDX-License-Identifier: Apache-2.0
"""`nearmetal slurm reclaim`: end what is left of a job on this node; the plugin's epilog calls it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nearmetal.cli.verbs import Subparsers, add_verb
from nearmetal.errors import ExitCode
from nearmetal.slurm import reclaim

if TYPE_CHECKING:
    import argparse

    from nearmetal.cli.view import View


def register(subparsers: Subparsers) -> None:
    """Add the verb."""
    parser = add_verb(
        subparsers, "reclaim", run, "end what is left of a job on this node, at any time",
        "nearmetal slurm reclaim --job 7",
    )  # fmt: skip
    parser.add_argument("--job", type=int, required=True, help="the job")


def run(args: argparse.Namespace, view: View) -> int:
    """Reclaim it; nothing to do is no error."""
    found = reclaim(args.job)
    line = f"job {args.job}: {'reclaimed' if found else 'nothing is here'}"
    view.result({"job": args.job, "reclaimed": found}, [line])
    return ExitCode.DONE
