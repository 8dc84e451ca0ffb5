# SPDX-License-Identifier: Apache-2.0
"""Nodes of one host that do not meet in its memory."""

from __future__ import annotations

from nearmetal.check.snapshot import Snapshot
from tests.python.check_nodes import judged, named, node, only


def met(number: int, near: str, far: str = "") -> Snapshot:
    """Return a node that meets the nodes of its host `near` in memory, and `far` by network."""
    other = [f"compute-0{n}" for n in near + far]
    meetings = {
        peer: {"channel": "net" if peer[-1] in far else "shm", "host": True, "reason": "no rundir"}
        for peer in other
    }
    return node(number, ("nearmetal>meetings", meetings))


def test_a_node_that_its_host_misses_is_named_and_not_those_that_miss_it() -> None:
    assert named(judged([met(1, "23"), met(2, "13"), met(3, "12")])) == []
    finding = only(judged([met(1, "2", "3"), met(2, "1", "3"), met(3, "", "12")]))
    assert (finding.check, finding.folded) == ("nearmetal.meetings", "compute-03")
    assert finding.value == "messages to compute-01, compute-02 take the network"
    assert finding.reason == "no rundir"
    both = only(judged([met(1, "", "2"), met(2, "", "1")]))
    assert both.folded == "compute-[01-02]"


def test_meetings_that_only_one_side_tells_of_blame_nobody() -> None:
    assert named(judged([met(1, "", "234"), node(2), met(3, "4"), met(4, "3")])) == []
    apart = {"compute-02": {"channel": "net", "host": False}}
    other = {"compute-01": {"channel": "net", "host": False}}
    far = [node(n, ("nearmetal>meetings", m)) for n, m in ((1, apart), (2, other))]
    assert named(judged(far)) == []


def test_a_guest_without_a_segment_meets_nobody_in_memory() -> None:
    apart = [met(1, "", "2"), met(2, "", "1")]
    guests = [
        node(
            int(each.name[-1]),
            ("virtual>guest", True),
            ("nearmetal>meetings", each.table("nearmetal", "meetings")),
        )
        for each in apart
    ]
    found = [f.check for f in judged(guests).findings]
    assert "nearmetal.meetings" not in found
