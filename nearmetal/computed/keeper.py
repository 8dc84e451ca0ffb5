# SPDX-License-Identifier: Apache-2.0
"""The work of the service: one turn compares the records with the servers, and ends the difference.

A turn needs no memory of the turn before: events only decide when it runs. Each step is recorded
before it is done and can be repeated, so a service that is killed continues with its next start.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from nearmetal.cluster.backends.libvirt.build import Layout
from nearmetal.cluster.backends.libvirt.machine import SegmentView, ivshmem_views
from nearmetal.computed.domains import ServerDomain, sized
from nearmetal.computed.groups import ServerMembership
from nearmetal.computed.holdings import GroupSegment, Holdings, PartHolding, PartPhase
from nearmetal.computed.segment_files import SegmentFiles, new_name
from nearmetal.computed.servers import SeenServer
from nearmetal.computed.settings import ComputedSettings
from nearmetal.computed.turns import ProjectTurns
from nearmetal.config.size import format_size
from nearmetal.core.deadline import Deadline
from nearmetal.core.errors import CommandError, NearmetalError
from nearmetal.core.text import printable

REST_S = 10.0
"""Neighbours read the part of a dead server at most as long as their lease, usually 5 s."""

RETRY_S = 30.0
"""Before a server that was refused, or has dropped its devices, is looked at again."""

GIVE_S = 5.0
"""The longest time that a turn looks at parts, and that it gives parts. The next turn continues."""

_PORTS = 2
_MAX_REASON = 500


class ServerPlace(Protocol):
    """The hypervisor, as the keeper uses it."""

    def owner(self) -> tuple[int, int]:
        """Return user and group of QEMU."""

    def servers(self) -> list[SeenServer]:
        """Return all domains that exist."""

    def has(self, server: str, views: Sequence[SegmentView]) -> bool:
        """Whether the devices of all views are plugged in."""

    def empty_ports(self, domain: ServerDomain) -> tuple[str, ...]:
        """Return the ports of a server that have no device, the last first."""

    def plug_in(self, server: str, views: Sequence[SegmentView], ports: Sequence[str]) -> None:
        """Plug in each view at its port, unless it is there."""

    def ask_back(self, server: str, views: Sequence[SegmentView]) -> bool:
        """Ask the guest to let the devices go; returns whether all have gone."""


class GroupSource(Protocol):
    """Nova, as the keeper uses it."""

    def membership(self, server: str) -> ServerMembership:
        """Return the project and group of a server; raises BackendError."""


@dataclass
class PartKeeper:
    """Gives and takes parts. `withheld`: servers that an administrator wants to have none."""

    settings: ComputedSettings
    place: ServerPlace
    nova: GroupSource
    holdings: Holdings
    files: SegmentFiles
    log: Callable[[str], None]
    deadline: Deadline
    clock: Callable[[], float] = lambda: time.clock_gettime(time.CLOCK_BOOTTIME)
    refusals: dict[str, str] = field(default_factory=dict)
    """Why a server whose flavor has the extra spec has no part."""
    _retry: dict[str, float] = field(default_factory=dict)
    _specs: dict[str, tuple[int, str]] = field(default_factory=dict)
    """The start, and the extra spec that Nova has shown, of servers whose domains have none."""
    _unclean: set[tuple[str, int]] = field(default_factory=set)
    """Segments and parts that could not be zeroed."""
    _looked: ProjectTurns = field(default_factory=ProjectTurns)
    _waiting: ProjectTurns = field(default_factory=ProjectTurns)

    def turn(self, withheld: frozenset[str] = frozenset()) -> frozenset[str]:
        """Compare, and do what can be done now; returns the servers that exist here.

        Raises BackendError if libvirt does not answer.
        """
        seen = {one.server: one for one in self.place.servers()}
        self._forget(seen)
        self._settle_all(seen, withheld)
        for segment in self.holdings:
            self._clear(segment)
        self._unclean &= {(one.name, held.part) for one in self.holdings for held in one.resting}
        self.files.remove_others(self.holdings)
        waiting = {}
        for one in seen.values():
            if one.fault:
                self._refuse(one.server, one.fault)
            elif one.running and not self.holdings.holder(one.server):
                domain = self._with_spec(one)
                if domain is not None:
                    waiting[one.server] = (one, domain)
        projects = {server: domain.project for server, (_, domain) in waiting.items()}
        for server in self._in_time(self._waiting, projects):
            self._consider(*waiting[server], withheld)
        return frozenset(seen)

    def _in_time(self, turns: ProjectTurns, projects: Mapping[str, str]) -> Iterator[str]:
        """Yield servers in the order of their turns, until `GIVE_S` is over."""
        end = self.clock() + GIVE_S
        for server in turns.order(projects):
            if self.clock() >= end:
                return
            turns.had(server)
            yield server

    def _forget(self, seen: Mapping[str, SeenServer]) -> None:
        for server in [one for one in self.refusals if one not in seen]:
            del self.refusals[server]
        self._retry = {key: at for key, at in self._retry.items() if key in seen}
        self._specs = {
            key: one for key, one in self._specs.items() if key in seen and seen[key].run == one[0]
        }

    def _refuse(self, server: str, why: str, *, retry_s: float = 0.0) -> None:
        if self.refusals.get(server) != why:
            self.log(f"server {server}: no segment: {why}")
        self.refusals[server] = why
        if retry_s:
            self._retry[server] = self.clock() + retry_s

    def _ask(self, server: str, work: Callable[[], bool]) -> bool:
        return self.deadline.call(server, "its QEMU", work)

    # Parts that are not free

    def _settle_all(self, seen: Mapping[str, SeenServer], withheld: frozenset[str]) -> None:
        """Bring parts to the state that their servers need; slow QEMUs leave some for later."""
        asked = {}
        for segment in self.holdings:
            for held in segment.live:
                one = seen.get(held.server)
                if one is None or one.run != held.run:
                    self._rest(segment.key, held, "has ended")
                else:
                    asked[held.server] = segment.key, held, one
        projects = {server: key[0] for server, (key, _, _) in asked.items()}
        for server in self._in_time(self._looked, projects):
            self._settle(*asked[server], withheld)

    def _settle(
        self,
        key: tuple[str, str],
        held: PartHolding,
        one: SeenServer,
        withheld: frozenset[str],
    ) -> None:
        """Bring one part to the state that its server needs."""
        segment = self._at(key)
        if held.server in withheld and held.phase is not PartPhase.TAKING:
            held = held.at(PartPhase.TAKING)
            self.holdings.put(segment.with_part(held))
        try:
            if held.phase is PartPhase.GIVING:
                self._plug(key, held, one)
            elif held.phase is PartPhase.TAKING:
                self._unplug(key, held)
            elif not self._ask(held.server, lambda: self.place.has(held.server, self._ids())):
                self._drop(key, held)
            else:
                # Its QEMU may have been silent for a while.
                self.refusals.pop(held.server, None)
        except (NearmetalError, OSError) as error:
            self._refuse(held.server, _words(error))

    def _at(self, key: tuple[str, str]) -> GroupSegment:
        found = self.holdings.get(key)
        assert found is not None  # noqa: S101 - only _clear() drops one, and runs later
        return found

    def _rest(self, key: tuple[str, str], held: PartHolding, why: str) -> None:
        segment = self._at(key)
        self.holdings.put(segment.with_part(held.at(PartPhase.RESTING, self.clock())))
        self.log(f"server {held.server} {why}: part {held.part} of group {key[1]} rests")

    def _drop(self, key: tuple[str, str], held: PartHolding) -> None:
        """A guest may switch off its ports: it gets another part, but not at once."""
        self.holdings.put(self._at(key).with_part(held.at(PartPhase.TAKING)))
        self._refuse(held.server, "its guest has let the devices go", retry_s=RETRY_S)

    def _ids(self) -> list[SegmentView]:
        """Return the views with the names that they have in each server."""
        return ivshmem_views("", 0, 0, 0)

    def _unplug(self, key: tuple[str, str], held: PartHolding) -> None:
        if self._ask(held.server, lambda: self.place.ask_back(held.server, self._ids())):
            self._rest(key, held, "has no devices any more")
        elif held.server not in self.refusals:
            self._refuse(held.server, "waits for its guest to let the devices go")

    def _plug(self, key: tuple[str, str], held: PartHolding, one: SeenServer) -> None:
        """Make the file if necessary, and plug in what is missing."""
        if one.domain is None or not one.running:
            # It was paused, or its flavor is not readable now: wait.
            return
        segment, domain = self._at(key), one.domain
        given = any(other.phase is PartPhase.GIVEN for other in segment.holdings)
        if given and not self.files.exists(segment):
            self._give_up(key, held, f"{self.files.path(segment)} has disappeared")
            return
        try:
            layout = self.files.ready(segment, self.place.owner())
            views = self._views(segment, layout, held.part)
            self._ask(held.server, lambda: self._plugged(domain, views))
        except (NearmetalError, OSError) as error:
            self._give_up(key, held, _words(error))
            return
        self.holdings.put(self._at(key).with_part(held.at(PartPhase.GIVEN)))
        self.refusals.pop(held.server, None)
        self.log(
            f"server {held.server}: part {held.part} of group {key[1]}; before a live migration or "
            f"suspension: `nearmetal computed take {held.server}`"
        )

    def _plugged(self, domain: ServerDomain, views: Sequence[SegmentView]) -> bool:
        # A device that an interrupted attempt has plugged in is of the same part.
        if not self.place.has(domain.server, views):
            self.place.plug_in(domain.server, views, self.place.empty_ports(domain))
        return True

    def _views(self, segment: GroupSegment, layout: Layout, part: int) -> list[SegmentView]:
        offset = layout.part_off + part * layout.part_size
        path = str(self.files.path(segment))
        return ivshmem_views(path, layout.size, offset, layout.part_size)

    def _give_up(self, key: tuple[str, str], held: PartHolding, why: str) -> None:
        """Take back what was begun. The server is considered again later."""
        self.holdings.put(self._at(key).with_part(held.at(PartPhase.TAKING)))
        self._refuse(held.server, why, retry_s=RETRY_S)

    def _clear(self, segment: GroupSegment) -> None:
        """Zero parts that have rested; remove a segment without servers."""
        if not segment.live:
            self.files.remove(segment)
            self.holdings.drop(segment)
            self.log(f"group {segment.group} of project {segment.project}: segment removed")
            return
        for held in segment.resting:
            if self.clock() - held.since >= REST_S:
                try:
                    self.files.clean(segment, held.part)
                except (NearmetalError, OSError) as error:
                    if (segment.name, held.part) not in self._unclean:
                        self._unclean.add((segment.name, held.part))
                        self.log(
                            f"part {held.part} of group {segment.group} is not given again: "
                            f"{_words(error)}"
                        )
                    continue
                self.holdings.put(self._at(segment.key).without(held.part))

    # Servers without a part

    def _with_spec(self, one: SeenServer) -> ServerDomain | None:
        """Return a server with the extra spec that Nova has shown; None: its flavor has none."""
        if one.domain is None or not one.domain.without_specs or one.server not in self._specs:
            return one.domain
        part = self._specs[one.server][1]
        return sized(one.domain, part) if part else None

    def _ask_spec(self, one: SeenServer, domain: ServerDomain) -> ServerDomain | None:
        """Ask Nova for the extra spec, once for each start, if the domain has none."""
        if domain.without_specs:
            part = self._membership(domain).part
            if part is None:
                raise NearmetalError(
                    "this Nova writes no extra specs into domains, and does not show them to the "
                    "user of the service (policy os_compute_api:os-flavor-extra-specs:index)"
                )
            self._specs[one.server] = one.run, part
            self.refusals.pop(one.server, None)
        return self._with_spec(one)

    def _consider(self, one: SeenServer, domain: ServerDomain, withheld: frozenset[str]) -> None:
        """Give a server a part, or say why not."""
        if one.server in withheld:
            self._refuse(one.server, "withheld by an administrator")
            return
        if self.clock() < self._retry.get(one.server, 0.0):
            return
        try:
            found = self._ask_spec(one, domain)
            if found is None:
                return
            if not self._ask(one.server, lambda: self.place.ask_back(one.server, self._ids())):
                self._refuse(
                    one.server, "its guest has not yet let devices go that no record names"
                )
                return
            segment = self._segment_for(found)
        except (NearmetalError, OSError) as error:
            self._refuse(one.server, _words(error), retry_s=RETRY_S)
            return
        part = segment.free_part()
        if part is None:
            resting = len(segment.live) < segment.nr_parts
            why = "waits for a part" if resting else f"all {segment.nr_parts} parts are taken"
            # Not at each event: a project that starts and stops servers would load Nova.
            self._refuse(one.server, why, retry_s=REST_S)
            return
        held = PartHolding(part=part, server=one.server, run=one.run, phase=PartPhase.GIVING)
        self.holdings.put(segment.with_part(held))
        self._settle(segment.key, held, one, frozenset())

    def _membership(self, domain: ServerDomain) -> ServerMembership:
        server = domain.server
        answer = self.deadline.call("nova", "Nova", lambda: self.nova.membership(server))
        if answer.project != domain.project:
            raise NearmetalError("Nova says another project than its domain")
        return answer

    def _segment_for(self, domain: ServerDomain) -> GroupSegment:
        """Return the segment of a server's group, which may have no file yet."""
        if domain.fault:
            raise NearmetalError(domain.fault)
        server = domain.server
        ports = self.deadline.call(server, "its QEMU", lambda: self.place.empty_ports(domain))
        if len(ports) < _PORTS:
            raise NearmetalError(
                f"it needs {_PORTS} empty PCIe root ports and has {len(ports)}: raise "
                "num_pcie_ports in nova.conf, section libvirt, and restart the server"
            )
        answer = self._membership(domain)
        if not answer.group:
            raise NearmetalError("it is in no server group")
        key = (domain.project, answer.group)
        found = self.holdings.get(key)
        if found is None:
            return self._new_segment(key, domain.part_size)
        if found.part_size != domain.part_size:
            raise NearmetalError(
                f"its flavor gives {format_size(domain.part_size)}, but the parts of its group "
                f"have {format_size(found.part_size)}"
            )
        return found

    def _new_segment(self, key: tuple[str, str], part_size: int) -> GroupSegment:
        wanted = part_size * self.settings.parts
        for bound, name, used in (
            (self.settings.project_bound, "`project_memory`", self.holdings.memory(key[0])),
            (self.settings.memory, "`memory`", self.holdings.memory()),
        ):
            if wanted > bound - used:
                raise NearmetalError(
                    f"a segment of {self.settings.parts} parts needs {format_size(wanted)}, and "
                    f"{format_size(max(bound - used, 0))} of {name} are free"
                )
        return GroupSegment(
            project=key[0],
            group=key[1],
            name=new_name(),
            part_size=part_size,
            nr_parts=self.settings.parts,
        )


def _words(error: Exception) -> str:
    """Return the reason of a failure in one line: a QEMU may give one without end."""
    text = error.message if isinstance(error, NearmetalError) else str(error)
    if isinstance(error, CommandError):
        # The program's own words.
        text = error.hint or text
    return printable(" ".join(text.split()))[:_MAX_REASON]
