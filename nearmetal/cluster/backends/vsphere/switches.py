# SPDX-License-Identifier: Apache-2.0
"""Virtual switches of a cluster: standard ones on each host, distributed ones in the datacenter.

A switch or port group without record or mark belongs to another owner: it is never changed, and an
obstacle is reported. `settle` makes and changes; `trim` removes the rest, after all machines left it.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path

from nearmetal.cluster.backends.vsphere.distributed import DistributedSwitches
from nearmetal.cluster.backends.vsphere.inventory import VsphereInventory
from nearmetal.cluster.backends.vsphere.networks import (
    RENAME,
    HostNetwork,
    first_off,
    raise_all,
    read_hosts,
)
from nearmetal.cluster.backends.vsphere.plan import VirtualSwitch
from nearmetal.cluster.backends.vsphere.record import Center, SwitchRecord
from nearmetal.cluster.backends.vsphere.spec import Switch, VsphereSpec
from nearmetal.cluster.backends.vsphere.standard import StandardSwitches
from nearmetal.core.errors import BackendError
from nearmetal.host.vcenter.session import Session


class Switches:
    """The switches of one cluster."""

    def __init__(
        self, session: Session, places: VsphereInventory, spec: VsphereSpec, directory: Path
    ) -> None:
        self._session, self._places, self._spec = session, places, spec
        center = Center(session.vcenter.server, str(session.content.about.instanceUuid or ""))
        self._standard = StandardSwitches(session, places, SwitchRecord(directory, center))
        self._distributed = DistributedSwitches(session, places, spec.name)
        self._kinds: dict[str, StandardSwitches | DistributedSwitches] = {
            "standard": self._standard,
            "distributed": self._distributed,
        }

    def observe(self) -> tuple[dict[str, VirtualSwitch], list[str]]:
        """Return the cluster's own switches, and notes on lost ones."""
        found, notes = self._standard.observe()
        for name, switch in self._distributed.observe().items():
            kinds = (*(found[name].kinds if name in found else ()), *switch.kinds)
            found[name] = VirtualSwitch(kinds=kinds, hosts=switch.hosts)
        return dict(sorted(found.items())), notes

    # Obstacles

    def problems(self) -> list[tuple[str, str]]:
        """Return all obstacles for the switches of the spec, each with its fix."""
        hosts = read_hosts(self._session, self._places)
        problems: list[tuple[str, str]] = []
        for switch in self._spec.switches:
            if switch.kind == "distributed":
                problems += self._distributed.problems(switch, self._standard.owners())
            for name in self._spec.esxi_of(switch):
                try:
                    self._session.call("looking for a host", partial(self._places.host, name))
                except BackendError as error:
                    problems.append((error.message, error.hint))
                    continue
                if hosts[name].network is None:
                    what = f"switch {switch.name}: {name} does not answer vCenter"
                    problems.append((what, "connect the host again, or remove it from the switch"))
                    continue
                if switch.kind == "standard":
                    problems += self._standard.problems(switch, hosts[name])
                    problems += self._named_alike(switch)
                problems += self._bad_uplinks(switch, hosts[name])
        return problems

    def _named_alike(self, switch: Switch) -> Iterable[tuple[str, str]]:
        """Yield a standard port group with the name of a distributed one: both would be ambiguous.

        The distributed switch that this switch replaces is removed first.
        """
        owners = dict(self._distributed.owners())
        taken = self._session.call("reading the networks", self._places.group_names).values()
        for group in switch.port_groups:
            owner = owners.get(group.name)
            if group.name in taken and owner != switch.name:
                hint = RENAME if owner is None else first_off([owner])
                what = f"port group {group.name} of switch {switch.name}"
                yield f"{what}: the datacenter has a distributed one of that name", hint

    def _bad_uplinks(self, switch: Switch, host: HostNetwork) -> Iterable[tuple[str, str]]:
        for nic in switch.nics:
            kind, user = host.user_of(nic)
            if nic not in host.nics():
                known = f"known there: {', '.join(host.nics()) or 'none'}"
                yield f"switch {switch.name}: {host.name} has no {nic}", known
            elif (
                kind
                and (kind, user) != (switch.kind, switch.name)
                and not self._kinds[kind].owns(user, host.name)
            ):
                free = [name for name in host.nics() if not host.user_of(name)[0]]
                hint = f"use another; free there: {', '.join(free) or 'none'}"
                yield f"switch {switch.name}: {nic} of {host.name} is an uplink of {user}", hint

    # Creation, change and removal

    def settle(self, name: str) -> None:
        """Make or change a switch; its superfluous parts stay for `trim`."""
        switch = next(one for one in self._spec.switches if one.name == name)
        # No machine uses our switch of the same name and the other kind any more.
        other = "standard" if switch.kind == "distributed" else "distributed"
        self._kinds[other].remove(name)
        self._places.forget_networks()
        hosts = read_hosts(self._session, self._places)
        mine = [hosts[host] for host in self._spec.esxi_of(switch)]
        self._free_uplinks(switch, mine)
        self._kinds[switch.kind].settle(switch, mine)
        self._places.forget_networks()

    def _free_uplinks(self, switch: Switch, hosts: Iterable[HostNetwork]) -> None:
        """Take the uplinks of a switch from our other switches."""
        for host in hosts:
            users: dict[tuple[str, str], list[str]] = {}
            for nic in switch.nics:
                users.setdefault(host.user_of(nic), []).append(nic)
            users.pop((switch.kind, switch.name), None)
            for (kind, user), nics in users.items():
                if kind and self._kinds[kind].owns(user, host.name):
                    self._kinds[kind].give_up(user, host, nics)

    def trim(self, *, keep: bool) -> None:
        """Remove our switches and their parts that the spec does not have; without `keep`, all.

        Raises BackendError with all failures.
        """
        failed: list[BackendError] = []
        for kind, switches in self._kinds.items():
            wanted = {
                s.name: {h: [g.name for g in s.port_groups] for h in self._spec.esxi_of(s)}
                for s in self._spec.switches
                if keep and s.kind == kind
            }
            failed += switches.trim(wanted)
        self._places.forget_networks()
        raise_all(failed)
