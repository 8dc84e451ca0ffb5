# SPDX-License-Identifier: Apache-2.0
"""Virtual functions of a host for the nodes of a cluster, on this machine or one that ssh reaches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pydantic import ValidationError

from nearmetal.cluster.backends.libvirt import passthrough
from nearmetal.cluster.backends.libvirt.hosts import HostShell
from nearmetal.cluster.backends.libvirt.spec import LibvirtHost
from nearmetal.cluster.backends.libvirt.values import VirtualNode
from nearmetal.cluster.move.checks import FabricNeed
from nearmetal.cluster.resource import Region
from nearmetal.config.explain import first_problem
from nearmetal.core.errors import BackendError, HostError, NearmetalError
from nearmetal.host.vf import GrantedVf, Owner, VfHost, VfOffer, Wish, this_machine
from nearmetal.host.vf.distant import LIMIT_S, DistantVfHost
from nearmetal.host.vf.facts import Sysfs
from nearmetal.host.vf.request import VfRequest
from nearmetal.image.seed import SeedInterface, SeedVf


@contextmanager
def _naming(node: str) -> Iterator[None]:
    """Turn each error into a BackendError that names the node."""
    try:
        yield
    except NearmetalError as error:
        raise BackendError(f"node {node}: {error.message}", error.hint) from error


class NodeVfs:
    """The virtual functions of one host that the nodes of one cluster have."""

    def __init__(self, cluster: str, directory: Path | str, host: VfHost | DistantVfHost) -> None:
        """`directory`: of the cluster on that host; without it a VF counts as leaked."""
        self._cluster = cluster
        self._directory = directory
        self._host = host

    @property
    def local(self) -> bool:
        """Whether the host is this machine."""
        return isinstance(self._host, VfHost)

    def owner(self, node: str) -> Owner:
        """Return the name of a node in the ledger."""
        state = str(self._directory)
        try:
            return Owner(kind="cluster", name=self._cluster, node=node, state=state)
        except ValidationError as error:
            raise BackendError(
                f"the ledger of VFs cannot name the directory {state}",
                "use one of at most 255 letters, digits and _.:@/+-",
            ) from error

    def offers(self, asked: Mapping[str, VfRequest]) -> dict[str, VfOffer]:
        """Return what the host offers each node, all of which are to be there together."""
        if not asked:
            return {}
        wishes = [Wish(self.owner(name), request) for name, request in asked.items()]
        return dict(zip(asked, self._host.offers(wishes), strict=True))

    def _offers(self, host: LibvirtHost) -> Iterator[tuple[str, VfRequest, VfOffer]]:
        asked = {node.name: node.vf for node in host.nodes if node.vf is not None}
        for name, offer in self.offers(asked).items():
            if offer.problem:
                where = "" if self.local else f"host {host.name}: "
                raise HostError(where + offer.problem, offer.hint)
            yield name, asked[name], offer

    def survey(self, host: LibvirtHost, nr_cells: int) -> tuple[str, ...]:
        """Return the adapter for each node that asks for a VF; NearmetalError if there is none.

        With several NUMA nodes the choice depends on cores that only planning deals out.
        """
        notes = []
        for name, request, offer in self._offers(host):
            if nr_cells > 1 and len(request.pfs) != 1:
                notes.append(f"node {name}: a VF of the adapter that is nearest to its cores")
            else:
                notes.append(f"node {name}: a VF: {'; '.join(offer.reasons)}")
            notes += [f"node {name}: {note}" for note in offer.notes]
        return tuple(notes)

    def regions(self, host: LibvirtHost) -> dict[str, tuple[Region, ...]]:
        """Return the regions of the VF and of the whole devices of each node.

        Raises BackendError for a device that no machine can get.
        """
        found: dict[str, tuple[Region, ...]] = {}
        efi = {node.name for node in host.nodes if node.firmware == "efi" and node.vf}
        for name, _, offer in self._offers(host) if efi else ():
            if name in efi:
                found[name] = (Region(f"a VF of {offer.pf}", offer.regions),)
        for node in host.nodes:
            if not node.passthrough:
                continue
            if not isinstance(self._host, VfHost):
                raise BackendError(
                    f"host {host.name}: devices are passed through only on the machine that "
                    "nearmetal runs on",
                    f"run nearmetal there, or remove passthrough from its nodes: {host.uri}",
                )
            with _naming(node.name):
                devices = passthrough.survey(self._host.kernel.sysfs, node.passthrough)
            found[node.name] = (*found.get(node.name, ()), *devices)
        return found

    def group_files(self, devices: Iterable[str]) -> list[str]:
        """Return the files of vfio by which QEMU opens these devices of this machine."""
        sysfs = self._host.kernel.sysfs if isinstance(self._host, VfHost) else Sysfs()
        return passthrough.group_files(sysfs, devices)

    def take(self, node: str, request: VfRequest, cells: frozenset[int]) -> GrantedVf:
        """Return a node's VF, ready for the machine; a second call returns the same VF."""
        with _naming(node):
            return self._host.allocate(request, self.owner(node), cells)

    def give_back(self, node: str) -> None:
        """Give back the VF of a node; no error if it has none."""
        with _naming(node):
            self._host.release(self.owner(node))


