# SPDX-License-Identifier: Apache-2.0
"""The machines and switches of a cluster file: macros replaced, one item per value of a range.

Words are read from left to right. A later word overrides an earlier one, in a section and in the
line itself. Of some keys every value counts (APPENDED).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from nearmetal.cluster.backends.vsphere.vhpc.ranges import (
    PLACEHOLDER,
    Range,
    parse_range,
    spread,
)
from nearmetal.cluster.backends.vsphere.vhpc.text import (
    APPENDED,
    MACHINE_KEYS,
    ORDER_KEYS,
    RANGE_KEYS,
    RESERVED,
    SECRET_KEYS,
    SWITCH_KEYS,
    KeyValue,
    Sections,
    Value,
    read_value,
)

_BRACES = (*RANGE_KEYS, *SECRET_KEYS, "script")
"""Keys whose values may have braces."""


@dataclass(frozen=True)
class Given:
    """A value and its line."""

    value: Value
    line: int


@dataclass
class VhpcItem:
    """One machine or one switch of the file."""

    sections: Sections
    name: str
    line: int
    given: dict[str, Given] = field(default_factory=dict)
    hosts: list[str] = field(default_factory=list)
    """Of a switch: the hosts in its range."""
    scripts: dict[str, list[tuple[str, int]]] = field(default_factory=dict)
    """The scripts of a machine with their lines, by step; "": those without a step."""

    def value(self, key: str) -> Value | None:
        """Return a value; None for a key that is not given."""
        return self.given[key].value if key in self.given else None

    def items(self, key: str) -> list[str]:
        """Return the values of a key that may have several; [] for a key that is not given."""
        value = self.value(key)
        return value if isinstance(value, list) else []

    def text(self, key: str) -> str | None:
        """Return a value as text; None for a key that is not given."""
        return str(self.given[key].value) if key in self.given else None

    def complain(self, key: str, what: str, why: str, hint: str) -> None:
        """Add a problem at the line of a key, or of the item where the key is not given."""
        self.sections.complain(self._line_of(key), what, why, hint)

    def note(self, key: str, text: str, at: str = "") -> None:
        """Add a note about a key, at its line or at that of the key `at`."""
        self.sections.note(self._line_of(at or key), key, text)

    def _line_of(self, key: str) -> int:
        return self.given[key].line if key in self.given else self.line


def _like(word: str, known: Iterable[str], otherwise: str) -> str:
    close = difflib.get_close_matches(word[:100], sorted(known), 1)
    return f"did you mean {close[0]!r}?" if close else otherwise


def _pairs(sections: Sections, entry: KeyValue) -> Iterator[KeyValue]:
    """Yield every key with its value, the last of a key counts."""
    tight = re.sub(r"(?<!\s)\s*([:,])\s*", r"\1", entry.value)
    for word in re.findall(r"(?:\[[^\]]*\]?|[^\s\[])+", tight):
        sections.count(entry.line)
        key, colon, value = word.partition(":")
        if word in RESERVED and word in sections.entries:
            why = "it describes machines or switches"
            sections.complain(entry.line, f"section {word} as a macro", why, "use another section")
        elif word in sections.entries:
            # A key without a value in a section has no meaning.
            yield from (e for e in sections.entries[word] if e.value)
        elif not colon:
            why = "is neither a section nor key: value"
            names = () if sections.full else (*sections.entries, *MACHINE_KEYS)
            hint = _like(word, names, "write a section, or key: value")
            sections.complain(entry.line, f"{word!r}", why, hint)
        elif value:
            yield KeyValue(key, value, entry.line)


def _collect(sections: Sections, entry: KeyValue, known: frozenset[str]) -> VhpcItem:
    item = VhpcItem(sections, entry.key, entry.line)
    for pair in _pairs(sections, entry):
        sections.count(entry.line)
        key = pair.key.lower()
        shown = key if key in SECRET_KEYS else f"{key}: {pair.value[:60]}"
        if key not in known:
            otherwise = f"known here: {', '.join(sorted(known))}"
            hint = "" if sections.full else _like(key, known, otherwise)
            sections.complain(pair.line, f"unknown key {key!r}", "it has no meaning here", hint)
        elif key not in _BRACES and "{" in pair.value:
            hint = f"ranges are for {', '.join(RANGE_KEYS)} and names"
            why = f"this key does not take a range|{hint}"
            why, _, hint = (PLACEHOLDER if "${" in pair.value else why).partition("|")
            sections.complain(pair.line, shown, why, hint)
        else:
            with sections.complaining(pair.line, shown):
                _add(item, key, pair)
    return item


def _add(item: VhpcItem, key: str, pair: KeyValue) -> None:
    """Add a value to an item; raises ValueError "why|hint"."""
    value = read_value(key, pair.value)
    if key in APPENDED:
        value = [*item.items(key), pair.value]
    item.given[key] = Given(value, pair.line)
    if key == "script":
        item.scripts.setdefault("", []).append((pair.value, pair.line))
    elif key in ORDER_KEYS:
        before = item.scripts.pop("", None)
        if before is None:
            item.note(key, f"{pair.value} has no effect: there is no script before it")
        else:
            item.scripts.setdefault(pair.value, []).extend(before)


def machines(sections: Sections) -> list[VhpcItem]:
    """Return the machines of [_VMS_], one for each name."""
    made: list[VhpcItem] = []
    for entry in sections.entries.get("_VMS_", []):
        item = _collect(sections, entry, MACHINE_KEYS)
        what = f"name {item.name[:60]}"
        with sections.complaining(item.line, what):
            names = _range(item, item.name, item.name)
            if names is not None and names.block:
                raise ValueError("each machine has its own name|write {x:y} with single braces")
            made += _one_each(item, names)
    seen: dict[str, int] = {}
    for item in made:
        if seen.setdefault(item.name, item.line) != item.line:
            why = f"line {seen[item.name]} has a machine of this name"
            sections.complain(item.line, f"machine {item.name!r} twice", why, "rename one")
    return made


def _range(item: VhpcItem, key: str, text: str) -> Range | None:
    """Return the range in a text, with a note on leading zeros; raises ValueError "why|hint"."""
    found = parse_range(text)
    if found is not None and found.padded:
        text = f"the numbers of {text} have no leading zeros: the first is {found.values[0]}"
        item.note("range", text, at=key)
    return found


def _one_each(item: VhpcItem, names: Range | None) -> list[VhpcItem]:
    """Return one item per machine of a line."""
    values = names.values if names else (item.name,)
    for _ in values:
        item.sections.count(item.line)
    items = [replace(item, name=name, given=dict(item.given)) for name in values]
    for key in (key for key in RANGE_KEYS if key in item.given):
        text, line = str(item.given[key].value), item.given[key].line
        with item.sections.complaining(line, f"{key}: {text[:60]} of {item.name}"):
            found = _range(item, key, text)
            if found is None:
                continue
            if names is None:
                hint = "give the name a range, too"
                raise ValueError(f"is a range, and {item.name} is one machine|{hint}")
            for one, value in zip(items, spread(found, len(items)), strict=True):
                one.given[key] = Given(value, line)
    return items


def switches(sections: Sections, section: str) -> list[VhpcItem]:
    """Return the switches of [_SVS_] or [_DVS_] with their hosts."""
    made = []
    for entry in sections.entries.get(section, []):
        item = _collect(sections, entry, SWITCH_KEYS)
        with sections.complaining(item.line, f"switch {item.name[:60]}"):
            if parse_range(item.name) is not None:
                raise ValueError("its name has a range|write one line for each switch")
            made.append(item)
        item.name = item.text("name") or item.name
        text = item.text("host")
        if text is None:
            continue
        with sections.complaining(item.given["host"].line, f"host: {text[:60]} of {item.name}"):
            hosts = _range(item, "host", text)
            if hosts is not None and hosts.block:
                raise ValueError("a switch takes each host once|write {x:y}")
            item.hosts = list(hosts.values) if hosts else [text]
    return made
