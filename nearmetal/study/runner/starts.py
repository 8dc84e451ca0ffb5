# SPDX-License-Identifier: Apache-2.0
"""Starts one launch of a study, by whatever starts it, and says what was true of it."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING

from nearmetal.core.process import Command
from nearmetal.evidence import ChannelProof
from nearmetal.job.run import JobRequest, Output, run_job
from nearmetal.study.runner.collect import Ended, job_fields, program_path
from nearmetal.study.runner.pairs import first_two, run_sizes
from nearmetal.study.runner.probe import (
    Seen,
    carried_by,
    facts_of,
    look,
    look_here,
    mpi_version,
    sent_between,
)
from nearmetal.study.runner.staging import staged
from nearmetal.study.runner.ways import Starter, Way, Workload
from nearmetal.study.runner.workloads import fill_in

if TYPE_CHECKING:
    from pathlib import Path

    from nearmetal.core.process import Runner
    from nearmetal.job.mpi import Mpi

_SIZE_S = 60.0
_MAX_TEXT = 2000
BY_VERBS = "verbs (as set; not counted)"


@dataclass(frozen=True)
class Task:
    """One launch to make: in which directory (None: it needs none), and where its streams go."""

    workload: Workload
    place: Path | None
    ranks: int
    stdout: IO[bytes]
    stderr: IO[bytes]

    @property
    def argv(self) -> tuple[str, ...]:
        """The program with its arguments; raises LaunchError when it is not there."""
        path = self.workload.path or program_path(self.workload.program, self.workload.mpi)
        return (str(path), *(fill_in(word, self.ranks) for word in self.workload.program.args))


@dataclass
class Starts:
    """Starts launches; what an MPI says about its version is asked once."""

    runner: Runner
    _versions: dict[Mpi, str] = field(default_factory=dict)

    def start(self, task: Task, way: Way | Starter) -> Ended:
        """Start, wait for the end, and say how it ended and what was true of it."""
        if isinstance(way, Starter):
            return self._by_starter(task, way)
        nodes = [n.name for _, n in way.spec.nodes if n.name in way.nodes or not way.nodes]
        before = look(way.backend, self.runner, nodes)
        ended, carried = (
            self._as_pair(task, way) if task.workload.module.sizes else self._as_job(task, way)
        )
        after = look(way.backend, self.runner, nodes)
        parts = [part.rpartition(":") for part in str(ended.fields["nodes"]).split(",") if part]
        placement = [(name, int(count)) for name, _, count in parts]
        cpus = {n.name: ",".join(map(str, n.cpus)) for n in way.backend.status()}
        facts = facts_of(after, placement, cpus) | {"carried_by": carried}
        return self._with_facts(ended, task.workload.mpi, (before, after), facts)

    def _with_facts(
        self, ended: Ended, mpi: Mpi | None, seen: tuple[Seen, Seen], facts: dict[str, str]
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
        return Ended({**ended.fields, "wire_bytes": wire, "facts": facts})

    def _as_job(self, task: Task, way: Way) -> tuple[Ended, str]:
        if task.place is None:
            return self._job(task.argv, task, way)
        nodes = [n.name for _, n in way.spec.nodes if n.name in way.nodes or not way.nodes]
        figures = task.workload.module.figures
        with staged(way.backend, self.runner, nodes, task.place) as there:
            ended = self._job(there.argv(task.argv), task, way)
            content = there.fetch(figures) if figures else None
        if content is not None:
            (task.place / figures.replace("*", "-")).write_bytes(content)
        return ended

    def _job(self, argv: tuple[str, ...], task: Task, way: Way) -> tuple[Ended, str]:
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
        streams = Output(stdout=task.stdout, stderr=task.stderr)
        result = run_job(way.backend, way.spec, request, self.runner, streams)
        return job_fields(result, task.ranks), carried_by(result, way.stack)

    def _as_pair(self, task: Task, way: Way) -> tuple[Ended, str]:
        module = task.workload.module
        nodes = first_two(way.spec, way.nodes)
        done = run_sizes(
            way.backend,
            self.runner,
            nodes,
            task.argv,
            module.sizes,
            output=(task.stdout, task.stderr),
            size_s=module.idle_s or _SIZE_S,
        )
        ended = Ended(
            {
                "ranks": 2,
                "nodes": ",".join(f"{name}:1" for name in done.nodes),
                "seconds": done.seconds,
                "exit_code": done.exit_code,
                "timed_out": done.hung_at is not None,
                "hung_at": done.hung_at,
                "argv": done.argv,
                "env": {},
                "proof": ChannelProof(verdict="not asked", reason="it is no job of an MPI"),
            }
        )
        return ended, BY_VERBS

    def _by_starter(self, task: Task, way: Starter) -> Ended:
        module = task.workload.module
        words = (*(fill_in(word, task.ranks) for word in way.argv), *task.argv)
        env = {**os.environ, **module.environment()}
        before = look_here(self.runner)
        done = self.runner.attach(
            Command(words, env=env, cwd=task.place),
            stdout=task.stdout,
            stderr=task.stderr,
            timeout_s=task.workload.timeout_s,
            idle_s=module.idle_s,
        )
        after = look_here(self.runner)
        ended = Ended(
            {
                "ranks": task.ranks,
                "nodes": "",
                "seconds": done.seconds,
                "exit_code": done.code if done.code >= 0 else 128 - done.code,
                "timed_out": done.timed_out,
                "argv": words,
                "env": {},
                "proof": ChannelProof(
                    verdict="not asked", reason="the site's own launcher started it"
                ),
            }
        )
        facts = facts_of(after, (), {}) | {"carried_by": f"{way.argv[0]} (not counted)"}
        return self._with_facts(ended, None, (before, after), facts)
