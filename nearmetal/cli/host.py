# SPDX-License-Identifier: Apache-2.0
"""`nearmetal host`: machines as hosts of VMs, each verb in a module `host_<verb>`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nearmetal.cli.verbs import add_group

if TYPE_CHECKING:
    from nearmetal.cli.verbs import Subparsers

VERBS = {
    "plan": "show what hosts still need, from BIOS to VFs, and which reboots",
    "apply": "make hosts as their file says, with the reboots it takes",
    "status": "show what hosts are now, and how they differ from their file",
    "rollback": "make hosts as they were before the first apply",
    "vf": "show adapters with SR-IOV, their VFs and who has them",
}

SUMMARY = "say what machines still need to host virtual machines, and who has their VFs"


def register(subparsers: Subparsers) -> None:
    """Add the group and its verbs."""
    example = "nearmetal host plan examples/hosts/rack1.yaml"
    add_group(subparsers, "host", SUMMARY, example, VERBS)
