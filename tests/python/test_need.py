# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import pytest

from nearmetal.job.mpi import Mpi
from nearmetal.job.mpi.installed import SearchPath
from tests.python.test_mpi import install
from tests.system import need


@pytest.mark.parametrize("ci", [None, "", "false"])
def test_what_set_up_would_bring_is_skipped_at_a_desk(
    monkeypatch: pytest.MonkeyPatch, ci: str | None
) -> None:
    monkeypatch.delenv("CI", raising=False)
    if ci is not None:
        monkeypatch.setenv("CI", ci)
    with pytest.raises(pytest.skip.Exception, match="no tool") as skipped:
        need.lacking("no tool")
    assert skipped.value.allow_module_level


def test_it_is_a_failure_in_ci(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CI", "true")
    places = SearchPath((tmp_path,), tmp_path / "usr")
    install(tmp_path, Mpi.MPICH5)
    with pytest.raises(pytest.fail.Exception, match="no tool, although set-up"):
        need.lacking("no tool")
    need.need_mpi(Mpi.MPICH5, places=places)
    with pytest.raises(pytest.fail.Exception, match="Open MPI 5 is not installed, although"):
        need.need_mpi(Mpi.OPENMPI5, Mpi.MPICH5, places=places)
