# SPDX-License-Identifier: Apache-2.0
"""Which verbs there are, in the order of the help, and the parser made of them.

A verb is a module `nearmetal.cli.<verb>` with `register(subparsers)`; it sets `handler`, a
function (arguments, view) -> exit code, as a default of its parser.
"""

from __future__ import annotations

import argparse
import importlib
from typing import TYPE_CHECKING, NoReturn, Protocol, cast

import nearmetal
from nearmetal.core.errors import UsageError

if TYPE_CHECKING:
    from nearmetal.cli.view import View

VERBS = (
    "demo",
    "plan",
    "up",
    "status",
    "down",
    "run",
    "exec",
    "locality",
    "bench",
    "report",
    "tune",
    "study",
    "advise",
    "image",
    "top",
    "host",
    "import",
    "slurm",
)

_MODULES = {"import": "import_from"}
"""Modules that cannot be called as their verb."""

EPILOG = """\
exit codes: 0 done, 1 error, 2 usage, 3 the plan has changes, 4 checks failed;
`run` and `exec` pass on the program's own.

example: nearmetal up examples/two-nodes.yaml
         nearmetal run examples/two-nodes.yaml -- ./hello
"""


class Handler(Protocol):
    """What a verb does."""

    def __call__(self, args: argparse.Namespace, view: View) -> int:
        """Do it; returns the exit code."""


class Subparsers(Protocol):
    """Where a verb adds its parser."""

    def add_parser(self, name: str, **options: object) -> argparse.ArgumentParser:
        """As argparse's."""


class Parser(argparse.ArgumentParser):
    """A parser whose errors are UsageErrors, so that --json reaches them too."""

    def error(self, message: str) -> NoReturn:
        """Raise instead of exiting."""
        raise UsageError(message, f"see `{self.prog} --help`")


def build_parser(only: str | None = None) -> argparse.ArgumentParser:
    """Return the parser; with one verb's name, that verb's alone, which starts sooner."""
    parser = Parser(
        prog="nearmetal",
        description=nearmetal.__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=nearmetal.__version__)
    subparsers = cast(
        "Subparsers",
        parser.add_subparsers(dest="verb", metavar="VERB", required=True, parser_class=Parser),
    )
    for verb in (only,) if only in VERBS else VERBS:
        name = f"nearmetal.cli.{_MODULES.get(verb, verb)}"
        importlib.import_module(name).register(subparsers)
    return parser


def add_verb(
    subparsers: Subparsers, name: str, handler: Handler, summary: str, example: str
) -> argparse.ArgumentParser:
    """Add one verb with what all have: help with an example, and --json."""
    parser = subparsers.add_parser(
        name,
        help=summary,
        description=summary[0].upper() + summary[1:] + ".",
        epilog=f"example: {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document instead")
    parser.set_defaults(handler=handler)
    return parser


def add_group(subparsers: Subparsers, name: str, summary: str, example: str) -> Subparsers:
    """Add a verb that has verbs of its own; returns where they are added."""
    group = subparsers.add_parser(
        name,
        help=summary,
        description=summary[0].upper() + summary[1:] + ".",
        epilog=f"example: {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = group.add_subparsers(dest="action", metavar="VERB", required=True, parser_class=Parser)
    return cast("Subparsers", verbs)
