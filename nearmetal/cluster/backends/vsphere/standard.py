# SPDX-License-Identifier: Apache-2.0
"""Standard switches of a cluster, host by host. Only recorded ones are ever touched."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from pyVmomi import vim, vmodl

from nearmetal.cluster.backends.vsphere.inventory import VsphereInventory
from nearmetal.cluster.backends.vsphere.networks import (
    RENAME,
    HostNetwork,
    SwitchKind,
    Wanted,
    first_off,
    foreign,
    in_use,
    raise_all,
    read_hosts,
    unanswered,
)
from nearmetal.cluster.backends.vsphere.plan import SwitchOnHost, VirtualSwitch
from nearmetal.cluster.backends.vsphere.record import SwitchRecord
from nearmetal.cluster.backends.vsphere.spec import PortGroup, Switch
from nearmetal.core.errors import BackendError
from nearmetal.host.vcenter.session import Session

DEFAULT_MTU = 1500
NR_PORTS = 128
"""The API needs a number; ESXi 5.5 and later make ports on demand."""


def _nics_of(vswitch: Any) -> list[str]:
    return [str(nic) for nic in getattr(vswitch.spec.bridge, "nicDevice", None) or []]


def _mtu_of(vswitch: Any) -> int:
    return int(vswitch.mtu or vswitch.spec.mtu or DEFAULT_MTU)


def _with_nics(spec: Any, nics: list[str]) -> Any:
    spec.bridge = vim.host.VirtualSwitch.BondBridge(nicDevice=nics) if nics else None
    teaming = getattr(spec.policy, "nicTeaming", None)
    if teaming is not None and teaming.nicOrder is not None:
        # It also names uplinks, and must name only those of the switch.
        teaming.nicOrder = vim.host.NetworkPolicy.NicOrderPolicy(activeNic=nics)
    return spec


class StandardSwitches(SwitchKind):
    """The standard switches of one cluster."""

    def __init__(self, session: Session, places: VsphereInventory, record: SwitchRecord) -> None:
        super().__init__(session, places)
        self._record = record

    def owns(self, switch: str, host: str) -> bool:
        """Return whether a switch of a host is the cluster's own."""
        return self._record.groups(switch, host) is not None

    def owners(self) -> set[tuple[str, str]]:
        """Return each port group in the record with its switch."""
        owned = self._record.read()
        return {(g, s) for s, hosts in owned.items() for groups in hosts.values() for g in groups}

    def observe(self) -> tuple[dict[str, VirtualSwitch], list[str]]:
        """Return the switches of the record that exist, and a note for each lost one."""
        owned = self._record.read()
        hosts = read_hosts(self._session, self._places) if owned else {}
        found: dict[str, VirtualSwitch] = {}
        notes = []
        for name, on_hosts in owned.items():
            there = {}
            for host, own in sorted(on_hosts.items()):
                if host not in hosts:
                    notes.append(
                        f"switch {name} of {host}: the datacenter does not have this host, so the "
                        "switch counts as removed (if the host has another name now, remove the "
                        "switch there by hand)"
                    )
                    continue
                switch = hosts[host].switch(name)
                if switch is not None:
                    groups = {g: v for g, v in hosts[host].groups(name).items() if g in own}
                    nics, mtu = tuple(_nics_of(switch)), _mtu_of(switch)
                    there[host] = SwitchOnHost(nics=nics, mtu=mtu, port_groups=groups)
            if there:
                found[name] = VirtualSwitch(kinds=("standard",), hosts=there)
        return found, notes

    def problems(self, switch: Switch, host: HostNetwork) -> Iterable[tuple[str, str]]:
        """Yield the obstacles for a switch on a host, each with its fix."""
        own = self._record.groups(switch.name, host.name)
        if own is None and host.switch(switch.name) is not None:
            yield f"switch {switch.name} is on {host.name} already, and is not ours", RENAME
            return
        taken = host.places()
        for group in switch.port_groups:
            where = taken.get(group.name)
            if where is None or group.name in (own or []):
                continue
            ours = group.name in (self._record.groups(where, host.name) or [])
            what = f"port group {group.name} of switch {switch.name}"
            hint = first_off([where]) if ours else RENAME
            yield f"{what}: {host.name} has one of that name on switch {where}", hint

    # Creation and change

    def _system(self, host: HostNetwork) -> Any:
        return host.ref.configManager.networkSystem

    def _claiming(
        self, what: str, work: Callable[[], object], switch: str, host: str, group: str = ""
    ) -> None:
        """Make an object that the record has already; releases it if it was certainly not made."""
        try:
            self._session.call(what, work)
        except BackendError as error:
            if self._is_unmade(error.__cause__, switch, host, group):
                self._record.release(switch, host, group or None)
            raise

    def _is_unmade(self, fault: BaseException | None, switch: str, host: str, group: str) -> bool:
        """Whether an object was certainly not made: some faults come after the creation."""
        if isinstance(fault, vim.fault.AlreadyExists):
            return True
        if not isinstance(fault, vmodl.MethodFault):
            return False
        try:
            now = read_hosts(self._session, self._places).get(host)
        except BackendError:
            return False
        if now is None or now.network is None:
            return False
        return now.switch(switch) is None or (group != "" and group not in now.groups(switch))

    def settle(self, switch: Switch, hosts: Iterable[HostNetwork]) -> None:
        """Make or change a switch on its hosts; does not remove port groups."""
        for host in hosts:
            self._settle(switch, host)

    def _settle(self, switch: Switch, host: HostNetwork) -> None:
        for what, hint in self.problems(switch, host):
            raise BackendError(what, hint)
        name, where = switch.name, f"switch {switch.name} of {host.name}"
        if host.network is None:
            raise unanswered(where)
        there, system = host.switch(name), self._system(host)
        self._record.claim(name, host.name, [])
        if there is None:
            spec = vim.host.VirtualSwitch.Specification(numPorts=NR_PORTS, mtu=switch.mtu)
            spec = _with_nics(spec, switch.nics)
            work = partial(system.AddVirtualSwitch, name, spec)
            self._claiming(f"making {where}", work, name, host.name)
        elif sorted(_nics_of(there)) != sorted(switch.nics) or _mtu_of(there) != switch.mtu:
            changed = _with_nics(there.spec, switch.nics)
            changed.mtu = switch.mtu
            self._session.call(
                f"changing {where}", lambda: system.UpdateVirtualSwitch(name, changed)
            )
        now = host.groups(name)
        for group in switch.port_groups:
            if now.get(group.name) != group.vlan:
                self._settle_group(name, host, group, there=group.name in now)

    def _settle_group(
        self, switch: str, host: HostNetwork, group: PortGroup, *, there: bool
    ) -> None:
        system, where = self._system(host), f"port group {group.name} of {host.name}"
        spec = vim.host.PortGroup.Specification(
            name=group.name, vlanId=group.vlan, vswitchName=switch, policy=vim.host.NetworkPolicy()
        )
        if there:
            self._session.call(
                f"changing {where}", lambda: system.UpdatePortGroup(group.name, spec)
            )
            return
        self._record.claim(switch, host.name, [group.name])
        work = partial(system.AddPortGroup, spec)
        self._claiming(f"making {where}", work, switch, host.name, group.name)

    def give_up(self, switch: str, host: HostNetwork, nics: Sequence[str]) -> None:
        """Take these uplinks from our switch, all at once: `host` is as it was before."""
        spec = host.switch(switch).spec
        left = [one for one in _nics_of(host.switch(switch)) if one not in nics]
        self._session.call(
            f"taking {', '.join(nics)} from switch {switch} of {host.name}",
            lambda: self._system(host).UpdateVirtualSwitch(switch, _with_nics(spec, left)),
        )

    # Removal

    def trim(self, wanted: Wanted) -> list[BackendError]:
        """Remove our switches and port groups that are not wanted. Returns the failures."""
        owned = self._record.read()
        hosts = read_hosts(self._session, self._places) if owned else {}
        return [error for name in owned for error in self._cut(name, wanted.get(name, {}), hosts)]

    def remove(self, switch: str) -> None:
        """Remove our switch of this name, if there is one."""
        if switch in self._record.read():
            raise_all(self._cut(switch, {}, read_hosts(self._session, self._places)))

    def _cut(
        self, switch: str, wanted: Mapping[str, list[str]], hosts: Mapping[str, HostNetwork]
    ) -> list[BackendError]:
        failed = []
        for name, own in self._record.read().get(switch, {}).items():
            keep, host = wanted.get(name), hosts.get(name)
            if host is None:
                # The host left the datacenter with its switch; `observe` has reported it.
                self._record.release(switch, name)
                continue
            if host.network is None:
                if keep is None or set(own) - set(keep):
                    failed.append(unanswered(f"switch {switch} of {name}"))
                continue
            try:
                for group in own:
                    if group not in (keep or []):
                        self._remove_group(switch, host, group)
                if keep is None:
                    self._remove(switch, host, own)
            except BackendError as error:
                failed.append(error)
        return failed

    def _remove_group(self, switch: str, host: HostNetwork, group: str) -> None:
        what = f"port group {group} of {host.name}"
        if group in host.groups(switch):
            try:
                self._session.call(
                    f"removing {what}", lambda: self._system(host).RemovePortGroup(group)
                )
            except BackendError as error:
                if isinstance(error.__cause__, vim.fault.ResourceInUse):
                    raise in_use(what, self._users([group], host.ref)) from error
                raise
        self._record.release(switch, host.name, group)

    def _remove(self, switch: str, host: HostNetwork, own: list[str]) -> None:
        what = f"switch {switch} of {host.name}"
        if host.switch(switch) is not None:
            others = set(host.groups(switch)) - set(own)
            if others:
                raise foreign(what, others)
            self._session.call(
                f"removing {what}", lambda: self._system(host).RemoveVirtualSwitch(switch)
            )
        self._record.release(switch, host.name)
