# SPDX-License-Identifier: Apache-2.0
"""Measure the algorithms of an MPI's collectives in a cluster, and write rules for the faster ones.

A round makes one launch of the MPI's own choice and one of each algorithm, in turn. Each launch is
kept in the directory, and an interrupted measurement resumes there.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median

from nearmetal.cluster.backend import Backend
from nearmetal.cluster.spec import ClusterSpec
from nearmetal.core.errors import LaunchError, LogError, StateError, UsageError
from nearmetal.core.files import read_json, remove_file, replace_file
from nearmetal.core.process import Runner
from nearmetal.core.progress import Progress
from nearmetal.evidence import parse_log
from nearmetal.job.collectives import library_digest, mpi_library, read_rules, write_rules
from nearmetal.job.mpi import Installation, MapBy, Mpi
from nearmetal.job.mpi.launcher import place
from nearmetal.job.mpi.rules import (
    AlgorithmChoice,
    Rules,
    algorithms,
    own_tree,
    rules_for,
    whole_collective,
)
from nearmetal.job.run import (
    JobRequest,
    JobResult,
    Output,
    check_visible,
    crowded,
    meets_in_memory,
    run_job,
)
from nearmetal.study.choose import OWN, Gain, choose, choose_whole, gains, promising, ranges
from nearmetal.study.runner.collect import check_room, now

_SCREEN_ROUNDS = 2
_MOST_CONFIRMED = 3
_START_S = 60.0
_TRIES = 2
_WRONG = "FAILED rank"
_PLAN = "plan.json"

StartJob = Callable[[Backend, ClusterSpec, JobRequest, Runner, Output], JobResult]

Place = tuple[str, int]
"""A collective and a size."""


@dataclass(frozen=True)
class TuningPlan:
    """What is measured. `seconds`: time of each size in a launch."""

    ranks: tuple[int, ...]
    collectives: tuple[str, ...]
    sizes: tuple[int, ...]
    launches: int
    seconds: float


@dataclass(frozen=True)
class TunedPoint:
    """One collective and size: what the rules choose, and what that gained in a new measurement.

    `algorithm` "": the MPI's own choice stays.
    """

    collective: str
    ranks: int
    size: int
    own_us: float
    algorithm: str
    ratio: float | None
    low: float | None
    high: float | None


@dataclass
class TunedMpi:
    """The result for one MPI. `file` None: nothing was faster, so there are no rules."""

    mpi: Mpi
    library: str
    file: Path | None = None
    points: list[TunedPoint] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    """Algorithms that failed, and why."""


class _FailedLaunchError(Exception):
    """A launch whose figures cannot be used; the text is the reason."""


@dataclass
class CollectiveTuner:
    """The measurement of one MPI in one cluster.

    Raises UsageError, StateError or LaunchError if it cannot be made.
    """

    backend: Backend
    spec: ClusterSpec
    runner: Runner
    directory: Path
    installation: Installation
    plan: TuningPlan
    progress: Progress
    program: Path
    """The program `mpi_patterns`, compiled for this MPI."""
    start: StartJob = run_job

    def __post_init__(self) -> None:
        """Check what can be wrong, and make or resume the directory."""
        self.directory = self.directory.absolute()
        self.mpi = self.installation.mpi
        plan, spec, installation = self.plan, self.spec, self.installation
        if not self.backend.shares_files:
            raise LaunchError(
                "these nodes do not see the files of this machine, which has the rules",
                "use a cluster with `backend: local`",
            )
        if whole_collective(self.mpi) and len(plan.ranks) > 1:
            raise UsageError(
                f"{self.mpi.title} has no rules for a number of ranks", "give one number with -n"
            )
        slots = [(node.name, node.slots) for _, node in spec.nodes]
        self.places = {n: place(slots, n, MapBy.SLOT) for n in plan.ranks}
        for placement in self.places.values():
            near = meets_in_memory(spec, placement, None, apart=bool(self.backend.apart))
            if self.mpi is Mpi.OPENMPI5 and not near:
                raise UsageError(
                    "Open MPI 5 has its own component for several hosts, which no rules replace",
                    "use a cluster on one host, or another MPI",
                )
        self.own = (
            own_tree(mpi_library(installation).read_bytes()) if self.mpi is Mpi.MPICH5 else None
        )
        self.result = TunedMpi(self.mpi, "")
        self._claim()

    def crowded(self) -> bool:
        """Whether ranks share cores in any measurement."""
        return any(crowded(self.spec, self.backend, p) for p in self.places.values())

    def _claim(self) -> None:
        """Make the directory of this measurement, or resume it; raises StateError for another."""
        wanted = {
            "spec": self.spec.canonical(),
            "mpi": self.mpi.value,
            "library": library_digest(self.installation),
            **json.loads(json.dumps(asdict(self.plan))),
        }
        path = self.directory / f"{self.mpi.value}-{_PLAN}"
        try:
            (self.directory / "raw").mkdir(parents=True, exist_ok=True)
            if path.exists():
                if read_json(path) != wanted:
                    raise StateError(
                        f"{self.directory} has another measurement of {self.mpi.title}",
                        "give another --output, or the former options to resume it",
                    )
            else:
                replace_file(path, json.dumps(wanted, indent=1) + "\n", mode=0o644, sync=False)
        except (OSError, ValueError) as error:
            raise LaunchError(
                f"cannot use {self.directory}: {error}", "give another --output"
            ) from error
        for node in self.backend.status():
            check_visible(self.backend, self.runner, node.name, path, "the directory of")

    def tune(self) -> TunedMpi:
        """Measure, choose, write the rules, and measure what they gain; raises LaunchError."""
        try:
            return self._tune()
        except OSError as error:
            raise LaunchError(
                f"cannot use {self.directory}: {error}", "free some space, or give another --output"
            ) from error

    def _tune(self) -> TunedMpi:
        choices: list[AlgorithmChoice] = []
        for ranks in self.plan.ranks:
            times: dict[Place, dict[str, list[float]]] = {}
            for name in self.plan.collectives:
                times |= self._collective(name, ranks)
            decide = choose_whole if whole_collective(self.mpi) else choose
            choices += self._choices(ranks, decide(times))
        target = self.directory / f"{self.mpi.value}.env"
        proven = self._prove(choices)
        kept = [c for c in choices if self._gained(c, proven)]
        self._report(kept, proven)
        if kept:
            self.result.file = self._write(kept)
        else:
            remove_file(target)
            remove_file(self.directory / f"{self.mpi.value}.rules")
        return self.result

    def _collective(self, name: str, ranks: int) -> dict[Place, dict[str, list[float]]]:
        known = algorithms(self.mpi, name, ranks)
        if not known:
            self.result.refused[name] = "an algorithm would also serve operations that it breaks"
            return {}
        self.progress.begin(_SCREEN_ROUNDS * (len(known) + 1))
        first = self._rounds("screen", name, ranks, known, _SCREEN_ROUNDS)
        sizes = {size: of for (_, size), of in first.items()}
        chosen = promising(sizes, _MOST_CONFIRMED)
        if not chosen:
            return {}
        self.progress.begin(self.plan.launches * (len(chosen) + 1))
        return self._rounds("confirm", name, ranks, chosen, self.plan.launches)

    def _rounds(
        self, stage: str, name: str, ranks: int, known: Sequence[str], rounds: int
    ) -> dict[Place, dict[str, list[float]]]:
        """Return the times of the MPI's own choice and of algorithms, by place and round."""
        times: dict[Place, dict[str, list[float]]] = {}
        left = [OWN, *known]
        for number in range(rounds):
            # The order changes, so that no algorithm always follows the same one.
            turn = left[number % len(left) :] + left[: number % len(left)]
            for algorithm in turn:
                self.progress.step(f"{ranks} ranks, {name}, {algorithm or 'own choice'}")
                variables = self._forced(name, ranks, algorithm)
                stem = f"{stage}-{ranks}-{name}-{algorithm or 'own'}-{number}"
                try:
                    found = self._launch(stem, ranks, [name], variables)
                except _FailedLaunchError as error:
                    if algorithm == OWN:
                        raise LaunchError(
                            f"{self.mpi.title}, {name}, its own choice: {error}",
                            f"read {self.directory}/raw/{self.mpi.value}-{stem}.err",
                        ) from error
                    self.result.refused[f"{name} {algorithm}, {ranks} ranks"] = str(error)
                    left.remove(algorithm)
                    for of in times.values():
                        of.pop(algorithm, None)
                    continue
                for place_, value in found.items():
                    times.setdefault(place_, {}).setdefault(algorithm, []).append(value)
        return times

    def _forced(self, name: str, ranks: int, algorithm: str) -> dict[str, str]:
        """Return the variables that let an algorithm serve all sizes; of the same kind as rules."""
        if algorithm == OWN:
            return {}
        choice = AlgorithmChoice(name, ranks, 0, None, algorithm)
        rules = rules_for(self.mpi, [choice], self.own)
        return self._variables(rules, f"{self.mpi.value}-{name}-{ranks}-{algorithm}.rules")

    def _variables(self, rules: Rules, file: str) -> dict[str, str]:
        variables = dict(rules.variables)
        if rules.file:
            path = self.directory / "raw" / file
            replace_file(path, rules.file, mode=0o644, sync=False)
            variables[rules.variable] = str(path)
        return variables

    def _launch(
        self, stem: str, ranks: int, names: Sequence[str], variables: Mapping[str, str]
    ) -> dict[Place, float]:
        """Return the times of a launch, which may be a former one; tries again after a failure."""
        for attempt in range(_TRIES):
            base = self.directory / "raw" / f"{self.mpi.value}-{stem}"
            if not base.with_suffix(".json").exists():
                self._run(base, ranks, names, variables)
            try:
                return self._read(base, names)
            except _FailedLaunchError as error:
                if _WRONG in str(error) or attempt == _TRIES - 1:
                    raise
                remove_file(base.with_suffix(".json"))
        raise AssertionError  # the last attempt returns or raises

    def _run(
        self, base: Path, ranks: int, names: Sequence[str], variables: Mapping[str, str]
    ) -> None:
        plan = self.plan
        points = len(names) * len(plan.sizes)
        request = JobRequest(
            program=str(self.program),
            args=(
                *("-p", ",".join(names), "-t", str(plan.seconds)),
                *("-s", ",".join(map(str, plan.sizes))),
            ),
            mpi=self.mpi.value,
            ranks=ranks,
            env=variables,
            timeout_s=_START_S + points * max(10.0, 10 * plan.seconds),
        )
        with base.with_suffix(".out").open("wb") as out, base.with_suffix(".err").open("wb") as err:
            ended = self.start(
                self.backend, self.spec, request, self.runner, Output(stdout=out, stderr=err)
            )
        check_room(self.directory)
        record = {"exit_code": ended.exit_code, "timed_out": ended.timed_out}
        replace_file(base.with_suffix(".json"), json.dumps(record), mode=0o644, sync=False)

    def _read(self, base: Path, names: Iterable[str]) -> dict[Place, float]:
        record = read_json(base.with_suffix(".json"))
        if not isinstance(record, dict) or record.keys() != {"exit_code", "timed_out"}:
            raise _FailedLaunchError("its record is damaged")
        if record["timed_out"]:
            raise _FailedLaunchError("it did not end in time")
        if record["exit_code"] != 0:
            lines = base.with_suffix(".err").read_text("utf-8", "replace").splitlines()
            wrong = [line for line in lines if line.startswith(_WRONG)]
            raise _FailedLaunchError(wrong[0] if wrong else f"exit code {record['exit_code']}")
        path = base.with_suffix(".out")
        try:
            log = parse_log(path.read_text("utf-8", "replace"), str(path), "nearmetal-bench")
        except (OSError, LogError) as error:
            raise _FailedLaunchError(f"its output is damaged: {error}") from error
        self.result.library = log.header.get("library", "")
        found = {}
        for name in names:
            table = log.table(name)
            for row in table.rows if table else ():
                found[name, int(row.values["size"])] = row.values["time_p2"]
        return found

    def _choices(self, ranks: int, chosen: Mapping[Place, Gain]) -> list[AlgorithmChoice]:
        found = []
        for name in self.plan.collectives:
            of = {size: gain.algorithm for (n, size), gain in chosen.items() if n == name}
            if of and whole_collective(self.mpi):
                found.append(AlgorithmChoice(name, ranks, 0, None, next(iter(of.values()))))
            elif of:
                parts = ranges(self.plan.sizes, of)
                found += [AlgorithmChoice(name, ranks, low, high, a) for low, high, a in parts]
        return found

    def _prove(self, choices: Sequence[AlgorithmChoice]) -> dict[tuple[str, int, int], Gain]:
        """Measure the rules as a job uses them against the MPI's own choices, in turn."""
        if not choices:
            return {}
        rules = rules_for(self.mpi, choices, self.own)
        write_rules(self.directory, self.installation, rules, ["not complete"])
        saved = read_rules(self.directory, self.installation)
        found: dict[tuple[str, int, int], Gain] = {}
        self.progress.begin(2 * self.plan.launches * len(self.plan.ranks))
        for ranks in self.plan.ranks:
            times: dict[Place, dict[str, list[float]]] = {}
            for number in range(self.plan.launches):
                ways = [(OWN, {}), ("rules", saved.variables)]
                for way, variables in ways[:: 1 if number % 2 else -1]:
                    self.progress.step(f"{ranks} ranks, all collectives, {way or 'own choice'}")
                    stem = f"prove-{ranks}-{way or 'own'}-{number}"
                    try:
                        of = self._launch(stem, ranks, self.plan.collectives, variables)
                    except _FailedLaunchError as error:
                        raise LaunchError(
                            f"{self.mpi.title} with {'the rules' if way else 'its own choice'}: {error}",
                            f"read {self.directory}/raw/{self.mpi.value}-{stem}.err",
                        ) from error
                    for place_, value in of.items():
                        times.setdefault(place_, {}).setdefault(way, []).append(value)
            for (name, size), both in times.items():
                found[name, ranks, size] = gains(both)[0]
                self.result.points.append(
                    TunedPoint(name, ranks, size, median(both[OWN]), "", None, None, None)
                )
        return found

    def _at(self, choice: AlgorithmChoice) -> list[tuple[str, int, int]]:
        """Return the measured places of a choice."""
        return [
            (choice.collective, choice.ranks, size)
            for size in self.plan.sizes
            if choice.low <= size and (choice.high is None or size <= choice.high)
        ]

    def _gained(self, choice: AlgorithmChoice, proven: Mapping[tuple[str, int, int], Gain]) -> bool:
        """Whether a choice was also faster in the measurement of the rules, at all its sizes."""
        return all(proven[at].ratio < 1 for at in self._at(choice) if at in proven)

    def _report(
        self,
        kept: Sequence[AlgorithmChoice],
        proven: Mapping[tuple[str, int, int], Gain],
    ) -> None:
        chosen = {at: choice.algorithm for choice in kept for at in self._at(choice)}
        for index, point in enumerate(self.result.points):
            at = (point.collective, point.ranks, point.size)
            if at in chosen:
                gain = proven[at]
                low, high = gain.interval[:2] if gain.interval else (None, None)
                self.result.points[index] = replace(
                    point, algorithm=chosen[at], ratio=gain.ratio, low=low, high=high
                )

    def _write(self, kept: Sequence[AlgorithmChoice]) -> Path:
        rules = rules_for(self.mpi, kept, self.own)
        places = "; ".join(
            f"{n} ranks in {','.join(f'{node}:{count}' for node, count in p.ranks)}"
            for n, p in self.places.items()
        )
        header = [
            f"measured {now()}, cluster {self.spec.name}, {places}",
            self.result.library,
            f"{self.plan.launches} launches in turn, 2nd percentiles; load {os.getloadavg()[0]:.1f}",
        ]
        if self.crowded():
            header.append("ranks share cores: the figures are those of the scheduler too")
        header += [
            f"{p.collective} of {p.size} bytes, {p.ranks} ranks: {p.algorithm}, {p.ratio:.3f} "
            f"({p.low:.3f} to {p.high:.3f}) of the time of the MPI's own choice"
            for p in self.result.points
            if p.algorithm
        ]
        return write_rules(self.directory, self.installation, rules, header)
