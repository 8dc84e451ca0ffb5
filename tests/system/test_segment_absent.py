# SPDX-License-Identifier: Apache-2.0
"""The ranks of a node stand still for longer than their lease: the MPI job goes on."""

from __future__ import annotations

import json
import time
from functools import partial
from typing import TYPE_CHECKING

import pytest

from tests.system.mpi_jobs import program
from tests.system.test_segment_leave import are_on, on_n2, pairs_in, peers, seen, within
from tests.system.test_segment_nodes import (
    CHANNELS,
    MPI,
    SEGMENT,
    cluster,  # noqa: F401  # a fixture
)

if TYPE_CHECKING:
    from subprocess import Popen

    from tests.system.mpi_jobs import Cluster

pytestmark = [pytest.mark.system, pytest.mark.mpi, pytest.mark.timeout(400)]

LEASE_S = 2
STOPS = 2
END = "/run/end"


def signal_ranks(cluster: Cluster, name: str) -> None:  # noqa: F811
    """Send a signal to all processes of n2 that have the segment mapped."""
    found = f"grep -lF ' {SEGMENT}' /proc/[0-9]*/maps | cut -d/ -f3"
    assert on_n2(cluster, "sh", "-c", f"kill -{name} $({found})") == 0


def has_seen_more(cluster: Cluster, before: int) -> bool:  # noqa: F811
    return seen(cluster, "net") > before


def start(cluster: Cluster) -> Popen[str]:  # noqa: F811
    argv = ["run", "--json", cluster.spec, "--mpi", MPI, "-n", "4", "--timeout", "300"]
    argv += [*CHANNELS, "--env", f"NEARMETAL_SEGMENT_LEASE_MS={LEASE_S * 1000}"]
    return cluster.site.start(*argv, "--", str(program(MPI, "mpi_moved")), "-e", END, "290", "7")


def test_ranks_that_stood_still_go_on(cluster: Cluster) -> None:  # noqa: F811
    with start(cluster) as job:
        try:
            within(job, lambda: seen(cluster, "segment") > 0)
            for _ in range(STOPS):
                before = seen(cluster, "net")
                signal_ranks(cluster, "STOP")
                time.sleep(3 * LEASE_S)
                assert job.poll() is None
                signal_ranks(cluster, "CONT")
                within(job, partial(has_seen_more, cluster, before))
                within(job, lambda: are_on(cluster, "segment"))
            moved = [peer["moves"] for peer in peers(cluster)]
            cluster.site.ok("exec", cluster.spec, "n1", "--", "touch", END)
            out, err = job.communicate(timeout=120)
        except BaseException:
            job.kill()
            raise
    assert job.returncode == 0, out + err
    assert "none wrong" in out + err, out + err
    assert min(moved) >= 2 * STOPS
    found = pairs_in(json.loads(out)["stats"])
    assert {tuple(sorted(peer["channels"])) for peer in found} == {("net", "segment")}
