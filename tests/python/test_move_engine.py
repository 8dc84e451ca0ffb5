# SPDX-License-Identifier: Apache-2.0
"""Moves with a failure or a kill at each step, on hypervisors in memory.

Each step changes one thing of the world, or cuts hosts off. Whatever happens, the machine ends at
one of the two hosts, with its devices and its processes in the segment, and nothing is left of the
move.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nearmetal.cluster.move.engine import Mover
from nearmetal.cluster.move.phases import (
    SETTLEMENTS,
    MoveAction,
    MovePhase,
    Presence,
    Settlement,
)
from nearmetal.cluster.move.record import Move, MoveRecords
from nearmetal.core.errors import BackendError, Interrupted, StateError
from nearmetal.core.journal import Journal

if TYPE_CHECKING:
    from collections.abc import Callable

    from nearmetal.cluster.move.checks import MovableMachine, MoveTarget

MOVE = Move(node="n1", source="h1", target="h2")
ABSENT, RUNNING, PAUSED = Presence.ABSENT, Presence.RUNNING, Presence.PAUSED
VIEWS = ("own", "all")


class Killed(BaseException):
    """The end of the process that moves."""


@dataclass
class World:
    """Two hosts and a machine; a site of moves. Step number `at` fails, or kills, or never ends."""

    records: MoveRecords
    at: int = -1
    how: Callable[[str], BaseException] = BackendError
    stuck: MoveAction | None = None
    """An action that always fails in its first step."""
    cuts: frozenset[str] = frozenset()
    """The hosts that step number `at` cuts off, instead of failing."""
    silent: frozenset[str] = frozenset()
    """The hosts that do not answer."""
    steps: int = 0
    machine: dict[str, Presence] = field(default_factory=lambda: {"h1": RUNNING, "h2": ABSENT})
    files: dict[str, set[str]] = field(
        default_factory=lambda: {"h1": {"seed", "console"}, "h2": set()}
    )
    plugged: set[tuple[str, str]] = field(default_factory=lambda: {("h1", v) for v in VIEWS})
    left: bool = False
    near: bool = True

    def machines(self) -> Mapping[str, MovableMachine]:
        return {}

    def places(self) -> Mapping[str, str]:
        return {}

    def targets(self) -> Mapping[str, MoveTarget]:
        return {}

    def check(self, moves: Sequence[Move]) -> None:
        del moves

    def halt(self) -> None:
        raise AssertionError("only moves at the same time are halted")

    def step(self, host: str) -> None:
        self.steps += 1
        if self.steps - 1 == self.at:
            if not self.cuts:
                raise self.how(f"step {self.at}")
            self.silent = self.cuts
        self.reach(host)

    def reach(self, host: str) -> None:
        if host in self.silent:
            raise BackendError(f"{host} does not answer")

    def act(self, action: MoveAction, move: Move) -> str:
        if action is self.stuck:
            raise BackendError(f"{action.value} is not possible")
        getattr(self, f"_{action.name.lower()}")(move)
        return ""

    def _prepare(self, move: Move) -> None:
        for name in ("seed", "console"):
            self.step(move.target)
            self.files[move.target].add(name)
        self.step(move.target)

    def _quiesce(self, move: Move) -> None:
        self.need(move.source)
        self.step(move.source)
        self.left = True
        self.step(move.source)

    def need(self, host: str) -> None:
        self.reach(host)
        if self.machine[host] is not RUNNING:
            raise BackendError(f"the machine does not run at {host}")

    def _detach(self, move: Move) -> None:
        self.need(move.source)
        for view in VIEWS:
            self.step(move.source)
            assert self.left, "a device goes under a process that uses it"
            self.plugged.discard((move.source, view))
        self.step(move.source)

    def _migrate(self, move: Move) -> None:
        self.need(move.source)
        assert not self.plugged
        assert self.machine[move.target] is ABSENT
        assert self.files[move.target] == {"seed", "console"}
        for host, state in (
            (move.target, PAUSED),
            (move.source, PAUSED),
            (move.target, RUNNING),
            (move.source, ABSENT),
        ):
            self.step(host)
            self.machine[host] = state
        self.step(move.target)

    def _plug(self, host: str) -> None:
        self.need(host)
        for view in VIEWS:
            self.step(host)
            self.plugged.add((host, view))
        self.step(host)

    def _attach(self, move: Move) -> None:
        self._plug(move.target)

    def _reattach(self, move: Move) -> None:
        self._plug(move.source)

    def _return(self, host: str, *, near: bool) -> None:
        self.need(host)
        self.step(host)
        self.left, self.near = False, near
        self.step(host)

    def _resume(self, move: Move) -> None:
        self._return(move.target, near=move.near)

    def _reopen(self, move: Move) -> None:
        self._return(move.source, near=move.near)

    def _remove(self, host: str) -> None:
        for name in ("seed", "console"):
            self.step(host)
            self.files[host].discard(name)
        self.step(host)

    def _release(self, move: Move) -> None:
        self._remove(move.source)

    def _give_up(self, move: Move) -> None:
        self._remove(move.target)

    def settle(self, move: Move) -> Settlement:
        for host in (move.source, move.target):
            self.reach(host)
        found = SETTLEMENTS[self.machine[move.source], self.machine[move.target]]
        for host, ends in ((move.source, found.end_source), (move.target, found.end_destination)):
            if ends:
                self.step(host)
                self.machine[host] = ABSENT
        if found.continue_source:
            self.step(move.source)
            self.machine[move.source] = RUNNING
        return found

    def is_whole(self) -> None:
        """The machine runs at one host, with all of it there, and nothing elsewhere."""
        (host,) = (name for name, state in self.machine.items() if state is RUNNING)
        (other,) = {"h1", "h2"} - {host}
        assert self.machine[other] is ABSENT
        assert self.files == {host: {"seed", "console"}, other: set()}
        assert {at for at, _ in self.plugged} <= {host}
        assert not self.left
        if self.near:
            assert self.plugged == {(host, view) for view in VIEWS}
        assert self.records.all() == []


def mover(world: World, clock: Callable[[], float] = time.monotonic) -> Mover:
    return Mover(world, clock=clock, pause_s=0)


def killed(records: MoveRecords, at: int) -> World:
    """Return the world after a command whose process ended at a step of its move."""
    world = World(records, at, Killed)
    with pytest.raises(Killed):
        mover(world).move(MOVE)
    return world


@pytest.fixture
def records(tmp_path: Path) -> MoveRecords:
    return MoveRecords(tmp_path)


def nr_steps(records: MoveRecords) -> int:
    world = World(records)
    assert mover(world).move(MOVE).moved
    world.is_whole()
    return world.steps


def test_a_move_names_its_actions_and_their_times(records: MoveRecords) -> None:
    report = mover(World(records), clock=iter(range(99)).__next__).move(MOVE)
    assert report.moved
    assert [action for action, _ in report.times] == list(MoveAction)[:7]
    assert {took for _, took in report.times} == {1}


def test_a_failure_at_each_step(records: MoveRecords) -> None:
    """Before the arrival the machine stays; from then on it has moved."""
    ends = []
    for at in range(nr_steps(records)):
        world = World(records, at)
        report = mover(world).move(MOVE)
        world.is_whole()
        assert report.moved == (world.machine["h2"] is RUNNING), at
        assert report.moved or report.reason == f"step {at}"
        ends.append(report.moved)
    assert ends == sorted(ends)
    assert 0 < sum(ends) < len(ends)


def test_a_kill_at_each_step_and_again_at_each_later_step(records: MoveRecords) -> None:
    seen = set()
    for first in range(nr_steps(records)):
        second = 0
        while True:
            world = killed(records, first)
            world.at, world.steps = second, 0
            try:
                mover(world).complete()
                ended = True
            except Killed:
                ended = False
                world.at = -1
                mover(world).complete()
            world.is_whole()
            seen.add(next(host for host, state in world.machine.items() if state is RUNNING))
            if ended:
                break
            second += 1
    assert seen == {"h1", "h2"}


def test_a_kill_and_then_a_failure_at_each_step(records: MoveRecords) -> None:
    for first in range(nr_steps(records)):
        second, reached = 0, True
        while reached:
            world = killed(records, first)
            world.at, world.steps, world.how = second, 0, BackendError
            try:
                mover(world).complete()
            except StateError:
                # While the two hypervisors were asked: the record stays.
                mover(world).complete()
            world.is_whole()
            reached, second = world.steps > second, second + 1


def cut_off(world: World, error: StateError) -> None:
    """The error says so, the next command changes nothing and says so, too; then all is mended."""
    assert any(f"{host} does not answer" in error.message for host in world.silent)
    assert "run `nearmetal migrate`" in error.hint
    assert list(world.machine.values()).count(RUNNING) <= 1
    before, (record,) = dict(world.machine), world.records.all()
    with pytest.raises(StateError, match=r"node n1 .*h[12] does not answer"):
        mover(world).complete()
    assert world.machine == before
    assert world.records.all() == [record]
    world.silent = frozenset()
    mover(world).complete()


CUTS = [frozenset({"h1"}), frozenset({"h2"}), frozenset({"h1", "h2"})]


@pytest.mark.parametrize("cuts", CUTS, ids=lambda cuts: "+".join(sorted(cuts)))
def test_hosts_that_do_not_answer_from_each_step_on(
    records: MoveRecords, cuts: frozenset[str]
) -> None:
    ends, stopped = set(), 0
    for at in range(nr_steps(records)):
        world = World(records, at, cuts=cuts)
        try:
            mover(world).move(MOVE)
        except StateError as error:
            stopped += 1
            cut_off(world, error)
        world.is_whole()
        assert world.near, at
        ends.add(next(host for host, state in world.machine.items() if state is RUNNING))
    assert ends == {"h1", "h2"}
    assert stopped


@pytest.mark.parametrize("cuts", CUTS[:2], ids=lambda cuts: "+".join(sorted(cuts)))
def test_a_kill_and_then_a_host_that_does_not_answer(
    records: MoveRecords, cuts: frozenset[str]
) -> None:
    for first in range(nr_steps(records)):
        second, reached = 0, True
        while reached:
            world = killed(records, first)
            world.at, world.steps, world.cuts = second, 0, cuts
            try:
                mover(world).complete()
                reached = world.steps > second
            except StateError as error:
                cut_off(world, error)
            world.is_whole()
            assert world.near, (first, second)
            second += 1


@pytest.mark.parametrize("action", list(MoveAction)[:4])
def test_an_action_that_is_not_possible_leaves_the_machine_at_its_source(
    records: MoveRecords, action: MoveAction
) -> None:
    world = World(records, stuck=action)
    report = mover(world).move(MOVE)
    assert report.reason == f"{action.value} is not possible"
    assert world.machine["h1"] is RUNNING
    world.is_whole()


def test_a_machine_without_its_devices_has_moved_and_says_so(records: MoveRecords) -> None:
    world = World(records, stuck=MoveAction.ATTACH)
    report = mover(world).move(MOVE)
    assert report.moved
    assert report.notes == [f"{MoveAction.ATTACH.value} is not possible"]
    assert not world.near
    world.is_whole()


@pytest.mark.parametrize("action", [MoveAction.RESUME, MoveAction.RELEASE])
def test_an_action_without_another_way_is_tried_and_then_named(
    records: MoveRecords, action: MoveAction
) -> None:
    world, pauses = World(records, stuck=action), list[float]()

    class Watch(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            pauses.append(timeout or 0)
            return False

    with pytest.raises(StateError, match=f"{action.value} is not possible"):
        Mover(world, pause_s=7, _halted=Watch()).move(MOVE)
    assert pauses[-3:] == [0, 7, 7]
    assert not any(pauses[:-2])
    assert [move.node for move in records.all()] == ["n1"]
    world.stuck = None
    (report,) = mover(world).complete()
    assert report.moved
    world.is_whole()


def test_a_machine_that_runs_nowhere_is_named_and_leaves_no_record(records: MoveRecords) -> None:
    world = killed(records, 9)
    world.machine = {"h1": ABSENT, "h2": PAUSED}
    with pytest.raises(StateError, match="runs on neither host"):
        mover(world).complete()
    assert records.all() == []
    assert world.machine["h2"] is ABSENT
    assert world.files["h2"] == set()


def test_a_machine_that_runs_twice_is_left_alone(records: MoveRecords) -> None:
    world = World(records)
    records.write(MOVE.at(MovePhase.DETACHED))
    world.machine = {"h1": RUNNING, "h2": RUNNING}
    with pytest.raises(StateError, match="runs on both hosts"):
        mover(world).complete()
    assert world.machine == {"h1": RUNNING, "h2": RUNNING}
    assert len(records.all()) == 1


def test_a_wave_that_is_not_complete_is_the_last(records: MoveRecords) -> None:
    world = World(records, stuck=MoveAction.QUIESCE)
    other = MOVE.model_copy(update={"node": "n2"})
    reports = mover(world).waves([[MOVE], [other]])
    assert [report.node for report in reports] == ["n1"]


@contextmanager
def interrupted_by(number: signal.Signals) -> Iterator[None]:
    """The handler of signals that the command line sets."""

    def interrupt(signum: int, _: object) -> None:
        raise Interrupted(signum)

    before = signal.signal(number, interrupt)
    try:
        yield
    finally:
        signal.signal(number, before)


@dataclass
class SlowWorlds(World):
    """A machine per node; Ctrl-C comes when all migrate, and only `halt` ends these migrations."""

    nodes: dict[str, World] = field(default_factory=dict)
    cancelled: threading.Event = field(default_factory=threading.Event)
    migrating: threading.Barrier = field(default_factory=lambda: threading.Barrier(2))

    def act(self, action: MoveAction, move: Move) -> str:
        if action is MoveAction.MIGRATE and not self.cancelled.is_set():
            if self.migrating.wait(5) == 0:
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
            if self.cancelled.wait(5):
                raise BackendError("the migration was cancelled")
        return self.nodes[move.node].act(action, move)

    def halt(self) -> None:
        self.cancelled.set()

    def settle(self, move: Move) -> Settlement:
        return self.nodes[move.node].settle(move)


def test_an_interruption_cancels_the_migrations_at_the_same_time(records: MoveRecords) -> None:
    moves = [MOVE, MOVE.model_copy(update={"node": "n2"})]
    worlds = SlowWorlds(records, nodes={move.node: World(records) for move in moves})
    with interrupted_by(signal.SIGUSR1), pytest.raises(Interrupted):
        mover(worlds).waves([moves])
    # Nothing began after the end of these migrations: the devices are still unplugged.
    assert {move.node: move.phase for move in records.all()} == {
        "n1": MovePhase.STAYED,
        "n2": MovePhase.STAYED,
    }
    for world in worlds.nodes.values():
        assert world.machine == {"h1": RUNNING, "h2": ABSENT}
        assert not world.plugged
    assert [report.moved for report in mover(worlds).complete()] == [False, False]
    for world in worlds.nodes.values():
        world.is_whole()


def test_a_move_whose_host_does_not_answer_holds_up_no_other(records: MoveRecords) -> None:
    worlds = SlowWorlds(records, nodes={name: World(records) for name in ("n1", "n2")})
    for name in worlds.nodes:
        records.write(MOVE.model_copy(update={"node": name}))
    worlds.nodes["n1"].silent = frozenset({"h2"})
    with pytest.raises(StateError, match=r"move of node n1 .*h2 does not answer"):
        mover(worlds).complete()
    assert [move.node for move in records.all()] == ["n1"]
    worlds.nodes["n1"].silent = frozenset()
    assert [report.node for report in mover(worlds).complete()] == ["n1"]
    for world in worlds.nodes.values():
        world.is_whole()


def test_the_journal_has_the_end_of_the_action_after_which_a_host_is_silent(
    records: MoveRecords,
) -> None:
    world, journal = World(records, stuck=MoveAction.MIGRATE), Journal(records.directory)
    world.silent = frozenset({"h2"})
    records.write(MOVE.at(MovePhase.DETACHED))
    with pytest.raises(StateError, match="migrate is not possible; h2 does not answer"):
        Mover(world, journal).move(MOVE.at(MovePhase.DETACHED))
    lines = [(line.step, line.event, line.detail) for line in journal.read()]
    assert lines == [
        ("node n1: migrate", "begin", "from h1 to h2"),
        ("node n1: migrate", "failed", "migrate is not possible"),
    ]


@pytest.mark.parametrize(
    "text",
    ["", "{", '{"node": "../n1", "source": "h1", "target": "h2"}', '{"node": "n1"}', "[1]"],
)
def test_a_damaged_record_is_refused_with_its_path(records: MoveRecords, text: str) -> None:
    folder = records.directory / "moves"
    folder.mkdir()
    (folder / "n1.json").write_text(text)
    with pytest.raises(StateError, match=r"n1\.json is damaged"):
        records.all()
