# SPDX-License-Identifier: Apache-2.0
"""What hosts have of networks: uplinks, standard switches and their port groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyVmomi import vim

from nearmetal.host.vcenter.session import fetch

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from nearmetal.cluster.backends.vsphere.inventory import Inventory
    from nearmetal.host.vcenter.session import Session


RENAME = "rename it in the spec, or leave it out and use what is there"
"""What helps against a name that somebody else's network has."""


@dataclass(frozen=True)
class HostNetwork:
    """One host's networks as read. `network` is None where the host does not answer vCenter."""

    name: str
    ref: Any
    network: Any

    def _listed(self, name: str) -> list[Any]:
        return list(getattr(self.network, name, None) or [])

    def nics(self) -> list[str]:
        """Return its physical network adapters."""
        return [str(nic.device) for nic in self._listed("pnic")]

    def user_of(self, nic: str) -> tuple[str, str]:
        """Return kind and name of the switch that has an uplink, "" twice for none."""
        keys = {p.key for p in self._listed("pnic") if p.device == nic}
        users = [("standard", s.name, s.pnic) for s in self._listed("vswitch")]
        users += [("distributed", p.dvsName, p.pnic) for p in self._listed("proxySwitch")]
        found = ((kind, str(name)) for kind, name, nics in users if keys & set(nics or []))
        return next(found, ("", ""))

    def switch(self, name: str) -> Any:
        """Return a standard switch, None where it is not there."""
        return next((s for s in self._listed("vswitch") if s.name == name), None)

    def groups(self, switch: str) -> dict[str, int]:
        """Return the port groups of a standard switch with their VLANs."""
        specs = (group.spec for group in self._listed("portgroup"))
        return {str(s.name): int(s.vlanId) for s in specs if s.vswitchName == switch}

    def places(self) -> dict[str, str]:
        """Return every port group with the standard switch that it is on."""
        specs = (group.spec for group in self._listed("portgroup"))
        return {str(s.name): str(s.vswitchName) for s in specs}


def read_hosts(session: Session, places: Inventory) -> dict[str, HostNetwork]:
    """Return the hosts of the datacenter by their names, with their networks."""
    names = ["name", "config.network"]

    def read() -> dict[Any, dict[str, Any]]:
        return fetch(session.content, places.datacenter.hostFolder, vim.HostSystem, names)

    found = session.call("reading the networks of the hosts", read)
    return {
        str(values["name"]): HostNetwork(str(values["name"]), ref, values.get("config.network"))
        for ref, values in found.items()
    }


def words_of(groups: Mapping[str, int]) -> str:
    """Return port groups as plans say them."""
    texts = (f"{name} vlan {vlan}" if vlan else name for name, vlan in groups.items())
    return ", ".join(sorted(texts))


def alike(texts: Mapping[str, str]) -> str:
    """Return what all hosts say alike, or what each says."""
    if len(set(texts.values())) <= 1:
        return next(iter(texts.values()), "")
    return "; ".join(f"{host}: {text}" for host, text in sorted(texts.items()))


def machines_on(
    session: Session, places: Inventory, networks: Iterable[str], host: Any = None
) -> list[str]:
    """Return the machines that hang on any of these networks; on that host, where one is given."""
    names, wanted = ["name", "network", "runtime.host"], set(networks)

    def read() -> list[str]:
        center = places.datacenter
        refs = {network for network in center.network if network.name in wanted}
        machines = fetch(session.content, center.vmFolder, vim.VirtualMachine, names)
        return sorted(
            str(values["name"])
            for values in machines.values()
            if refs & set(values.get("network") or [])
            and (host is None or values.get("runtime.host") == host)
        )

    return session.call("looking for machines on a port group", read)
