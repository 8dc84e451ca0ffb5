# SPDX-License-Identifier: Apache-2.0
"""Moves of machines between hypervisors: the facts before them, and each action."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from xml.etree import ElementTree as ET

from nearmetal.cluster.backends.libvirt import build
from nearmetal.cluster.backends.libvirt.arrival import arrival_xml
from nearmetal.cluster.backends.libvirt.build import Boot, Site, domain_name
from nearmetal.cluster.backends.libvirt.choices import placed
from nearmetal.cluster.backends.libvirt.hosts import HostShell, ssh_login
from nearmetal.cluster.backends.libvirt.hypervisor import Hypervisor, Room
from nearmetal.cluster.backends.libvirt.machine import SegmentView
from nearmetal.cluster.backends.libvirt.nodes import digest
from nearmetal.cluster.backends.libvirt.plan import machines as plan_machines
from nearmetal.cluster.backends.libvirt.probe import Hypervisors
from nearmetal.cluster.backends.libvirt.records import Records
from nearmetal.cluster.backends.libvirt.spec import LibvirtHost, LibvirtSpec
from nearmetal.cluster.backends.libvirt.values import (
    NONE,
    VirtualHost,
    VirtualNetwork,
    VirtualNode,
    part_of,
)
from nearmetal.cluster.backends.libvirt.vfs import NodeVfs, fabric_needs, seed_interface, vfs_for
from nearmetal.cluster.move.checks import FabricNeed, MovableMachine, MoveTarget
from nearmetal.cluster.move.phases import SETTLEMENTS, MoveAction, Settlement
from nearmetal.cluster.move.record import Move, MoveRecords
from nearmetal.cluster.move.site import MoveOptions
from nearmetal.cluster.resource import Facts, Key, Kind, Observed, Resource
from nearmetal.cluster.ssh_nodes import Nodes, NodeSilentError
from nearmetal.core.errors import BackendError
from nearmetal.host.vf import GrantedVf
from nearmetal.image.seed import Seed, SeedInterface

_KVM = "KVM"

_ANSWER_S = 60.0
"""Time for a guest to answer, beside that which its processes have."""


def files_of(directory: str, node: str) -> list[str]:
    """Return all files of a node in the directory of its host."""
    return [f"{directory}/{node}.{kind}" for kind in ("seed", "console", "iso", "nvram")]


@dataclass(frozen=True)
class MoveParts:
    """What moves use of the backend of a cluster."""

    spec: LibvirtSpec
    records: Records
    hosts: Hypervisors
    identity: Callable[[], str]
    observe: Callable[[], Observed]
    facts: Callable[[], Facts]
    nodes: Callable[[], Nodes]
    site: Callable[[str, str], Site]
    seed: Callable[[Resource, Site, SeedInterface | None], str]
    vfs: Callable[[str, str], NodeVfs]
    """The VFs of a host, by its name and URI."""
    boot: Callable[[HostShell], Boot]
    claim: Callable[[Hypervisor, str], None]
    """Refuses a domain of that name that is not of this cluster."""


@dataclass
class LibvirtMoves:
    """Implements MoveSite; see there for the contracts."""

    parts: MoveParts
    options: MoveOptions
    _arriving: dict[str, Resource] = field(default_factory=dict)
    _granted: dict[tuple[str, str], GrantedVf] = field(default_factory=dict)
    """By node and host."""
    _halted: threading.Event = field(default_factory=threading.Event)

    @property
    def records(self) -> MoveRecords:
        """The records of moves."""
        return MoveRecords(self.parts.records.directory)

    # Facts

    @cached_property
    def _observed(self) -> Observed:
        return self.parts.observe()

    @cached_property
    def _facts(self) -> Facts:
        return self.parts.facts()

    @cached_property
    def _rooms(self) -> Mapping[str, Room]:
        return {uri: self._link(uri).room() for uri in self.parts.spec.uris}

    def _link(self, uri: str) -> Hypervisor:
        return self.parts.hosts.link(uri)

    def _host(self, name: str) -> LibvirtHost:
        for host in self.parts.spec.hosts:
            if host.name == name:
                return host
        raise BackendError(
            f"host {name} is not in the spec", "add it again; remove hosts after their moves"
        )

    def _shell(self, host: str) -> HostShell:
        return self.parts.hosts.shell(host, self._host(host).uri)

    def _vfs(self, host: str) -> NodeVfs:
        return self.parts.vfs(host, self._host(host).uri)

    @cached_property
    def _needs(self) -> tuple[Mapping[str, FabricNeed], Mapping[str, str]]:
        return fabric_needs(self._vfs, self._running())

    def _domain(self, node: str) -> str:
        return domain_name(self.parts.spec.name, node)

    def _running(self) -> dict[str, VirtualNode]:
        """Return the nodes of the spec that are ready and run on a sound host of the spec."""
        observed = self._observed
        still = observed.broken | set(observed.halted)
        own = {node.name for _, node in self.parts.spec.nodes}
        hosts = {host.name: host.uri for host in self.parts.spec.hosts if host.name in self._sound}
        return {
            name: node
            for name, node in observed.named(VirtualNode).items()
            if Key(Kind.NODE, name) not in still
            and name in own
            and hosts.get(node.host) == node.uri
        }

    @property
    def _sound(self) -> set[str]:
        """The hosts that `up` has prepared."""
        keys = self._observed.by_key().keys() - self._observed.broken
        return {key.name for key in keys if key.kind is Kind.HOST}

    def places(self) -> Mapping[str, str]:
        """Return the host of each node that runs."""
        return {name: node.host for name, node in self._running().items()}

    def machines(self) -> Mapping[str, MovableMachine]:
        """Return the facts of each node that runs."""
        return {name: self._movable(name, node) for name, node in self._running().items()}

    def _movable(self, name: str, node: VirtualNode) -> MovableMachine:
        live = ET.fromstring(self._link(node.uri).live_xml(self._domain(name)))  # noqa: S314 - libvirt's
        kind = live.find("os/type")
        cpu, features = "", frozenset({self._emulation(node.host)})
        if node.accel == "kvm":
            room = self._rooms[node.uri]
            cpu, features = room.cpu, room.features | {_KVM}
        near = node.device != NONE
        return MovableMachine(
            name=name,
            cpu=cpu,
            features=features,
            machine_type="" if kind is None else kind.get("machine", ""),
            memory=node.memory,
            image=node.image,
            hugepage=node.hugepages,
            device=node.device if near else "",
            part=(self._segment(node.host).part_size or 0) if near else 0,
            segment=self._segment_size(node.host) if near else 0,
            vf=self._needs[0].get(name),
            networks=frozenset({self._network_name}),
            pinned_to_host=tuple(self._pinned(name, node)),
            group=node.host if near else "",
        )

    def _emulation(self, host: str) -> str:
        return f"TCG of QEMU {self._facts.hosts[host].qemu}"

    @property
    def _network_name(self) -> str:
        return f"{self.parts.spec.network.bridge} with {self.parts.spec.network.subnet}"

    def _pinned(self, name: str, node: VirtualNode) -> Iterator[str]:
        if name in self._needs[1]:
            yield f"a VF of which nothing is known: {self._needs[1][name]}"
        if node.files == "9p":
            yield (
                "a directory of its host by 9p (with `directory:` in the spec of its host, nodes "
                "get copies)"
            )
        if node.passthrough:
            yield f"devices of its host: {', '.join(node.passthrough)}"
        if node.firmware is not None:
            yield "EFI variables in a file of its host"
        if node.numa:
            yield "memory of a NUMA node of its host (`numa: none` leaves it free)"
        if node.device not in (NONE, "ivshmem"):
            yield f"a segment by {node.device}, which cannot be unplugged"
        if self.parts.spec.image != "default":
            yield "a disk that lies on its host"

    def _segment(self, host: str) -> VirtualHost:
        return self._observed.named(VirtualHost)[host]

    def _segment_size(self, host: str) -> int:
        record = self.parts.records.read(Key(Kind.HOST, host))
        return 0 if record is None else record.notes.size or 0

    def targets(self) -> Mapping[str, MoveTarget]:
        """Return the facts of each host that `up` has prepared."""
        return {h.name: self._target(h) for h in self.parts.spec.hosts if h.name in self._sound}

    def _target(self, host: LibvirtHost) -> MoveTarget:
        segment, room, facts = (
            self._segment(host.name),
            self._rooms[host.uri],
            self._facts.hosts[host.name],
        )
        used = [
            n
            for n in self._observed.named(VirtualNode).values()
            if n.host == host.name and n.part is not None
        ]
        near = segment.device != NONE
        vfs, no_vf = vfs_for(self._vfs, host.name, self._running())
        networks = self._observed.named(VirtualNetwork).values()
        there = any(network.uri == host.uri for network in networks)
        return MoveTarget(
            name=host.name,
            cpu=room.cpu,
            features=room.features
            | {self._emulation(host.name)}
            | ({_KVM} if facts.kvm else set()),
            machine_types=room.machine_types,
            memory=room.memory,
            hugepages=dict(room.hugepages),
            images=frozenset({self._facts.image}),
            device=segment.device if near else "",
            parts=(segment.parts or 0) - len(used),
            part=segment.part_size or 0,
            segment=self._segment_size(host.name),
            vfs=vfs,
            no_vf=no_vf,
            networks=frozenset({self._network_name} if there else ()),
        )

    # Assignment

    def check(self, moves: Sequence[Move]) -> None:
        """Refuse hosts that no machine can move between, and deal out parts and cores."""
        for move in moves:
            source, target = self._host(move.source), self._host(move.target)
            if source.uri == target.uri:
                raise BackendError(
                    f"hosts {source.name} and {target.name} have one hypervisor: {source.uri}",
                    "a machine moves between two hypervisors",
                )
            same = self._rooms[source.uri].host
            if same and same == self._rooms[target.uri].host:
                # Both would say that the machine runs there, and libvirt refuses such a migration.
                raise BackendError(
                    f"hosts {source.name} and {target.name} are one machine: libvirt at "
                    f"{source.uri} and at {target.uri} has UUID {same}",
                    "a machine moves between two hypervisors; if these are two that have one UUID, "
                    "set host_uuid in their libvirtd.conf",
                )
            self._uri(target)
            self.parts.claim(self._link(target.uri), self._domain(move.node))
        self._arriving = dict(self._arrivals(moves))

    def _uri(self, target: LibvirtHost) -> str:
        """Return where a host takes the memory of machines."""
        address, login = target.migration_address, ssh_login(target.uri)
        if address is None and login is not None:
            address = login.host.rpartition("@")[2]
        if address is None:
            raise BackendError(
                f"host {target.name}: {target.uri} has no address for other hosts",
                f"add migration_address to host {target.name} in the spec",
            )
        return f"tcp://{address}"

    def _arrivals(self, moves: Sequence[Move]) -> Iterator[tuple[str, Resource]]:
        """Return each node as it will be, with a part and cores that no other node has."""
        spec, held = self.parts.spec, self._running()
        homes = {node.name: host.name for host, node in spec.nodes}
        goals = {move.node: self._host(move.target) for move in moves}
        moved = {
            name: held[name].model_copy(
                update={
                    "host": goal.name,
                    "uri": goal.uri,
                    "home": None if homes[name] == goal.name else homes[name],
                    "part": None,
                    "cpus": (),
                    "emulator_cpus": (),
                }
            )
            for name, goal in goals.items()
        }
        resources = tuple(
            replace(item, values=moved.get(item.key.name, item.values))
            if item.key.kind is Kind.NODE
            else item
            for item in self._observed.resources
        )
        planned = plan_machines(spec, self._facts, replace(self._observed, resources=resources))
        dealt = {r.key.name: r.values for r in planned.resources if r.key.kind is Kind.NODE}
        for name, node in moved.items():
            values = dealt[name]
            if not isinstance(values, VirtualNode):
                raise BackendError(f"node {name}: the plan has no values for it")
            new = {"cpus": values.cpus, "emulator_cpus": values.emulator_cpus}
            part = None if node.device == NONE else values.part
            arriving = node.model_copy(update={**new, "part": part})
            yield name, part_of(spec, Key(Kind.NODE, name), arriving)

    # Actions

    def act(self, action: MoveAction, move: Move) -> str:
        """Do it; a second call does the rest."""
        acts: dict[MoveAction, Callable[[Move], str | None]] = {
            MoveAction.PREPARE: self._prepare,
            MoveAction.QUIESCE: self._quiesce,
            MoveAction.DETACH: self._detach,
            MoveAction.MIGRATE: self._migrate,
            MoveAction.ATTACH: self._attach,
            MoveAction.RESUME: self._resume,
            MoveAction.RELEASE: lambda move: self._remove(move.source, move),
            MoveAction.REATTACH: self._reattach,
            MoveAction.REOPEN: self._reopen,
            MoveAction.GIVE_UP: lambda move: self._remove(move.target, move),
        }
        return acts[action](move) or ""

    def _site(self, host: str) -> Site:
        return self.parts.site(host, self._host(host).uri)

    def _item(self, move: Move) -> Resource:
        """Return the node as it is at the destination: its mark says so, as soon as it is there."""
        mark = self._link(self._host(move.target).uri).mark_of(self._domain(move.node))
        if mark is not None:
            values = VirtualNode.read(dict(mark.attributes))
            return part_of(self.parts.spec, Key(Kind.NODE, move.node), values)
        if move.node not in self._arriving:
            raise BackendError(
                f"node {move.node} ended on host {move.target}", "run `nearmetal up`"
            )
        return self._arriving[move.node]

    def _source_item(self, move: Move) -> Resource:
        record = self.parts.records.read(Key(Kind.NODE, move.node))
        if record is None:
            raise BackendError(f"node {move.node} has no record", "run `nearmetal up` again")
        return record.item

    def _seed(self, move: Move, item: Resource, host: str) -> str:
        text = self.parts.seed(item, self._site(host), self._interface(move, item, host))
        if move.near:
            return text
        return Seed.from_json(text).model_copy(update={"segment": None}).secret_json()

    def _vf(self, move: Move, item: Resource, host: str) -> GrantedVf | None:
        """Return the VF of a node at a host, which it gets there if it has none yet."""
        node, key = item.of(VirtualNode), (move.node, host)
        if node.vf is not None and key not in self._granted:
            granted = self._vfs(host).take(move.node, node.vf, frozenset(node.numa))
            owner = self.parts.hosts.owner(self._host(host).uri)
            self._shell(host).own(f"/dev/vfio/{granted.group}", owner)
            self._granted[key] = granted
        return self._granted.get(key)

    def _interface(self, move: Move, item: Resource, host: str) -> SeedInterface | None:
        """Return the seed of its VF; None if it goes without its devices."""
        granted = self._vf(move, item, host) if move.near else None
        return None if granted is None else seed_interface(granted)

    def _plug(self, move: Move, item: Resource, host: str) -> bool:
        """Give the machine its devices at the host where it runs; returns whether one was missing."""
        link, domain = self._link(item.of(VirtualNode).uri), self._domain(move.node)
        missing = link.plug(domain, self._views(item, host))
        granted = self._vf(move, item, host)
        return (granted is not None and link.attach(domain, granted.address)) or missing

    def _views(self, item: Resource, host: str) -> list[SegmentView]:
        segment = build.segment_of(item.of(VirtualNode), self._site(host))
        return [] if segment is None else segment.views

    def _prepare(self, move: Move) -> None:
        shell, site = self._shell(move.target), self._site(move.target)
        owner = self.parts.hosts.owner(self._host(move.target).uri)
        seed = self._seed(move, self._item(move), move.target)
        shell.prepare(site.directory, owner)
        shell.write(site.file(f"{move.node}.seed"), seed.encode(), owner)
        shell.write(site.file(f"{move.node}.console"), b"", owner)
        self.parts.boot(shell)

    def _quiesce(self, move: Move) -> None:
        node = self._source_item(move).of(VirtualNode)
        # The guest also remembers the addresses of its VF.
        if node.device != NONE or node.vf is not None:
            limit = round(self.options.leave_s)
            what = "its processes do not leave the segment"
            argv = ["nearmetal-guest", "leave", str(limit)]
            # The guest gives up by itself: ended earlier, it would leave during the way back.
            self.parts.nodes().check(move.node, what, argv, timeout_s=limit + _ANSWER_S)

    def _detach(self, move: Move) -> None:
        item = self._source_item(move)
        link, domain = self._link(item.of(VirtualNode).uri), self._domain(move.node)
        link.unplug(domain, self._views(item, move.source))
        granted = self._vf(move, item, move.source)
        if granted is not None:
            link.detach(domain, granted.address)

    def _migrate(self, move: Move) -> None:
        spec, item = self.parts.spec, self._item(move)
        target = self._host(move.target)
        boot = self.parts.boot(self._shell(move.target))
        spec = placed(spec, {move.node: item.of(VirtualNode)})
        made = build.machine(spec, self.parts.identity(), item, self._site(move.target), boot)
        wanted = replace(made, owner=replace(made.owner, ready=True))
        link, domain = self._link(self._host(move.source).uri), self._domain(move.node)
        document = arrival_xml(link.live_xml(domain), wanted)
        link.migrate(
            domain,
            self._link(target.uri),
            document,
            self._uri(target),
            tls=self.options.tls,
            limit_s=self.options.migrate_s,
            halt=self._halted,
        )

    def halt(self) -> None:
        """Cancel the migrations that run, and those that begin."""
        self._halted.set()

    def _attach(self, move: Move) -> None:
        item = self._item(move)
        self._record(move, item)
        self._plug(move, item, move.target)

    def _record(self, move: Move, item: Resource) -> None:
        """Record the node at its new host."""
        key = Key(Kind.NODE, move.node)
        before = self.parts.records.read(key)
        if before is not None and before.item.of(VirtualNode).host != move.target:
            vf = self._interface(move, item, move.target)
            self.parts.records.write(item, before.notes.model_copy(update={"vf": vf}))

    def _resume(self, move: Move) -> str:
        item = self._item(move)
        self._record(move, item)
        remark = self._back(move, item, move.target)
        record = self.parts.records.read(Key(Kind.NODE, move.node))
        if record is not None:
            seed = digest(self._seed(move, item, move.target))
            self.parts.records.write(item, record.notes.model_copy(update={"seed": seed}))
        return remark

    def _back(self, move: Move, item: Resource, host: str) -> str:
        """Let the processes return to the segment of a host; without it if the guest refuses."""
        what, argv = "its processes do not return", ["nearmetal-guest", "return"]
        nodes = self.parts.nodes()
        seed = self._seed(move, item, host)
        try:
            nodes.check(move.node, what, argv, seed.encode())
        except NodeSilentError:
            # The action is repeated: the guest may take the segment as soon as it is reached.
            raise
        except BackendError as error:
            if not move.near:
                raise
            bare = self._seed(move.model_copy(update={"near": False}), item, host)
            nodes.check(move.node, what, argv, bare.encode())
            return f"node {move.node} has no segment on host {host}: {error.message}"
        return ""

    def _reattach(self, move: Move) -> None:
        self._plug(move, self._source_item(move), move.source)

    def _reopen(self, move: Move) -> str:
        item = self._source_item(move)
        remark = self._back(move, item, move.source)
        # A guest may let a device go after the time for that. Nothing takes the request back, so
        # the device counted as plugged in.
        try:
            missing = move.near and self._plug(move, item, move.source)
        except BackendError as error:
            self._back(move.model_copy(update={"near": False}), item, move.source)
            return f"node {move.node} has lost a device on host {move.source}: {error.message}"
        return self._back(move, item, move.source) if missing else remark

    def _remove(self, host: str, move: Move) -> None:
        record = self.parts.records.read(Key(Kind.NODE, move.node))
        if record is not None and record.item.of(VirtualNode).vf is not None:
            self._vfs(host).give_back(move.node)
            self._granted.pop((move.node, host), None)
        self._shell(host).remove(files_of(self.parts.hosts.place(host), move.node))

    def settle(self, move: Move) -> Settlement:
        """Ask both hypervisors, end what never runs again, and continue what stands still."""
        domain = self._domain(move.node)
        source, target = (self._link(self._host(h).uri) for h in (move.source, move.target))
        for link in (source, target):
            self.parts.claim(link, domain)
        found = SETTLEMENTS[source.presence(domain), target.presence(domain)]
        if found.end_source:
            source.end(domain)
        if found.end_destination:
            target.end(domain)
        if found.continue_source:
            source.proceed(domain)
        return found
