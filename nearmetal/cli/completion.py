# SPDX-License-Identifier: Apache-2.0
"""`nearmetal completion`: the script with which a shell completes verbs, options and names."""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING, Any

from nearmetal.core.errors import ExitCode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nearmetal.cli.verbs import VerbParser
    from nearmetal.cli.view import View

SHELLS = ("bash", "zsh", "fish")
CLUSTERS = "clusters"

_NAMES = f"nearmetal completion {CLUSTERS} 2>/dev/null"
_FILES = ("*.yaml", "*.yml", "*.plan", "*.json")


def completion_options(parser: VerbParser) -> None:
    """Add the arguments of `completion`."""
    parser.option(
        "what SHELL",
        "bash, zsh or fish; or `clusters`, which prints the names that the scripts offer for SPEC",
        choices=(*SHELLS, CLUSTERS),
    )


def on_completion(args: argparse.Namespace, view: View) -> int:
    """Print the script, or the names of the clusters."""
    from nearmetal.cluster.store import Store, state_directory
    from nearmetal.config.model import NAME_PATTERN

    if args.what == CLUSTERS:
        # A shell expands the words of a completion: a name is a name, and no command.
        names = [n for n in Store(state_directory()).names() if re.fullmatch(NAME_PATTERN, n)]
        view.result({"clusters": names}, names)
        return ExitCode.DONE
    text = script(args.what)
    view.result({"script": text}, text.splitlines())
    return ExitCode.DONE


def script(shell: str) -> str:
    """Return the completion script of a shell."""
    import shtab

    from nearmetal.cli.verbs import build_parser

    parser = build_parser()
    for verb in _verbs(parser):
        verb.load()
        for action in verb._actions:  # noqa: SLF001 - argparse has no other list of them
            _describe(action)
    return str(shtab.complete(parser, shell))


def _verbs(parser: argparse.ArgumentParser) -> Iterator[VerbParser]:
    """Yield the parsers of all verbs, those of groups before their own."""
    for action in parser._actions:  # noqa: SLF001 - as above
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001 - as above
            for verb in action.choices.values():
                yield verb
                yield from _verbs(verb)


def _describe(action: argparse.Action) -> None:
    """Say how the value of an argument is completed, by its name in the help."""
    import shtab

    from nearmetal.job.mpi import Mpi

    name = str(action.metavar or "")
    if name == "SPEC":
        complete: Any = _spec()
    elif name in {"DIR", "STUDY"}:
        complete = shtab.DIRECTORY
    elif name in {"FILE", "PLAN", "STUDY.yaml", "-- PROGRAM", "ARGS"}:
        complete = shtab.FILE
    elif action.dest == "mpi":
        action.choices = [mpi.value for mpi in Mpi]
        return
    else:
        return
    action.complete = complete  # type: ignore[attr-defined]  # where shtab looks for it


def _spec() -> dict[str, Any]:
    """Return the completion of SPEC: files of specs and plans, and the names of clusters."""
    import shtab

    files = shtab.glob(*_FILES)
    function = "_nearmetal_spec_files"
    before: Any = files["preamble"]
    return {
        "bash": function,
        "zsh": function,
        "fish": f"({function})",
        "preamble": {
            "bash": f"{before['bash']}\n{function}() {{\n"
            f'  compgen -W "$({_NAMES})" -- "$1"\n  {files["bash"]} "$1"\n}}\n',
            "zsh": f"{function}() {{\n  local -a names\n"
            f'  names=(${{(f)"$({_NAMES})"}})\n  compadd -a names\n  {files["zsh"]}\n}}\n',
            "fish": f"{before['fish']}\nfunction {function}\n"
            f"  {_NAMES}\n  {str(files['fish']).strip('()')}\nend\n",
        },
    }
