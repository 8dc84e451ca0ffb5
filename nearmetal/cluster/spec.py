# SPDX-License-Identifier: Apache-2.0
"""The cluster spec: from a file to a ClusterSpec, or to every problem in it at once."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from nearmetal.cluster.model import ClusterSpec, SpecPath
from nearmetal.cluster.post import post_findings
from nearmetal.cluster.registration import backend_names, registration, specs
from nearmetal.config.document import Document, parse, read_text
from nearmetal.config.explain import check, known_keys
from nearmetal.core.resources import share

__all__ = ["ClusterSpec", "load_spec", "parse_spec"]

WHAT = "a cluster spec"

_DEFAULT = "local"
"""The backend whose model checks a spec that does not name a backend."""


def load_spec(path: Path) -> ClusterSpec:
    """Read and check a cluster spec; raises NearmetalError or SpecError."""
    return parse_spec(read_text(path, WHAT, share("examples")), str(path))


def parse_spec(text: str, file: str = "<spec>") -> ClusterSpec:
    """Check the text of a cluster spec; raises SpecError with all problems."""
    document = parse(text, file, WHAT)
    names = backend_names()
    data: Any = document.data
    named = data.get("backend")
    known = isinstance(named, str) and named in names
    model: type[ClusterSpec] = registration(named if known else _DEFAULT).spec
    words = {
        "backend": f"is not supported|use {' or '.join(map(repr, names))}",
        "cpus": "is not a list of cores|write auto, or for example [0, 1]",
        **model.mixed,
    }
    spec = check(document, model, words=words, elsewhere=_elsewhere)
    hosts = list(_entries(document, ("hosts",)))
    nodes = [path for host in hosts for path in _entries(document, (*host, "nodes"))]
    _refuse_repeated(document, "host", ((*path, "name") for path in hosts))
    _refuse_repeated(document, "node", ((*path, "name") for path in nodes))
    for path in nodes:
        _refuse_repeated(document, "core", _entries(document, (*path, "cpus")))
    for finding in (*post_findings(spec), *spec.findings()) if spec else ():
        document.refuse(finding.path, finding.why, finding.hint, what=finding.text)
    document.refuse_problems()
    assert spec is not None  # noqa: S101 - it is None only beside problems
    return spec


def _elsewhere(key: str, path: SpecPath) -> str:
    """Return which backend has a key that this spec may not have."""
    others = [word for word, other in specs().items() if key in known_keys(other, path)]
    return f"only `backend: {others[0]}` has it" if others else ""


def _value(document: Document, path: SpecPath) -> Any:
    """Return the value at a path; None where there is none."""
    try:
        return document.value(path)
    except (KeyError, TypeError):
        return None


def _entries(document: Document, path: SpecPath) -> list[SpecPath]:
    """Return the paths of the entries of a list; none where there is no list."""
    found = _value(document, path)
    return [(*path, i) for i in range(len(found))] if isinstance(found, list) else []


def _refuse_repeated(document: Document, what: str, paths: Iterable[SpecPath]) -> None:
    """Refuse a name or number that stands at two of the paths, beside all other problems."""
    seen: dict[str | int, int] = {}
    for path in paths:
        value = _value(document, path)
        if not isinstance(value, str | int):
            continue
        line = document.where(path)[0]
        if value in seen:
            why = f"line {seen[value]} has the same {what}"
            document.refuse(path, why, "change one of them", what=f"duplicate {what} {value!r}")
        seen.setdefault(value, line)
