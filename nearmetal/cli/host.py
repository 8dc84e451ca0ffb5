# SPDX-License-Identifier: Apache-2.0
"""`nearmetal host`: machines as hosts of VMs, each verb in a module `host_<verb>`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nearmetal.cli.verbs import add_group

if TYPE_CHECKING:
    from nearmetal.cli.verbs import Subparsers

VERBS = {
    "plan": "show the missing steps of hosts, from BIOS to virtual functions, and the reboots",
    "apply": "apply the changes of the plan to hosts, and reboot hosts where a step needs it",
    "status": "show the present state of hosts and the differences from their file",
    "rollback": "restore the state of hosts before the first `apply`; reboots hosts too",
    "vf": "show SR-IOV adapters, their virtual functions (VFs) and the owners",
}

SUMMARY = "prepare machines to host virtual machines, show virtual functions and their owners"


def register(subparsers: Subparsers) -> None:
    """Add the group and its verbs."""
    example = "nearmetal host plan examples/hosts/rack1.yaml"
    add_group(subparsers, "host", SUMMARY, example, VERBS)
