# SPDX-License-Identifier: Apache-2.0
"""YAML files of any model: read, checked against a model, every problem with file and line."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ValidationError

from nearmetal.config.document import MAX_BYTES, Document, Key, parse
from nearmetal.core.errors import NearmetalError, SpecError

if TYPE_CHECKING:
    from pathlib import Path

    from pydantic_core import ErrorDetails

_Model = TypeVar("_Model", bound=BaseModel)


def load_yaml(path: Path, model: type[_Model], what: str) -> tuple[_Model, Document]:
    """Read a file; `what` names it in messages. Raises NearmetalError or SpecError."""
    try:
        with path.open("rb") as stream:
            raw = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise NearmetalError(f"cannot read {path}: {error.strerror}", f"give {what}") from error
    if len(raw) > MAX_BYTES:
        raise NearmetalError(f"{path}: larger than 1 MiB", f"{what} is never so large")
    try:
        text = raw.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise NearmetalError(f"{path}:{line}: not UTF-8", f"save {what} as UTF-8") from error
    return parse_yaml(text, str(path), model, what)


def parse_yaml(text: str, file: str, model: type[_Model], what: str) -> tuple[_Model, Document]:
    """Check a text; raises SpecError with all problems."""
    if not text.strip():
        raise NearmetalError(f"{file}:1: the file is empty", f"{what} was expected")
    document = parse(text, file)
    if not isinstance(document.data, dict):
        document.complain((1, 1), "not a mapping", f"{what} is made of `key: value` lines")
        raise SpecError(document.problems)
    try:
        return model.model_validate(document.data), document
    except ValidationError as error:
        for detail in error.errors(include_url=False):
            _explain(document, model, detail)
    raise SpecError(document.problems)


def _dotted(path: tuple[Key, ...]) -> str:
    text = ""
    for key in path:
        text += f"[{key}]" if isinstance(key, int) else f".{key}" if text else str(key)
    return text or "the file"


def _fields(model: type[BaseModel], path: tuple[Key, ...]) -> list[str]:
    """Return the keys known at a path: a hint, so an odd annotation gives none."""
    schema: Any = model.model_json_schema()
    definitions = schema.get("$defs", {})
    for key in path:
        inner = schema.get("items" if isinstance(key, int) else "properties", {})
        schema = inner if isinstance(key, int) else inner.get(key, {})
        schema = schema or {}
        if "additionalProperties" in schema and isinstance(schema["additionalProperties"], dict):
            schema = {"properties": {}, "any": schema["additionalProperties"]}
        schema = schema.get("any", schema)
        schema = definitions.get(str(schema.get("$ref", "")).rpartition("/")[2], schema)
    return list(schema.get("properties", {}))


def _explain(document: Document, model: type[BaseModel], detail: ErrorDetails) -> None:
    location: tuple[Key, ...] = tuple(detail["loc"])
    if detail["type"] == "extra_forbidden":
        known = _fields(model, location[:-1])
        close = difflib.get_close_matches(str(location[-1]), known, 1)
        hint = f"did you mean {close[0]!r}?" if close else f"known here: {', '.join(known)}"
        position = document.keys.get(location, document.where(location))
        document.complain(
            position,
            f"unknown key {_dotted(location)!r}",
            "it has no meaning here",
            hint if known else "",
        )
        return
    if detail["type"] == "missing":
        document.complain(
            document.where(location[:-1]), f"{_dotted(location)} is missing", "it is required"
        )
        return
    path = tuple(
        key for key in location if (*location[: location.index(key)], key) in document.positions
    )
    reason = detail.get("ctx", {}).get("error")  # our own: "why|hint"
    why, _, hint = str(reason).partition("|") if reason else (detail["msg"], "", "")
    document.complain(document.where(path), _dotted(path), why.lower(), hint)
