# SPDX-License-Identifier: Apache-2.0
"""Options of a job that do not go together."""

from __future__ import annotations

from pathlib import Path

import pytest

from nearmetal.cluster.registration import desired
from nearmetal.cluster.resource import Facts
from nearmetal.cluster.spec import parse_spec
from nearmetal.core.errors import UsageError
from nearmetal.job.collectives import write_rules
from nearmetal.job.mpi import Installation, Library, Mpi
from nearmetal.job.mpi.rules import AlgorithmChoice, rules_for
from nearmetal.job.run import JobRequest, run_job
from tests.python.fake_backend import FakeBackend
from tests.python.test_job import SPEC, FakeRunner
from tests.python.test_mpi import install


def refusal(tmp_path: Path, request: JobRequest) -> str:
    """Return why this job is refused."""
    spec = parse_spec(SPEC)
    backend = FakeBackend(cpus=(0, 1, 2), meeting=tmp_path / "meet")
    for item in desired(spec, Facts((0, 1, 2))).resources:
        backend.there[item.key] = item
    for host in spec.hosts:
        (backend.meeting / host.name).mkdir(parents=True)
    with pytest.raises(UsageError) as caught:
        run_job(backend, spec, request, FakeRunner())
    return caught.value.message


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of MPIs, of which Intel's has a library."""
    monkeypatch.setenv("NEARMETAL_MPI_PATH", str(tmp_path))
    for mpi in (Mpi.IMPI, Mpi.MPICH5):
        install(tmp_path, mpi)
    provider = tmp_path / "libnearmetal-fi.so"
    provider.touch()
    monkeypatch.setenv("NEARMETAL_PROVIDER_LIB", str(provider))
    library = tmp_path / "impi/lib/libmpi.so.12"
    library.parent.mkdir(parents=True)
    library.write_bytes(b"version 1")
    return tmp_path


def test_rules_of_intel_mpi_are_refused_for_another_number_of_ranks(directory: Path) -> None:
    rules = rules_for(Mpi.IMPI, [AlgorithmChoice("bcast", 3, 0, None, "2")])
    write_rules(directory, Installation(Mpi.IMPI, directory / "impi"), rules, [])
    request = JobRequest("true", mpi="impi", ranks=2, collectives=directory)
    assert "for 3 ranks, and they would serve these 2" in refusal(directory, request)


def test_a_heap_is_refused_over_ucx(directory: Path) -> None:
    request = JobRequest("true", mpi="mpich5", heap=True, fabric=Library.UCX)
    assert "serves libfabric only" in refusal(directory, request)
