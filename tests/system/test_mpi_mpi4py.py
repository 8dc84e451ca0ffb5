# SPDX-License-Identifier: Apache-2.0
"""mpi4py's own test suite across two nodes; what may fail stands in mpi4py/exclusions.toml."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from tests.system.local import site
from tests.system.mpi4py import exclusions, run_suite
from tests.system.mpi_jobs import NEAR, Cluster
from tests.system.need import lacking

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.system, pytest.mark.mpi, pytest.mark.timeout(1500)]

if not run_suite.SUITE.is_dir():
    lacking("mpi4py's sources are not here: run make setup")


@pytest.fixture(scope="module")
def near() -> Iterator[Cluster]:
    with site() as place:
        path = place.write("spec.yaml", NEAR)
        place.ok("up", path)
        yield Cluster(place, path)
        place.look(path)
        place.ok("down", "--yes", path)
        place.assert_no_trace()


HEAP = ("--heap", "--env", "NEARMETAL_HEAP_MIN=4096")
"""Most messages of the suite are small, so smaller allocations go to the heap, too."""


def check(
    near: Cluster,
    mpi: str,
    ranks: int,
    modules: list[str],
    *,
    log: Path,
    options: tuple[str, ...] = (),
) -> None:
    """Run modules of the suite; whatever fails and is not listed is an error."""
    launch = near.site.command(
        "run",
        near.spec,
        "--mpi",
        mpi,
        "-n",
        str(ranks),
        "--map-by",
        "node",
        "--env",
        f"MPI4PY_LIBMPI={run_suite.LIBMPI[mpi]}",
        *options,
        "--",
    )
    job = run_suite.Job(launch, ranks, log, stall_s=120, env=near.site.environment())
    # What is excluded does not start, so that the job must end well; what races does.
    entries = exclusions.applying(exclusions.load(), mpi, ranks)
    races = [e for e in entries if e.race]
    skip = {e.test for e in entries if not e.race}
    todo = [name for name in modules if name not in skip]
    result = run_suite.run_suite(job, todo, skip.difference(modules))
    verdict = exclusions.judge(result.tally, result.stopped, races)
    report = run_suite.report(result, verdict)
    sys.stdout.write(report)
    assert verdict.ok, report
    assert len(result.tally.passed) > len(todo), report
    assert "carried by nearmetal" in log.with_suffix(".err").read_text(errors="replace")


@pytest.mark.parametrize(("mpi", "first"), [("openmpi5", 0), ("mpich5", 1)])
def test_every_third_module_on_two_ranks(
    near: Cluster, mpi: str, first: int, tmp_path: Path
) -> None:
    """The MPIs take different thirds: the suite is mpi4py's, and only what carries it is ours."""
    check(near, mpi, 2, run_suite.suite_modules()[first::3], log=tmp_path / "suite")


@pytest.mark.full
@pytest.mark.parametrize("mpi", ["openmpi5", "mpich5"])
def test_the_whole_suite_on_two_ranks(near: Cluster, mpi: str, tmp_path: Path) -> None:
    check(near, mpi, 2, run_suite.suite_modules(), log=tmp_path / "suite")


@pytest.mark.full
@pytest.mark.parametrize("mpi", ["openmpi5", "mpich5"])
def test_messages_and_collectives_on_four_ranks(near: Cluster, mpi: str, tmp_path: Path) -> None:
    modules = run_suite.suite_modules(run_suite.POINT_TO_POINT_AND_COLLECTIVES)
    check(near, mpi, 4, modules, log=tmp_path / "suite")


@pytest.mark.full
@pytest.mark.parametrize("mpi", ["openmpi5", "mpich5"])
def test_the_whole_suite_with_the_heap(near: Cluster, mpi: str, tmp_path: Path) -> None:
    check(near, mpi, 2, run_suite.suite_modules(), log=tmp_path / "suite", options=HEAP)
