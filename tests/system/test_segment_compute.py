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
    r"computed rank (\d+) round (\d+) from ([\d.]+) to ([\d.]+) slower ([\d.]+) others ([\d.]+) "
    r"piece ([\d.]+)"
)

TURNS = 6
"""Each second one has a move."""

REST_S = 8.0


@dataclass(frozen=True)
class Computed:
    """What a rank says of its computation."""

    began: float
    ended: float
    slower_s: float
    others_s: float
    piece_s: float


@pytest.fixture(scope="module")
def computing() -> Iterator[Cluster]:
    with site() as place:
        compile_for([MPI], SOURCE, place.directory)
        text = f"{NEAR_FAR}show: ['{place.directory}']\n"
        with cluster_with_segments(place, text) as cluster:
            yield cluster


@contextmanager
def job_that_computes(cluster: Cluster, thread: str, rounds: int = 1) -> Iterator[Popen[str]]:
    """A job whose ranks have talked and now compute, until end_of() is called."""
    place = cluster.site
    argv = ["run", "--json", cluster.spec, "--mpi", MPI.value, "-n", str(RANKS), "--timeout", "400"]
    argv += [*CHANNELS, "--env", f"NEARMETAL_MOVE_THREAD={thread}", "--"]
    argv += [str(place.directory / MPI.value), str(place.directory / thread), str(rounds)]
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


def end_of(
    job: Popen[str], cluster: Cluster, thread: str, rounds: int = 1
) -> dict[tuple[int, int], Computed]:
    """Let the ranks go on; each says how it computed, and their last messages are right.

    By round and rank.
    """
    (cluster.site.directory / f"{thread}.{rounds - 1}").touch()
    out, err = job.communicate(timeout=120)
    assert job.returncode == 0, out + err
    assert "compute OK" in out + err, out + err
    found = LINE.findall((out + err).replace("\\n", "\n"))
    ends = {(int(words[1]), int(words[0])): Computed(*map(float, words[2:])) for words in found}
    assert set(ends) == {(n, rank) for n in range(rounds) for rank in range(RANKS)}, out + err
    for number in range(rounds):
        (cluster.site.directory / f"{thread}.{number}").unlink()
    return ends


def cost(ranks: list[Computed]) -> str:
    """Say what the job cost its computation."""
    return (
        f"of {ranks[0].ended - ranks[0].began:.1f} s the work was slower by "
        f"{max(rank.slower_s for rank in ranks):.2f} s at most, and other threads used "
        f"{max(rank.others_s for rank in ranks):.3f} s at most\n"
    )


def go_and_come(cluster: Cluster, job: Popen[str]) -> tuple[float, float, float]:
    """Return when the machine was asked, was frozen, and was back."""
    asked = time.time()
    assert ask(cluster, "quiesce") == 0
    within(job, lambda: ask(cluster, "freeze") == 0)
    frozen = time.time()
    within(job, lambda: are_on(cluster, "net"))
    assert ask(cluster, "run") == 0
    within(job, lambda: are_on(cluster, "segment"))
    return asked, frozen, time.time()


def test_a_machine_goes_and_comes_while_all_compute(computing: Cluster) -> None:
    with job_that_computes(computing, "on") as job:
        asked, frozen, back = go_and_come(computing, job)
        ranks = list(end_of(job, computing, "on").values())
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
        ranks = list(end_of(job, computing, "off").values())
    assert all(rank.began < asked < asked + LONG_S < rank.ended for rank in ranks), ranks
    sys.stdout.write(f"without the thread, {cost(ranks)}")


@pytest.mark.full
def test_a_move_takes_a_tenth_of_its_time_from_the_computation_at_most(computing: Cluster) -> None:
    """By turns: the same computation at rest, and while the machine goes and comes.

    The loop calls nothing and takes no lock. So a move can delay it by two things: the processor
    time of other threads of its process, if they have no other processor; and pieces of work that
    take longer, because caches are shared. Other processes disturb the wall time, so a piece is
    compared by a low percentile.
    """
    moves = []
    with job_that_computes(computing, "on", TURNS) as job:
        for number in range(TURNS):
            if number:
                (computing.site.directory / f"on.{number - 1}").touch()
                time.sleep(SETTLED_S)
            if number % 2:
                asked, _, back = go_and_come(computing, job)
                moves.append(back - asked)
            else:
                time.sleep(REST_S)
        found = end_of(job, computing, "on", TURNS)
    shares, pieces = [], []
    for rank in range(RANKS):
        rest, moved = ([found[n, rank] for n in range(first, TURNS, 2)] for first in (0, 1))
        at_rest = sum(one.others_s for one in rest) / sum(one.ended - one.began for one in rest)
        others = sum(
            one.others_s - at_rest * (one.ended - one.began - move)
            for one, move in zip(moved, moves, strict=True)
        )
        shares.append(others / sum(moves))
        pieces.append(min(one.piece_s for one in moved) / min(one.piece_s for one in rest) - 1)
    sys.stdout.write(
        f"moves took {', '.join(f'{move:.2f}' for move in moves)} s; other threads used "
        f"{', '.join(f'{share:.2%}' for share in shares)} of it; a fast piece of work took "
        f"{', '.join(f'{piece:+.1%}' for piece in pieces)} longer\n"
    )
    assert max(shares) <= 0.1
