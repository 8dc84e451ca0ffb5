# SPDX-License-Identifier: Apache-2.0
"""Clusters on real OpenStack services: made, changed, refused, resumed and removed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("openstack")

from keystoneauth1 import exceptions as auth_faults
from keystoneauth1.session import Session

from nearmetal.cli.main import main
from nearmetal.core.errors import BackendError, StateError
from tests.openstack.settings import VFS
from tests.system.openstack_cloud import (
    QUIET,
    RealCloud,
    gone,
    objects,
    opened,
    plan_of,
    raised,
    running_cloud,
    spec_text,
)

pytestmark = [
    pytest.mark.system,
    pytest.mark.root,
    pytest.mark.timeout(600),
    *QUIET,
]

NETWORKS = """\
networks:
  - {name: mpi, subnet: 10.77.0.0/24}
  - {name: rdma, existing: rdma, kind: direct}
"""
TWO = f"""{NETWORKS}outside: outside
hosts:
  - {{name: h1, nodes: [{{name: n1, floating: true}}, {{name: n2}}]}}
"""
SMALL = """\
networks:
  - {name: mpi, subnet: 10.78.0.0/24}
outside: outside
hosts:
  - {name: h1, nodes: [{name: n1, floating: true}]}
"""


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCloud]:
    with running_cloud(tmp_path_factory.mktemp("openstack")) as found:
        yield found


def servers(cloud: RealCloud) -> dict[str, Any]:
    return {server.name: server for server in cloud.connected().compute.servers(details=True)}


def wait_for(cloud: RealCloud, node: str, status: str) -> None:
    end = time.monotonic() + 60
    while servers(cloud)[node].status != status:
        assert time.monotonic() < end
        time.sleep(0.5)


def test_a_cluster_is_made_repaired_and_removed_without_touching_others(
    cloud: RealCloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEARMETAL_STATE_DIR", str(tmp_path / "state"))
    sdk, admin = cloud.connected(), cloud.connected("admin")
    stranger = sdk.network.create_network(name="demo.mpi")
    sdk.network.create_port(network_id=stranger.id, name="demo.n1.mpi")
    sdk.compute.create_server_group(name="nearmetal.demo.h1", policy="affinity")
    before = objects(cloud)
    spec = cloud.spec("demo", TWO)
    path = tmp_path / "demo.yaml"
    path.write_text(spec_text("demo", TWO))
    assert main(["up", str(path)]) == 0
    assert main(["plan", str(path)]) == 0
    first = servers(cloud)
    assert {server.status for server in first.values()} == {"ACTIVE"}
    assert first["n1"].host_id == first["n2"].host_id
    direct = [p for p in admin.network.ports() if p.binding_vnic_type == "direct"]
    slots = {(port.binding_host_id, port.binding_profile["pci_slot"]) for port in direct}
    assert len(direct) == len(slots) == 2
    assert {port.binding_vif_type for port in direct} == {"hw_veb"}
    (address,) = sdk.network.ips()
    shown = {node.name: node for node in opened(spec, tmp_path).backend.status()}
    assert all(node.healthy for node in shown.values())
    assert shown["n1"].address == address.floating_ip_address
    # No record has anything of clouds.yaml.
    password = cloud.content["member"]["auth"]["password"].encode()
    records = [one for one in (tmp_path / "state").rglob("*") if one.is_file()]
    assert records
    assert not any(password in record.read_bytes() for record in records)

    # Drift: each difference is found, and only what is lost is made again.
    sdk.network.delete_ip(address)
    sdk.compute.stop_server(first["n1"])
    sdk.compute.delete_server(first["n2"])
    wait_for(cloud, "n1", "SHUTOFF")
    sdk.compute.wait_for_delete(first["n2"], wait=60)
    assert main(["plan", str(path)]) == 3
    plan = plan_of(spec, tmp_path)
    assert [(c.key.name, c.action.value, c.in_place) for c in plan.effective] == [
        ("n1", "~", True),
        ("n2", "+", False),
    ]
    assert main(["up", str(path)]) == 0
    second = servers(cloud)
    assert second["n1"].id == first["n1"].id
    assert second["n1"].status == "ACTIVE"
    assert second["n2"].id != first["n2"].id
    assert len(list(sdk.network.ips())) == 1
    assert plan_of(spec, tmp_path).empty

    # Another spec is refused; another record does not take over the name.
    with pytest.raises(StateError, match="already up under another spec"):
        raised(cloud.spec("demo", TWO.replace(", {name: n2}", "")), tmp_path)
    with pytest.raises(BackendError, match="has a cluster of this name that is not in this state"):
        raised(spec, tmp_path / "elsewhere")
    assert servers(cloud).keys() == second.keys()

    assert main(["down", str(path), "--yes"]) == 0
    assert objects(cloud) == before
    assert not (tmp_path / "state" / "clusters").exists()


def test_what_is_missing_is_told_before_anything_is_made(cloud: RealCloud, tmp_path: Path) -> None:
    before = objects(cloud)
    nodes = ", ".join(f"{{name: n{i}}}" for i in range(11))
    networks = NETWORKS.replace("direct", "direct, vfs: 8").replace(
        "existing: rdma", "existing: no"
    )
    text = f"{networks}key: nobody\nhosts: [{{name: h, nodes: [{nodes}]}}]\n"
    spec = cloud.spec("large", text)
    with pytest.raises(BackendError, match="cannot be made as planned, and nothing was") as caught:
        plan_of(spec, tmp_path)
    lines = caught.value.message.splitlines()[1:]
    for words in (
        "key pair nobody (nodes n0, n1, n2 and 8 more): the project has none of this name",
        "network no (nodes n0, n1, n2 and 8 more): the project has none",
        "11 servers are needed: the quota of the project leaves 10 (0 of 10 in use)",
        "22 processors are needed: the quota of the project leaves 20",
        "11 servers in one server group are needed",
        "network rdma: 11 virtual functions are needed: the spec says that there are 8",
    ):
        assert any(words in line for line in lines), (words, lines)
    with pytest.raises(BackendError, match="cannot be made as planned"):
        raised(spec, tmp_path)
    assert objects(cloud) == before


@pytest.mark.full
def test_what_nova_cannot_place_is_an_error_and_the_next_up_ends_as_planned(
    cloud: RealCloud, tmp_path: Path
) -> None:
    before = objects(cloud)
    hosts = [f"  - {{name: h{i}, nodes: [{{name: n{i}}}]}}\n" for i in (1, 2, 3)]
    network = "networks:\n  - {name: mpi, subnet: 10.79.0.0/24}\napart: true\nhosts:\n"
    with pytest.raises(BackendError, match=r"node n3: No valid host") as caught:
        raised(cloud.spec("wide", network + "".join(hosts)), tmp_path)
    assert "no hypervisor has the room" in caught.value.hint
    kept = servers(cloud)
    two = cloud.spec("wide", network + "".join(hosts[:2]))
    raised(two, tmp_path)
    now = servers(cloud)
    assert {name: now[name].id for name in now} == {name: kept[name].id for name in ("n1", "n2")}
    assert now["n1"].host_id != now["n2"].host_id
    gone(two, tmp_path)
    assert objects(cloud) == before


@pytest.mark.full
def test_the_outside_and_the_networks_come_and_go(cloud: RealCloud, tmp_path: Path) -> None:
    before = objects(cloud)
    made = "networks: [{name: mpi, subnet: 10.80.0.0/24}]\n"
    alone = f"{made}hosts: [{{name: h1, nodes: [{{name: n1}}]}}]\n"
    floats = f"outside: outside\n{alone.replace('n1}', 'n1, floating: true}')}"
    raised(cloud.spec("moves", alone), tmp_path)
    first = servers(cloud)["n1"].id
    plan = raised(cloud.spec("moves", floats), tmp_path)
    assert [(str(c.key), c.action.value) for c in plan.effective] == [
        ("network router", "+"),
        ("node n1", "~"),
    ]
    (address,) = cloud.connected().network.ips()
    assert address.port_id is not None
    # The router goes with the address that it leads; the server stays.
    raised(cloud.spec("moves", alone), tmp_path, replace=True)
    assert list(cloud.connected().network.ips()) == []
    assert servers(cloud)["n1"].id == first

    # A flavor may be written as its ID.
    flavor = cloud.connected().compute.find_flavor("hpc.small").id
    spec = cloud.spec("moves", alone).model_copy(update={"flavor": flavor})
    assert plan_of(spec, tmp_path).empty

    # The server goes before the network that is no longer there.
    other = cloud.spec(
        "moves", alone.replace(made, "networks: [{name: rdma, existing: rdma, kind: direct}]\n")
    )
    raised(other, tmp_path, replace=True)
    assert servers(cloud)["n1"].id != first
    assert plan_of(other, tmp_path).empty

    # Other credentials neither make it again nor forget it.
    elsewhere = other.model_copy(update={"cloud": "admin"})
    for act in (raised, gone):
        with pytest.raises(BackendError, match="cluster moves is in project"):
            act(elsewhere, tmp_path)
    gone(other, tmp_path)
    assert objects(cloud) == before


class Killed(BaseException):
    """The process ends here."""


def breaking(number: int, how: str) -> Callable[..., Any]:
    """Break one request that changes something: before it is sent, after it, or by refusing it."""
    original, seen = Session.request, 0

    def request(session: Session, url: str, method: str, **named: Any) -> Any:
        nonlocal seen
        seen += method != "GET" and "/auth/tokens" not in url
        if method == "GET" or "/auth/tokens" in url or seen != number:
            return original(session, url, method, **named)
        if how == "refused":
            raise auth_faults.ConnectFailure("no route")
        if how == "after":
            original(session, url, method, **named)
        raise Killed

    return request


SAMPLE = [(3, "after"), (7, "after")]
EVERY = [(number, how) for number in range(1, 8) for how in ("before", "after", "refused")]


@pytest.mark.parametrize(
    ("number", "how"),
    [
        pytest.param(
            *one, marks=() if one in SAMPLE else pytest.mark.full, id="-".join(map(str, one))
        )
        for one in EVERY
    ],
)
def test_after_any_broken_request_the_next_up_ends_as_planned(
    cloud: RealCloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, how: str
) -> None:
    before = objects(cloud)
    spec = cloud.spec("cut", SMALL)
    with monkeypatch.context() as patch:
        patch.setattr(Session, "request", breaking(number, how))
        with pytest.raises(BackendError if how == "refused" else Killed):
            raised(spec, tmp_path)
    kept = servers(cloud)
    raised(spec, tmp_path)
    now = objects(cloud)
    added = {kind: len(now[kind]) - len(before[kind]) for kind in now}
    # The ports are those of the node and of the router.
    assert added == {
        "servers": 1,
        "groups": 0,
        "networks": 1,
        "subnets": 1,
        "routers": 1,
        "ports": 2,
        "addresses": 1,
        "images": 0,
    }
    if kept:
        assert servers(cloud)["n1"].id == kept["n1"].id
    gone(spec, tmp_path)
    assert objects(cloud) == before


def test_virtual_functions_run_out_with_an_error_that_says_so(
    cloud: RealCloud, tmp_path: Path
) -> None:
    before = objects(cloud)
    nodes = ", ".join(f"{{name: n{i}}}" for i in range(VFS + 1))
    text = f"{NETWORKS}hosts: [{{name: h, nodes: [{nodes}]}}]\n"
    spec = cloud.spec("full", text)
    assert any(
        "how many virtual functions are free" in note for note in plan_of(spec, tmp_path).notes
    )
    with pytest.raises(BackendError, match=rf"node n{VFS}: ") as caught:
        raised(spec, tmp_path)
    assert "virtual functions of the direct networks" in caught.value.hint
    gone(spec, tmp_path)
    assert objects(cloud) == before
