# SPDX-License-Identifier: Apache-2.0
"""nearmetal-computed when Nova or some QEMUs are slow: each project has its turn."""

from __future__ import annotations

from pathlib import Path

import pytest

from nearmetal.computed.keeper import GIVE_S
from nearmetal.computed.turns import ProjectTurns
from tests.python.computed_world import BLUE, OTHER_GROUP, RED, World, service, shown, uuid


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_a_project_that_starts_many_servers_does_not_keep_another_one_waiting(
    world: World,
) -> None:
    """Nova is slow: an answer takes a second."""
    world.nova_takes_s = 1.0
    many = [world.start(number, RED, uuid(0x1000 + number)) for number in range(1, 41)]
    blue = world.start(200, BLUE, OTHER_GROUP)
    keeper = service(world)
    keeper.turn()
    assert blue in shown(world)
    # One turn is short, so ends of servers and requests of administrators are seen soon.
    assert world.now <= GIVE_S + 1
    for _ in many:
        keeper.turn()
    assert set(shown(world)) | set(keeper.refusals) == {*many, blue}


def test_slow_qemus_that_never_let_devices_go_keep_no_other_server_waiting(world: World) -> None:
    """They have devices that no record names."""
    for number in range(1, 4):
        stray = {"nm-own-device": ("stray", 0)}
        world.start(number, RED, answers_s=GIVE_S, lets_go=False, devices=stray)
    blue = world.start(9, BLUE, OTHER_GROUP)
    keeper = service(world)
    keeper.turn()
    keeper.turn()
    assert keeper.holdings.holder(blue) is not None
    # Also those of the same project have their turns.
    red = world.start(10, RED)
    for _ in range(4):
        keeper.turn()
    assert keeper.holdings.holder(red) is not None


def test_slow_qemus_of_a_project_do_not_keep_the_parts_of_another_one_waiting(world: World) -> None:
    slow = [world.start(number, RED) for number in range(1, 9)]
    blue, ends = world.start(20, BLUE, OTHER_GROUP), world.start(21, BLUE, OTHER_GROUP)
    keeper = service(world, parts=8)
    keeper.turn()
    assert set(shown(world)) == {*slow, blue, ends}
    for server in slow:
        world.servers[server].answers_s = GIVE_S
    del world.servers[ends]
    begin, withheld = world.now, frozenset({blue})
    keeper.turn(withheld)
    # The end of a server needs no answer of a QEMU.
    assert keeper.holdings.holder(ends) is None
    keeper.turn(withheld)
    keeper.turn(withheld)
    assert set(shown(world)) == set(slow)
    assert world.now - begin <= 3 * GIVE_S


def test_a_new_server_does_not_come_before_those_that_wait() -> None:
    turns, ends = ProjectTurns(), []
    waiting = {"b1": "blue", "r1": "red", "r2": "red"}
    for number in range(3, 9):
        first = turns.order(waiting)[0]
        turns.had(first)
        ends.append(first)
        # The red project removes it and starts another one, each time.
        if waiting[first] == "red":
            del waiting[first]
            waiting = {f"r{number}": "red", **waiting}
    assert ends == ["b1", "r1", "b1", "r2", "b1", "r4"]
    turns.order(waiting)
    assert set(turns._servers) | set(turns._projects) == {*waiting, "red", "blue"}
