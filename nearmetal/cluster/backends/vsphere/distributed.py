# SPDX-License-Identifier: Apache-2.0
"""Distributed switches of a cluster. They and their port groups say whose they are: by a description."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from pyVmomi import vim

from nearmetal.cluster.backends.vsphere.hosts import RENAME, alike, machines_on, words_of
from nearmetal.cluster.backends.vsphere.spec import ALL_VLANS
from nearmetal.cluster.backends.vsphere.standard import first_off, in_use
from nearmetal.core.errors import BackendError
from nearmetal.host.vcenter.session import fetch

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from nearmetal.cluster.backends.vsphere.hosts import HostNetwork
    from nearmetal.cluster.backends.vsphere.inventory import Inventory
    from nearmetal.cluster.backends.vsphere.spec import PortGroup, Switch
    from nearmetal.host.vcenter.session import Session

_DVS = vim.dvs
_VMWARE = vim.dvs.VmwareDistributedVirtualSwitch
_MEMBER = vim.dvs.HostMember
LAST_VLAN = 4094
NR_PORTS = 8
"""To begin with: the ports of a group grow in number as they are needed."""


@dataclass(frozen=True)
class Found:
    """A distributed switch as read. `groups`: reference and configuration by name."""

    ref: Any
    config: Any
    ours: bool
    groups: Mapping[str, tuple[Any, Any]]

    def own_groups(self, mark: str) -> dict[str, tuple[Any, Any]]:
        """Return its port groups that are the cluster's own."""
        return {n: found for n, found in self.groups.items() if found[1].description == mark}

    def members(self) -> dict[Any, list[str]]:
        """Return the uplinks of each host that is a member."""
        return {m.config.host: _nics_of(m) for m in self.config.host or []}


def _nics_of(member: Any) -> list[str]:
    specs = getattr(member.config.backing, "pnicSpec", None) or []
    return [str(spec.pnicDevice) for spec in specs]


def _vlan_of(config: Any) -> int:
    """Return the VLAN of a port group, -1 for what no spec says."""
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
    count = max(len(nics), 1)
    names = [f"uplink{i + 1}" for i in range(count)]
    return vim.DistributedVirtualSwitch.NameArrayUplinkPortPolicy(uplinkPortName=names)


def _backing(nics: list[str]) -> Any:
    return _MEMBER.PnicBacking(pnicSpec=[_MEMBER.PnicSpec(pnicDevice=nic) for nic in nics])


