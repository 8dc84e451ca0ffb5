# SPDX-License-Identifier: Apache-2.0
"""What all pages share: the templates' environment, tables, and charts for two widths."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from nearmetal.report.svg import NARROW, WIDE, Layout

_TEMPLATES = Path(__file__).parent / "templates"


class Chart(NamedTuple):
    """One chart twice: for a desk, and for a telephone, whose text would else be too small."""

    wide: Markup
    narrow: Markup


def both(*draw: Callable[[Layout], str]) -> tuple[Chart, ...]:
    """Return charts in both widths; those with nothing to draw are left out."""
    drawn = [(chart(WIDE), chart(NARROW)) for chart in draw]
    # Charts are markup of svg.py, which escapes all text.
    return tuple(Chart(Markup(w), Markup(n)) for w, n in drawn if w)  # noqa: S704 - see above


@dataclass(frozen=True)
class Figure:
    """Charts under one heading, with words below."""

    title: str
    charts: tuple[Chart, ...]
    caption: str


@dataclass(frozen=True)
class Cell:
    """A number with its link, or a text."""

    text: str
    href: str = ""
    note: str = ""
    style: str = ""


@dataclass(frozen=True)
class Grid:
    """A table: its columns and rows. `tally` counts what the rows say, as (style, words)."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    caption: str = ""
    tally: tuple[tuple[str, str], ...] = ()


@cache
def _environment() -> Environment:
    return Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=FileSystemLoader(_TEMPLATES),
    )


def render(template: str, **values: object) -> str:
    """Return a page; all text is escaped but charts and the style, which are ours."""
    style = Markup((_TEMPLATES / "style.css").read_text(encoding="utf-8"))  # noqa: S704 - ours
    return _environment().get_template(template).render(style=style, **values)
