# SPDX-License-Identifier: Apache-2.0
"""Finding things by name in vCenter's inventory; what is not there is told with what is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyVmomi import vim

from nearmetal.core.errors import BackendError
from nearmetal.host.vcenter.session import fetch

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nearmetal.cluster.backends.vsphere.spec import VsphereSpec

MAX_TOLD = 8


def _told(names: Iterable[str]) -> str:
    known = sorted(names)
    rest = f" and {len(known) - MAX_TOLD} more" if len(known) > MAX_TOLD else ""
    return ", ".join(known[:MAX_TOLD]) + rest or "nothing"


def _switch_of(group: Any) -> Any:
    return group.config.distributedVirtualSwitch


class Inventory:
    """The places that a spec names. Made for one plan or one `up`; what it found it remembers."""

    def __init__(self, content: Any, spec: VsphereSpec) -> None:
        """Find the datacenter and the cluster of hosts; raises BackendError without them."""
        self.content = content
        self.spec = spec
        self.datacenter = self._one(
            "datacenter", vim.Datacenter, content.rootFolder, spec.datacenter
        )
        self.compute = self._one(
            "compute", vim.ClusterComputeResource, self.datacenter.hostFolder, spec.compute
        )
        self.parent = self._folder(spec.folder)
        self._hosts: dict[str, Any] = {}
        self._networks: dict[Any, str] = {}
        self._groups: dict[str, str] = {}
        self._mhz: dict[Any, int] = {}
        self._datastores: dict[str, Any] = {}
        self._templates: dict[str, Any] = {}

    def _by_name(self, kind: Any, root: Any) -> dict[str, Any]:
        found = fetch(self.content, root, kind, ["name"])
        return {values["name"]: ref for ref, values in found.items()}

    def _one(self, key: str, kind: Any, root: Any, name: str) -> Any:
        known = self._by_name(kind, root)
        if name == "auto":
            if len(known) == 1:
                return next(iter(known.values()))
            why = f"there is not exactly one here: {_told(known)}"
            raise BackendError(f"{key}: auto: {why}", f"write {key}: NAME")
        return self._known(key, known, name)

    def _known(self, key: str, known: dict[str, Any], name: str) -> Any:
        if name not in known:
            raise BackendError(f"{key} {name!r} is not there", f"known here: {_told(known)}")
        return known[name]

    def _folder(self, path: str | None) -> Any:
        folder = self.datacenter.vmFolder
        for part in path.split("/") if path else []:
            known = {f.name: f for f in folder.childEntity if isinstance(f, vim.Folder)}
            folder = self._known("folder", known, part)
        return folder

    def folder(self) -> Any:
        """Return the cluster's own folder; None where there is none."""
        found = self.content.searchIndex.FindChild(self.parent, self.spec.name)
        return found if isinstance(found, vim.Folder) else None

    def host(self, name: str) -> Any:
        """Return an ESXi host of the cluster of hosts."""
        if not self._hosts:
            self._hosts = {host.name: host for host in self.compute.host}
        return self._known("esxi", self._hosts, name)

    def mhz(self, host: Any) -> int:
        """Return the speed of a host's processors."""
        if host not in self._mhz:
            self._mhz[host] = int(host.summary.hardware.cpuMhz or 1)
        return self._mhz[host]

    def datastore(self, name: str) -> Any:
        """Return a datastore of the datacenter."""
        if not self._datastores:
            self._datastores = {d.name: d for d in self.datacenter.datastore}
        return self._known("datastore", self._datastores, name)

    def pool(self, path: str) -> Any:
        """Return a resource pool by its path below the root pool; the root for ""."""
        pool = self.compute.resourcePool
        for part in path.split("/") if path else []:
            pool = self._known("resource_pool", {p.name: p for p in pool.resourcePool}, part)
        return pool

    def template(self, name: str) -> Any:
        """Return the template, or a machine of that name."""
        if name not in self._templates:
            known = self._by_name(vim.VirtualMachine, self.datacenter.vmFolder)
            self._templates[name] = self._known("template", known, name)
        return self._templates[name]

    def network(self, group: str, switch: str | None) -> Any:
        """Return a port group, by its switch where several have the name."""
        networks = self._all_networks()
        named = [n for n, name in networks.items() if name == group]
        if switch is not None:
            named = [
                n
                for n in named
                if isinstance(n, vim.dvs.DistributedVirtualPortgroup)
                and _switch_of(n).name == switch
            ]
        if len(named) == 1:
            return named[0]
        if named:
            hint = "write switch: NAME at the adapter"
            raise BackendError(f"port group {group!r} is there {len(named)} times", hint)
        known = _told(networks.values())
        raise BackendError(f"port group {group!r} is not there", f"known here: {known}")

    def group_names(self) -> dict[str, str]:
        """Return the names of distributed port groups by their keys."""
        self._all_networks()
        return self._groups

    def network_names(self) -> set[str]:
        """Return the names of all networks of the datacenter."""
        return set(self._all_networks().values())

    def forget_networks(self) -> None:
        """Read the networks again when they are needed next: some came or went."""
        self._networks = {}

    def _all_networks(self) -> dict[Any, str]:
        if not self._networks:
            root, kind = self.datacenter.networkFolder, vim.dvs.DistributedVirtualPortgroup
            groups = fetch(self.content, root, kind, ["name", "key"])
            found = {**fetch(self.content, root, vim.Network, ["name"]), **groups}
            self._groups = {str(v["key"]): str(v["name"]) for v in groups.values()}
            self._networks = {ref: str(values["name"]) for ref, values in found.items()}
        return self._networks
