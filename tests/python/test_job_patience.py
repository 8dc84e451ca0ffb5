# SPDX-License-Identifier: Apache-2.0
"""How long a machine may stand still under a job, and what is said of one that was given up."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from nearmetal.cluster.registration import desired
from nearmetal.cluster.resource import Facts
from nearmetal.cluster.spec import parse_spec
from nearmetal.core.errors import LaunchError
from nearmetal.core.ssh import NO_CONNECTION
from nearmetal.job.mpi import Mpi
from nearmetal.job.places import SharedPlaces, places_for
from nearmetal.job.run import JobRequest, JobResult, run_job
from tests.python.fake_backend import FakeBackend
from tests.python.test_job import SPEC, FakeRunner
from tests.python.test_mpi import install

if TYPE_CHECKING:
    from pathlib import Path

    from nearmetal.core.process import Command

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


class PlacesWithoutNode(SharedPlaces):
    """Those of a job whose node has died."""

    def stats(self, *, required: bool = True) -> list[dict[str, Any]]:
        if required:
            raise LaunchError("node n1: cannot read its counters: no answer")
        return []


@pytest.mark.parametrize("code", [255, 0])
def test_a_job_that_ends_with_its_machine_is_a_result(
    backend: FakeBackend, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def job(_command: Command) -> int:
        backend.shares_files = False
        runner.guards[0].code = NO_CONNECTION
        return code

    def lost(*words: Any) -> PlacesWithoutNode:
        made = places_for(*words)
        assert isinstance(made, SharedPlaces)
        return PlacesWithoutNode(made.backend, made.bases, made.nodes, made.job)

    monkeypatch.setattr("nearmetal.job.run.places_for", lost)
    runner = FakeRunner(job)
    if code == 0:
        with pytest.raises(LaunchError, match="cannot read its counters"):
            result_of(backend, runner, {})
        return
    result = result_of(backend, runner, {})
    assert result.exit_code == code
    assert result.lost.startswith("ssh has no connection to node n1 any more")
