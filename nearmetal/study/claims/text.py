# SPDX-License-Identifier: Apache-2.0
"""A text as paragraphs, sentences and tables of percentages, each with its line.

The rules of claims look back and forth within a sentence. So the length of its words and of the
sentence itself is bounded: what is beyond makes no claim.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from nearmetal.study.claims.quantities import Stated, quantities

_SENTENCE_END = re.compile(
    r"(?<=[.!?])(?<!\bvs\.)(?<!\be\.g\.)(?<!\bi\.e\.)(?<!\bFig\.)\s+(?=[\"(\[]?[A-Z])"
)
MAX_WORD = 60
MAX_SENTENCE = 1000
_WORD = re.compile(rf"\S{{{MAX_WORD + 1},}}")
_BLANKS = re.compile(r"[^\S\t]{9,}")
_PERCENT_CELL = re.compile(r"\s*([-+\N{MINUS SIGN}]?\d+(?:\.\d+)?)\s*%\s*$")


Found = Iterator[tuple[int, str]]
"""What a rule yields: the line of a claim, and the contradiction in words."""


@dataclass(frozen=True)
class Sentence:
    """One sentence, and where it begins."""

    line: int
    text: str

    @cached_property
    def quantities(self) -> list[Stated]:
        """Its numbers in order, read once for all rules."""
        return quantities(self.text)


@dataclass(frozen=True)
class Paragraph:
    """Lines without an empty one between them, as sentences."""

    line: int
    sentences: tuple[Sentence, ...]

    @property
    def text(self) -> str:
        """All of it."""
        return " ".join(sentence.text for sentence in self.sentences)


@dataclass(frozen=True)
class TableCell:
    """A percentage in a table."""

    line: int
    row: str
    column: str
    value: float


@dataclass(frozen=True)
class TextTable:
    """A table of percentages with its header."""

    line: int
    cells: tuple[TableCell, ...]


@dataclass
class Prose:
    """A whole text as paragraphs and tables."""

    lines: list[str]
    paragraphs: list[Paragraph] = field(default_factory=list)
    tables: list[TextTable] = field(default_factory=list)

    @property
    def sentences(self) -> list[Sentence]:
        """Every sentence, in order."""
        return [sentence for paragraph in self.paragraphs for sentence in paragraph.sentences]

    def matches(self, pattern: re.Pattern[str]) -> Iterator[tuple[int, re.Match[str]]]:
        """Return the matches of a pattern in all sentences, each with the line of its sentence."""
        for sentence in self.sentences:
            for match in pattern.finditer(sentence.text):
                yield sentence.line, match


def _cells(line: str) -> list[str]:
    if "\t" in line:
        return line.split("\t")
    return (
        [cell.strip() for cell in line.strip().strip("|").split("|")] if line.count("|") > 1 else []
    )


def _paragraph(block: list[tuple[int, str]]) -> Paragraph:
    text, starts = "", []
    for number, line in block:
        starts.append((len(text), number))
        text += line.strip() + " "
    sentences, at = [], 0
    for part in _SENTENCE_END.split(text.strip()):
        where = text.index(part, at)
        begins = starts[bisect_right(starts, where, key=lambda start: start[0]) - 1][1]
        sentences.append(Sentence(begins, part[:MAX_SENTENCE]))
        at = where + len(part)
    return Paragraph(block[0][0], tuple(sentences))


def _table(block: list[tuple[int, str]]) -> TextTable | None:
    header: list[str] = []
    found: list[TableCell] = []
    for number, line in block:
        cells = _cells(line)
        values = [_PERCENT_CELL.match(cell) for cell in cells[1:]]
        if cells and values and all(values):
            for name, match in zip(header[1:] or [""] * len(values), values, strict=False):
                if match:
                    value = float(match[1].replace("\N{MINUS SIGN}", "-"))
                    found.append(TableCell(number, cells[0].strip(), name.strip(), value))
        elif cells and not found:
            header = cells
    return TextTable(block[0][0], tuple(found)) if found else None


def read(text: str) -> Prose:
    """Take a text apart. Lines of tables are no sentences."""
    short = _WORD.sub(lambda word: word[0][:MAX_WORD], text.removeprefix("\ufeff"))
    document = Prose([_BLANKS.sub(" " * 8, line) for line in short.split("\n")])
    block: list[tuple[int, str]] = []
    table: list[tuple[int, str]] = []
    for number, line in enumerate([*document.lines, ""], 1):
        if _cells(line):
            table.append((number, line))
            continue
        if table:
            found = _table(table)
            document.tables += [found] if found else []
            table = []
        if line.strip():
            block.append((number, line))
        elif block:
            document.paragraphs.append(_paragraph(block))
            block = []
    return document
