# SPDX-License-Identifier: Apache-2.0
"""A run directory, read again: the manifest, the raw text, and the facts in it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nearmetal.core.errors import LogError
from nearmetal.evidence.manifest import Launch, Manifest, read_manifest
from nearmetal.evidence.model import Fact, Log
from nearmetal.evidence.parse import parse_log
from nearmetal.evidence.parse.text import fail

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

MAX_LOG_BYTES = 64 << 20


@dataclass(frozen=True)
class RunFacts:
    """Everything a run directory says. `texts` and `logs` are by raw file."""

    directory: Path
    manifest: Manifest
    texts: Mapping[str, str]
    logs: Mapping[str, Log]
    facts: tuple[Fact, ...]

    def select(self, **wanted: object) -> list[Fact]:
        """Return the facts whose fields have these values."""
        return [f for f in self.facts if all(getattr(f, k) == v for k, v in wanted.items())]


def read_raw(directory: Path, file: str, sha256: str) -> str:
    """Return a raw file's text; raises LogError when it is missing or was changed."""
    path = directory / file
    try:
        if path.is_symlink() or path.stat().st_size > MAX_LOG_BYTES:
            raise LogError(f"{path}: a link or larger than {MAX_LOG_BYTES >> 20} MiB")
        content = path.read_bytes()
    except OSError as error:
        raise LogError(f"{path}: {error.strerror}", "the run directory is incomplete") from error
    if hashlib.sha256(content).hexdigest() != sha256:
        raise LogError(
            f"{path}: its content is not what was recorded",
            "raw output must not be edited; run the benchmark again",
        )
    return content.decode("utf-8", "replace")


def _facts(launch: Launch, log: Log) -> Iterator[Fact]:
    for table in log.tables:
        if any(column.metric == "turn" for column in table.columns):
            continue  # single samples: read from the logs by who judges turns
        units = {column.metric: column.unit for column in table.columns}
        for row in table.rows:
            size = int(row.values.get("size", 0))
            for metric, value in row.values.items():
                if metric != "size":
                    yield Fact(
                        launch.number,
                        launch.block,
                        launch.mpi,
                        launch.arm,
                        launch.program,
                        table.test,
                        table.variant,
                        table.processes or launch.ranks,
                        size,
                        metric,
                        units[metric],
                        value,
                        log.file,
                        row.line,
                    )


def _parse(launch: Launch, text: str) -> Log:
    log = parse_log(text, launch.file, launch.log_format)
    if launch.last_size is not None:
        last = max((r.values.get("size", 0) for t in log.tables for r in t.rows), default=0)
        if last < launch.last_size:
            raise fail(
                launch.file,
                len(text.splitlines()),
                "the output stops before its end",
                f"the last size is {last:.0f}, {launch.last_size} was asked for",
            )
    return log


def load_run(directory: Path) -> RunFacts:
    """Read a run directory. A launch that failed has text but no facts.

    Raises LogError with file:line when a launch that ended well left a log that cannot be read.
    """
    manifest = read_manifest(directory)
    texts: dict[str, str] = {}
    logs: dict[str, Log] = {}
    facts: list[Fact] = []
    for launch in manifest.launches:
        for name, sha256 in launch.files:
            texts[name] = read_raw(directory, name, sha256)
        if launch.good:
            log = _parse(launch, texts[launch.file])
            logs[launch.file] = log
            facts.extend(_facts(launch, log))
    return RunFacts(directory, manifest, texts, logs, tuple(facts))
