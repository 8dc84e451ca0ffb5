# SPDX-License-Identifier: Apache-2.0
"""From a file to a ClusterSpec, or to every problem in it at once."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any, get_args

from pydantic import BaseModel, ValidationError

from nearmetal.cluster.model import ClusterSpec
from nearmetal.cluster.registration import backend_names, registration, specs
from nearmetal.config.document import Document, Key, Position, Value, parse, read_text
from nearmetal.core.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pydantic_core import ErrorDetails

_DEFAULT = "local"
"""The backend whose model checks a spec that names no backend."""


def load_spec(path: Path) -> ClusterSpec:
    """Read and check a cluster spec; raises NearmetalError or SpecError."""
    return parse_spec(read_text(path), str(path))


def parse_spec(text: str, file: str = "<spec>") -> ClusterSpec:
    """Check the text of a cluster spec; raises SpecError with all problems."""
    document = parse(text, file)
    if not isinstance(document.data, dict):
        document.complain(
            (1, 1),
            "not a mapping",
            "a spec is made of `key: value` lines",
            "start from a file in examples/",
        )
        raise SpecError(document.problems)
    spec = None
    model = _model_of(document)
    try:
        spec = model.model_validate(document.data)
    except ValidationError as error:
        for detail in error.errors(include_url=False):
            _explain(document, detail, model)
    _check_names(document)
    _check_cpus(document)
    for finding in spec.findings() if spec else ():
        document.complain(document.where(finding.path), finding.text, finding.why, finding.hint)
    if spec is None or document.problems:
        raise SpecError(document.problems)
    return spec


def _model_of(document: Document) -> type[ClusterSpec]:
    """Return the model of the backend that the document names; any one when it names none."""
    assert isinstance(document.data, dict)  # noqa: S101 - parse_spec checked it
    named = document.data.get("backend")
    known = isinstance(named, str) and named in backend_names()
    model: type[ClusterSpec] = registration(str(named) if known else _DEFAULT).spec
    return model


def _known_keys(path: tuple[Key, ...], model: Any) -> list[str]:
    """Return the keys the part at `path` of a model has; [] where there is no such part."""
    for key in path:
        if isinstance(key, int):
            continue
        if key not in model.model_fields:
            return []
        annotation = model.model_fields[key].annotation
        while not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
            arguments = [a for a in get_args(annotation) if not isinstance(a, str)]
            if not arguments:
                return []
            annotation = arguments[0]
        model = annotation
    return list(model.model_fields)


def _value(document: Document, path: tuple[Key, ...]) -> Value:
    value: Any = document.data
    for key in path:
        value = value[key]
    return value  # type: ignore[no-any-return]


def _dotted(path: tuple[Key, ...]) -> str:
    text = ""
    for key in path:
        text += f"[{key}]" if isinstance(key, int) else f".{key}" if text else str(key)
    return text


def _in_document(document: Document, location: tuple[Key, ...]) -> tuple[Key, ...]:
    """Drop from pydantic's location what names a branch of a union."""
    path: tuple[Key, ...] = ()
    for key in location:
        if (*path, key) in document.positions:
            path = (*path, key)
    return path


def _explain(document: Document, detail: ErrorDetails, model: type[ClusterSpec]) -> None:
    """Turn one of pydantic's errors into a Problem in the file's terms."""
    location: tuple[Key, ...] = tuple(detail["loc"])
    kind = detail["type"]
    if kind == "extra_forbidden":
        key, parent = str(location[-1]), location[:-1]
        known = _known_keys(parent, model)
        close = difflib.get_close_matches(key, known, 1)
        hint = f"did you mean {close[0]!r}?" if close else f"known here: {', '.join(known)}"
        what = f"unknown key {_dotted(location)!r}"
        others = [word for word, other in specs().items() if key in _known_keys(parent, other)]
        why = f"only `backend: {others[0]}` has it" if others else "a spec has no such key"
        document.complain(document.keys[location], what, why, hint)
        return
    if kind == "missing":
        what = f"{_dotted(location)} is missing"
        document.complain(document.where(location[:-1]), what, "it is required")
        return
    path = _in_document(document, location)
    if any(
        p.line == document.where(path)[0] and p.what.startswith(_dotted(path) + " ")
        for p in document.problems
    ):
        return  # the other branch of the same union
    value = _value(document, path)
    what = f"{_dotted(path)} {'' if 'password' in path else _shown(value)}"
    why, _, hint = _reason(detail, value, model.mixed).partition("|")
    document.complain(document.where(path), what.strip(), why, hint)


