# SPDX-License-Identifier: Apache-2.0
"""The measurement of collectives with jobs that are made up."""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from nearmetal.cli import tune as verb
from nearmetal.cluster.spec import parse_spec
from nearmetal.core.errors import LaunchError, StateError, UsageError
from nearmetal.core.process import Command, Completed
from nearmetal.core.progress import Silent
from nearmetal.job.mpi import Installation, Mpi
from nearmetal.study.runner.collectives import CollectiveTuner, TunedMpi, TuningPlan
from tests.python.fake_backend import FakeBackend

if TYPE_CHECKING:
    from collections.abc import Callable

    from nearmetal.job.run import JobRequest, Output

SPEC = parse_spec(
    """\
version: 1
name: c
backend: local
hosts: [{name: h, nodes: [{name: n1, slots: 2}, {name: n2, slots: 2}]}]
""",
    "spec.yaml",
)
FAR = parse_spec(
    """\
version: 1
name: c
backend: local
hosts: [{name: h, nodes: [{name: n1}]}, {name: g, nodes: [{name: n2}]}]
""",
    "spec.yaml",
)
PLAN = TuningPlan((4,), ("alltoall", "bcast"), (8, 512), 10, 0.1)

ALLTOALL = {"": 10.0, "1": 6.0, "2": 11.0, "3": 12.0, "4": 13.0}
"""Times of Open MPI's algorithms for alltoall of 512 bytes, by number; "": its own choice."""


@dataclass
class Jobs:
    """Runs no job, and writes the output of one."""

    made: list[str] = field(default_factory=list)
    end: Callable[[str, int], int] = lambda _name, _launch: 0
    """The exit code of a launch of an algorithm."""
    wrong: str = ""
    """An algorithm with wrong bytes."""
    rules_help: bool = True

    def number(self, request: JobRequest) -> str:
        """Return the algorithm that the rules of a job have for alltoall of 512 bytes."""
        name = request.env.get("OMPI_MCA_coll_tuned_dynamic_rules_filename")
        if name is None:
            return ""
        assert request.env["OMPI_MCA_coll_tuned_use_dynamic_rules"] == "1"
        lines = Path(name).read_text().splitlines()
        at = next((i for i, line in enumerate(lines) if line.endswith("# alltoall")), None)
        if at is None:
            return ""
        used = [line.split()[1] for line in lines[at:] if line.endswith(" 0 0")]
        return next((number for number in used if number != "0"), "")

    def run(self, backend: Any, spec: Any, request: JobRequest, runner: Any, output: Output) -> Any:
        del backend, spec, runner
        number = self.number(request)
        self.made.append(number)
        assert request.ranks == 4
        assert output.stdout is not None
        assert output.stderr is not None
        code = self.end(number, len(self.made))
        if number and number == self.wrong:
            output.stderr.write(b"FAILED rank 1: alltoall: byte 3 is 0x00\n")
            code = 1
        text = "# nearmetal-bench 1 patterns\n# ranks 4\n# library Open MPI v5\n"
        for name in request.args[1].split(","):
            helped = self.rules_help or not str(
                request.env.get("OMPI_MCA_coll_tuned_dynamic_rules_filename", "")
            ).endswith("openmpi5.rules")
            fast = ALLTOALL[number] if name == "alltoall" and helped else 10.0
            text += f"# table {name}\nsize_B samples time_p2_us\n"
            text += f"8 24 5.0\n512 24 {fast}\n# end {name}\n"
        if not code:
            output.stdout.write(f"{text}# done patterns\n".encode())
        return SimpleNamespace(exit_code=code, timed_out=code == 124)


class SeesAll:
    """A runner for which each probe succeeds."""

    def run(self, command: Command, *, timeout_s: float) -> Completed:
        del timeout_s
        return Completed(command, 0, b"", b"", 0.0, timed_out=False)


@pytest.fixture
def jobs() -> Jobs:
    return Jobs()