class DistributedSwitches:
    """The distributed switches of one cluster."""

    def __init__(self, session: Session, places: Inventory, cluster: str) -> None:
        """Remember what it works with; nothing is read yet."""
        self._session, self._places = session, places
        self.mark = f"nearmetal.{cluster}"

    def read(self) -> dict[str, Found]:
        """Return the distributed switches of the datacenter; of others than ours, what is cheap."""
        return self._session.call("reading the distributed switches", self._read)

    def _read(self) -> dict[str, Found]:
        content, root = self._session.content, self._places.datacenter.networkFolder
        switches = fetch(
            content, root, vim.DistributedVirtualSwitch, ["name", "summary.description"]
        )
        marked = {r for r, v in switches.items() if v.get("summary.description") == self.mark}
        groups: dict[Any, dict[str, tuple[Any, Any]]] = {ref: {} for ref in switches}
        if marked:
            kind = _DVS.DistributedVirtualPortgroup
            for ref, values in fetch(content, root, kind, ["name", "config"]).items():
                config = values["config"]
                of = groups.get(config.distributedVirtualSwitch, {})
                of[str(values["name"])] = (ref, config)
        return {
            str(values["name"]): Found(
                ref, ref.config if ref in marked else None, ref in marked, groups[ref]
            )
            for ref, values in switches.items()
        }

    def observe(
        self, found: Mapping[str, Found], names: Mapping[Any, str]
    ) -> dict[str, dict[str, str]]:
        """Return the attributes of each switch that is ours; `names` of the hosts."""
        seen = {}
        for name, one in found.items():
            if not one.ours:
                continue
            members = {
                names.get(host, "?"): ",".join(sorted(nics)) for host, nics in one.members().items()
            }
            groups = {g: _vlan_of(config) for g, (_, config) in one.own_groups(self.mark).items()}
            seen[name] = {
                "kind": "distributed",
                "esxi_members": ",".join(sorted(members)),
                "nics": alike(members),
                "mtu": str(one.config.maxMtu),
                "port_groups": words_of(groups),
            }
        return seen

    def owners(self, found: Mapping[str, Found]) -> dict[str, str]:
        """Return the switch of each port group that is ours, on one that is ours."""
        return {g: n for n, one in found.items() if one.ours for g in one.own_groups(self.mark)}

    def problems(
        self,
        switch: Switch,
        found: Mapping[str, Found],
        standard: Mapping[str, Collection[str]] | None = None,
    ) -> Iterable[tuple[str, str]]:
        """Yield what is in the way of a switch, with the fix.

        `standard`: our standard switches by port group. One of the same name goes before.
        """
        there = found.get(switch.name)
        if there is not None and not there.ours:
            yield f"distributed switch {switch.name} is there already, and is not ours", RENAME
            return
        own = there.own_groups(self.mark) if there is not None else {}
        owners = {g: {*names} for g, names in (standard or {}).items()}
        for group, name in self.owners(found).items():
            owners.setdefault(group, set()).add(name)
        taken = self._session.call("reading the networks", self._places.network_names)
        for wanted in switch.port_groups:
            others = owners.get(wanted.name, set())
            if wanted.name in own or others == {switch.name} or wanted.name not in taken:
                continue
            hint = first_off(others - {switch.name}) if others else RENAME
            what = f"port group {wanted.name} of distributed switch {switch.name}"
            yield f"{what}: the datacenter has a network of that name", hint

    # What is made and changed

    def settle(self, switch: Switch, hosts: Iterable[HostNetwork]) -> None:
        """Make a switch, or bring it to what the spec says; removes neither hosts nor port groups."""
        found = self.read()
        for what, hint in self.problems(switch, found):
            raise BackendError(what, hint)
        where = f"switch {switch.name}"
        there = found.get(switch.name)
        if there is None:
            self._session.wait(f"making {where}", lambda: self._create(switch))
            there = self.read()[switch.name]
        uplinks = getattr(there.config.uplinkPortPolicy, "uplinkPortName", None) or []
        more = len(uplinks) < len(switch.nics)
        if there.config.maxMtu != switch.mtu or more:
            self._reconfigure(
                f"changing {where}",
                there.ref,
                maxMtu=switch.mtu,
                uplinkPortPolicy=_uplinks(switch.nics) if more else None,
            )
        members = there.members()
        for host in hosts:
            now = members.get(host.ref)
            if now is None or sorted(now) != sorted(switch.nics):
                what = f"{'joining' if now is None else 'changing'} {where} on {host.name}"
                self._member(
                    what, there.ref, host, "add" if now is None else "edit", list(switch.nics)
                )
        self._settle_groups(switch, there)

    def _create(self, switch: Switch) -> Any:
        spec = _VMWARE.ConfigSpec(
            name=switch.name,
            description=self.mark,
            maxMtu=switch.mtu,
            uplinkPortPolicy=_uplinks(switch.nics),
        )
        folder = self._places.datacenter.networkFolder
        return folder.CreateDVS_Task(vim.DistributedVirtualSwitch.CreateSpec(configSpec=spec))

    def _reconfigure(self, what: str, ref: Any, **values: Any) -> None:
        def start() -> Any:
            # vCenter refuses what was not read just before.
            version = ref.config.configVersion
            return ref.ReconfigureDvs_Task(_VMWARE.ConfigSpec(configVersion=version, **values))

        self._session.wait(what, start)

    def _member(
        self, what: str, ref: Any, host: HostNetwork, operation: str, nics: list[str]
    ) -> None:
        spec = _MEMBER.ConfigSpec(operation=operation, host=host.ref, backing=_backing(nics))
        self._reconfigure(what, ref, host=[spec])

    def _group(self, group: PortGroup, version: str | None = None) -> Any:
        return _DVS.DistributedVirtualPortgroup.ConfigSpec(
            name=group.name,
            description=self.mark,
            configVersion=version,
            type="earlyBinding",
            numPorts=NR_PORTS,
            autoExpand=True,
            defaultPortConfig=_VMWARE.VmwarePortConfigPolicy(vlan=_vlan_spec(group.vlan)),
        )

    def _settle_groups(self, switch: Switch, there: Found) -> None:
        own = there.own_groups(self.mark)
        missing = [self._group(group) for group in switch.port_groups if group.name not in own]
        if missing:
            self._session.wait(
                f"making port groups of switch {switch.name}",
                lambda: there.ref.AddDVPortgroup_Task(missing),
            )
        for group in switch.port_groups:
            if group.name not in own or _vlan_of(own[group.name][1]) == group.vlan:
                continue
            ref, config = own[group.name]
            spec = self._group(group, config.configVersion)
            spec.numPorts = max(NR_PORTS, config.numPorts or 0)
            self._session.wait(
                f"changing port group {group.name}",
                partial(ref.ReconfigureDVPortgroup_Task, spec),
            )

    def give_up(self, one: Found, host: HostNetwork, nics: Sequence[str]) -> None:
        """Take uplinks from a switch of ours, for another one: all at once, for `one` is as it was."""
        left = [name for name in one.members().get(host.ref, []) if name not in nics]
        name, taken = one.config.name, ", ".join(nics)
        self._member(
            f"taking {taken} from switch {name} of {host.name}", one.ref, host, "edit", left
        )

    # What is removed

    def trim(
        self, wanted: Mapping[str, tuple[list[str], list[str]]], names: Mapping[Any, str]
    ) -> list[BackendError]:
        """Remove what is ours and not wanted: hosts and port groups by switch. Returns what failed."""
        failed: list[BackendError] = []
        for name, one in self.read().items():
            if not one.ours:
                continue
            try:
                if name in wanted:
                    self._trim(name, one, *wanted[name], names)
                else:
                    self.remove(name, one)
            except BackendError as error:
                failed.append(error)
        return failed

    def _trim(
        self, switch: str, one: Found, hosts: list[str], groups: list[str], names: Mapping[Any, str]
    ) -> None:
        for name, (ref, _) in one.own_groups(self.mark).items():
            if name not in groups:
                self._gone(f"port group {name}", ref, [name])
        for host in one.members():
            if names.get(host) in hosts:
                continue
            what = f"{names.get(host, 'a host')} of switch {switch}"
            spec = _MEMBER.ConfigSpec(operation="remove", host=host)
            try:
                self._reconfigure(f"removing {what}", one.ref, host=[spec])
            except BackendError as error:
                users = machines_on(self._session, self._places, one.groups, host)
                if users:
                    raise in_use(what, users) from error
                raise

    def remove(self, name: str, one: Found) -> None:
        """Remove a switch of ours; raises BackendError where something hangs on it."""
        ours = {str(ref) for ref, _ in one.own_groups(self.mark).values()}
        ours |= {str(ref) for ref in one.config.uplinkPortgroup or []}
        foreign = sorted(n for n, (ref, _) in one.groups.items() if str(ref) not in ours)
        if foreign:
            msg = f"switch {name} has port groups that are not ours: {', '.join(foreign)}"
            raise BackendError(msg, "remove them, then do the same again")
        self._gone(f"switch {name}", one.ref, one.groups)

    def _gone(self, what: str, ref: Any, networks: Iterable[str]) -> None:
        try:
            self._session.wait(f"removing {what}", ref.Destroy_Task)
        except BackendError as error:
            users = machines_on(self._session, self._places, networks)
            if users:
                raise in_use(what, users) from error
            raise
