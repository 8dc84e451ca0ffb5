# SPDX-License-Identifier: Apache-2.0
"""The driver on clouds that tests describe: what it plans and asks for, and what it never touches."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("openstack")

from openstack import exceptions as faults

from nearmetal.cluster.backends.openstack.driver import OpenstackBackend
from nearmetal.cluster.backends.openstack.marks import ClusterMark, make_mark
from nearmetal.cluster.backends.openstack.plan import Router, server_of
from nearmetal.cluster.backends.openstack.session import CloudSession, GoneError
from nearmetal.cluster.backends.openstack.spec import OpenstackSpec
from nearmetal.cluster.backends.openstack.stock import missing, needs_of, quotas_of
from nearmetal.cluster.backends.openstack.work import CloudWork
from nearmetal.cluster.backends.openstack.world import Catalog, World, read_world
from nearmetal.cluster.diff import Plan, make_plan
from nearmetal.cluster.registration import desired
from nearmetal.cluster.resource import Facts, Key, Kind
from nearmetal.cluster.store import Store
from nearmetal.core.errors import BackendError
from tests.python.test_openstack_spec import spec_of
from tests.python.test_openstack_world import OURS, Known, port, server

MADE = "networks: [{name: mpi, subnet: 10.77.0.0/24}]\n"
EXISTING = "networks: [{name: mpi, existing: mpi}]\n"
ONE = "hosts: [{name: h1, nodes: [{name: n1}]}]\n"


class Asked:
    """A service that notes each request, and answers with what a test says."""

    def __init__(self, requests: list[tuple[Any, ...]], answers: dict[str, Any]) -> None:
        self._requests, self._answers = requests, answers

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def ask(*words: Any, **named: Any) -> Any:
            texts = [getattr(word, "id", word) for word in words]
            self._requests.append((name, *texts, *named.values()))
            answer = self._answers.get(name, ())
            if isinstance(answer, list) and answer and isinstance(answer[0], BaseException):
                raise answer.pop(0)
            return answer

        return ask


class NoCloud(CloudSession):
    """A session without a cloud."""

    def __init__(self, **answers: Any) -> None:
        super().__init__("lab")
        self.requests: list[tuple[Any, ...]] = []
        service = Asked(self.requests, answers)
        config = SimpleNamespace(region_name="")
        self.__dict__["sdk"] = SimpleNamespace(
            compute=service, network=service, image=service, current_project_id="p", config=config
        )


def item(name: str, description: str = "", **values: Any) -> SimpleNamespace:
    same = {"id": name, "name": name, "description": description, "created_at": "2026"}
    return SimpleNamespace(**{**same, **values})


def refusal(code: int) -> faults.HttpException:
    answer = SimpleNamespace(status_code=code, request=None, headers={}, url="x", reason="busy")
    kind = faults.NotFoundException if code == 404 else faults.HttpException
    return kind("busy", answer)


def world_of(**values: Any) -> World:
    network = item("net", is_port_security_enabled=True)
    subnet = item("sub", network_id="net", cidr="10.77.0.0/24", gateway_ip=None)
    return World(networks={"mpi": network}, subnets={"mpi": subnet}, **values)


def router() -> SimpleNamespace:
    return item("r", external_gateway_info={"network_id": "o1"})


def floating(network: str, leads: str = "p") -> dict[str, list[Any]]:
    one = item("f", floating_network_id=network, port_id=leads, floating_ip_address="203.0.113.9")
    return {"n1": [one]}


class GivenBackend(OpenstackBackend):
    """A backend on the cloud that a test gives."""

    given: World

    def _read(self, mark: ClusterMark) -> World:
        del mark
        return self.given


class Flavors(Known):
    """A catalog of flavors alone."""

    def get(self, kind: str, name: str) -> Any | None:
        return super().get(kind, "small") if kind == "flavor" and name else None


class Given(Catalog):
    """A catalog of objects that a test makes."""

    def __init__(self, **objects: Any) -> None:
        self._objects = objects

    def _found(self, kind: str, name: str) -> list[Any]:
        del name
        return [self._objects[kind]]


def backend_of(spec: OpenstackSpec, world: World, directory: Path, **ids: str) -> GivenBackend:
    """Return the backend of a cluster that has been made."""
    store = Store(directory)
    made = GivenBackend(spec, store)
    made.given = world
    made._session = NoCloud()
    made._catalog = Known(**ids)
    make_mark(store.cluster(spec.name), "project p")
    return made


def planned(backend: OpenstackBackend) -> Plan:
    observed = backend.observe()
    return make_plan("c", desired(backend.spec, Facts(), observed), observed)


def work_of(spec: OpenstackSpec, world: World, session: NoCloud, **ids: str) -> CloudWork:
    return CloudWork(session, spec, OURS, world, Known(**ids))


# Plans


def test_a_server_goes_before_the_network_that_the_spec_has_no_longer(tmp_path: Path) -> None:
    world = world_of(servers={"n1": server()}, ports={("n1", "mpi"): port("s1")})
    backend = backend_of(spec_of("", EXISTING, ONE), world, tmp_path, network="other")
    going = [str(change.key) for change in planned(backend).going]
    assert going == ["node n1", "network mpi"]


def test_what_an_interruption_left_of_a_node_is_used_or_removed(tmp_path: Path) -> None:
    world = world_of(ports={("n1", "mpi"): port(""), ("old", "mpi"): port("")})
    backend = backend_of(spec_of("", MADE, ONE), world, tmp_path)
    plan = planned(backend)
    assert [str(change.key) for change in plan.going] == ["node old"]
    assert "node n1" in [str(change.key) for change in plan.coming]
    assert plan.disruptive == ()
    backend.delete(Key(Kind.NODE, "old"))
    assert ("delete_port", "p") in backend._session.requests  # type: ignore[attr-defined]
    assert list(world.ports) == [("n1", "mpi")]


@pytest.mark.parametrize(
    ("status", "request_"),
    [
        ("SHELVED_OFFLOADED", "unshelve_server"),
        ("RESCUE", "unrescue_server"),
        ("SUSPENDED", "resume_server"),
    ],
)
def test_a_server_that_does_not_run_is_made_to_run_in_place(
    status: str, request_: str, tmp_path: Path
) -> None:
    world = world_of(servers={"n1": server(status=status)}, ports={("n1", "mpi"): port("s1")})
    backend = backend_of(spec_of("", MADE, ONE), world, tmp_path)
    (change,) = planned(backend).effective
    assert (change.key.name, change.in_place) == ("n1", True)
    backend.change(change.item, backend.spec)
    assert (request_, "s1") in backend._session.requests  # type: ignore[attr-defined]


def test_a_state_that_nothing_ends_is_told(tmp_path: Path) -> None:
    world = world_of(servers={"n1": server(status="UNKNOWN")}, ports={("n1", "mpi"): port("s1")})
    backend = backend_of(spec_of("", MADE, ONE), world, tmp_path)
    assert planned(backend).notes == ("node n1 is in state UNKNOWN, which only you can end",)


@pytest.mark.parametrize(
    ("status", "health"),
    [("ACTIVE", "running"), ("VERIFY_RESIZE", "running"), ("SHUTOFF", "shutoff")],
)
def test_a_server_that_works_is_shown_as_one_that_runs(
    status: str, health: str, tmp_path: Path
) -> None:
    world = world_of(servers={"n1": server(status=status)})
    (shown,) = backend_of(spec_of("", MADE, ONE), world, tmp_path).status()
    assert (shown.health, shown.healthy) == (health, health == "running")


def test_an_image_too_large_for_a_flavor_is_told_once_with_its_nodes(tmp_path: Path) -> None:
    spec = spec_of("", MADE, ONE.replace("{name: n1}", "{name: n1}, {name: n2}"))
    backend = backend_of(spec, World(), tmp_path)
    backend._catalog = Given(
        image=item("hpc", status="active", min_ram=4096, min_disk=0),
        flavor=item("small", vcpus=1, ram=2048, disk=10),
    )
    backend._session = NoCloud(get_limits=[refusal(403)], get_quota=[refusal(403)])
    with pytest.raises(BackendError) as caught:
        backend.check(planned(backend))
    _, line = caught.value.message.splitlines()
    assert line.startswith("  nodes n1, n2: flavor small: image hpc needs 4096 MiB of memory, ")


def test_a_flavor_may_be_written_as_its_id(tmp_path: Path) -> None:
    world = world_of(servers={"n1": server()}, ports={("n1", "mpi"): port("s1")})
    spec = spec_of("", MADE, ONE).model_copy(update={"flavor": "0815"})
    backend = backend_of(spec, world, tmp_path)
    assert not planned(backend).empty
    backend._catalog = Flavors(flavor="0815")
    assert planned(backend).empty


def test_an_address_of_another_outside_is_a_difference_in_place(tmp_path: Path) -> None:
    text = ONE.replace("n1}", "n1, floating: true}")
    world = world_of(
        servers={"n1": server()},
        ports={("n1", "mpi"): port("s1")},
        routers=[router()],
        routes={"net"},
        floating=floating("o1"),
    )
    spec = spec_of("outside: out\n", MADE, text)
    backend = backend_of(spec, world, tmp_path, network="o1")
    assert planned(backend).empty
    backend._catalog = Known(network="o2")
    changes = [(str(c.key), c.in_place) for c in planned(backend).effective]
    assert changes == [("network router", True), ("node n1", True)]


@pytest.mark.parametrize("verb", ["observe", "delete"])
def test_a_cluster_of_another_project_or_region_is_never_made_again_nor_forgotten(
    verb: str, tmp_path: Path
) -> None:
    backend = backend_of(spec_of("", MADE, ONE), World(), tmp_path)
    backend.observe()
    backend._session.sdk.config.region_name = "West"
    words = "cluster c is in project p, and cloud lab is project p, region West"
    with pytest.raises(BackendError, match=words):
        backend.observe() if verb == "observe" else backend.delete(Key(Kind.CLUSTER, "c"))
    assert (tmp_path / "clusters" / "c" / "mark").exists()


def test_credentials_of_no_project_are_an_error() -> None:
    session = NoCloud()
    session.sdk.current_project_id = None
    with pytest.raises(BackendError, match="are for no project"):
        session.project  # noqa: B018 - asks


def test_another_reservation_makes_the_servers_again(tmp_path: Path) -> None:
    first, second = ("01234567-89ab-cdef-0123-456789abcde" + end for end in "01")
    metadata = {**server().metadata, "nearmetal.reservation": first}
    world = world_of(servers={"n1": server(metadata=metadata)}, ports={("n1", "mpi"): port("s1")})
    spec = spec_of(f"reservation: {first}\n", MADE, ONE)
    backend = backend_of(spec, world, tmp_path)
    assert planned(backend).empty
    backend.spec = spec.model_copy(update={"reservation": second})
    (change,) = planned(backend).effective
    assert (change.key.name, change.in_place) == ("n1", False)


# Requests


def test_a_reservation_and_a_group_are_both_hints_to_nova() -> None:
    reservation = "01234567-89ab-cdef-0123-456789abcdef"
    text = ONE.replace("{name: n1}", "{name: n1}, {name: n2}")
    spec = spec_of(f"reservation: {reservation}\n", MADE, text)
    host, node = spec.nodes[0]
    world = world_of(groups={"h1": [item("g")]})
    session = NoCloud(create_port=port(""), create_server=server())
    work = work_of(spec, world, session, image="i1", flavor="f1")
    work.make_server("n1", server_of(spec, host, node, Facts()))
    (made,) = [words for words in session.requests if words[0] == "create_server"]
    assert {"group": "g", "reservation": reservation} in made
    assert any(isinstance(w, dict) and w.get("nearmetal.reservation") == reservation for w in made)


def test_addresses_go_before_the_router_that_leads_them() -> None:
    session = NoCloud(ports=[item("i", device_owner="network:router_interface", network_id="net")])
    world = world_of(routers=[router()], routes={"net"}, floating=floating("o1"))
    work_of(spec_of("", MADE, ONE), world, session).remove_router()
    changes = [words[0] for words in session.requests if words[0] != "ports"]
    assert changes == ["delete_ip", "remove_interface_from_router", "delete_router"]


def test_another_outside_removes_the_addresses_of_the_first() -> None:
    session = NoCloud()
    world = world_of(routers=[router()], routes={"net"}, floating=floating("o1"))
    spec = spec_of("outside: new\n", MADE, ONE)
    work_of(spec, world, session, network="o2").settle_router(
        Router(outside="new", routes=("mpi",))
    )
    assert [words[0] for words in session.requests] == ["delete_ip", "update_router"]


def test_a_subnet_gets_its_gateway_when_it_gets_a_router() -> None:
    session = NoCloud()
    world = world_of(routers=[router()])
    spec = spec_of("outside: out\n", MADE, ONE)
    work_of(spec, world, session, network="o1").settle_router(
        Router(outside="out", routes=("mpi",))
    )
    assert session.requests == [
        ("update_subnet", "sub", "10.77.0.1"),
        ("add_interface_to_router", "r", "sub"),
    ]


def test_a_network_that_a_user_has_put_on_the_router_stays_there() -> None:
    interfaces = [
        item(name, device_owner="network:router_interface", network_id=name)
        for name in ("net", "theirs")
    ]
    session = NoCloud(ports=interfaces)
    world = world_of(routers=[router()], routes={"net", "theirs"})
    spec = spec_of("outside: out\n", MADE, ONE)
    work_of(spec, world, session, network="o1").settle_router(Router(outside="out", routes=()))
    changes = [words for words in session.requests if words[0] != "ports"]
    assert changes == [("remove_interface_from_router", "r", None, "net")]


def test_a_question_without_an_answer_is_asked_again_until_the_time_is_over() -> None:
    spec = spec_of("", MADE, ONE)
    session = NoCloud(servers=[refusal(503)])
    work_of(spec, World(), session).remove_servers([server(name="n1")])
    assert [words[0] for words in session.requests] == ["delete_server", "servers", "servers"]
    at_once = spec.model_copy(update={"timeout": 0})
    session = NoCloud(servers=[refusal(503), refusal(503)])
    with pytest.raises(BackendError, match=r"reading the servers: busy"):
        work_of(at_once, World(), session).wait_for({"s1": "n1"})


def test_a_server_in_a_state_that_does_not_work_is_not_taken_for_one_that_runs() -> None:
    spec = spec_of("", MADE, ONE).model_copy(update={"timeout": 0})
    session = NoCloud(servers=[server(name="n1", status="UNKNOWN", fault=None)])
    with pytest.raises(BackendError, match="nodes n1 do not run after 0 s"):
        work_of(spec, World(), session).wait_for({"s1": "n1"})


def test_the_reason_of_nova_is_one_bounded_line() -> None:
    fault = {"message": "no \x1b[2J\nvalid " + "x" * 5000}
    spec = spec_of("", MADE, ONE)
    session = NoCloud(servers=[server(name="n1", status="ERROR", fault=fault)])
    with pytest.raises(BackendError) as caught:
        work_of(spec, World(), session).wait_for({"s1": "n1"})
    line = caught.value.message.splitlines()[1]
    assert line.startswith(r"  node n1: no \x1b[2J valid xxx")
    assert len(line) < 600


@pytest.mark.parametrize(
    ("more", "hint"),
    [
        ("", "no hypervisor has the room"),
        (
            "reservation: 01234567-89ab-cdef-0123-456789abcdef\n",
            "reservation 01234567-89ab-cdef-0123-456789abcdef has ended",
        ),
    ],
)
def test_a_server_without_a_place_has_the_remedy_for_its_spec(more: str, hint: str) -> None:
    fault = {"message": "No valid host was found."}
    session = NoCloud(servers=[server(name="n1", status="ERROR", fault=fault)])
    with pytest.raises(BackendError) as caught:
        work_of(spec_of(more, MADE, ONE), World(), session).wait_for({"s1": "n1"})
    assert caught.value.hint.startswith(hint)


PHYSICAL = "networks: [{name: mpi, subnet: 10.77.0.0/24, physical: p}]\n"


def with_roles(roles: list[str]) -> NoCloud:
    """Return a session whose log-in has these roles."""
    session = NoCloud()
    auth = SimpleNamespace(get_access=lambda _session: SimpleNamespace(role_names=roles))
    session.sdk.session = SimpleNamespace(auth=auth)
    return session


class Subnets(Catalog):
    """A catalog that has everything, and networks with these subnets; one without text is hidden."""

    def __init__(self, cidrs: list[str]) -> None:
        sizes: dict[str, Any] = dict.fromkeys(("ram", "disk", "min_ram", "min_disk"), 1)
        self._all = item("n", subnet_ids=cidrs, status="active", **sizes)

    def _found(self, kind: str, name: str) -> list[Any]:
        del kind, name
        return [self._all]

    def subnet(self, identity: str) -> Any:
        if not identity:
            raise GoneError("no subnet")
        return item("s", cidr=identity)


@pytest.mark.parametrize(
    ("roles", "networks", "words"),
    [
        (["reader"], MADE, ["the log-in has only the role reader, which may change nothing"]),
        (["reader", "member"], MADE, []),
        (["reader"], PHYSICAL, ["the log-in has only the role reader"]),
        ([], PHYSICAL, []),
        (["admin"], PHYSICAL, []),
        (
            ["reader", "member"],
            PHYSICAL,
            [
                "network mpi: usually only the role admin may set physical, and the log-in has member"
            ],
        ),
    ],
)
def test_a_plan_says_which_right_the_log_in_may_lack(
    roles: list[str], networks: str, words: list[str], tmp_path: Path
) -> None:
    backend = OpenstackBackend(spec_of("", networks, ONE), Store(tmp_path))
    backend._session, backend._catalog = with_roles(roles), Known()
    notes = planned(backend).notes
    assert [any(one.startswith(word) for one in notes) for word in words] == [True] * len(words)
    assert len(notes) == len(words)
    # What exists needs no right.
    world = world_of()
    world.networks["mpi"].provider_network_type = None
    backend = backend_of(spec_of("", PHYSICAL, ONE), world, tmp_path / "made")
    backend._session = with_roles(["member"])
    assert planned(backend).notes == ()


@pytest.mark.parametrize(
    ("more", "node", "cidrs", "named"),
    [
        ("ssh: {}\n", "{name: n1}", ["fd00::/64"], True),
        ("outside: n\n", "{name: n1, floating: true}", ["fd00::/64", "fd01::/64"], True),
        ("", "{name: n1}", ["fd00::/64"], False),
        ("ssh: {}\n", "{name: n1}", ["fd00::/64", "192.0.2.0/24"], False),
        ("ssh: {}\n", "{name: n1}", ["fd00::/64", ""], False),
        ("ssh: {}\n", "{name: n1}", [], False),
    ],
)
def test_a_first_network_without_ipv4_is_named_before_the_first_change(
    more: str, node: str, cidrs: list[str], *, named: bool, tmp_path: Path
) -> None:
    spec = spec_of(more, EXISTING, f"hosts: [{{name: h1, nodes: [{node}]}}]\n")
    plan = planned(backend_of(spec, World(), tmp_path, network="n"))
    found = [one.sentence for one in missing(spec, plan, Subnets(cidrs), {})]
    line = "network mpi (nodes n1): it has no IPv4 subnet, for logins; write another network first"
    assert found == ([line] if named else [])


# What is there


def twice() -> NoCloud:
    """Return a cloud where lost answers have led to two of everything."""
    networks = [item(name, OURS.text("network", "mpi")) for name in ("a", "b")]
    subnets = [
        item("sub", OURS.text("subnet", "mpi"), network_id="b", cidr="10.77.0.0/24"),
    ]
    marked = {"nearmetal.mark": OURS.token, "nearmetal.node": "n1"}
    failed = {"created_at": "2025", "status": "ERROR", "launched_at": None}
    servers = [
        server(id=name, name="n1", fault=None, metadata=marked, **values)
        for name, values in (("s0", failed), ("s1", {"created_at": "2026", "launched_at": "2026"}))
    ]
    ports = [
        item(
            name,
            OURS.text("port", "n1", "mpi"),
            network_id="b",
            device_id=device,
            device_owner="compute:nova",
            fixed_ips=[{"ip_address": "10.77.0.5"}],
        )
        for name, device in (("p0", ""), ("p1", "s1"))
    ]
    return NoCloud(networks=networks, subnets=subnets, servers=servers, ports=ports)


def port_with(addresses: list[Any]) -> SimpleNamespace:
    return item("p", network_id="n", device_id="", device_owner="", fixed_ips=addresses)


def test_of_two_the_one_in_use_is_used_and_both_are_removed() -> None:
    session = twice()
    world = read_world(session, OURS)
    assert world.networks["mpi"].id == "b"
    assert world.subnets["mpi"].id == "sub"
    assert world.servers["n1"].id == "s1"
    assert world.ports["n1", "mpi"].id == "p1"
    session.requests.clear()
    session.sdk.compute._answers["servers"] = ()
    work_of(spec_of("", MADE, ONE), world, session).remove_all()
    deleted = [words for words in session.requests if words[0].startswith("delete")]
    assert deleted == [
        ("delete_server", "s1"),
        ("delete_server", "s0"),
        ("delete_port", "p1"),
        ("delete_port", "p0"),
        ("delete_network", "b"),
        ("delete_network", "a"),
    ]


@pytest.mark.parametrize(
    ("kind", "one", "words"),
    [
        ("servers", server(name="n1", fault=None, metadata=["x"]), "server: its metadata is"),
        ("servers", server(name="n1", fault=None, id=None), "server: its id is"),
        ("servers", server(name="n1", fault=None, flavor="small"), "server: its flavor is"),
        ("servers", server(name="n1", fault="broken"), "server: its fault is"),
        (
            "server_groups",
            item("g", member_ids=[{}], policies=None),
            "server group: its members have",
        ),
        ("networks", item("n", id=7), "network: its id is"),
        ("subnets", item("s", network_id="n", cidr=None), "subnet: its cidr is"),
        ("routers", item("r", external_gateway_info="out"), "router: its external_gateway_info is"),
        ("ports", port_with([{}]), "port: its addresses have"),
        ("ports", port_with(["x"]), "port: its addresses have"),
        ("ips", item("f", floating_network_id="n", port_id=3), "floating: its port_id is"),
    ],
)
def test_an_answer_of_another_form_is_an_error_of_the_service(
    kind: str, one: Any, words: str
) -> None:
    with pytest.raises(BackendError, match=f"{words} .*the answer is not one of OpenStack"):
        read_world(NoCloud(**{kind: [one]}), OURS)


@pytest.mark.parametrize("error", [ValueError("Expecting value"), TypeError(), KeyError("id")])
def test_what_openstacksdk_cannot_read_is_an_error_of_the_service(error: Exception) -> None:
    words = "asking: the answer is not one of OpenStack"
    with pytest.raises(BackendError, match=words), CloudSession("lab").asking("asking"):
        raise error


# Quotas


def test_quotas_without_numbers_are_none() -> None:
    limits = SimpleNamespace(
        instances=10,
        instances_used=None,
        total_cores=None,
        total_cores_used="x",
        total_ram="many",
        total_ram_used=1,
        server_groups=None,
        server_groups_used=None,
        server_group_members=5,
    )
    network = SimpleNamespace(ports={"limit": 5, "used": "x"}, routers={}, networks=7)
    session = NoCloud(get_limits=SimpleNamespace(absolute=limits), get_quota=network)
    found = {name: (one.limit, one.used) for name, one in quotas_of(session).items()}
    assert found == {"instances": (10, 0), "server_group_members": (5, 0), "ports": (5, 0)}


@pytest.mark.parametrize("code", [403, 404])
def test_quotas_that_the_cloud_does_not_tell_are_not_compared(code: int) -> None:
    session = NoCloud(get_limits=[refusal(code)], get_quota=[refusal(code)])
    assert quotas_of(session) == {}
    assert [words[0] for words in session.requests] == ["get_limits", "get_quota"]


def test_the_ports_of_the_router_count(tmp_path: Path) -> None:
    spec = spec_of("outside: out\n", MADE, ONE)
    backend = backend_of(spec, World(), tmp_path)
    needs = needs_of(spec, planned(backend), World(), Known())
    assert needs["ports"] == 2
