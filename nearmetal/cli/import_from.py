# SPDX-License-Identifier: Apache-2.0
"""`nearmetal import`: specs out of the files of other tools."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from nearmetal.cli.verbs import add_group, add_verb
from nearmetal.cluster.backends.vsphere.vhpc import Target, import_vhpc
from nearmetal.cluster.spec import parse_spec
from nearmetal.config.document import read_text
from nearmetal.core.errors import ExitCode, NearmetalError, SpecError

if TYPE_CHECKING:
    import argparse

    from nearmetal.cli.verbs import Subparsers
    from nearmetal.cli.view import View

SUMMARY = "convert the cluster file of another tool to a spec"


def register(subparsers: Subparsers) -> None:
    """Add the group and its verbs."""
    example = "nearmetal import vhpc cluster.conf --vcenter vcenter.example.org"
    group = add_group(subparsers, "import", SUMMARY, example)
    vhpc = add_verb(group, "vhpc", run, "convert a cluster file of vhpc-toolkit to a spec", example)
    vhpc.add_argument("file", metavar="FILE", type=Path, help="cluster file of vhpc-toolkit")
    vhpc.add_argument(
        "--vcenter",
        metavar="SERVER",
        required=True,
        help="name or address of the vCenter; the cluster file does not contain it",
    )
    vhpc.add_argument(
        "--user",
        metavar="USER",
        default="administrator@vsphere.local",
        help="user of the vCenter (default: %(default)s)",
    )
    vhpc.add_argument(
        "--name", metavar="NAME", help="name of the cluster (default: the name of FILE)"
    )
    vhpc.add_argument(
        "--output",
        metavar="SPEC",
        type=Path,
        help="path of the spec; the command does not overwrite an existing file (default: standard output)",
    )


def run(args: argparse.Namespace, view: View) -> int:
    """Write the spec; exits 4 when it is written and vSphere's rules forbid something in it."""
    name = args.name or args.file.stem.lower().replace("_", "-")
    target = Target(name, args.vcenter, args.user)
    imported = import_vhpc(
        read_text(args.file, "a cluster file of vhpc-toolkit"), str(args.file), target
    )
    problems = _problems(imported.text, str(args.output or "<spec>"))
    if args.output is not None:
        _write(args.output, imported.text)
    data = {
        "spec": None if args.output is None else str(args.output),
        "text": imported.text,
        "machines": imported.machines,
        "notes": list(imported.notes),
        "problems": problems,
    }
    told = [f"{imported.machines} machines: {args.output}"]
    view.result(data, imported.text.splitlines() if args.output is None else told)
    for note in imported.notes:
        view.note(note)
    for problem in problems:
        view.warn(problem)
    return ExitCode.CHECKS_FAILED if problems else ExitCode.DONE


def _problems(text: str, file: str) -> list[str]:
    """Return what is wrong with the spec that was made: the file asked for it."""
    try:
        parse_spec(text, file)
    except SpecError as error:
        return [str(problem) for problem in error.problems]
    return []


def _write(path: Path, text: str) -> None:
    try:
        with path.open("x", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError as error:
        raise NearmetalError(f"{path} exists", "remove it, or give another name") from error
