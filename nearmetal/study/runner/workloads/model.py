# SPDX-License-Identifier: Apache-2.0
"""The module of a workload: its program, arguments, input, and the file with its figures."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from math import isqrt
from pathlib import Path

from nearmetal.core.errors import LaunchError
from nearmetal.study.runner.suite import Program


@dataclass(frozen=True)
class Module:
    """One workload. In arguments and inputs, `@ranks@`, `@P@` and `@Q@` are numbers (P x Q = ranks).

    `inputs` is a directory of inputs here; `needs_input`: the study must give one, because no small
    free input exists. `before` runs once in the directory of the launch, beside the cluster.
    `figures` is the file with the figures, if they are in no stream. A launch without output for
    `idle_s` hangs at a size and is ended. `sizes`: every size is a start of its own.
    """

    summary: str
    program: Program
    inputs: str = ""
    needs_input: bool = False
    before: tuple[tuple[str, ...], ...] = ()
    figures: str = ""
    idle_s: float | None = None
    doubling: bool = False
    """Whether each message size is twice the one before."""
    sizes: tuple[int, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    """Variables for the program, with the value that applies if the site sets none."""

    def environment(self) -> dict[str, str]:
        """Return the variables for the program: values of the site, or the usual values."""
        return {name: os.environ.get(name, usual) for name, usual in self.env}


def grid_of(ranks: int) -> tuple[int, int]:
    """Return the grid of P x Q ranks that is closest to a square, P at most Q."""
    p = next(p for p in range(isqrt(ranks), 0, -1) if ranks % p == 0)
    return p, ranks // p


def fill_in(text: str, ranks: int) -> str:
    """Return a text with its marks replaced."""
    p, q = grid_of(ranks)
    for mark, value in (("@ranks@", ranks), ("@P@", p), ("@Q@", q), ("{ranks}", ranks)):
        text = text.replace(mark, str(value))
    return text


def _copy(source: Traversable, target: Path, ranks: int) -> None:
    for entry in source.iterdir():
        if entry.is_dir():
            (target / entry.name).mkdir()
            _copy(entry, target / entry.name, ranks)
        else:
            text = fill_in(entry.read_text(encoding="utf-8"), ranks)
            (target / entry.name).write_text(text, encoding="utf-8")


def lay_out(module: Module, given: Path | None, target: Path, ranks: int) -> None:
    """Make the directory of a launch, with the inputs of the module or of the study."""
    target.mkdir(parents=True)
    if given is not None:
        if not given.is_dir():
            raise LaunchError(
                f"{given} is not a directory", "give a directory with the input files"
            )
        shutil.copytree(given, target, dirs_exist_ok=True, symlinks=True)
    elif module.inputs:
        _copy(resources.files(__package__) / "inputs" / module.inputs, target, ranks)


def figures_in(module: Module, directory: Path) -> Path | None:
    """Return the file with the figures of a launch; None: the launch wrote none."""
    found: Sequence[Path] = sorted(directory.glob(module.figures)) if module.figures else []
    return found[-1] if found else None
