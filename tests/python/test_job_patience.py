# SPDX-License-Identifier: Apache-2.0
"""How long a machine may stand still under a job, and what is said of one that was given up."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

import pytest

from nearmetal.cluster.registration import desired
from nearmetal.cluster.resource import Facts
from nearmetal.cluster.spec import parse_spec
from nearmetal.core.errors import LaunchError
from nearmetal.core.process import Command, Completed
from nearmetal.core.ssh import NO_CONNECTION
from nearmetal.job.mpi import Mpi
from nearmetal.job.run import JobRequest, JobResult, run_job
from tests.python.fake_backend import FakeBackend
from tests.python.test_job import SPEC, FakeGuard, FakeRunner
from tests.python.test_mpi import install

if TYPE_CHECKING:
    from pathlib import Path

    from nearmetal.core.process import Dialogue

KNOB = "NEARMETAL_NET_TIMEOUT_MS"


@pytest.fixture
def backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeBackend:
    monkeypatch.setenv("NEARMETAL_MPI_PATH", str(tmp_path))
    install(tmp_path, Mpi.MPICH5)
    library = tmp_path / "libnearmetal-fi.so"
    library.touch()
    monkeypatch.setenv("NEARMETAL_PROVIDER_LIB", str(library))
    spec = parse_spec(SPEC)
    made = FakeBackend(cpus=(0, 1, 2), meeting=tmp_path / "meet")
    for item in desired(spec, Facts((0, 1, 2))).resources:
        made.there[item.key] = item
    for host in spec.hosts:
        (made.meeting / host.name).mkdir(parents=True)
    return made


def result_of(backend: FakeBackend, runner: FakeRunner, env: dict[str, str]) -> JobResult:
    return run_job(backend, parse_spec(SPEC), JobRequest("true", mpi="mpich5", env=env), runner)


@pytest.mark.parametrize(
    ("given", "seconds"), [({}, 30), ({KNOB: "600000"}, 600), ({KNOB: "x"}, 30)]
)
def test_ssh_is_as_patient_as_the_provider(
    backend: FakeBackend, given: dict[str, str], seconds: float
) -> None:
    result_of(backend, FakeRunner(), given)
    assert backend.patience_s == seconds


@pytest.mark.parametrize(
    ("lost", "code", "words"),
    [
        (True, 137, "ssh has no connection to node n1 any more; .* 50 s counts as lost"),
        (False, 255, "ssh has no connection to node n1 any more; .* 50 s counts as lost"),
        (False, 137, ""),
        (True, 0, ""),
    ],
)
def test_a_job_without_its_connection_says_so(
    backend: FakeBackend, lost: bool, code: int, words: str
) -> None:
    """In machines; the one supervisor of this machine stands for their guards."""

    def job(_command: Command) -> int:
        backend.shares_files = False
        runner.guards[0].code = 255 if lost else 0
        return code

    runner = FakeRunner(job)
    result = result_of(backend, runner, {})
    assert result.exit_code == code
    assert re.fullmatch(f"({words}.*)" if words else "", result.lost)


@dataclass
class DyingMachines(FakeRunner):
    """The nodes are machines, and die under the job."""

    dead: bool = False

    def run(self, command: Command, *, timeout_s: float) -> Completed:
        self.probe_code = NO_CONNECTION if self.dead and command.argv[0] == "enter" else 0
        return super().run(command, timeout_s=timeout_s)

    def converse(self, command: Command, *, stderr: IO[bytes] | None = None) -> Dialogue:
        assert stderr is None
        return FakeGuard(command, self.guard_says, code=NO_CONNECTION)


def test_a_job_whose_machines_die_is_a_result(backend: FakeBackend) -> None:
    def job(_command: Command) -> int:
        runner.dead = True
        return code

    backend.shares_files = False
    runner, code = DyingMachines(job), NO_CONNECTION
    result = run_job(backend, parse_spec(SPEC), JobRequest("true"), runner)
    assert result.exit_code == code
    assert result.lost.startswith("ssh has no connection to node n1, n2, n3 any more")
    assert result.stats == ()

    # Without counters, nothing is known about a job that succeeded.
    runner, code = DyingMachines(job), 0
    with pytest.raises(LaunchError, match="node n1: cannot read its counters"):
        run_job(backend, parse_spec(SPEC), JobRequest("true"), runner)
