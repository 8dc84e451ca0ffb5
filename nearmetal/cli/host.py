# SPDX-License-Identifier: Apache-2.0
"""`nearmetal host`: machines as hosts of VMs, each verb in a module `host_<verb>`."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from nearmetal.cli.verbs import add_group

if TYPE_CHECKING:
    from nearmetal.cli.verbs import Subparsers

VERBS = ("plan", "apply", "status", "rollback", "vf")

SUMMARY = "say what machines still need to host virtual machines, and who has their VFs"


def register(subparsers: Subparsers) -> None:
    """Add the group and its verbs."""
    group = add_group(subparsers, "host", SUMMARY, "nearmetal host plan examples/hosts/rack1.yaml")
    for verb in VERBS:
        importlib.import_module(f"nearmetal.cli.host_{verb}").register(group)
