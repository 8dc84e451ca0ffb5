# SPDX-License-Identifier: Apache-2.0
"""The verbs in the order of the help (verbs.csv), and the parser made of them.

The verb `up` of the module `cluster` is two functions there: `up_options(parser)` adds its arguments
(a verb without arguments has no such function), and `on_up(args, view)` does the work and returns
the exit code. The module is imported when the command line uses the verb. It imports at its top only
what is quick to load, and everything else in the function that uses it: so each help is quick.
"""

from __future__ import annotations

import argparse
import csv
import importlib
import sys
import textwrap
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import nearmetal
from nearmetal.cli.view import View
from nearmetal.core.errors import UsageError
from nearmetal.core.resources import share

Handler = Callable[[argparse.Namespace, View], int]


class Verb(NamedTuple):
    """One verb: its module in nearmetal.cli ("" for a group), its line in the help, an example.

    `exits`: its own exit codes, for example "1: an error; 4: a check failed".
    """

    module: str
    summary: str
    exits: str
    example: str

    def codes(self) -> dict[str, str]:
        """Return the meaning of each exit code."""
        own = (part.partition(": ") for part in self.exits.split("; ") if part)
        return _COMMON | {code: meaning for code, _, meaning in own}


_COMMON = {"0": "success", "1": "an error", "2": "wrong usage, for example an unknown option"}
_ROWS = Path(__file__).with_name("verbs.csv").read_text(encoding="utf-8").splitlines()
VERBS = {name: Verb(*row) for name, *row in csv.reader(_ROWS[1:])}
"""Every verb of verbs.csv; a verb of a group follows its group."""

_USUAL = {"check": "run", "tune": "copies"}
"""Groups with a verb that may be left out."""

_TYPES = {"N": int, "BYTES": int, "FILE": Path, "PLAN": Path, "DIR": Path, "STUDY": Path}

_DESCRIPTION = """\
nearmetal creates virtual HPC clusters and runs unmodified MPI programs in them. The nodes of a
cluster are isolated containers of this machine, or virtual machines; a YAML file, the spec,
describes them. The MPI loads the provider of nearmetal, a plug-in of libfabric. For each pair of
ranks it tests its channels and uses the first that passes: self (the rank itself), shm (shared
memory of one kernel), segment (memory that the virtual machines of one host share), net (TCP, or
RDMA). nearmetal reports the channels that carried the messages.
"""


def _verbs_with(code: str) -> str:
    """Return the verbs that have an exit code of their own, as lines of the help."""
    names = [f"`{name}`".replace(" ", "\xa0") for name, v in VERBS.items() if code in v.codes()]
    indent = " " * 11
    text = textwrap.fill(", ".join(names), 100, initial_indent=indent, subsequent_indent=indent)
    return text.replace("\xa0", " ")


EPILOG = f"""\
what to use when:
  see what works here     `demo`
  use your own mpirun     `doctor`, then `wrap` or `env`
  run a job               `up`, `run`, `down`; `status`, `locality` and `top` show more
  measure one cluster     `bench`, then `report`
  find what is wrong      `check`; `check collect` and `check analyse` do its two parts
  compare configurations  `study run` with a study file, or `study import` of existing logs;
                          then `study judge` or `study report`

requirements:
  Containers need an MPI, and root or a kernel that gives user namespaces to users. Virtual
  machines need QEMU and libvirt; `up` builds their image if it is missing.

exit codes:
  0        success
  1        an error; the message names it, and a fix
  2        wrong usage, for example an unknown option
  3        the plan has changes:
{_verbs_with("3")}
  4        a check failed:
{_verbs_with("4")}
  128 + n  signal n ended nearmetal or the program; Ctrl-C gives 130
`run`, `exec`, `wrap` and `slurm task` return the exit code of the program. If they print `error: ...`,
nearmetal could not start it. The help of each verb lists its codes.

`nearmetal VERB --help` shows the arguments and options of a verb. The manual pages, for example
nearmetal-spec(5) about the spec of a cluster, are Markdown files in
{share("man")}

example: nearmetal up examples/two-nodes.yaml
         nearmetal run examples/two-nodes.yaml -- ./hello
"""


