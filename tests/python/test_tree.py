# SPDX-License-Identifier: Apache-2.0
"""`status --tree`: switches, hosts and nodes, each with all that it has."""

from __future__ import annotations

from nearmetal.cli.tree import tree_lines
from nearmetal.cluster.backend import NodeStatus
from nearmetal.cluster.resource import Key, Kind, Resource, TextValues


def node(name: str, host: str, health: str = "running", address: str = "") -> NodeStatus:
    return NodeStatus(
        name=name,
        host=host,
        hostname=name,
        address=address,
        slots=4,
        cpus=(),
        shm="",
        pid=0,
        uptime_s=0.0,
        healthy=True,
        health=health,
    )


def has(kind: Kind, name: str, **values: str) -> Resource:
    return Resource(Key(kind, name), TextValues(texts=tuple(values.items())), ())


def test_everything_stands_below_its_host_and_nothing_is_left_out() -> None:
    nodes = [node("n1", "h1", address="10.0.0.5"), node("n3", "h2"), node("n2", "h1", "not there")]
    parts = [
        has(Kind.CLUSTER, "c", folder="c"),
        has(Kind.NETWORK, "s", mtu="9000", port_groups="pg"),
        has(Kind.NODE, "n1", host="h1", vcpus="4", numa="", adapters="vmxnet3 pg; sriov pf"),
        has(Kind.NODE, "n3", host="h2", guest="{}"),
    ]
    assert list(tree_lines(nodes, parts)) == [
        "cluster c",
        "  folder c",
        "network s",
        "  mtu 9000, port_groups pg",
        "host h1",
        "  node n1, running, 10.0.0.5",
        "    vcpus 4",
        "    adapter vmxnet3 pg",
        "    adapter sriov pf",
        "  node n2, not there",
        "host h2",
        "  node n3, running",
        "    guest {}",
    ]


def test_long_lines_are_wrapped() -> None:
    values = {f"attribute{i}": "value" for i in range(20)}
    lines = list(tree_lines([node("n1", "h1")], [has(Kind.NODE, "n1", **values)]))
    assert max(map(len, lines)) <= 100
    assert " ".join(lines).count("value") == 20
