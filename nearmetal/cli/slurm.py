# SPDX-License-Identifier: Apache-2.0
"""`nearmetal slurm`: what the Slurm plugin calls on nodes, and what operators look at."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nearmetal.cli.verbs import add_group

if TYPE_CHECKING:
    from nearmetal.cli.verbs import Subparsers

VERBS = {
    "status": "show the containers and VFs of jobs on this node, and leaks",
    "task": "run a task of a Slurm step in a container; needs neither the plugin nor root",
    "launch": "create the container of a job on this node; needs root",
    "reclaim": "end the containers of jobs on this node and return their VFs; needs root",
}

SUMMARY = "show, create and remove the containers of Slurm jobs on this node"


def register(subparsers: Subparsers) -> None:
    """Add the group and its verbs."""
    example = "nearmetal slurm status"
    add_group(subparsers, "slurm", SUMMARY, example, VERBS)
