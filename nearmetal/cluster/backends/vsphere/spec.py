# SPDX-License-Identifier: Apache-2.0
"""A virtual cluster on vSphere: hosts and nodes, switches, and rules of DRS."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from nearmetal.cluster.backends.vsphere.findings import findings
from nearmetal.cluster.backends.vsphere.settings import (
    DHCP,
    HostKey,
    Inventory,
    InventoryPath,
    MachineSettings,
    VmAdapter,
    address_range,
    merged,
)
from nearmetal.cluster.model import ClusterSpec, Finding, Host, Node
from nearmetal.config.model import AbsolutePath, Model, Name, shaped
from nearmetal.host.vcenter.spec import Vcenter

MAX_VMS = 1000
"""Nodes of one cluster: far below the limit of one vCenter."""

ALL_VLANS = 4095
"""The VLAN of a port group that passes all VLANs on with their tags."""

Nic = Annotated[str, shaped(r"vmnic[0-9]{1,4}", "is not an uplink|write for example vmnic4")]


class VsphereNode(Node, MachineSettings):
    """One virtual machine. Its own keys take priority over those of the cluster's `machine`."""

    vm: Inventory | None = Field(
        default=None, description="its name in the inventory; default: the name of the node"
    )


class EsxiHost(Host):
    """Nodes on one ESXi host."""

    esxi: Inventory = Field(
        default="auto",
        description="name of the host in the inventory; auto: the cluster of hosts places the nodes",
    )
    nodes: Annotated[list[VsphereNode], Field(min_length=1, max_length=MAX_VMS)]


class PortGroup(Model):
    """A port group of a switch."""

    name: Inventory = Field(description="unique in the datacenter")
    vlan: Annotated[int, Field(ge=0, le=ALL_VLANS)] = Field(
        default=0, description="VLAN; 0: none, 4095: all, with tags of the guest"
    )


class Switch(Model):
    """A virtual switch that is made and removed together with the cluster."""

    name: Inventory = Field(
        description="its name; a standard switch has the same name on each of its hosts"
    )
    kind: Literal["standard", "distributed"] = Field(description="standard or distributed")
    esxi: Annotated[list[Inventory], Field(max_length=64)] = Field(
        default_factory=list, description="hosts of the switch; default: all hosts in the spec"
    )
    nics: Annotated[list[Nic], Field(max_length=32)] = Field(
        default_factory=list, description="uplinks on each of these hosts, for example vmnic4"
    )
    mtu: Annotated[int, Field(ge=1280, le=9190)] = Field(
        default=1500, description="bytes, 1280 to 9190; at most the limit of the uplinks"
    )
    port_groups: Annotated[list[PortGroup], Field(max_length=256)] = Field(
        default_factory=list, description="its port groups; default: none"
    )


class DrsRule(Model):
    """Nodes that DRS keeps on one host, or on different hosts."""

    name: Name = Field(description="unique in the cluster")
    kind: Literal["together", "apart"] = Field(description="together or apart")
    nodes: Annotated[list[str], Field(min_length=2, max_length=MAX_VMS)] = Field(
        description="nodes of the rule"
    )
    enforced: bool = Field(default=False, description="whether DRS must never break the rule")


class SshAccess(Model):
    """The first login in a machine, as root. Later ones use keys that it brings."""

    identity: AbsolutePath | None = Field(
        default=None,
        description="private key that root of the template accepts; default: cloud-init of the "
        "template gets a key of the cluster",
    )
    host_key: HostKey | None = Field(
        default=None,
        description="public key of sshd that all machines have from the template; default: each "
        "machine publishes its own",
    )


class VsphereSpec(ClusterSpec):
    """A cluster of virtual machines on vSphere."""

    backend: Literal["vsphere"] = Field(description="vsphere: virtual machines under vCenter")
    vcenter: Vcenter = Field(description="the vCenter that manages them")
    hosts: Annotated[list[EsxiHost], Field(min_length=1, max_length=64)]
    datacenter: Inventory = Field(
        default="auto", description="name of the datacenter; auto: the only datacenter"
    )
    compute: Inventory = Field(
        default="auto", description="cluster of hosts; auto: the only cluster of the datacenter"
    )
    folder: InventoryPath | None = Field(
        default=None,
        description="an existing folder of machines; the folder of the cluster is made in it",
    )
    machine: MachineSettings = Field(
        default_factory=MachineSettings, description="default values for all nodes"
    )
    switches: Annotated[list[Switch], Field(max_length=64)] = Field(default_factory=list)
    rules: Annotated[list[DrsRule], Field(max_length=256)] = Field(default_factory=list)
    ssh: SshAccess | None = Field(
        default=None, description="how jobs reach the machines; default: no jobs"
    )
    parallel: Annotated[int, Field(ge=1, le=64)] = Field(
        default=8, description="number of machines on which vCenter works at the same time"
    )
    shutdown: Annotated[int, Field(ge=0, le=3600)] = Field(
        default=180,
        description="seconds that a guest has to shut down before its power is cut; 0: cut at once",
    )

    mixed: ClassVar = dict.fromkeys(
        ("cpu_shares", "memory_shares"),
        "is not a number of shares|write low, normal, high, or for example 4000",
    )

    def findings(self) -> list[Finding]:
        """Return vSphere's own rules that the spec breaks."""
        return findings(self)

    @property
    def nodes(self) -> list[tuple[EsxiHost, VsphereNode]]:
        """All nodes with their hosts, in the order of the spec."""
        return [(host, node) for host in self.hosts for node in host.nodes]

    def machine_of(self, node: VsphereNode) -> MachineSettings:
        """Return the settings of one node with all defaults."""
        return merged(self.machine, node)

    def is_on(self, node: str) -> bool:
        """Whether a node should run."""
        return any(n.name == node and self.machine_of(n).power == "on" for _, n in self.nodes)

    def guest_addresses(self) -> dict[str, str]:
        """Return `dhcp` or `address/prefix` per node with guest settings.

        The last nodes of a range that is too short have no address; `findings` reports them.
        """
        ranges: dict[str, Iterator[str]] = {DHCP: repeat(DHCP)}
        places: dict[str, str] = {}
        for _, node in self.nodes:
            guest = self.machine_of(node).guest
            if guest is None:
                continue
            text = guest.address or DHCP
            if text not in ranges:
                several = [str(interface) for interface in address_range(text)]
                ranges[text] = iter(several) if len(several) > 1 else repeat(several[0])
            address = next(ranges[text], None)
            if address is not None:
                places[node.name] = address
        return places

    def esxi_of(self, switch: Switch) -> list[str]:
        """Return the hosts of a switch."""
        if switch.esxi:
            return list(switch.esxi)
        return list(dict.fromkeys(h.esxi for h in self.hosts if h.esxi != "auto"))

    def maker_of(self, adapter: VmAdapter) -> Switch | None:
        """Return the switch of this spec with an adapter's port group; None: of another owner."""
        for switch in self.switches:
            if adapter.switch in (None, switch.name) and any(
                group.name == adapter.port_group for group in switch.port_groups
            ):
                return switch
        return None
