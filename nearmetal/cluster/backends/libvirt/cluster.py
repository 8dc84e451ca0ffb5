# SPDX-License-Identifier: Apache-2.0
"""A cluster of virtual machines on the hypervisors that its spec names.

    this machine                         a hypervisor (this machine too, or one that ssh reaches)
    └── state directory, 0700            ├── network nearmetal.CLUSTER.network, where we make one
        identity, spec, journal, keys    ├── segment file, 0600, created before the first node
        records of what was begun        ├── directory: seeds (0600), consoles, overlays
                                         └── domain nearmetal.CLUSTER.NODE, transient

What exists is asked of libvirt and of the hosts; the records only say where to look. A domain
carries its cluster's identity: one of our name with another identity is somebody else's.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from nearmetal.cluster.backend import NodeStatus
from nearmetal.cluster.backends.libvirt import boot, build, hosts, probe
from nearmetal.cluster.backends.libvirt.build import JOBS, Site, domain_name
from nearmetal.cluster.backends.libvirt.hypervisor import About, Found, Hypervisor
from nearmetal.cluster.backends.libvirt.keys import KeyRing
from nearmetal.cluster.backends.libvirt.nodes import AGENT, Nodes
from nearmetal.cluster.backends.libvirt.plan import (
    MADE,
    Placed,
    VirtualDisk,
    VirtualHost,
    VirtualNetwork,
    VirtualNode,
    part_of,
)
from nearmetal.cluster.backends.libvirt.records import Notes, Record, Records
from nearmetal.cluster.backends.libvirt.shell import HostShell, owner_of_files
from nearmetal.cluster.backends.libvirt.spec import LibvirtSpec
from nearmetal.cluster.backends.libvirt.vfs import NodeVfs, seed_interface
from nearmetal.cluster.model import addresses
from nearmetal.cluster.resource import Facts, HostFacts, Key, Kind, Observed, Resource, in_order
from nearmetal.core.errors import BackendError, NearmetalError
from nearmetal.image import cache_directory
from nearmetal.image.seed import GUEST_USER, SeedInterface

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from nearmetal.cluster.backends.libvirt.images import Images
    from nearmetal.cluster.spec import ClusterSpec
    from nearmetal.cluster.store import Store
    from nearmetal.core.process import Command, Runner
    from nearmetal.host.vf import GrantedVf, VfHost

BOOT_S = 1800.0
"""Ends a boot that hangs in silence. One that fails says so or ends; a slow one is waited for."""


class LibvirtBackend:
    """Implements Backend; see there for the contracts."""

    shares_files = False

    def __init__(
        self,
        spec: LibvirtSpec,
        store: Store,
        runner: Runner,
        images: Images,
        *,
        boot_s: float = BOOT_S,
        vfs: VfHost | None = None,
    ) -> None:
        """Remember what it is about; nothing is touched yet."""
        self.spec = spec
        self.name = spec.name
        self._store = store
        self._directory = store.cluster(spec.name)
        self._runner = runner
        self._images = images
        self._boot_s = boot_s
        self._records = Records(self._directory)
        self._keys = KeyRing(self._directory / "keys", runner)
        self._vfs = NodeVfs(spec.name, self._directory, vfs)
        self._links: dict[str, Hypervisor] = {}
        self._about: dict[str, About] = {}
        self._held: dict[str, str] | None = None

    # The hosts

    def _link(self, uri: str) -> Hypervisor:
        if uri not in self._links:
            self._links[uri] = Hypervisor(uri)
        return self._links[uri]

    def _ask(self, uri: str) -> About:
        if uri not in self._about:
            self._about[uri] = self._link(uri).about()
        return self._about[uri]

    def _shell(self, host: str, uri: str) -> HostShell:
        return HostShell(host, uri, self._runner)

    def _place(self, host: str) -> str:
        """Return where our files lie on a host of the spec."""
        found = next(h for h in self.spec.hosts if h.name == host)
        if found.directory != "auto":
            return found.directory
        if self._shell(host, found.uri).remote:
            return f"/var/lib/nearmetal/guests/{self.name}/{host}"
        return str(self._directory / "hosts" / host)

    def _uris(self) -> list[str]:
        """Return every hypervisor that has, or should have, something of the cluster."""
        values = (record.item.values for record in self._records.all())
        recorded = (found.uri for found in values if isinstance(found, Placed))
        return list(dict.fromkeys([*self.spec.uris, *recorded]))

    # What there is

    def prepare(self) -> None:
        """Build the image, or find it."""
        self._images.ensure()
        uris = self.spec.uris if self.spec.accel != "tcg" else ()
        if any(self._ask(uri).offers_kvm for uri in uris):
            # Only a boot tells whether KVM works, whatever the nodes boot.
            self._images.prober.ensure()

    def facts(self) -> Facts:
        """Ask every hypervisor of the spec; a probe boot tells whether KVM works there."""
        found = {}
        for host in self.spec.hosts:
            about, shell = self._ask(host.uri), self._shell(host.name, host.uri)
            place = self._place(host.name)
            ask = probe.Probe(self._link(host.uri), shell, about, cache_directory() / "probes.json")
            kvm, reason = False, "the spec asks for TCG"
            if self.spec.accel != "tcg":
                kvm, reason = ask.kvm(self._images.prober)
            found[host.name] = HostFacts(
                uri=host.uri,
                libvirt=about.libvirt,
                qemu=about.qemu,
                emulator=about.emulator,
                devices=ask.devices(),
                kvm=kvm,
                kvm_reason=reason,
                numa=about.numa,
                cpu_vendor=about.cpu_vendor,
                directory=place,
                vfs=self._vfs.survey(host, len(about.numa), remote=bool(shell.remote)),
            )
        return Facts((), found, self._images.digest())

    def observe(self) -> Observed:
        """Ask libvirt for domains and networks of ours, and the hosts for their files."""
        identity = self._records.identity()
        cluster = Key(Kind.CLUSTER, self.name)
        if identity is None:
            return Observed(broken=frozenset({cluster} if self._directory.exists() else ()))
        sound: list[Resource] = []
        broken: set[Key] = set()
        for record in self._records.all():
            if record.item.key.kind is not Kind.NODE and self._is_sound(record):
                sound.append(part_of(self.spec, record.item.key, record.item.values))
            elif record.item.key.kind is not Kind.NODE:
                broken.add(record.item.key)
        for uri in self._uris():
            for domain in self._ours(self._link(uri).domains(), identity):
                assert domain.owner is not None  # noqa: S101 - _ours looked
                key = Key(Kind.NODE, domain.owner.name)
                values = VirtualNode.read(dict(domain.owner.attributes))
                sound.append(part_of(self.spec, key, values))
                if not (domain.owner.ready and domain.running):
                    broken.add(key)
        there = {item.key for item in sound}
        if cluster not in there:
            broken.add(cluster)
        dead = {r.item.key for r in self._records.all()} - there
        observed = Observed(tuple(sound), frozenset(broken | dead))
        nodes = observed.named(VirtualNode)
        self._held = {name: node.address for name, node in nodes.items()}
        return observed

    def _places(self) -> dict[str, str]:
        """Return every node's address, as planned: from what was last observed, before any step."""
        if self._held is None:
            self.observe()
        return addresses(self.spec, self._held)[1]

    def _ours(self, found: Sequence[Found], identity: str) -> list[Found]:
        return [
            f
            for f in found
            if f.owner is not None and (f.owner.cluster, f.owner.identity) == (self.name, identity)
        ]

    def _is_sound(self, record: Record) -> bool:
        item = record.item
        if item.key.kind is Kind.CLUSTER:
            return True
        if item.key.kind is Kind.NETWORK:
            network = item.of(VirtualNetwork)
            if network.bridge != MADE:
                return True
            name = domain_name(self.name, "network")
            found = self._link(network.uri).networks()
            return any(n.name == name and n.running for n in found)
        if item.key.kind is Kind.HOST:
            shell = self._shell(item.key.name, item.of(VirtualHost).uri)
            return hosts.is_sound(shell, record)
        disk = item.of(VirtualDisk)
        return self._shell(disk.host, disk.uri).size(record.notes.path) is not None

    def status(self) -> list[NodeStatus]:
        """One entry per node that was begun."""
        observed = self.observe()
        running = {item.key for item in observed.resources}
        entries = []
        for record in self._records.all():
            if record.item.key.kind is Kind.NODE:
                key = record.item.key
                health = "running"
                if key not in running:
                    health = "its domain is gone: run `nearmetal up` again"
                elif key in observed.broken:
                    health = "it never became ready: run `nearmetal up` again"
                entries.append(self._status_of(record, health))
        return entries

    def _status_of(self, record: Record, health: str) -> NodeStatus:
        name, node = record.item.key.name, record.item.of(VirtualNode)
        started = record.notes.started or time.time()
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
            uptime_s=max(0.0, time.time() - started) if healthy else 0.0,
            healthy=healthy,
            health=health,
        )

    # Making

    def create(self, item: Resource, spec: object) -> None:
        """Make one resource. A node is only started: `finish` waits for it."""
        if not isinstance(spec, LibvirtSpec):
            raise BackendError(f"cluster {self.name}: no spec of the libvirt backend")
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
            hint = "a full disk, or a missing permission?"
            raise BackendError(f"{item.key} of cluster {self.name}: {error}", hint) from error

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
        """Let QEMU's user pass (not read) our directories, where it is another one than ours."""
        for host in self.spec.hosts:
            label = self._ask(host.uri).label
            if self._shell(host.name, host.uri).remote or host.directory != "auto":
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
        """Make what nodes of this machine may read, out of reach of all but QEMU's user and them."""
        self._share.parent.mkdir(mode=0o700, exist_ok=True)
        self._share.mkdir(mode=0o755, exist_ok=True)
        self._share.chmod(0o755)
        if owner:
            self._let_pass()
            os.chown(self._share.parent, -1, int(owner.partition(":")[2]))
            self._share.parent.chmod(0o750)

    def _create_network(self, item: Resource) -> None:
        network = item.of(VirtualNetwork)
        link, name = self._link(network.uri), domain_name(self.name, "network")
        self._records.write(item)
        if network.bridge == MADE:
            self._claim(link, link.networks(), name, "network")
            link.end_network(name)
            link.start_network(name, build.made_network(self.spec, self._identity(), item).xml())

    def _claim(self, link: Hypervisor, found: Sequence[Found], name: str, what: str) -> None:
        """Refuse a name that somebody else uses there."""
        ours = {f.name for f in self._ours(found, self._identity())}
        if name in {f.name for f in found} - ours:
            kill = "net-destroy" if what == "network" else "destroy"
            msg = f"{link.uri} has a {what} {name} that is not of this cluster"
            hint = (
                "choose another `name:`; or, if it is a leftover whose state directory is lost: "
                f"virsh -c {link.uri} {kill} {name}"
            )
            raise BackendError(msg, hint)

    def _create_host(self, item: Resource) -> None:
        host = item.of(VirtualHost)
        shell = self._shell(item.key.name, host.uri)
        path = hosts.segment_path(item, self.name, self._identity())
        self._records.write(item, Notes(segment=path))
        owner = owner_of_files(self._ask(host.uri).label)
        self._records.write(item, hosts.create(shell, host, path, owner))

    def _create_disk(self, item: Resource) -> None:
        disk = item.of(VirtualDisk)
        path = f"{self._place(disk.host)}/{item.key.name}.qcow2"
        self._records.write(item, Notes(path=path))
        shell = self._shell(disk.host, disk.uri)
        self._images.overlay(shell, path, owner_of_files(self._ask(disk.uri).label))

    def _site(self, host: str, uri: str) -> Site:
        """Return what the machines of a host share, with the segment as it is there."""
        about = self._ask(uri)
        record = self._records.read(Key(Kind.HOST, host))
        if record is None:
            raise BackendError(f"host {host} of cluster {self.name} is not prepared")
        segment, layout = record.notes.segment, None
        if segment:
            layout = hosts.layout(self._shell(host, uri), record)
        return Site(
            self._place(host),
            about.emulator,
            about.label,
            about.numa,
            segment,
            layout,
            about.distances,
            str(self._share),
        )

    def _seed(self, item: Resource, site: Site, vf: SeedInterface | None) -> str:
        """Return a node's seed. `vf`: what it is told of its VF, as it was recorded."""
        names = [node.name for _, node in self.spec.nodes]
        node_key = self._keys.pair("node")
        keys = build.NodeKeys(
            public={name: self._keys.pair(f"host.{name}").public for name in names},
            client=self._keys.pair("client").public,
            node_key_public=node_key.public,
            host_key=self._keys.pair(f"host.{item.key.name}").private,
            node_key=node_key.private,
        )
        return build.seed_of(
            self.spec, item, keys, site, places=self._places(), vf=vf
        ).secret_json()

    def _take_vf(self, item: Resource, shell: HostShell, owner: str) -> GrantedVf | None:
        """Return the VF that a node asks for, open to QEMU's user."""
        node = next(node for _, node in self.spec.nodes if node.name == item.key.name)
        if node.vf is None:
            return None
        granted = self._vfs.take(node.name, node.vf, frozenset(item.of(VirtualNode).numa))
        if owner:
            path = f"/dev/vfio/{granted.group}"
            shell.check(f"cannot give away {path}", ["chown", "--", owner, path])
        return granted

    def _create_node(self, item: Resource) -> None:
        name, node = item.key.name, item.of(VirtualNode)
        link, shell = self._link(node.uri), self._shell(node.host, node.uri)
        domain = domain_name(self.name, name)
        self._claim(link, link.domains(), domain, "domain")
        link.end(domain)
        site = self._site(node.host, node.uri)
        owner = owner_of_files(site.label)
        self._records.write(item)
        granted = self._take_vf(item, shell, owner)
        vf = None if granted is None else seed_interface(granted)
        seed = self._seed(item, site, vf)
        self._records.write(item, Notes(started=time.time(), seed=boot.digest(seed), vf=vf))
        shell.prepare(site.directory, owner)
        shell.write(site.file(f"{name}.seed"), seed.encode(), owner)
        shell.write(site.file(f"{name}.console"), b"", owner)
        if node.files == "9p":
            self._make_share(owner)
        if self.spec.image != "default":
            # A boot that was cut short may have left half of a node on its disk.
            self._images.overlay(shell, site.file(f"{name}.qcow2"), owner)
            self._images.disc(shell, site.file(f"{name}.iso"), seed, owner)
        start = self._images.boot(shell)
        address = "" if granted is None else granted.address
        machine = build.machine(self.spec, self._identity(), item, site, start, vf=address)
        link.start(domain, machine.xml())

    def finish(self) -> None:
        """Wait for every node that was started; tell the others of them."""
        self._write_known_hosts()
        nodes = self._nodes()
        records = [r for r in self._records.all() if r.item.key.kind is Kind.NODE]
        waiting = []
        for record in records:
            name, node = record.item.key.name, record.item.of(VirtualNode)
            site, link = self._site(node.host, node.uri), self._link(node.uri)
            domain = domain_name(self.name, name)
            found = {f.name: f for f in link.domains()}.get(domain)
            if found is None or found.owner is None:
                raise BackendError(f"node {name}: its domain is gone", "run `nearmetal up` again")
            if found.owner.ready:
                self._tell(record, site, nodes)
            else:
                shell, console = self._shell(node.host, node.uri), site.file(f"{name}.console")
                waiting.append(boot.Waiting(name, domain, console, link, shell, self._images.needs))
        items = {record.item.key.name: record.item for record in records}
        for together in boot.wait(waiting, self._boot_s):
            nodes.outfit([ready.node for ready in together])
            for ready in together:
                owner = build.owner_of(self.spec, self._identity(), items[ready.node], ready=True)
                ready.link.mark(ready.domain, owner)

    def _tell(self, record: Record, site: Site, nodes: Nodes) -> None:
        """Give a running node the new list of nodes, where it has changed."""
        seed = self._seed(record.item, site, record.notes.vf)
        if record.notes.seed != boot.digest(seed):
            nodes.check(
                record.item.key.name,
                "cannot be told of the cluster's other nodes",
                ["nearmetal-guest", "update"],
                seed.encode(),
            )
            notes = record.notes.model_copy(update={"seed": boot.digest(seed)})
            self._records.write(record.item, notes)

    def _write_known_hosts(self) -> None:
        lines = [
            f"{node.name} {' '.join(self._keys.pair(f'host.{node.name}').public.split()[:2])}\n"
            for _, node in self.spec.nodes
        ]
        path = self._nodes().known_hosts
        path.write_text("".join(lines), encoding="ascii")
        path.chmod(0o600)

    # Removing

    def change(self, item: Resource, spec: ClusterSpec) -> None:
        """Make it anew: nothing here changes in place."""
        self.delete(item.key)
        self.create(item, spec)

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
            hosts.delete(self._shell(key.name, item.of(VirtualHost).uri), record)
        elif key.kind is Kind.DISK:
            disk = item.of(VirtualDisk)
            shell = self._shell(disk.host, disk.uri)
            shell.remove([record.notes.path] if record.notes.path else [])
        self._records.forget(key)

    def _delete_network(self, network: VirtualNetwork) -> None:
        if network.bridge != MADE:
            return
        link, name = self._link(network.uri), domain_name(self.name, "network")
        if name in {f.name for f in self._ours(link.networks(), self._identity())}:
            link.end_network(name)

    def _delete_node(self, record: Record) -> None:
        name, node = record.item.key.name, record.item.of(VirtualNode)
        link, domain = self._link(node.uri), domain_name(self.name, name)
        if domain in {f.name for f in self._ours(link.domains(), self._identity())}:
            link.end(domain)
        if node.vf is not None:
            self._vfs.give_back(name)
        host = self._records.read(Key(Kind.HOST, node.host))
        if host is not None:
            place = host.item.of(VirtualHost).directory
            files = [f"{place}/{name}.{kind}" for kind in ("seed", "console", "iso")]
            self._shell(node.host, node.uri).remove(files)
        with contextlib.suppress(NearmetalError):
            self._nodes().close()

    def _delete_cluster(self) -> None:
        identity = self._records.identity()
        if identity is not None:
            with contextlib.suppress(NearmetalError):
                self._nodes().close()
            items = (r.item for r in self._records.all())
            for item in reversed(in_order(part_of(self.spec, i.key, i.values) for i in items)):
                if item.key.kind is not Kind.CLUSTER:
                    self.delete(item.key)
            for uri in self._uris():
                # Whatever carries our identity without a record of it.
                for domain in self._ours(self._link(uri).domains(), identity):
                    self._link(uri).end(domain.name)
        shutil.rmtree(self._directory, ignore_errors=True)

    # Reaching in

    def _nodes(self) -> Nodes:
        places = self._places()
        where = {node.name: (places[node.name], host.uri) for host, node in self.spec.nodes}
        return Nodes(self._directory, where, self._runner)

    @cached_property
    def _first(self) -> str:
        return self.spec.nodes[0][1].name

    def on_node(
        self,
        node: str,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        workdir: Path | None = None,
        root: bool = False,
    ) -> Command:
        """By ssh, as the user of the cluster unless `root`."""
        user = "root" if root else GUEST_USER
        return self._nodes().command(node, argv, env=env, workdir=workdir, user=user)

    def on_launcher(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        workdir: Path | None = None,
    ) -> Command:
        """In the first node: launchers run where a person would log in."""
        return self.on_node(self._first, argv, env=env, workdir=workdir)

    def remote_shell(self) -> str:
        """The agent lies at the same path in every node."""
        return AGENT

    def job_root(self) -> Path:
        """In memory; root makes jobs' directories there, for the cluster's user."""
        return Path(JOBS)

    def staged(self, node: str) -> Path | None:
        """Return what machines of this host read, and nobody else does."""
        record = self._records.read(Key(Kind.NODE, node))
        shared = record is not None and record.item.of(VirtualNode).files == "9p"
        return self._share if shared else None

    def meeting_directory(self, host: str) -> Path:
        """There is none: nodes are machines of their own."""
        raise BackendError(
            f"host {host}: virtual machines share no directory",
            "this verb works on local clusters only",
        )

    def end_marked(self, marker: str) -> int:
        """Sweep every node that the cluster should have."""
        return self._nodes().sweep(marker)
