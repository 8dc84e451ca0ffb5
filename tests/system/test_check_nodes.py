# SPDX-License-Identifier: Apache-2.0
"""`nearmetal check` on a cluster of local nodes: it is healthy, and no node is touched.

tests/system/test_check_faults.py injects faults.
"""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING

import pytest

from tests.system.check_ward import NODE, SPEC, Ward, ward_of
from tests.system.local import site

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(os.geteuid() != 0, reason="nodes are ended as root"),
]


@pytest.fixture(scope="module")
def ward() -> Iterator[Ward]:
    with ward_of("check") as found:
        yield found


def test_a_healthy_cluster_passes_the_extended_checks(ward: Ward) -> None:
    assert ward.place.run("check", ward.spec, "--profile", "health_extended").returncode == 0
    assert ward.findings() == []


def test_a_node_that_ended_is_a_finding() -> None:
    with site() as place:
        spec = place.write("spec.yaml", SPEC.format(name="ended"))
        place.ok("up", spec)
        place.look(spec)
        pids = {n["name"]: n["pid"] for n in place.json("status", spec)["nodes"]}
        os.kill(pids["n2"], 9)
        time.sleep(0.5)
        done = place.run("check", spec, "--json", "--timeout", "20")
        assert done.returncode == 4, done.stderr
        found = [f for f in json.loads(done.stdout)["findings"] if len(f["nodes"]) < 3]
        assert [(f["check"], f["nodes"]) for f in found] == [("base.answer", ["n2"])]
        place.ok("down", "--yes", spec)
        assert place.run("check", spec).returncode == 1
        place.assert_no_trace()


def test_the_agent_leaves_no_file_in_a_node(ward: Ward) -> None:
    own = "find /tmp /run /dev/shm -type f 2>/dev/null | sort"
    before = ward.place.ok("exec", ward.spec, NODE, "--", "sh", "-c", own)
    assert ward.place.run("check", ward.spec).returncode == 0
    assert ward.place.ok("exec", ward.spec, NODE, "--", "sh", "-c", own) == before
