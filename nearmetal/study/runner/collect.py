# SPDX-License-Identifier: Apache-2.0
"""The launches of a schedule: each is made, and its output is kept byte for byte."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from nearmetal.cluster.backend import Backend
from nearmetal.cluster.spec import ClusterSpec
from nearmetal.core.errors import LaunchError
from nearmetal.core.process import Command, Completed, Runner
from nearmetal.core.progress import Progress, Silent
from nearmetal.core.resources import REMEDY, REPOSITORY, built_program, program_for_mpi
from nearmetal.evidence import ChannelProof, Launch, Manifest, NodePair, parse_log, write_manifest
from nearmetal.job.locality import measure_locality
from nearmetal.job.mpi import Mpi, find_installations
from nearmetal.job.run import JobRequest, JobResult, Output, run_job
from nearmetal.study.runner.environment import environment
from nearmetal.study.runner.suite import BenchArm, PlannedLaunch, Program, Where
from nearmetal.study.runner.two_nodes import PairResult, loader_path, pair_of, run_pair

_WIRE_S = 20.0


def now() -> str:
    """Return the time in the format of a manifest."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def program_path(program: Program, mpi: Mpi | None) -> Path:
    """Return the path of a program; raises LaunchError if it is missing."""
    if program.where is Where.SITE:
        found = shutil.which(program.file)
        if found is None:
            raise LaunchError(
                f"{program.file} is not in PATH", "install it, or add its directory to PATH"
            )
        return Path(found)
    path = _place(program, mpi)
    if not os.access(path, os.X_OK):
        raise LaunchError(f"{path} is not a program", REMEDY)
    return path


def _place(program: Program, mpi: Mpi | None) -> Path:
    """Return where a program of nearmetal, of Intel MPI or of the system belongs."""
    if program.where is Where.SYSTEM:
        return Path("/usr/bin") / program.file
    if program.where is Where.IMPI:
        impi = find_installations().get(Mpi.IMPI)
        if impi is None:
            raise LaunchError(
                f"{program.file} is a part of Intel MPI, which is not installed",
                "install it, and add its parent to NEARMETAL_MPI_PATH",
            )
        return impi.prefix / "bin" / program.file
    if program.where is Where.BENCHMARKS:
        return built_program(program.file)
    if mpi is None:
        return REPOSITORY / "build/programs" / program.file
    return program_for_mpi(program.file, mpi.value, mpi.family.name.lower())


def find_pairs(backend: Backend, spec: ClusterSpec, runner: Runner) -> tuple[NodePair, ...]:
    """Return how each node reaches each other node."""
    meetings = measure_locality(backend, spec, runner)
    return tuple(NodePair(**{k: getattr(m, k) for k in NodePair.model_fields}) for m in meetings)


def unreachable(arm: BenchArm, spec: ClusterSpec, pairs: Sequence[NodePair]) -> str:
    """Return why the pair cannot have the channel that an arm forces; "" if it may have it."""
    two = set(pair_of(spec)[1:])
    found = {pair.channel for pair in pairs if {pair.node, pair.peer} == two}
    if "segment" in (arm.channels or ()) and "segment" not in found:
        return "the two nodes share no segment"
    return ""


