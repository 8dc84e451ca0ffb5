# SPDX-License-Identifier: Apache-2.0
"""From a YAML file to a checked model, or to every problem in it: file, line, fault, reason, hint.

A validator gives its reason as "why|hint": what is wrong with the value, and what to write instead.
"""

from __future__ import annotations

import difflib
import types
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from nearmetal.config.document import Document, Key, dotted, parse, read_text
from nearmetal.config.model import NAME_PATTERN

_Checked = TypeVar("_Checked", bound=BaseModel)

_SHOWN = 40
_LONGEST = 100
"""Characters of a key that are compared with known keys: a comparison is quadratic in them."""

_WHOLE = "is not a whole number|write for example 2, without quotes"
_REASONS = {
    "int_type": _WHOLE,
    "int_from_float": _WHOLE,
    "float_type": "is not a number|write for example 1.5, without quotes",
    "bool_type": "is neither true nor false|write true or false, without quotes",
    "list_type": "is not a list|write for example [a, b]",
    "too_short": "is empty|add at least one entry",
    "string_too_short": "is empty|",
    "greater_than": "is out of range|use more than {gt}",
    "greater_than_equal": "is out of range|use at least {ge}",
    "less_than": "is out of range|use less than {lt}",
    "less_than_equal": "is out of range|use at most {le}",
    "string_pattern_mismatch": "is not valid|it must match {pattern}",
    "literal_error": "is not supported|use {expected}",
    "value_error": "{error}",
}
"""By pydantic's word for the error; every other error keeps pydantic's own sentence."""

_NAME = "is not a valid name|use a-z, 0-9 and '-', a letter first, at most 31 characters"


def load_yaml(path: Path, model: type[_Checked], what: str) -> tuple[_Checked, Document]:
    """Read and check a file; `what` names its kind. Raises NearmetalError or SpecError."""
    return parse_yaml(read_text(path, what), str(path), model, what)


def parse_yaml(text: str, file: str, model: type[_Checked], what: str) -> tuple[_Checked, Document]:
    """Check a text as a file; raises SpecError with all problems."""
    document = parse(text, file, what)
    found = check(document, model)
    document.refuse_problems()
    assert found is not None  # noqa: S101 - it is None only beside problems
    return found, document


def check(
    document: Document,
    model: type[_Checked],
    *,
    words: Mapping[str, str] | None = None,
    elsewhere: Callable[[str, tuple[Key, ...]], str] | None = None,
) -> _Checked | None:
    """Return the model of a document; None after all problems were noted in the document.

    `words`: "why|hint" for a wrong word, by its key. `elsewhere` gives the reason why a key at a
    path is not known, if another model knows it.
    """
    try:
        return model.model_validate(document.data)
    except ValidationError as error:
        details = error.errors(include_url=False)
        for number, detail in enumerate(details):
            if document.full:
                document.more += len(details) - number
                break
            if detail["type"] == "extra_forbidden":
                _explain_key(document, model, tuple(detail["loc"]), elsewhere)
            else:
                _explain(document, detail, words or {})
    return None


def reason(detail: ErrorDetails, words: Mapping[str, str] | None = None) -> tuple[str, str]:
    """Return why a value is refused, and the hint."""
    kind, location, context = detail["type"], detail["loc"], detail.get("ctx", {})
    own = [words[str(key)] for key in location if words and str(key) in words]
    if kind == "literal_error" and own:
        text = own[0]
    elif kind == "string_type":
        value = detail["input"]
        text = "is empty" if value is None else f"is not text|write it in quotes: '{value}'"
    elif kind == "string_pattern_mismatch" and context.get("pattern") == NAME_PATTERN:
        text = _NAME
    else:
        message = detail["msg"][:1].lower() + detail["msg"][1:]
        text = _REASONS.get(kind, message.replace("{", "{{").replace("}", "}}")).format(**context)
    why, _, hint = text.partition("|")
    return why, hint


def first_problem(error: ValidationError) -> str:
    """Return where a model is wrong first, and why; without the value, which may be a secret."""
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(map(str, first["loc"]))
    why = first["msg"].partition("|")[0]
    return f"{where}: {why}" if where else why


def known_keys(annotation: Any, path: tuple[Key, ...]) -> list[str]:
    """Return the keys of the model at a path below a model; [] if there is none."""
    for key in path:
        annotation = _below(annotation, key)
    return [name for part in _parts(annotation) for name in getattr(part, "model_fields", ())]


def _below(annotation: Any, key: Key) -> Any:
    for part in _parts(annotation):
        fields = getattr(part, "model_fields", {})
        if key in fields:
            return fields[key].annotation
        if get_args(part) and (isinstance(key, int) or get_origin(part) is dict):
            return get_args(part)[-1]
    return None


def _parts(annotation: Any) -> Iterator[Any]:
    """Yield the models and containers that an annotation allows."""
    origin = get_origin(annotation)
    if origin is Annotated:
        yield from _parts(get_args(annotation)[0])
    elif origin in (Union, types.UnionType):
        for branch in get_args(annotation):
            yield from _parts(branch)
    else:
        yield annotation


def _explain_key(
    document: Document,
    model: type[BaseModel],
    location: tuple[Key, ...],
    elsewhere: Callable[[str, tuple[Key, ...]], str] | None,
) -> None:
    path = _in_document(document, location)
    key, parent = str(path[-1]), path[:-1]
    known = known_keys(model, parent)
    close = difflib.get_close_matches(key[:_LONGEST], known, 1)
    hint = f"did you mean {close[0]!r}?" if close else f"known here: {', '.join(known)}"
    why = elsewhere(key, parent) if elsewhere else ""
    position = document.keys.get(path, document.where(path))
    what = f"unknown key {dotted(path)!r}"
    document.complain(position, what, why or "it has no meaning here", hint if known else "")


def _explain(document: Document, detail: ErrorDetails, words: Mapping[str, str]) -> None:
    location = tuple(detail["loc"])
    if detail["type"] == "missing":
        path = (*_in_document(document, location[:-1]), location[-1])
        document.complain(document.where(path[:-1]), f"{dotted(path)} is missing", "it is required")
        return
    path = _in_document(document, location)
    position, name = document.where(path), dotted(path)
    if any(p.line == position[0] and p.what.split(" ")[0] == name for p in document.problems):
        return  # the other branch of the same union
    shown = "" if "password" in path else _shown(document.value(path))
    document.complain(position, f"{name} {shown}".strip(), *reason(detail, words))


def _in_document(document: Document, location: tuple[Key, ...]) -> tuple[Key, ...]:
    """Return a location of pydantic without the names of the branches of unions."""
    path: tuple[Key, ...] = ()
    for key in location:
        if (*path, key) in document.positions:
            path = (*path, key)
    return path


def _shown(value: Any) -> str:
    if isinstance(value, dict | list):
        return ""
    text = "null" if value is None else str(value)
    return repr(text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "...")
