# SPDX-License-Identifier: Apache-2.0
"""Moves of a machine with a VF: two real ledgers on modelled kernels, two hypervisors in memory.

The destination is asked as another machine is. A command dies before and after each change, and so
does the next one. Then each VF has one owner, and the machine has the VF of the host where it runs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from nearmetal.cluster.backends.libvirt.machine import OwnerMark
from nearmetal.cluster.backends.libvirt.mover import LibvirtMoves, MoveParts
from nearmetal.cluster.backends.libvirt.records import Records
from nearmetal.cluster.backends.libvirt.values import VirtualNode
from nearmetal.cluster.backends.libvirt.vfs import NodeVfs, vfs_for
from nearmetal.cluster.move.checks import FabricNeed, refusals
from nearmetal.cluster.move.engine import Mover, MoveReport
from nearmetal.cluster.move.phases import MoveAction, Presence
from nearmetal.cluster.move.record import Move
from nearmetal.cluster.move.site import MoveOptions
from nearmetal.cluster.registration import desired
from nearmetal.cluster.resource import Key, Kind, Observed, Resource
from nearmetal.core.errors import BackendError
from nearmetal.host.vf import GrantedVf, Ledger, Owner, VfHost
from nearmetal.host.vf.distant import DistantVfHost
from nearmetal.host.vf.model import INFINIBAND
from nearmetal.host.vf.request import VfRequest
from nearmetal.image.seed import SeedInterface
from tests.python.distant import another, completed
from tests.python.seeds import seed_data
from tests.python.sriov_tree import FakeKernel, Tree
from tests.python.test_libvirt_machine import spec_of
from tests.python.virtual import facts_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from nearmetal.cluster.backends.libvirt.spec import LibvirtSpec

MOVE = Move(node="n1", source="h1", target="h2")
NODE = Key(Kind.NODE, "n1")
ABSENT, RUNNING, PAUSED = Presence.ABSENT, Presence.RUNNING, Presence.PAUSED
REQUEST = VfRequest(vlan=7)
NAMES = "n0", "n1"
SEED = json.dumps(seed_data())


class Killed(BaseException):
    """The end of the process that moves."""


@cache
def spec() -> LibvirtSpec:
    return spec_of(
        "network: {bridge: br0}\nhosts:\n"
        "  - {name: h1, directory: /h1, nodes: [{name: n1, vf: {vlan: 7}}]}\n"
        "  - {name: h2, uri: 'qemu+ssh://root@h2/system', directory: /h2,"
        " nodes: [{name: n2, vf: {vlan: 7}}]}\n"
    )


@dataclass
class Steps:
    """Counts the changes; number `at` dies or fails, before or after it."""

    at: int = -1
    how: Callable[[str], BaseException] = BackendError
    count: int = 0

    def __call__(self) -> None:
        self.count += 1
        if self.count - 1 == self.at:
            raise self.how(f"step {self.at}")


@dataclass
class StepVfs(NodeVfs):
    """The VFs of a host, with steps before and after each change."""

    inner: NodeVfs
    step: Steps
    used: Callable[[], set[str]]

    @property
    def local(self) -> bool:
        return self.inner.local

    def offers(self, asked: Mapping[str, VfRequest]) -> Any:
        return self.inner.offers(asked)

    def take(self, node: str, request: VfRequest, cells: frozenset[int]) -> GrantedVf:
        self.step()
        granted = self.inner.take(node, request, cells)
        self.step()
        return granted

    def give_back(self, node: str) -> None:
        self.step()
        assert not self.used(), "a VF goes under the machine that has it"
        self.inner.give_back(node)
        self.step()


@dataclass
class Link:
    """One hypervisor. `devices`: the devices of the host that the machine has."""

    step: Steps
    presence_now: Presence
    devices: set[str]
    mark: OwnerMark | None = None
    late: bool = False
    """The guest lets devices go only after the time for that."""
    broken: bool = False

    def presence(self, _: str) -> Presence:
        return self.presence_now

    def mark_of(self, _: str) -> OwnerMark | None:
        return self.mark

    def plug(self, _: str, views: Sequence[object]) -> bool:
        assert not views
        return False

    def unplug(self, _: str, views: Sequence[object]) -> None:
        assert not views

    def _alive(self) -> None:
        self.step()
        assert self.presence_now is RUNNING

    def attach(self, _: str, address: str) -> bool:
        self._alive()
        if self.broken:
            raise BackendError("no slot for it")
        missing = address not in self.devices
        self.devices.add(address)
        self.step()
        return missing

    def detach(self, _: str, address: str) -> None:
        self._alive()
        if self.late:
            raise BackendError(f"the guest does not let {address} go in 30 s")
        self.devices.discard(address)
        self.step()

    def end(self, _: str) -> None:
        self.step()
        self.presence_now, self.mark = ABSENT, None
        self.devices.clear()

    def proceed(self, _: str) -> None:
        self.step()
        self.presence_now = RUNNING


class Moves(LibvirtMoves):
    """The real site; only the copy of the memory is none."""

    step: Steps
    links: dict[str, Link]

    def _migrate(self, move: Move) -> None:
        source, target = self.links[move.source], self.links[move.target]
        item = self._item(move)
        assert not source.devices, "libvirt migrates no machine that has a device of its host"
        assert target.presence_now is ABSENT
        self.step()
        target.presence_now = PAUSED
        target.mark = OwnerMark("c", "x", "n1", item.attributes, ready=True)
        self.step()
        source.presence_now = PAUSED
        self.step()
        target.presence_now = RUNNING
        self.step()
        source.presence_now, source.mark = ABSENT, None
        self.step()


@dataclass
class World:
    """Two hosts with an adapter of two VFs each; n1 runs at h1, and n2, which stays, at h2."""

    root: Path
    trees: dict[str, Tree] = field(default_factory=dict)
    links: dict[str, Link] = field(default_factory=dict)
    seeds: list[SeedInterface | None] = field(default_factory=list)
    step: Steps = field(default_factory=Steps)
    stuck: MoveAction | None = None
    gone: bool = False
    """A guest that lets its VF go says, when it is to return, that it has none."""
    no_slot: bool = False
    """That VF cannot be plugged in again."""

    def __post_init__(self) -> None:
        for name in ("h1", "h2"):
            tree = self.trees[name] = Tree(self.root / name / "root").make()
            tree.pf(total=2)
            (tree.root / "state").mkdir()
        self.bare = self.trees["h1"].dump()
        self.spec = spec()
        planned = desired(self.spec, facts_for(self.spec), Observed()).resources
        self.items = {item.key: item for item in planned}
        self.records = Records(self.root / "records")
        self.records.begin()
        for item in planned:
            self.records.write(item)
        self.host("h2").allocate(REQUEST, self.owner("n2"))
        self.without = self.trees["h2"].dump()
        granted = self.host("h1").allocate(REQUEST, self.owner("n1"))
        mark = OwnerMark("c", "x", "n1", self.items[NODE].attributes, ready=True)
        self.links = {
            "h1": Link(self.step, RUNNING, {granted.address}, mark),
            "h2": Link(self.step, ABSENT, set()),
        }

    def host(self, name: str) -> VfHost:
        ledger = Ledger(self.root / name / "ledger")
        return VfHost(FakeKernel(self.trees[name]), ledger, privileged=True)

    def owner(self, node: str) -> Owner:
        return Owner(kind="cluster", name="c", node=node, state="/state")

    def vfs(self, name: str, _: str = "") -> NodeVfs:
        real = self.host(name) if name == "h1" else another(self.host(name))
        link = self.links[name]
        return StepVfs(NodeVfs("c", "/state", real), self.step, lambda: link.devices)

    def claims(self, name: str) -> dict[str, str]:
        return self.host(name).ledger.read().owners()

    def _seed(self, item: Resource, site: object, vf: SeedInterface | None) -> str:
        del item, site
        self.seeds.append(vf)
        return SEED

    def _shell(self, name: str, uri: str) -> Any:
        del name, uri
        nothing = lambda *_: self.step()  # noqa: E731 - four times the same
        return SimpleNamespace(prepare=nothing, write=nothing, own=lambda *_: None, remove=nothing)

    def _guest(self, _: str, __: str, argv: Sequence[str], *___: object, **____: object) -> None:
        self.step()
        for link in self.links.values():
            if link.late and "return" in argv:
                link.late = False
                link.devices.clear()
                link.broken = self.no_slot
                if self.gone:
                    raise BackendError("no network interface has the address")

    def moves(self) -> Moves:
        """A new command."""
        uris = {host.uri: self.links[host.name] for host in self.spec.hosts}
        hypervisors = SimpleNamespace(
            uris=uris,
            link=uris.__getitem__,
            shell=self._shell,
            owner=lambda _: "",
            place=lambda name: f"/{name}",
        )
        answer = SimpleNamespace(check=self._guest)
        parts = MoveParts(
            spec=self.spec,
            records=self.records,
            hosts=cast("Any", hypervisors),
            identity=lambda: "x",
            observe=lambda: Observed(tuple(self.items.values())),
            facts=lambda: facts_for(self.spec),
            nodes=lambda: cast("Any", answer),
            site=lambda *_: cast(
                "Any", SimpleNamespace(directory="/d", file=str, segment="", layout=None)
            ),
            seed=self._seed,
            vfs=self.vfs,
            boot=cast("Any", lambda _: None),
            claim=lambda *_: None,
        )
        made = Moves(parts, MoveOptions())
        made.step, made.links = self.step, self.links
        there = cast("VirtualNode", self.items[NODE].values)
        values = there.model_copy(update={"host": "h2", "uri": "qemu+ssh://root@h2/system"})
        made._arriving = {"n1": replace(self.items[NODE], values=values)}
        if self.stuck is not None:
            act, stuck = made.act, self.stuck

            def refuse(action: MoveAction, move: Move) -> str:
                if action is stuck:
                    raise BackendError("not possible")
                return act(action, move)

            made.act = refuse  # type: ignore[method-assign]
        return made

    def move(self) -> MoveReport:
        return Mover(self.moves(), pause_s=0).move(MOVE)

    def complete(self) -> None:
        Mover(self.moves(), pause_s=0).complete()

    def is_whole(self, *, near: bool = True) -> str:
        """The machine has the VF of its host, the other host is as before; returns its host."""
        (host,) = (name for name, link in self.links.items() if link.presence_now is RUNNING)
        other = "h2" if host == "h1" else "h1"
        assert self.links[other].presence_now is ABSENT
        owned = {name: self.claims(name) for name in self.links}
        mine = {a for a, who in owned[host].items() if who == "node n1 of cluster c"}
        assert len(mine) == 1
        if near:
            assert self.links[host].devices == mine
        assert "node n1 of cluster c" not in owned[other].values()
        assert list(owned["h2"].values()).count("node n2 of cluster c") == 1
        assert self.trees[other].dump() == (self.bare if other == "h1" else self.without)
        record = self.records.read(NODE)
        assert record is not None
        assert record.item.of(VirtualNode).host == host
        return host


@pytest.fixture
def fresh() -> Iterator[Callable[[], World]]:
    """Worlds in memory: a disk would write each of hundreds of moves."""
    with TemporaryDirectory(prefix="nearmetal-test-", dir="/dev/shm") as folder:
        made = iter(range(100000))
        yield lambda: World(Path(folder) / str(next(made)))


def nr_steps(fresh: Callable[[], World]) -> int:
    world = fresh()
    assert world.move().moved
    assert world.is_whole() == "h2"
    return world.step.count


def test_the_machine_gets_a_vf_of_its_new_host_with_its_own_address(
    fresh: Callable[[], World],
) -> None:
    world = fresh()
    (before,) = world.links["h1"].devices
    mac = next(vf.settings.mac for pf in world.host("h1").machine().pfs for vf in pf.vfs)
    assert world.move().moved
    assert world.is_whole() == "h2"
    (address,) = world.links["h2"].devices
    found = world.host("h2").machine().vf(address)
    assert found is not None
    assert (found[1].settings.mac, found[1].settings.vlan) == (mac, 7)
    assert found[1].number == 1
    assert before.endswith("10.0")
    # The guest is told so, and so is the next `up`.
    assert [seed and (seed.mac, seed.vf and seed.vf.index) for seed in world.seeds[-1:]] == [
        (mac, 1)
    ]
    record = world.records.read(NODE)
    assert record is not None
    assert record.notes.vf == world.seeds[-1]


def test_a_failure_at_each_step(fresh: Callable[[], World]) -> None:
    ends = []
    for at in range(nr_steps(fresh)):
        world = fresh()
        world.step.at = at
        report = world.move()
        devices_failed = report.moved and bool(report.notes)
        ends.append(world.is_whole(near=not devices_failed))
        assert report.moved == (ends[-1] == "h2"), at
    assert ends == sorted(ends)
    assert set(ends) == {"h1", "h2"}


def killed(fresh: Callable[[], World], at: int) -> World:
    world = fresh()
    world.step.at, world.step.how = at, Killed
    with pytest.raises(Killed):
        world.move()
    world.step.at, world.step.count = -1, 0
    return world


def test_a_kill_at_each_step(fresh: Callable[[], World]) -> None:
    ends = []
    for at in range(nr_steps(fresh)):
        world = killed(fresh, at)
        world.complete()
        ends.append(world.is_whole())
    assert set(ends) == {"h1", "h2"}
    assert ends == sorted(ends)


def test_a_kill_and_then_another_at_each_step_of_the_next_command(
    fresh: Callable[[], World],
) -> None:
    """After every sixth step: what the others leave, one of these leaves as well."""
    nr_kills = 0
    for first in range(0, nr_steps(fresh), 6):
        second, ended = 0, False
        while not ended:
            world = killed(fresh, first)
            world.step.at = second
            try:
                world.complete()
                ended = True
            except Killed:
                nr_kills += 1
                world.step.at = -1
                world.complete()
            world.is_whole()
            second += 1
    assert nr_kills > 20


@pytest.mark.parametrize("action", [MoveAction.PREPARE, MoveAction.DETACH, MoveAction.MIGRATE])
def test_a_move_that_is_given_up_and_made_again_takes_a_vf_again(
    fresh: Callable[[], World], action: MoveAction
) -> None:
    """In one command, too: what it gave back it does not take for granted."""
    world = fresh()
    moves = world.moves()
    act = moves.act
    refused: list[MoveAction] = []

    def once(now: MoveAction, move: Move) -> str:
        note = act(now, move) if now is not MoveAction.MIGRATE else ""
        if now is action and not refused:
            refused.append(now)
            raise BackendError("not possible")
        return note or (act(now, move) if now is MoveAction.MIGRATE else "")

    moves.act = once  # type: ignore[method-assign,assignment]
    assert not Mover(moves, pause_s=0).move(MOVE).moved
    assert world.is_whole() == "h1"
    assert Mover(moves, pause_s=0).move(MOVE).moved
    assert world.is_whole() == "h2"


@pytest.mark.parametrize("gone", [False, True])
def test_a_vf_that_the_guest_lets_go_too_late_is_plugged_in_again(
    fresh: Callable[[], World], gone: bool
) -> None:
    """Nothing takes back what the guest was asked, and on the way back it still had the VF."""
    world = fresh()
    world.links["h1"].late, world.gone = True, gone
    report = world.move()
    assert not report.moved
    assert "does not let" in report.reason
    assert world.is_whole() == "h1"
    # The guest sets up the one that it has in the end.
    assert world.seeds[-1] is not None


def test_a_vf_that_went_too_late_and_cannot_be_plugged_in_is_named(
    fresh: Callable[[], World],
) -> None:
    world = fresh()
    world.links["h1"].late = world.no_slot = True
    report = world.move()
    assert not report.moved
    assert report.notes[-1] == "node n1 has lost a device on host h1: no slot for it"
    assert world.is_whole(near=False) == "h1"
    assert world.seeds[-1] is None


# Before anything moves


def why(world: World, node: str = "n1") -> list[str]:
    moves = world.moves()
    none = SimpleNamespace(device="none", parts=0, part_size=None)
    moves._segment = lambda _: cast("Any", none)  # type: ignore[method-assign,assignment]
    room = SimpleNamespace(cpu="", features=frozenset(), machine_types=frozenset({"q35"}))
    room.memory, room.hugepages = 1 << 40, {}
    moves.__dict__["_rooms"] = {host.uri: room for host in world.spec.hosts}
    live = "<domain><os><type machine='q35'/></os></domain>"
    for link in world.links.values():
        link.live_xml = lambda _: live  # type: ignore[attr-defined]
    return [
        reason
        for reason in refusals(moves.machines()[node], moves.targets()["h2"])
        if "VF" in reason or "virtual function" in reason
    ]


def test_a_machine_with_a_vf_may_move_where_one_is_free(fresh: Callable[[], World]) -> None:
    world = fresh()
    before = world.trees["h2"].dump()
    assert why(world) == []
    assert world.trees["h2"].dump() == before


def test_a_host_whose_vfs_are_in_use_is_refused_with_their_users(
    fresh: Callable[[], World],
) -> None:
    world = fresh()
    world.host("h2").allocate(REQUEST, world.owner("n3"))
    (reason,) = why(world)
    assert "host h2: it has no VF for the machine: host h2: " not in reason
    assert "its 2 VFs are in use" in reason
    assert "node n3 of cluster c" in reason


def test_a_host_that_cannot_be_asked_about_vfs_refuses_only_machines_that_need_one_there(
    fresh: Callable[[], World],
) -> None:
    """A machine that has none, or that goes elsewhere, is moved all the same."""
    world = fresh()
    silent = DistantVfHost("h2", lambda argv, _: completed(argv, 127))
    real, mute = world.vfs, "h2"

    def vfs(name: str, _: str = "") -> NodeVfs:
        return NodeVfs("c", "/state", silent) if name == mute else real(name)

    world.vfs = vfs  # type: ignore[method-assign]
    (reason,) = why(world)
    assert reason.startswith(
        "host h2: it has no VF for the machine: host h2: its VFs are given out"
    )
    mute = "h1"
    assert "the machine has a VF of which nothing is known: host h2: its VFs" in why(world)[0]


def test_machines_that_stay_take_no_vf_from_one_that_moves(fresh: Callable[[], World]) -> None:
    """Both could have the last free VF of h2; which of them moves is asked only later."""
    world = fresh()
    other = replace(world.items[NODE], key=Key(Kind.NODE, "n0"))
    world.items = {other.key: other, **world.items}
    world.spec = spec_of(
        "network: {bridge: br0}\nhosts:\n  - {name: h1, directory: /h1, nodes: "
        "[{name: n0, vf: {vlan: 7}}, {name: n1, vf: {vlan: 7}}]}\n"
        "  - {name: h2, uri: 'qemu+ssh://root@h2/system', nodes: []}\n"
    )
    world.host("h1").allocate(REQUEST, world.owner("n0"))
    assert why(world) == []
    assert why(world, "n0") == []
    nodes = {name: cast("VirtualNode", world.items[Key(Kind.NODE, name)].values) for name in NAMES}
    assert vfs_for(world.vfs, "h2", nodes) == ((FabricNeed("Ethernet"),), {})
    # Requests that differ are asked about apart.
    keyed = {"vf": VfRequest(pkey="0x8012")}
    nodes["n0"] = nodes["n0"].model_copy(update=keyed)
    free, refused = vfs_for(world.vfs, "h2", nodes)
    assert free == (FabricNeed("Ethernet"),)
    assert "partition keys are InfiniBand's" in refused["n0"]


def test_another_fabric_is_refused(fresh: Callable[[], World]) -> None:
    world = fresh()
    world.spec = spec_of(
        "network: {bridge: br0}\nhosts:\n  - {name: h1, nodes: [{name: n1, vf: {}}]}\n"
        "  - {name: h2, uri: 'qemu+ssh://root@h2/system', nodes: []}\n"
    )
    planned = desired(world.spec, facts_for(world.spec), Observed()).resources
    world.items = {item.key: item for item in planned}
    tree = world.trees["h2"] = Tree(world.root / "other").make()
    tree.pf(name="ib0", kind=INFINIBAND, driver="mlx5_core", rdma="mlx5_0")
    assert why(world) == ["host h2: no VF of fabric Ethernet is free"]


def test_two_hosts_on_this_machine_exchange_no_vf(fresh: Callable[[], World]) -> None:
    """They have one ledger, in which the owner would be the same."""
    world = fresh()
    here = world.host("h1")
    world.vfs = lambda *_: NodeVfs("c", "/state", here)  # type: ignore[method-assign]
    assert why(world) == ["host h2: it has no VF for the machine: it is on the machine of host h1"]