@dataclass
class Collector:
    """Runs a schedule on a cluster that is up. The manifest is written after every launch."""

    backend: Backend
    spec: ClusterSpec
    runner: Runner
    directory: Path
    suite: str
    blocks: int
    ranks: int
    progress: Progress = field(default_factory=Silent)
    pairs: tuple[NodePair, ...] = ()
    """How the nodes reach each other; if empty, it is measured first."""
    _launches: list[Launch] = field(default_factory=list)
    _skipped: list[str] = field(default_factory=list)
    _started: str = ""

    def run(self, steps: Sequence[PlannedLaunch]) -> Manifest:
        """Make all launches; a failed one is recorded with its output, and the next is made."""
        (self.directory / "raw").mkdir(parents=True, exist_ok=False)
        self._started = now()
        self.progress.begin(len(steps) + 1)
        self.progress.step("locality")
        self.pairs = self.pairs or find_pairs(self.backend, self.spec, self.runner)
        self._write("")
        for step in steps:
            self.progress.step(title(step))
            self._launch(step)
            self._write("")
        return self._write(now())

    def _write(self, finished: str) -> Manifest:
        manifest = Manifest(
            name=self.spec.name,
            suite=self.suite,
            blocks=self.blocks,
            started=self._started,
            finished=finished,
            spec=self.spec.canonical(),
            environment=environment(self.backend.status()),
            locality=self.pairs,
            launches=tuple(self._launches),
            skipped=tuple(self._skipped),
        )
        write_manifest(self.directory, manifest)
        return manifest

    def _launch(self, step: PlannedLaunch) -> None:
        try:
            path = program_path(step.program, step.mpi)
        except LaunchError as error:
            self._skipped.append(f"{title(step)}: {error.message}")
            return
        raw = RawLaunch(self.directory, len(self._launches) + 1, step)
        with raw.streams() as output:
            if step.arm is None:
                ended = self._beside(step.program, path, output)
            else:
                before = self._wire()
                if step.mpi is None:
                    ended = self._on_a_pair(step.program, step.arm, path, output)
                else:
                    ended = self._in_cluster(step, path, output)
                after = self._wire()
                wire = None if before is None or after is None else after - before
                ended["wire_bytes"] = wire
        self._launches.append(raw.record(ended))
        if self._launches[-1].good:
            check_room(self.directory)
            self._check_readable(self._launches[-1])

    def _check_readable(self, launch: Launch) -> None:
        """Read a log at once, so that damage is reported while its cause is still visible."""
        text = (self.directory / launch.file).read_text(encoding="utf-8", errors="replace")
        parse_log(text, str(self.directory / launch.file), launch.log_format)

    def _beside(self, program: Program, path: Path, output: Output) -> Ended:
        """Run the limits on the cores of the first two nodes, outside the cluster."""
        cores = first_cores(self.backend)
        places = ["-a", str(cores[0]), "-b", str(cores[1])] if len(cores) > 1 else []
        argv = (str(path), *places, *program.args)
        completed = self.runner.attach(
            Command(argv), stdout=output.stdout, stderr=output.stderr, timeout_s=program.timeout_s
        )
        return beside_fields(completed)

    def _on_a_pair(self, program: Program, arm: BenchArm, path: Path, output: Output) -> Ended:
        argv = (str(path), *program.args)
        first = pair_of(self.spec)[1]
        result = run_pair(
            self.backend,
            self.spec,
            self.runner,
            argv,
            channels=arm.channels,
            output=output,
            timeout_s=program.timeout_s,
            nodes=(first, first) if arm.together else None,
            more=dict(arm.env) | (loader_path() if program.gpu else {}),
        )
        return job_fields(result, 2)

    def _in_cluster(self, step: PlannedLaunch, path: Path, output: Output) -> Ended:
        assert step.arm is not None and step.mpi is not None  # noqa: S101, PT018 - see the caller
        ranks = min(self.ranks, step.program.max_ranks or self.ranks)
        request = JobRequest(
            program=str(path),
            args=tuple(a.replace("{ranks}", str(ranks)) for a in step.program.args),
            mpi=step.mpi.value,
            ranks=ranks,
            channels=step.arm.channels,
            provider=step.arm.provider,
            timeout_s=step.program.timeout_s,
        )
        return job_fields(run_job(self.backend, self.spec, request, self.runner, output), ranks)

    def _wire(self) -> int | None:
        """Return the bytes that the interfaces of the nodes have sent; None: not known."""
        total = 0
        for _, node in self.spec.nodes:
            command = self.backend.on_node(
                node.name, ["cat", "/proc/net/dev"], env={"PATH": "/usr/bin:/bin"}
            )
            completed = self.runner.run(command, timeout_s=_WIRE_S)
            sent = sent_bytes(completed.text)
            if completed.code != 0 or sent is None:
                return None
            total += sent
        return total


Ended = dict[str, object]
"""The end of a launch, as fields of its record."""