def vfs_of(
    cluster: str, shell: HostShell, state: Path, place: str, here: VfHost | None = None
) -> NodeVfs:
    """Return the VFs of a host. `state`, `place`: directories of the cluster here, and there."""
    if shell.remote:
        ask = DistantVfHost(shell.name, lambda argv, text: shell.run(argv, text, LIMIT_S))
        return NodeVfs(cluster, place, ask)
    return NodeVfs(cluster, state, here or this_machine())


def _fabric_need(request: VfRequest, offer: VfOffer) -> FabricNeed:
    return FabricNeed(offer.fabric, int(request.pkey, 16) if request.pkey else 0)


def _asked(there: NodeVfs, wishes: Mapping[str, VfRequest]) -> dict[str, VfOffer]:
    """Return the offers; a host that cannot be asked has its error as each problem."""
    try:
        return there.offers(wishes)
    except NearmetalError as error:
        return dict.fromkeys(wishes, VfOffer(problem=error.message, hint=error.hint))


def fabric_needs(
    vfs_at: Callable[[str], NodeVfs], nodes: Mapping[str, VirtualNode]
) -> tuple[dict[str, FabricNeed], dict[str, str]]:
    """Return the fabric of the VF of each running node that has one, or why it is not known."""
    found, unknown = {}, {}
    for host in sorted({node.host for node in nodes.values() if node.vf is not None}):
        held = {name: n.vf for name, n in nodes.items() if n.vf is not None and n.host == host}
        for name, offer in _asked(vfs_at(host), held).items():
            if offer.problem:
                unknown[name] = offer.problem
            else:
                found[name] = _fabric_need(held[name], offer)
    return found, unknown


def vfs_for(
    vfs_at: Callable[[str], NodeVfs], host: str, nodes: Mapping[str, VirtualNode]
) -> tuple[tuple[FabricNeed, ...], dict[str, str]]:
    """Return the VFs that a host can give to nodes of other hosts, and why a node gets none."""
    asked = {name: n.vf for name, n in nodes.items() if n.vf is not None and n.host != host}
    if not asked:
        return (), {}
    there, refused = vfs_at(host), {}
    for name in list(asked):
        if there.local and vfs_at(nodes[name].host).local:
            # The owner in the ledger would be the same.
            refused[name] = f"it is on the machine of host {nodes[name].host}"
            del asked[name]
    free: list[FabricNeed] = []
    for alike in _alike(asked):
        offers = _asked(there, alike)
        problems = {name: offer.problem for name, offer in offers.items() if offer.problem}
        free += (_fabric_need(asked[n], o) for n, o in offers.items() if n not in problems)
        # Which of them move is not known yet, and any of them could have the VF of another one.
        refused |= problems if len(problems) == len(alike) else {}
    return tuple(free), refused


def _alike(asked: Mapping[str, VfRequest]) -> Iterable[dict[str, VfRequest]]:
    """Return the requests in groups: a VF serves all requests of a group, or none."""
    groups: dict[str, dict[str, VfRequest]] = {}
    for name, request in asked.items():
        values = {"guid": "derived", "vlan": request.vlan and 1, "rate": request.rate and 1}
        key = request.model_copy(update=values).model_dump_json()
        groups.setdefault(key, {})[name] = request
    return groups.values()


def seed_interface(vf: GrantedVf) -> SeedInterface | None:
    """Return the seed of a VF; None on InfiniBand, where the guest finds its GUIDs itself.

    Raises BackendError for facts that no seed can name: another machine may have sent them.
    """
    settings = vf.settings
    if settings.mac is None:
        return None
    try:
        seed = SeedVf(pf=vf.pf, index=vf.number, host_numa=vf.numa, vlan=settings.vlan or None)
        return SeedInterface(mac=settings.mac, vf=seed)
    except ValidationError as error:
        raise BackendError(
            f"VF {vf.address} of adapter {vf.pf} cannot be described to a guest: "
            f"{first_problem(error)}"
        ) from error
