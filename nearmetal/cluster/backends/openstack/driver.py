# SPDX-License-Identifier: Apache-2.0
"""A cluster of servers on OpenStack.

Nova and Neutron are always asked for what exists. Objects carry the mark of the cluster's record from the
request that makes them on, so what an interrupted `up` has made is found and used by the next one. Several
servers are made at the same time, but those of one server group one after another: Nova checks the policy
of a group against the members that it has placed already. `finish` waits for all of them.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property

from nearmetal.cluster.backend import NodeStatus
from nearmetal.cluster.backends.openstack.answers import checked, number
from nearmetal.cluster.backends.openstack.arrival import floating_of
from nearmetal.cluster.backends.openstack.guests import ServerGuests
from nearmetal.cluster.backends.openstack.images import ImageFile, image_values
from nearmetal.cluster.backends.openstack.marks import (
    CLUSTER,
    MARK,
    ClusterMark,
    make_mark,
    read_mark,
)
from nearmetal.cluster.backends.openstack.plan import (
    Router,
    Server,
    ServerGroup,
    UploadedImage,
    image_name,
    part_of,
    project_of,
)
from nearmetal.cluster.backends.openstack.session import CloudSession
from nearmetal.cluster.backends.openstack.shared import SharedMemory, shared_memory
from nearmetal.cluster.backends.openstack.spec import ROUTER, CloudNode, OpenstackSpec
from nearmetal.cluster.backends.openstack.stock import missing, needs_of, quotas_of, shortages
from nearmetal.cluster.backends.openstack.work import CloudWork
from nearmetal.cluster.backends.openstack.world import (
    BUSY,
    OFF,
    RUNS,
    Catalog,
    World,
    group_values,
    network_values,
    never_ran,
    read_world,
    router_values,
    server_values,
    why_unfinished,
)
from nearmetal.cluster.diff import Plan
from nearmetal.cluster.model import ClusterSpec, Finding, refuse, some
from nearmetal.cluster.resource import Facts, Key, Kind, Observed, Resource
from nearmetal.cluster.ssh_nodes import Nodes, SshBackend
from nearmetal.cluster.store import SPEC, Store
from nearmetal.core.errors import BackendError
from nearmetal.core.process import LocalRunner, Runner
from nearmetal.core.text import printable
from nearmetal.image.seed import SeedUser


class OpenstackBackend(SshBackend):
    """Implements Backend; see there for the contracts."""

    spec: OpenstackSpec

    def __init__(
        self,
        spec: OpenstackSpec,
        store: Store,
        runner: Runner | None = None,
        user: SeedUser | None = None,
    ) -> None:
        """Touch nothing yet. `user`: the user of jobs in the servers, where it is another."""
        self.spec = spec
        self.name = spec.name
        self._directory = store.cluster(spec.name)
        self._session = CloudSession(spec.cloud)
        self._catalog = Catalog(self._session)
        self._world = World()
        runner = runner or LocalRunner()
        self._guests: ServerGuests | None = None
        if spec.ssh is not None:
            self._guests = ServerGuests(spec, self._session, self._directory, runner, user)
        files = (ImageFile(path, runner) for path in spec.image_files)
        self._files = {file.path: file for file in files}
        self._lacking: dict[str, str] = {}
        """Why jobs cannot enter servers that run, as the last look found."""
        self._begun: dict[str, str] = {}
        """Nodes whose servers are made or started, by the IDs of the servers."""
        self._members: dict[str, str] = {}
        """The server of each group that was begun last."""
        self._unshared: list[str] = []
        """Nodes that should have a part of a segment, and had none at the end of the wait."""

    @property
    def apart(self) -> str:
        """Why servers of one hypervisor share no memory; "" where their flavors give them some."""
        return self._shared.why

    def why_apart(self, node: str, peer: str) -> str:
        """Return why these two servers of one hypervisor have no segment."""
        return self._shared.reason(node, peer)

    @cached_property
    def _shared(self) -> SharedMemory:
        return shared_memory(self.spec, lambda name: self._catalog.get("flavor", name))

    def _mark(self) -> ClusterMark:
        return make_mark(self._directory, self._session.home)

    def _work(self) -> CloudWork:
        return CloudWork(
            self._session, self.spec, self._mark(), self._world, self._catalog, guests=self._guests
        )

    def _known_mark(self) -> ClusterMark | None:
        """Return the mark of the cluster, whose objects are where the cloud leads."""
        mark = read_mark(self._directory)
        # Wrong credentials are an error of each plan, not of the first change.
        home = self._session.home
        if mark is not None and mark.home != home:
            raise BackendError(
                f"cluster {self.name} is in {mark.home}, and cloud {self.spec.cloud} is {home}",
                "correct `cloud` or clouds.yaml; run `nearmetal down` there first to move it",
            )
        return mark

    def _read(self, mark: ClusterMark) -> World:
        return read_world(self._session, mark)

    def prepare(self) -> None:
        """Do nothing: the image is in the cloud, or a part of the cluster."""

    def facts(self) -> Facts:
        """Return the checksums of the images that are uploaded."""
        return Facts(images={path: file.sha256 for path, file in self._files.items()})

    def _file_of(self, name: str) -> ImageFile:
        """Return the file of an image that is uploaded."""
        return next(file for file in self._files.values() if self._name_of(file) == name)

    def _name_of(self, file: ImageFile) -> str:
        return image_name(file.sha256, self.spec.properties)

    # As it is

    def observe(self) -> Observed:
        """Ask Nova and Neutron for all objects with the mark of the cluster."""
        mark = self._known_mark()
        if mark is None:
            self._world = World()
            # A directory without a mark: an interrupted `up` had made nothing yet.
            begun = self._directory.exists()
            left = frozenset({Key(Kind.CLUSTER, self.name)} if begun else ())
            return Observed(broken=left, advice=self._advice())
        world = self._world = self._read(mark)
        parts = [part_of(self.spec, Kind.CLUSTER, self.name, project_of(self.spec))]
        unfinished: dict[Key, str] = {}
        # What is wanted is uploaded again in any case.
        broken = {Key(Kind.DISK, name) for name in world.scraps.keys() - self._wanted_images()}
        halted: dict[Key, str] = {}
        images = {name: image_values(image) for name, image in world.images.items()}
        parts += [part_of(self.spec, Kind.DISK, *image) for image in images.items()]
        for name in world.networks:
            values = network_values(self.spec, world, name)
            if values.subnet:
                parts.append(part_of(self.spec, Kind.NETWORK, name, values))
            else:
                # Without a subnet nothing is in it.
                broken.add(Key(Kind.NETWORK, name))
        if world.routers:
            router = router_values(self.spec, world, self._catalog)
            parts.append(part_of(self.spec, Kind.NETWORK, ROUTER, router))
        for name, groups in world.groups.items():
            parts.append(part_of(self.spec, Kind.HOST, name, group_values(groups[0])))
        self._lacking = self._guests.lacking(world) if self._guests is not None else {}
        for name, server in world.servers.items():
            server_now = server_values(self.spec, world, self._catalog, name)
            item = part_of(self.spec, Kind.NODE, name, server_now)
            if never_ran(server):
                broken.add(item.key)
                continue
            parts.append(item)
            if server.status == "ERROR":
                halted[item.key] = "Nova reports ERROR for it"
            elif reason := why_unfinished(server) or self._lacking.get(name, ""):
                unfinished[item.key] = reason
        # What an interruption left of nodes that the spec has no longer; others use it again.
        broken |= {Key(Kind.NODE, name) for name in world.left - self._desired_nodes()}
        there = tuple(self._with_ground(part) for part in parts)
        return Observed(
            there, frozenset(broken), tuple(self._notes()), unfinished, halted, self._advice()
        )

    def _wanted_images(self) -> set[str]:
        """Return the images that are whole, and those of the files that `facts` has read.

        A removal reads no file.
        """
        known = (file for file in self._files.values() if "sha256" in vars(file))
        return {*self._world.images, *map(self._name_of, known)}

    def _notes(self) -> Iterator[str]:
        """Say what no plan repairs."""
        for name, server in self._world.servers.items():
            if server.status not in {*RUNS, *OFF, *BUSY, "ERROR"}:
                yield f"node {name} is in state {server.status}, which only you can end"
        for server in self._world.extra:
            yield f"server {server.name} ({server.id}) is a second one of its node: `down` removes it"

    def _rights(self) -> Iterator[str]:
        """Say which rights the log-in may lack, by the usual policies: no request shows a cloud's."""
        roles = self._session.roles
        if not roles:
            return
        if roles == {"reader"}:
            yield "the log-in has only the role reader, which may change nothing: `up` needs member"
            return
        fresh = (one for one in self.spec.made if one.name not in self._world.networks)
        names = [one.name for one in fresh if one.physical is not None]
        if names and "admin" not in roles:
            yield (
                f"network {some(names)}: usually only the role admin may set physical, and the log-in "
                f"has {printable(some(sorted(roles - {'reader'})))}"
            )

    def _advice(self) -> tuple[str, ...]:
        """Say which rights the log-in may lack, and which nodes share no memory."""
        unshared = () if self._guests is None else self._shared.notes(self._unshared)
        return (*self._rights(), *unshared)

    def _desired_nodes(self) -> set[str]:
        return {node.name for _, node in self.spec.nodes}

    def _with_ground(self, item: Resource) -> Resource:
        """Return a resource that needs also what the cluster has and the spec may have no longer."""
        world, more = self._world, set[Key]()
        if item.key.kind is Kind.NODE and world.routers:
            more.add(Key(Kind.NETWORK, ROUTER))
        if item.key.kind is Kind.NODE or item.key == Key(Kind.NETWORK, ROUTER):
            more |= {Key(Kind.NETWORK, name) for name in world.networks}
        return replace(item, needs=(*item.needs, *sorted(more - {*item.needs}, key=str)))

    def check(self, plan: Plan) -> None:
        """Look up names, quotas and virtual functions; see Backend."""
        if not plan.coming:
            return
        self._refuse_other_record()
        for change in plan.coming:
            if change.key.kind is Kind.DISK:
                self._file_of(change.key.name).check()
        needs = needs_of(self.spec, plan, self._world, self._catalog)
        quotas = quotas_of(self._session) if needs else {}
        found = [
            *self._deactivated(plan),
            *missing(self.spec, plan, self._catalog, self._files),
            *shortages(self.spec, needs, quotas),
        ]
        refuse(self.name, found, "correct the spec, or change the cloud; then repeat the command")

    def _deactivated(self, plan: Plan) -> Iterator[Finding]:
        for change in plan.coming:
            values, name = change.item.values, change.key.name
            if isinstance(values, Server) and not change.in_place:
                image = self._world.images.get(values.image)
                if image is not None and image.status != "active":
                    why, hint = f"its status is {image.status}", "ask an administrator of the cloud"
                    yield Finding((), f"image {image.id}", why, hint, (name,))

    def _refuse_other_record(self) -> None:
        """Refuse a cluster whose name another record has in this project."""
        mark = read_mark(self._directory)
        if mark is not None:
            return
        with self._session.asking("reading the servers"):
            servers = [
                checked("server", one) for one in self._session.sdk.compute.servers(details=True)
            ]
        for server in servers:
            metadata = server.metadata or {}
            if metadata.get(MARK) and metadata.get(CLUSTER) == self.name:
                raise BackendError(
                    f"cluster {self.name}: the project has a cluster of this name that is not in "
                    f"this state directory, for example its server {server.id}",
                    "choose another name, or use the state directory where it was made",
                )

    # Changes

    def create(self, item: Resource, spec: ClusterSpec) -> None:
        """Make one resource; servers run when `finish` has waited for them."""
        del spec
        key, work, values = item.key, self._work(), item.values
        if key.kind is Kind.NETWORK and isinstance(values, Router):
            work.settle_router(values)
        elif key.kind is Kind.NETWORK:
            work.make_network(next(n for n in self.spec.made if n.name == key.name))
        elif isinstance(values, UploadedImage):
            work.make_image(key.name, self._file_of(key.name))
        elif isinstance(values, ServerGroup):
            work.make_group(key.name, values.policy)
        elif isinstance(values, Server):
            before = self._members.get(values.group or "")
            if before is not None:
                work.wait_for({before: self._begun[before]})
            server = work.make_server(key.name, values)
            self._begun[server] = key.name
            if values.group is not None:
                self._members[values.group] = server

    def change(self, item: Resource, spec: ClusterSpec) -> None:
        """Change a router or a server in place."""
        values = item.values
        if isinstance(values, Server):
            server = self._work().change_server(item.key.name, values)
            self._begun[server] = item.key.name
        else:
            self.create(item, spec)

    def delete(self, key: Key) -> None:
        """Remove one resource, or all of them with the record."""
        if key.kind is Kind.CLUSTER:
            mark = self._known_mark()
            if self._guests is not None:
                self._guests.close()
            if mark is not None:
                self._world = self._read(mark)
                self._work().remove_all()
            # An interrupted removal leaves no spec without a mark, which would be damage.
            (self._directory / SPEC).unlink(missing_ok=True)
            self._forget()
        elif key == Key(Kind.NETWORK, ROUTER):
            self._work().remove_router()
        elif key.kind is Kind.NETWORK:
            self._work().remove_network(key.name)
        elif key.kind is Kind.DISK:
            self._work().remove_image(key.name)
        elif key.kind is Kind.HOST:
            self._work().remove_group(key.name)
        elif key.kind is Kind.NODE:
            if self._guests is not None:
                self._guests.forget(key.name)
            self._work().remove_server(key.name)

    def _forget(self) -> None:
        """Remove the records. A process that is killed may have removed some of them."""
        shutil.rmtree(self._directory, ignore_errors=True)

    def finish(self) -> None:
        """Wait until all servers that were made or started run, and until jobs can enter them."""
        if self._begun:
            self._work().wait_for(self._begun)
        if self._guests is not None:
            self._guests.make_nodes(lambda: self._read(self._mark()))
            self._unshared = self._guests.without_segment(self._shared.nodes)

    # State

    def status(self) -> list[NodeStatus]:
        """Return every node of the spec."""
        self.observe()
        return [self._status(host.name, node) for host, node in self.spec.nodes]

    def _status(self, host: str, node: CloudNode) -> NodeStatus:
        server = self._world.servers.get(node.name)
        if server is None:
            health = "not there"
        elif server.status in RUNS:
            health = self._lacking.get(node.name, "running")
        else:
            health = str(server.status).lower()
        return NodeStatus(
            name=node.name,
            host=host,
            hostname=node.name,
            address=self._address(node),
            slots=node.slots,
            cpus=(),
            shm="",
            pid=0,
            uptime_s=0.0,
            healthy=health == "running",
            health=health,
            own_cpus=number((server.flavor or {}).get("vcpus")) if server is not None else 0,
        )

    def _address(self, node: CloudNode) -> str:
        """Return the floating address of a node, else that of its first port."""
        if floating := floating_of(self._world, node.name):
            return floating
        port = self._world.ports.get((node.name, self.spec.networks[0].name))
        addresses = [str(one["ip_address"]) for one in (port.fixed_ips if port else None) or ()]
        return addresses[0] if addresses else ""

    def incarnations(self) -> Mapping[str, str]:
        """Return the ID of each server, with the start of one that keeps nothing."""
        self.observe()
        found = {node: str(server.id) for node, server in self._world.servers.items()}
        if self._guests is None:
            return found
        return {node: self._guests.incarnation(node, server) for node, server in found.items()}

    def nodes(self) -> Nodes:
        """Return the nodes; raises BackendError if the spec does not let jobs enter them."""
        if self._guests is None:
            raise BackendError(
                f"cluster {self.name}: its spec does not let jobs enter the servers",
                "add `ssh: {}` and run `nearmetal up --replace`; nearmetal-spec(5), OPENSTACK, "
                "`ssh`, has the needs of the image",
            )
        return self._guests.nodes()


def open_backend(spec: OpenstackSpec, store: Store, runner: Runner) -> OpenstackBackend:
    """Return the backend of a spec's cluster; nothing is touched yet."""
    return OpenstackBackend(spec, store, runner)