def beside_fields(
    completed: Completed, ranks: int = 2, reason: str = "the program sends no message"
) -> Ended:
    """Return the end of a program that is not a job of nearmetal."""
    return {
        "ranks": ranks,
        "nodes": "",
        "seconds": completed.seconds,
        "exit_code": completed.code if completed.code >= 0 else 128 - completed.code,
        "timed_out": completed.timed_out,
        "argv": completed.command.argv,
        "env": {},
        "proof": ChannelProof(verdict="not asked", reason=reason),
    }


def job_fields(result: JobResult | PairResult, ranks: int) -> Ended:
    """Return the end of an MPI job, or of a pair of processes."""
    proof = result.proof
    return {
        "ranks": ranks,
        "nodes": ",".join(f"{name}:{n}" for name, n in result.ranks),
        "seconds": result.seconds,
        "exit_code": result.exit_code,
        "timed_out": result.timed_out,
        "argv": result.argv,
        "env": result.env,
        "proof": ChannelProof(
            verdict=proof.verdict.value,
            reason=proof.reason,
            messages=dict(proof.messages),
            bytes=dict(proof.bytes),
        ),
    }


@dataclass(frozen=True)
class RawLaunch:
    """A launch that begins now: its number, raw files and record."""

    directory: Path
    number: int
    step: PlannedLaunch
    name: str = ""
    """Name of the raw files; default: from the step."""
    started: str = field(default_factory=now)
    load: float = field(default_factory=lambda: os.getloadavg()[0])

    @property
    def stem(self) -> str:
        """The path of the raw files in the run directory, without their endings."""
        name = self.name or "-".join([*_names(self.step), self.step.program.label])
        return f"raw/{self.number:04}-{name}"

    @contextmanager
    def streams(self) -> Iterator[Output]:
        """Open the raw files for the streams of the launch."""
        out, err = (self.directory / f"{self.stem}.{kind}" for kind in ("out", "err"))
        with out.open("wb") as stdout, err.open("wb") as stderr:
            yield Output(None, stdout, stderr)

    def record(self, ended: Ended, **fields: object) -> Launch:
        """Return the record of the launch after its end; `fields` are more fields of the record."""
        program = self.step.program
        found: dict[str, object] = {"program": program.label, "log": program.log}
        found |= {"log_format": program.log_format, "last_size": program.last_size}
        found |= {"number": self.number, "started": self.started, "load": self.load}
        for name, kind in (("stdout", "out"), ("stderr", "err")):
            file = f"{self.stem}.{kind}"
            found |= {name: file, f"{name}_sha256": sha256_of(self.directory / file)}
        return Launch.model_validate({**found, **self.step.fields, **fields, **ended})


def _names(step: PlannedLaunch) -> list[str]:
    """Return the names of the MPI and of the arm, if there are any."""
    mpi, arm = step.mpi, step.arm
    return [*([mpi.value] if mpi else []), *([arm.name] if arm else [])]


def check_room(directory: Path) -> None:
    """Raise LaunchError on a full disk: few programs report that their output is lost."""
    if os.statvfs(directory).f_bavail == 0:
        raise LaunchError(
            f"{directory}: No space left on device: the output may be incomplete",
            "free some space, then run the command again",
        )


def first_cores(backend: Backend) -> list[int]:
    """Return the first cores of the first two nodes that have different ones.

    It has none where the cores of the nodes are not known here.
    """
    return list(dict.fromkeys(node.cpus[0] for node in backend.status() if node.cpus))[:2]


def sent_bytes(net_dev: str) -> int | None:
    """Return the bytes that all interfaces except loopback sent, from /proc/net/dev."""
    total, seen = 0, False
    for line in net_dev.splitlines()[2:]:
        name, colon, counters = line.partition(":")
        words = counters.split()
        if not colon or len(words) < 9 or not words[8].isdigit():  # noqa: PLR2004 - the kernel's
            return None
        if name.strip() != "lo":
            total, seen = total + int(words[8]), True
    return total if seen else None


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file in the format of a manifest."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def title(step: PlannedLaunch) -> str:
    """Return the name of a launch in messages."""
    return f"block {step.block + 1}: {' '.join([step.program.label, *_names(step)])}"
