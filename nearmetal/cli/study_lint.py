# SPDX-License-Identifier: Apache-2.0
"""`nearmetal study lint`: sentences whose numbers cannot all be right."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from nearmetal.cli.study_judge import arms_in
from nearmetal.cli.verbs import Subparsers, add_verb
from nearmetal.core.errors import ExitCode, NearmetalError
from nearmetal.evidence.recognize import decode
from nearmetal.study.claims import lint
from nearmetal.study.judge import Comparison, compare
from nearmetal.study.store import Study

if TYPE_CHECKING:
    import argparse

    from nearmetal.cli.view import View


def register(subparsers: Subparsers) -> None:
    """Add the verb."""
    parser = add_verb(
        subparsers,
        "lint",
        run,
        "find claims that contradict each other or the data",
        "nearmetal study lint paper.md --data my-study",
    )
    parser.add_argument(
        "texts", metavar="TEXT", nargs="+", type=Path, help="text or Markdown file to check"
    )
    parser.add_argument(
        "--data",
        metavar="STUDY",
        type=Path,
        help="study directory that `study import` created; compare sentences about two of its arms with its data",
    )


def comparisons(directory: Path) -> list[Comparison]:
    """Return every arm of a study against every other."""
    study = Study(directory)
    arms = arms_in(study)
    cells = {name: list(study.cells(arm=name)) for name in arms}
    names = list(arms)
    return [
        found
        for i, base in enumerate(names)
        for test in names[i + 1 :]
        for pair in ((base, test), (test, base))
        for found in compare((arms[pair[0]], cells[pair[0]]), (arms[pair[1]], cells[pair[1]]))
    ]


def run(args: argparse.Namespace, view: View) -> int:
    """Print findings as file:line; exit code 4 when there is one."""
    measured = comparisons(args.data) if args.data else []
    found = []
    for path in args.texts:
        try:
            text = decode(path.read_bytes(), str(path))
        except OSError as error:
            raise NearmetalError(f"cannot read {path}: {error.strerror}", "give a text") from error
        found += [(path, finding) for finding in lint(text, measured)]
    view.result(
        {"findings": [{"file": str(path), **vars(finding)} for path, finding in found]},
        [*(f"{path}:{f.line}: {f.what} [{f.rule}]" for path, f in found), f"{len(found)} findings"],
    )
    return ExitCode.CHECKS_FAILED if found else ExitCode.DONE
