# SPDX-License-Identifier: Apache-2.0
"""`nearmetal study run`: run the launches of a study file in random blocks until they suffice."""

from __future__ import annotations

import fcntl
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from nearmetal.cli.bench import choose_mpis
from nearmetal.cli.target import open_running
from nearmetal.cli.verbs import Subparsers, add_verb
from nearmetal.core.errors import ExitCode, LaunchError, LockedError, UsageError
from nearmetal.core.process import LocalRunner
from nearmetal.evidence.model import NEUTRAL
from nearmetal.evidence.parse import PARSERS
from nearmetal.job.mpi import Mpi, Provider
from nearmetal.job.mpi.installed import linked_family
from nearmetal.study.design import Design, Turn, block, load_design, unsettled
from nearmetal.study.labels import FILE as LABELS_FILE
from nearmetal.study.runner.collect import program_path
from nearmetal.study.runner.launches import Launches
from nearmetal.study.runner.starts import Starter, Way, Workload, way_of
from nearmetal.study.runner.suite import Program, Where
from nearmetal.study.runner.workloads import WORKLOADS, Module

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from nearmetal.cli.view import View
    from nearmetal.cluster.backend import Backend
    from nearmetal.cluster.spec import ClusterSpec
    from nearmetal.core.progress import Progress
    from nearmetal.evidence import Launch
    from nearmetal.study.design import WorkloadDesign

_GIVE_UP = 3
"""So many failures of one workload in one arm end a study: the next would fail too."""


def register(subparsers: Subparsers) -> None:
    """Add the verb."""
    parser = add_verb(
        subparsers,
        "run",
        run,
        "run the launches of a study file, or resume them",
        "nearmetal study run examples/near-or-tcp.yaml --output results/near-or-tcp",
    )
    parser.add_argument(
        "file", metavar="STUDY.yaml", type=Path, help="study file, see nearmetal-study(1)"
    )
    parser.add_argument(
        "--output",
        metavar="DIR",
        type=Path,
        help="directory for the results; the command creates it, or resumes the study in it (default: results/NAME)",
    )


def _module(name: str, design: WorkloadDesign) -> tuple[Module, Path | None]:
    """Return what a workload is, and where its program lies if the study says it."""
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
    """Return the MPI of a workload: what the study says, else the first that fits its program."""
    if module.sizes:
        return None
    installed = choose_mpis(None)
    fit = [mpi for mpi in installed if mpi in module.program.mpis]
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
    """Return a workload; `by_mpi`: an arm starts it by an MPI that we know."""
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
    """Say what the arms are, for `study import`."""
    import yaml  # noqa: PLC0415 - slow to load, and only here

    arms = {
        name: arm.model_dump(exclude={"cluster", "start", "way", "nodes"}, exclude_none=True)
        for name, arm in design.arms.items()
    }
    labels = {"format": 1, "run": design.name, "arms": arms, "sources": []}
    (directory / LABELS_FILE).write_text(yaml.safe_dump(labels, sort_keys=False), encoding="utf-8")


@contextmanager
def _alone(directory: Path) -> Iterator[None]:
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / ".lock").open("w") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise LockedError(
                f"{directory}: a study runs there already", "wait for it, or give another --output"
            ) from error
        yield


class _Study:
    """One study under way."""

    def __init__(self, design: Design, text: str, directory: Path, view: View) -> None:
        self.design, self.view = design, view
        by_mpi = any(arm.cluster is not None for arm in design.arms.values())
        self.workloads = {
            name: _workload(name, w, by_mpi=by_mpi) for name, w in design.workloads.items()
        }
        names = dict.fromkeys(arm.cluster for arm in design.arms.values() if arm.cluster)
        clusters = {name: open_running(name) for name in names}
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
        told = self.design.arms[arm]
        if told.cluster is None:
            if workload.module.sizes:
                raise UsageError(
                    f"arm {arm}: {workload.name} runs on two nodes of a cluster",
                    "give the arm a cluster instead of start",
                )
            return Starter(tuple(told.start or ()))
        backend, spec = opened[told.cluster]
        known = [node.name for _, node in spec.nodes]
        for name in told.nodes or ():
            if name not in known:
                raise UsageError(
                    f"arm {arm}: no node {name!r} in {spec.name}", f"nodes: {', '.join(known)}"
                )
        nodes = tuple(told.nodes or ())
        if workload.mpi is None:
            return Way(backend, spec, Provider.STOCK, None, None, nodes)
        return way_of(told.way, workload.mpi, backend, spec, nodes)

    def _take(self, launch: Launch) -> None:
        """Take the figures of a launch, or count its failure."""
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
                            table.variant,
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
        self.view.warn(
            f"{turn.arm}, {turn.workload}: {how}", f"read {self.launches.directory / launch.stderr}"
        )
        if self.failures[turn.arm, turn.workload] >= _GIVE_UP:
            raise LaunchError(
                f"{turn.workload} failed {_GIVE_UP} times in arm {turn.arm}",
                "mend it, then start the study with a new --output",
            )

    def go_on(self, steps: Progress) -> str:
        """Make launches until they settle it; returns why it ended."""
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


def run(args: argparse.Namespace, view: View) -> int:
    """Run or go on; exit code 1 when launches failed."""
    # Which port of which adapter perftest takes, only the site knows.
    pairs = [name for name, module in WORKLOADS.items() if module.sizes]
    design = load_design(args.file, WORKLOADS, pairs)
    directory: Path = args.output or Path("results") / design.name
    with _alone(directory):
        study = _Study(design, args.file.read_text(encoding="utf-8"), directory, view)
        with view.steps(f"study {design.name}") as steps:
            why = study.go_on(steps)
        study.launches.finish()
    made = study.launches.launches
    failed = sum(not launch.good for launch in made)
    wide = len(unsettled(study.values, design.launches))
    data = {
        "directory": str(directory),
        "launches": len(made),
        "failed": failed,
        "ended": why,
        "unsettled": wide,
    }
    view.result(
        data,
        [
            f"{len(made)} launches, {failed} failed: {why}",
            f"{wide} of {len(study.values)} intervals are wider than wanted",
            f"now `nearmetal study import {directory}`",
        ],
    )
    return ExitCode.ERROR if failed else ExitCode.DONE
