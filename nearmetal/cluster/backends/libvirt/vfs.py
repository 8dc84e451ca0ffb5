# SPDX-License-Identifier: Apache-2.0
"""VFs for the nodes of a cluster: from the ledger of this machine to what a node is given."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nearmetal.core.errors import BackendError, NearmetalError
from nearmetal.host.vf import Owner, Wish, this_machine
from nearmetal.image.seed import SeedInterface, SeedVf

if TYPE_CHECKING:
    from pathlib import Path

    from nearmetal.cluster.backends.libvirt.spec import LibvirtHost
    from nearmetal.host.vf import GrantedVf, VfHost
    from nearmetal.host.vf.request import VfRequest

_NUMA_MATTERS = 2


class NodeVfs:
    """What the nodes of one cluster have of this machine's adapters."""

    def __init__(self, cluster: str, directory: Path, host: VfHost | None = None) -> None:
        """`directory`: the cluster's; a VF is a leak as soon as that is gone."""
        self._cluster = cluster
        self._directory = directory
        self._host = host or this_machine()

    def owner(self, node: str) -> Owner:
        """Return as whom the ledger knows a node."""
        state = str(self._directory)
        return Owner(kind="cluster", name=self._cluster, node=node, state=state)

    def survey(self, host: LibvirtHost, nr_cells: int, *, remote: bool) -> tuple[str, ...]:
        """Say where the VFs of a host's nodes will come from; raises NearmetalError when nowhere.

        With several NUMA nodes the choice depends on cores that only planning deals out.
        """
        asked = [(node.name, node.vf) for node in host.nodes if node.vf is not None]
        if asked and remote:
            msg = f"host {host.name}: VFs are handed out on the machine that nearmetal runs on only"
            raise BackendError(msg, f"run nearmetal there, or leave vf out: {host.uri}")
        wishes = [Wish(self.owner(name), request) for name, request in asked]
        notes = []
        for (name, request), choice in zip(asked, self._host.survey(wishes), strict=True):
            if nr_cells >= _NUMA_MATTERS and len(request.pfs) != 1:
                notes.append(f"node {name}: a VF of the adapter that is nearest to its cores")
            else:
                notes.append(f"node {name}: a VF: {'; '.join(choice.reasons)}")
            notes += [f"node {name}: {note}" for note in choice.notes]
        return tuple(notes)

    def take(self, node: str, request: VfRequest, cells: frozenset[int]) -> GrantedVf:
        """Return a node's VF, ready to be passed on; the same one when asked again."""
        try:
            return self._host.allocate(request, self.owner(node), cells)
        except NearmetalError as error:
            raise BackendError(f"node {node}: {error.message}", error.hint) from error

    def give_back(self, node: str) -> None:
        """Give back what a node has; no error when it has nothing."""
        self._host.release(self.owner(node))


def seed_interface(vf: GrantedVf) -> SeedInterface | None:
    """Return what the guest is told of its VF; None on InfiniBand, where it finds its GUIDs."""
    settings = vf.settings
    if settings.mac is None:
        return None
    told = SeedVf(pf=vf.pf, index=vf.number, host_numa=vf.numa, vlan=settings.vlan or None)
    return SeedInterface(mac=settings.mac, vf=told)