class Parser(argparse.ArgumentParser):
    """A parser whose errors are UsageErrors, so that --json shows them too.

    An option has one spelling: a script with a shortened one would break with the next option.
    """

    def __init__(self, **options: Any) -> None:
        """`options`: those of argparse."""
        super().__init__(allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        """Raise instead of exiting."""
        raise UsageError(message, f"see `{self.prog} --help`")


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Leaves room for the longest verb: argparse forgets that verbs are indented once more."""

    def add_argument(self, action: argparse.Action) -> None:
        """Count the width of the verbs as well."""
        super().add_argument(action)
        for verb in self._iter_indented_subactions(action):
            width = len(self._format_action_invocation(verb)) + self._current_indent
            self._action_max_length = max(self._action_max_length, width)


class MainParser(Parser):
    """The parser of all verbs. `check SPEC` means `check run SPEC`, and `tune` `tune copies`."""

    def parse_known_args(
        self, args: Iterable[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        """Insert the verb of a group that may be left out."""
        words = sys.argv[1:] if args is None else list(args)
        usual = _USUAL.get(words[0]) if words else None
        following = words[1] if len(words) > 1 else ""
        if usual and following not in ("-h", "--help") and f"{words[0]} {following}" not in VERBS:
            words.insert(1, usual)
        return super().parse_known_args(words, namespace)


class VerbParser(Parser):
    """The parser of one verb, without its options until the command line uses the verb."""

    def __init__(self, *, verb: str = "", **options: Any) -> None:
        """`verb`: its name in VERBS."""
        super().__init__(**options)
        self._verb = verb

    def load(self) -> None:
        """Let the module of the verb add the options, once."""
        name, self._verb = self._verb, ""
        if not name or not VERBS[name].module:
            return
        module = importlib.import_module(f"nearmetal.cli.{VERBS[name].module}")
        word = name.rpartition(" ")[2]
        add_options = getattr(module, f"{word}_options", None)
        if add_options is not None:
            add_options(self)
        if "--json" not in self._option_string_actions:
            self.option("--json", "print the result as one JSON document")
        records = self.add_argument_group("log")
        for words, text, more in _LOG_OPTIONS:
            self.option(words, text, to=records, **more)
        self.set_defaults(handler=getattr(module, f"on_{word}"))

    def option(
        self, words: str, text: str, *, to: argparse._ArgumentGroup | None = None, **more: Any
    ) -> None:
        """Add an argument in the form of the help, for example "-n --ranks N" or "file FILE".

        `text` is its help, and `to` a group of the parser. The last word in capitals implies the
        type. An option without such a word, and without anything in `more`, is a switch.
        """
        *names, last = words.split()
        if names and not last.startswith("-"):
            more = {"metavar": last} | ({"type": _TYPES[last]} if last in _TYPES else {}) | more
        else:
            names = [*names, last]
            more = more or {"action": "store_true"}
        (to or self).add_argument(*names, help=text, **more)

    def parse_known_args(
        self, args: Iterable[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        """Load the verb first: the command line uses it."""
        self.load()
        words = sys.argv[1:] if args is None else list(args)
        found, rest = super().parse_known_args(words, namespace)
        _, *tail = words[words.index("--") :] if "--" in words else ("",)
        program = getattr(found, "program", None)
        if program is not None and [program] == tail[:1] and len(found.args) < len(tail):
            # argparse drops a second `--`, which is an argument of the program.
            found.args = tail[1:]
        return found, rest


_LOG_OPTIONS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    (
        "-v --verbose",
        "print each command that nearmetal starts, with its time; -vv: also its output",
        {"action": "count", "default": 0},
    ),
    ("--log-file FILE", "append everything that -vv prints to FILE, with date and time", {}),
)


def build_parser() -> argparse.ArgumentParser:
    """Return the parser; it imports the module of a verb when it parses that verb."""
    parser = MainParser(
        prog="nearmetal",
        description=_DESCRIPTION,
        epilog=EPILOG,
        formatter_class=_Formatter,
    )
    parser.add_argument("--version", action="version", version=nearmetal.__version__)
    groups = {"": _subparsers(parser, "verb")}
    for name, verb in VERBS.items():
        group, _, word = name.rpartition(" ")
        codes = "".join(f"  {code:<8} {meaning}\n" for code, meaning in verb.codes().items())
        made = groups[group].add_parser(
            word,
            verb=name,
            help=verb.summary,
            description=verb.summary[0].upper() + verb.summary[1:] + ".",
            epilog=(f"exit codes:\n{codes}\n" if verb.module else "") + f"example: {verb.example}",
            formatter_class=_Formatter,
        )
        if not verb.module:
            groups[name] = _subparsers(made, "action")
    return parser


def _subparsers(parser: argparse.ArgumentParser, dest: str) -> Any:
    return parser.add_subparsers(dest=dest, metavar="VERB", required=True, parser_class=VerbParser)
