# SPDX-License-Identifier: Apache-2.0
"""A YAML file as plain data plus the position of every value; refuses what a spec never needs.

The file is hostile until checked: size, encoding, depth, aliases, tags and duplicate keys are
looked at before any value is built.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import yaml

from nearmetal.core.errors import NearmetalError, Problem, SpecError

if TYPE_CHECKING:
    from pathlib import Path

MAX_BYTES = 1 << 20
MAX_DEPTH = 16

Key = str | int
Value = None | bool | int | float | str | list["Value"] | dict[str, "Value"]
Position = tuple[int, int]

_INT = re.compile(r"[-+]?(0|[1-9][0-9]{0,17})")
_FLOAT = re.compile(r"[-+]?[0-9]{1,15}\.[0-9]{0,15}([eE][-+]?[0-9]{1,3})?")
_WORDS: dict[str, bool | None] = {
    "": None,
    "~": None,
    "null": None,
    "true": True,
    "false": False,
}


@dataclass
class Document:
    """Data, and where each value (by its path) and each key stands, 1-based."""

    file: str
    data: Value = None
    positions: dict[tuple[Key, ...], Position] = field(default_factory=dict)
    keys: dict[tuple[Key, ...], Position] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def complain(self, position: Position, what: str, why: str, hint: str = "") -> None:
        """Note one problem."""
        self.problems.append(Problem(self.file, *position, what, why, hint))

    def where(self, path: tuple[Key, ...]) -> Position:
        """Return the position of a value, or of the closest thing around it."""
        while path and path not in self.positions:
            path = path[:-1]
        return self.positions.get(path, (1, 1))


def _mark(mark: Any) -> Position:
    return (1, 1) if mark is None else (mark.line + 1, mark.column + 1)


def read_text(path: Path) -> str:
    """Read a spec file; raises NearmetalError or SpecError with the reason."""
    name = str(path)
    try:
        with path.open("rb") as stream:
            raw = stream.read(MAX_BYTES + 1)
    except OSError as error:
        msg = f"cannot read {name}: {error.strerror}"
        raise NearmetalError(msg, "give the path of a cluster spec, see examples/") from error
    if len(raw) > MAX_BYTES:
        why = "a cluster spec is never larger than 1 MiB"
        raise SpecError([Problem(name, 1, 1, "the file is too large", why, "is it another file?")])
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        column = error.start - (raw.rfind(b"\n", 0, error.start) + 1) + 1
        problem = Problem(
            name,
            line,
            column,
            "the file is not UTF-8",
            f"byte 0x{raw[error.start]:02x} starts no character",
            "save it as UTF-8",
        )
        raise SpecError([problem]) from error
    return text.removeprefix("\ufeff")


def _scan(document: Document, text: str) -> None:
    """Look at the event stream before anything is built."""
    depth = documents = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        position = _mark(event.start_mark)
        if isinstance(event, yaml.DocumentStartEvent):
            documents += 1
            if documents > 1:
                why = "a spec describes one cluster"
                document.complain(position, "a second document", why, "split the file at ---")
                return
        elif isinstance(event, yaml.AliasEvent):
            why = "aliases are not supported in a spec"
            document.complain(position, f"alias *{event.anchor}", why, "write the value out")
        elif isinstance(event, yaml.NodeEvent) and event.anchor:
            why = "anchors are not supported in a spec"
            document.complain(position, f"anchor &{event.anchor}", why, "remove it")
        if isinstance(event, yaml.CollectionStartEvent | yaml.ScalarEvent) and event.tag:
            why = "tags are not supported in a spec"
            document.complain(position, f"tag {event.tag}", why, "remove it")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > MAX_DEPTH:
                why = f"a spec has at most {MAX_DEPTH} levels"
                document.complain(position, "nested too deep", why)
                return
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def _tabs(document: Document, text: str) -> None:
    """Report each line that is indented by a tab: YAML forbids it and names it badly."""
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
                document.complain(position, "a key that is no word", "keys are plain words")
                continue
            key = str(key_node.value)
            if key in result:
                line = document.keys[*path, key][0]
                why = f"it stands already in line {line}"
                document.complain(position, f"duplicate key {key!r}", why, "remove one of them")
                continue
            document.keys[*path, key] = position
            result[key] = _build(document, value_node, (*path, key))
        return result
    assert isinstance(node, yaml.ScalarNode)  # noqa: S101 - YAML has three kinds of nodes
    return _scalar(node)


def parse(text: str, file: str) -> Document:
    """Parse one YAML document; raises SpecError when its form is wrong."""
    document = Document(file)
    _tabs(document, text)
    if not document.problems:
        try:
            _scan(document, text)
            node = None if document.problems else yaml.compose(text, Loader=yaml.SafeLoader)
        except yaml.MarkedYAMLError as error:
            why = " ".join(filter(None, (error.problem, error.context)))
            document.complain(_mark(error.problem_mark), "not valid YAML", why)
            node = None
        except yaml.reader.ReaderError as error:
            line = text.count("\n", 0, error.position) + 1
            document.complain((line, 1), "not valid YAML", f"character #x{error.character:04x}")
            node = None
        if node is not None:
            document.data = _build(document, node, ())
        elif not document.problems:
            document.complain(
                (1, 1),
                "the file is empty",
                "a spec needs version, name, backend, hosts",
                "start from a file in examples/",
            )
    if document.problems:
        raise SpecError(document.problems)
    return document
