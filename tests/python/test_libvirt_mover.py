# SPDX-License-Identifier: Apache-2.0
"""What a move does with machines that stand still, specs that were edited, and moves without end."""

from __future__ import annotations

import re
import signal
import threading
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from nearmetal.cluster.backends.libvirt.driver import LibvirtBackend
from nearmetal.cluster.backends.libvirt.hypervisor import Hypervisor, LinkLimits, Room
from nearmetal.cluster.backends.libvirt.machine import NAMESPACE, hostdev_xml, read_hostdevs
from nearmetal.cluster.backends.libvirt.mover import LibvirtMoves, MoveParts
from nearmetal.cluster.backends.libvirt.spec import LibvirtSpec
from nearmetal.cluster.backends.libvirt.values import VirtualHost, VirtualNode
from nearmetal.cluster.move.phases import SETTLEMENTS, MoveAction, MovePhase, Presence
from nearmetal.cluster.move.record import Move, MoveRecords
from nearmetal.cluster.move.site import MoveOptions
from nearmetal.cluster.registration import desired
from nearmetal.cluster.resource import Key, Kind, Observed
from nearmetal.cluster.spec import parse_spec
from nearmetal.cluster.ssh_nodes import Nodes, NodeSilentError, entry_failure
from nearmetal.cluster.store import Store
from nearmetal.core.errors import BackendError, CommandError, Interrupted
from nearmetal.core.process import Command, Completed, LocalRunner
from tests.python.one_link import DOMAIN, OneLink
from tests.python.test_libvirt_machine import spec_of
from tests.python.virtual import facts_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytest.importorskip("libvirt")

NAME = "nearmetal.c.n1"
MOVE = Move(node="n1", source="h1", target="h2", phase=MovePhase.PREPARED)
TWO_HOSTS = """\
version: 1
name: c
backend: libvirt
network: {bridge: br0}
hosts:
  - {name: h1, uri: "qemu:///system", directory: FOLDER/h1, nodes: [{name: n1}]}
  - {name: h2, uri: "qemu:///session", directory: FOLDER/h2, nodes: []}
"""


@pytest.fixture
def link() -> Iterator[Hypervisor]:
    made = Hypervisor("test:///default")
    yield made
    made.end(NAME)
    made.close()


# Machines that stand still


def test_a_machine_that_a_user_has_paused_is_none_that_a_move_left(link: Hypervisor) -> None:
    """It ran, so no move ends it or lets it run: at the destination it is the only one."""
    assert link.presence(NAME) is Presence.ABSENT
    link.start(NAME, DOMAIN % (NAMESPACE, "x", "yes"))
    assert link.presence(NAME) is Presence.RUNNING
    link._link.lookupByName(NAME).suspend()
    paused = link.presence(NAME)
    assert SETTLEMENTS[Presence.ABSENT, paused].at_destination
    assert not SETTLEMENTS[Presence.ABSENT, paused].end_destination
    assert not SETTLEMENTS[paused, Presence.ABSENT].continue_source


@pytest.mark.parametrize("ours", [True, False])
def test_what_a_move_left_is_removed_and_no_machine_of_another_cluster(
    link: Hypervisor, tmp_path: Path, ours: bool
) -> None:
    spec = parse_spec(TWO_HOSTS.replace("FOLDER", str(tmp_path)))
    assert isinstance(spec, LibvirtSpec)
    backend = LibvirtBackend(spec, Store(tmp_path), LocalRunner(), cast("Any", object()))
    identity = backend._records.begin()
    backend._hosts = OneLink(spec, tmp_path, LocalRunner())
    backend._hosts.only = link
    MoveRecords(tmp_path / "clusters" / "c").write(MOVE)
    link.start(NAME, DOMAIN % (NAMESPACE, identity if ours else "another", "no"))
    backend._forget_moves("n1", has_vf=False)
    assert link.running(NAME) is not ours
    assert MoveRecords(tmp_path / "clusters" / "c").all() == []


# Specs that were edited


def site(spec: LibvirtSpec, observed: Observed, **parts: Any) -> LibvirtMoves:
    given: dict[str, Any] = dict.fromkeys(MoveParts.__dataclass_fields__)
    given |= {"spec": spec, "observe": lambda: observed, "facts": lambda: facts_for(spec), **parts}
    return LibvirtMoves(MoveParts(**given), MoveOptions(leave_s=300))


def hosts(one: str, two: str) -> LibvirtSpec:
    return spec_of(
        f"network: {{bridge: br0}}\nhosts:\n  - {{name: h1, nodes: [{one}]}}\n"
        f"  - {{name: h2, uri: 'qemu+ssh://root@h2/system', nodes: [{two}]}}\n"
    )


def there(spec: LibvirtSpec) -> Observed:
    return Observed(desired(spec, facts_for(spec), Observed()).resources)


