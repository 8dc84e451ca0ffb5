# SPDX-License-Identifier: Apache-2.0
"""Virtual switches of a cluster: standard ones on each host, distributed ones in the datacenter.

Whatever is neither recorded nor marked is somebody else's: never changed, and told where it is in the
way. `settle` makes and changes; what is left over goes in `trim`, when no machine hangs on it any more.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from pyVmomi import vim

from nearmetal.cluster.backends.vsphere.distributed import DistributedSwitches
from nearmetal.cluster.backends.vsphere.hosts import RENAME, read_hosts
from nearmetal.cluster.backends.vsphere.record import Center, SwitchRecord
from nearmetal.cluster.backends.vsphere.standard import StandardSwitches, first_off
from nearmetal.cluster.spec import Kind, resource
from nearmetal.core.errors import BackendError
from nearmetal.host.vcenter.session import fetch

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from nearmetal.cluster.backends.vsphere.distributed import Found
    from nearmetal.cluster.backends.vsphere.hosts import HostNetwork
    from nearmetal.cluster.backends.vsphere.inventory import Inventory
    from nearmetal.cluster.backends.vsphere.spec import Switch, VsphereSpec
    from nearmetal.cluster.spec import Resource
    from nearmetal.host.vcenter.session import Session


def _raise_all(failed: Sequence[BackendError]) -> None:
    """Raise one error for several, each text once."""
    if failed:
        hints = "; ".join(sorted({error.hint for error in failed if error.hint}))
        raise BackendError("\n  ".join(dict.fromkeys(e.message for e in failed)), hints)


class Switches:
    """The switches of one cluster."""

    def __init__(
        self, session: Session, places: Inventory, spec: VsphereSpec, directory: Path
    ) -> None:
        """Remember what it is about; nothing is read yet."""
        self._session, self._places, self._spec = session, places, spec
        center = Center(session.vcenter.server, str(session.content.about.instanceUuid or ""))
        self._standard = StandardSwitches(session, places, SwitchRecord(directory, center))
        self._distributed = DistributedSwitches(session, places, spec.name)

    def _names(self) -> dict[Any, str]:
        """Return the names of the hosts of the datacenter."""
        root = self._places.datacenter.hostFolder
        found = self._session.call(
            "reading the hosts",
            lambda: fetch(self._session.content, root, vim.HostSystem, ["name"]),
        )
        return {ref: str(values["name"]) for ref, values in found.items()}

    def observe(self) -> tuple[list[Resource], list[str]]:
        """Return the switches that are the cluster's own, and notes on those that are lost."""
        found: dict[str, dict[str, str]] = {}
        notes: list[str] = []
        if self._standard.owned():
            hosts = read_hosts(self._session, self._places)
            found, notes = self._standard.observe(hosts), self._standard.lost(hosts)
        distributed = self._distributed.read()
        if any(one.ours for one in distributed.values()):
            seen = self._distributed.observe(distributed, self._names())
            for name, values in seen.items():
                both = {"kind": "standard and distributed"} if name in found else {}
                found[name] = {**values, **both}
        switches = [resource(Kind.NETWORK, name, values) for name, values in sorted(found.items())]
        return switches, notes

    # What would go wrong

    def check(self) -> None:
        """Raise BackendError with everything in the way of the switches of the spec."""
        if not self._spec.switches:
            return
        for switch in self._spec.switches:
            for name in self._spec.esxi_of(switch):
                self._session.call("looking for a host", partial(self._places.host, name))
        hosts = read_hosts(self._session, self._places)
        distributed = self._distributed.read()
        problems: list[tuple[str, str]] = []
        for switch in self._spec.switches:
            if switch.kind == "distributed":
                owners = self._standard.owners()
                problems += self._distributed.problems(switch, distributed, owners)
            for name in self._spec.esxi_of(switch):
                if hosts[name].network is None:
                    what = f"switch {switch.name}: {name} does not answer vCenter"
                    problems.append((what, "connect the host again, or leave it out"))
                    continue
                if switch.kind == "standard":
                    problems += self._standard.problems(switch, hosts[name])
                    problems += self._named_alike(switch, distributed)
                problems += self._bad_uplinks(switch, hosts[name], distributed)
        _raise_all([BackendError(what, hint) for what, hint in problems])

    def _named_alike(
        self, switch: Switch, distributed: Mapping[str, Found]
    ) -> Iterable[tuple[str, str]]:
        """A standard port group and a distributed one of one name are told apart by nobody.

        What a distributed switch of ours has that this one takes the place of, goes before.
        """
        owners = self._distributed.owners(distributed)
        taken = self._session.call("reading the networks", self._places.group_names).values()
        for group in switch.port_groups:
            owner = owners.get(group.name)
            if group.name not in taken or owner == switch.name:
                continue
            hint = RENAME
            if owner is not None:
                hint = first_off([owner])
            what = f"port group {group.name} of switch {switch.name}"
            yield f"{what}: the datacenter has a distributed one of that name", hint

    def _is_ours(self, kind: str, name: str, host: str, distributed: Mapping[str, Found]) -> bool:
        if kind == "standard":
            return host in self._standard.owned().get(name, [])
        return name in distributed and distributed[name].ours

    def _bad_uplinks(
        self, switch: Switch, host: HostNetwork, distributed: Mapping[str, Found]
    ) -> Iterable[tuple[str, str]]:
        for nic in switch.nics:
            if nic not in host.nics():
                known = f"known there: {', '.join(host.nics()) or 'none'}"
                yield f"switch {switch.name}: {host.name} has no {nic}", known
                continue
            kind, user = host.user_of(nic)
            if (kind, user) == (switch.kind, switch.name):
                continue
            if kind and not self._is_ours(kind, user, host.name, distributed):
                free = [name for name in host.nics() if not host.user_of(name)[0]]
                hint = f"name another; free there: {', '.join(free) or 'none'}"
                yield f"switch {switch.name}: {nic} of {host.name} is an uplink of {user}", hint

    # What is made, changed and removed

    def settle(self, name: str) -> None:
        """Make a switch, or bring it to what the spec says, all but what is left over."""
        switch = next(one for one in self._spec.switches if one.name == name)
        self._leave_other_kind(switch)
        hosts = read_hosts(self._session, self._places)
        mine = [hosts[host] for host in self._spec.esxi_of(switch)]
        self._free_uplinks(switch, mine)
        if switch.kind == "distributed":
            self._distributed.settle(switch, mine)
        else:
            for host in mine:
                self._standard.settle(switch, host)
        self._places.forget_networks()

    def _leave_other_kind(self, switch: Switch) -> None:
        """Remove what is ours of that name and the other kind; nothing hangs on it any more."""
        if switch.kind == "distributed":
            if switch.name in self._standard.owned():
                hosts = read_hosts(self._session, self._places)
                _raise_all(self._standard.cut(switch.name, {}, hosts))
        else:
            found = self._distributed.read().get(switch.name)
            if found is not None and found.ours:
                self._distributed.remove(switch.name, found)
        self._places.forget_networks()

    def _free_uplinks(self, switch: Switch, hosts: Iterable[HostNetwork]) -> None:
        """Take the uplinks of a switch from others of ours that have them."""
        distributed = self._distributed.read()
        for host in hosts:
            users: dict[tuple[str, str], list[str]] = {}
            for nic in switch.nics:
                users.setdefault(host.user_of(nic), []).append(nic)
            users.pop((switch.kind, switch.name), None)
            for (kind, user), nics in users.items():
                if not kind or not self._is_ours(kind, user, host.name, distributed):
                    continue
                if kind == "standard":
                    self._standard.give_up(user, host, nics)
                else:
                    self._distributed.give_up(distributed[user], host, nics)

    def trim(self, *, keep: bool) -> None:
        """Remove what is ours and not in the spec; without `keep` all that is ours.

        Raises BackendError with everything that could not be removed.
        """
        failed: list[BackendError] = []
        wanted = self._spec.switches if keep else []
        if self._standard.owned():
            standard = {
                s.name: {h: [g.name for g in s.port_groups] for h in self._spec.esxi_of(s)}
                for s in wanted
                if s.kind == "standard"
            }
            failed += self._standard.trim(standard, read_hosts(self._session, self._places))
        if any(one.ours for one in self._distributed.read().values()):
            members = {
                s.name: (self._spec.esxi_of(s), [g.name for g in s.port_groups])
                for s in wanted
                if s.kind == "distributed"
            }
            failed += self._distributed.trim(members, self._names())
        self._places.forget_networks()
        _raise_all(failed)
