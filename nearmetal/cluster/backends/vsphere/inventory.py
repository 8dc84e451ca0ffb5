# SPDX-License-Identifier: Apache-2.0
"""Objects of vCenter's inventory by name; an error about a missing object names the others."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Any

from pyVmomi import vim

from nearmetal.cluster.backends.vsphere.spec import VsphereSpec
from nearmetal.cluster.backends.vsphere.stock import listed
from nearmetal.core.errors import BackendError
from nearmetal.host.vcenter.session import fetch, fetch_of

_IS_TEMPLATE = "config.template"


def _known(key: str, known: dict[str, Any], name: str) -> Any:
    if name not in known:
        raise BackendError(f"{key} {name!r} is not there", f"known here: {listed(known)}")
    return known[name]


def _switch_of(group: Any) -> Any:
    return group.config.distributedVirtualSwitch


class VsphereInventory:
    """The objects that a spec names. Made for one plan or one `up`; it keeps the objects found.

    Raises BackendError for a missing object, when it is used; without the datacenter at once.
    """

    def __init__(self, content: Any, spec: VsphereSpec) -> None:
        self.content = content
        self.spec = spec
        root = content.rootFolder
        self.datacenter = self._one("datacenter", vim.Datacenter, root, spec.datacenter)
        self._hosts: dict[str, Any] = {}
        self._networks: dict[Any, str] = {}
        self._groups: dict[str, str] = {}
        self._mhz: dict[Any, int] = {}
        self._datastores: dict[str, Any] = {}
        self._machines: dict[str, Any] = {}

    @cached_property
    def compute(self) -> Any:
        """The cluster of hosts."""
        hosts, kind = self.datacenter.hostFolder, vim.ClusterComputeResource
        return self._one("compute", kind, hosts, self.spec.compute)

    @cached_property
    def parent(self) -> Any:
        """The folder in which the cluster's own folder is."""
        found = self.datacenter.vmFolder
        for part in self.spec.folder.split("/") if self.spec.folder else []:
            folders = {f.name: f for f in found.childEntity if isinstance(f, vim.Folder)}
            found = _known("folder", folders, part)
        return found

    def _by_name(self, kind: Any, root: Any) -> dict[str, Any]:
        found = fetch(self.content, root, kind, ["name"])
        return {values["name"]: ref for ref, values in found.items()}

    def _one(self, key: str, kind: Any, root: Any, name: str) -> Any:
        known = self._by_name(kind, root)
        if name != "auto":
            return _known(key, known, name)
        if len(known) != 1:
            why = f"vCenter does not have exactly one here: {listed(known)}"
            raise BackendError(f"{key}: auto: {why}", f"write {key}: NAME")
        return next(iter(known.values()))

    def folder(self) -> Any:
        """Return the cluster's own folder; None for a cluster without one."""
        found = self.content.searchIndex.FindChild(self.parent, self.spec.name)
        return found if isinstance(found, vim.Folder) else None

    def host(self, name: str) -> Any:
        """Return an ESXi host of the cluster of hosts."""
        if not self._hosts:
            self._hosts = {host.name: host for host in self.compute.host}
        return _known("esxi", self._hosts, name)

    def mhz(self, host: Any) -> int:
        """Return the speed of a host's processors."""
        if host not in self._mhz:
            self._mhz[host] = int(host.summary.hardware.cpuMhz or 1)
        return self._mhz[host]

    def datastore(self, name: str) -> Any:
        """Return a datastore of the datacenter."""
        if not self._datastores:
            self._datastores = {d.name: d for d in self.datacenter.datastore}
        return _known("datastore", self._datastores, name)

    def pool(self, path: str) -> Any:
        """Return a resource pool by its path below the root pool; the root for ""."""
        pool = self.compute.resourcePool
        for part in path.split("/") if path else []:
            pool = _known("resource_pool", {p.name: p for p in pool.resourcePool}, part)
        return pool

    def template(self, name: str) -> Any:
        """Return the template, or a machine of this name."""
        known = self._all_machines()
        if name not in known:
            found = fetch_of(self.content, vim.VirtualMachine, [*known.values()], [_IS_TEMPLATE])
            only = {name: ref for name, ref in known.items() if found[ref].get(_IS_TEMPLATE)}
            return _known("template", only, name)
        return known[name]

    def templates(self, names: Iterable[str]) -> list[Any]:
        """Return the templates of these names that are there."""
        known = self._all_machines()
        return [known[name] for name in names if name in known]

    def _all_machines(self) -> dict[str, Any]:
        if not self._machines:
            self._machines = self._by_name(vim.VirtualMachine, self.datacenter.vmFolder)
        return self._machines

    def network(self, group: str, switch: str | None) -> Any:
        """Return a port group: of this switch, else the only one of its name."""
        networks = self._all_networks()
        named = [n for n, name in networks.items() if name == group]
        if switch is not None:
            kind = vim.dvs.DistributedVirtualPortgroup
            named = [n for n in named if isinstance(n, kind) and _switch_of(n).name == switch]
        if len(named) == 1:
            return named[0]
        if named:
            hint = "write switch: NAME at the adapter"
            raise BackendError(f"port group {group!r} is there {len(named)} times", hint)
        hint = f"known here: {listed(networks.values())}"
        raise BackendError(f"port group {group!r} is not there", hint)

    def group_names(self) -> dict[str, str]:
        """Return the names of distributed port groups by their keys."""
        self._all_networks()
        return self._groups

    def network_names(self) -> set[str]:
        """Return the names of all networks of the datacenter."""
        return set(self._all_networks().values())

    def forget_networks(self) -> None:
        """Make the next use read the networks again, because some changed."""
        self._networks = {}

    def _all_networks(self) -> dict[Any, str]:
        if not self._networks:
            root, kind = self.datacenter.networkFolder, vim.dvs.DistributedVirtualPortgroup
            groups = fetch(self.content, root, kind, ["name", "key"])
            found = {**fetch(self.content, root, vim.Network, ["name"]), **groups}
            self._groups = {str(v["key"]): str(v["name"]) for v in groups.values()}
            self._networks = {ref: str(values["name"]) for ref, values in found.items()}
        return self._networks
