# SPDX-License-Identifier: Apache-2.0
"""nearmetal-computed: who gets a part and who does not, and what is left after every death."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from nearmetal.cluster.backends.openstack.shared import EXTRA_SPEC
from nearmetal.computed.groups import ServerMembership
from nearmetal.computed.holdings import Holdings
from nearmetal.computed.keeper import REST_S
from nearmetal.computed.settings import ComputedSettings
from nearmetal.core.errors import BackendError, StateError
from tests.python.computed_world import (
    BLUE,
    GROUP,
    OTHER_GROUP,
    PART,
    RED,
    Killed,
    World,
    service,
    settle,
    shown,
    uuid,
)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def files(world: World) -> list[str]:
    return sorted(path.name for path in world.shm.iterdir())


def write(world: World, server: str, word: bytes) -> None:
    path, offset = world.servers[server].devices["nm-own-device"]
    with Path(path).open("r+b") as file:
        file.seek(offset)
        file.write(word)


def test_servers_of_a_group_share_a_file_for_one_user(world: World) -> None:
    one, two = world.start(1), world.start(2)
    keeper = service(world)
    keeper.turn()
    (path, first), (other, second) = shown(world)[one], shown(world)[two]
    assert (path, first, second) == (other, 0, 1)
    assert Path(path).stat().st_mode & 0o777 == 0o600
    assert keeper.refusals == {}
    # A turn without a change asks neither Nova nor writes.
    before = world.steps, world.questions
    keeper.turn()
    assert (world.steps, world.questions) == before


def test_projects_never_share_even_in_one_group(world: World) -> None:
    red, blue = world.start(1, RED), world.start(2, BLUE)
    settle(world, service(world))
    assert shown(world)[red][0] != shown(world)[blue][0]
    assert len(files(world)) == 2


def test_groups_of_a_project_do_not_share(world: World) -> None:
    one, two = world.start(1), world.start(2, group=OTHER_GROUP)
    settle(world, service(world))
    assert shown(world)[one][0] != shown(world)[two][0]


@pytest.mark.parametrize(
    ("membership", "why"),
    [
        (ServerMembership(RED, ""), "it is in no server group"),
        (ServerMembership(BLUE, GROUP), "Nova says another project than its domain"),
    ],
)
def test_nova_decides(world: World, membership: ServerMembership, why: str) -> None:
    server = world.start(1)
    world.groups[server] = membership
    keeper = service(world)
    settle(world, keeper)
    assert keeper.refusals == {server: why}
    assert (shown(world), files(world)) == ({}, [])


def test_a_flavor_without_the_extra_spec_gets_nothing_and_nova_is_not_asked(world: World) -> None:
    world.start(1, part_size=0)
    keeper = service(world)
    settle(world, keeper)
    assert (shown(world), keeper.refusals, world.questions) == ({}, {}, 0)


def test_an_old_nova_is_asked_once_for_each_start_what_a_flavor_gives(world: World) -> None:
    world.nova_is_old = True
    one, two, plain = world.start(1), world.start(2), world.start(3, part_size=0)
    bound = world.start(4, cannot="its memory is not locked")
    keeper = service(world)
    settle(world, keeper)
    assert set(shown(world)) == {one, two}
    assert keeper.refusals == {bound: "its memory is not locked"}
    # Once for the size, once for the group.
    assert world.questions == 2 * 2 + 1 + 1
    world.start(3, part_size=0)
    settle(world, keeper)
    assert world.questions == 2 * 2 + 2 + 1
    world.start(3)
    settle(world, keeper)
    assert set(shown(world)) == {one, two, plain}


def test_an_old_nova_that_does_not_say_it_gives_nothing(world: World) -> None:
    world.nova_is_old = world.nova_down = True
    server = world.start(1)
    keeper = service(world)
    settle(world, keeper)
    assert "does not answer" in keeper.refusals[server]
    world.nova_down = False
    world.groups[server] = ServerMembership(RED, GROUP)
    settle(world, keeper)
    assert "os_compute_api:os-flavor-extra-specs:index" in keeper.refusals[server]
    world.groups[server] = ServerMembership(BLUE, GROUP, "2 MiB")
    settle(world, keeper)
    assert keeper.refusals == {server: "Nova says another project than its domain"}
    assert (shown(world), files(world)) == ({}, [])


class HostileWorld(World):
    """A QEMU there refuses devices with a reason without end."""

    def plug_in(self, *_: object) -> None:
        raise BackendError("no\n" + "x" * (1 << 20) + "\x1b[2J")


def test_the_reason_of_a_qemu_is_one_bounded_line(tmp_path: Path) -> None:
    world = HostileWorld(tmp_path)
    server = world.start(1)
    keeper = service(world)
    keeper.turn()
    assert keeper.refusals[server].startswith("no xxx")
    assert max(map(len, world.said)) < 1000


def test_while_nova_is_down_nothing_is_given_and_nothing_is_taken(world: World) -> None:
    one = world.start(1)
    keeper = service(world)
    keeper.turn()
    before = shown(world)
    world.nova_down = True
    two = world.start(2)
    settle(world, keeper)
    assert shown(world) == before
    assert "does not answer" in keeper.refusals[two]
    # Also for a service that starts meanwhile.
    keeper = service(world)
    settle(world, keeper)
    assert shown(world) == before
    world.nova_down = False
    settle(world, keeper)
    assert set(shown(world)) == {one, two}


def test_nova_is_not_asked_at_each_event(world: World) -> None:
    server = world.start(1)
    world.groups[server] = ServerMembership(RED, "")
    keeper = service(world)
    for _ in range(20):
        keeper.turn()
        world.now += 1
    assert world.questions == 1


def test_a_group_that_is_removed_takes_nothing_from_servers_that_run(world: World) -> None:
    one = world.start(1)
    keeper = service(world)
    keeper.turn()
    before = shown(world)
    world.groups[one] = ServerMembership(RED, "")
    settle(world, keeper)
    assert shown(world) == before
    world.start(1)
    world.groups[one] = ServerMembership(RED, "")
    settle(world, keeper)
    assert (shown(world), files(world)) == ({}, [])


def test_a_server_without_ports_is_named(world: World) -> None:
    server = world.start(1, ports=1)
    keeper = service(world)
    settle(world, keeper)
    assert (
        "needs 2 empty PCIe root ports and has 1: raise num_pcie_ports" in (keeper.refusals[server])
    )
    assert files(world) == []


def test_parts_and_memory_have_bounds(world: World) -> None:
    servers = [world.start(number) for number in range(1, 4)]
    other = world.start(9, BLUE, OTHER_GROUP)
    keeper = service(world, parts=2, memory=2 * PART)
    settle(world, keeper)
    assert set(shown(world)) == set(servers[:2])
    assert keeper.refusals == {
        servers[2]: "all 2 parts are taken",
        other: "a segment of 2 parts needs 4 MiB, and 0 B of `memory` are free",
    }


def test_a_project_leaves_memory_for_others(world: World) -> None:
    one, more = world.start(1), world.start(2, group=OTHER_GROUP)
    blue = world.start(3, BLUE)
    keeper = service(world, parts=2, memory=4 * PART, of_project=2 * PART)
    settle(world, keeper)
    assert set(shown(world)) == {one, blue}
    assert keeper.refusals == {
        more: "a segment of 2 parts needs 4 MiB, and 0 B of `project_memory` are free"
    }
    del world.servers[one]
    settle(world, keeper)
    assert set(shown(world)) == {more, blue}


def test_a_project_has_half_of_the_memory_by_default() -> None:
    settings = ComputedSettings(version=1, cloud="c")
    assert settings.project_bound == settings.memory // 2


def test_the_reason_of_the_tool_is_shown(world: World) -> None:
    server = world.start(1, part_size=64 << 30)
    keeper = service(world, parts=256, memory=1 << 50)
    keeper.turn()
    assert "a segment has at most 1T" in keeper.refusals[server]
    settle(world, keeper)
    assert (shown(world), files(world)) == ({}, [])


def test_another_size_than_that_of_the_group_is_refused(world: World) -> None:
    world.start(1)
    two = world.start(2, part_size=2 * PART)
    keeper = service(world)
    settle(world, keeper)
    assert keeper.refusals == {two: "its flavor gives 4 MiB, but the parts of its group have 2 MiB"}


def test_a_part_rests_and_is_zeroed_before_another_server_gets_it(world: World) -> None:
    one, _, three = (world.start(number) for number in range(1, 4))
    keeper = service(world, parts=2)
    keeper.turn()
    path, part = shown(world)[one]
    write(world, one, b"secret")
    del world.servers[one]
    world.now += REST_S
    keeper.turn()
    assert keeper.refusals == {three: "waits for a part"}
    assert b"secret" in Path(path).read_bytes()
    world.now += 60
    keeper.turn()
    keeper.turn()
    assert shown(world)[three] == (path, part)
    assert b"secret" not in Path(path).read_bytes()


def test_the_last_server_takes_the_segment_with_it(world: World) -> None:
    world.start(1)
    keeper = service(world)
    keeper.turn()
    world.servers.clear()
    keeper.turn()
    assert files(world) == []
    assert list(keeper.holdings) == []


def test_a_server_that_was_started_again_gets_devices_again(world: World) -> None:
    one, two = world.start(1), world.start(2)
    keeper = service(world)
    keeper.turn()
    world.start(1)
    keeper.turn()
    assert shown(world)[one][1] == 2
    assert shown(world)[two][1] == 1


def test_a_paused_server_keeps_its_part_and_gets_none(world: World) -> None:
    one = world.start(1)
    two = world.start(2, running=False)
    keeper = service(world)
    keeper.turn()
    world.servers[one].running = False
    settle(world, keeper)
    assert set(shown(world)) == {one}
    world.servers[two].running = True
    settle(world, keeper)
    assert set(shown(world)) == {one, two}


def test_a_guest_that_drops_its_devices_gets_others_later(world: World) -> None:
    one = world.start(1)
    world.start(2)
    keeper = service(world)
    keeper.turn()
    del world.servers[one].devices["nm-own-device"]
    for _ in range(3):
        keeper.turn()
    assert world.servers[one].devices == {}
    assert keeper.refusals == {one: "its guest has let the devices go"}
    world.now += 60
    keeper.turn()
    assert one in shown(world)
    assert keeper.refusals == {}


def test_withheld_devices_are_taken_until_they_are_given_again(world: World) -> None:
    one, two = world.start(1), world.start(2)
    keeper = service(world)
    keeper.turn()
    world.servers[one].lets_go = False
    keeper.turn(frozenset({one}))
    assert keeper.refusals == {one: "waits for its guest to let the devices go"}
    assert one in shown(world)
    world.servers[one].lets_go = True
    settle(world, keeper, frozenset({one}))
    assert set(shown(world)) == {two}
    assert keeper.refusals == {one: "withheld by an administrator"}
    settle(world, keeper)
    assert set(shown(world)) == {one, two}


def test_devices_that_no_record_names_are_taken_first(world: World) -> None:
    one = world.start(1)
    service(world).turn()
    before = shown(world)[one]
    (world.folder / "segments.json").unlink()
    keeper = service(world)
    settle(world, keeper)
    assert shown(world)[one][0] != before[0]
    assert len(files(world)) == 1


def test_a_segment_that_was_removed_gives_nothing(world: World) -> None:
    world.start(1)
    keeper = service(world)
    keeper.turn()
    (world.shm / files(world)[0]).unlink()
    two = world.start(2)
    settle(world, keeper)
    assert "has disappeared" in keeper.refusals[two]
    assert two not in shown(world)


def test_a_foreign_file_in_the_place_of_a_segment_is_not_used(world: World) -> None:
    world.start(1)
    keeper = service(world)
    keeper.turn()
    path = world.shm / files(world)[0]
    path.unlink()
    secret = world.folder / "secret"
    secret.write_bytes(b"x" * PART)
    path.symlink_to(secret)
    two = world.start(2)
    settle(world, keeper)
    assert two not in shown(world)
    assert secret.read_bytes() == b"x" * PART


def test_damaged_records_are_named(world: World) -> None:
    (world.folder / "segments.json").write_text('{"version": 1, "segments": [{"project": 3}]}')
    with pytest.raises(StateError, match="is damaged"):
        Holdings(world.folder)


def test_a_name_in_the_records_cannot_leave_its_directory(world: World) -> None:
    world.start(1)
    service(world).turn()
    path = world.folder / "segments.json"
    data = json.loads(path.read_text())
    data["segments"][0]["name"] = "../secret"
    path.write_text(json.dumps(data))
    with pytest.raises(StateError, match="is damaged"):
        Holdings(world.folder)


def test_a_faulty_domain_harms_no_other(world: World) -> None:
    bad = world.start(1, fault="domain x: its metadata of Nova has no single owner or flavor")
    one = world.start(2)
    keeper = service(world)
    keeper.turn()
    assert set(shown(world)) == {one}
    assert bad in keeper.refusals


def test_a_server_that_waits_for_a_part_does_not_lead_to_a_question_at_each_event(
    world: World,
) -> None:
    for number in range(1, 6):
        world.start(number)
    keeper = service(world, parts=2)
    keeper.turn()
    before = world.questions
    for _ in range(50):
        keeper.turn()
        world.now += REST_S / 100
    assert world.questions == before
    # They are not forgotten.
    world.now += REST_S
    keeper.turn()
    assert world.questions == before + 3


def test_a_flood_of_servers_is_bounded_and_others_are_served(world: World) -> None:
    bound, started = 9 * PART, 0
    keeper = service(world, memory=18 * PART, of_project=bound)
    blue = [world.start(5000, BLUE), world.start(5001, BLUE)]
    for number in range(60):
        red = [world.start(3 * number + one, RED, uuid(0x1000 + number)) for one in (1, 2, 3)]
        started += len(red)
        keeper.turn()
        world.now += 0.5
        if number % 25 == 10:
            world.start(5001, BLUE)
        keeper.turn()
        assert set(blue) <= set(shown(world)), number
        assert keeper.holdings.memory(RED) <= bound
        assert set(keeper.refusals) <= set(world.servers)
        assert len(files(world)) == len(list(keeper.holdings)) <= 4
        assert len((world.folder / "segments.json").read_bytes()) < 20_000
        for one in red[number % 2 :]:
            del world.servers[one]
    assert world.questions <= started + 5
    assert len(world.said) <= 4 * started
    world.servers = {one: world.servers[one] for one in blue}
    settle(world, keeper)
    assert set(shown(world)) == set(blue)
    assert len(files(world)) == 1


def story(world: World) -> None:
    """Servers come, go, come again and are withheld; the service may die at any step of it."""
    keeper = service(world)
    one, two = world.start(1), world.start(2)
    keeper.turn()
    world.start(3, BLUE)
    del world.servers[two]
    keeper.turn()
    world.now += 60
    keeper.turn()
    world.start(2)
    keeper.turn()
    keeper.turn(frozenset({one}))
    keeper.turn(frozenset({one}))
    keeper.turn(frozenset({one}))
    keeper.turn()


def steps_of(folder: Path) -> int:
    world = World(folder)
    story(world)
    return world.steps


def test_a_service_that_is_killed_at_any_step_ends_in_the_same_state(tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()
    total = steps_of(tmp_path / "whole")
    assert total > 40
    for die_at in range(1, total + 1):
        folder = tmp_path / str(die_at)
        folder.mkdir()
        world = World(folder, die_at=die_at)
        with pytest.raises(Killed):
            story(world)
        settle(world, service(world))
        # Each server that runs has one part of its own project's file, and nothing else is there.
        found = shown(world)
        assert set(found) == set(world.servers), die_at
        projects = {(world.servers[server].project, path) for server, (path, _) in found.items()}
        assert len(projects) == len({path for _, path in projects}), die_at
        assert files(world) == sorted({Path(path).name for _, path in projects}), die_at
        # The host's servers end: nothing is left.
        world.servers.clear()
        settle(world, service(world))
        assert files(world) == [], die_at
        assert json.loads((folder / "segments.json").read_text())["segments"] == []


def test_events_in_any_order_give_one_state(tmp_path: Path) -> None:
    ends = set()
    for number, order in enumerate([(1, 2, 3), (3, 1, 2), (2, 3, 1)]):
        folder = tmp_path / str(number)
        folder.mkdir()
        world = World(folder)
        keeper = service(world)
        for one in order:
            world.start(one, BLUE if one == 3 else RED)
            keeper.turn()
            keeper.turn()
        settle(world, keeper)
        paths = {server: path for server, (path, _) in shown(world).items()}
        ends.add((paths[uuid(1)] == paths[uuid(2)], paths[uuid(1)] == paths[uuid(3)]))
    assert ends == {(True, False)}


def test_a_number_of_a_start_that_comes_again_is_seen_by_the_missing_devices(world: World) -> None:
    one = world.start(1)
    keeper = service(world)
    keeper.turn()
    world.servers[one] = replace(world.servers[one], devices={})
    settle(world, keeper)
    assert one in shown(world)


def test_a_stranger_in_the_directory_is_not_followed(world: World) -> None:
    world.shm.mkdir()
    target = world.folder / "precious"
    target.write_text("x")
    (world.shm / "nearmetal-computed-0123456789abcdef").symlink_to(target)
    service(world).turn()
    assert target.read_text() == "x"
    assert files(world) == []


def test_a_directory_of_a_user_of_the_hypervisor_stops_nothing(world: World) -> None:
    (world.shm / "nearmetal-computed-mine" / "x").mkdir(parents=True)
    one = world.start(1)
    keeper = service(world)
    settle(world, keeper)
    assert one in shown(world)
    assert files(world)[-1] == "nearmetal-computed-mine"


def test_a_part_that_could_not_be_zeroed_is_not_given_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.start(1)
    two = world.start(2)
    keeper = service(world, parts=2)
    keeper.turn()
    del world.servers[two]
    # A file system in memory that is full writes less than it was asked for.
    real = os.pwrite
    with monkeypatch.context() as full:
        full.setattr(os, "pwrite", lambda file, data, at: real(file, data[:4096], at))
        settle(world, keeper)
        three = world.start(3)
        settle(world, keeper)
    assert three not in shown(world)
    assert len([line for line in world.said if "is not given again" in line]) == 1
    assert keeper.refusals[three] == "waits for a part"
    settle(world, keeper)
    assert three in shown(world)
    assert keeper._unclean == set()


def test_a_qemu_that_answers_again_is_no_trouble_any_more(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = world.start(1)
    keeper = service(world)
    keeper.turn()

    def silent(*_: object) -> bool:
        raise BackendError("its QEMU does not answer")

    with monkeypatch.context() as hung:
        hung.setattr(keeper.place, "has", silent)
        keeper.turn()
    assert one in keeper.refusals
    keeper.turn()
    assert keeper.refusals == {}


def test_the_extra_spec_has_a_namespace_of_its_own() -> None:
    # Nova's scheduler compares specs without a namespace with the abilities of hosts.
    assert EXTRA_SPEC.startswith("nearmetal:")
