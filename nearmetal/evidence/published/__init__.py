# SPDX-License-Identifier: Apache-2.0
"""Numbers of published studies as data: each with its line in the text of the study.

`line` counts in the plain text of the study, `printed` are the characters there, and `value` is in
`unit`. A number without variance or raw values supports no verdict. Figures whose values are not in
the text are listed as plots; no value was read from a plot.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Annotated, Any, TypeVar

from pydantic import BeforeValidator, TypeAdapter

Kind = TypeVar("Kind")


@dataclass(frozen=True)
class Publication:
    """The source of numbers."""

    name: str
    title: str
    publisher: str
    year: int
    runs: Annotated[int | None, BeforeValidator(lambda word: word or None)]
    """Number of runs behind each mean, if the study gives it."""


@dataclass(frozen=True)
class Number:
    """One number. `bound` is empty for a value, or `about`, `at most`, `at least`.

    `metric` names the figure of `arm` against `base`: `loss` and `gain` are percent of performance.
    `scale` is a size, a number of nodes, or a set of nodes.
    """

    study: str
    line: int
    printed: str
    value: float
    bound: str
    unit: str
    test: str
    arm: str
    base: str
    scale: str
    metric: str
    origin: str

    @property
    def digits(self) -> int:
        """Number of printed digits after the point: the value is rounded there."""
        number = "".join(c for c in self.printed.replace(",", ".") if c.isdigit() or c == ".")
        return len(number.rpartition(".")[2]) if "." in number.strip(".") else 0


@dataclass(frozen=True)
class Plot:
    """A figure whose values are not in the text."""

    study: str
    line: int
    figure: str
    test: str
    shows: str


@dataclass(frozen=True)
class AdapterFact:
    """One cell of the adapter table of VMW-ADAPTER (table 2), as printed."""

    line: int
    adapter: str
    property: str
    printed: str


def _rows(name: str, kind: type[Kind], **same: Any) -> tuple[Kind, ...]:
    """Return the rows of a table; pydantic turns the words into the types of the fields."""
    text = resources.files(__name__).joinpath(f"{name}.csv").read_text(encoding="utf-8")
    adapter = TypeAdapter(kind)
    return tuple(adapter.validate_python(row | same) for row in csv.DictReader(text.splitlines()))


STUDIES = {study.name: study for study in _rows("studies", Publication)}


@cache
def numbers(study: str) -> tuple[Number, ...]:
    """Return the numbers of a study, in the order of its text; raises KeyError for an unknown one."""
    name = STUDIES[study].name
    return _rows(name, Number, study=name)


@cache
def plots() -> tuple[Plot, ...]:
    """Return every figure whose values are not in the text."""
    return _rows("plots", Plot)


@cache
def adapters() -> tuple[AdapterFact, ...]:
    """Return the adapter table."""
    return _rows("adapters", AdapterFact)


def find(study: str, **wanted: object) -> list[Number]:
    """Return the numbers whose fields have these values."""
    return [n for n in numbers(study) if all(getattr(n, k) == v for k, v in wanted.items())]
