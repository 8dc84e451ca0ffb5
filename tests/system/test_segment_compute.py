# SPDX-License-Identifier: Apache-2.0
"""A node leaves its segment and comes back while all ranks compute: a thread moves the channels."""

from __future__ import annotations

import re
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from nearmetal.job.mpi import Mpi
from tests.system.local import ROOT, site
from tests.system.mpi_jobs import NEAR_FAR, compile_for
from tests.system.test_segment_leave import are_on, ask, seen, within
from tests.system.test_segment_nodes import CHANNELS, cluster_with_segments

if TYPE_CHECKING:
    from collections.abc import Iterator
    from subprocess import Popen

    from tests.system.mpi_jobs import Cluster

pytestmark = [pytest.mark.system, pytest.mark.mpi, pytest.mark.timeout(420)]

MPI = Mpi.OPENMPI5
SOURCE = ROOT / "tests" / "system" / "programs" / "mpi_compute.c"
RANKS = 4
SETTLED_S = 4.0
"""From messages that were seen until all ranks compute: they talk for one second."""

LONG_S = 5.0
"""So long a machine waits in vain."""

LINE = re.compile(
    r"computed rank (\d+) round 0 from ([\d.]+) to ([\d.]+) slower ([\d.]+) others ([\d.]+)"
)


@dataclass(frozen=True)
class Computed:
    """What a rank says of its computation."""

    began: float
    ended: float
    slower_s: float
    others_s: float


@pytest.fixture(scope="module")
def computing() -> Iterator[Cluster]:
    with site() as place:
        compile_for([MPI], SOURCE, place.directory)
        text = f"{NEAR_FAR}show: ['{place.directory}']\n"
        with cluster_with_segments(place, text) as cluster:
            yield cluster


@contextmanager
def job_that_computes(cluster: Cluster, thread: str) -> Iterator[Popen[str]]:
    """A job whose ranks have talked and now compute, until end_of() is called."""
    place = cluster.site
    argv = ["run", "--json", cluster.spec, "--mpi", MPI.value, "-n", str(RANKS), "--timeout", "180"]
    argv += [*CHANNELS, "--env", f"NEARMETAL_MOVE_THREAD={thread}", "--"]
    argv += [str(place.directory / MPI.value), str(place.directory / thread), "1"]
    with place.start(*argv) as job:
        try:
            within(job, lambda: seen(cluster, "segment") > 0)
            time.sleep(SETTLED_S)
            yield job
        except BaseException:
            job.kill()
            raise
        finally:
            ask(cluster, "run")


def end_of(job: Popen[str], cluster: Cluster, thread: str) -> list[Computed]:
    """Let the ranks go on; each says how it computed, and their last messages are right."""
    (cluster.site.directory / f"{thread}.0").touch()
    out, err = job.communicate(timeout=120)
    assert job.returncode == 0, out + err
    assert "compute OK" in out + err, out + err
    found = LINE.findall((out + err).replace("\\n", "\n"))
    assert {int(words[0]) for words in found} == set(range(RANKS)), out + err
    return [Computed(*map(float, words[1:])) for words in found]


def cost(ranks: list[Computed]) -> str:
    """Say what the job cost its computation."""
    return (
        f"of {ranks[0].ended - ranks[0].began:.1f} s the work was slower by "
        f"{max(rank.slower_s for rank in ranks):.2f} s at most, and other threads used "
        f"{max(rank.others_s for rank in ranks):.3f} s at most\n"
    )


def test_a_machine_goes_and_comes_while_all_compute(computing: Cluster) -> None:
    with job_that_computes(computing, "on") as job:
        asked = time.time()
        assert ask(computing, "quiesce") == 0
        within(job, lambda: ask(computing, "freeze") == 0)
        frozen = time.time()
        within(job, lambda: are_on(computing, "net"))
        assert ask(computing, "run") == 0
        within(job, lambda: are_on(computing, "segment"))
        back = time.time()
        ranks = end_of(job, computing, "on")
    assert all(rank.began < asked and back < rank.ended for rank in ranks), ranks
    sys.stdout.write(
        f"frozen after {frozen - asked:.2f} s, back after {back - asked:.2f} s; {cost(ranks)}"
    )


def test_without_the_thread_the_machine_waits(computing: Cluster) -> None:
    with job_that_computes(computing, "off") as job:
        asked = time.time()
        assert ask(computing, "quiesce") == 0
        while time.time() < asked + LONG_S:
            assert ask(computing, "freeze") != 0
            time.sleep(0.2)
        ranks = end_of(job, computing, "off")
    assert all(rank.began < asked < asked + LONG_S < rank.ended for rank in ranks), ranks
    sys.stdout.write(f"without the thread, {cost(ranks)}")
