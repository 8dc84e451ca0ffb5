# SPDX-License-Identifier: Apache-2.0
"""The networks of hosts as read, and the parts that both kinds of switches share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pyVmomi import vim

from nearmetal.cluster.backends.vsphere.inventory import VsphereInventory
from nearmetal.core.errors import BackendError
from nearmetal.host.vcenter.session import Properties, Session, fetch

RENAME = "rename it in the spec, or remove it there and use the existing one"
"""Hint for a name that another owner's network has."""

Wanted = dict[str, dict[str, list[str]]]
"""Port groups by switch and host."""


@dataclass(frozen=True)
class HostNetwork:
    """One host's networks as read. `network` is None for a host that does not answer vCenter."""

    name: str
    ref: Any
    network: Any

    def _listed(self, name: str) -> list[Any]:
        return list(getattr(self.network, name, None) or [])

    def nics(self) -> list[str]:
        """Return its physical network adapters."""
        return [str(nic.device) for nic in self._listed("pnic")]

    def user_of(self, nic: str) -> tuple[str, str]:
        """Return kind and name of the switch that has an uplink, "" twice for a free one."""
        keys = {p.key for p in self._listed("pnic") if p.device == nic}
        users = [("standard", s.name, s.pnic) for s in self._listed("vswitch")]
        users += [("distributed", p.dvsName, p.pnic) for p in self._listed("proxySwitch")]
        found = ((kind, str(name)) for kind, name, nics in users if keys & set(nics or []))
        return next(found, ("", ""))

    def switch(self, name: str) -> Any:
        """Return a standard switch, None for a missing one."""
        return next((s for s in self._listed("vswitch") if s.name == name), None)

    def groups(self, switch: str) -> dict[str, int]:
        """Return the port groups of a standard switch with their VLANs."""
        specs = (group.spec for group in self._listed("portgroup"))
        return {str(s.name): int(s.vlanId) for s in specs if s.vswitchName == switch}

    def places(self) -> dict[str, str]:
        """Return every port group with its standard switch."""
        specs = (group.spec for group in self._listed("portgroup"))
        return {str(s.name): str(s.vswitchName) for s in specs}


def _hosts(session: Session, places: VsphereInventory, names: list[str]) -> dict[Any, Properties]:
    root = places.datacenter.hostFolder
    return session.call(
        "reading the hosts", lambda: fetch(session.content, root, vim.HostSystem, names)
    )


def host_names(session: Session, places: VsphereInventory) -> dict[Any, str]:
    """Return the names of the hosts of the datacenter."""
    return {ref: str(found["name"]) for ref, found in _hosts(session, places, ["name"]).items()}


def read_hosts(session: Session, places: VsphereInventory) -> dict[str, HostNetwork]:
    """Return the hosts of the datacenter by their names, with their networks."""
    found = _hosts(session, places, ["name", "config.network"])
    hosts = (HostNetwork(str(v["name"]), r, v.get("config.network")) for r, v in found.items())
    return {host.name: host for host in hosts}


class SwitchKind:
    """The switches of one cluster and one kind."""

    def __init__(self, session: Session, places: VsphereInventory) -> None:
        self._session, self._places = session, places

    def _users(self, networks: Iterable[str], host: Any = None) -> list[str]:
        """Return the machines on any of these networks; on that host, unless it is None."""
        content, center = self._session.content, self._places.datacenter
        names, wanted = ["name", "network", "runtime.host"], set(networks)

        def read() -> list[str]:
            refs = {network for network in center.network if network.name in wanted}
            machines = fetch(content, center.vmFolder, vim.VirtualMachine, names)
            return sorted(
                str(values["name"])
                for values in machines.values()
                if refs & set(values.get("network") or [])
                and (host is None or values.get("runtime.host") == host)
            )

        return self._session.call("looking for machines on a port group", read)


def foreign(what: str, groups: Iterable[str]) -> BackendError:
    """Return the error for a switch with port groups of another owner."""
    msg = f"{what} has port groups that are not ours: {', '.join(sorted(groups))}"
    return BackendError(msg, "remove them, or move them to another switch; then repeat the command")


def unanswered(what: str) -> BackendError:
    """Return the error for an object on a host that does not answer."""
    hint = "connect the host again, then repeat the command"
    return BackendError(f"{what} stays: the host does not answer vCenter", hint)


def first_off(switches: Iterable[str]) -> str:
    """Return the hint for a port group that other switches of the cluster have."""
    others = ", ".join(sorted(switches))
    return f"rename it, or first remove it from switch {others} with a separate `up`"


def in_use(what: str, users: list[str]) -> BackendError:
    """Return the error for an object that machines or other objects use."""
    who = f"machines use it: {', '.join(users)}" if users else "another object of the host uses it"
    hint = "move them to another port group, then repeat the command"
    return BackendError(f"{what} stays: {who}", hint)


def raise_all(failed: Sequence[BackendError]) -> None:
    """Raise one error for several, each text once."""
    if failed:
        hints = "; ".join(sorted({error.hint for error in failed if error.hint}))
        raise BackendError("\n  ".join(dict.fromkeys(e.message for e in failed)), hints)
