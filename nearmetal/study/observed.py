# SPDX-License-Identifier: Apache-2.0
"""What launchers recorded about the launches of a cell, folded: one value, or that it varies. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nearmetal.study.model import LAUNCH

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from nearmetal.study.model import Cell, Source

VARIES = "varies: "
"""Begins a fact that is not the same in all launches of a cell."""

_SHOWN = 3


def fold(headers: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Return every recorded fact of some sources by name; what was not recorded is left out."""
    found: dict[str, dict[str, None]] = {}
    for header in headers:
        for key, value in header.items():
            if key.startswith(LAUNCH):
                found.setdefault(key.removeprefix(LAUNCH), {})[value] = None
    return {name: _one(list(values)) for name, values in found.items()}


def _one(values: list[str]) -> str:
    if len(values) == 1:
        return values[0]
    more = f" | and {len(values) - _SHOWN} more" if len(values) > _SHOWN else ""
    return VARIES + " | ".join(values[:_SHOWN]) + more


class Observed:
    """Answers for cells; what many cells share is folded once."""

    def __init__(self, sources: Mapping[str, Source]) -> None:
        """`sources` by their SHA-256."""
        self._sources = sources
        self._known: dict[tuple[str, ...], dict[str, str]] = {}

    def __call__(self, cell: Cell) -> dict[str, str]:
        """Return the facts of a cell's launches by name."""
        key = tuple(dict.fromkeys(seen.source for seen in cell.observations))
        if key not in self._known:
            self._known[key] = fold(self._sources[name].header for name in key)
        return self._known[key]
