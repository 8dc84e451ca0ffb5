# SPDX-License-Identifier: Apache-2.0
"""`nearmetal host`: this machine as a host of VMs, each verb in a module `host_<verb>`."""

from __future__ import annotations

import argparse
import importlib
from typing import cast

from nearmetal.cli.verbs import Parser, Subparsers

VERBS = ("vf",)

SUMMARY = "show what this machine offers to virtual machines, and who has it"


def register(subparsers: Subparsers) -> None:
    """Add the group and its verbs."""
    parser = subparsers.add_parser(
        "host", help=SUMMARY, description=SUMMARY[0].upper() + SUMMARY[1:] + ".",
        epilog="example: nearmetal host vf",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    verbs = parser.add_subparsers(dest="action", metavar="VERB", required=True, parser_class=Parser)
    for verb in VERBS:
        importlib.import_module(f"nearmetal.cli.host_{verb}").register(cast("Subparsers", verbs))