A, B = "{name: a}", "{name: b}"


def test_nodes_and_hosts_that_the_spec_has_no_longer_are_not_moved() -> None:
    observed = there(hosts(A, B))
    assert site(hosts(A, B), observed).places() == {"a": "h1", "b": "h2"}
    assert site(hosts(A, ""), observed).places() == {"a": "h1"}
    renamed = spec_of("hosts: [{name: h1, nodes: [{name: a}]}]")
    assert site(renamed, observed).places() == {"a": "h1"}
    lost = replace(observed, broken=frozenset({Key(Kind.HOST, "h2")}))
    assert site(hosts(A, B), lost).places() == {"a": "h1"}


def test_a_move_whose_host_is_not_in_the_spec_is_named() -> None:
    spec, links = spec_of("hosts: [{name: h1, nodes: [{name: a}]}]"), SimpleNamespace(link=str)
    with pytest.raises(BackendError, match="host h2 is not in the spec"):
        site(spec, Observed(), hosts=links).settle(MOVE)


def test_two_names_of_one_machine_are_no_two_hosts(link: Hypervisor) -> None:
    """With two, a failed migration would end with the advice to end one of two equal copies."""
    spec = hosts("{name: n1}", "")

    def claim(*_: object) -> None:
        raise BackendError("moves on")

    links = SimpleNamespace(link=lambda _: link)
    moves = site(spec, there(spec), hosts=links, claim=claim)
    link.start(NAME, DOMAIN % (NAMESPACE, "x", "yes"))
    both = SETTLEMENTS[link.presence(NAME), link.presence(NAME)]
    assert both.at_source
    assert both.at_destination
    one, other = Room("", frozenset(), frozenset(), 0, {}, "4c4c"), spec.hosts[1].uri
    moves.__dict__["_rooms"] = {host.uri: one for host in spec.hosts}
    words = f"h1 and h2 are one machine: .*{re.escape(other)} has UUID 4c4c"
    with pytest.raises(BackendError, match=words):
        moves.check([MOVE])
    moves.__dict__["_rooms"][other] = replace(one, host="4c4d")
    with pytest.raises(BackendError, match="moves on"):
        moves.check([MOVE])


def test_a_hypervisor_says_which_computer_it_is_on() -> None:
    text = "<capabilities><host><uuid>4c4c</uuid></host></capabilities>"
    memory = {"free": 1, "buffers": 1, "cached": 2}
    api = SimpleNamespace(getCapabilities=lambda: text, getMemoryStats=lambda _: memory)
    assert hypervisor("test:///x", api).room() == Room(
        "", frozenset(), frozenset(), 4096, {}, "4c4c"
    )


@pytest.mark.parametrize("segment", ["{}", "{device: ivshmem}", "{parts: 4}"])
def test_a_host_without_nodes_has_parts_of_the_usual_size(segment: str) -> None:
    spec = spec_of(
        "network: {bridge: br0}\nhosts:\n  - {name: h1, nodes: [{name: a}]}\n  - {name: h2, "
        f"uri: 'qemu+ssh://root@h2/system', segment: {segment}, nodes: []}}\n"
    )
    made = there(spec).named(VirtualHost)["h2"]
    assert (made.device, made.part_size) == (
        ("none", None) if segment == "{}" else ("ivshmem", 64 << 20)
    )


# Moves without end


def test_the_guest_gives_up_before_its_controller_does(tmp_path: Path) -> None:
    spec = spec_of("hosts: [{name: h1, nodes: [{name: n1}, {name: n2}]}]")
    asked: list[tuple[Command, float]] = []

    class Runner:
        def check(self, command: Command, *, timeout_s: float) -> Completed:
            asked.append((command, timeout_s))
            return cast("Completed", SimpleNamespace(text=""))

    (item,) = (r for r in there(spec).resources if r.key == Key(Kind.NODE, "n1"))
    nodes = Nodes(tmp_path, {"n1": ("10.0.0.1", None)}, cast("Any", Runner()))
    records = SimpleNamespace(read=lambda _: SimpleNamespace(item=item))
    site(spec, Observed(), nodes=lambda: nodes, records=records).act(MoveAction.QUIESCE, MOVE)
    ((command, limit_s),) = asked
    assert "nearmetal-guest leave 300" in command.argv[-1]
    assert limit_s > 300


@pytest.mark.parametrize(("vf", "asked"), [("", []), (", vf: {}", ["n1"])])
def test_the_guest_remembers_the_addresses_of_a_vf_without_a_segment(
    vf: str, asked: list[str]
) -> None:
    spec = spec_of(f"hosts: [{{name: h1, nodes: [{{name: n1{vf}}}]}}]")
    (item,) = (r for r in there(spec).resources if r.key.kind is Kind.NODE)
    assert item.of(VirtualNode).device == "none"
    told: list[str] = []
    nodes = SimpleNamespace(check=lambda name, *_, **__: told.append(name))
    records = SimpleNamespace(read=lambda _: SimpleNamespace(item=item))
    site(spec, Observed(), nodes=lambda: nodes, records=records).act(MoveAction.QUIESCE, MOVE)
    assert told == asked


