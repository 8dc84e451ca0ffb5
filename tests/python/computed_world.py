# SPDX-License-Identifier: Apache-2.0
"""A hypervisor in memory for nearmetal-computed: servers, their QEMUs, Nova, and real files."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from nearmetal.computed.domains import ServerDomain
from nearmetal.computed.groups import ServerMembership
from nearmetal.computed.holdings import Holdings
from nearmetal.computed.keeper import PartKeeper
from nearmetal.computed.segment_files import SegmentFiles
from nearmetal.computed.servers import SeenServer
from nearmetal.computed.service import read_status
from nearmetal.computed.settings import ComputedSettings
from nearmetal.core.deadline import Deadline
from nearmetal.core.errors import BackendError
from nearmetal.core.process import LocalRunner

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nearmetal.cluster.backends.libvirt.build import Layout
    from nearmetal.cluster.backends.libvirt.machine import SegmentView
    from nearmetal.computed.holdings import GroupSegment

Given = TypeVar("Given")

PART = 2 << 20
RED, BLUE = "a" * 32, "b" * 32
"""Projects."""


def uuid(number: int) -> str:
    return f"00000000-0000-4000-8000-{number:012x}"


GROUP, OTHER_GROUP = uuid(0xA), uuid(0xB)


def states(state: Path) -> dict[str, str]:
    """Return the state of the part of each server, or why it has none, as the service shows it."""
    if not (state / "status.json").exists():
        return {}
    status = read_status(state)
    held = {p["server"]: p["state"] for one in status["segments"] for p in one["parts"]}
    return held | {one["server"]: one["why"] for one in status["refusals"]}


class Killed(BaseException):
    """SIGKILL: no handler of the service sees it."""


@dataclass
class FakeServer:
    """A server. `devices`: the file and offset that each device of its QEMU shows, by its name."""

    server: str
    project: str
    run: int
    part_size: int = PART
    ports: int = 4
    running: bool = True
    lets_go: bool = True
    fault: str = ""
    cannot: str = ""
    """What its domain lacks for a part."""
    answers_s: float = 0.0
    """What its QEMU takes for each answer."""
    devices: dict[str, tuple[str, int]] = field(default_factory=dict)


@dataclass
class World:
    """What outlives the service."""

    folder: Path
    servers: dict[str, FakeServer] = field(default_factory=dict)
    groups: dict[str, ServerMembership] = field(default_factory=dict)
    now: float = 0.0
    nova_down: bool = False
    nova_takes_s: float = 0.0
    """For each answer."""
    nova_is_old: bool = False
    """Whether it writes no extra specs into domains."""
    runs: int = 0
    questions: int = 0
    steps: int = 0
    die_at: int = 0
    """The step at which the service is killed; 0: never."""
    said: list[str] = field(default_factory=list)

    @property
    def shm(self) -> Path:
        return self.folder / "shm"

    def start(self, number: int, project: str = RED, group: str = GROUP, **more: object) -> str:
        """Start a server, or start it again."""
        server, self.runs = uuid(number), self.runs + 1
        self.servers[server] = FakeServer(server, project, self.runs, **more)  # type: ignore[arg-type]
        size = self.servers[server].part_size
        part = f"{size} B" if size else ""
        self.groups[server] = ServerMembership(project, group, part)
        return server

    def step(self) -> None:
        self.steps += 1
        if self.steps == self.die_at:
            raise Killed

    # The hypervisor

    def owner(self) -> tuple[int, int]:
        found = self.folder.stat()
        return found.st_uid, found.st_gid

    def servers_seen(self) -> list[SeenServer]:
        return [
            SeenServer(one.server, one.run, one.running, self.domain(one), one.fault)
            for one in self.servers.values()
        ]

    def domain(self, one: FakeServer) -> ServerDomain | None:
        ports = tuple(f"pci.{number}" for number in range(9, 9 - one.ports, -1))
        found = ServerDomain(one.server, "instance", one.project, one.part_size, "", ports)
        if self.nova_is_old:
            return replace(found, part_size=0, fault=one.cannot, without_specs=True)
        return found if one.part_size and not one.fault else None

    def of(self, server: str) -> FakeServer:
        if server not in self.servers:
            raise BackendError(f"no domain {server}")
        return self.servers[server]

    def has(self, server: str, views: Sequence[SegmentView]) -> bool:
        one = self.of(server)
        self.now += one.answers_s
        devices = one.devices
        return all(view.device["id"] in devices for view in views)

    def empty_ports(self, domain: ServerDomain) -> tuple[str, ...]:
        return domain.ports[len(self.of(domain.server).devices) :]

    def plug_in(self, server: str, views: Sequence[SegmentView], ports: Sequence[str]) -> None:
        one = self.of(server)
        missing = [view for view in views if view.device["id"] not in one.devices]
        assert len(ports) >= len(missing)
        for view in missing:
            self.step()
            path, offset = str(view.memory["mem-path"]), int(view.memory.get("offset", 0))
            assert Path(path).exists(), "QEMU would make a file of its own"
            one.devices[str(view.device["id"])] = (path, offset)
        self.step()

    def ask_back(self, server: str, views: Sequence[SegmentView]) -> bool:
        one = self.of(server)
        self.now += one.answers_s
        names = [str(view.device["id"]) for view in views]
        gone = not any(name in one.devices for name in names)
        if one.lets_go:
            for name in names:
                if name in one.devices:
                    self.step()
                    del one.devices[name]
        return gone

    # Nova

    def membership(self, server: str) -> ServerMembership:
        self.questions += 1
        self.now += self.nova_takes_s
        if self.nova_down:
            raise BackendError("cloud c: logging in: it does not answer")
        return self.groups[server]


class _Place:
    """The world as the keeper's hypervisor; `servers` is a list there."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.owner = world.owner
        self.has = world.has
        self.empty_ports = world.empty_ports
        self.plug_in = world.plug_in
        self.ask_back = world.ask_back

    def servers(self) -> list[SeenServer]:
        return self._world.servers_seen()


