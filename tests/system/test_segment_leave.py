# SPDX-License-Identifier: Apache-2.0
"""A node leaves its segment while an MPI job runs, and comes back: the job continues."""

from __future__ import annotations

import json
import re
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from tests.system.mpi_jobs import program
from tests.system.need import need_ucx
from tests.system.test_segment_nodes import (
    CHANNELS,
    CONFIG,
    MPI,
    SEGMENT,
    TOOL,
    WHERE,
    cluster,  # noqa: F401  # a fixture
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from subprocess import Popen

    from tests.system.mpi_jobs import Cluster

pytestmark = [pytest.mark.system, pytest.mark.mpi, pytest.mark.timeout(580)]

LIMIT_S = 60.0
# The traffic lasts until all has been done to its machine: this file, at rank 0, ends it.
END = "/run/end"
TRAFFIC = ("-n", "10000", "-s", "5", "-b", "400M", "-e", END)
MOVES, MOVES_MIN, MOVES_S = 10, 3, 60.0
JOB_S, STAYS_S = 420, 2.0


def is_pair(endpoint: dict[str, Any], peer: dict[str, Any]) -> bool:
    """One of the two is on n1, the other one on n2."""
    places = (endpoint["host"], peer["label"].split(",")[0])
    return {name for place in places for name in re.findall("n[1-4]", place)} == {"n1", "n2"}


def pairs_in(endpoints: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the endpoints of n1 and n2 know of each other."""
    pairs = [(endpoint, peer) for endpoint in endpoints for peer in endpoint["peers"]]
    return [peer for endpoint, peer in pairs if is_pair(endpoint, peer)]


def peers(cluster: Cluster) -> list[dict[str, Any]]:  # noqa: F811  # a parameter of that name
    """What they know of each other now."""
    top = json.loads(cluster.site.ok("top", cluster.spec, "--once", "--json", "--interval", "0.2"))
    return pairs_in(top["endpoints"])


def seen(cluster: Cluster, channel: str) -> int:  # noqa: F811
    """The messages that they have sent on a channel to each other."""
    channels = [peer["channels"] for peer in peers(cluster)]
    return sum(found.get(channel, {}).get("sent_messages", 0) for found in channels)


def are_on(cluster: Cluster, channel: str) -> bool:  # noqa: F811
    """Each of them sends to each other one on this channel."""
    return {peer["channel"] for peer in peers(cluster)} == {channel}


def ask(cluster: Cluster, verb: str) -> int:  # noqa: F811
    done = cluster.site.run("exec", cluster.spec, "n2", "--", str(TOOL), verb, CONFIG)
    return done.returncode


def on_n2(cluster: Cluster, *words: str) -> int:  # noqa: F811
    return cluster.site.run("exec", cluster.spec, "n2", "--", *words).returncode


def is_mapped(cluster: Cluster) -> bool:  # noqa: F811
    """A process of n2 has the segment in its memory."""
    return on_n2(cluster, "sh", "-c", f"grep -qF ' {SEGMENT}' /proc/[0-9]*/maps") == 0


def give_up(cluster: Cluster, job: Popen[str]) -> None:  # noqa: F811
    """As the guest unit of a machine that moves: the description goes, then all mappings."""
    assert is_mapped(cluster)
    assert on_n2(cluster, "mv", CONFIG, f"{CONFIG}.left") == 0
    try:
        within(job, lambda: not is_mapped(cluster))
    finally:
        assert on_n2(cluster, "mv", f"{CONFIG}.left", CONFIG) == 0


def within(job: Popen[str], what: Callable[[], bool]) -> None:
    """Wait until this is so; the job has to go on meanwhile."""
    deadline = time.monotonic() + LIMIT_S
    while not what():
        assert job.poll() is None, f"the job ended too early:\n{''.join(job.communicate())}"
        assert time.monotonic() < deadline, "nothing happens within the limit"
        time.sleep(0.2)


@contextmanager
def traffic(
    cluster: Cluster,  # noqa: F811
    options: tuple[str, ...] = CHANNELS,
) -> Iterator[Popen[str]]:
    """A job that uses the segment; it checks bytes, order and number of all messages itself."""
    argv = ["run", "--json", cluster.spec, "--mpi", MPI, "-n", "4", "--timeout", str(JOB_S)]
    argv += [*options, "--", str(program(MPI, "mpi_traffic")), *TRAFFIC]
    cluster.site.ok("exec", cluster.spec, "n1", "--", "rm", "-f", END)
    with cluster.site.start(*argv) as job:
        try:
            within(job, lambda: seen(cluster, "segment") > 0)
            yield job
        except BaseException:
            job.kill()
            raise
        finally:
            ask(cluster, "run")


def found_by(job: Popen[str], cluster: Cluster) -> list[dict[str, Any]]:  # noqa: F811
    """End a job, which is good: what the endpoints of n1 and n2 knew of each other then."""
    cluster.site.ok("exec", cluster.spec, "n1", "--", "touch", END)
    out, err = job.communicate(timeout=JOB_S)
    assert job.returncode == 0, out + err
    assert re.search(r"traffic OK: \d+ messages", out + err), out + err
    return pairs_in(json.loads(out)["stats"])


def test_a_job_continues_while_its_machine_leaves(cluster: Cluster) -> None:  # noqa: F811
    with traffic(cluster) as job:
        assert ask(cluster, "freeze") != 0
        assert ask(cluster, "quiesce") == 0
        within(job, lambda: ask(cluster, "freeze") == 0)
        within(job, lambda: seen(cluster, "net") > 0)
        found = found_by(job, cluster)
    assert {tuple(sorted(peer["channels"])) for peer in found} == {("net", "segment")}


def test_a_machine_with_peers_over_ucx_stays(cluster: Cluster) -> None:  # noqa: F811
    """UCX has no way to move a lane: the tool says which slot stays, and the job goes on."""
    need_ucx()
    freeze = ("exec", cluster.spec, "n2", "--", str(TOOL), "freeze", CONFIG)
    options = ("--fabric", "ucx", "--channels", "self,segment", *WHERE)
    with traffic(cluster, options) as job:
        assert ask(cluster, "quiesce") == 0
        time.sleep(STAYS_S)
        done = cluster.site.run(*freeze)
        assert job.poll() is None, "the job ended too early"
        assert done.returncode == 4, done.stdout + done.stderr
        assert re.search(r"slot \d+", done.stdout + done.stderr), done.stdout + done.stderr
        found = found_by(job, cluster)
    assert {tuple(peer["channels"]) for peer in found} == {("segment",)}


def test_a_machine_leaves_and_comes_back_over_and_over(cluster: Cluster) -> None:  # noqa: F811
    with traffic(cluster) as job:
        moves, end = 0, time.monotonic() + MOVES_S
        while moves < MOVES and (moves < MOVES_MIN or time.monotonic() < end):
            moves += 1
            assert ask(cluster, "quiesce") == 0
            within(job, lambda: ask(cluster, "freeze") == 0)
            within(job, lambda: are_on(cluster, "net"))
            if moves % 2:
                give_up(cluster, job)
            assert ask(cluster, "run") == 0
            within(job, lambda: are_on(cluster, "segment"))
        moved = [peer["moves"] for peer in peers(cluster)]
        found = found_by(job, cluster)
    assert min(moved) == max(moved) == 2 * moves
    assert {peer["channel"] for peer in found} == {"segment"}
    for peer in found:
        for channel in ("segment", "net"):
            assert peer["channels"][channel]["sent_messages"] > 0, peer
            assert peer["channels"][channel]["received_messages"] > 0, peer
        assert (peer["quarantines"], peer["down"]) == (0, False), peer
