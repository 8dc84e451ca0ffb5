# SPDX-License-Identifier: Apache-2.0
"""`nearmetal study`: the verbs of studies, each in a module `nearmetal.cli.study_<verb>`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nearmetal.cli.verbs import add_group

if TYPE_CHECKING:
    from nearmetal.cli.verbs import Subparsers

VERBS = {
    "run": "make the launches of a study, or go on with them",
    "import": "read folders of logs into a study",
    "judge": "judge one arm of a study against another",
    "lint": "find claims that contradict each other or the data",
    "published": "show the numbers of a published study, with their lines",
    "report": "make the report of a study",
    "reproduce": "test the claims of a published study on your own data",
    "tax": "split the tax of a VM into missing cores and virtualization",
}

SUMMARY = "run or import a study, judge and report it, check claims"


def register(subparsers: Subparsers) -> None:
    """Add the group and its verbs."""
    example = "nearmetal study import logs --output my-study"
    add_group(subparsers, "study", SUMMARY, example, VERBS)
