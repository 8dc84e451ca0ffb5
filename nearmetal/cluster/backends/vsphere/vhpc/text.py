# SPDX-License-Identifier: Apache-2.0
"""The lines of a cluster file: sections of `key: value`, each with its line number.

As Python's configparser reads them, which vhpc-toolkit uses: `:` or `=` after a key, comments by `#`
or `;` at the start of a line, indented lines go on with the value before. Names may hold a range, so
in the sections of machines and switches a `:` within braces ends no key.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from nearmetal.core.errors import Problem

RESERVED = ("_VMS_", "_SVS_", "_DVS_")
"""Sections that describe what is made; all others are macros for them."""


@dataclass(frozen=True)
class Entry:
    """One `key: value`."""

    key: str
    value: str
    line: int


@dataclass
class Sections:
    """A file by its sections, and what is wrong with it."""

    file: str
    entries: dict[str, list[Entry]] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def complain(self, line: int, what: str, why: str, hint: str = "") -> None:
        """Note one problem."""
        self.problems.append(Problem(self.file, line, 1, what, why, hint))


def split_entry(line: str, *, names: bool) -> tuple[str, str] | None:
    """Return key and value of a line; None when nothing divides them."""
    depth = 0
    for i, character in enumerate(line):
        if names and character in "{}":
            depth += 1 if character == "{" else -1
        elif character in ":=" and depth == 0:
            if names and re.match(r"\s*\d*\s*\}", line[i + 1 :]):
                return None  # the colon of a range whose brace was never opened
            return line[:i].strip(), line[i + 1 :].strip()
    return None


def _header(sections: Sections, line: str, number: int) -> str | None:
    """Begin a section; returns its name, None when it cannot be."""
    name = line[1:].partition("]")[0]
    if not re.fullmatch(r"\[[^\[\]]+\]", line):
        sections.complain(number, f"section {line[:40]!r}", "is no [NAME]", "close the bracket")
        return None
    if name == "DEFAULT":
        why = "its keys would stand in every section, also as names of machines"
        sections.complain(number, "section [DEFAULT]", why, "give it another name")
        return None
    if name in sections.entries:
        sections.complain(number, f"section [{name}]", "stands twice", "join the two")
    return name


def read_sections(text: str, file: str) -> Sections:
    """Read a file; problems are noted, and reading goes on."""
    sections = Sections(file)
    name: str | None = None
    last_indent, open_entry = 0, False
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if not line or line[0] in "#;":
            continue
        indent = len(raw) - len(raw.lstrip())
        if name is not None and open_entry and indent > last_indent:
            before = sections.entries[name].pop()
            joined = Entry(before.key, f"{before.value} {line}".strip(), before.line)
            sections.entries[name].append(joined)
            continue
        open_entry = False
        if line.startswith("["):
            name = _header(sections, line, number)
            if name is not None:
                sections.entries.setdefault(name, [])
            continue
        parts = split_entry(line, names=name in RESERVED)
        if parts is None or not parts[0]:
            why = (
                "a brace is not closed, or not opened"
                if set("{}") & set(line)
                else "there is no `key: value`"
            )
            sections.complain(number, f"line {line[:40]!r}", why, "write for example cpu: 4")
            continue
        if name is None:
            if not sections.problems:
                sections.complain(
                    number,
                    "a key before any section",
                    "it belongs to none",
                    "begin with a line [BASE]",
                )
            continue
        _add(sections, name, Entry(*parts, number))
        last_indent, open_entry = indent, True
    return sections


def _add(sections: Sections, name: str, entry: Entry) -> None:
    if "%(" in entry.value:
        why = "values are not put together from others here"
        sections.complain(entry.line, f"{entry.key}: %(...)", why, "write the value out")
    double = [e for e in sections.entries[name] if e.key.lower() == entry.key.lower()]
    if double:
        why = f"line {double[0].line} has it already"
        sections.complain(entry.line, f"{entry.key!r} twice in [{name}]", why, "remove one")
    sections.entries[name].append(entry)