@pytest.fixture
def tune(tmp_path: Path, jobs: Jobs) -> Callable[..., TunedMpi]:
    library = tmp_path / "openmpi5/lib/libmpi.so.40"
    library.parent.mkdir(parents=True)
    library.write_bytes(b"version 1")

    def made(plan: TuningPlan = PLAN, spec: Any = SPEC, mpi: Mpi = Mpi.OPENMPI5) -> TunedMpi:
        installation = Installation(mpi, tmp_path / "openmpi5")
        runner: Any = SeesAll()
        return CollectiveTuner(
            backend=FakeBackend(),
            spec=spec,
            runner=runner,
            directory=tmp_path / "out",
            installation=installation,
            plan=plan,
            progress=Silent(),
            program=Path("/mpi_patterns"),
            start=jobs.run,
        ).tune()

    return made


def test_the_faster_algorithm_gets_a_rule_with_its_gain(
    tune: Callable[..., TunedMpi], tmp_path: Path
) -> None:
    found = tune()
    assert found.file == tmp_path / "out/openmpi5.env"
    rows = {(p.collective, p.size): (p.algorithm, p.ratio) for p in found.points}
    assert rows == {
        ("alltoall", 8): ("", None),
        ("alltoall", 512): ("linear", pytest.approx(0.6)),
        ("bcast", 8): ("", None),
        ("bcast", 512): ("", None),
    }
    text = found.file.read_text()
    assert "# alltoall of 512 bytes, 4 ranks: linear, 0.600 (0.600 to 0.600)" in text
    assert "cluster c, 4 ranks in n1:2,n2:2" in text
    rules = (tmp_path / "out/openmpi5.rules").read_text()
    assert "256 1 0 0\n4096 0 0 0\n" in rules  # 64 to 1023 bytes to each of four ranks


def test_an_interrupted_measurement_resumes(
    tune: Callable[..., TunedMpi], jobs: Jobs, tmp_path: Path
) -> None:
    def interrupted(_name: str, launch: int) -> int:
        if launch == 15:
            raise KeyboardInterrupt
        return 0

    jobs.end = interrupted
    with pytest.raises(KeyboardInterrupt):
        tune()
    assert not (tmp_path / "out/openmpi5.env").exists()
    before, jobs.made = jobs.made, []
    jobs.end = lambda _name, _launch: 0
    first = tune()
    resumed, jobs.made = jobs.made, []
    assert tune() == first
    assert jobs.made == []
    (tmp_path / "out").rename(tmp_path / "former")
    assert tune().points == first.points
    assert len(jobs.made) == len(before) - 1 + len(resumed)


def test_a_directory_serves_one_measurement(tune: Callable[..., TunedMpi]) -> None:
    tune()
    with pytest.raises(StateError, match="another measurement of Open MPI 5"):
        tune(TuningPlan((4,), ("alltoall",), (8, 512), 10, 0.1))


def test_wrong_bytes_refuse_an_algorithm_at_once(tune: Callable[..., TunedMpi], jobs: Jobs) -> None:
    jobs.wrong = "1"
    found = tune()
    assert found.refused == {"alltoall linear, 4 ranks": "FAILED rank 1: alltoall: byte 3 is 0x00"}
    assert jobs.made.count("1") == 1
    assert found.file is None


def test_a_rank_that_dies_once_costs_one_launch(tune: Callable[..., TunedMpi], jobs: Jobs) -> None:
    died: list[int] = []

    def once(name: str, launch: int) -> int:
        if name == "1" and not died:
            died.append(launch)
            return 137
        return 0

    jobs.end = once
    found = tune()
    assert died
    assert found.refused == {}
    assert found.file is not None


def test_an_algorithm_that_fails_again_is_refused(
    tune: Callable[..., TunedMpi], jobs: Jobs
) -> None:
    jobs.end = lambda name, _launch: {"1": 139, "2": 124}.get(name, 0)
    assert tune().refused == {
        "alltoall linear, 4 ranks": "exit code 139",
        "alltoall pairwise, 4 ranks": "it did not end in time",
    }


def test_the_failure_of_the_own_choice_ends_the_measurement(
    tune: Callable[..., TunedMpi], jobs: Jobs
) -> None:
    jobs.end = lambda name, _launch: 0 if name else 1
    with pytest.raises(LaunchError, match="its own choice: exit code 1"):
        tune()


