# SPDX-License-Identifier: Apache-2.0
"""Parts of all pages: templates, cards, tables, and charts for two widths; also Markdown and CSV."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

from jinja2 import Environment

from nearmetal.report.drawing import key_picture
from nearmetal.report.svg import NARROW, WIDE, ChartLayout

_TEMPLATES = Path(__file__).parent / "templates"


class Chart(NamedTuple):
    """One chart twice: for a desk, and for a telephone, where the text would be too small."""

    wide: str
    narrow: str


def both(*draw: Callable[[ChartLayout], str]) -> tuple[Chart, ...]:
    """Return charts in both widths; charts with nothing to draw are left out."""
    drawn = [Chart(chart(WIDE), chart(NARROW)) for chart in draw]
    return tuple(chart for chart in drawn if chart.wide)


@dataclass(frozen=True)
class Panel:
    """Charts under one heading, with a caption below."""

    title: str
    charts: tuple[Chart, ...]
    caption: str


@dataclass(frozen=True)
class GridCell:
    """A number with its link, or a text."""

    text: str
    href: str = ""
    note: str = ""
    style: str = ""
    """A CSS class. In the first cell of a row, the style of a series, whose sign is shown."""
    anchor: str = ""
    """In the first cell of a row, the name of the row for links."""

    @property
    def words(self) -> str:
        """The cell without its link."""
        return f"{self.text} ({self.note})" if self.note else self.text


@dataclass(frozen=True)
class Grid:
    """A table: its columns and rows. `tally` counts the verdicts of the rows, as (style, words)."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[GridCell, ...], ...]
    caption: str = ""
    tally: tuple[tuple[str, str], ...] = ()


class CardShare(NamedTuple):
    """A part of the bar of a card."""

    style: str
    points: int
    words: str


@dataclass(frozen=True)
class Card:
    """One verdict. The first cell of a row is its name; its style is a key of the charts."""

    title: str
    style: str
    word: str
    rows: tuple[tuple[GridCell, ...], ...]
    notes: tuple[tuple[str, ...], ...]
    """Sentences below the rows, each as texts that are plain and bold by turns."""
    below: str = ""
    """The line below the word."""
    foot: str = ""
    word_style: str = ""
    shares: tuple[CardShare, ...] = ()


@cache
def _environment() -> Environment:
    # Loading jinja2 takes long, so `--help` must not import it.
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # noqa: PLC0415 - see above

    made = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=FileSystemLoader(_TEMPLATES),
    )
    made.globals["key"] = key_picture
    return made


def _style(name: str) -> str:
    return (_TEMPLATES / name).read_text(encoding="utf-8")


def render(template: str, **values: object) -> str:
    """Return a page. All text is escaped, except charts (drawing.py escapes them) and the style."""
    style = _style("style.css") + _style("charts.css")
    return _environment().get_template(template).render(style=style, **values)


def standalone(chart: str) -> str:
    """Return a chart as a file of its own: on white, with its style, and without variables."""
    light = _style("style.css").partition("}")[0]
    values = dict(re.findall(r"--([\w-]+):([^;}]+)", light))
    rules = re.sub(r"var\(--([\w-]+)\)", lambda name: values[name[1]], _style("charts.css"))
    rules = ".chart{background:#fff;font-family:sans-serif}" + rules
    return chart.replace(">", f"><style>{rules}</style>", 1) + "\n"


def csv_text(columns: Sequence[str], rows: Iterable[Iterable[object]]) -> str:
    """Return a CSV file; None is an empty field."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return out.getvalue()


def escaped(text: str) -> str:
    """Return a text for Markdown."""
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")


def markdown_table(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    """Return the lines of a table in Markdown."""
    head, *body = ["| " + " | ".join(map(escaped, row)) + " |" for row in (columns, *rows)]
    return [head, "|" + "---|" * len(tuple(columns)), *body]


def markdown_grid(grid: Grid) -> list[str]:
    """Return a table in Markdown, with its title and caption."""
    rows = [[cell.words for cell in row] for row in grid.rows]
    caption = [grid.caption, ""] if grid.caption else []
    return ["", f"## {grid.title}", "", *caption, *markdown_table(grid.columns, rows)]
