# SPDX-License-Identifier: Apache-2.0
"""`nearmetal slurm`: what the Slurm plugin calls on nodes, and what operators look at."""

from __future__ import annotations

import argparse
import importlib
from typing import cast

from nearmetal.cli.verbs import Parser, Subparsers

VERBS = ("status", "launch", "reclaim")

SUMMARY = "show, make and remove the containers of Slurm jobs on this node"


def register(subparsers: Subparsers) -> None:
    """Add the group and its verbs."""
    parser = subparsers.add_parser(
        "slurm", help=SUMMARY, description=SUMMARY[0].upper() + SUMMARY[1:] + ".",
        epilog="example: nearmetal slurm status",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    verbs = parser.add_subparsers(dest="action", metavar="VERB", required=True, parser_class=Parser)
    for verb in VERBS:
        importlib.import_module(f"nearmetal.cli.slurm_{verb}").register(cast("Subparsers", verbs))