class LibvirtError(Exception):
    """As much of libvirt's error as is used."""

    def get_error_message(self) -> str:
        return str(self)

    def get_error_code(self) -> int:
        return 0


class Api:
    """The names of libvirt that a migration uses."""

    libvirtError = LibvirtError  # noqa: N815 - libvirt's name

    def __getattr__(self, name: str) -> int:
        return len(name)

    def open(self, uri: str) -> SimpleNamespace:
        return SimpleNamespace(uri=uri, close=lambda: None)


@dataclass
class Endless:
    """A domain whose migration ends when it is aborted; at first there is nothing to abort."""

    refusals: int = 2
    aborted: threading.Event = field(default_factory=threading.Event)

    def migrate3(self, *_: object) -> None:
        if self.aborted.wait(5):
            raise LibvirtError("aborted by the client")

    def abortJob(self) -> None:  # noqa: N802 - libvirt's name
        self.refusals -= 1
        if self.refusals >= 0:
            raise LibvirtError("no job is active")
        self.aborted.set()


class Alive(threading.Event):
    """A connection that keepalive gives up when this is set."""

    def isAlive(self) -> bool:  # noqa: N802 - libvirt's name
        return not self.is_set()


def hypervisor(uri: str, link: object) -> Hypervisor:
    made = object.__new__(Hypervisor)
    made.uri, made._api, made._link = uri, Api(), link
    made.limits = LinkLimits(open_s=0.1, left_s=0.2)
    return made


def migrate(
    domain: Endless,
    limit_s: float,
    halt: threading.Event | None = None,
    lost: Alive | None = None,
) -> None:
    link = hypervisor("test:///x", SimpleNamespace(lookupByName=lambda _: domain))
    target = hypervisor("test:///y", lost or Alive())
    halt = halt or threading.Event()
    link.migrate(NAME, target, "<domain/>", "tcp://h2", tls=False, limit_s=limit_s, halt=halt)


def test_a_migration_that_is_late_is_aborted_as_soon_as_that_is_possible() -> None:
    domain = Endless()
    with pytest.raises(BackendError, match=r"did not end in 0\.01 s"):
        migrate(domain, 0.01)
    assert domain.aborted.is_set()


def test_a_migration_is_cancelled_from_another_thread() -> None:
    domain, halt = Endless(), threading.Event()
    threading.Timer(0.1, halt.set).start()
    with pytest.raises(BackendError, match=r"cannot migrate .*: aborted by the client"):
        migrate(domain, 600, halt)
    assert domain.aborted.is_set()


def test_an_interrupted_migration_is_aborted_and_not_waited_for() -> None:
    domain, before = Endless(), signal.getsignal(signal.SIGALRM)

    def interrupt(*_: object) -> None:
        raise Interrupted(signal.SIGALRM)

    signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(Interrupted):
            migrate(domain, 600)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert domain.aborted.is_set()


@dataclass
class Unanswered(Endless):
    """A domain whose migration never ends: the answer of the destination is lost on its way."""

    carriers: list[object] = field(default_factory=list)

    def migrate3(self, *given: object) -> None:
        self.carriers.append(given[0])
        self.aborted.wait(30)


def test_a_lost_destination_ends_a_migration_without_a_verdict() -> None:
    """libvirt itself is not told: it would continue the source while the copy may run."""
    domain, lost = Unanswered(refusals=1 << 30), Alive()
    threading.Timer(0.1, lost.set).start()
    with pytest.raises(BackendError, match=rf"test:///y was lost while {NAME} migrated to it"):
        migrate(domain, 600, lost=lost)
    # The connection of the migration is not that whose keepalive ends it.
    assert domain.carriers
    assert lost not in domain.carriers
    # It was asked to end at the source.
    assert domain.refusals < 1 << 30
    domain.aborted.set()


def test_a_migration_that_ends_after_its_destination_was_lost_has_its_own_error() -> None:
    domain, lost = Endless(), Alive()
    lost.set()
    with pytest.raises(BackendError, match=r"cannot migrate .*: aborted by the client"):
        migrate(domain, 600, lost=lost)


def test_a_connection_that_gets_no_keepalive_is_closed() -> None:
    class Link:
        closed = False

        def setKeepAlive(self, *_: int) -> None:  # noqa: N802 - libvirt's name
            raise LibvirtError("the client socket is closed")

        def close(self) -> None:
            self.closed = True

    link = Link()
    with pytest.raises(BackendError, match="the client socket is closed"):
        hypervisor("test:///x", link)._keep_alive()
    assert link.closed


