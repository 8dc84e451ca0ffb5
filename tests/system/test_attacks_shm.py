# SPDX-License-Identifier: Apache-2.0
"""A process inside a real MPI job, with all addresses, attacks the channel shm in every way known.

It is a process of the job's user in one of the two nodes (tests/system/faults/shm_attacks.py). The
ranks have few descriptors, and the job has a control group with little memory of its own. Every
number of the job is right, no rank dies, and no message takes longer than the connect time-out.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nearmetal.job.mpi import Mpi
from tests.system.attacks import RUNDIR, Endured, endure
from tests.system.faults.shm_attacks import ATTACKS
from tests.system.local import ROOT, Site
from tests.system.mpi_jobs import INSTALLED, Cluster, two_nodes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from _pytest.mark import ParameterSet

    from tests.system.faults.shm_table import Attack

pytestmark = [pytest.mark.system, pytest.mark.mpi]

SOURCE = ROOT / "tests" / "system" / "programs" / "mpi_rounds.c"
MEMORY = 1 << 30
"""Of the whole job: 256 MiB for each rank, the launcher included."""
DESCRIPTORS = 256
"""Of each rank."""


@dataclass
class LimitedSite(Site):
    """A site whose commands run in a control group."""

    group: Path = field(default=Path())

    def command(self, *args: str) -> list[str]:
        enter = f'echo 0 > {self.group}/cgroup.procs; exec "$@"'
        return ["sh", "-ec", enter, "sh", *super().command(*args)]


@dataclass(frozen=True)
class Group:
    """A control group with a limit of memory."""

    path: Path

    def killed(self) -> int:
        """Count the processes that the kernel has killed for memory."""
        for name in ("memory.events", "memory.oom_control"):
            if (self.path / name).exists():
                words = (self.path / name).read_text().split()
                return int(words[words.index("oom_kill") + 1])
        raise AssertionError("the kernel does not count them")


def own_group() -> tuple[Path, str]:
    """Return the control group of this process for memory, and the name of its limit."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "memory":
            return Path("/sys/fs/cgroup/memory") / path.lstrip("/"), "memory.limit_in_bytes"
        if not controllers:
            version2 = Path("/sys/fs/cgroup") / path.lstrip("/"), "memory.max"
    return version2


@contextlib.contextmanager
def limited_group(limit: int) -> Iterator[Group]:
    """A control group with so much memory."""
    parent, name = own_group()
    if not parent.is_dir():
        parent = parent.parent
    path = parent / f"nearmetal-test-{os.getpid()}"
    path.mkdir()
    try:
        (path / name).write_text(str(limit))
        yield Group(path)
    finally:
        path.rmdir()


@dataclass(frozen=True)
class Place:
    """Where the attacks happen."""

    cluster: Cluster
    group: Group

    def program(self, mpi: Mpi, *arguments: str) -> Path:
        """Return the program of an MPI, with few descriptors."""
        directory = self.cluster.site.directory
        path = directory / f"{mpi.value}-limited"
        command = " ".join((f"{directory}/{mpi.value}", *arguments))
        path.write_text(f"#!/bin/sh\nulimit -n {DESCRIPTORS}\nexec {command}\n")
        path.chmod(0o755)
        return path

    def attack(self, mpi: Mpi, *names: str) -> Endured:
        """Run a job beside attacks that have the same settings."""
        first = ATTACKS[names[0]]
        command = ["env", f"PYTHONPATH={ROOT}", "PYTHONDONTWRITEBYTECODE=1", sys.executable]
        command += ["-m", "tests.system.faults.shm_attacks", RUNDIR, *names]
        knob = f"NEARMETAL_CONNECT_MS={first.connect_ms}"
        options = ("--env", knob) if first.connect_ms else ()
        limited = LimitedSite(**vars(self.cluster.site), group=self.group.path)
        within = Cluster(limited, self.cluster.spec)
        words = ["any"] if first.wildcards else []
        program = self.program(mpi, f"attacked={RUNDIR}", *words)
        # The adversary's own memory is not the ranks'.
        return endure(within, mpi, *command, options=options, program=program, beside=self.cluster)


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    with two_nodes(INSTALLED, SOURCE, 2, ROOT) as cluster, limited_group(MEMORY) as group:
        yield Place(cluster, group)


def check(place: Place, mpi: Mpi, *names: str) -> None:
    """Run attacks at the same time; all must have happened, and gained no more than they may."""
    killed = place.group.killed()
    endured = place.attack(mpi, *names)
    sent, said = endured.job.sent, endured.adversary["attacks"]
    for name in names:
        assert said[name].get(ATTACKS[name].proof) or ATTACKS[name].proof == "done", said
        assert said[name], said
    assert place.group.killed() == killed, f"{said}\n{endured.job.end_of_output()}"
    if not ATTACKS[names[0]].moves:
        assert "net" not in sent, f"{sent}\n{said}\n{endured.job.end_of_output()}"
        assert sent["shm"] > 1000, sent


def settings(attack: Attack) -> tuple[object, ...]:
    """Return what attacks must have in common to run in one job."""
    return (
        attack.alone,
        attack.moves,
        attack.wildcards,
        attack.connect_ms,
        attack.harms,
        attack.slow,
    )


def groups() -> Iterator[tuple[str, ...]]:
    """Attacks run four at a time where they can; each other one has a job of its own."""
    for (alone, *_), some in itertools.groupby(sorted(ATTACKS.values(), key=settings), settings):
        names = [one.name for one in some]
        most = 1 if alone else 4
        yield from (tuple(names[at : at + most]) for at in range(0, len(names), most))


def mpis(name: str) -> list[Mpi]:
    """Return the MPIs that withstand an attack."""
    return [mpi for mpi in INSTALLED if mpi.value not in ATTACKS[name].harms]


def job(number: int, names: tuple[str, ...]) -> ParameterSet:
    """Return the parameters of one job: each MPI has its turn."""
    fit = mpis(names[0])
    marks = [pytest.mark.full] if ATTACKS[names[0]].slow else []
    return pytest.param(names, fit[number % len(fit)], id="+".join(names), marks=marks)


JOBS = [job(number, names) for number, names in enumerate(groups())]
EACH = [pytest.param(name, mpi, id=f"{name}-{mpi.value}") for name in ATTACKS for mpi in mpis(name)]


@pytest.mark.parametrize(("names", "mpi"), JOBS)
def test_attacks(place: Place, names: tuple[str, ...], mpi: Mpi) -> None:
    check(place, mpi, *names)


def test_the_table_is_long() -> None:
    """The suite promises thirty attacks; each of them is in a job."""
    assert len(ATTACKS) >= 30
    assert sorted(ATTACKS) == sorted(name for names in groups() for name in names)


@pytest.mark.full
@pytest.mark.parametrize(("name", "mpi"), EACH)
def test_attack_with_every_mpi(place: Place, name: str, mpi: Mpi) -> None:
    check(place, mpi, name)
