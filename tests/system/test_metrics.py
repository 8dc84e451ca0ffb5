# SPDX-License-Identifier: Apache-2.0
"""The messages of a real MPI job in two containers are metrics while it runs."""

from __future__ import annotations

import time
from typing import Any

import pytest

from nearmetal.job.mpi import Mpi
from tests.system.local import site
from tests.system.mpi_jobs import NEAR, PROGRAMS
from tests.system.need import lacking, need_mpi

pytestmark = [pytest.mark.system, pytest.mark.mpi]

pytest.importorskip("prometheus_client")
PROGRAM = PROGRAMS / "openmpi5" / "mpi_traffic"
if not PROGRAM.exists():
    lacking("the MPI programs are not built")

PATIENCE_S = 90.0


def values(document: dict[str, Any], name: str) -> dict[tuple[str, ...], float]:
    """Return the samples of a metric by the values of their labels."""
    (metric,) = (m for m in document["metrics"] if m["name"] == f"nearmetal_{name}")
    return {tuple(sample["labels"].values()): sample["value"] for sample in metric["samples"]}


def test_the_messages_of_a_job_appear_by_node_and_channel() -> None:
    need_mpi(Mpi.OPENMPI5)
    with site() as place:
        spec = place.write("spec.yaml", NEAR)
        place.ok("up", spec)
        words = ("--mpi", "openmpi5", "-n", "2", "--map-by", "node", "--timeout", "120")
        traffic = (str(PROGRAM), "-n", "300000", "-b", "4G")
        try:
            with place.start("run", spec, *words, "--", *traffic) as job:
                deadline = time.monotonic() + PATIENCE_S
                sent: dict[tuple[str, ...], float] = {}
                while len(sent) < 2:
                    assert job.poll() is None, job.communicate()
                    assert time.monotonic() < deadline, "no message was seen"
                    found = place.json("metrics")
                    messages = values(found, "messages_total")
                    sent = {
                        key: count
                        for key, count in messages.items()
                        if key[2:] == ("shm", "sent") and count > 0
                    }
                assert {node for _, node, _, _ in sent} == {"n1", "n2"}
                assert len({name for name, _, _, _ in sent}) == 1
                assert {node for _, node in values(found, "endpoints")} == {"n1", "n2"}
                assert values(found, "cluster_nodes") == {("near",): 2}
                assert values(found, "cluster_nodes_healthy") == {("near",): 2}
                job.terminate()
                job.communicate(timeout=60)
            assert values(place.json("metrics"), "endpoints") == {}
        finally:
            place.ok("down", "--yes", spec)
