# SPDX-License-Identifier: Apache-2.0
"""Two servers become nodes, and only the first has an address that this machine reaches.

They are cloud images in namespaces. Rules of a network namespace stand for the router of Neutron,
and a table for what Nova and Neutron say.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator
from contextlib import ExitStack
from types import SimpleNamespace

import pytest

pytest.importorskip("openstack")

from nearmetal.cluster.backends.openstack.guests import ServerGuests
from nearmetal.cluster.backends.openstack.session import CloudSession
from nearmetal.cluster.backends.openstack.world import World
from nearmetal.cluster.ssh_nodes import NodeSilentError
from nearmetal.core.process import LocalRunner
from nearmetal.image.seed import SeedInterface
from tests.python.test_openstack_spec import spec_of
from tests.system.cloud_guests import FLOATING, CloudGuest, address, cloud_guest, lan, mac
from tests.system.need import need_build
from tests.system.openstack_cloud import QUIET

pytestmark = [
    pytest.mark.system,
    pytest.mark.full,
    pytest.mark.root,
    pytest.mark.timeout(3600),
    *QUIET,
]

NETWORKS = "networks: [{name: mpi, subnet: 10.87.0.0/24}]\n"
HOSTS = "hosts: [{name: h1, nodes: [{name: n1, floating: true}, {name: n2}]}]\n"
SIZE = 1 << 20


class Servers(ServerGuests):
    """The guests of a cluster, whose consoles are those of `seen`."""

    seen: dict[str, CloudGuest]

    def console(self, server: str, *, whole: bool = False) -> str:
        del whole
        return self.seen[server].console


def world() -> World:
    found = World()
    for number in (1, 2):
        fixed = [{"ip_address": address(number), "subnet_id": "s"}]
        found.servers[f"n{number}"] = SimpleNamespace(id=f"n{number}", status="ACTIVE")
        found.ports[f"n{number}", "mpi"] = SimpleNamespace(fixed_ips=fixed, mac_address=mac(number))
    found.floating["n1"].append(SimpleNamespace(floating_ip_address=FLOATING, port_id="p"))
    return found


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    need_build()
    spec = spec_of("ssh: {}\noutside: o\n", NETWORKS, HOSTS)
    made = Servers(spec, CloudSession("lab"), tmp_path_factory.mktemp("c"), LocalRunner())
    made.seen = {}
    with ExitStack() as stack:
        network = stack.enter_context(lan())
        for number in (1, 2):
            name = f"n{number}"
            card = SeedInterface(mac=mac(number), address=f"{address(number)}/24")
            data = base64.b64decode(made.user_data(name, [card]))
            folder = tmp_path_factory.mktemp(name)
            made.seen[name] = stack.enter_context(cloud_guest(folder, network, number, data))
        made.make_nodes(world)
        yield made
        made.close()


def test_both_become_nodes(servers: Servers) -> None:
    known = servers.records()
    assert [(known[n].address, known[n].through) for n in ("n1", "n2")] == [
        (FLOATING, ""),
        (address(2), "n1"),
    ]
    assert servers.lacking(world()) == {}
    for name, guest in servers.seen.items():
        assert guest.tell("systemctl is-active nearmetal-guest.service") == "active"
        assert f"nearmetal: ready {name}" in guest.console


@pytest.mark.parametrize("root", [True, False])
def test_bytes_reach_the_second_through_the_first(servers: Servers, root: bool) -> None:
    nodes, runner, sent = servers.nodes(), LocalRunner(), os.urandom(SIZE)
    echo = nodes.command("n2", ["cat"], root=root, stdin=sent)
    assert runner.check(echo, timeout_s=300).stdout == sent
    asked = nodes.command("n2", ["sh", "-c", "hostname; id -un; echo $SSH_CONNECTION"], root=root)
    name, user, way = runner.check(asked, timeout_s=300).text.splitlines()
    assert (name, user) == ("n2", "root" if root else "mpi")
    assert way.split()[::2] == [address(1), address(2)]


def test_jobs_go_from_the_second_to_the_first(servers: Servers) -> None:
    argv = ["ssh", "n1", "hostname"]
    done = LocalRunner().check(servers.nodes().command("n2", argv), timeout_s=300)
    assert done.text == "n1\n"


def test_a_first_node_that_is_silent_is_no_refusal_of_the_second(servers: Servers) -> None:
    nodes, first = servers.nodes(), servers.seen["n1"]
    nodes.close()
    first.tell("systemctl stop ssh")
    try:
        with pytest.raises(NodeSilentError, match="node n2"):
            nodes.check("n2", "cannot be asked", ["true"])
    finally:
        first.tell("systemctl start ssh")
    assert nodes.check("n2", "cannot be asked", ["hostname"]) == "n2\n"
