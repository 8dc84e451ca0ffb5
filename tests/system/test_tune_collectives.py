# SPDX-License-Identifier: Apache-2.0
"""Rules for collectives with real MPIs: the counters of nearmetal show the chosen algorithm."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nearmetal.job.collectives import mpi_library, write_rules
from nearmetal.job.mpi import Mpi
from nearmetal.job.mpi.rules import AlgorithmChoice, own_tree, rules_for
from tests.documents import check_document
from tests.system.local import Site, site
from tests.system.mpi_jobs import INSTALLED, PROGRAMS, two_nodes_up
from tests.system.need import lacking, need_build, need_mpi

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.system, pytest.mark.mpi]

RANKS = 4
CALLS = 200
LOW, INSIDE, HIGH, OUTSIDE = 512, 1000, 2047, 4000


@pytest.fixture(scope="module")
def up() -> Iterator[tuple[Site, str]]:
    need_build()
    with site() as place, two_nodes_up(place, 2, place.directory) as spec:
        yield place, spec


@pytest.fixture(params=list(Mpi), ids=lambda mpi: mpi.value)
def mpi(request: pytest.FixtureRequest) -> Mpi:
    found: Mpi = request.param
    need_mpi(found)
    if not program(found).exists():
        lacking("the MPI programs are not built")
    return found


def program(mpi: Mpi) -> Path:
    return PROGRAMS / mpi.value / "mpi_patterns"


def messages(up: tuple[Site, str], mpi: Mpi, size: int, *more: str) -> int:
    """Return the messages of a job with checked calls of alltoall."""
    place, spec = up
    words = ("--mpi", mpi.value, "-n", str(RANKS), "--timeout", "60", *more, "--")
    checked = (str(program(mpi)), "-p", "alltoall", "-s", str(size), "-n", str(CALLS), "-c")
    done = place.run("run", "--json", spec, *words, *checked, timeout=90)
    assert done.returncode == 0, done.stderr
    return sum(json.loads(done.stdout)["proof"]["messages"].values())


def test_the_chosen_algorithm_carries_the_messages(up: tuple[Site, str], mpi: Mpi) -> None:
    place, _ = up
    name = {Mpi.MPICH5: "brucks", Mpi.IMPI: "1"}.get(mpi, "modified_bruck")
    installation = INSTALLED[mpi]
    high = None if mpi is Mpi.IMPI else HIGH
    low = 0 if mpi is Mpi.IMPI else LOW
    own = own_tree(mpi_library(installation).read_bytes()) if mpi is Mpi.MPICH5 else None
    rules = rules_for(mpi, [AlgorithmChoice("alltoall", RANKS, low, high, name)], own)
    directory = place.directory / "rules"
    directory.mkdir(exist_ok=True)
    write_rules(directory, installation, rules, ["not measured"])
    with_rules = ("--collectives", str(directory))
    usual = messages(up, mpi, INSIDE)
    # Two messages of each rank in place of three; Intel MPI also sends one to the rank itself.
    spared = CALLS * RANKS * (2 if mpi is Mpi.IMPI else 1)
    assert abs(usual - messages(up, mpi, INSIDE, *with_rules) - spared) <= CALLS // 10
    if mpi is not Mpi.IMPI:
        outside = messages(up, mpi, OUTSIDE)
        assert abs(outside - messages(up, mpi, OUTSIDE, *with_rules)) <= CALLS // 10


@pytest.mark.full
def test_a_measurement_writes_rules_or_says_why_not(up: tuple[Site, str]) -> None:
    need_mpi(Mpi.MPICH5)
    place, spec = up
    directory = place.directory / "measured"
    words = ("--only", "reduce", "--sizes", "8,4096", "--launches", "6", "--seconds", "0.01")
    where = ("--mpi", "mpich5", "--output", str(directory))
    done = place.run("tune", "collectives", "--json", spec, *where, *words, timeout=110)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    check_document("tune collectives", answer)
    (found,) = answer["mpis"]
    assert "MPICH" in found["library"]
    assert found["refused"] == {}
    assert len(list((directory / "raw").glob("*screen*.json"))) == 6
    if found["file"] is None:
        assert not (directory / "mpich5.env").exists()
    else:
        messages(up, Mpi.MPICH5, 64, "--collectives", str(directory))
        assert any(point["algorithm"] for point in found["points"])
    again = place.run("tune", "collectives", "--json", spec, *where, *words, timeout=60)
    assert json.loads(again.stdout)["mpis"] == answer["mpis"]


def test_rules_that_the_nodes_do_not_see_are_refused(up: tuple[Site, str], tmp_path: Path) -> None:
    need_mpi(Mpi.MPICH5)
    place, spec = up
    words = ("--only", "reduce", "--sizes", "8", "--mpi", "mpich5", "--output", str(tmp_path / "t"))
    done = place.run("tune", "collectives", spec, *words)
    assert done.returncode == 1
    assert "is not visible in node n1" in done.stderr
    missing = ("--mpi", "mpich5", "--collectives", str(tmp_path))
    done = place.run("run", spec, *missing, "--", str(program(Mpi.MPICH5)))
    assert done.returncode == 2
    assert "has no rules for MPICH 5" in done.stderr
