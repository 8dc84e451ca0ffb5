# SPDX-License-Identifier: Apache-2.0
"""From sections to machines and switches: macros filled in, ranges dealt out.

Words stand from left to right, and a later one overrides an earlier one, whether it comes from a
section or stands in the line itself.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from nearmetal.cluster.backends.vsphere.vhpc.keys import (
    MACHINE_KEYS,
    RANGE_KEYS,
    SECRET_KEYS,
    SWITCH_KEYS,
    Value,
    read_value,
)
from nearmetal.cluster.backends.vsphere.vhpc.ranges import Range, parse_range, spread
from nearmetal.cluster.backends.vsphere.vhpc.text import RESERVED, Entry, Sections

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True)
class Given:
    """A value and the line it comes from."""

    value: Value
    line: int


@dataclass
class Item:
    """One machine or one switch as the file describes it."""

    name: str
    line: int
    given: dict[str, Given] = field(default_factory=dict)
    hosts: list[str] = field(default_factory=list)
    """Of a switch: the hosts that its range names."""

    def text(self, key: str) -> str | None:
        """Return a textual value; None where it is not given."""
        found = self.given.get(key)
        return None if found is None else str(found.value)

    def line_of(self, key: str) -> int:
        """Return where a key is given, else where the item is."""
        return self.given[key].line if key in self.given else self.line


def _words(value: str) -> list[str]:
    """Split at blanks outside brackets; none stands around `:` and `,`."""
    tight = re.sub(r"\s*([:,])\s*", r"\1", value)
    return re.findall(r"(?:\[[^\]]*\]?|[^\s\[])+", tight)


def _pairs(sections: Sections, entry: Entry) -> Iterator[Entry]:
    """Yield every key with its value, in the order in which they count."""
    for word in _words(entry.value):
        if word in sections.entries:
            if word in RESERVED:
                sections.complain(
                    entry.line,
                    f"section {word} as a macro",
                    "it makes things",
                    "name a section of keys",
                )
                continue
            # A key without a value in a section says nothing.
            yield from (e for e in sections.entries[word] if e.value)
            continue
        key, colon, value = word.partition(":")
        if colon:
            if value:
                yield Entry(key, value, entry.line)
            continue
        close = difflib.get_close_matches(word, [*sections.entries, *MACHINE_KEYS], 1)
        hint = f"did you mean {close[0]!r}?" if close else "write a section, or key: value"
        sections.complain(entry.line, f"{word!r}", "is neither a section nor key: value", hint)


def _shown(key: str, value: str) -> str:
    return key if key in SECRET_KEYS else f"{key}: {value[:60]}"


def _collect(sections: Sections, entry: Entry, known: frozenset[str]) -> Item:
    item = Item(entry.key, entry.line)
    for pair in _pairs(sections, entry):
        key = pair.key.lower()
        if key not in known:
            close = difflib.get_close_matches(key, sorted(known), 1)
            hint = (
                f"did you mean {close[0]!r}?"
                if close
                else f"known here: {', '.join(sorted(known))}"
            )
            sections.complain(pair.line, f"unknown key {key!r}", "it has no meaning here", hint)
            continue
        if key not in RANGE_KEYS and "{" in pair.value and key not in SECRET_KEYS:
            sections.complain(
                pair.line,
                _shown(key, pair.value),
                "a range is not possible there",
                f"ranges are for {', '.join(RANGE_KEYS)} and names",
            )
            continue
        try:
            item.given[key] = Given(read_value(key, pair.value), pair.line)
        except ValueError as error:
            why, _, hint = str(error).partition("|")
            sections.complain(pair.line, _shown(key, pair.value), why, hint)
    return item


def _range_of(sections: Sections, what: str, text: str, line: int) -> tuple[Range | None, bool]:
    """Return the range in a text, and whether the text is sound."""
    try:
        return parse_range(text), True
    except ValueError as error:
        why, _, hint = str(error).partition("|")
        sections.complain(line, f"{what} {text[:60]}", why, hint)
        return None, False


def machines(sections: Sections) -> list[Item]:
    """Return the machines of [_VMS_], ranges dealt out; problems are noted."""
    made: list[Item] = []
    for entry in sections.entries.get("_VMS_", []):
        item = _collect(sections, entry, MACHINE_KEYS)
        names, sound = _range_of(sections, "name", item.name, item.line)
        if names is not None and names.block:
            sections.complain(
                item.line,
                f"name {item.name}",
                "machines have a name each",
                "write {x:y} with single braces",
            )
        elif sound:
            made += _dealt(sections, item, names)
    seen: dict[str, int] = {}
    for item in made:
        if item.name in seen:
            sections.complain(
                item.line,
                f"machine {item.name!r} twice",
                f"line {seen[item.name]} makes one of that name",
                "rename one",
            )
        seen.setdefault(item.name, item.line)
    return made


def _dealt(sections: Sections, item: Item, names: Range | None) -> list[Item]:
    """Return one item per machine of a line."""
    values = names.values if names else (item.name,)
    dealt = [replace(item, name=name, given=dict(item.given)) for name in values]
    for key in RANGE_KEYS:
        if key not in item.given:
            continue
        text, line = str(item.given[key].value), item.given[key].line
        found, _ = _range_of(sections, f"{key}:", text, line)
        if found is None:
            continue
        try:
            if names is None:
                msg = f"is a range, and {item.name} is one machine|give the name a range, too"
                raise ValueError(msg)  # noqa: TRY301 - told like the others
            for one, value in zip(dealt, spread(found, len(dealt)), strict=True):
                one.given[key] = Given(value, line)
        except ValueError as error:
            why, _, hint = str(error).partition("|")
            sections.complain(line, f"{key}: {text[:60]} of {item.name}", why, hint)
    return dealt


def switches(sections: Sections, section: str) -> list[Item]:
    """Return the switches of [_SVS_] or [_DVS_], with their hosts; problems are noted."""
    made = []
    for entry in sections.entries.get(section, []):
        item = _collect(sections, entry, SWITCH_KEYS)
        names, sound = _range_of(sections, "name", item.name, item.line)
        if names is not None or not sound:
            if sound:
                sections.complain(
                    item.line,
                    f"switch {item.name}",
                    "its name has a range",
                    "write a line for each",
                )
            continue
        if "host" in item.given:
            text, line = str(item.given["host"].value), item.line_of("host")
            found, sound = _range_of(sections, "host:", text, line)
            if found is not None and found.block:
                sections.complain(
                    line,
                    f"host: {text[:60]} of {item.name}",
                    "a switch takes each host once",
                    "write {x:y}",
                )
            elif sound:
                item.hosts = list(found.values) if found else [text]
        made.append(item)
    return made


def scripts(sections: Sections) -> dict[str, int]:
    """Return the scripts that machines are to run, with the line of each."""
    return {
        pair.value: pair.line
        for entry in sections.entries.get("_VMS_", [])
        for pair in _quiet_pairs(sections, entry)
        if pair.key.lower() == "script"
    }


def _quiet_pairs(sections: Sections, entry: Entry) -> Iterator[Entry]:
    """As `_pairs`, without telling again what is wrong."""
    return _pairs(Sections(sections.file, sections.entries), entry)
