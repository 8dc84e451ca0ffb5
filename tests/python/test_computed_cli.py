# SPDX-License-Identifier: Apache-2.0
"""The verbs of nearmetal-computed, and the service around the keeper."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from nearmetal.cli.main import main
from nearmetal.cluster.backends.libvirt.machine import SegmentView
from nearmetal.computed.service import ComputedService, give, is_withheld, withheld, withhold
from nearmetal.core.deadline import Deadline
from nearmetal.core.errors import BackendError, LockedError, StateError
from nearmetal.core.lock import locked
from tests.python.computed_world import World, _Place, service, uuid


class FakeLink(_Place):
    """The world as a connection to libvirt, which breaks after some turns."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.turns = 3
        self.closed = False

    def watch(self, wake: Any) -> None:
        # Each event leads to a turn at once.
        wake()
        self.wake = wake

    @property
    def alive(self) -> bool:
        self.turns -= 1
        self.wake()
        return self.turns >= 0

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def serve(world: World, *links: Any, limit_s: float = 20.0) -> list[str]:
    """Serve over each of the links in turn; returns the log."""
    keeper, said, left = service(world), list[str](), list(links)
    stop = threading.Event()

    def connect(_uri: str) -> Any:
        link = left.pop(0)
        if not left:
            stop.set()
        if isinstance(link, Exception):
            raise link
        return link

    state = world.folder / "state"
    ComputedService(
        keeper.settings,
        world,
        keeper.files,
        said.append,
        state,
        stop,
        connect,
        0.01,
        Deadline(limit_s),
    ).serve()
    return said


