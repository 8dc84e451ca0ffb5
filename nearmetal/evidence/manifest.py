# SPDX-License-Identifier: Apache-2.0
"""The manifest of a run directory: what was started, how, in which order, and how it ended."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from nearmetal.core.errors import LogError

FILE = "manifest.json"
STUDY_SUITE = "study"
"""The suite of a run whose arms and workloads stand in a study file."""

MAX_BYTES = 64 << 20

Text = Annotated[str, Field(max_length=4096)]
RawFile = Annotated[str, Field(pattern=r"^raw/[A-Za-z0-9_][A-Za-z0-9._-]{0,120}$")]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class Proof(_Model):
    """What the provider's counters prove: messages and bytes by channel, as senders counted."""

    verdict: Text
    reason: Text
    messages: dict[str, int] = {}
    bytes: dict[str, int] = {}


class Launch(_Model):
    """One start of one program. `block`: launches of a block ran one after another, arm by arm."""

    number: int
    block: int
    program: Text
    log_format: Text
    mpi: Text
    arm: Text
    ranks: int
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
    """What the program wrote its figures to, when that is neither of the two."""
    figures_sha256: Sha256 | None = None
    log: Literal["stdout", "stderr", "figures"] = "stdout"
    """Which of the three the program's figures are in."""
    last_size: int | None = None
    """The size that the last row must reach, for formats without an end mark."""
    argv: tuple[Text, ...]
    env: dict[str, Text]
    proof: Proof
    wire_bytes: int | None = None
    """What the nodes' network interfaces sent meanwhile."""
    load: float
    """The machine's load average when it started."""
    hung_at: int | None = None
    """The message size at which it hung."""
    facts: dict[Text, Text] = {}
    """What was true of this launch: MPI, binding, what carried its messages, adapters, counters."""

    @model_validator(mode="after")
    def _figures_are_there(self) -> Launch:
        if self.log == "figures" and (self.figures is None or self.figures_sha256 is None):
            msg = "log is figures, but there is no such file"
            raise ValueError(msg)
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


class Pair(_Model):
    """What one node found out about another."""

    node: Text
    peer: Text
    relation: Text
    channel: Text
    integrity: Text
    reason: Text


class NodePlace(_Model):
    """Where a node was."""

    name: Text
    host: Text
    hostname: Text
    address: Text
    cpus: tuple[int, ...]
    slots: int


class Environment(_Model):
    """The machine and the software, as (name, value) in the order to show."""

    machine: tuple[tuple[Text, Text], ...]
    software: tuple[tuple[Text, Text], ...]
    nodes: tuple[NodePlace, ...]


class Manifest(_Model):
    """A whole run."""

    format: Literal[1] = 1
    name: Text
    suite: Text
    blocks: int
    started: Text
    finished: Text
    spec: Annotated[str, Field(max_length=1 << 20)]
    environment: Environment
    locality: tuple[Pair, ...]
    launches: tuple[Launch, ...]
    skipped: tuple[Text, ...] = ()
    """What was not run, and why."""


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Write the manifest, so that a crash leaves the old one or the new one."""
    fresh = directory / (FILE + ".new")
    fresh.write_text(manifest.model_dump_json(indent=1) + "\n", encoding="utf-8")
    fresh.replace(directory / FILE)


def read_manifest(directory: Path) -> Manifest:
    """Return the manifest of a run directory; raises LogError when there is no sound one."""
    path = directory / FILE
    try:
        if path.stat().st_size > MAX_BYTES:
            raise LogError(f"{path}: larger than {MAX_BYTES >> 20} MiB", "is it a manifest?")
        data = json.loads(path.read_text(encoding="utf-8"))
        return Manifest.model_validate(data)
    except FileNotFoundError as error:
        raise LogError(
            f"{directory} is no run directory: it has no {FILE}",
            "give a directory that `nearmetal bench` wrote",
        ) from error
    except OSError as error:
        raise LogError(f"{path}: {error.strerror}") from error
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise LogError(
            f"{path}: {place}: {first['msg']}",
            "the manifest was changed or written by another version",
        ) from error
    except (ValueError, RecursionError) as error:
        raise LogError(f"{path}: not JSON: {error}", "the manifest is damaged") from error
