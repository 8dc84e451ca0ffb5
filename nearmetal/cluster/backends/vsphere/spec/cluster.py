# SPDX-License-Identifier: Apache-2.0
"""A virtual cluster on vSphere: hosts and nodes, switches, and rules of DRS."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from nearmetal.cluster.backends.vsphere.spec.adapters import Adapter
from nearmetal.cluster.backends.vsphere.spec.guest import DHCP, address_range
from nearmetal.cluster.backends.vsphere.spec.machine import Machine, merged
from nearmetal.cluster.backends.vsphere.spec.names import Inventory, InventoryPath, shaped
from nearmetal.cluster.backends.vsphere.spec.rules import findings
from nearmetal.cluster.model import ClusterSpec, Finding, Host, Node
from nearmetal.config.model import Model, Name
from nearmetal.host.vcenter.spec import Vcenter

MAX_VMS = 1000
"""Nodes of one cluster: far below what one vCenter carries."""

ALL_VLANS = 4095
"""The VLAN of a port group that passes all of them on with their tags."""

Nic = Annotated[str, shaped(r"vmnic[0-9]{1,4}", "is no uplink|write for example vmnic4")]


class VsphereNode(Node, Machine):
    """One virtual machine. Its own keys go before those of the cluster's `machine`."""

    vm: Inventory | None = Field(
        default=None, description="its name in the inventory; the node's by default"
    )


class VsphereHost(Host):
    """Nodes placed on one ESXi host."""

    esxi: Inventory = Field(
        default="auto", description="the host's name in the inventory; auto: the cluster places"
    )
    nodes: Annotated[list[VsphereNode], Field(min_length=1, max_length=MAX_VMS)]


class PortGroup(Model):
    """A port group of a switch."""

    name: Inventory = Field(description="unique in the datacenter")
    vlan: Annotated[int, Field(ge=0, le=ALL_VLANS)] = Field(
        default=0, description="VLAN; 0: none, 4095: all, tagged by the guest"
    )


class Switch(Model):
    """A virtual switch that is made with the cluster, and removed with it."""

    name: Inventory = Field(description="its name; for a standard one, on each of its hosts")
    kind: Literal["standard", "distributed"] = Field(description="standard or distributed")
    esxi: Annotated[list[Inventory], Field(max_length=64)] = Field(
        default_factory=list, description="hosts that have it; all hosts of the spec by default"
    )
    nics: Annotated[list[Nic], Field(max_length=32)] = Field(
        default_factory=list, description="uplinks on each of those hosts, as vmnic4"
    )
    mtu: Annotated[int, Field(ge=1280, le=9190)] = Field(
        default=1500, description="bytes, 1280 to 9190; at most what its uplinks carry"
    )
    port_groups: Annotated[list[PortGroup], Field(min_length=1, max_length=256)] = Field(
        description="its port groups"
    )


class DrsRule(Model):
    """Which nodes DRS keeps on one host, or on different ones."""

    name: Name = Field(description="unique in the cluster")
    kind: Literal["together", "apart"] = Field(description="together or apart")
    nodes: Annotated[list[str], Field(min_length=2, max_length=MAX_VMS)] = Field(
        description="the nodes it holds for"
    )
    enforced: bool = Field(default=False, description="whether breaking it is forbidden")


class VsphereSpec(ClusterSpec):
    """A virtual cluster of virtual machines on vSphere."""

    backend: Literal["vsphere"] = Field(description="vsphere: virtual machines under vCenter")
    vcenter: Vcenter = Field(description="the vCenter that manages them")
    hosts: Annotated[list[VsphereHost], Field(min_length=1, max_length=64)]
    datacenter: Inventory = Field(
        default="auto", description="its name; auto: the only one there is"
    )
    compute: Inventory = Field(
        default="auto", description="the cluster of hosts; auto: the only one of the datacenter"
    )
    folder: InventoryPath | None = Field(
        default=None,
        description="an existing folder of machines; the cluster's own folder is made in it",
    )
    machine: Machine = Field(
        default_factory=Machine, description="what all nodes have that do not say otherwise"
    )
    switches: Annotated[list[Switch], Field(max_length=64)] = Field(default_factory=list)
    rules: Annotated[list[DrsRule], Field(max_length=256)] = Field(default_factory=list)
    parallel: Annotated[int, Field(ge=1, le=64)] = Field(
        default=8, description="how many machines vCenter is asked to work on at a time"
    )

    mixed: ClassVar = {
        "cpu_shares": "are no shares|write low, normal, high, or for example 4000",
        "memory_shares": "are no shares|write low, normal, high, or for example 4000",
    }

    def findings(self) -> list[Finding]:
        """Return vSphere's own rules that the spec breaks."""
        return findings(self)

    @property
    def nodes(self) -> list[tuple[VsphereHost, VsphereNode]]:
        """All nodes with their hosts, in the order of the spec."""
        return [(host, node) for host in self.hosts for node in host.nodes]

    def machine_of(self, node: VsphereNode) -> Machine:
        """Return what holds for one node, all defaults filled in."""
        return merged(self.machine, node)

    def guest_addresses(self) -> dict[str, str]:
        """Return `dhcp` or `address/prefix` per node with guest settings, ranges dealt out.

        A range too short for its nodes leaves the last ones out; `findings` says so.
        """
        ranges: dict[str, list[str]] = {}
        dealt: dict[str, int] = {}
        places: dict[str, str] = {}
        for _, node in self.nodes:
            guest = self.machine_of(node).guest
            if guest is None:
                continue
            text = guest.address or DHCP
            if text == DHCP:
                places[node.name] = DHCP
                continue
            if text not in ranges:
                ranges[text] = [str(interface) for interface in address_range(text)]
            several = ranges[text]
            index = dealt.get(text, 0) if len(several) > 1 else 0
            dealt[text] = index + 1
            if index < len(several):
                places[node.name] = several[index]
        return places

    def esxi_of(self, switch: Switch) -> list[str]:
        """Return the hosts that have a switch."""
        if switch.esxi:
            return list(switch.esxi)
        return list(dict.fromkeys(h.esxi for h in self.hosts if h.esxi != "auto"))

    def maker_of(self, adapter: Adapter) -> Switch | None:
        """Return the switch of this spec that has an adapter's port group; None: it is there."""
        for switch in self.switches:
            if adapter.switch in (None, switch.name) and any(
                group.name == adapter.port_group for group in switch.port_groups
            ):
                return switch
        return None
