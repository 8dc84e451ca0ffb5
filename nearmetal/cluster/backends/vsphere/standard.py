# SPDX-License-Identifier: Apache-2.0
"""Standard switches of a cluster, host by host. What the record does not name is never touched."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyVmomi import vim, vmodl

from nearmetal.cluster.backends.vsphere.hosts import (
    RENAME,
    HostNetwork,
    alike,
    machines_on,
    read_hosts,
    words_of,
)
from nearmetal.core.errors import BackendError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from nearmetal.cluster.backends.vsphere.inventory import Inventory
    from nearmetal.cluster.backends.vsphere.record import SwitchRecord
    from nearmetal.cluster.backends.vsphere.spec import PortGroup, Switch
    from nearmetal.host.vcenter.session import Session

DEFAULT_MTU = 1500
NR_PORTS = 128
"""The API demands a number; ESXi 5.5 and later make ports as they are needed."""

Hosts = dict[str, HostNetwork]


def _nics_of(vswitch: Any) -> list[str]:
    return [str(nic) for nic in getattr(vswitch.spec.bridge, "nicDevice", None) or []]


def _mtu_of(vswitch: Any) -> int:
    return int(vswitch.mtu or vswitch.spec.mtu or DEFAULT_MTU)


def _with_nics(spec: Any, nics: list[str]) -> Any:
    spec.bridge = vim.host.VirtualSwitch.BondBridge(nicDevice=nics) if nics else None
    teaming = getattr(spec.policy, "nicTeaming", None)
    if teaming is not None and teaming.nicOrder is not None:
        # It names uplinks, too, and only those that the switch has.
        teaming.nicOrder = vim.host.NetworkPolicy.NicOrderPolicy(activeNic=nics)
    return spec


def _group_spec(switch: str, group: PortGroup) -> Any:
    return vim.host.PortGroup.Specification(
        name=group.name, vlanId=group.vlan, vswitchName=switch, policy=vim.host.NetworkPolicy()
    )


class StandardSwitches:
    """The standard switches of one cluster."""

    def __init__(self, session: Session, places: Inventory, record: SwitchRecord) -> None:
        """Remember what it works with; nothing is read yet."""
        self._session, self._places, self._record = session, places, record

    def owned(self) -> dict[str, list[str]]:
        """Return the hosts of each switch that is recorded."""
        return {switch: sorted(hosts) for switch, hosts in self._record.read().items()}

    def owners(self) -> dict[str, set[str]]:
        """Return the switches of each port group that is recorded, on any host."""
        found: dict[str, set[str]] = {}
        for switch, hosts in self._record.read().items():
            for group in {group for groups in hosts.values() for group in groups}:
                found.setdefault(group, set()).add(switch)
        return found

    def lost(self, hosts: Hosts) -> list[str]:
        """Return a line for each switch that is recorded on a host that is not there any more."""
        renamed = "(where it has another name now, remove the switch there by hand)"
        told = f"the datacenter has no such host; it counts as gone with it {renamed}"
        return [
            f"switch {switch} of {host}: {told}"
            for switch, names in self._record.read().items()
            for host in sorted(names.keys() - hosts.keys())
        ]

    def observe(self, hosts: Hosts) -> dict[str, dict[str, str]]:
        """Return the attributes of each switch that is recorded and there."""
        found = {}
        for name, groups in self._record.read().items():
            there = {h: hosts[h].switch(name) for h in groups if h in hosts}
            there = {h: switch for h, switch in there.items() if switch is not None}
            if not there:
                continue
            own = {
                h: {g: v for g, v in hosts[h].groups(name).items() if g in groups[h]} for h in there
            }
            found[name] = {
                "kind": "standard",
                "esxi_members": ",".join(sorted(there)),
                "nics": alike({h: ",".join(sorted(_nics_of(s))) for h, s in there.items()}),
                "mtu": alike({h: str(_mtu_of(s)) for h, s in there.items()}),
                "port_groups": alike({h: words_of(texts) for h, texts in own.items()}),
            }
        return found

    def problems(self, switch: Switch, host: HostNetwork) -> Iterable[tuple[str, str]]:
        """Yield what is in the way of a switch on a host, with the fix."""
        own = self._record.groups(switch.name, host.name)
        if own is None and host.switch(switch.name) is not None:
            yield f"switch {switch.name} is on {host.name} already, and is not ours", RENAME
            return
        taken = host.places()
        for group in switch.port_groups:
            where = taken.get(group.name)
            if where is None or (own is not None and group.name in own):
                continue
            if group.name in (self._record.groups(where, host.name) or []):
                hint = first_off([where])
            else:
                hint = RENAME
            what = f"port group {group.name} of switch {switch.name}"
            yield f"{what}: {host.name} has one of that name on switch {where}", hint

    # What is made and changed

    def _system(self, host: HostNetwork) -> Any:
        return host.ref.configManager.networkSystem

    def _claiming(
        self,
        what: str,
        work: Callable[[], object],
        switch: str,
        host: str,
        group: str | None = None,
    ) -> None:
        """Make something that is recorded already; what was certainly not made is not ours."""
        try:
            self._session.call(what, work)
        except BackendError as error:
            if self._is_unmade(error.__cause__, switch, host, group):
                self._record.release(switch, host, group)
            raise

    def _is_unmade(
        self, fault: BaseException | None, switch: str, host: str, group: str | None
    ) -> bool:
        """Whether something was not made, for sure: some faults come when it was, or in part."""
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
        return now.switch(switch) is None or (group is not None and group not in now.groups(switch))

    def settle(self, switch: Switch, host: HostNetwork) -> None:
        """Make a switch on a host, or bring it to what the spec says; removes no port group."""
        for what, hint in self.problems(switch, host):
            raise BackendError(what, hint)
        if host.network is None:
            raise unanswered(f"switch {switch.name} of {host.name}")
        where, system = f"switch {switch.name} of {host.name}", self._system(host)
        there = host.switch(switch.name)
        self._record.claim(switch.name, host.name, [])
        if there is None:
            spec = _with_nics(
                vim.host.VirtualSwitch.Specification(numPorts=NR_PORTS, mtu=switch.mtu), switch.nics
            )
            self._claiming(
                f"making {where}",
                lambda: system.AddVirtualSwitch(switch.name, spec),
                switch.name,
                host.name,
            )
        elif sorted(_nics_of(there)) != sorted(switch.nics) or _mtu_of(there) != switch.mtu:
            changed = _with_nics(there.spec, switch.nics)
            changed.mtu = switch.mtu
            self._session.call(
                f"changing {where}", lambda: system.UpdateVirtualSwitch(switch.name, changed)
            )
        now = host.groups(switch.name)
        for group in switch.port_groups:
            if now.get(group.name) != group.vlan:
                self._settle_group(switch, host, group, there=group.name in now)

    def _settle_group(
        self, switch: Switch, host: HostNetwork, group: PortGroup, *, there: bool
    ) -> None:
        system, spec = self._system(host), _group_spec(switch.name, group)
        where = f"port group {group.name} of {host.name}"
        if there:
            self._session.call(
                f"changing {where}", lambda: system.UpdatePortGroup(group.name, spec)
            )
            return
        self._record.claim(switch.name, host.name, [group.name])
        self._claiming(
            f"making {where}",
            lambda: system.AddPortGroup(spec),
            switch.name,
            host.name,
            group.name,
        )

    def give_up(self, switch: str, host: HostNetwork, nics: Sequence[str]) -> None:
        """Take uplinks from a switch of ours, for another one: all at once, for `host` is as it was."""
        spec = host.switch(switch).spec
        left = [one for one in _nics_of(host.switch(switch)) if one not in nics]
        self._session.call(
            f"taking {', '.join(nics)} from switch {switch} of {host.name}",
            lambda: self._system(host).UpdateVirtualSwitch(switch, _with_nics(spec, left)),
        )

    # What is removed

    def trim(
        self, wanted: Mapping[str, Mapping[str, list[str]]], hosts: Hosts
    ) -> list[BackendError]:
        """Remove what is ours and not wanted: port groups by switch and host. Returns what failed."""
        failed = []
        for switch in self._record.read():
            failed += self.cut(switch, wanted.get(switch, {}), hosts)
        return failed

    def cut(self, switch: str, wanted: Mapping[str, list[str]], hosts: Hosts) -> list[BackendError]:
        """As `trim`, of one switch."""
        failed = []
        for name, own in self._record.read().get(switch, {}).items():
            keep, host = wanted.get(name), hosts.get(name)
            if host is None:
                # A host that left the datacenter took what it has along; `lost` has told it.
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
        if group in host.groups(switch):
            try:
                self._session.call(
                    f"removing port group {group} of {host.name}",
                    lambda: self._system(host).RemovePortGroup(group),
                )
            except BackendError as error:
                if isinstance(error.__cause__, vim.fault.ResourceInUse):
                    users = machines_on(self._session, self._places, [group], host.ref)
                    raise in_use(f"port group {group} of {host.name}", users) from error
                raise
        self._record.release(switch, host.name, group)

    def _remove(self, switch: str, host: HostNetwork, own: list[str]) -> None:
        if host.switch(switch) is not None:
            foreign = sorted(set(host.groups(switch)) - set(own))
            if foreign:
                msg = f"switch {switch} of {host.name} has port groups that are not ours"
                hint = "remove them, or move them to another switch; then do the same again"
                raise BackendError(f"{msg}: {', '.join(foreign)}", hint)
            self._session.call(
                f"removing switch {switch} of {host.name}",
                lambda: self._system(host).RemoveVirtualSwitch(switch),
            )
        self._record.release(switch, host.name)


def unanswered(what: str) -> BackendError:
    """Return the error for something on a host of which nothing is known for now."""
    hint = "connect the host again, then do the same again"
    return BackendError(f"{what} stays: the host does not answer vCenter", hint)


def first_off(switches: Iterable[str]) -> str:
    """Return the hint for a port group that is to move here from others of our switches."""
    others = ", ".join(sorted(switches))
    return f"rename it, or take it off switch {others} with an `up` of its own first"


def in_use(what: str, users: list[str]) -> BackendError:
    """Return the error for something that cannot go because others hang on it."""
    who = f"machines hang on it: {', '.join(users)}" if users else "something of the host uses it"
    return BackendError(f"{what} stays: {who}", "move them to another port group, then do it again")
