# SPDX-License-Identifier: Apache-2.0
"""Files of saved plans: what a user looked at, to be carried out later if nothing has changed.

A plan file describes, and commands nothing: the steps are planned again from the spec in it, and
compared. The checksum finds damage and edits by hand; it is no proof of the author.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any, NoReturn

import nearmetal
from nearmetal.core.errors import NearmetalError, UsageError
from nearmetal.core.files import MAX_STATE, read_regular

MARK = "nearmetal-plan"
"""The first key of a plan file; its value is the version of the format."""

VERSION = 1

_KEYS = {MARK, "kind", "made", "release", "content", "sha256"}
_VERBS = {"hosts": "nearmetal host apply", "cluster": "nearmetal up"}
_MAX_DEPTH = 32


class PlanFileError(NearmetalError):
    """A plan file is damaged, of another kind or release, or what it describes has changed."""


def write(path: Path, kind: str, content: dict[str, Any]) -> None:
    """Write a plan into a new file for its owner, or leave none. `kind`: "hosts" or "cluster"."""
    document = {
        MARK: VERSION,
        "kind": kind,
        "made": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "release": nearmetal.__version__,
        "content": content,
        "sha256": digest(content),
    }
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError as error:
        hint = "remove it, or give another name"
        raise UsageError(f"{path} exists", hint) from error
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            stream.write(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def read(path: Path, kind: str) -> dict[str, Any] | None:
    """Return the content of a plan file; None if the file is something else, or not readable.

    Raises PlanFileError for a plan file that is damaged, or of another kind or release.
    """
    document = _document(path)
    if document is None:
        return None
    if document[MARK] != VERSION or document.get("release") != nearmetal.__version__:
        raise PlanFileError(
            f"{path}: made by release {str(document.get('release'))[:40]!r} of nearmetal, and this "
            f"is {nearmetal.__version__}",
            "make a new plan with this release",
        )
    if document.get("kind") != kind:
        verb = _VERBS.get(str(document.get("kind")), "another release")
        raise PlanFileError(f"{path}: not a plan for this command", f"it is for `{verb}`")
    content = document.get("content")
    if set(document) != _KEYS or not isinstance(content, dict) or not _shallow(content):
        _damaged(path)
    if digest(content) != document["sha256"]:
        _damaged(path)
    return content


def refuse(path: Path, kind: str) -> None:
    """Raise PlanFileError for a plan file, where the command wants what plans are made from."""
    if read(path, kind) is not None:
        raise PlanFileError(f"{path}: a saved plan", f"it is for `{_VERBS[kind]}`")


def damaged(path: Path, why: str) -> PlanFileError:
    """Return the error for content that its reader does not understand."""
    return PlanFileError(f"{path}: damaged, or edited by hand: {why}", "make a new plan")


def digest(value: Any) -> str:
    """Return the SHA-256 of a JSON value, independent of the order of keys."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def _document(path: Path) -> dict[str, Any] | None:
    """Return the JSON object of a file if it has the mark of a plan."""
    try:
        # A pipe is read only once, by the reader of specs.
        raw = read_regular(path, MAX_STATE) if path.is_file() else b""
    except OSError:
        return None
    if f'"{MARK}"'.encode() not in raw[:64]:
        return None
    try:
        found: Any = json.loads(raw, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        _damaged(path)
    if not isinstance(found, dict) or MARK not in found:
        _damaged(path)
    return found


def _damaged(path: Path) -> NoReturn:
    raise damaged(path, "its content and its checksum differ")


def _refuse_constant(word: str) -> NoReturn:
    raise ValueError(word)


def _shallow(value: Any, depth: int = 0) -> bool:
    """Whether a value is nested so little that no later function is in danger."""
    if depth > _MAX_DEPTH:
        return False
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return all(_shallow(part, depth + 1) for part in parts)
