# SPDX-License-Identifier: Apache-2.0
"""`nearmetal host`: this machine as a host of VMs, each verb in a module `host_<verb>`."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from nearmetal.cli.verbs import add_group

if TYPE_CHECKING:
    from nearmetal.cli.verbs import Subparsers

VERBS = ("vf",)

SUMMARY = "show what this machine offers to virtual machines, and who has it"


def register(subparsers: Subparsers) -> None:
    """Add the group and its verbs."""
    group = add_group(subparsers, "host", SUMMARY, "nearmetal host vf")
    for verb in VERBS:
        importlib.import_module(f"nearmetal.cli.host_{verb}").register(group)
