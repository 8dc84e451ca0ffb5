# SPDX-License-Identifier: Apache-2.0
"""A cluster of virtual machines on the hypervisors that its spec names.

    this machine                         a hypervisor (this machine too, or one that ssh reaches)
    └── state directory, 0700            ├── network nearmetal.CLUSTER.network, where we make one
        identity, spec, journal, keys    ├── segment file, 0600, created before the first node
        records of what was begun        ├── directory: seeds (0600), consoles, overlays
                                         └── domain nearmetal.CLUSTER.NODE, transient

libvirt and the hosts show what exists; the records only say where to look. A domain carries its
cluster's identity. A domain with our name and another identity is not ours.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from nearmetal.cluster.backend import NodeStatus
from nearmetal.cluster.backends.libvirt import build, hosts
from nearmetal.cluster.backends.libvirt.build import Site, domain_name
from nearmetal.cluster.backends.libvirt.choices import placed
from nearmetal.cluster.backends.libvirt.efi import Firmware
from nearmetal.cluster.backends.libvirt.hosts import HostShell, ssh_login
from nearmetal.cluster.backends.libvirt.hypervisor import Hypervisor, OwnedObject
from nearmetal.cluster.backends.libvirt.images import BuiltImages, CloudImages
from nearmetal.cluster.backends.libvirt.mover import LibvirtMoves, MoveParts, files_of
from nearmetal.cluster.backends.libvirt.nodes import Waiting, digest, wait
from nearmetal.cluster.backends.libvirt.probe import Hypervisors
from nearmetal.cluster.backends.libvirt.records import RecordNotes, Records, ResourceRecord
from nearmetal.cluster.backends.libvirt.spec import LibvirtSpec
from nearmetal.cluster.backends.libvirt.values import (
    MADE,
    Placed,
    VirtualDisk,
    VirtualHost,
    VirtualNetwork,
    VirtualNode,
    part_of,
)
from nearmetal.cluster.backends.libvirt.vfs import NodeVfs, seed_interface, vfs_of
from nearmetal.cluster.diff import Plan
from nearmetal.cluster.keys import KeyRing, known_hosts
from nearmetal.cluster.model import addresses
from nearmetal.cluster.move.record import MoveRecords
from nearmetal.cluster.move.site import MoveOptions
from nearmetal.cluster.resource import Facts, Key, Kind, Observed, Resource, in_order
from nearmetal.cluster.ssh_nodes import Nodes, SshBackend
from nearmetal.cluster.store import Store
from nearmetal.core.errors import BackendError, NearmetalError, StateError
from nearmetal.core.files import replace_file
from nearmetal.core.process import Runner
from nearmetal.host.vf import GrantedVf, VfHost
from nearmetal.image.seed import SeedInterface

BOOT_S = 1800.0
"""Limit of a silent boot. A boot that fails says so or ends, and a slow one may take this long."""


class LibvirtBackend(SshBackend):
    """Implements Backend; see there for the contracts."""

    spec: LibvirtSpec
    interface = "eth0"

    def __init__(
        self,
        spec: LibvirtSpec,
        store: Store,
        runner: Runner,
        images: BuiltImages | CloudImages,
        *,
        boot_s: float = BOOT_S,
        vfs: VfHost | None = None,
    ) -> None:
        self.spec = spec
        self.name = spec.name
        self._store = store
        self._directory = store.cluster(spec.name)
        self._runner = runner
        self._images = images
        self._cloud = images if isinstance(images, CloudImages) else None
        self._built = images.built if isinstance(images, CloudImages) else images
        self._boot_s = boot_s
        self._records = Records(self._directory)
        self._keys = KeyRing(self._directory / "keys", runner)
        self._vfs_here = vfs
        self._hosts = Hypervisors(spec, self._directory, runner)
        self._network = domain_name(spec.name, "network")
        self._held: dict[str, str] | None = None

    def _domain(self, node: str) -> str:
        return domain_name(self.name, node)

    # Observing

    def prepare(self) -> None:
        """Build the image, or find it."""
        self._images.ensure()
        if self._hosts.offer_kvm():
            # Only a boot of the built image shows whether KVM works, for nodes of any image.
            self._built.ensure()

    def facts(self) -> Facts:
        """Return the facts of every hypervisor of the spec."""
        hosts = self._hosts.facts(self._built, self._placed(), self._vfs_at)
        return Facts((), hosts, self._images.digest())

    def _vfs_at(self, host: str, uri: str) -> NodeVfs:
        shell, record = self._hosts.shell(host, uri), self._records.read(Key(Kind.HOST, host))
        # The spec may not have the host any more.
        place = record.item.of(VirtualHost).directory if record else self._hosts.place(host)
        return vfs_of(self.name, shell, self._directory, place, self._vfs_here)

    def observe(self) -> Observed:
        """Ask libvirt for our domains and networks, and the hosts for our files."""
        identity = self._records.identity()
        cluster = Key(Kind.CLUSTER, self.name)
        if identity is None:
            return Observed(broken=frozenset({cluster} if self._directory.exists() else ()))
        records = self._records.all()
        sound: list[Resource] = []
        broken: set[Key] = set()
        halted: dict[Key, str] = {}
        for record in records:
            item = record.item
            if item.key.kind is not Kind.NODE and self._is_sound(record):
                sound.append(part_of(self.spec, item.key, item.values))
            elif item.key.kind is not Kind.NODE:
                broken.add(item.key)
        for uri in self._uris(records):
            for domain in self._ours(self._hosts.link(uri).domains(), identity):
                key = Key(Kind.NODE, domain.owner.name)
                values = VirtualNode.read(dict(domain.owner.attributes))
                sound.append(part_of(self.spec, key, values))
                if domain.owner.ready and domain.halted:
                    halted[key] = domain.halted
                elif not (domain.owner.ready and domain.running):
                    broken.add(key)
        there = {item.key for item in sound}
        missing = {cluster, *(record.item.key for record in records)} - there
        observed = Observed(tuple(sound), frozenset(broken | missing), halted=halted)
        nodes = observed.named(VirtualNode)
        self._held = {name: node.address for name, node in nodes.items()}
        return observed

    def _uris(self, records: Sequence[ResourceRecord]) -> list[str]:
        """Return every hypervisor that has, or should have, resources of the cluster."""
        values = (record.item.values for record in records)
        recorded = (found.uri for found in values if isinstance(found, Placed))
        return list(dict.fromkeys([*self.spec.uris, *recorded]))

    def _places(self) -> dict[str, str]:
        """Return every node's address as planned, from the last observation before any step."""
        if self._held is None:
            self.observe()
        return addresses(self.spec, self._held)[1]

    def _ours(self, found: Sequence[OwnedObject], identity: str) -> list[OwnedObject]:
        return [f for f in found if (f.owner.cluster, f.owner.identity) == (self.name, identity)]

    def _is_sound(self, record: ResourceRecord) -> bool:
        item = record.item
        if item.key.kind is Kind.CLUSTER:
            return True
        if item.key.kind is Kind.NETWORK:
            network = item.of(VirtualNetwork)
            if network.bridge != MADE:
                return True
            found = self._hosts.link(network.uri).networks()
            return any(n.name == self._network and n.running for n in found)
        if item.key.kind is Kind.HOST:
            shell = self._hosts.shell(item.key.name, item.of(VirtualHost).uri)
            return hosts.is_sound(shell, record)
        disk = item.of(VirtualDisk)
        return self._hosts.shell(disk.host, disk.uri).size(record.notes.path) is not None

    def _placed(self, *more: Resource) -> LibvirtSpec:
        """Return the spec with the nodes that were moved on their hosts. `more`: newer than records."""
        items = (*(record.item for record in self._begun_nodes()), *more)
        nodes = ((item.key.name, item.values) for item in items)
        return placed(self.spec, {n: v for n, v in nodes if isinstance(v, VirtualNode)})

    def _begun_nodes(self) -> list[ResourceRecord]:
        return [r for r in self._records.all() if r.item.key.kind is Kind.NODE]

    def status(self) -> list[NodeStatus]:
        """Return one entry per node that was begun."""
        observed = self.observe()
        running = {item.key for item in observed.resources}
        entries = []
        for record in self._begun_nodes():
            key = record.item.key
            health = "running"
            if key not in running:
                health = "its domain is gone: run `nearmetal up` again"
            elif key in observed.halted:
                health = observed.halted[key]
            elif key in observed.broken:
                health = "it never became ready: run `nearmetal up` again"
            entries.append(self._status_of(record, health))
        return entries

    def _status_of(self, record: ResourceRecord, health: str) -> NodeStatus:
        name, node, now = record.item.key.name, record.item.of(VirtualNode), time.time()
        healthy = health == "running"
        return NodeStatus(
            name=name,
            host=node.host,
            hostname=name,
            address=node.address,
            slots=node.slots,
            cpus=node.cpus,
            shm="-",
            pid=0,
            uptime_s=max(0.0, now - (record.notes.started or now)) if healthy else 0.0,
            healthy=healthy,
            health=health,
        )

    # Making

    def create(self, item: Resource, spec: object) -> None:
        """Make one resource. A node is only started: `finish` waits for it."""
        if not isinstance(spec, LibvirtSpec):
            raise BackendError(f"cluster {self.name}: the spec is not of the libvirt backend")
        makers: dict[Kind, Callable[[Resource], None]] = {
            Kind.CLUSTER: self._create_cluster,
            Kind.NETWORK: self._create_network,
            Kind.HOST: self._create_host,
            Kind.DISK: self._create_disk,
            Kind.NODE: self._create_node,
        }
        try:
            makers[item.key.kind](item)
        except OSError as error:
            raise BackendError(
                f"{item.key} of cluster {self.name}: {error}",
                "check the free space and the permissions",
            ) from error

    def check(self, plan: Plan) -> None:
        """Refuse changes while a move of a node is not complete."""
        if plan.empty:
            return
        for move in MoveRecords(self._directory).all():
            raise BackendError(
                f"the move of node {move.node} from {move.source} to {move.target} is not complete",
                f"run `nearmetal migrate {self.name}`, which completes it",
            )

    def moves(self, options: MoveOptions) -> LibvirtMoves:
        """Return the site on which nodes move between the hypervisors of the spec."""
        parts = MoveParts(
            spec=self.spec,
            records=self._records,
            hosts=self._hosts,
            identity=self._identity,
            observe=self.observe,
            facts=self.facts,
            nodes=self.nodes,
            site=self._site,
            seed=self._seed,
            vfs=self._vfs_at,
            boot=self._images.boot,
            claim=lambda link, name: self._claim(link, link.domains(), name, "domain"),
        )
        return LibvirtMoves(parts, options)

    def _identity(self) -> str:
        identity = self._records.identity()
        if identity is None:
            raise BackendError(f"cluster {self.name} is not up", "run `nearmetal up SPEC` first")
        return identity

    def _create_cluster(self, item: Resource) -> None:
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._records.begin()
        self._open_up()
        for name in ("client", "node"):
            self._keys.pair(name)
        (self._directory / "m").mkdir(mode=0o700, exist_ok=True)
        self._store.record(self.spec)
        self._records.write(item)

    def _open_up(self) -> None:
        """Let QEMU's user pass (not read) our directories, if QEMU has another user than we."""
        for host in self.spec.hosts:
            label = self._hosts.about(host.uri).label
            if self._hosts.shell(host.name, host.uri).remote or host.directory != "auto":
                continue
            if label and label != f"+{os.geteuid()}:+{os.getegid()}":
                (self._directory / "hosts").mkdir(exist_ok=True)
                self._let_pass(self._directory / "hosts")
                return

    def _let_pass(self, *more: Path) -> None:
        for path in (self._store.root, self._store.root / "clusters", self._directory, *more):
            path.chmod(0o711)

    @property
    def _share(self) -> Path:
        return self._directory / "files" / "shared"

    def _make_share(self, owner: str) -> None:
        """Make the directory that nodes of this machine may read; only QEMU's user reaches it."""
        self._share.parent.mkdir(mode=0o700, exist_ok=True)
        self._share.mkdir(mode=0o755, exist_ok=True)
        self._share.chmod(0o755)
        if owner:
            self._let_pass()
            os.chown(self._share.parent, -1, int(owner.partition(":")[2]))
            self._share.parent.chmod(0o750)

    def _create_network(self, item: Resource) -> None:
        network = item.of(VirtualNetwork)
        self._records.write(item)
        if network.bridge == MADE:
            link = self._hosts.link(network.uri)
            self._claim(link, link.networks(), self._network, "network")
            link.end_network(self._network)
            document = build.made_network(self.spec, self._identity(), item)
            link.start_network(self._network, document)

    def _claim(self, link: Hypervisor, found: Sequence[OwnedObject], name: str, what: str) -> None:
        """Refuse a name that a domain or network of another owner has there."""
        ours = {f.name for f in self._ours(found, self._identity())}
        if name in {f.name for f in found} - ours:
            kill = "net-destroy" if what == "network" else "destroy"
            raise BackendError(
                f"{link.uri} has a {what} {name} that is not of this cluster",
                "choose another `name:`; or, if it is a leftover whose state directory is lost: "
                f"virsh -c {link.uri} {kill} {name}",
            )

    def _create_host(self, item: Resource) -> None:
        host = item.of(VirtualHost)
        shell = self._hosts.shell(item.key.name, host.uri)
        path = hosts.segment_path(item, self.name, self._identity())
        self._records.write(item, RecordNotes(segment=path))
        notes = hosts.create(shell, host, path, self._hosts.owner(host.uri))
        self._records.write(item, notes)

    def _images_of_disks(self) -> CloudImages:
        if self._cloud is None:
            raise BackendError(f"cluster {self.name}: nodes of the built image have no disk")
        return self._cloud

    def _create_disk(self, item: Resource) -> None:
        disk = item.of(VirtualDisk)
        path = f"{self._hosts.place(disk.host)}/{item.key.name}.qcow2"
        self._records.write(item, RecordNotes(path=path))
        shell = self._hosts.shell(disk.host, disk.uri)
        self._images_of_disks().overlay(shell, path, self._hosts.owner(disk.uri))

    def _site(self, host: str, uri: str) -> Site:
        """Return the files, QEMU and segment of a host, as they are there."""
        about = self._hosts.about(uri)
        record = self._records.read(Key(Kind.HOST, host))
        if record is None:
            raise BackendError(f"host {host} of cluster {self.name} is not prepared")
        segment, layout = record.notes.segment, None
        if segment:
            layout = hosts.layout(self._hosts.shell(host, uri), record)
        return Site(
            self._hosts.place(host),
            about.emulator,
            about.label,
            about.numa,
            segment,
            layout,
            about.distances,
            str(self._share),
        )

    def _seed(self, item: Resource, site: Site, vf: SeedInterface | None) -> str:
        """Return a node's seed. `vf`: the recorded interface of its VF."""
        seed = build.seed_of(
            self._placed(item),
            item,
            self._keys.seed_ssh(item.key.name),
            site,
            host_keys=self._host_keys(),
            places=self._places(),
            vf=vf,
        )
        return seed.secret_json()

    def _host_keys(self) -> dict[str, str]:
        return self._keys.host_keys(node.name for _, node in self.spec.nodes)

    def _take_vf(self, item: Resource, shell: HostShell, owner: str) -> GrantedVf | None:
        """Return the VF that a node asks for, which QEMU's user can open then."""
        node = item.of(VirtualNode)
        if node.vf is None:
            return None
        vfs = self._vfs_at(node.host, node.uri)
        granted = vfs.take(item.key.name, node.vf, frozenset(node.numa))
        shell.own(f"/dev/vfio/{granted.group}", owner)
        return granted

    def _create_node(self, item: Resource) -> None:
        name, node = item.key.name, item.of(VirtualNode)
        link, shell = self._hosts.link(node.uri), self._hosts.shell(node.host, node.uri)
        domain = self._domain(name)
        self._claim(link, link.domains(), domain, "domain")
        link.end(domain)
        site, owner = self._site(node.host, node.uri), self._hosts.owner(node.uri)
        if node.firmware:
            site = replace(site, firmware=self._firmware(node.host, node.uri))
        self._records.write(item)
        granted = self._take_vf(item, shell, owner)
        for file in self._vfs_at(node.host, node.uri).group_files(node.passthrough or ()):
            shell.own(file, owner)
        vf = None if granted is None else seed_interface(granted)
        seed = self._seed(item, site, vf)
        self._records.write(item, RecordNotes(started=time.time(), seed=digest(seed), vf=vf))
        shell.prepare(site.directory, owner)
        shell.write(site.file(f"{name}.seed"), seed.encode(), owner)
        shell.write(site.file(f"{name}.console"), b"", owner)
        if node.files == "9p":
            self._make_share(owner)
        if self._cloud is not None:
            # An interrupted boot may have left half of a node on its disk.
            self._cloud.overlay(shell, site.file(f"{name}.qcow2"), owner)
            self._cloud.disc(shell, site.file(f"{name}.iso"), seed, owner)
        if site.firmware is not None:
            hosts.copy(shell, site.firmware.variables, site.file(f"{name}.nvram"), owner)
        start = self._images.boot(shell, efi=bool(node.firmware))
        address = "" if granted is None else granted.address
        machine = build.machine(self.spec, self._identity(), item, site, start, vf=address)
        link.start(domain, machine.xml())

    def _firmware(self, host: str, uri: str) -> Firmware:
        found = self._hosts.firmware(host, uri)
        if found is None:
            raise BackendError(f"host {host}: its EFI firmware is gone", "install OVMF there again")
        return found

    def finish(self) -> None:
        """Wait for every node that was started, and update the others."""
        identity, nodes = self._identity(), self.nodes()
        replace_file(nodes.known_hosts, known_hosts(self._host_keys()), sync=False)
        waiting, items = [], {}
        for record in self._begun_nodes():
            name, node = record.item.key.name, record.item.of(VirtualNode)
            site, link = self._site(node.host, node.uri), self._hosts.link(node.uri)
            domain = self._domain(name)
            found = {f.name: f for f in self._ours(link.domains(), identity)}.get(domain)
            if found is None:
                raise BackendError(f"node {name}: its domain is gone", "run `nearmetal up` again")
            if found.owner.ready:
                self._update(record, site, nodes)
                continue
            shell, console = self._hosts.shell(node.host, node.uri), site.file(f"{name}.console")
            waiting.append(Waiting(name, domain, console, link, shell, self._images.needs))
            items[name] = record.item
        for together in wait(waiting, self._boot_s):
            nodes.outfit([ready.node for ready in together])
            for ready in together:
                owner = build.owner_of(self.spec, identity, items[ready.node], ready=True)
                ready.link.mark(ready.domain, owner)

    def _update(self, record: ResourceRecord, site: Site, nodes: Nodes) -> None:
        """Give a running node its new seed if the list of nodes has changed."""
        seed = self._seed(record.item, site, record.notes.vf)
        if record.notes.seed != digest(seed):
            nodes.check(
                record.item.key.name,
                "cannot update its list of nodes",
                ["nearmetal-guest", "update"],
                seed.encode(),
            )
            notes = record.notes.model_copy(update={"seed": digest(seed)})
            self._records.write(record.item, notes)

    # Removing

    def delete(self, key: Key) -> None:
        """Remove one resource and its record."""
        if key.kind is Kind.CLUSTER:
            self._delete_cluster()
            return
        record = self._records.read(key)
        if record is None:
            return
        item = record.item
        if key.kind is Kind.NODE:
            self._delete_node(record)
        elif key.kind is Kind.NETWORK:
            self._delete_network(item.of(VirtualNetwork))
        elif key.kind is Kind.HOST:
            hosts.delete(self._hosts.shell(key.name, item.of(VirtualHost).uri), record)
        elif key.kind is Kind.DISK:
            disk = item.of(VirtualDisk)
            shell = self._hosts.shell(disk.host, disk.uri)
            shell.remove([record.notes.path] if record.notes.path else [])
        self._records.forget(key)

    def _delete_network(self, network: VirtualNetwork) -> None:
        if network.bridge == MADE:
            link = self._hosts.link(network.uri)
            if self._network in {f.name for f in self._ours(link.networks(), self._identity())}:
                link.end_network(self._network)

    def _delete_node(self, record: ResourceRecord) -> None:
        name, node = record.item.key.name, record.item.of(VirtualNode)
        self._end_ours(self._hosts.link(node.uri), self._domain(name))
        if node.vf is not None:
            self._vfs_at(node.host, node.uri).give_back(name)
        if node.passthrough and self._hosts.owner(node.uri):
            shell = self._hosts.shell(node.host, node.uri)
            for file in self._vfs_at(node.host, node.uri).group_files(node.passthrough):
                shell.own(file, "0:0")
        host = self._records.read(Key(Kind.HOST, node.host))
        if host is not None:
            place = host.item.of(VirtualHost).directory
            self._hosts.shell(node.host, node.uri).remove(files_of(place, name))
        with contextlib.suppress(StateError):
            self._forget_moves(name, has_vf=node.vf is not None)
        with contextlib.suppress(NearmetalError):
            self.nodes().close()

    def _end_ours(self, link: Hypervisor, domain: str) -> None:
        if domain in {f.name for f in self._ours(link.domains(), self._identity())}:
            link.end(domain)

    def _forget_moves(self, node: str, *, has_vf: bool) -> None:
        """Remove what an interrupted move of a node has left."""
        records = MoveRecords(self._directory)
        sides = {at for m in records.all() if m.node == node for at in (m.source, m.target)}
        for host in self.spec.hosts:
            if host.name in sides:
                self._end_ours(self._hosts.link(host.uri), self._domain(node))
                if has_vf:
                    self._vfs_at(host.name, host.uri).give_back(node)
                files = files_of(self._hosts.place(host.name), node)
                self._hosts.shell(host.name, host.uri).remove(files)
        records.forget(node)

    def _delete_cluster(self) -> None:
        identity = self._records.identity()
        if identity is not None:
            with contextlib.suppress(NearmetalError):
                self.nodes().close()
            records = self._records.all()
            items = [part_of(self.spec, r.item.key, r.item.values) for r in records]
            for item in reversed(in_order(items)):
                if item.key.kind is not Kind.CLUSTER:
                    self.delete(item.key)
            # Domains with our identity may exist without a record.
            for link in map(self._hosts.link, self._uris(records)):
                for domain in self._ours(link.domains(), identity):
                    link.end(domain.name)
        shutil.rmtree(self._directory, ignore_errors=True)

    # Reaching in

    def nodes(self) -> Nodes:
        """Return the nodes; only the hypervisor's machine must reach the network."""
        places = self._places()
        where = {n.name: (places[n.name], ssh_login(host.uri)) for host, n in self._placed().nodes}
        return Nodes(self._directory, where, self._runner)

    def incarnations(self) -> Mapping[str, str]:
        """Return when each machine was started: it gets a new disk, or none, with its start."""
        nodes, ours = self._begun_nodes(), self._records.identity()
        return {r.item.key.name: f"{ours} {r.notes.started}" for r in nodes if r.notes.started}

    def staged(self, node: str) -> Path | None:
        """Return the directory that only machines of this host read."""
        record = self._records.read(Key(Kind.NODE, node))
        shared = record is not None and record.item.of(VirtualNode).files == "9p"
        return self._share if shared else None


def open_backend(spec: LibvirtSpec, store: Store, runner: Runner) -> LibvirtBackend:
    """Return the backend of a spec's cluster; nothing is touched yet."""
    built = BuiltImages(runner)
    efi = any(node.firmware == "efi" for _, node in spec.nodes)
    cloud = CloudImages(spec.image, runner, built, efi=efi)
    images = built if spec.image == "default" else cloud
    return LibvirtBackend(spec, store, runner, images)
