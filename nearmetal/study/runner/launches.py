# SPDX-License-Identifier: Apache-2.0
"""The run directory of a study: makes launches one at a time, and resumes after an interruption.

The manifest is written after every launch. Launches in the manifest are done; an interrupted launch
is not in it and runs again.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from nearmetal.cluster.backend import Backend
from nearmetal.cluster.spec import ClusterSpec
from nearmetal.core.errors import LaunchError, StateError
from nearmetal.core.process import Command, Runner
from nearmetal.evidence import Launch, Log, Manifest, parse_log, read_manifest, write_manifest
from nearmetal.evidence.manifest import FILE, STUDY_SUITE
from nearmetal.job.run import Output
from nearmetal.study.runner.collect import RawLaunch, check_room, find_pairs, now, sha256_of
from nearmetal.study.runner.environment import environment
from nearmetal.study.runner.starts import Starter, Starts, Task, Way, Workload
from nearmetal.study.runner.suite import PlannedLaunch
from nearmetal.study.runner.workloads import figures_in, lay_out

_LEADING_SIZE = re.compile(r"^\s*(?:\d+:\s+)?(\d+)\s", re.MULTILINE)
_PREPARE_S = 600.0


@dataclass
class Launches:
    """The run directory of a study, with the launches so far.

    Raises StateError if the directory belongs to another design.
    """

    directory: Path
    name: str
    design: str
    """Text of the study file: a directory has the launches of one design only."""
    clusters: Mapping[str, tuple[Backend, ClusterSpec]]
    runner: Runner
    launches: list[Launch] = field(default_factory=list)
    _manifest: Manifest | None = None
    _starts: Starts = field(init=False)

    def __post_init__(self) -> None:
        """Read the launches of an interrupted study, or begin."""
        self._starts = Starts(self.runner)
        (self.directory / "raw").mkdir(parents=True, exist_ok=True)
        if (self.directory / FILE).exists():
            self._manifest = read_manifest(self.directory)
            if self._manifest.spec != self.design:
                raise StateError(
                    f"{self.directory} has launches of another study file",
                    "give another --output, or the former study file",
                )
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
            name=self.name,
            suite=STUDY_SUITE,
            blocks=0,
            started=now(),
            finished="",
            spec=self.design,
            environment=environment(nodes),
            locality=tuple(pairs),
            launches=(),
        )

    def done(self, block: int, workload: str, arm: str) -> bool:
        """Return whether this launch was made, also if it failed."""
        return any(
            (launch.block, launch.program, launch.arm) == (block, workload, arm)
            for launch in self.launches
        )

    def make(self, block: int, workload: Workload, arm: str, way: Way | Starter) -> Launch:
        """Make a launch and record it, also if it failed."""
        step = PlannedLaunch(block, workload.program, None, None)
        raw = RawLaunch(self.directory, len(self.launches) + 1, step, f"{arm}-{workload.name}")
        ranks = min(workload.ranks, workload.program.max_ranks or workload.ranks)
        place = self._place(workload, raw.stem, ranks)
        with raw.streams() as output:
            self._prepare(workload, place, output, raw.stem)
            ended = self._starts.start(Task(workload, place, ranks, output), way)
        check_room(self.directory)
        figures = self._keep_figures(workload, place, raw.stem)
        launch = raw.record(ended, arm=arm, program=workload.name, **figures)
        if launch.timed_out:
            launch = launch.model_copy(update={"hung_at": self._hung_at(workload, launch)})
        if launch.good and place is not None:
            shutil.rmtree(place, ignore_errors=True)
        self.launches.append(launch)
        self._write("")
        return launch

    def _place(self, workload: Workload, stem: str, ranks: int) -> Path | None:
        """Make the directory of a launch; None: the program neither reads nor writes files."""
        module = workload.module
        if not (module.inputs or module.figures or workload.given):
            return None
        place = self.directory.absolute() / "work" / stem.removeprefix("raw/")
        # An interrupted launch leaves its directory.
        shutil.rmtree(place, ignore_errors=True)
        lay_out(module, workload.given, place, ranks)
        return place

    def _prepare(self, workload: Workload, place: Path | None, output: Output, stem: str) -> None:
        """Run the programs that prepare the input; this time is not measured."""
        if workload.given is not None:
            return
        for words in workload.module.before:
            env = {**os.environ, **workload.module.environment()}
            command = Command(words, env=env, cwd=place)
            err = output.stderr
            done = self.runner.attach(command, stdout=err, stderr=err, timeout_s=_PREPARE_S)
            if done.code != 0:
                file = self.directory / f"{stem}.err"
                raise LaunchError(f"{workload.name}: {' '.join(words)} failed", f"read {file}")

    def _keep_figures(self, workload: Workload, place: Path | None, stem: str) -> dict[str, object]:
        """Keep the file with the figures, if the program wrote one."""
        module = workload.module
        if not module.figures or place is None:
            return {"log": module.program.log}
        found = figures_in(module, place)
        if found is None:
            return {"log": "stdout"}
        kept = self.directory / f"{stem}.figures"
        shutil.copyfile(found, kept)
        return {"log": "figures", "figures": f"{stem}.figures", "figures_sha256": sha256_of(kept)}

    def _hung_at(self, workload: Workload, launch: Launch) -> int | None:
        """Return the size at which a launch hung: the size after the last printed one."""
        if launch.hung_at is not None or not workload.module.doubling:
            return launch.hung_at
        last = self.last_size(launch)
        return None if last is None else max(1, 2 * last)

    def _write(self, finished: str) -> None:
        assert self._manifest is not None  # noqa: S101 - made when this was
        blocks = max((launch.block for launch in self.launches), default=-1) + 1
        update = {"launches": tuple(self.launches), "blocks": blocks, "finished": finished}
        self._manifest = self._manifest.model_copy(update=update)
        write_manifest(self.directory, self._manifest)

    def finish(self) -> None:
        """Record the end of the study."""
        self._write(now())

    def log(self, launch: Launch) -> Log:
        """Return the parsed log of a launch; raises LogError with file and line."""
        path = self.directory / launch.file
        text = path.read_text(encoding="utf-8", errors="replace")
        return parse_log(text, str(path), launch.log_format)

    def last_size(self, launch: Launch) -> int | None:
        """Return the last message size that a launch printed; a hang is at a larger size."""
        text = (self.directory / launch.file).read_text(encoding="utf-8", errors="replace")
        sizes = _LEADING_SIZE.findall(text)
        return int(sizes[-1]) if sizes else None
