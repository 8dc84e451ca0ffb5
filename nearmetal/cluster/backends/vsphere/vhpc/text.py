# SPDX-License-Identifier: Apache-2.0
"""The text of a cluster file: sections, and keys with their values. Nothing is evaluated.

Sections are read as Python's configparser reads them, which vhpc-toolkit uses: `:` or `=` after a
key, comments by `#` or `;` at the start of a line, indented lines continue the value before. Names
may hold a range, so in the sections of machines and switches a `:` within braces ends no key. Names of
machines and switches keep their case, as from release 1.0; keys are read in any case.

A file is hostile until read: the length of a value and the number of settings are bounded.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

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
        """Add one problem, once."""
        problem = Problem(self.file, line, 1, what, why, hint)
        if self.full:
            self.more += 1
        elif problem not in self.problems:
            self.problems.append(problem)

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
    if not re.fullmatch(r"\[[^\[\]]+\](\s*[#;].*)?", line):
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
    for number, raw in enumerate(io.StringIO(text, newline=None), 1):
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
    if "%(" in entry.value.replace("%%", ""):
        why = "interpolation of values is not supported"
        sections.complain(entry.line, f"{entry.key}: %(...)", why, "write the value out")
    entry = replace(entry, value=entry.value.replace("%%", "%"))
    key = entry.key if name in RESERVED else entry.key.lower()
    first = sections.keys.setdefault((name, key), entry.line)
    if first != entry.line:
        why = f"line {first} has it already"
        sections.complain(entry.line, f"{entry.key!r} twice in [{name}]", why, "remove one")
    sections.entries[name].append(entry)


# Keys and their values

APPENDED = ("script", "pf", "sriov_port_group", "sriov_dvs_name")
"""Keys of which every value counts. Before release 1.0, only `script` was such a key."""

ORDER_KEYS = ("sequence", "barrier")
"""The step of the scripts before it; `barrier` is its name before release 1.0."""

_PLACES = {"datacenter", "datastore", "cluster", "host", "vm_folder", "resource_pool"}
_GUEST = {"guest_username", "guest_password", "guest_hostname", "adapter_number"}
_ADDRESS = {"ip", "netmask", "gateway", "domain"}
_ADAPTERS = {"port_group", "vgpu", "pvrdma_port_group", "dvs_name", "svs_name"}
_WHOLE = {"cpu", "cpu_shares", "memory_shares", "mmio_size", "cores_per_socket", "mtu"}
_SWITCHES = {"cpu_reservation", "memory_reservation", "is_dhcp", "linked", "instant"}
_SWITCHES |= {"secure_boot", "allow_guest_mtu_change"}
_LISTS = {"device", "dns", "pnic"}

MACHINE_KEYS = frozenset(
    {"template", "latency", "power", "memory", "device", "dns", *APPENDED, *ORDER_KEYS}
    | (_PLACES | _GUEST | _ADDRESS | _ADAPTERS | _WHOLE | _SWITCHES) - {"mtu"}
)
SWITCH_KEYS = frozenset({"name", "port_group", "host", "pnic", "datacenter", "mtu"})
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
        if not re.fullmatch(r"\d{1,9}(\.\d{0,6})?|\.\d{1,6}", text):
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
