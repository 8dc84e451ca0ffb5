# SPDX-License-Identifier: Apache-2.0
"""`nearmetal study`: the verbs of studies, each in a module `nearmetal.cli.study_<verb>`."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from nearmetal.cli.verbs import add_group

if TYPE_CHECKING:
    from nearmetal.cli.verbs import Subparsers

VERBS = ("run", "import", "judge", "lint", "published", "report", "reproduce", "tax")

SUMMARY = "run or import a study, judge and report it, check claims"


def register(subparsers: Subparsers) -> None:
    """Add the group and its verbs."""
    group = add_group(subparsers, "study", SUMMARY, "nearmetal study import logs --output my-study")
    for verb in VERBS:
        importlib.import_module(f"nearmetal.cli.study_{verb}").register(group)