def test_a_choice_that_gains_nothing_as_a_rule_is_removed(
    tune: Callable[..., TunedMpi], jobs: Jobs, tmp_path: Path
) -> None:
    jobs.rules_help = False
    found = tune()
    assert found.file is None
    assert all(point.algorithm == "" for point in found.points)
    assert not list((tmp_path / "out").glob("openmpi5.[er]*"))


def test_open_mpi_5_between_hosts_is_refused(tune: Callable[..., TunedMpi]) -> None:
    with pytest.raises(UsageError, match="component for several hosts"):
        tune(TuningPlan((2,), ("bcast",), (8,), 6, 0.1), FAR)


def test_intel_mpi_has_one_number_of_ranks(tune: Callable[..., TunedMpi]) -> None:
    with pytest.raises(UsageError, match="no rules for a number of ranks"):
        tune(TuningPlan((2, 4), ("bcast",), (8,), 6, 0.1), SPEC, Mpi.IMPI)


def test_reductions_of_intel_mpi_are_refused_in_words(
    tune: Callable[..., TunedMpi], jobs: Jobs, tmp_path: Path
) -> None:
    prefix = tmp_path / "openmpi5/lib"
    prefix.joinpath("libmpi.so.12").write_bytes(b"version 1")
    found = tune(TuningPlan((4,), ("allreduce", "reduce"), (8,), 6, 0.1), SPEC, Mpi.IMPI)
    assert found.refused.keys() == {"allreduce", "reduce"}
    assert found.file is None
    assert jobs.made == []


def test_more_ranks_than_slots_are_refused(tune: Callable[..., TunedMpi]) -> None:
    with pytest.raises(UsageError, match="8 ranks are more than the 4 slots"):
        tune(TuningPlan((8,), ("bcast",), (8,), 6, 0.1))


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"only": "gather"}, "unknown collective 'gather'"),
        ({"sizes": "12"}, "not all are multiples of 8"),
        ({"sizes": "8,x"}, "'x' is not a number from 8"),
        ({"sizes": "8388608"}, "is not a number from 8 to 4194304"),
        ({"ranks": "1"}, "'1' is not a number from 2"),
        ({"launches": 5}, "use 6 to 100"),
        ({"seconds": 0.0}, "more than 0, at most 60"),
        ({"seconds": float("nan")}, "more than 0, at most 60"),
    ],
)
def test_impossible_arguments_are_refused(more: dict[str, Any], why: str) -> None:
    usual = {"only": "bcast", "sizes": "64,8", "ranks": "4,2", "launches": 6, "seconds": 0.1}
    good = verb._plan(argparse.Namespace(**usual), 4)
    assert good == TuningPlan((2, 4), ("bcast",), (8, 64), 6, 0.1)
    with pytest.raises(UsageError) as raised:
        verb._plan(argparse.Namespace(**usual | more), 4)
    assert why in f"{raised.value.message} {raised.value.hint}"


def test_damaged_files_of_a_measurement_are_noticed(
    tune: Callable[..., TunedMpi], jobs: Jobs, tmp_path: Path
) -> None:
    first = tune()
    made, jobs.made = jobs.made, []
    raw = tmp_path / "out/raw"
    next(raw.glob("*confirm*.json")).write_text("{")
    next(raw.glob("*screen*linear*.out")).write_text("# nearmetal-bench 1 patterns\n# table x\n")
    assert tune() == first
    assert len(jobs.made) == 2
    assert len(made) > 2
    plan = tmp_path / "out/openmpi5-plan.json"
    assert json.loads(plan.read_text())["launches"] == 10
    plan.write_text("{")
    with pytest.raises(StateError, match="another measurement"):
        tune()


def test_a_directory_that_cannot_be_written_is_an_error(
    tune: Callable[..., TunedMpi], tmp_path: Path
) -> None:
    (tmp_path / "out").write_text("a file")
    with pytest.raises(LaunchError, match="cannot use"):
        tune()
