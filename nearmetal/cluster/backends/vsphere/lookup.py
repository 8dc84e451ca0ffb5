# SPDX-License-Identifier: Apache-2.0
"""Looks up everything that nodes need in vCenter, before a plan changes anything."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from pyVmomi import vim

from nearmetal.cluster.backends.vsphere import machine as machines
from nearmetal.cluster.backends.vsphere.inventory import VsphereInventory
from nearmetal.cluster.backends.vsphere.rights import of_cluster, of_machine, of_switch
from nearmetal.cluster.backends.vsphere.settings import FIXED_KINDS, INSTANT, TAKEN_OVER
from nearmetal.cluster.backends.vsphere.stock import (
    DatastoreStock,
    Device,
    HostStock,
    Need,
    OtherMachine,
    SourceStock,
    Stock,
    TemplateStock,
)
from nearmetal.cluster.diff import Plan
from nearmetal.cluster.model import Finding
from nearmetal.cluster.resource import Key, Kind
from nearmetal.core.errors import BackendError
from nearmetal.host.vcenter.session import Properties, fetch, fetch_of

_HOST = ("name", "runtime.connectionState", "runtime.inMaintenanceMode", "summary.hardware", "vm")
_DEVICES = ("hardware.pciDevice", "config.pciPassthruInfo", "config.sharedPassthruGpuTypes")
_OTHER = ("name", "runtime.powerState", "config.cpuAllocation", "config.memoryAllocation")
_TEMPLATE = (
    "config.template",
    "config.version",
    "config.firmware",
    "config.files.vmPathName",
    "config.hardware.numCPU",
    "config.hardware.memoryMB",
    "snapshot",
    "summary.storage",
)
_DATASTORE = ("name", "host", "summary.freeSpace", "summary.accessible", "summary.maintenanceMode")


class Lookup:
    """The objects that nodes need, by what they are for and by their names."""

    def __init__(self, places: VsphereInventory, needs: Iterable[Need]) -> None:
        self._places, self._spec = places, places.spec
        self._content = places.content
        self._needs = [need for need in needs if need.touched]
        self.found: dict[tuple[str, Any], Any] = {}
        """By purpose and name, for example `template`, `gold`."""
        self.templates: dict[str, Properties] = {}

    # Names

    def names(self) -> list[Finding]:
        """Find all names; returns the missing ones."""
        places, missing = self._places, []
        whole: dict[str, Callable[[], Any]] = {
            "compute": lambda: places.compute,
            "parent": lambda: places.parent,
        }
        for purpose, find in whole.items():
            missing += self._find(purpose, "", find, ())
        finds: dict[str, Callable[[Any], Any]] = {
            "template": places.template,
            "datastore": places.datastore,
            "network": lambda key: places.network(key[0], key[1] or None),
        }
        if ("compute", "") in self.found:
            finds |= {"host": places.host, "pool": places.pool}
        users: dict[tuple[str, Any], list[str]] = defaultdict(list)
        for need in self._needs:
            for purpose, name in self._named(need):
                users[purpose, name].append(need.node)
        for (purpose, name), nodes in users.items():
            if purpose in finds:
                missing += self._find(purpose, name, partial(finds[purpose], name), nodes)
        return missing

    def _find(
        self, purpose: str, name: Any, find: Callable[[], Any], nodes: Iterable[str]
    ) -> list[Finding]:
        try:
            self.found[purpose, name] = find()
        except BackendError as error:
            return [Finding((), error.message, "", error.hint, tuple(nodes))]
        return []

    def _named(self, need: Need) -> Iterator[tuple[str, Any]]:
        """Yield what a node needs by name, with its purpose."""
        machine = need.machine
        if need.cloned:
            yield "template", machine.template or ""
        if machine.datastore:
            yield "datastore", machine.datastore
        if need.esxi != "auto":
            yield "host", need.esxi
        if need.cloned or machine.resource_pool:
            yield "pool", machine.resource_pool or ""
        for adapter in need.adapters:
            if adapter.port_group is not None and self._spec.maker_of(adapter) is None:
                yield "network", (adapter.port_group, adapter.switch or "")

    def _objects(self, need: Need, purpose: str) -> Iterator[tuple[Any, str]]:
        """Yield the found objects of a purpose that a node needs, with their names."""
        for found, name in self._named(need):
            if found == purpose and (found, name) in self.found:
                text = name[0] if isinstance(name, tuple) else name or self._spec.compute
                yield self.found[found, name], f"{purpose} {text}"

    def rights(
        self, plan: Plan, folder: Any, own: Mapping[str, Any]
    ) -> Iterator[tuple[Any, str, str]]:
        """Yield the rights that a plan needs: object, its name, privilege.

        `folder`: None before it is made. `own`: the machine of each node. Of the machines that are
        changed, the first that needs a right stands for all.
        """
        places, spec = self._places, self._spec
        changes = {change.key: change for change in plan.coming}
        known: dict[str, list[tuple[Any, str]]] = {
            "network folder": [(places.datacenter.networkFolder, "the networks of the datacenter")]
        }
        if ("compute", "") in self.found:
            known["compute"] = [(places.compute, f"compute {places.compute.name}")]
        if ("parent", "") in self.found:
            home = folder or places.parent
            known["parent"] = [(places.parent, f"folder {places.parent.name}")]
            known["folder"] = [(home, f"folder {home.name}")]
        needed = of_cluster(folder=folder is None, rules=bool(spec.rules and self._needs))
        for switch in spec.switches:
            if Key(Kind.NETWORK, switch.name) in changes and "compute" in known:
                hosts = [host for host in places.compute.host if host.name in spec.esxi_of(switch)]
                known.setdefault("switch host", []).extend((h, f"host {h.name}") for h in hosts)
                needed |= of_switch(switch.kind)
        yield from ((*one, right) for purpose, right in needed for one in known.get(purpose, ()))
        asked: set[str] = set()
        for need in self._needs:
            change = changes[Key(Kind.NODE, need.node)]
            differ = set() if need.cloned else {name for name, _, _ in change.differences}
            template = self.templates.get(need.machine.template or "", {})
            is_template = bool(template.get("config.template"))
            for purpose, right in of_machine(need, is_template=is_template, changed=differ):
                if purpose == "folder" and need.node in own and not need.cloned:
                    objects = [(own[need.node], f"machine of node {need.node}")]
                    objects = [] if right in asked else objects
                    asked.add(right)
                else:
                    objects = known.get(purpose) or [*self._objects(need, purpose)]
                yield from ((*one, right) for one in objects)

    # Stock

    def stock(self, own: set[Any]) -> Stock:
        """Read what the found objects have. `own`: the machines of the cluster."""
        if not self._needs:
            return Stock()
        hosts = self._hosts(own)
        refs = {ref: name for name, (ref, _) in hosts.items()}
        return Stock(
            {name: stock for name, (_, stock) in hosts.items()},
            self._templates(refs),
            self._datastores(refs),
            self._groups(refs),
        )

    def _hosts(self, own: set[Any]) -> dict[str, tuple[Any, HostStock]]:
        content, kind = self._content, vim.HostSystem
        found = fetch_of(content, kind, list(self._places.compute.host), _HOST)
        every = {ref: values for ref, values in found.items() if "name" in values}
        fixed = {n.esxi for n in self._needs if any(a.kind in FIXED_KINDS for a in n.adapters)}
        full = {
            n.esxi
            for n in self._needs
            if "full" in (n.machine.memory_reservation, n.machine.cpu_reservation)
        }
        close = [r for r, v in every.items() if "auto" in fixed or str(v["name"]) in fixed]
        devices = fetch_of(content, kind, close, _DEVICES)
        others: dict[Any, OtherMachine] = {}
        busy = [v for v in every.values() if (fixed | full) & {"auto", str(v["name"])}]
        machines_there = [vm for values in busy for vm in values.get("vm") or [] if vm not in own]
        names = (*_OTHER, *([machines.DEVICES] if fixed else []))
        for ref, values in fetch_of(content, vim.VirtualMachine, machines_there, names).items():
            if values.get("runtime.powerState") == "poweredOn":
                others[ref] = _other(values)
        return {
            str(v["name"]): (ref, _host(v | devices.get(ref, {}), others))
            for ref, v in every.items()
        }

    def _templates(self, hosts: dict[Any, str]) -> dict[str, TemplateStock]:
        refs = {ref: name for (purpose, name), ref in self.found.items() if purpose == "template"}
        found = fetch_of(self._content, vim.VirtualMachine, [*refs], _TEMPLATE)
        self.templates = {refs[ref]: values for ref, values in found.items()}
        forked = {n.machine.template for n in self._needs if n.machine.clone == INSTANT}
        sources = [ref for ref, name in refs.items() if name in forked]
        names = (*machines.PROPERTIES, machines.DEVICES, "config.template")
        read = fetch_of(self._content, vim.VirtualMachine, sources, names)
        source = {refs[ref]: self._source(values, hosts) for ref, values in read.items()}
        return {n: _template(v, source.get(n)) for n, v in self.templates.items()}

    def _source(self, values: Properties, hosts: dict[Any, str]) -> SourceStock:
        host = values.get("runtime.host")
        esxi, other, closed = hosts.get(host, ""), _other(values), ""
        if values.get("config.template"):
            closed = "is a template"
        elif values.get("runtime.powerState") != "poweredOn":
            closed = "is not on"
        elif other.functions or other.devices:
            closed = "has a device of its host"
        elif not esxi:
            closed = "is on a host outside of the cluster of hosts"
        if closed:
            return SourceStock(esxi, closed)
        now = machines.values_of(
            values, None, mhz=self._places.mhz(host), esxi=esxi, pool="", rules=(), groups={}
        )
        return SourceStock(esxi, values={key: getattr(now, key) for key in TAKEN_OVER})

    def _datastores(self, hosts: dict[Any, str]) -> dict[str, DatastoreStock]:
        root = self._places.datacenter.datastoreFolder
        found = fetch(self._content, root, vim.Datastore, _DATASTORE)
        return {str(v["name"]): _datastore(v, hosts) for v in found.values()}

    def _groups(self, hosts: dict[Any, str]) -> dict[tuple[str, str], frozenset[str]]:
        """Return the port groups of other owners, and again those that adapters name."""
        made = {group.name for switch in self._spec.switches for group in switch.port_groups}
        root = self._places.datacenter.networkFolder
        found = fetch(self._content, root, vim.Network, ("name", "host"))
        by_ref = {
            ref: frozenset(hosts[host] for host in values.get("host") or [] if host in hosts)
            for ref, values in found.items()
            if str(values["name"]) not in made
        }
        groups = {(str(found[ref]["name"]), ""): on for ref, on in by_ref.items()}
        named = {n: ref for (purpose, n), ref in self.found.items() if purpose == "network"}
        return groups | {name: by_ref[ref] for name, ref in named.items() if ref in by_ref}


def _address(identity: Any) -> str:
    return str(identity).lower()


def _host(values: Properties, others: dict[Any, OtherMachine]) -> HostStock:
    closed, hardware = "", values.get("summary.hardware")
    if values.get("runtime.connectionState") != "connected":
        closed = "does not answer vCenter"
    elif values.get("runtime.inMaintenanceMode"):
        closed = "is in maintenance mode"
    passed = {_address(info.id): info for info in values.get("config.pciPassthruInfo") or []}
    devices = {}
    for device in values.get("hardware.pciDevice") or []:
        info = passed.get(_address(device.id))
        devices[_address(device.id)] = Device(
            model=f"{device.vendorId & 0xFFFF:04x}:{device.deviceId & 0xFFFF:04x}",
            name=str(device.deviceName).strip(),
            vfs=int(getattr(info, "numVirtualFunction", 0) or 0),
            passed=bool(info is not None and info.passthruActive),
        )
    mhz = int(getattr(hardware, "cpuMhz", 0) or 0)
    return HostStock(
        closed=closed,
        threads=int(getattr(hardware, "numCpuThreads", 0) or 0),
        core_mhz=mhz,
        mhz=mhz * int(getattr(hardware, "numCpuCores", 0) or 0),
        memory=int(getattr(hardware, "memorySize", 0) or 0),
        devices=devices,
        profiles=frozenset(map(str, values.get("config.sharedPassthruGpuTypes") or [])),
        others=tuple(others[vm] for vm in values.get("vm") or [] if vm in others),
    )


def _other(values: Properties) -> OtherMachine:
    functions, devices = [], []
    for device in values.get(machines.DEVICES) or []:
        if isinstance(device, vim.vm.device.VirtualSriovEthernetCard):
            backing = getattr(device.sriovBacking, "physicalFunctionBacking", None)
            functions.append(_address(backing.id) if backing is not None else "")
        elif isinstance(device, vim.vm.device.VirtualPCIPassthrough):
            devices.append(_address(getattr(device.backing, "id", "")))
    cpu, memory = values.get("config.cpuAllocation"), values.get("config.memoryAllocation")
    return OtherMachine(
        name=str(values["name"]),
        functions=tuple(functions),
        devices=tuple(devices),
        memory=int(getattr(memory, "reservation", 0) or 0) * machines.MIB,
        mhz=int(getattr(cpu, "reservation", 0) or 0),
    )


def _template(values: Properties, source: SourceStock | None) -> TemplateStock:
    path = str(values.get("config.files.vmPathName") or "")
    return TemplateStock(
        version=machines.hardware_of(values.get("config.version") or "") or 0,
        efi=values.get("config.firmware") == "efi",
        has_snapshot=values.get("snapshot") is not None,
        size=int(getattr(values.get("summary.storage"), "committed", 0) or 0),
        datastore=path[1 : path.find("]")] if path.startswith("[") and "]" in path else "",
        vcpus=int(values.get("config.hardware.numCPU") or 0),
        memory=int(values.get("config.hardware.memoryMB") or 0) * machines.MIB,
        source=source,
    )


def _datastore(values: Properties, hosts: dict[Any, str]) -> DatastoreStock:
    mounts = (mount.key for mount in values.get("host") or [])
    closed = "" if values.get("summary.accessible", True) else "is not accessible"
    if not closed and values.get("summary.maintenanceMode") not in (None, "normal"):
        closed = "is in maintenance mode"
    reached = frozenset(hosts[ref] for ref in mounts if ref in hosts)
    return DatastoreStock(int(values.get("summary.freeSpace") or 0), reached, closed)
