# SPDX-License-Identifier: Apache-2.0
"""From a file to a ClusterSpec, or to every problem in it at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nearmetal.cluster.model import ClusterSpec
from nearmetal.cluster.registration import backend_names, registration, specs
from nearmetal.config.document import Document, Key, Position, Value, parse, read_text
from nearmetal.config.explain import check, known_keys
from nearmetal.core.errors import SpecError

if TYPE_CHECKING:
    from pathlib import Path

WHAT = "a cluster spec"

_DEFAULT = "local"
"""The backend whose model checks a spec that names no backend."""


def load_spec(path: Path) -> ClusterSpec:
    """Read and check a cluster spec; raises NearmetalError or SpecError."""
    return parse_spec(read_text(path, WHAT), str(path))


def parse_spec(text: str, file: str = "<spec>") -> ClusterSpec:
    """Check the text of a cluster spec; raises SpecError with all problems."""
    document = parse(text, file, WHAT)
    model = _model_of(document)
    known = " or ".join(repr(name) for name in backend_names())
    words = {
        "backend": f"is not supported|this release knows {known}",
        "cpus": "is not a list of cores|write auto, or for example [0, 1]",
        **model.mixed,
    }
    spec = check(document, model, words=words, elsewhere=_elsewhere)
    _check_names(document)
    _check_cpus(document)
    for finding in spec.findings() if spec else ():
        document.refuse(finding.path, finding.why, finding.hint, what=finding.text)
    if spec is None or document.problems:
        raise SpecError(document.problems)
    return spec


def _elsewhere(key: str, path: tuple[Key, ...]) -> str:
    """Return which backend has a key that this spec may not have."""
    others = [word for word, other in specs().items() if key in known_keys(other, path)]
    return f"only `backend: {others[0]}` has it" if others else ""


def _model_of(document: Document) -> type[ClusterSpec]:
    """Return the model of the backend that the document names; any one when it names none."""
    assert isinstance(document.data, dict)  # noqa: S101 - `parse` checked it
    named = document.data.get("backend")
    known = isinstance(named, str) and named in backend_names()
    model: type[ClusterSpec] = registration(str(named) if known else _DEFAULT).spec
    return model


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
