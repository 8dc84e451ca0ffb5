# SPDX-License-Identifier: Apache-2.0
"""Distributed switches of a cluster. Their descriptions, and those of port groups, are the marks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from pyVmomi import vim

from nearmetal.cluster.backends.vsphere.inventory import VsphereInventory
from nearmetal.cluster.backends.vsphere.networks import (
    RENAME,
    HostNetwork,
    SwitchKind,
    Wanted,
    first_off,
    foreign,
    host_names,
    in_use,
)
from nearmetal.cluster.backends.vsphere.plan import SwitchOnHost, VirtualSwitch
from nearmetal.cluster.backends.vsphere.spec import ALL_VLANS, PortGroup, Switch
from nearmetal.core.errors import BackendError
from nearmetal.host.vcenter.session import Session, fetch

_VMWARE = vim.dvs.VmwareDistributedVirtualSwitch
_MEMBER = vim.dvs.HostMember
LAST_VLAN = 4094
NR_PORTS = 8
"""Ports of a new group; vCenter adds ports on demand."""


@dataclass(frozen=True)
class DistributedSwitch:
    """A distributed switch as read. Only our switches have more than `ref`."""

    ref: Any
    config: Any = None
    groups: Mapping[str, Any] = field(default_factory=dict)
    """Its port groups by their names."""
    own: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    """Our port groups by their names, with their configurations."""

    def members(self) -> dict[Any, list[str]]:
        """Return the uplinks of each host that is a member."""
        return {m.config.host: _nics_of(m) for m in self.config.host or []}


def _nics_of(member: Any) -> list[str]:
    specs = getattr(member.config.backing, "pnicSpec", None) or []
    return [str(spec.pnicDevice) for spec in specs]


def _vlan_of(config: Any) -> int:
    """Return the VLAN of a port group, -1 for a value that no spec has."""
    vlan = getattr(config.defaultPortConfig, "vlan", None)
    if isinstance(vlan, _VMWARE.TrunkVlanSpec):
        ranges = [(r.start, r.end) for r in vlan.vlanId or []]
        return ALL_VLANS if ranges == [(0, LAST_VLAN)] else -1
    number = getattr(vlan, "vlanId", 0)
    return number if isinstance(number, int) else -1


def _vlan_spec(vlan: int) -> Any:
    if vlan == ALL_VLANS:
        every = vim.NumericRange(start=0, end=LAST_VLAN)
        return _VMWARE.TrunkVlanSpec(vlanId=[every], inherited=False)
    return _VMWARE.VlanIdSpec(vlanId=vlan, inherited=False)


def _uplinks(nics: list[str]) -> Any:
    names = [f"uplink{i + 1}" for i in range(max(len(nics), 1))]
    return vim.DistributedVirtualSwitch.NameArrayUplinkPortPolicy(uplinkPortName=names)


class DistributedSwitches(SwitchKind):
    """The distributed switches of one cluster."""

    def __init__(self, session: Session, places: VsphereInventory, cluster: str) -> None:
        super().__init__(session, places)
        self._mark = f"nearmetal.{cluster}"
        self._known: dict[str, DistributedSwitch] | None = None

    def read(self) -> dict[str, DistributedSwitch]:
        """Return the distributed switches of the datacenter as they are now."""
        self._known = self._session.call("reading the distributed switches", self._read)
        return self._known

    def _read(self) -> dict[str, DistributedSwitch]:
        content, root = self._session.content, self._places.datacenter.networkFolder
        kind, text = vim.DistributedVirtualSwitch, "summary.description"
        found: dict[str, DistributedSwitch] = {}
        ours: dict[Any, str] = {}
        for ref, values in fetch(content, root, kind, ["name", text]).items():
            found[str(values["name"])] = DistributedSwitch(ref)
            if values.get(text) == self._mark:
                ours[ref] = str(values["name"])
        kind = vim.dvs.DistributedVirtualPortgroup
        groups = fetch(content, root, kind, ["name", "config"]).items() if ours else ()
        for switch, name in ours.items():
            mine = {
                str(values["name"]): (ref, values["config"])
                for ref, values in groups
                if values["config"].distributedVirtualSwitch == switch
            }
            own = {n: pair for n, pair in mine.items() if pair[1].description == self._mark}
            refs = {n: ref for n, (ref, _) in mine.items()}
            found[name] = DistributedSwitch(switch, switch.config, refs, own)
        return found

    def _own(self) -> dict[str, DistributedSwitch]:
        """Return the cluster's own switches, as this object has read them."""
        known = self.read() if self._known is None else self._known
        return {name: one for name, one in known.items() if one.config is not None}

    def owns(self, switch: str, _host: str) -> bool:
        """Return whether a switch is the cluster's own."""
        return switch in self._own()

    def owners(self) -> set[tuple[str, str]]:
        """Return each port group of ours with its switch."""
        return {(group, name) for name, one in self._own().items() for group in one.own}

    def observe(self) -> dict[str, VirtualSwitch]:
        """Return our switches."""
        self.read()
        names = host_names(self._session, self._places) if self._own() else {}
        found = {}
        for switch, one in self._own().items():
            mtu = int(one.config.maxMtu)
            groups = {name: _vlan_of(config) for name, (_, config) in one.own.items()}
            hosts = {
                names.get(host, "?"): SwitchOnHost(nics=tuple(nics), mtu=mtu, port_groups=groups)
                for host, nics in one.members().items()
            }
            found[switch] = VirtualSwitch(kinds=("distributed",), hosts=hosts)
        return found

    def problems(
        self, switch: Switch, standard: Iterable[tuple[str, str]] = ()
    ) -> Iterable[tuple[str, str]]:
        """Yield the obstacles for a switch, each with its fix.

        `standard`: port groups of our standard switches. Those of the same switch are removed first.
        """
        known = self.read() if self._known is None else self._known
        there = known.get(switch.name)
        if there is not None and there.config is None:
            yield f"distributed switch {switch.name} is there already, and is not ours", RENAME
            return
        own = there.own if there is not None else {}
        owners = {*standard, *self.owners()}
        taken = self._session.call("reading the networks", self._places.network_names)
        for wanted in switch.port_groups:
            others = {name for group, name in owners if group == wanted.name}
            if wanted.name in own or others == {switch.name} or wanted.name not in taken:
                continue
            hint = first_off(others - {switch.name}) if others else RENAME
            what = f"port group {wanted.name} of distributed switch {switch.name}"
            yield f"{what}: the datacenter has a network of that name", hint

    # Creation and change

    def settle(self, switch: Switch, hosts: Iterable[HostNetwork]) -> None:
        """Make or change a switch; removes neither hosts nor port groups."""
        there = self.read().get(switch.name)
        for what, hint in self.problems(switch):
            raise BackendError(what, hint)
        where = f"switch {switch.name}"
        if there is None:
            self._session.wait(f"making {where}", lambda: self._create(switch))
            there = self.read()[switch.name]
        uplinks = getattr(there.config.uplinkPortPolicy, "uplinkPortName", None) or []
        policy = _uplinks(switch.nics) if len(uplinks) < len(switch.nics) else None
        if there.config.maxMtu != switch.mtu or policy is not None:
            self._reconfigure(
                f"changing {where}", there.ref, maxMtu=switch.mtu, uplinkPortPolicy=policy
            )
        members = there.members()
        for host in hosts:
            now = members.get(host.ref)
            if now is None:
                self._member(f"joining {where} on {host.name}", there, host, "add", switch.nics)
            elif sorted(now) != sorted(switch.nics):
                self._member(f"changing {where} on {host.name}", there, host, "edit", switch.nics)
        self._settle_groups(switch, there)

    def _create(self, switch: Switch) -> Any:
        spec = _VMWARE.ConfigSpec(
            name=switch.name,
            description=self._mark,
            maxMtu=switch.mtu,
            uplinkPortPolicy=_uplinks(switch.nics),
        )
        folder = self._places.datacenter.networkFolder
        return folder.CreateDVS_Task(vim.DistributedVirtualSwitch.CreateSpec(configSpec=spec))

    def _reconfigure(self, what: str, ref: Any, **values: Any) -> None:
        def start() -> Any:
            # vCenter refuses an older version than the present one.
            version = ref.config.configVersion
            return ref.ReconfigureDvs_Task(_VMWARE.ConfigSpec(configVersion=version, **values))

        self._session.wait(what, start)

    def _member(
        self,
        what: str,
        one: DistributedSwitch,
        host: HostNetwork,
        operation: str,
        nics: Sequence[str],
    ) -> None:
        backing = _MEMBER.PnicBacking(pnicSpec=[_MEMBER.PnicSpec(pnicDevice=nic) for nic in nics])
        spec = _MEMBER.ConfigSpec(operation=operation, host=host.ref, backing=backing)
        self._reconfigure(what, one.ref, host=[spec])

    def _group(self, group: PortGroup) -> Any:
        return vim.dvs.DistributedVirtualPortgroup.ConfigSpec(
            name=group.name,
            description=self._mark,
            type="earlyBinding",
            numPorts=NR_PORTS,
            autoExpand=True,
            defaultPortConfig=_VMWARE.VmwarePortConfigPolicy(vlan=_vlan_spec(group.vlan)),
        )

    def _settle_groups(self, switch: Switch, there: DistributedSwitch) -> None:
        own = there.own
        missing = [self._group(group) for group in switch.port_groups if group.name not in own]
        if missing:
            what = f"making port groups of switch {switch.name}"
            self._session.wait(what, lambda: there.ref.AddDVPortgroup_Task(missing))
        for group in switch.port_groups:
            if group.name not in own or _vlan_of(own[group.name][1]) == group.vlan:
                continue
            (ref, config), spec = own[group.name], self._group(group)
            spec.configVersion = config.configVersion
            spec.numPorts = max(NR_PORTS, config.numPorts or 0)
            work = partial(ref.ReconfigureDVPortgroup_Task, spec)
            self._session.wait(f"changing port group {group.name}", work)

    def give_up(self, switch: str, host: HostNetwork, nics: Sequence[str]) -> None:
        """Take these uplinks from our switch, all at once: the known switch is as it was before."""
        one = self._own()[switch]
        left = [name for name in one.members().get(host.ref, []) if name not in nics]
        what = f"taking {', '.join(nics)} from switch {switch} of {host.name}"
        self._member(what, one, host, "edit", left)

    # Removal

    def trim(self, wanted: Wanted) -> list[BackendError]:
        """Remove our switches, hosts and port groups that are not wanted. Returns the failures."""
        self.read()
        names = host_names(self._session, self._places) if self._own() else {}
        failed: list[BackendError] = []
        for name, one in self._own().items():
            try:
                if name in wanted:
                    self._trim(name, one, wanted[name], names)
                else:
                    self._remove(name, one)
            except BackendError as error:
                failed.append(error)
        return failed

    def _trim(
        self,
        switch: str,
        one: DistributedSwitch,
        wanted: Mapping[str, list[str]],
        names: Mapping[Any, str],
    ) -> None:
        groups = {group for on_host in wanted.values() for group in on_host}
        for name, (ref, _) in one.own.items():
            if name not in groups:
                with self._naming_users(f"port group {name}", [name]):
                    self._session.wait(f"removing port group {name}", ref.Destroy_Task)
        for host in one.members():
            if names.get(host) in wanted:
                continue
            what = f"{names.get(host, 'a host')} of switch {switch}"
            spec = _MEMBER.ConfigSpec(operation="remove", host=host)
            with self._naming_users(what, one.groups, host):
                self._reconfigure(f"removing {what}", one.ref, host=[spec])

    @contextmanager
    def _naming_users(self, what: str, networks: Iterable[str], host: Any = None) -> Iterator[None]:
        """Name the machines that use an object if it cannot be removed."""
        try:
            yield
        except BackendError as error:
            users = self._users(networks, host)
            if users:
                raise in_use(what, users) from error
            raise

    def remove(self, switch: str) -> None:
        """Remove our switch of this name, if there is one."""
        one = self.read().get(switch)
        if one is not None and one.config is not None:
            self._remove(switch, one)

    def _remove(self, name: str, one: DistributedSwitch) -> None:
        ours = {str(ref) for ref, _ in one.own.values()}
        ours |= {str(ref) for ref in one.config.uplinkPortgroup or []}
        others = [name for name, ref in one.groups.items() if str(ref) not in ours]
        if others:
            raise foreign(f"switch {name}", others)
        with self._naming_users(f"switch {name}", one.groups):
            self._session.wait(f"removing switch {name}", one.ref.Destroy_Task)
