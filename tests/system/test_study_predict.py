# SPDX-License-Identifier: Apache-2.0
"""A profile of a real application between real nodes: Open MPI's monitoring over nearmetal."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from benchmarks import predict
from nearmetal.cli.study_predict import load_profile
from nearmetal.job.mpi import Mpi
from nearmetal.study.runner.workloads import WORKLOADS
from tests.system.local import site
from tests.system.need import lacking, need_build, need_mpi, need_root

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.system, pytest.mark.mpi, pytest.mark.timeout(600)]

need_root()
need_build()


def test_monitoring_counts_the_messages_that_nearmetal_carries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need_mpi(Mpi.OPENMPI4)
    if shutil.which(WORKLOADS["lammps"].program.file) is None:
        lacking("LAMMPS is not installed")
    with site() as place:
        monkeypatch.setenv("NEARMETAL_STATE_DIR", str(place.state))
        assert place.run("up", predict.CLUSTER, timeout=60).returncode == 0
        try:
            lammps = predict.APPLICATIONS[0]
            predict.prepare(lammps, tmp_path / "input", tmp_path / "log")
            path = predict.profile(lammps, tmp_path / "input", tmp_path, None)
        finally:
            assert place.run("down", "--yes", predict.CLUSTER, timeout=60).returncode == 0
    found = load_profile(path)
    assert (found.format, found.ranks) == ("openmpi-monitoring", 2)
    (use,) = found.calls
    # The input has 5000 steps, a list of neighbours every 20, and four messages of each rank a step.
    assert 40_000 < use.count < 45_000
    assert max(m.size or 0 for m in use.messages) > 16_384
