# SPDX-License-Identifier: Apache-2.0
"""The parsers of verbs, loaded as if the command line used each."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from nearmetal.cli.verbs import build_parser

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nearmetal.cli.verbs import VerbParser


def choices(
    parser: argparse.ArgumentParser, only: Iterable[str] | None = None
) -> dict[str, VerbParser]:
    """Return the parsers of the verbs of a parser, loaded; `only`: of these verbs."""
    found = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    parsers = dict(found[0].choices) if found else {}
    names = parsers if only is None else only
    for name in names:
        parsers[name].load()
    return {name: parsers[name] for name in names}


def lines(parser: argparse.ArgumentParser) -> dict[str, str]:
    """Return the line of each verb in the help of a parser."""
    found = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    return {a.dest: a.help or "" for action in found for a in action._choices_actions}


def verb_parsers(only: Iterable[str] | None = None) -> dict[str, VerbParser]:
    """Return the parsers of verbs; the verbs of a group have names such as `study import`."""
    found: dict[str, VerbParser] = {}
    for verb, parser in choices(build_parser(), only).items():
        inner = choices(parser)
        found |= {f"{verb} {name}": p for name, p in inner.items()} or {verb: parser}
    return found
