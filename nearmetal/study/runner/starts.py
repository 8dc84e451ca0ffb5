# SPDX-License-Identifier: Apache-2.0
"""The start of one launch of a study: its way, its directory on the nodes, its record.

Nodes may have no file system in common with this machine. So the directory of a launch is made
here, copied to the nodes, and its results are copied back.
"""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from nearmetal.cluster.backend import Backend
from nearmetal.cluster.spec import ClusterSpec
from nearmetal.core.errors import LaunchError, UsageError
from nearmetal.core.process import Command, Completed, Runner
from nearmetal.job.mpi import STACKS, Mpi, Provider, Stack
from nearmetal.job.places import new_name
from nearmetal.job.run import JobRequest, Output, run_job
from nearmetal.study.runner.collect import Ended, beside_fields, job_fields, program_path
from nearmetal.study.runner.energy import Meter, meter
from nearmetal.study.runner.environment import (
    NodeAnswers,
    carried_by,
    facts_of,
    look,
    look_here,
    mpi_version,
    sent_between,
)
from nearmetal.study.runner.suite import ARMS, Program
from nearmetal.study.runner.two_nodes import first_two, run_sizes
from nearmetal.study.runner.workloads import Module, fill_in

OWN = "own"
"""The default way of an MPI within a node: the first of its ways."""

_OPENMPI4 = Stack(
    "vader",
    Mpi.OPENMPI4,
    "Open MPI vader, CMA",
    options=("--mca", "pml", "ob1", "--mca", "btl", "self,vader"),
)
"""Only studies use this stack: benchmarks of memory compare it with newer MPIs."""


@dataclass(frozen=True)
class Way:
    """The place of the jobs of an arm, and the way of their messages."""

    backend: Backend
    spec: ClusterSpec
    provider: Provider
    channels: tuple[str, ...] | None = None
    stack: Stack | None = None
    nodes: tuple[str, ...] = ()

    @property
    def chosen(self) -> list[str]:
        """The names of the nodes that take ranks."""
        return [n.name for _, n in self.spec.nodes if n.name in self.nodes or not self.nodes]


@dataclass(frozen=True)
class Starter:
    """A launcher of the site, for example `srun -n @ranks@`; it places the ranks."""

    argv: tuple[str, ...]


@dataclass(frozen=True)
class Workload:
    """One workload of a study, with its MPI and number of ranks."""

    name: str
    module: Module
    mpi: Mpi | None
    ranks: int
    path: Path | None = None
    """Path of the program, if it is not a known workload."""
    given: Path | None = None
    """Input directory of the study."""
    timeout_s: float = 300.0

    @property
    def program(self) -> Program:
        """The program of the module."""
        return self.module.program


def way_of(name: str, mpi: Mpi, backend: Backend, spec: ClusterSpec, nodes: tuple[str, ...]) -> Way:
    """Return a way by its name: an arm of nearmetal-bench(1), or one of the MPI's own ways."""
    if name in ARMS:
        arm = ARMS[name]
        return Way(backend, spec, arm.provider, arm.channels, None, nodes)
    stacks = [stack for stack in (*STACKS, _OPENMPI4) if stack.mpi is mpi]
    own = [stack for stack in stacks if name in (stack.name, OWN)]
    if not own:
        known = [*ARMS, OWN, *(stack.name for stack in stacks)]
        raise UsageError(f"{mpi.value} has no way {name!r}", f"known: {', '.join(known)}")
    return Way(backend, spec, Provider.STOCK, None, own[0], nodes)


_STAGE_S = 300.0
_ROOTS = ("/run/shared", "/tmp")  # noqa: S108 - on the nodes, in a directory of its own
_ENV = {"PATH": "/usr/bin:/bin"}

# Words for a shell. The directory that nodes of one host share comes first: ranks may read files of other ranks.
_CHOOSE = 'for d in /run/shared /tmp; do [ -w "$d" ] && echo "$d" && exit 0; done; exit 1'
_UNPACK = 'mkdir -p -m 700 "$0" && tar -x --no-same-owner -C "$0"'
_FETCH = 'cd "$0" && for f in $1; do [ -f "$f" ] && last=$f; done; [ -n "$last" ] && cat "$last"'
_START = 'cd "$0" && exec "$@"'


@dataclass(frozen=True)
class Staged:
    """A directory on the nodes."""

    backend: Backend
    runner: Runner
    nodes: tuple[str, ...]
    path: str

    def fetch(self, pattern: str) -> bytes | None:
        """Return the last file that matches the pattern, from the first node; None: no file."""
        done = self.run(self.nodes[0], (_FETCH, self.path, pattern))
        return done.stdout if done.code == 0 else None

    def run(self, node: str, words: Sequence[str], stdin: bytes = b"") -> Completed:
        """Run a shell's words on a node."""
        command = self.backend.on_node(node, ["/bin/sh", "-c", *words], env=_ENV)
        return self.runner.run(replace(command, stdin=stdin), timeout_s=_STAGE_S)


def _packed(place: Path) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        archive.add(place, ".")
    return stream.getvalue()


