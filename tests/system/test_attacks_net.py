# SPDX-License-Identifier: Apache-2.0
"""A process in a node of an MPI job attacks the job's network, with the addresses of all ranks.

Each attack is a row of a table in programs/net_attacks_*.c. Several attack the same job at once, to
save time; each counts for itself what it did. The job has all its traffic on the network, and
nothing of it is lost, forged or late.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.system.attacks import RUNDIR, endure
from tests.system.local import ROOT
from tests.system.mpi_jobs import INSTALLED, Cluster, two_nodes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nearmetal.job.mpi import Mpi
    from tests.system.attacks import Endured

pytestmark = [pytest.mark.system, pytest.mark.mpi]

SOURCE = ROOT / "tests" / "system" / "programs" / "mpi_rounds_named.c"
PROGRAM = ROOT / "build" / "c" / "tests" / "system" / "net_attacks"
OVER_NET = ("--channels", "self,net")
AT_ONCE = 5
DESCRIPTORS = 256
"""Of each rank. The attacker holds more connections to each than that."""


def attacks() -> list[str]:
    """The names in the table, or none before the program is built."""
    if not PROGRAM.exists():
        return ["not-built"]
    told = subprocess.run([PROGRAM, "--list"], check=True, capture_output=True, text=True).stdout
    return [line.split(":")[0] for line in told.splitlines()]


ATTACKS = attacks()
MPIS = list(INSTALLED)


def group_of(attack: str) -> tuple[str, ...]:
    """The attacks that share a job with this one."""
    first = ATTACKS.index(attack) // AT_ONCE * AT_ONCE
    return tuple(ATTACKS[first : first + AT_ONCE])


def libfabric(mpi: Mpi) -> Path:
    """The library that the MPI loads: its inner provider speaks with that of the ranks."""
    found = sorted(INSTALLED[mpi].prefix.glob("lib/**/libfabric.so.1"))
    return found[0] if found else Path("libfabric.so.1")


@pytest.fixture(scope="module")
def up() -> Iterator[Cluster]:
    with two_nodes(INSTALLED, SOURCE, 2) as cluster:
        shutil.copy(PROGRAM, cluster.site.directory / PROGRAM.name)
        for mpi in INSTALLED:
            limit_descriptors(cluster.site.directory / mpi.value)
        yield cluster


def limit_descriptors(program: Path) -> None:
    """Put a script in place of the program, so that its ranks have few descriptors."""
    real = program.rename(program.with_suffix(".program"))
    program.write_text(f"#!/bin/sh\nulimit -n {DESCRIPTORS}\nexec {real}\n")
    program.chmod(0o755)


Attacked = Callable[["Mpi", tuple[str, ...]], "Endured"]


@pytest.fixture(scope="module")
def attacked(up: Cluster) -> Attacked:
    """Run one job of an MPI under some attacks; a second call has the first one's result."""
    return functools.cache(functools.partial(attack_job, up))


def attack_job(up: Cluster, mpi: Mpi, names: tuple[str, ...]) -> Endured:
    library = libfabric(mpi)
    return endure(
        up,
        mpi,
        "env",
        f"FI_PROVIDER_PATH={library.parent}",
        str(up.site.directory / PROGRAM.name),
        str(library),
        RUNDIR,
        ",".join(names),
        options=OVER_NET,
    )


def expect_endured(attacked: Attacked, mpi: Mpi, attack: str) -> None:
    endured = attacked(mpi, group_of(attack))
    assert endured.adversary["ranks"] == 4, endured.adversary
    assert endured.adversary[attack] > 0, endured.adversary
    assert set(endured.job.sent) <= {"self", "net"}, endured.job.sent
    assert endured.job.sent["net"] > 1000, endured.job.sent


def test_there_are_at_least_thirty() -> None:
    assert len(set(ATTACKS)) == len(ATTACKS) >= 30


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_job_endures(attacked: Attacked, attack: str) -> None:
    mpi = MPIS[ATTACKS.index(attack) // AT_ONCE % len(MPIS)]
    expect_endured(attacked, mpi, attack)


@pytest.mark.full
@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("mpi", MPIS, ids=lambda mpi: mpi.value)
def test_every_job_endures(attacked: Attacked, mpi: Mpi, attack: str) -> None:
    expect_endured(attacked, mpi, attack)


def test_the_ranks_show_their_addresses(attacked: Attacked) -> None:
    """Else the attacks would have no targets; see mpi_rounds_named.c."""
    assert os.access(PROGRAM, os.X_OK)
    assert attacked(MPIS[0], group_of(ATTACKS[0])).adversary["ranks"] == 4
