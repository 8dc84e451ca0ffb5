# SPDX-License-Identifier: Apache-2.0
"""A YAML file as plain data, with the position of every value.

The file is hostile until checked: kind, size, encoding, depth, aliases and tags are checked before
any value is built. Anchors, tags and a second document are refused, because no file needs them. The
work for a file is linear in its size: beyond MAX_PROBLEMS, problems are only counted.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from nearmetal.core.errors import MAX_PROBLEMS, NearmetalError, Problem, SpecError
from nearmetal.core.files import read_named

MAX_BYTES = 1 << 20
MAX_DEPTH = 16
MAX_VALUES = 100_000
"""Keys and values of a file: YAML takes much longer to read than any other part of it."""

Key = str | int
Value = None | bool | int | float | str | list["Value"] | dict[str, "Value"]
Position = tuple[int, int]

_INT = re.compile(r"[-+]?(0|[1-9][0-9]{0,17})")
_FLOAT = re.compile(r"[-+]?[0-9]{1,15}\.[0-9]{0,15}([eE][-+]?[0-9]{1,3})?")
_KEY_SHOWN = 100
_START = "start from an example of its manual page"
_WORDS: dict[str, bool | None] = {
    "": None,
    "~": None,
    "null": None,
    "true": True,
    "false": False,
}


@dataclass
class Document:
    """Data, and the position of each value and each key by its path, 1-based."""

    file: str
    data: Value = None
    positions: dict[tuple[Key, ...], Position] = field(default_factory=dict)
    keys: dict[tuple[Key, ...], Position] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    more: int = 0
    """Problems that are only counted."""

    @property
    def full(self) -> bool:
        """Whether a further problem would only be counted."""
        return len(self.problems) >= MAX_PROBLEMS

    def complain(self, position: Position, what: str, why: str, hint: str = "") -> None:
        """Note one problem."""
        if self.full:
            self.more += 1
        else:
            self.problems.append(Problem(self.file, *position, what, why, hint))

    def refuse(self, path: tuple[Key, ...], why: str, hint: str = "", *, what: str = "") -> None:
        """Note one problem of the value at a path; `what` is its name in the message."""
        self.complain(self.where(path), what or dotted(path), why, hint)

    def refuse_problems(self) -> None:
        """Raise SpecError if there is any problem."""
        if self.problems:
            raise SpecError(self.problems, self.more)

    def where(self, path: tuple[Key, ...]) -> Position:
        """Return the position of a value, or of the closest thing around it."""
        while path and path not in self.positions:
            path = path[:-1]
        return self.positions.get(path, (1, 1))

    def value(self, path: tuple[Key, ...]) -> Any:
        """Return the value at a path that exists."""
        value: Any = self.data
        for key in path:
            value = value[key]
        return value


def dotted(path: tuple[Key, ...]) -> str:
    """Return a path as people write it, for example hosts[0].name."""
    keys = (key[:_KEY_SHOWN] if isinstance(key, str) else key for key in path)
    text = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in keys)
    return text.removeprefix(".") or "the file"


def _mark(mark: Any) -> Position:
    return (1, 1) if mark is None else (mark.line + 1, mark.column + 1)


def read_text(path: Path, what: str, examples: Path | None = None) -> str:
    """Read a file that a user wrote; `what` names its kind. Raises NearmetalError or SpecError.

    `examples` is a directory with files of this kind.
    """
    document = Document(str(path))
    try:
        raw = read_named(path, MAX_BYTES)
    except OSError as error:
        if error.errno == errno.EFBIG:
            document.complain((1, 1), "the file is too large", f"{what} has at most 1 MiB")
            raise SpecError(document.problems) from error
        more = f"; examples are in {examples}" if examples else ""
        hint = f"give the path of {what}{more}"
        raise NearmetalError(f"cannot read {path}: {error.strerror}", hint) from error
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        column = error.start - (raw.rfind(b"\n", 0, error.start) + 1) + 1
        why = f"byte 0x{raw[error.start]:02x} does not start a character"
        document.complain((line, column), "the file is not UTF-8", why, "save it as UTF-8")
        raise SpecError(document.problems) from error
    return text.removeprefix("\ufeff")


def _events(document: Document, text: str) -> Iterator[Any]:
    """Yield the events of a file, up to the bound of its values."""
    values = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        values += isinstance(event, yaml.NodeEvent)
        if values > MAX_VALUES:
            why = f"a file has at most {MAX_VALUES} keys and values"
            document.complain(_mark(event.start_mark), "too many values", why, "split the file")
            return
        yield event


def _scan(document: Document, text: str) -> None:
    """Check the event stream before anything is built."""
    depth = documents = 0
    for event in _events(document, text):
        position = _mark(event.start_mark)
        if isinstance(event, yaml.DocumentStartEvent):
            documents += 1
            if documents > 1:
                why = "a file has one document"
                document.complain(position, "a second document", why, "split the file at ---")
                return
        elif isinstance(event, yaml.AliasEvent):
            why = "aliases are not supported here"
            document.complain(position, f"alias *{event.anchor}", why, "write the value out")
        elif isinstance(event, yaml.NodeEvent) and event.anchor:
            why = "anchors are not supported here"
            document.complain(position, f"anchor &{event.anchor}", why, "remove it")
        if isinstance(event, yaml.CollectionStartEvent | yaml.ScalarEvent) and event.tag:
            why = "tags are not supported here"
            document.complain(position, f"tag {event.tag}", why, "remove it")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > MAX_DEPTH:
                why = f"a file has at most {MAX_DEPTH} levels"
                document.complain(position, "nested too deep", why)
                return
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def _tabs(document: Document, text: str) -> None:
    """Report each line with a tab in its indentation: the message of YAML is hard to understand."""
    for number, line in enumerate(text.splitlines(), 1):
        indent = line[: len(line) - len(line.lstrip())]
        if "\t" in indent and line.strip():
            column = indent.index("\t") + 1
            why = "YAML allows only spaces there"
            document.complain((number, column), "a tab in the indentation", why, "use spaces")


def _scalar(node: yaml.ScalarNode) -> Value:
    text = str(node.value)
    if node.style in ("'", '"', "|", ">"):
        return text
    if text in _WORDS:
        return _WORDS[text]
    if _INT.fullmatch(text):
        return int(text)
    return float(text) if _FLOAT.fullmatch(text) else text


def _build(document: Document, node: yaml.Node, path: tuple[Key, ...]) -> Value:
    document.positions[path] = _mark(node.start_mark)
    if isinstance(node, yaml.SequenceNode):
        return [_build(document, item, (*path, i)) for i, item in enumerate(node.value)]
    if isinstance(node, yaml.MappingNode):
        result: dict[str, Value] = {}
        for key_node, value_node in node.value:
            position = _mark(key_node.start_mark)
            if not isinstance(key_node, yaml.ScalarNode):
                document.complain(position, "a key that is not a word", "keys are plain words")
                continue
            key = str(key_node.value)
            if key in result:
                line = document.keys[*path, key][0]
                why = f"line {line} has the same key"
                document.complain(
                    position, f"duplicate key {key[:_KEY_SHOWN]!r}", why, "remove one of them"
                )
                continue
            document.keys[*path, key] = position
            result[key] = _build(document, value_node, (*path, key))
        return result
    assert isinstance(node, yaml.ScalarNode)  # noqa: S101 - YAML has three kinds of nodes
    return _scalar(node)


def parse(text: str, file: str, what: str) -> Document:
    """Parse a file that must be one mapping; raises SpecError if its form is wrong."""
    document = Document(file)
    _tabs(document, text)
    node = None
    if not document.problems:
        try:
            _scan(document, text)
            node = None if document.problems else yaml.compose(text, Loader=yaml.SafeLoader)
        except yaml.MarkedYAMLError as error:
            why = " ".join(filter(None, (error.problem, error.context)))
            document.complain(_mark(error.problem_mark), "not valid YAML", why)
        except yaml.reader.ReaderError as error:
            line = text.count("\n", 0, error.position) + 1
            document.complain((line, 1), "not valid YAML", f"character #x{error.character:04x}")
    if node is not None:
        document.data = _build(document, node, ())
        if not isinstance(document.data, dict):
            why = f"{what} consists of `key: value` lines"
            document.complain((1, 1), "not a mapping", why, _START)
    elif not document.problems:
        document.complain((1, 1), "the file is empty", f"{what} was expected", _START)
    document.refuse_problems()
    return document