def status(world: World, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    capsys.readouterr()
    code = main(["computed", "status", "--state", str(world.folder / "state"), "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_the_service_connects_again_and_status_shows_parts_and_reasons(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = world.start(1), world.start(2, ports=0)
    first, second = FakeLink(world), FakeLink(world)
    said = serve(world, first, BackendError("libvirt is not reachable"), second)
    assert first.closed
    assert "libvirt is not reachable" in said
    code, shown = status(world, capsys)
    # It has ended by now.
    assert (code, shown["running"], shown["trouble"]) == (4, False, "libvirt is not reachable")
    (segment,) = shown["segments"]
    assert segment["parts"] == [{"part": 0, "server": one, "state": "given"}]
    assert "token" not in json.dumps(shown)
    with locked(world.folder / "state" / "lock", "it"):
        path = world.folder / "state" / "status.json"
        text = path.read_text().replace("libvirt is not reachable", "")
        why = [{"server": two, "why": "it needs 2 empty PCIe root ports"}]
        path.write_text(json.dumps({**json.loads(text), "refusals": why}))
        assert status(world, capsys) == (0, {**json.loads(path.read_text()), "running": True})
        assert main(["computed", "status", "--state", str(world.folder / "state")]) == 0
    told = capsys.readouterr()
    assert one in told.out
    # It shows the remedy for a live migration that QEMU refuses.
    assert "nearmetal computed take SERVER" in told.out
    assert any(f"nearmetal computed take {one}`" in line for line in said)
    assert f"server {two}: no segment: it needs 2 empty PCIe root ports" in told.err


def test_a_qemu_that_hangs_is_asked_once_by_all_connections(world: World) -> None:
    world.start(1)
    asked, end = list[str](), threading.Event()

    def hangs(server: str, views: Sequence[SegmentView]) -> bool:
        del views
        asked.append(server)
        return not end.wait(60)

    links = [FakeLink(world), FakeLink(world)]
    for link in links:
        link.ask_back = hangs
    try:
        said = serve(world, *links, limit_s=0.2)
    finally:
        end.set()
    assert asked == [uuid(1)]
    assert f"server {uuid(1)}: no segment: its QEMU does not answer within 0.2 s" in said
    assert links[1].closed


def test_a_second_service_is_refused(world: World) -> None:
    (world.folder / "state").mkdir(mode=0o700)
    with (
        locked(world.folder / "state" / "lock", "it"),
        pytest.raises(LockedError, match="nearmetal-computed is in use by process"),
    ):
        serve(world, FakeLink(world))


def test_a_directory_that_others_may_change_is_refused(world: World) -> None:
    (world.folder / "state").mkdir()
    (world.folder / "state").chmod(0o777)
    with pytest.raises(StateError, match="others may write to it"):
        serve(world, FakeLink(world))


def test_a_server_is_withheld_until_it_leaves(world: World) -> None:
    state = world.folder / "state"
    one = world.start(1)
    withhold(state, one)
    withhold(state, uuid(99))
    (state / "withheld" / "..x").touch()
    assert withheld(state) == {one, uuid(99)}
    serve(world, FakeLink(world), FakeLink(world))
    assert withheld(state) == {one}
    assert world.servers[one].devices == {}
    give(state, one)
    assert withheld(state) == set()


def test_take_waits_for_the_service(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    state, one = world.folder / "state", world.start(1)
    state.mkdir(mode=0o700)
    words = ["computed", "take", one, "--wait", "0.3", "--state", str(state)]
    assert main(words) == 1
    assert "the service does not run" in capsys.readouterr().err
    with locked(state / "lock", "it"):
        # A turn that began before the mark may give a part.
        assert main(words) == 1
        assert "the service has not seen the request after 0.3 s" in capsys.readouterr().err
        (state / "status.json").write_text(json.dumps({"withheld": [one]}))
        assert main(words) == 0
        keeper = service(world)
        keeper.turn()
        (world.folder / "segments.json").rename(state / "segments.json")
        assert main(words) == 1
        assert "still has its part, in state given, after 0.3 s" in capsys.readouterr().err
    assert withheld(state) == {one}
    assert main(["computed", "give", one, "--state", str(state)]) == 0
    assert withheld(state) == set()


def test_take_of_a_server_that_is_elsewhere_fails(world: World) -> None:
    state, one = world.folder / "state", world.start(1)
    withhold(state, one)
    assert not is_withheld(state, one)
    serve(world, FakeLink(world), FakeLink(world))
    assert is_withheld(state, one)
    del world.servers[one]
    serve(world, FakeLink(world), FakeLink(world))
    with pytest.raises(StateError, match=f"no server {one} runs on this hypervisor"):
        is_withheld(state, one)


@pytest.mark.parametrize("name", ["web-1", "../../etc/passwd", uuid(1).upper() + "A", ""])
def test_a_server_is_named_by_its_id(name: str, tmp_path: Path) -> None:
    for verb in ("take", "give"):
        assert main(["computed", verb, name, "--state", str(tmp_path)]) == 2


def test_status_of_a_service_that_never_ran(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["computed", "status", "--state", str(tmp_path)]) == 1
    assert "start the service" in capsys.readouterr().err


WITHOUT_OPENSTACK = """
import sys
sys.modules["openstack"] = None
from nearmetal.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


def test_a_missing_package_is_named_by_serve_and_not_needed_by_status(tmp_path: Path) -> None:
    clouds, settings = tmp_path / "clouds.yaml", tmp_path / "computed.yaml"
    clouds.touch(0o600)
    settings.write_text(f"version: 1\ncloud: c\nclouds: {clouds}\n")
    (tmp_path / "status.json").write_text('{"segments": [], "refusals": [], "trouble": ""}')

    def run(verb: str, *options: str) -> tuple[int, str]:
        argv = (sys.executable, "-c", WITHOUT_OPENSTACK, "computed", verb, *options)
        done = subprocess.run(
            [*argv, "--state", str(tmp_path)], capture_output=True, text=True, check=False
        )
        return done.returncode, done.stderr

    code, told = run("serve", "--settings", str(settings))
    assert code == 1
    assert "nearmetal[openstack]" in told
    code, told = run("status")
    assert code == 4
    assert "the service does not run" in told


def test_serve_refuses_credentials_that_others_may_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clouds, settings = tmp_path / "clouds.yaml", tmp_path / "computed.yaml"
    clouds.write_text("clouds: {c: {auth: {password: secret-word}}}")
    clouds.chmod(0o644)
    settings.write_text(f"version: 1\ncloud: c\nclouds: {clouds}\n")
    assert main(["computed", "serve", "--settings", str(settings), "--state", str(tmp_path)]) == 1
    told = capsys.readouterr()
    assert "other users may read or write" in told.err
    assert "secret-word" not in told.err + told.out