@contextmanager
def staged(backend: Backend, runner: Runner, nodes: Sequence[str], place: Path) -> Iterator[Staged]:
    """Copy a directory to the nodes, and remove it there afterwards."""
    first = Staged(backend, runner, tuple(nodes), "")
    chosen = first.run(nodes[0], (_CHOOSE,))
    place_there = chosen.text.strip()
    if chosen.code != 0 or place_there not in _ROOTS:
        raise LaunchError(
            f"node {nodes[0]}: neither /run/shared nor /tmp is writable",
            "make one of them writable: programs with files need it",
        )
    there = replace(first, path=f"{place_there}/{new_name('work')}")
    content = _packed(place)
    try:
        for node in nodes:
            done = there.run(node, (_UNPACK, there.path), content)
            if done.code != 0:
                raise LaunchError(f"node {node}: {done.error_tail}", "make room for the input")
        yield there
    finally:
        for node in nodes:
            there.run(node, ('rm -rf -- "$0"', there.path))


_SIZE_S = 60.0
_MAX_TEXT = 2000
BY_VERBS = "verbs (as configured; not counted)"


@dataclass(frozen=True)
class Task:
    """One launch: workload, directory (None: it needs none), and streams."""

    workload: Workload
    place: Path | None
    ranks: int
    output: Output

    @property
    def argv(self) -> tuple[str, ...]:
        """The program with its arguments; raises LaunchError if the program is missing."""
        path = self.workload.path or program_path(self.workload.program, self.workload.mpi)
        return (str(path), *(fill_in(word, self.ranks) for word in self.workload.program.args))


@dataclass
class Starts:
    """Starts launches; the version of each MPI is read once."""

    runner: Runner
    _versions: dict[Mpi, str] = field(default_factory=dict)

    def start(self, task: Task, way: Way | Starter) -> Ended:
        """Start a launch, wait for its end, and return its end with the recorded facts."""
        if isinstance(way, Starter):
            return self._by_starter(task, way)
        nodes = way.chosen
        before = look(way.backend, self.runner, nodes)
        used = meter(self.runner, way.backend, nodes)
        start = self._as_pair if task.workload.module.sizes else self._as_job
        ended, carried = start(task, way, used)
        after = look(way.backend, self.runner, nodes)
        parts = [part.rpartition(":") for part in str(ended["nodes"]).split(",") if part]
        placement = [(name, int(count)) for name, _, count in parts]
        cpus = {n.name: ",".join(map(str, n.cpus)) for n in way.backend.status()}
        facts = facts_of(after, placement, cpus) | {"carried_by": carried} | used.energy.facts()
        return self._with_facts(ended, task.workload.mpi, (before, after), facts)

    def _with_facts(
        self,
        ended: Ended,
        mpi: Mpi | None,
        seen: tuple[NodeAnswers, NodeAnswers],
        facts: dict[str, str],
    ) -> Ended:
        wire, errors = sent_between(*seen)
        if mpi is not None:
            if mpi not in self._versions:
                self._versions[mpi] = mpi_version(mpi, self.runner)
            facts["mpi"] = self._versions[mpi]
        if errors:
            facts["port_errors"] = ", ".join(f"{name} +{n}" for name, n in errors.items())[
                :_MAX_TEXT
            ]
        return ended | {"wire_bytes": wire, "facts": facts}

    def _as_job(self, task: Task, way: Way, used: Meter) -> tuple[Ended, str]:
        if task.place is None:
            return self._job(task.argv, task, way, used)
        figures = task.workload.module.figures
        with staged(way.backend, self.runner, way.chosen, task.place) as there:
            argv = ("/bin/sh", "-c", _START, there.path, *task.argv)
            ended = self._job(argv, task, way, used)
            content = there.fetch(figures) if figures else None
        if content is not None:
            (task.place / figures.replace("*", "-")).write_bytes(content)
        return ended

    def _job(self, argv: tuple[str, ...], task: Task, way: Way, used: Meter) -> tuple[Ended, str]:
        workload, module = task.workload, task.workload.module
        program, *args = argv
        request = JobRequest(
            program=program,
            args=tuple(args),
            mpi=workload.mpi.value if workload.mpi else None,
            ranks=task.ranks,
            channels=way.channels,
            provider=way.provider,
            timeout_s=workload.timeout_s,
            idle_s=module.idle_s,
            env=module.environment(),
            nodes=way.nodes,
            stack=way.stack,
        )
        with used:
            result = run_job(way.backend, way.spec, request, self.runner, task.output)
        return job_fields(result, task.ranks), carried_by(result, way.stack)

    def _as_pair(self, task: Task, way: Way, used: Meter) -> tuple[Ended, str]:
        module = task.workload.module
        nodes = first_two(way.spec, way.nodes)
        with used:
            done = run_sizes(
                way.backend,
                self.runner,
                nodes,
                task.argv,
                module.sizes,
                output=task.output,
                size_s=module.idle_s or _SIZE_S,
            )
        return job_fields(done, 2) | {"hung_at": done.hung_at}, BY_VERBS

    def _by_starter(self, task: Task, way: Starter) -> Ended:
        module = task.workload.module
        words = (*(fill_in(word, task.ranks) for word in way.argv), *task.argv)
        env = {**os.environ, **module.environment()}
        before = look_here(self.runner)
        with meter(self.runner) as used:
            done = self.runner.attach(
                Command(words, env=env, cwd=task.place),
                stdout=task.output.stdout,
                stderr=task.output.stderr,
                timeout_s=task.workload.timeout_s,
                idle_s=module.idle_s,
            )
        after = look_here(self.runner)
        ended = beside_fields(done, task.ranks, "a launcher of the site started it")
        facts = facts_of(after, (), {}) | {"carried_by": f"{way.argv[0]} (not counted)"}
        facts |= used.energy.facts()
        return self._with_facts(ended, None, (before, after), facts)
