# SPDX-License-Identifier: Apache-2.0
"""The channel between machines under a real MPI: nodes that see nothing of each other but a segment.

Every node of the local backend plays a virtual machine: a configuration and a lock file of its own,
and a part of a file that only the nodes of its host see. Its own shared memory is switched off.
"""

from __future__ import annotations

import json
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from tests.system.local import ROOT, site
from tests.system.mpi_jobs import NEAR_FAR, Cluster, Job, program
from tests.system.need import lacking

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.system.local import Site

pytestmark = [pytest.mark.system, pytest.mark.mpi, pytest.mark.timeout(420)]

TOOL = ROOT / "build/c/src/tools/nearmetal-segment"
MPI = "openmpi5"
HOSTS = {"h1": ("n1", "n2"), "h2": ("n3", "n4")}
HOST_OF = {node: host for host, nodes in HOSTS.items() for node in nodes}
SEGMENT = "/run/nearmetal/machines.segment"
"""In the directory that the nodes of one host share."""

CONFIG = "/run/segment.conf"
"""In the node's own /run, as everything else of its name."""

WHERE = ("--env", f"NEARMETAL_SEGMENT={CONFIG}", "--env", "NEARMETAL_SEGMENT_ENDPOINTS=2")
CHANNELS = ("--channels", "self,segment,net", *WHERE)

if not program(MPI, "mpi_traffic").exists() or not TOOL.exists():
    lacking("the programs of Open MPI or nearmetal-segment are not built")


def share(cluster: Cluster) -> None:
    """Make a segment on every host and tell its nodes which part is whose."""
    for nodes in HOSTS.values():
        cluster.site.ok(
            "exec",
            cluster.spec,
            nodes[0],
            "--",
            str(TOOL),
            "create",
            SEGMENT,
            "--parts",
            "2",
            "--part-size",
            "16M",
        )
        told = cluster.site.ok(
            "exec", cluster.spec, nodes[0], "--", str(TOOL), "show", "--json", SEGMENT
        )
        token = json.loads(told)["token"]
        for part, node in enumerate(nodes):
            text = (
                f"version = 1\\ndevice = dax\\nall = {SEGMENT}\\npart = {part}\\n"
                f"token = {token}\\nlock = /run/segment.lock\\n"
            )
            cluster.site.ok(
                "exec",
                cluster.spec,
                node,
                "--",
                "sh",
                "-c",
                f"umask 077; printf '{text}' > {CONFIG}",
            )


@contextmanager
def cluster_with_segments(place: Site, text: str) -> Iterator[Cluster]:
    """The cluster of a spec whose hosts have a segment each; it leaves nothing."""
    path = place.write("spec.yaml", text)
    place.ok("up", path)
    cluster = Cluster(place, path)
    share(cluster)
    yield cluster
    for nodes in HOSTS.values():
        place.ok("exec", path, nodes[0], "--", "rm", SEGMENT)
    place.look(path)
    place.ok("down", "--yes", path)
    place.assert_no_trace()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with site() as place, cluster_with_segments(place, NEAR_FAR) as cluster:
        yield cluster


def host_of(name: str) -> str:
    found = re.search(r"n[1-4]", name)
    assert found is not None, name
    return HOST_OF[found[0]]


def assert_by_host(job: Job) -> None:
    """Whoever shares a host was met in its segment, everybody else over the network."""
    seen = {"segment": 0, "net": 0}
    for endpoint in job.answer["stats"]:
        for peer in endpoint["peers"]:
            if peer["channel"] == "self":
                continue
            near = host_of(endpoint["host"]) == host_of(peer["label"])
            assert peer["channel"] == ("segment" if near else "net"), peer
            assert set(peer["channels"]) <= {peer["channel"]}, peer
            assert peer["integrity"] == ("by convention" if near else "-")
            if near:
                assert peer["relation"] == "host"
                assert "its window is in part" in peer["reason"]
            seen[peer["channel"]] += 1
    assert all(seen.values()), seen


def test_random_traffic(cluster: Cluster) -> None:
    job = cluster.ok(
        MPI,
        4,
        program(MPI, "mpi_traffic"),
        "-n",
        "10000",
        "-s",
        "11",
        timeout=240,
        options=CHANNELS,
    )
    found = re.search(r"traffic OK: (\d+) messages", job.output)
    assert found is not None, job.end_of_output()
    assert int(found[1]) >= 10000
    assert set(job.sent) <= {"self", "segment", "net"}
    assert job.sent["segment"] > 1000
    assert job.sent["net"] > 1000
    assert_by_host(job)


def test_who_shares_a_kernel_is_met_there_first(cluster: Cluster) -> None:
    job = cluster.ok(MPI, 4, program(MPI, "mpi_hello"), timeout=60, options=WHERE)
    assert {"shm", "net"} <= set(job.sent)
    assert "segment" not in job.sent


def test_the_switch_of_mvapich2_virt(cluster: Cluster) -> None:
    off = (*CHANNELS, "--env", "MV2_VIRT_USE_IVSHMEM=0")
    job = cluster.ok(MPI, 4, program(MPI, "mpi_hello"), timeout=60, options=off)
    assert set(job.sent) <= {"self", "net"}
    on = ("--channels", "self,net", *WHERE, "--env", "MV2_VIRT_USE_IVSHMEM=1")
    job = cluster.ok(MPI, 4, program(MPI, "mpi_hello"), timeout=60, options=on)
    assert job.sent["segment"] > 0
    assert_by_host(job)
