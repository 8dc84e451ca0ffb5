# SPDX-License-Identifier: Apache-2.0
"""`nearmetal schema`: the JSON Schema of what a verb prints with --json."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from nearmetal.core.errors import ExitCode, UsageError
from nearmetal.core.resources import share

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

    from nearmetal.cli.verbs import VerbParser
    from nearmetal.cli.view import View

ERROR = "error"
"""The schema of the document that each verb prints if it ends with an error."""


def schema_options(parser: VerbParser) -> None:
    """Add the arguments of `schema`."""
    parser.option(
        "verb VERB",
        "verb, for example `study judge`; or `error`, for the document of an error (default: list "
        "the schemas)",
        nargs="*",
    )


def on_schema(args: argparse.Namespace, view: View) -> int:
    """Print one schema, or the list of all."""
    found = schemas()
    if not args.verb:
        names = {verb: path.name for verb, path in found.items()}
        view.table(("verb", "schema"), [[verb, name] for verb, name in names.items()])
        directory = str(share("schema", "result"))
        view.result({"directory": directory, "schemas": names}, ["", f"directory: {directory}"])
        return ExitCode.DONE
    path = found.get(" ".join(args.verb))
    if path is None:
        raise UsageError(f"no schema of {' '.join(args.verb)!r}", "see `nearmetal schema`")
    text = path.read_text(encoding="utf-8")
    view.result(json.loads(text), text.splitlines())
    return ExitCode.DONE


def schemas() -> dict[str, Path]:
    """Return the file of each schema, by verb."""
    from nearmetal.cli.verbs import VERBS

    names = [ERROR, *(name for name, verb in VERBS.items() if verb.module)]
    directory = share("schema", "result")
    return {name: directory / f"{name.replace(' ', '-')}.schema.json" for name in names}
