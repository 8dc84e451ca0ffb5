# SPDX-License-Identifier: Apache-2.0
"""A collection: a folder with one snapshot for each node, named by its content, and an index.

The index names the nodes, and those that did not answer. A folder that came from elsewhere is
hostile: each file is bounded, must be a regular file of the folder, and must have its content.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nearmetal.check.node_pattern import NODE
from nearmetal.check.performance.run import MAX_BYTES as MAX_RUN
from nearmetal.check.performance.run import PERFORMANCE, PerformanceRun, parse_run
from nearmetal.check.snapshot import (
    MAX_BYTES,
    Snapshot,
    digest_of,
    load_bounded,
    parse_snapshot,
    real,
)
from nearmetal.core.errors import LogError
from nearmetal.core.files import read_named, read_regular
from nearmetal.core.text import printable

INDEX = "collection.json"
FORMAT = "nearmetal-collection"
VERSION = 1
MAX_NODES = 20_000
_MAX_INDEX = 16 << 20
_MAX_VALUES = 6 * MAX_NODES
_MOST_WHY = 300
_DIGEST = re.compile(r"[0-9a-f]{64}")
_HINT = "give a folder of `nearmetal check collect`, or one snapshot"


@dataclass(frozen=True)
class Entry:
    """A snapshot of the index, and the limits of its node's clock minus ours."""

    digest: str
    clock: tuple[float, float] | None = None


@dataclass(frozen=True)
class Collection:
    """An index: nodes with their snapshots, and silent nodes with the reason."""

    folder: Path
    taken: float
    nodes: Mapping[str, Entry] = field(default_factory=dict)
    silent: Mapping[str, str] = field(default_factory=dict)

    def snapshots(self) -> Iterator[Snapshot]:
        """Read one snapshot after the other; raises LogError."""
        for name, entry in self.nodes.items():
            file = f"{entry.digest}.json"
            content = _read(self.folder, file)
            if digest_of(content) != entry.digest:
                raise LogError(f"{self.folder / file}: its content is not that of its name", _HINT)
            yield parse_snapshot(content, name, str(self.folder / file), entry.clock)

    @property
    def has_run(self) -> bool:
        """Whether the folder has a run of `check performance`, which may be damaged."""
        return os.path.lexists(self.folder / PERFORMANCE)

    def performance(self) -> PerformanceRun:
        """Return the run of `check performance` that the folder has; raises LogError."""
        file = str(self.folder / PERFORMANCE)
        run = parse_run(_read(self.folder, PERFORMANCE, MAX_RUN), file)
        for name in run.names:
            if name not in self.nodes and name not in self.silent:
                raise LogError(
                    f"{file}: it measured node {name}, which is not in {INDEX}",
                    "the file belongs to another folder",
                )
        return run


def _read(folder: Path, file: str, most: int = MAX_BYTES) -> bytes:
    try:
        return read_regular(file, most, below=folder)
    except OSError as error:
        raise LogError(f"cannot read {folder / file}: {error.strerror}", _HINT) from error


def index_text(taken: float, nodes: Mapping[str, Entry], silent: Mapping[str, str]) -> str:
    """Return the content of an index."""
    data = {
        "format": FORMAT,
        "version": VERSION,
        "taken": round(taken, 3),
        "nodes": {
            name: {"snapshot": entry.digest}
            | ({} if entry.clock is None else {"clock": [round(c, 3) for c in entry.clock]})
            for name, entry in nodes.items()
        },
        "silent": {name: why[:_MOST_WHY] for name, why in silent.items()},
    }
    return json.dumps(data, indent=1) + "\n"


def open_collection(path: Path) -> Collection | Snapshot:
    """Return the collection of a folder, or the one snapshot of a file; raises LogError."""
    if path.is_dir():
        return _open_index(path)
    try:
        content = read_named(path, MAX_BYTES)
    except OSError as error:
        raise LogError(f"cannot read {path}: {error.strerror}", _HINT) from error
    snapshot = parse_snapshot(content, "node", str(path))
    name = snapshot.text("system", "hostname")
    return parse_snapshot(content, name if NODE.fullmatch(name) else "node", str(path))


def _open_index(folder: Path) -> Collection:
    file = folder / INDEX
    try:
        content = read_regular(INDEX, _MAX_INDEX, below=folder)
    except OSError as error:
        raise LogError(f"cannot read {file}: {error.strerror}", _HINT) from error
    data = load_bounded(content, str(file), most_bytes=_MAX_INDEX, most_values=_MAX_VALUES)
    if data.get("format") != FORMAT or data.get("version") != VERSION:
        raise LogError(f"{file}: not an index of version {VERSION}", _HINT)
    nodes, silent = data.get("nodes"), data.get("silent")
    if not isinstance(nodes, dict) or not isinstance(silent, dict):
        raise LogError(f"{file}: damaged: it has no nodes", _HINT)
    if len(nodes) + len(silent) > MAX_NODES:
        raise LogError(f"{file}: more than {MAX_NODES} nodes", _HINT)
    for name in (*nodes, *silent):
        if not NODE.fullmatch(name):
            raise LogError(f"{file}: {printable(name[:40])!r} is not the name of a node", _HINT)
    return Collection(
        folder,
        real(data.get("taken")),
        {name: _entry(file, name, item) for name, item in nodes.items()},
        {name: printable(str(why))[:_MOST_WHY] for name, why in silent.items()},
    )


def _entry(file: Path, name: str, item: Any) -> Entry:
    digest = item.get("snapshot") if isinstance(item, dict) else None
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        raise LogError(f"{file}: node {name} has no snapshot", _HINT)
    clock = item.get("clock")
    if (
        isinstance(clock, list)
        and len(clock) == 2  # noqa: PLR2004 - the two limits
        and all(isinstance(c, int | float) and not isinstance(c, bool) for c in clock)
    ):
        return Entry(digest, (float(clock[0]), float(clock[1])))
    return Entry(digest)
