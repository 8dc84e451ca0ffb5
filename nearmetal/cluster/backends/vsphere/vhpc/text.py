# SPDX-License-Identifier: Apache-2.0
"""The text of a cluster file: sections, keys with their values, and ranges. Nothing is evaluated.

Sections are read as Python's configparser reads them, which vhpc-toolkit uses: `:` or `=` after a
key, comments by `#` or `;` at the start of a line, indented lines continue the value before. Names
may hold a range, so in the sections of machines and switches a `:` within braces ends no key.

A file is hostile until read: the length of a value and the number of settings are bounded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from nearmetal.core.errors import MAX_PROBLEMS, Problem, SpecError

MAX_VALUE = 4096
"""Characters of a value with its further lines."""

MAX_SETTINGS = 100_000
_LONG = f"it has more than {MAX_VALUE} characters"

RESERVED = ("_VMS_", "_SVS_", "_DVS_")
"""Sections that describe machines and switches; all others are macros for them."""


@dataclass(frozen=True)
class KeyValue:
    """One `key: value`."""

    key: str
    value: str
    line: int


@dataclass
class Sections:
    """A file by its sections, its problems, and notes for the user, each once."""

    file: str
    entries: dict[str, list[KeyValue]] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    notes: dict[str, None] = field(default_factory=dict)
    more: int = 0
    """Problems that are only counted."""
    keys: dict[tuple[str, str], int] = field(default_factory=dict)
    """The line of each key, by its section."""
    settings: int = 0
    """Settings of all machines and switches so far."""

    @property
    def full(self) -> bool:
        """Whether a further problem would only be counted."""
        return len(self.problems) >= MAX_PROBLEMS

    def complain(self, line: int, what: str, why: str, hint: str = "") -> None:
        """Add one problem."""
        if self.full:
            self.more += 1
        else:
            self.problems.append(Problem(self.file, line, 1, what, why, hint))

    def refuse_problems(self) -> None:
        """Raise SpecError if there is any problem."""
        if self.problems:
            raise SpecError(self.problems, self.more)

    def count(self, line: int) -> None:
        """Count one more setting; raises SpecError if a file names sections again and again."""
        self.settings += 1
        if self.settings > MAX_SETTINGS:
            self.problems.clear()
            self.complain(line, f"more than {MAX_SETTINGS} settings", "no cluster has so many")
            self.refuse_problems()

    @contextmanager
    def complaining(self, line: int, what: str) -> Iterator[None]:
        """Turn a ValueError "why|hint" into a problem."""
        try:
            yield
        except ValueError as error:
            why, _, hint = str(error).partition("|")
            self.complain(line, what, why, hint)

    def note(self, line: int, what: str, text: str) -> None:
        """Add a note about a line, 0 for the whole file."""
        note = f"{self.file}{f':{line}' if line else ''}: {what}: {text}"
        self.notes.setdefault(note)


def split_entry(line: str, *, names: bool) -> tuple[str, str] | None:
    """Return key and value of a line; None when nothing divides them."""
    depth = 0
    for i, character in enumerate(line):
        if names and character in "{}":
            depth += 1 if character == "{" else -1
        elif character in ":=" and depth == 0:
            if names and re.match(r"\d*\s*\}", line[i + 1 :].lstrip()):
                return None  # the colon of a range whose brace was never opened
            return line[:i].strip(), line[i + 1 :].strip()
    return None


def _header(sections: Sections, line: str, number: int) -> str | None:
    """Return the name of a section; None for an invalid one."""
    name = line[1:].partition("]")[0]
    if not re.fullmatch(r"\[[^\[\]]+\]", line):
        sections.complain(number, f"section {line[:40]!r}", "is not [NAME]", "close the bracket")
        return None
    if name == "DEFAULT":
        why = "its keys would be in every section, also as names of machines"
        sections.complain(number, "section [DEFAULT]", why, "give it another name")
        return None
    if name in sections.entries:
        sections.complain(number, f"section [{name}]", "occurs twice", "join the two")
    return name


def read_sections(text: str, file: str) -> Sections:
    """Read a file; reading continues after a problem."""
    sections = Sections(file)
    name: str | None = None
    last_indent, open_entry = 0, False
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if not line or line[0] in "#;":
            continue
        indent = len(raw) - len(raw.lstrip())
        if name is not None and open_entry and indent > last_indent:
            _join(sections, name, line, number)
            continue
        open_entry = False
        if len(line) > MAX_VALUE:
            sections.complain(number, f"line {line[:40]!r}", _LONG, "split the file")
            continue
        if line.startswith("["):
            name = _header(sections, line, number)
            if name is not None:
                sections.entries.setdefault(name, [])
            continue
        parts = split_entry(line, names=name in RESERVED)
        if parts is None or not parts[0]:
            braces = bool(set("{}") & set(line))
            why = "a brace is not closed, or not opened" if braces else "it has no `key: value`"
            sections.complain(number, f"line {line[:40]!r}", why, "write for example cpu: 4")
        elif name is not None:
            _add(sections, name, KeyValue(*parts, number))
            last_indent, open_entry = indent, True
        elif not sections.problems:
            why = "it belongs to no section"
            sections.complain(number, "a key before any section", why, "begin with a line [BASE]")
    return sections


def _join(sections: Sections, name: str, line: str, number: int) -> None:
    """Add a line to the last value of a section."""
    before = sections.entries[name].pop()
    value = f"{before.value} {line}".strip()
    if len(value) > MAX_VALUE:
        sections.complain(number, f"value of {before.key[:40]!r}", _LONG, "split the file")
        value = before.value
    sections.entries[name].append(KeyValue(before.key, value, before.line))


def _add(sections: Sections, name: str, entry: KeyValue) -> None:
    if "%(" in entry.value:
        why = "interpolation of values is not supported"
        sections.complain(entry.line, f"{entry.key}: %(...)", why, "write the value out")
    first = sections.keys.setdefault((name, entry.key.lower()), entry.line)
    if first != entry.line:
        why = f"line {first} has it already"
        sections.complain(entry.line, f"{entry.key!r} twice in [{name}]", why, "remove one")
    sections.entries[name].append(entry)


# Keys and their values

_PLACES = {"datacenter", "datastore", "cluster", "host", "vm_folder", "resource_pool"}
_GUEST = {"guest_username", "guest_password", "guest_hostname", "script", "adapter_number"}
_ADDRESS = {"ip", "netmask", "gateway", "domain"}
_ADAPTERS = {"port_group", "vgpu", "sriov_port_group", "pvrdma_port_group", "pf", "dvs_name"}
_WHOLE = {"cpu", "cpu_shares", "memory_shares", "mmio_size", "barrier"}
_SWITCHES = {"cpu_reservation", "memory_reservation", "is_dhcp", "linked", "instant"}
_LISTS = {"device", "dns", "pnic"}

MACHINE_KEYS = frozenset(
    {"template", "latency", "power", "memory", "device", "dns"}
    | (_PLACES | _GUEST | _ADDRESS | _ADAPTERS | _WHOLE | _SWITCHES)
)
SWITCH_KEYS = frozenset({"port_group", "host", "pnic", "datacenter"})
RANGE_KEYS = ("host", "datastore", "ip", "guest_hostname")
SECRET_KEYS = ("guest_password",)
"""Keys whose values are neither shown nor kept."""

Value = str | int | float | bool | list[str]

_YES = ("yes", "y", "true", "t", "on", "1")
_NO = ("no", "n", "false", "f", "off", "0")
_ITEM = re.compile(r"\s*(?:'([^'\"\[\]]*)'|\"([^'\"\[\]]*)\"|([^'\",\[\]\s]+))\s*")


def read_value(key: str, text: str) -> Value:
    """Return a value with the type of its key; raises ValueError "why|hint"."""
    if key in _WHOLE:
        if not re.fullmatch(r"\d{1,9}", text):
            raise ValueError("is not a whole number|write for example 4")
        return int(text)
    if key == "memory":
        if not re.fullmatch(r"\d{1,9}(\.\d{1,6})?", text):
            raise ValueError("is not a number|write gigabytes, for example 16")
        return float(text)
    if key in _SWITCHES:
        if text.lower() not in _YES + _NO:
            raise ValueError("is neither yes nor no|write true or false")
        return text.lower() in _YES
    return _list(text) if key in _LISTS else text


def _list(text: str) -> list[str]:
    """Return the items of `['a', 'b']`, or the one item of `a`."""
    if not text.startswith("["):
        if any(c in text for c in "[]'\","):
            raise ValueError("is not a list|write ['a', 'b']")
        return [text]
    if not text.endswith("]"):
        raise ValueError("is a list without an end|write ['a', 'b']")
    items: list[str] = []
    for part in text[1:-1].split(",") if text[1:-1].strip() else []:
        match = _ITEM.fullmatch(part)
        item = next((g for g in match.groups() if g is not None), "") if match else ""
        if not item:
            raise ValueError("is not a list of quoted words|write ['a', 'b']")
        items.append(item)
    return items


# Ranges

MAX_VALUES = 1000

_RANGE = re.compile(
    r"(?P<before>[^{}]*)(?P<open>\{\{?)(?P<first>\d{1,9}):(?P<last>\d{1,9})(?P<close>\}\}?)"
    r"(?P<after>[^{}]*)"
)


@dataclass(frozen=True)
class Range:
    """The values of `{x:y}`, or of `{{x:y}}`: a block, so consecutive machines share a value."""

    values: tuple[str, ...]
    block: bool


def parse_range(text: str) -> Range | None:
    """Return the range in a text, None for a text without braces; raises ValueError "why|hint"."""
    if "{" not in text and "}" not in text:
        return None
    match = _RANGE.fullmatch(text)
    if match is None:
        raise ValueError(_wrong(text))
    if len(match["open"]) != len(match["close"]):
        raise ValueError("opens and closes with different braces|write {1:8}, or {{1:8}}")
    first, last = int(match["first"]), int(match["last"])
    if first > last:
        raise ValueError(f"goes down from {first} to {last}|write {{{last}:{first}}}")
    if last - first >= MAX_VALUES:
        raise ValueError(f"has {last - first + 1} values|a range has at most {MAX_VALUES}")
    values = tuple(f"{match['before']}{i}{match['after']}" for i in range(first, last + 1))
    return Range(values, block=match["open"] == "{{")


def _wrong(text: str) -> str:
    if text.count("{") != text.count("}"):
        return "has a brace that is not closed, or not opened|write {1:8}, or {{1:8}}"
    if "{{{" in text or "}}}" in text:
        return "has three braces in a row|write {1:8}, or {{1:8}}"
    inner = re.findall(r"\{([^{}]*)\}", text)
    if len(inner) > 1:
        return "has two ranges|a value has one; write the machines in two lines"
    if inner and re.fullmatch(r"-?\d*:-?\d*", "".join(inner[0].split())):
        return "lacks a number, has a blank in it, or is negative|write for example {1:8}"
    return "is not a range of numbers|write {1:8}, or {{1:8}}"


def spread(found: Range, nr_machines: int) -> list[str]:
    """Return one value per machine; raises ValueError "why|hint"."""
    nr_values = len(found.values)
    if nr_values > nr_machines:
        raise ValueError(f"has {nr_values} values for {nr_machines} machines|use a shorter range")
    if not found.block:
        return [found.values[i % nr_values] for i in range(nr_machines)]
    if nr_machines % nr_values:
        raise ValueError(
            f"has {nr_values} values for {nr_machines} machines, and each value needs the same "
            f"number of machines|use a divisor of {nr_machines}, or {{x:y}}, which takes the values in turn"
        )
    each = nr_machines // nr_values
    return [found.values[i // each] for i in range(nr_machines)]