def test_a_connection_that_is_not_made_in_time_is_named() -> None:
    release = threading.Event()
    link = hypervisor("qemu+ssh://root@h2/system", None)
    link._api = SimpleNamespace(open=lambda _: release.wait(30), libvirtError=LibvirtError)
    with pytest.raises(BackendError, match=r"root@h2/system does not answer within 0\.1 s"):
        link.connect()
    release.set()


# Virtual functions

VF = "0000:01:10.2"


@dataclass
class Slots:
    """A domain whose guest lets a device go at the third look, or never."""

    held: set[str] = field(default_factory=set)
    leaves: bool = True
    calls: list[tuple[str, int]] = field(default_factory=list)
    looks: int = 0

    def XMLDesc(self, _: int) -> str:  # noqa: N802 - libvirt's name
        self.looks += bool(self.calls)
        if self.leaves and self.looks > 2:
            self.held.clear()
        devices = "".join(map(hostdev_xml, self.held))
        return f"<domain><devices>{devices}</devices></domain>"

    def attachDeviceFlags(self, document: str, flags: int) -> None:  # noqa: N802 - as above
        self.calls.append((document, flags))
        self.held |= read_hostdevs(f"<domain><devices>{document}</devices></domain>")

    def detachDeviceFlags(self, document: str, flags: int) -> None:  # noqa: N802 - as above
        self.calls.append((document, flags))


def with_slots(domain: Slots) -> Hypervisor:
    return hypervisor("test:///x", SimpleNamespace(lookupByName=lambda _: domain))


def test_a_vf_is_plugged_into_a_running_machine_once() -> None:
    domain = Slots(leaves=False)
    for _ in range(2):
        with_slots(domain).attach(NAME, VF)
    assert domain.held == {VF}
    ((document, flags),) = domain.calls
    assert flags == Api().VIR_DOMAIN_AFFECT_LIVE
    assert 'managed="no"' in document


def test_a_vf_is_unplugged_as_soon_as_the_guest_lets_it_go() -> None:
    domain = Slots({VF})
    for _ in range(2):
        with_slots(domain).detach(NAME, VF)
    assert not domain.held
    assert len(domain.calls) == 1
    with pytest.raises(BackendError, match=f"does not let {VF} go in 0.1 s"):
        with_slots(Slots({VF}, leaves=False)).detach(NAME, VF, 0.1)


# Guests that cannot be asked


@pytest.mark.parametrize(
    ("code", "asked_for"),
    [(255, ["near"]), (1, ["near", "bare"])],
    ids=["no connection", "refused by the guest"],
)
def test_only_a_guest_that_refuses_the_segment_goes_without_it(
    tmp_path: Path, code: int, asked_for: list[str]
) -> None:
    """A lost connection says nothing about the segment: the action fails, and is repeated."""
    spec = spec_of("hosts: [{name: h1, nodes: [{name: n1}, {name: n2}]}]")
    seeds: list[str] = []

    class Runner:
        def check(self, command: Command, *, timeout_s: float) -> Completed:
            del timeout_s
            seeds.append(command.stdin.decode())
            if seeds[-1] == "near":
                raise CommandError(f"exit code {code}: ssh", "why", code=code)
            return cast("Completed", SimpleNamespace(text=""))

    (item,) = (r for r in there(spec).resources if r.key == Key(Kind.NODE, "n1"))
    nodes = Nodes(tmp_path, {"n1": ("10.0.0.1", None)}, cast("Any", Runner()))
    moves = site(spec, Observed(), nodes=lambda: nodes)
    moves._seed = lambda move, *_: "near" if move.near else "bare"  # type: ignore[method-assign]
    if code == 255:
        with pytest.raises(NodeSilentError, match="n1: its processes do not return: why"):
            moves._back(MOVE, item, "h1")
    else:
        assert "n1 has no segment on host h1" in moves._back(MOVE, item, "h1")
    assert seeds == asked_for


@pytest.mark.parametrize(
    ("reason", "hint"),
    [
        ("root@10.0.0.1: Permission denied (publickey).", "must let root log in"),
        ("leave: mv: cannot write in /run: Permission denied", "^$"),
    ],
    ids=["by sshd", "by the guest"],
)
def test_only_a_refused_login_has_the_hint_to_let_root_in(reason: str, hint: str) -> None:
    assert re.search(hint, entry_failure("n1", "it does not leave", reason).hint)


def test_the_exit_code_of_a_program_is_in_its_error() -> None:
    with pytest.raises(CommandError) as failed:
        LocalRunner().check(Command(("sh", "-c", "exit 255")), timeout_s=10)
    assert failed.value.code == 255