def _shown(value: Value) -> str:
    if isinstance(value, dict | list):
        return ""
    text = "null" if value is None else str(value)
    return repr(text if len(text) <= 40 else text[:37] + "...")  # noqa: PLR2004 - a line's room


def _wrong_word(location: tuple[Key, ...], expected: str, mixed: Mapping[str, str]) -> str:
    key = str(location[-1])
    if not key.startswith("literal["):
        if key == "backend":
            expected = " or ".join(repr(word) for word in backend_names())
        return f"is not supported|this release knows {key}: {expected}"
    words = (mixed[str(part)] for part in location if part in mixed)
    return next(words, "is no list of cores|write auto, or for example [0, 1]")


def _reason(detail: ErrorDetails, value: Value, mixed: Mapping[str, str]) -> str:
    """Return "why|hint"."""
    kind, context = detail["type"], detail.get("ctx", {})
    if kind == "value_error":
        return str(context.get("error", detail["msg"]))
    if kind in ("greater_than_equal", "less_than_equal"):
        bound = context.get("ge", context.get("le"))
        word = "at least" if kind == "greater_than_equal" else "at most"
        negative = isinstance(value, int | float) and value < 0
        return f"{'is negative' if negative else 'is out of range'}|use {word} {bound}"
    if kind == "literal_error":
        return _wrong_word(tuple(detail["loc"]), str(context["expected"]), mixed)
    if kind == "string_pattern_mismatch":
        return "is no valid name|use a-z, 0-9 and -, starting with a letter, at most 31 characters"
    if kind == "string_type":
        return f"is no text|write it in quotes: '{value}'" if value is not None else "is empty|"
    if kind in ("int_type", "int_from_float"):
        return "is no whole number|write for example 2, without quotes"
    if kind == "too_short":
        return "is empty|it needs at least one entry"
    return f"{detail['msg'].lower()}|"


def _each(value: Value, path: tuple[Key, ...]) -> list[tuple[tuple[Key, ...], dict[str, Value]]]:
    if not isinstance(value, list):
        return []
    return [((*path, i), item) for i, item in enumerate(value) if isinstance(item, dict)]


def _all_nodes(document: Document) -> list[tuple[tuple[Key, ...], dict[str, Value]]]:
    assert isinstance(document.data, dict)  # noqa: S101 - parse_spec checked it
    hosts = _each(document.data.get("hosts"), ("hosts",))
    return [n for path, host in hosts for n in _each(host.get("nodes"), (*path, "nodes"))]


def _check_names(document: Document) -> None:
    """Host and node names must be unique; looked up in the raw data, beside other problems."""
    assert isinstance(document.data, dict)  # noqa: S101 - parse_spec checked it
    groups = {
        "host": _each(document.data.get("hosts"), ("hosts",)),
        "node": _all_nodes(document),
    }
    for kind, entries in groups.items():
        seen: dict[str, Position] = {}
        for path, entry in entries:
            name = entry.get("name")
            if not isinstance(name, str):
                continue
            position = document.where((*path, "name"))
            if name in seen:
                why = f"line {seen[name][0]} has one of that name"
                document.complain(position, f"duplicate {kind} {name!r}", why, "rename one")
            seen.setdefault(name, position)


def _check_cpus(document: Document) -> None:
    for path, node in _all_nodes(document):
        cpus = node.get("cpus")
        if not isinstance(cpus, list):
            continue
        seen: set[int] = set()
        for i, cpu in enumerate(cpus):
            if isinstance(cpu, int) and cpu in seen:
                position = document.where((*path, "cpus", i))
                document.complain(position, f"core {cpu}", "is listed twice", "remove one")
            elif isinstance(cpu, int):
                seen.add(cpu)
