# SPDX-License-Identifier: Apache-2.0
"""A study under way: the launches of its design in random blocks, until they suffice."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import yaml

from nearmetal.cluster.apply import Cluster
from nearmetal.cluster.backend import Backend
from nearmetal.cluster.spec import ClusterSpec
from nearmetal.core.errors import LaunchError, UsageError
from nearmetal.core.process import LocalRunner
from nearmetal.core.progress import Progress
from nearmetal.evidence import Launch
from nearmetal.evidence.model import NEUTRAL
from nearmetal.evidence.parse import PARSERS
from nearmetal.job.mpi import Mpi, Provider, find_installations
from nearmetal.job.mpi.installed import linked_family
from nearmetal.study.design import Design, Turn, WorkloadDesign, block, unsettled
from nearmetal.study.labels import FILE as LABELS_FILE
from nearmetal.study.runner.collect import program_path
from nearmetal.study.runner.launches import Launches
from nearmetal.study.runner.starts import Starter, Way, Workload, way_of
from nearmetal.study.runner.suite import Program, Where
from nearmetal.study.runner.workloads import WORKLOADS, Module

_GIVE_UP = 3
"""Failures of one workload in one arm that end a study: the next launch would fail too."""


class StudySession:
    """One study under way."""

    def __init__(
        self,
        design: Design,
        text: str,
        directory: Path,
        open_cluster: Callable[[str], tuple[Cluster, ClusterSpec]],
        warn: Callable[[str, str], None],
    ) -> None:
        """`text` is the design as the user wrote it; `warn` shows a failure and a hint."""
        self.design, self._warn = design, warn
        by_mpi = any(arm.cluster is not None for arm in design.arms.values())
        self.workloads = {
            name: _workload(name, w, by_mpi=by_mpi) for name, w in design.workloads.items()
        }
        names = dict.fromkeys(arm.cluster for arm in design.arms.values() if arm.cluster)
        clusters = {name: open_cluster(name) for name in names}
        opened = {name: (cluster.backend, spec) for name, (cluster, spec) in clusters.items()}
        self.ways = {
            (arm, name): self._way(arm, workload, opened)
            for arm in design.arms
            for name, workload in self.workloads.items()
        }
        self.launches = Launches(directory, design.name, text, opened, LocalRunner())
        _write_labels(design, directory)
        self.values: dict[tuple[object, ...], list[float]] = {}
        self.failures: Counter[tuple[str, str]] = Counter()
        for launch in self.launches.launches:
            self._take(launch)

    def _way(
        self, arm: str, workload: Workload, opened: dict[str, tuple[Backend, ClusterSpec]]
    ) -> Way | Starter:
        wanted = self.design.arms[arm]
        if wanted.cluster is None:
            if workload.module.sizes:
                raise UsageError(
                    f"arm {arm}: {workload.name} runs on two nodes of a cluster",
                    "give the arm a cluster instead of start",
                )
            return Starter(tuple(wanted.start or ()))
        backend, spec = opened[wanted.cluster]
        known = [node.name for _, node in spec.nodes]
        for name in wanted.nodes or ():
            if name not in known:
                raise UsageError(
                    f"arm {arm}: no node {name!r} in {spec.name}", f"nodes: {', '.join(known)}"
                )
        nodes = tuple(wanted.nodes or ())
        if workload.mpi is None:
            return Way(backend, spec, Provider.STOCK, None, None, nodes)
        return way_of(wanted.way, workload.mpi, backend, spec, nodes)

    def _take(self, launch: Launch) -> None:
        """Keep the figures of a launch, or count its failure."""
        if not launch.good:
            self.failures[launch.arm, launch.program] += 1
            return
        for table in self.launches.log(launch).tables:
            units = {column.metric: column.unit for column in table.columns}
            for row in table.rows:
                for metric, value in row.values.items():
                    if metric != "size" and units[metric] not in NEUTRAL:
                        key = (
                            launch.arm,
                            launch.program,
                            table.test,
                            table.setup_of(row),
                            row.values.get("size"),
                            metric,
                        )
                        self.values.setdefault(key, []).append(value)

    def _make(self, turn: Turn) -> None:
        launch = self.launches.make(
            turn.block, self.workloads[turn.workload], turn.arm, self.ways[turn.arm, turn.workload]
        )
        self._take(launch)
        if launch.good:
            return
        how = f"exit code {launch.exit_code}"
        if launch.hung_at is not None:
            how = f"hung at {launch.hung_at} bytes"
        elif launch.timed_out:
            size = self.launches.last_size(launch)
            how = "hung" + (f" beyond {size} bytes" if size is not None else "")
        self._warn(
            f"{turn.arm}, {turn.workload}: {how}", f"read {self.launches.directory / launch.stderr}"
        )
        if self.failures[turn.arm, turn.workload] >= _GIVE_UP:
            raise LaunchError(
                f"{turn.workload} failed {_GIVE_UP} times in arm {turn.arm}",
                "fix it, then start the study with a new --output",
            )

    def run(self, steps: Progress) -> str:
        """Make launches until they suffice; returns the reason for the end."""
        wanted = self.design.launches
        per_block = len(self.design.arms) * len(self.workloads)
        steps.begin(wanted.most * per_block)
        end = time.monotonic() + wanted.budget_minutes * 60
        number = 0
        while number < wanted.most:
            if number >= wanted.least and not unsettled(self.values, wanted):
                return f"every interval is within {wanted.interval_percent:g} %"
            for turn in block(self.design, number):
                left = max(0.0, end - time.monotonic()) / 60
                steps.step(
                    f"block {number + 1}: {turn.workload}, {turn.arm}; at most {left:.0f} min left"
                )
                if self.launches.done(*turn):
                    continue
                if left == 0:
                    return f"the budget of {wanted.budget_minutes:g} minutes is spent"
                self._make(turn)
            number += 1
        return f"{wanted.most} launches were made of everything"


def _module(name: str, design: WorkloadDesign) -> tuple[Module, Path | None]:
    """Return a workload, and the path of its program if the study names one."""
    if design.use is not None:
        module = WORKLOADS[design.use]
        if module.needs_input and design.input is None:
            raise UsageError(f"workload {name}: {design.use} needs input: DIR", module.summary)
        if design.args:
            module = replace(module, program=replace(module.program, args=tuple(design.args)))
        return module, None
    path = Path(design.program or "").absolute()
    if not path.is_file():
        raise UsageError(f"workload {name}: no program {path}", "give the path of a program")
    if design.log_format not in PARSERS:
        raise UsageError(
            f"workload {name}: no format {design.log_format!r}", f"known: {', '.join(PARSERS)}"
        )
    program = Program(
        name, path.name, Where.SYSTEM, tuple(design.args), design.log_format, log=design.log
    )
    return Module("named in the study", program), path


def _mpi(name: str, design: WorkloadDesign, module: Module, path: Path | None) -> Mpi | None:
    """Return the MPI of a workload: that of the study, else the first that fits its program."""
    if module.sizes:
        return None
    fit = [found for found in find_installations() if found in module.program.mpis]
    if design.mpi is not None:
        fit = [mpi for mpi in fit if mpi.value == design.mpi]
    elif module.program.where is Where.SITE:
        fit = _linked(path or program_path(module.program, None), fit)
    if not fit:
        names = ", ".join(mpi.value for mpi in module.program.mpis)
        raise UsageError(
            f"workload {name} cannot run under {design.mpi or 'what is installed'}",
            f"it runs under: {names}",
        )
    return fit[0]


def _linked(program: Path, fit: list[Mpi]) -> list[Mpi]:
    """Return the MPIs that a program of the site can run under, the distribution's own first."""
    family = linked_family(program)
    fit = [mpi for mpi in fit if family in (None, mpi.family)]
    ours = Mpi.OPENMPI4 if program.is_relative_to("/usr/bin") else None
    return sorted(fit, key=lambda mpi: mpi is not ours)


def _workload(name: str, design: WorkloadDesign, *, by_mpi: bool) -> Workload:
    """Return a workload; `by_mpi`: an arm starts it with a known MPI."""
    module, path = _module(name, design)
    given = None if design.input is None else Path(design.input).absolute()
    if given is not None and not given.is_dir():
        raise UsageError(f"workload {name}: no input directory {given}", "name a directory")
    mpi = _mpi(name, design, module, path) if by_mpi else None
    if path is None and (mpi is not None or module.program.where is not Where.PROGRAMS):
        program_path(module.program, mpi)
    return Workload(
        name, module, mpi, design.ranks, path, given, design.timeout_s or module.program.timeout_s
    )


def _write_labels(design: Design, directory: Path) -> None:
    """Describe the arms for `study import`."""
    arms = {
        name: arm.model_dump(exclude={"cluster", "start", "way", "nodes"}, exclude_none=True)
        for name, arm in design.arms.items()
    }
    labels = {"format": 1, "run": design.name, "arms": arms, "sources": []}
    (directory / LABELS_FILE).write_text(yaml.safe_dump(labels, sort_keys=False), encoding="utf-8")
