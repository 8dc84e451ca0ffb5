# SPDX-License-Identifier: Apache-2.0
"""`nearmetal study import`: folders of logs into a study."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from nearmetal.cli.verbs import Subparsers, add_verb
from nearmetal.core.errors import ExitCode, NearmetalError, UsageError
from nearmetal.study.importer import ImportSummary, derive_again, find_files, import_study
from nearmetal.study.labels import draft

if TYPE_CHECKING:
    import argparse

    from nearmetal.cli.view import View

MAX_TOLD = 20


def register(subparsers: Subparsers) -> None:
    """Add the verb."""
    parser = add_verb(
        subparsers,
        "import",
        run,
        "import directories of logs into a study",
        "nearmetal study import logs --labels labels.yaml --output my-study",
    )
    parser.add_argument(
        "folders", metavar="DIR", nargs="*", type=Path, help="directories of raw logs"
    )
    parser.add_argument(
        "--labels",
        metavar="FILE",
        type=Path,
        help="YAML file with the labels that the logs lack (default: DIR/study-labels.yaml)",
    )
    parser.add_argument(
        "--output",
        metavar="STUDY",
        type=Path,
        help="directory for the study; the command creates it (default: DIR.study)",
    )
    parser.add_argument(
        "--draft",
        metavar="FILE",
        type=Path,
        help="write a labels template to FILE, and import nothing",
    )
    parser.add_argument(
        "--keep-going", action="store_true", help="exit with code 0 even if files were refused"
    )
    parser.add_argument(
        "--again",
        metavar="STUDY",
        type=Path,
        help="derive the tables of STUDY again from its own raw files, without DIR",
    )


def run(args: argparse.Namespace, view: View) -> int:
    """Import, draft, or derive again."""
    if args.again is not None:
        return tell(derive_again(args.again), args.again, view, keep_going=args.keep_going)
    if not args.folders:
        raise UsageError("study import needs a folder", "nearmetal study import logs")
    if args.draft is not None:
        return write_draft(args, view)
    target = args.output or args.folders[0].with_name(args.folders[0].resolve().name + ".study")
    with view.steps("import") as steps:
        summary = import_study(args.folders, args.labels, target, steps)
    return tell(summary, target, view, keep_going=args.keep_going)


def write_draft(args: argparse.Namespace, view: View) -> int:
    """Write labels to fill in; an existing file is left alone."""
    paths = [file.path for file in find_files(args.folders) if file.label is None]
    if not paths:
        raise NearmetalError("all these files bring their labels", "import them without --labels")
    text = draft(args.folders[0].resolve().name, paths)
    try:
        with args.draft.open("x", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError as error:
        raise NearmetalError(f"{args.draft} exists", "remove it, or give another name") from error
    view.result(
        {"draft": str(args.draft), "files": len(paths)},
        [f"{len(paths)} files: fill in {args.draft}"],
    )
    return ExitCode.DONE


def tell(summary: ImportSummary, target: Path, view: View, *, keep_going: bool) -> int:
    """Print what was read and what was refused."""
    for reason in list(summary.refused.values())[:MAX_TOLD]:
        view.warn(f"refused: {reason}")
    if len(summary.refused) > MAX_TOLD:
        view.warn(f"and {len(summary.refused) - MAX_TOLD} more, see {target}/sources.parquet")
    data = {
        "study": str(target),
        "files": summary.files,
        "read": summary.read,
        "facts": summary.facts,
        "ignored": summary.ignored,
        "duplicates": summary.duplicates,
        "refused": summary.refused,
    }
    view.result(
        data,
        [
            f"{summary.read} of {summary.files} files read, {summary.facts} numbers: {target}",
            f"{len(summary.refused)} refused, {summary.ignored} ignored",
        ],
    )
    return ExitCode.ERROR if summary.refused and not keep_going else ExitCode.DONE
