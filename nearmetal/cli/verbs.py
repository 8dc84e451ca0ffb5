# SPDX-License-Identifier: Apache-2.0
"""The verbs in the order of the help, and the parser made of them.

A verb is a module `nearmetal.cli.<verb>` with `register(subparsers)`; it sets `handler`, a
function (arguments, view) -> exit code, as a default of its parser. A verb's module is imported
when the command line uses the verb: the help of all verbs comes from the tables, and is quick.
"""

from __future__ import annotations

import argparse
import importlib
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, cast

import nearmetal
from nearmetal.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from nearmetal.cli.view import View

VERBS = {
    "demo": "create two nodes on this machine, run benchmarks between them, write a report",
    "plan": "show the changes that `up` would make",
    "up": "create the cluster that a spec describes, or complete a partly created one",
    "status": "show the nodes of a cluster: addresses, cores, health",
    "down": "remove a cluster with its jobs, processes, devices and records",
    "run": "run an MPI program in a cluster",
    "exec": "run a program in one node, on the cores of that node",
    "locality": "show which channel each pair of nodes uses, and the reason",
    "bench": "run benchmarks on a cluster and keep their raw output",
    "report": "write a report of the results of `bench`: HTML, Markdown, CSV",
    "tune": "measure the copy rates of this machine for the provider",
    "study": "run or import a study, compare its arms, write its report, check claims",
    "advise": "rank the network adapters that meet given needs, with reasons",
    "image": "build, list and remove images for virtual machines",
    "top": "show the traffic of running jobs: sender, receiver, channel",
    "host": "prepare machines to host virtual machines, show virtual functions and their owners",
    "import": "convert the cluster file of another tool to a spec",
    "slurm": "show, create and remove the containers of Slurm jobs on this node",
}
"""Each verb and its line in the help, the same as its module registers."""

_MODULES = {"import": "import_from"}
"""Modules that cannot be called as their verb."""

_DESCRIPTION = """\
nearmetal creates virtual HPC clusters and runs unmodified MPI programs in them. Each pair of ranks
uses the fastest channel that works between them, and nearmetal reports the channel in use.
"""

EPILOG = """\
exit codes:
  0  success
  1  error
  2  wrong usage, for example an unknown option
  3  `plan`: the plan has changes
  4  a check failed, for example `status`: the cluster differs from its spec
`run` and `exec` return the exit code of the program.

`nearmetal VERB --help` shows the arguments and options of a verb.

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


class VerbParser(Parser):
    """The parser of one verb; with a module, the module fills it at first use."""

    def __init__(self, *, module: str = "", **options: Any) -> None:
        """`module`: the module of the verb; empty when the parser is filled directly."""
        super().__init__(**options)
        self._module = module

    def load(self) -> None:
        """Import the module and let it fill this parser, once."""
        module, self._module = self._module, ""
        if module:
            importlib.import_module(module).register(self)

    def add_parser(self, _name: str, **options: Any) -> argparse.ArgumentParser:
        """Take the texts that the module registers; returns this parser."""
        self.description = options["description"]
        self.epilog = options["epilog"]
        self.formatter_class = options["formatter_class"]
        return self

    def parse_known_args(
        self, args: Iterable[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        """Load the verb first: the command line uses it."""
        self.load()
        return super().parse_known_args(args, namespace)


def build_parser() -> argparse.ArgumentParser:
    """Return the parser; it imports the module of a verb when it parses that verb."""
    parser = Parser(
        prog="nearmetal",
        description=_DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=nearmetal.__version__)
    subparsers = parser.add_subparsers(
        dest="verb", metavar="VERB", required=True, parser_class=VerbParser
    )
    for verb, summary in VERBS.items():
        module = f"nearmetal.cli.{_MODULES.get(verb, verb)}"
        subparsers.add_parser(verb, help=summary, module=module)
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
    parser.add_argument("--json", action="store_true", help="print the result as one JSON document")
    parser.set_defaults(handler=handler)
    return parser


def add_group(
    subparsers: Subparsers,
    name: str,
    summary: str,
    example: str,
    verbs: Mapping[str, str] | None = None,
) -> Subparsers:
    """Add a verb that has verbs of its own; returns where they are added.

    `verbs`: those in modules `nearmetal.cli.<name>_<verb>`, with their lines in the help.
    """
    group = subparsers.add_parser(
        name,
        help=summary,
        description=summary[0].upper() + summary[1:] + ".",
        epilog=f"example: {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    inner = group.add_subparsers(
        dest="action", metavar="VERB", required=True, parser_class=VerbParser
    )
    for verb, line in (verbs or {}).items():
        inner.add_parser(verb, help=line, module=f"nearmetal.cli.{name}_{verb}")
    return cast("Subparsers", inner)
