# SPDX-License-Identifier: Apache-2.0
"""Guests of servers, without a cloud: their consoles, their keys, the ways to them, the wait."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("openstack")

from nearmetal.cluster.backends.openstack.arrival import (
    Arrival,
    GuestPlace,
    console_end,
    console_failure,
    console_key,
    places_of,
)
from nearmetal.cluster.backends.openstack.guests import ServerGuests, first_interfaces
from nearmetal.cluster.backends.openstack.session import BusyError
from nearmetal.cluster.backends.openstack.spec import OpenstackSpec
from nearmetal.cluster.backends.openstack.world import World
from nearmetal.cluster.keys import KeyRing
from nearmetal.cluster.ssh_guests import NEVER, OTHER, GuestNode, GuestRecords
from nearmetal.core.errors import BackendError
from nearmetal.core.process import Command, Completed, LocalRunner
from tests.python.test_openstack_cloud import Given, NoCloud, backend_of, item, refusal
from tests.python.test_openstack_spec import spec_of
from tests.python.test_openstack_world import port, server

KEY = "ssh-ed25519 " + "A" * 67 + "b"
NEXT = "ssh-ed25519 " + "A" * 67 + "c"
MAC = "fa:16:3e:00:00:0"
NETWORKS = "networks: [{name: mpi, subnet: 10.77.0.0/24}]\n"
TWO = "hosts: [{name: h1, nodes: [{name: n1, floating: true}, {name: n2}]}]\n"
DENIED = "root@10.77.0.11: Permission denied (publickey)."
NO_ROUTE = "ssh: connect to host 10.77.0.11 port 22: No route to host"
OTHER_KEY = "Host key verification failed."


def jobs_of(hosts: str = TWO) -> OpenstackSpec:
    return spec_of("ssh: {}\noutside: o\n", NETWORKS, hosts)


def world_of(*, floating: bool = False, status: str = "ACTIVE") -> World:
    world = World()
    for number in (1, 2):
        fixed = [{"ip_address": f"10.77.0.1{number}", "subnet_id": "sub"}]
        world.servers[f"n{number}"] = SimpleNamespace(id=f"s{number}", status=status)
        world.ports[f"n{number}", "mpi"] = SimpleNamespace(
            fixed_ips=fixed, mac_address=f"{MAC}{number}"
        )
    if floating:
        one = SimpleNamespace(floating_ip_address="203.0.113.9", port_id="p")
        world.floating["n1"].append(one)
    return world


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (f"login: nearmetal: key {KEY}\r\n", KEY),
        (f"nearmetal: key {KEY}\nboot\nnearmetal: key {NEXT}\n", NEXT),
        ("nearmetal: key \n", ""),
        (f"nearmetal: key {KEY}A\n", ""),
        (f"nearmetal: key ssh-rsa {'A' * 68}\n", ""),
        (f"nearmetal: key ssh-ed25519 {'A' * 60}\n", ""),
    ],
)
def test_the_key_of_a_guest_is_the_last_whole_one_on_its_console(text: str, key: str) -> None:
    assert console_key(text) == key


def test_words_of_a_console_are_bounded_and_harmless() -> None:
    text = "\n".join(f"line {number}" for number in range(100)) + f"\n\x1b[2J{'x' * 4000}\n"
    shown = console_end(text)
    assert shown.startswith("    line 93\n")
    assert "\x1b" not in shown
    assert max(map(len, shown.split("\n"))) == 164
    assert console_end("") == "    (nothing)"
    assert (
        console_failure("nearmetal: failed n1: no\x1b disk\n")
        == "nearmetal: failed n1: no\\x1b disk"
    )
    assert console_failure("all is well\n") == ""


def test_nodes_without_a_floating_address_are_reached_through_the_first_that_has_one() -> None:
    plain = places_of(jobs_of(), world_of())
    assert [(p.reach, p.through) for p in plain.values()] == [
        ("10.77.0.11", ""),
        ("10.77.0.12", ""),
    ]
    mixed = places_of(jobs_of(), world_of(floating=True))
    assert mixed["n1"] == GuestPlace("s1", True, f"{MAC}1", "10.77.0.11", "203.0.113.9")
    assert mixed["n2"] == GuestPlace("s2", True, f"{MAC}2", "10.77.0.12", "10.77.0.12", "n1")
    assert not places_of(jobs_of(), world_of(status="SHUTOFF"))["n1"].runs


def test_a_port_may_have_addresses_of_version_6() -> None:
    world = world_of()
    world.ports["n1", "mpi"].fixed_ips.insert(0, {"ip_address": "2001:db8::5", "subnet_id": "six"})
    world.ports["n2", "mpi"].fixed_ips[:] = [{"ip_address": "2001:db8::6", "subnet_id": "six"}]
    found = places_of(jobs_of(), world)
    assert {name: place.address for name, place in found.items()} == {"n1": "10.77.0.11"}


def test_the_first_boot_gets_addresses_and_no_secret(tmp_path: Path) -> None:
    guests = guests_of(tmp_path)
    ports = world_of().ports
    subnet = item("sub", network_id="net", cidr="10.77.0.0/24", gateway_ip="10.77.0.1")
    catalog = Given()
    catalog.subnet = lambda identity: {"sub": subnet}[identity]  # type: ignore[method-assign]
    every = [
        ports["n1", "mpi"],
        ports["n2", "mpi"],
        SimpleNamespace(mac_address=MAC + "9", fixed_ips=[]),
    ]
    interfaces = [*first_interfaces(catalog, every)]
    assert [(one.address, one.gateway) for one in interfaces] == [
        ("10.77.0.11/24", "10.77.0.1"),
        ("10.77.0.12/24", None),
        (None, None),
    ]
    text = base64.b64decode(guests.user_data("n1", interfaces)).decode()
    assert text.startswith("#cloud-config\n")
    assert "PRIVATE" not in text
    data = json.loads(text.partition("\n")[2])
    own = KeyRing(tmp_path / "keys", LocalRunner()).pair("client").public
    assert data["ssh_authorized_keys"] == [own]
    first = json.loads(data["write_files"][0]["content"])
    assert (first["name"], first["ssh"]) == ("n1", {"authorized_keys": [own]})
    assert first["interfaces"][0]["address"] == "10.77.0.11/24"


def guests_of(directory: Path, spec: OpenstackSpec | None = None, **answers: Any) -> ServerGuests:
    made = ServerGuests(spec or jobs_of(), NoCloud(**answers), directory, LocalRunner())
    made.__dict__["_parts"] = b"parts"
    return made


def test_what_a_server_lacks_is_said_with_the_reason(tmp_path: Path) -> None:
    spec, world = jobs_of(), world_of()
    guests = guests_of(tmp_path, spec, get_server_console_output={"output": ""})
    assert guests.lacking(world) == {"n1": NEVER, "n2": NEVER}
    with pytest.raises(BackendError, match="node n1: it is not prepared for jobs"):
        guests.nodes()
    places = places_of(spec, world)
    records = {
        name: GuestNode(
            machine=place.server,
            address=place.reach,
            digest=guests._digest(places, name),
            first_key=KEY,
        )
        for name, place in places.items()
    }
    GuestRecords(tmp_path).write(records)
    assert guests.lacking(world) == {}
    assert guests.nodes().where["n2"] == ("10.77.0.12", None)
    # Another start, another way, another server.
    again = guests_of(
        tmp_path, spec, get_server_console_output={"output": f"nearmetal: key {NEXT}"}
    )
    assert set(again.lacking(world).values()) == {
        "its machine has started again, and what it had got is gone"
    }
    assert guests.lacking(world_of(floating=True)) == {"n1": OTHER, "n2": OTHER}
    world.servers["n2"] = SimpleNamespace(id="s9", status="ACTIVE")
    assert guests.lacking(world) == {"n2": NEVER}
    assert guests.lacking(world_of(status="SHUTOFF")) == {}
    assert guests.incarnation("n1", "s1") != "s1"
    assert guests.incarnation("n1", "s9") == "s9"


def test_a_login_goes_through_the_node_with_the_floating_address(tmp_path: Path) -> None:
    spec, world = jobs_of(), world_of(floating=True)
    guests = guests_of(tmp_path, spec)
    nodes = guests._at(places_of(spec, world))
    (direct, through) = (nodes.first_login(n, "k").argv("true") for n in ("n1", "n2"))
    assert "203.0.113.9" in direct
    (proxy,) = (word for word in through if word.startswith("ProxyCommand="))
    assert "HostKeyAlias=n1" in proxy
    assert proxy.endswith("-W '[%h]:%p' -- 203.0.113.9")


class FakeGuests:
    """Guests whose consoles and logins a test gives, one entry for each look."""

    def __init__(self, consoles: Sequence[str], logins: Sequence[str] = ()) -> None:
        self.spec = jobs_of("hosts: [{name: h1, nodes: [{name: n1}]}]\n")
        self.known: dict[str, GuestNode] = {}
        self.consoles, self.logins = [*consoles], [*logins]
        self.tried: list[dict[str, str]] = []
        self.closed: list[str] = []
        self.names: list[str] = []
        self.whole: list[bool] = []

    def records(self) -> dict[str, GuestNode]:
        return self.known

    def console(self, server: str, *, whole: bool = False) -> str:
        assert server in {"s1", "s2"}
        self.whole.append(whole)
        return self.consoles.pop(0) if len(self.consoles) > 1 else self.consoles[0]

    def close(self, node: str) -> None:
        self.closed.append(node)

    def try_logins(
        self, places: Mapping[str, GuestPlace], names: Sequence[str], keys: Mapping[str, str]
    ) -> list[Completed]:
        del places
        self.names += names
        self.tried.append(dict(keys))
        word = self.logins.pop(0) if len(self.logins) > 1 else (self.logins or [""])[0]
        code = 255 if word else 0
        return [Completed(Command(("ssh", n)), code, b"", word.encode(), 0.0) for n in names]

    def wait(self, *, floating: bool = False, look: Callable[[], World] | None = None) -> Arrival:
        """Wait; each sleep is ten seconds, and takes none."""
        now = [0.0]
        look = look or (lambda: world_of(floating=floating))

        def sleep(_seconds: float) -> None:
            now[0] += 10

        made = Arrival(self, look, 900, now=lambda: now[0], sleep=sleep)
        made.wait()
        return made


LINE = f"nearmetal: key {KEY}\n"


def test_a_guest_is_entered_when_its_console_shows_the_key() -> None:
    guests = FakeGuests(["", "booting", LINE])
    assert guests.wait().first_keys == {"n1": KEY}
    assert guests.tried == [{"n1": KEY}]
    assert guests.closed == ["n1"]


def test_a_node_that_is_known_needs_no_console() -> None:
    guests = FakeGuests([""])
    guests.known["n1"] = GuestNode(machine="s1", address="a", digest="d", first_key=KEY)
    assert guests.wait().first_keys == {}
    assert guests.tried == [{}]


def test_a_key_of_the_start_before_is_waited_for() -> None:
    guests = FakeGuests([LINE] * 12 + [f"{LINE}nearmetal: key {NEXT}\n"], [OTHER_KEY] * 12 + [""])
    assert guests.wait().first_keys == {"n1": NEXT}


@pytest.mark.parametrize(
    ("consoles", "logins", "why", "hint"),
    [
        (
            [LINE],
            [DENIED],
            "node n1: cannot be entered by ssh as root: .*denied",
            "let root log in",
        ),
        ([LINE], [NO_ROUTE], "No route to host", "floating: true.*security group"),
        ([LINE], [OTHER_KEY], "after 900 s:\n  node n1: .*expected host key", "another machine"),
        (
            ["a\nb\n"],
            [],
            "it has not shown the key of its sshd; .*console:\n    a\n    b",
            "--disk",
        ),
        (["nearmetal: failed n1: no interface\n"], [], "console says: .*no interface", "--disk"),
    ],
)
def test_a_guest_that_cannot_be_entered_is_an_error_with_its_fix(
    consoles: list[str], logins: list[str], why: str, hint: str
) -> None:
    guests = FakeGuests(consoles, logins)
    with pytest.raises(BackendError, match=f"(?s){why}") as error:
        guests.wait()
    assert re.search(hint, error.value.hint), error.value.hint


def test_nothing_is_tried_at_a_node_behind_one_that_does_not_answer() -> None:
    guests = FakeGuests([LINE], [NO_ROUTE])
    guests.spec = jobs_of()
    with pytest.raises(BackendError, match="node n1"):
        guests.wait(floating=True)
    assert {*guests.names} == {"n1"}


def test_a_node_that_was_entered_before_may_take_long_to_start() -> None:
    guests = FakeGuests([""], [NO_ROUTE] * 30 + [""])
    guests.known["n1"] = GuestNode(machine="s1", address="a", digest="d", first_key=KEY)
    guests.wait()
    assert len(guests.names) == 31
    guests.logins = [NO_ROUTE]
    with pytest.raises(BackendError, match=r"after 900 s:\n  node n1: .*No route") as error:
        guests.wait()
    assert "security group" in error.value.hint


def test_a_wait_outlasts_a_service_that_is_busy() -> None:
    worlds: list[World | BusyError] = [BusyError("busy"), world_of(), BusyError("busy"), world_of()]

    def look() -> World:
        found = worlds.pop(0) if len(worlds) > 1 else worlds[0]
        if isinstance(found, BusyError):
            raise found
        return found

    FakeGuests(["", LINE]).wait(look=look)
    worlds[:] = [BusyError("still busy")]
    with pytest.raises(BusyError, match="still busy"):
        FakeGuests([LINE]).wait(look=look)


def lost(world: World) -> None:
    del world.servers["n1"]


def off(world: World) -> None:
    world.servers["n1"].status = "SHUTOFF"


def without_address(world: World) -> None:
    world.ports["n1", "mpi"].fixed_ips = []


@pytest.mark.parametrize(
    ("change", "why", "hint"),
    [
        (lost, "node n1: its server was removed meanwhile", "nearmetal up"),
        (off, "node n1: its server is in state SHUTOFF", "nearmetal up"),
        (without_address, "node n1: its port in network mpi has no IPv4 address", "subnet"),
    ],
)
def test_a_server_that_cannot_answer_any_more_ends_the_wait(
    change: Callable[[World], None], why: str, hint: str
) -> None:
    looks: list[World] = []

    def look() -> World:
        looks.append(world_of())
        if len(looks) == 3:
            change(looks[-1])
        return looks[-1]

    with pytest.raises(BackendError, match=f"^{why}$") as error:
        FakeGuests([""]).wait(look=look)
    assert hint in error.value.hint
    assert len(looks) == 3


def test_a_server_that_nova_works_at_is_waited_for() -> None:
    worlds = [world_of(status="REBOOT"), world_of()]
    FakeGuests([LINE]).wait(look=lambda: worlds.pop(0))
    assert worlds == []


def test_a_node_behind_another_is_not_said_to_lack_its_key() -> None:
    guests = FakeGuests([LINE])
    guests.spec = jobs_of()

    def console(server: str, *, whole: bool = False) -> str:
        guests.whole.append(whole)
        return LINE if server == "s2" and len(guests.whole) > 2 else ""

    guests.console = console  # type: ignore[method-assign]
    with pytest.raises(BackendError, match="after 900 s") as error:
        guests.wait(floating=True)
    assert "node n1: it has not shown the key" in error.value.message
    assert "node n2: the node that forwards logins does not answer" in error.value.message


def test_the_first_look_at_an_unknown_machine_reads_all_of_its_console(tmp_path: Path) -> None:
    guests = FakeGuests(["", "", LINE])
    guests.wait()
    assert guests.whole == [True, False, False]
    # So does a look at a node that has another key than before.
    guests = FakeGuests(["", f"nearmetal: key {NEXT}\n"], [OTHER_KEY, ""])
    guests.known["n1"] = GuestNode(machine="s1", address="a", digest="d", first_key=KEY)
    assert guests.wait().first_keys == {"n1": NEXT}
    assert guests.whole == [False, True]
    asked = NoCloud(get_server_console_output={"output": "words"})
    real = ServerGuests(jobs_of(), asked, tmp_path, LocalRunner())
    assert [real.console("s1", whole=True), real.console("s1")] == ["words", "words"]
    assert [request[2] for request in asked.requests] == [None, 400]


def test_a_console_that_may_not_be_read_is_said(tmp_path: Path) -> None:
    spec = jobs_of("hosts: [{name: h1, nodes: [{name: n1}]}]\n")
    guests = guests_of(tmp_path, spec, get_server_console_output=[refusal(403) for _ in range(3)])
    with pytest.raises(BackendError, match=r"node n1: .*reading a console") as error:
        Arrival(
            guests, world_of, 900, sleep=lambda _: None, now=iter(range(0, 99999, 100)).__next__
        ).wait()
    assert "right to read consoles" in error.value.hint
    place = places_of(spec, world_of())["n1"]
    record = GuestNode(
        machine="s1",
        address=place.reach,
        digest=guests._digest(places_of(spec, world_of()), "n1"),
        first_key=KEY,
    )
    GuestRecords(tmp_path).write({"n1": record})
    assert guests.lacking(world_of()) == {}


@pytest.mark.parametrize("strange", [{}, None, {"ip_address": None}, {"ip_address": [1]}, "x"])
def test_an_address_of_another_form_is_none(strange: object) -> None:
    world = world_of()
    world.ports["n1", "mpi"].fixed_ips = [strange]
    assert [*places_of(jobs_of(), world)] == ["n2"]


def test_the_status_reads_each_console_once(tmp_path: Path) -> None:
    spec = spec_of("ssh: {}\n", NETWORKS, "hosts: [{name: h1, nodes: [{name: n1}]}]\n")
    fixed = [{"ip_address": "10.77.0.11", "subnet_id": "sub"}]
    plug = port("s1")
    plug.fixed_ips, plug.mac_address = fixed, MAC + "1"
    world = World(servers={"n1": server()}, ports={("n1", "mpi"): plug})
    backend = backend_of(spec, world, tmp_path)
    guests = backend._guests = guests_of(tmp_path, spec, get_server_console_output={"output": ""})
    record = GuestNode(machine="s1", address="10.77.0.11", digest="old", first_key=KEY)
    GuestRecords(tmp_path).write({"n1": record})
    assert [node.health for node in backend.status()] == [OTHER]
    record = record.model_copy(update={"digest": guests._digest(places_of(spec, world), "n1")})
    GuestRecords(tmp_path).write({"n1": record})
    assert [node.health for node in backend.status()] == ["running"]
    assert len(guests._session.requests) == 1  # type: ignore[attr-defined]
