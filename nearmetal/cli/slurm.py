# SPDX-License-Identifier: Apache-2.0
"""`nearmetal slurm`: what the Slurm plugin calls on nodes, and what operators look at."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from nearmetal.cli.verbs import add_group

if TYPE_CHECKING:
    from nearmetal.cli.verbs import Subparsers

VERBS = ("status", "task", "launch", "reclaim")

SUMMARY = "show, make and remove the containers of Slurm jobs on this node"


def register(subparsers: Subparsers) -> None:
    """Add the group and its verbs."""
    group = add_group(subparsers, "slurm", SUMMARY, "nearmetal slurm status")
    for verb in VERBS:
        importlib.import_module(f"nearmetal.cli.slurm_{verb}").register(group)
