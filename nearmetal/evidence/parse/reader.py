# SPDX-License-Identifier: Apache-2.0
"""Base of all parsers: errors with file:line, checked numbers, and one pass over the lines.

A parser is a subclass of Reader. Its methods with `@on(PATTERN)` are its rules: the first rule whose
pattern matches the beginning of a line reads the line. An adversary may have made the text: a match
takes time in proportion to the line, so no two repeated parts of a pattern, one after the other, may
match the same character.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from nearmetal.core.errors import LogError
from nearmetal.evidence.model import NO_SETUP, Column, Log, Row, Setup, Table
from nearmetal.evidence.parse.rank_map import Locator, RankMap, told_apart
from nearmetal.evidence.prefixes import ASIDE

MAX_LINE = 1 << 16
"""Characters of one line."""

MAX_LINES = 1 << 22

MAX_ROWS = 1 << 20
"""Rows and single figures of one text."""

MAX_FLAGS = 64
"""Options of one run."""

MAX_COUNT = 10**9
"""Ranks, nodes and other counts."""

_SHOWN = 80
_COMMA = re.compile(r"\d+,\d+")
CRASHED = "the run crashed or was cut off"
MIXED = "two outputs are mixed"
TWO_RUNS = "two outputs are in one file"


def split_lines(text: str) -> list[str]:
    """Return the lines as editors count them, without a byte order mark and line ends."""
    lines = [line.rstrip("\r") for line in text.removeprefix("\ufeff").split("\n")]
    return lines[:-1] if len(lines) > 1 and not lines[-1] else lines


def check_lines(text: str, file: str) -> None:
    """Raise LogError for a text with more or longer lines than any benchmark prints."""
    at = 0
    while len(text) - at > MAX_LINE:
        end = text.rfind("\n", at, at + MAX_LINE + 1)
        if end < 0:
            line = text.count("\n", 0, at) + 1
            raise fail(file, line, f"more than {MAX_LINE} characters", "no benchmark prints them")
        at = end + 1
    if text.count("\n") > MAX_LINES:
        raise fail(file, MAX_LINES, f"more than {MAX_LINES} lines", "no benchmark prints so many")


def fail(file: str, line: int, what: str, why: str) -> LogError:
    """Return the error for a line that cannot be read."""
    return LogError(f"{file}:{line}: {what}, {why}")


def shown(text: str) -> str:
    """Return a line as it may appear in a message."""
    return repr(text if len(text) <= _SHOWN else text[:_SHOWN] + "...")


class LineRule(NamedTuple):
    """A pattern for the beginning of a line, and the method that reads such a line."""

    pattern: re.Pattern[str]
    method: Callable[[Any, re.Match[str]], None]
    stops: bool = False
    """Whether such a line refuses the text, also if another rank prints it."""


def on(
    pattern: str | re.Pattern[str],
) -> Callable[[Callable[[Any, re.Match[str]], None]], LineRule]:
    """Make a method of a Reader the rule for lines that begin with a pattern."""
    return lambda method: LineRule(re.compile(pattern), method)


def setting(name: str, pattern: str, *, first: bool = False) -> LineRule:
    """Return a rule that keeps the group of a line in the header: of the last line, or the first."""

    def keep(reader: Reader, match: re.Match[str]) -> None:
        if not first or name not in reader.header:
            reader.header[name] = match[1].strip()

    return LineRule(re.compile(pattern), keep)


def flag(name: str, pattern: str) -> LineRule:
    """Return a rule that sets an attribute to True."""
    return LineRule(re.compile(pattern), lambda reader, _match: setattr(reader, name, True))


def remark(pattern: str) -> LineRule:
    """Return a rule that keeps lines as remarks."""
    return LineRule(re.compile(pattern), lambda reader, match: reader.remark(match.string))


def stop(pattern: str, why: str, what: str = "") -> LineRule:
    """Return a rule that refuses a text because of a line."""

    def refuse(reader: Reader, match: re.Match[str]) -> None:
        raise reader.fail(what or shown(match.string.strip()), why)

    return LineRule(re.compile(pattern), refuse, stops=True)


def options(
    words: Sequence[str], left_out: Sequence[str] = (), *, several: bool = True
) -> list[str]:
    """Return the options of a command with their values, sorted, without some of them.

    `several`: an option may have more than one value, and no other words follow.
    """
    found: list[list[str]] = []
    for word in words:
        if re.match(r"\d?[<>|&;]", word):
            break
        if re.match(r"--?[A-Za-z]", word):
            found.append([word])
        elif found and (several or len(found[-1]) == 1):
            found[-1].append(word)
    return sorted({" ".join(o) for o in found if o[0].partition("=")[0] not in left_out})


class Reader:
    """One pass over one raw text. Every method that reads raises LogError for damaged input."""

    format = ""
    version = 1
    """Recorded with every fact: a parser that reads the same bytes differently gets a new number."""
    ends_in_figures = False
    """Whether the parser itself checks that the last figure of a text is whole."""
    rules: ClassVar[tuple[LineRule, ...]] = ()

    line = 0
    """Number of the current line, from 1; after the last line, the number of lines."""
    before = ""
    """The line before the current one, without lines of other ranks."""
    processes: int | None = None
    """Number of processes, for the tables that do not have their own number."""
    test = ""
    """Name of the table that is open."""
    columns: tuple[Column, ...] | None = None
    """Columns of the table that is open."""
    opened = 0
    """Line in which the open table begins."""

    def __init__(self, text: str, file: str) -> None:
        check_lines(text, file)
        self.file = file
        self._figures = 0
        self.lines = split_lines(text)
        self.header: dict[str, str] = {}
        self.remarks: list[tuple[int, str]] = []
        self.tables: list[Table] = []
        self.rows: list[Row] = []
        self.flags: dict[str, None] = {}
        self.rank_map = RankMap()
        self._places: list[Mapping[int, str]] = []

    def __init_subclass__(cls) -> None:
        cls.rules = tuple(rule for rule in vars(cls).values() if isinstance(rule, LineRule))

    @classmethod
    def parse(cls, text: str, file: str) -> Log:
        """Read one text; raises LogError when it is damaged, cut off, or something else."""
        return cls(text, file).read()

    def read(self) -> Log:
        """Read all lines, then check the whole."""
        for line, text in enumerate(self.lines, 1):
            self.line = line
            said = text.removeprefix(ASIDE)
            self.rank_map.busy = bool(self.rows)
            self.rank_map.take(said)
            if said is text:
                self.take(text)
                self.before = text
            else:
                self.aside(said)
        self.end()
        if any(t.processes and t.processes > MAX_COUNT for t in self.tables) or (
            self.processes and self.processes > MAX_COUNT
        ):
            raise self.fail(f"more than {MAX_COUNT} ranks", "the number is damaged")
        locator = Locator(self.header.get("version", ""), self.processes, self.flag_words())
        tables = told_apart(
            [locator.locate(t, place) for t, place in zip(self.tables, self._places, strict=True)],
            self._places,
        )
        return Log(self.file, self.format, self.header, tuple(tables), tuple(self.remarks))

    def flag_words(self) -> str:
        """Return the options of the run that have no part of their own."""
        return "; ".join(sorted(self.flags))

    def flag(self, words: str) -> None:
        """Keep an option of the run."""
        if len(self.flags) >= MAX_FLAGS:
            raise self.fail(f"more than {MAX_FLAGS} options", MIXED)
        self.flags[words] = None

    def keep(self, *tables: Table) -> None:
        """Keep tables of one run, with the map of ranks that stands before them."""
        self.tables += tables
        self._places += [self.rank_map.close()] * len(tables)

    def take(self, text: str) -> None:
        """Read one line."""
        for pattern, method, _ in self.rules:
            if match := pattern.match(text):
                method(self, match)
                return

    def aside(self, text: str) -> None:
        """Read one line of a rank that does not print the results: it may say that the run failed."""
        for pattern, method, stops in self.rules:
            if stops and (match := pattern.match(text)):
                method(self, match)
        if text.strip():
            self.remark(text)

    def end(self) -> None:
        """Check the whole after the last line, which is then the current line."""

    def fail(self, what: str, why: str, line: int | None = None) -> LogError:
        """Return an error for the current line, or for another one."""
        return fail(self.file, self.line if line is None else line, what, why)

    def cut_off(self, missing: str) -> LogError:
        """Return the error for an output without its end mark."""
        return self.fail("the output stops before its end", f"{missing!r} is missing: {CRASHED}")

    def remark(self, text: str) -> None:
        """Keep a line that qualifies the figures."""
        self.remarks.append((self.line, text.strip()))

    def number(self, word: str, line: int | None = None) -> float:
        """Return a finite, non-negative number."""
        try:
            value = float(word.replace("_", "?"))  # Python reads 1_000, the field does not
        except ValueError:
            why = "a decimal comma?" if _COMMA.fullmatch(word) else "the row is damaged"
            raise self.fail(f"{shown(word)} is not a number", why, line) from None
        if not 0 <= value < math.inf:
            raise self.fail(
                f"{shown(word)} is not a measured value", "it must be finite and >= 0", line
            )
        return value

    def whole(self, word: str, line: int | None = None) -> int:
        """Return a whole number from 0 to MAX_COUNT."""
        value = self.number(word, line)
        if not value.is_integer() or value > MAX_COUNT:
            raise self.fail(f"{shown(word)} is not a whole number", "the row is damaged", line)
        return int(value)

    def count(self) -> None:
        """Count one more row or figure; refuses more than any benchmark prints."""
        self._figures += 1
        if self._figures > MAX_ROWS:
            raise self.fail(f"more than {MAX_ROWS} rows", "no benchmark prints so many")

    def known(self, name: str, names: Iterable[str], kind: str, line: int | None = None) -> None:
        """Refuse a name that is not among the known names."""
        if name not in names:
            why = f"known: {', '.join(names)}"
            raise self.fail(f"unknown {kind} {shown(name)}", why, line)

    def columns_of(
        self, words: Iterable[str], known: Mapping[str, Column], line: int | None = None
    ) -> tuple[Column, ...]:
        """Return the columns of a header; refuses unknown and repeated names."""
        found: list[Column] = []
        for word in words:
            self.known(word, known, "column", line)
            if known[word] in found:
                raise self.fail(f"column {shown(word)} stands twice", "the header is damaged", line)
            found.append(known[word])
        return tuple(found)

    def spaced_columns(self, text: str, known: Mapping[str, Column]) -> tuple[Column, ...]:
        """Return the columns of a header whose names may hold spaces: the longest name first."""
        rest = " ".join(text.split())
        names = sorted(known, key=len, reverse=True)
        found: list[str] = []
        while rest:
            name = next((n for n in names if rest == n or rest.startswith(n + " ")), rest)
            found.append(name)
            if len(found) > len(names):
                raise self.fail("a column stands twice", "the header is damaged")
            rest = rest[len(name) :].lstrip()
        return self.columns_of(found, known)

    def same_length(self, words: Sequence[str], columns: Sequence[object]) -> None:
        """Refuse a row that does not have exactly the columns of its header."""
        if len(words) != len(columns):
            raise self.fail(
                f"{len(words)} values for {len(columns)} columns", "the row is cut off or damaged"
            )

    def row(self, words: Sequence[str], columns: Sequence[Column]) -> Row:
        """Return the current line as a row."""
        self.same_length(words, columns)
        self.count()
        values = {c.metric: self.number(w) for c, w in zip(columns, words, strict=True)}
        return Row(self.line, values)

    def open_table(self, columns: tuple[Column, ...]) -> None:
        """Begin a table in the current line."""
        self.columns, self.opened, self.rows = columns, self.line, []

    def close_table(self, setup: Setup = NO_SETUP, processes: int | None = None) -> None:
        """Keep the table that is open, if there is one."""
        if self.columns is not None:
            rows = tuple(self.rows)
            self.keep(Table(self.test, self.opened, self.columns, rows, setup, processes))
        self.columns, self.rows = None, []

    def add(
        self,
        test: str,
        column: Column,
        word: str | float,
        mode: str = "",
        line: int | None = None,
        *,
        flags: str = "",
    ) -> None:
        """Add a table of one figure, as programs print them in sentences."""
        self.count()
        value = self.number(word, line) if isinstance(word, str) else word
        line = self.line if line is None else line
        rows = (Row(line, {column.metric: value}),)
        self.keep(Table(test, line, (column,), rows, Setup(mode=mode, flags=flags)))

    def has(self, metric: str) -> bool:
        """Return whether a figure of this name was found."""
        return any(column.metric == metric for t in self.tables for column in t.columns)
