# SPDX-License-Identifier: Apache-2.0
"""Makes the launches of a study, one at a time, and keeps what they printed; goes on after a kill.

The manifest of the run directory is written after every launch: what it names is done, and the raw
files of a launch that was cut off are written again.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nearmetal.bench.collect import (
    Ended,
    find_pairs,
    job_fields,
    now,
    program_path,
    sha256_of,
)
from nearmetal.bench.environment import environment
from nearmetal.bench.suite import ARMS
from nearmetal.errors import LaunchError, StateError, UsageError
from nearmetal.evidence import Launch, Manifest, parse_log, read_manifest, write_manifest
from nearmetal.evidence.manifest import FILE, STUDY_SUITE
from nearmetal.launch import JobRequest, Output, run_job
from nearmetal.mpi import STACKS, Mpi, Provider, Stack

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from nearmetal.backend import Backend
    from nearmetal.bench.suite import Program
    from nearmetal.evidence import Log
    from nearmetal.run import Runner
    from nearmetal.spec import ClusterSpec

OWN = "own"
"""The way an MPI takes within a node if nobody says anything: the first of its own."""

_LEADING_SIZE = re.compile(r"^\s*(?:\d+:\s+)?(\d+)\s", re.MULTILINE)


@dataclass(frozen=True)
class Way:
    """Where an arm's jobs run, and by which way their messages go."""

    backend: Backend
    spec: ClusterSpec
    provider: Provider
    channels: tuple[str, ...] | None = None
    stack: Stack | None = None
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Workload:
    """What is launched, by which MPI, on how many ranks."""

    name: str
    program: Program
    mpi: Mpi
    ranks: int
    path: Path | None = None
    """Where the program lies, when it is none of ours."""


def way_of(name: str, mpi: Mpi, backend: Backend, spec: ClusterSpec, nodes: tuple[str, ...]) -> Way:
    """Return a way by its name: an arm of nearmetal-bench(1), or one of the MPI's own ways."""
    if name in ARMS:
        arm = ARMS[name]
        return Way(backend, spec, arm.provider, arm.channels, None, nodes)
    own = [stack for stack in STACKS if stack.mpi is mpi and name in (stack.name, OWN)]
    if not own:
        known = [*ARMS, OWN, *(stack.name for stack in STACKS if stack.mpi is mpi)]
        raise UsageError(f"{mpi.value} has no way {name!r}", f"known: {', '.join(known)}")
    return Way(backend, spec, Provider.STOCK, None, own[0], nodes)


@dataclass
class Launches:
    """The run directory of a study: what was launched so far, and the next launch.

    Raises StateError when the directory belongs to another design.
    """

    directory: Path
    name: str
    design: str
    """The text of the study file: launches of two designs are never mixed."""
    clusters: Mapping[str, tuple[Backend, ClusterSpec]]
    runner: Runner
    launches: list[Launch] = field(default_factory=list)
    _manifest: Manifest | None = None

    def __post_init__(self) -> None:
        """Read what is there already, or begin."""
        (self.directory / "raw").mkdir(parents=True, exist_ok=True)
        if (self.directory / FILE).exists():
            self._manifest = read_manifest(self.directory)
            if self._manifest.spec != self.design:
                msg = f"{self.directory} holds launches of another study file"
                raise StateError(msg, "give another --output, or the file as it was")
            self.launches = list(self._manifest.launches)
        else:
            self._manifest = self._begin()
            write_manifest(self.directory, self._manifest)

    def _begin(self) -> Manifest:
        nodes = [node for backend, _ in self.clusters.values() for node in backend.status()]
        pairs = [
            pair
            for backend, spec in self.clusters.values()
            for pair in find_pairs(backend, spec, self.runner)
        ]
        return Manifest(
            name=self.name, suite=STUDY_SUITE, blocks=0, started=now(), finished="", spec=self.design,
            environment=environment(nodes), locality=tuple(pairs), launches=(),
        )  # fmt: skip

    def done(self, block: int, workload: str, arm: str) -> bool:
        """Return whether this launch was made, well or not."""
        return any(
            (launch.block, launch.program, launch.arm) == (block, workload, arm)
            for launch in self.launches
        )

    def make(self, block: int, workload: Workload, arm: str, way: Way) -> Launch:
        """Launch; the result is recorded before this returns, also when it ended badly."""
        number = len(self.launches) + 1
        stem = f"raw/{number:04}-{arm}-{workload.name}"
        path = workload.path or program_path(workload.program, workload.mpi)
        ranks = min(workload.ranks, workload.program.max_ranks or workload.ranks)
        request = JobRequest(
            program=str(path),
            args=tuple(a.replace("{ranks}", str(ranks)) for a in workload.program.args),
            mpi=workload.mpi.value, ranks=ranks, channels=way.channels, provider=way.provider,
            timeout_s=workload.program.timeout_s, nodes=way.nodes, stack=way.stack,
        )  # fmt: skip
        load, started = os.getloadavg()[0], now()
        files = [self.directory / f"{stem}.{kind}" for kind in ("out", "err")]
        with files[0].open("wb") as out, files[1].open("wb") as err:
            output = Output(stdout=out, stderr=err)
            ended = job_fields(run_job(way.backend, way.spec, request, self.runner, output), ranks)
        if os.statvfs(self.directory).f_bavail == 0:
            raise LaunchError(f"{self.directory}: No space left on device: output may be cut off",
                              "make room, then start the study again: it goes on")  # fmt: skip
        launch = self._record(number, stem, block, workload, arm, ended, started, load)
        self.launches.append(launch)
        self._write("")
        return launch

    def _record(  # noqa: PLR0917 - a record has as many fields
        self, number: int, stem: str, block: int, workload: Workload, arm: str, ended: Ended,
        started: str, load: float,
    ) -> Launch:  # fmt: skip
        program = workload.program
        return Launch(
            number=number, block=block, program=workload.name, log_format=program.log_format,
            mpi="", arm=arm, started=started,
            stdout=f"{stem}.out", stdout_sha256=sha256_of(self.directory / f"{stem}.out"),
            stderr=f"{stem}.err", stderr_sha256=sha256_of(self.directory / f"{stem}.err"),
            log="stdout" if program.log == "stdout" else "stderr", last_size=program.last_size,
            load=load, **ended.fields,
        )  # fmt: skip

    def _write(self, finished: str) -> None:
        assert self._manifest is not None  # noqa: S101 - made when this was
        blocks = max((launch.block for launch in self.launches), default=-1) + 1
        update = {"launches": tuple(self.launches), "blocks": blocks, "finished": finished}
        self._manifest = self._manifest.model_copy(update=update)
        write_manifest(self.directory, self._manifest)

    def finish(self) -> None:
        """Record that the study ended by itself."""
        self._write(now())

    def log(self, launch: Launch) -> Log:
        """Return what a launch printed, parsed; raises LogError with file and line."""
        path = self.directory / launch.file
        text = path.read_text(encoding="utf-8", errors="replace")
        return parse_log(text, str(path), launch.log_format)

    def last_size(self, launch: Launch) -> int | None:
        """Return the last message size a launch printed: one that hangs does so beyond it."""
        text = (self.directory / launch.file).read_text(encoding="utf-8", errors="replace")
        sizes = _LEADING_SIZE.findall(text)
        return int(sizes[-1]) if sizes else None
