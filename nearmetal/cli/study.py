# SPDX-License-Identifier: Apache-2.0
"""`nearmetal study`: the verbs of studies, each in a module `nearmetal.cli.study_<verb>`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nearmetal.cli.verbs import add_group

if TYPE_CHECKING:
    from nearmetal.cli.verbs import Subparsers

VERBS = {
    "run": "run the launches of a study file, or resume them",
    "import": "import directories of logs into a study",
    "judge": "compare one arm of a study with another, with a verdict for each point",
    "lint": "find claims that contradict each other or the data",
    "published": "show the numbers of a published study and their source lines",
    "report": "write the report of a study: HTML, Markdown, CSV, SVG",
    "reproduce": "test the claims of a published study on your own data",
    "tax": "split the performance loss of a VM into missing cores and virtualization",
}

SUMMARY = "run or import a study, compare its arms, write its report, check claims"


def register(subparsers: Subparsers) -> None:
    """Add the group and its verbs."""
    example = "nearmetal study import logs --output my-study"
    add_group(subparsers, "study", SUMMARY, example, VERBS)
