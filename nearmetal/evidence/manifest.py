# SPDX-License-Identifier: Apache-2.0
"""A run directory: its manifest, the raw text of every launch, and the facts in it.

The manifest records each launch in its order: the command, how it ran, and how it ended.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from nearmetal.core.errors import LogError
from nearmetal.core.files import read_regular
from nearmetal.evidence.model import Fact, Log
from nearmetal.evidence.parse import parse_log
from nearmetal.evidence.parse.reader import fail
from nearmetal.evidence.recognize import MAX_LOG_BYTES

FILE = "manifest.json"
STUDY_SUITE = "study"
"""The suite of a run whose arms and workloads stand in a study file."""

MAX_BYTES = 64 << 20

Text = Annotated[str, Field(max_length=4096)]
RawFile = Annotated[str, Field(pattern=r"^raw/[A-Za-z0-9_][A-Za-z0-9._-]{0,120}$")]
Number = Annotated[int, Field(ge=0, le=10**9)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class _RunModel(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class ChannelProof(_RunModel):
    """Messages and bytes by channel, as the provider's counters of the senders prove them."""

    verdict: Text
    reason: Text
    messages: dict[str, int] = {}
    bytes: dict[str, int] = {}


class Launch(_RunModel):
    """One start of one program. Launches of a `block` ran one after another, arm by arm."""

    number: Number
    block: Number
    program: Text
    log_format: Text
    mpi: Text
    arm: Text
    ranks: Number
    nodes: Text
    started: Text
    seconds: float
    exit_code: int
    timed_out: bool
    stdout: RawFile
    stdout_sha256: Sha256
    stderr: RawFile
    stderr_sha256: Sha256
    figures: RawFile | None = None
    """File with the figures, if the program wrote them to neither of the two."""
    figures_sha256: Sha256 | None = None
    log: Literal["stdout", "stderr", "figures"] = "stdout"
    """The file with the program's figures."""
    last_size: int | None = None
    """The size that the last row must reach, for formats without an end mark."""
    argv: tuple[Text, ...]
    env: dict[str, Text]
    proof: ChannelProof
    wire_bytes: int | None = None
    """Bytes that the nodes' network interfaces sent during the launch."""
    load: float
    """The machine's load average when it started."""
    hung_at: int | None = None
    """The message size at which it hung."""
    facts: dict[Text, Text] = {}
    """Recorded facts: MPI, binding, carrier of the messages, adapters, counters."""

    @model_validator(mode="after")
    def _figures_are_there(self) -> Launch:
        if self.log == "figures" and (self.figures is None or self.figures_sha256 is None):
            raise ValueError("log is figures, but figures and figures_sha256 are missing")
        return self

    @property
    def good(self) -> bool:
        """Whether it ended well."""
        return self.exit_code == 0 and not self.timed_out

    @property
    def file(self) -> str:
        """The raw file with the figures."""
        return self.files[("stdout", "stderr", "figures").index(self.log)][0]

    @property
    def files(self) -> tuple[tuple[str, str], ...]:
        """Every raw file with its SHA-256, those with output first."""
        found = ((self.stdout, self.stdout_sha256), (self.stderr, self.stderr_sha256))
        if self.figures is None or self.figures_sha256 is None:
            return found
        return (*found, (self.figures, self.figures_sha256))


class NodePair(_RunModel):
    """The way from one node to another, as the first node found it."""

    node: Text
    peer: Text
    relation: Text
    channel: Text
    integrity: Text
    reason: Text


class NodePlace(_RunModel):
    """The place of a node."""

    name: Text
    host: Text
    hostname: Text
    address: Text
    cpus: tuple[int, ...]
    slots: int


class Environment(_RunModel):
    """The machine and the software, as (name, value) in the order to show."""

    machine: tuple[tuple[Text, Text], ...]
    software: tuple[tuple[Text, Text], ...]
    nodes: tuple[NodePlace, ...]


class Manifest(_RunModel):
    """A whole run."""

    format: Literal[1] = 1
    name: Text
    suite: Text
    blocks: int
    started: Text
    finished: Text
    spec: Annotated[str, Field(max_length=1 << 20)]
    environment: Environment
    locality: tuple[NodePair, ...]
    launches: tuple[Launch, ...]
    skipped: tuple[Text, ...] = ()
    """Launches that did not run, each with its reason."""

    @model_validator(mode="after")
    def _files_have_one_launch(self) -> Manifest:
        owners: dict[str, int] = {}
        for launch in self.launches:
            for name, _ in launch.files:
                first = owners.setdefault(name, launch.number)
                if first != launch.number:
                    both = f"{first} and {launch.number}"
                    raise ValueError(f"launches {both} name the same raw file {name}")
        return self


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Write the manifest; a crash leaves the old one or the new one."""
    fresh = directory / (FILE + ".new")
    fresh.write_text(manifest.model_dump_json(indent=1) + "\n", encoding="utf-8")
    fresh.replace(directory / FILE)


def read_manifest(folder: Path, inside: str = "") -> Manifest:
    """Return the manifest of a run directory; raises LogError when it is missing or damaged.

    `inside`: the run directory within the folder. No link in the folder is followed.
    """
    directory = folder / inside
    path = directory / FILE
    try:
        content = read_regular(f"{inside}/{FILE}" if inside else FILE, MAX_BYTES, below=folder)
        return Manifest.model_validate_json(content)
    except FileNotFoundError as error:
        raise LogError(
            f"{directory} is not a run directory: it has no {FILE}",
            "give a directory that `nearmetal bench` wrote",
        ) from error
    except OSError as error:
        raise LogError(f"{path}: {error.strerror}") from error
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "the file"
        raise LogError(
            f"{path}: {place}: {first['msg']}",
            "the manifest is damaged, was changed, or comes from another version",
        ) from error


@dataclass(frozen=True)
class RunFacts:
    """The content of a run directory. `texts` and `logs` are by raw file."""

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
        content = read_regular(file, MAX_LOG_BYTES, below=directory)
    except OSError as error:
        raise LogError(f"{path}: {error.strerror}", "the run directory is incomplete") from error
    if hashlib.sha256(content).hexdigest() != sha256:
        raise LogError(
            f"{path}: the content is not what was recorded",
            "do not edit raw output; run the benchmark again",
        )
    return content.decode("utf-8", "replace")


def _facts(launch: Launch, log: Log) -> Iterator[Fact]:
    start = (launch.number, launch.block, launch.mpi, launch.arm, launch.program)
    for table in log.tables:
        units = {column.metric: column.unit for column in table.columns}
        if "turn" in units:
            continue  # single samples: the judge of turns reads them from the logs
        test = (*start, table.test, table.variant, table.processes or launch.ranks)
        for row in table.rows:
            size = int(row.values.get("size", 0))
            for metric, value in row.values.items():
                if metric != "size":
                    yield Fact(*test, size, metric, units[metric], value, log.file, row.line)


def _parse(launch: Launch, text: str) -> Log:
    log = parse_log(text, launch.file, launch.log_format)
    if launch.last_size is not None:
        last = max((r.values.get("size", 0) for t in log.tables for r in t.rows), default=0)
        if last < launch.last_size:
            raise fail(
                launch.file,
                len(text.splitlines()),
                "the output stops before its end",
                f"the last size is {last:.0f}, {launch.last_size} was requested",
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
