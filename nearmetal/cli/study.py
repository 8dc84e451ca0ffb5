# SPDX-License-Identifier: Apache-2.0
"""`nearmetal study`: the verbs of studies, each in a module `nearmetal.cli.study_<verb>`."""

from __future__ import annotations

import argparse
import importlib
from typing import cast

from nearmetal.cli.verbs import Parser, Subparsers

VERBS = ("run", "import", "judge", "lint", "published", "report", "reproduce", "tax")

SUMMARY = "run or import a study, judge and report it, check claims"


def register(subparsers: Subparsers) -> None:
    """Add the group and its verbs."""
    parser = subparsers.add_parser(
        "study", help=SUMMARY, description=SUMMARY[0].upper() + SUMMARY[1:] + ".",
        epilog="example: nearmetal study import logs --output my-study",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    verbs = parser.add_subparsers(dest="action", metavar="VERB", required=True, parser_class=Parser)
    for verb in VERBS:
        importlib.import_module(f"nearmetal.cli.study_{verb}").register(cast("Subparsers", verbs))