class _Inline(Deadline):
    """Calls without threads: a death shows at once."""

    def __init__(self) -> None:
        super().__init__(1.0)

    def call(self, key: str, what: str, work: Callable[[], Given]) -> Given:
        del key, what
        return work()


class _Records(Holdings):
    """Records whose writer may be killed before and after each write."""

    def __init__(self, world: World) -> None:
        super().__init__(world.folder)
        self._world = world

    def _write(self, segments: dict[tuple[str, str], GroupSegment]) -> None:
        self._world.step()
        super()._write(segments)
        self._world.step()


class _Files(SegmentFiles):
    """Files whose maker may be killed before and after each change."""

    def __init__(self, world: World) -> None:
        super().__init__(LocalRunner(), world.shm)
        self._world = world

    def ready(self, segment: GroupSegment, owner: tuple[int, int]) -> Layout:
        self._world.step()
        made = super().ready(segment, owner)
        self._world.step()
        return made

    def clean(self, segment: GroupSegment, part: int) -> None:
        self._world.step()
        super().clean(segment, part)
        self._world.step()

    def remove(self, segment: GroupSegment) -> None:
        self._world.step()
        super().remove(segment)
        self._world.step()


def service(
    world: World, *, parts: int = 3, memory: int = 1 << 30, of_project: int | None = None
) -> PartKeeper:
    """Start the service: it knows only what is in its records."""
    world.shm.mkdir(exist_ok=True)
    settings = ComputedSettings(version=1, cloud="c", parts=parts).model_copy(
        update={"memory": memory, "project_memory": memory if of_project is None else of_project}
    )
    return PartKeeper(
        settings,
        _Place(world),
        world,
        _Records(world),
        _Files(world),
        world.said.append,
        _Inline(),
        lambda: world.now,
    )


def settle(world: World, keeper: PartKeeper, withheld: frozenset[str] = frozenset()) -> None:
    """Let turns pass until the service has nothing more to do."""
    for _ in range(6):
        keeper.turn(withheld)
        world.now += 20


def shown(world: World) -> dict[str, tuple[str, int]]:
    """Return the file and part of each server that has both devices, and check them."""
    found = {}
    for one in world.servers.values():
        if not one.devices:
            continue
        (path, offset), (whole, start) = one.devices["nm-own-device"], one.devices["nm-all-device"]
        assert (whole, start) == (path, 0)
        found[one.server] = path, (offset - PART) // one.part_size
    places = list(found.values())
    assert len(set(places)) == len(places), "two servers have one part"
    return found
