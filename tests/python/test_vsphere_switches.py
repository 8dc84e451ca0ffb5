# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: N802, N815 - the names of vSphere's interface
"""Switches of both kinds, on hosts and in a datacenter that only exist in memory."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from pyVmomi import vim

from nearmetal.cluster.backends.vsphere.plan import VirtualSwitch
from nearmetal.cluster.backends.vsphere.spec import VsphereSpec
from nearmetal.cluster.backends.vsphere.switches import Switches
from nearmetal.cluster.registration import desired
from nearmetal.cluster.resource import Facts
from nearmetal.cluster.spec import parse_spec
from nearmetal.core.errors import BackendError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

Space = SimpleNamespace


HostSystem: Any = vim.HostSystem
ContainerView: Any = vim.view.ContainerView


class View(ContainerView):  # type: ignore[misc]
    """A view of everything."""

    def Destroy(self) -> None:
        """Nothing is kept."""


class Host(HostSystem):  # type: ignore[misc]
    """An ESXi host with three uplinks, which is its own system of networks."""

    name: Any = None
    network: Any = None
    configManager: Any = None

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name
        nics = [Space(device=f"vmnic{n}", key=f"key-vmnic{n}") for n in range(3)]
        self.network = Space(pnic=nics, vswitch=[], portgroup=[], proxySwitch=[])
        self.configManager = Space(networkSystem=self)

    def _switch(self, name: str) -> Any:
        return next(switch for switch in self.network.vswitch if switch.name == name)

    def AddVirtualSwitch(self, name: str, spec: Any) -> None:
        self.network.vswitch.append(Space(name=name))
        self.UpdateVirtualSwitch(name, spec)

    def UpdateVirtualSwitch(self, name: str, spec: Any) -> None:
        nics = spec.bridge.nicDevice if spec.bridge else []
        switch, keys = self._switch(name), [f"key-{nic}" for nic in nics]
        switch.pnic, switch.mtu, switch.spec = keys, spec.mtu, spec

    def RemoveVirtualSwitch(self, name: str) -> None:
        self.network.vswitch.remove(self._switch(name))

    def AddPortGroup(self, spec: Any) -> None:
        self.network.portgroup.append(Space(spec=spec))

    def UpdatePortGroup(self, name: str, spec: Any) -> None:
        self.RemovePortGroup(name)
        self.AddPortGroup(spec)

    def RemovePortGroup(self, name: str) -> None:
        left = [group for group in self.network.portgroup if group.spec.name != name]
        self.network.portgroup = left


class Group:
    """A distributed port group."""

    def __init__(self, center: Center, switch: DistributedSwitch, spec: Any) -> None:
        self._center = center
        self.config = Space(distributedVirtualSwitch=switch, numPorts=8, configVersion="1")
        self.ReconfigureDVPortgroup_Task(spec)
        center.groups.append(self)

    def ReconfigureDVPortgroup_Task(self, spec: Any) -> None:
        self.config.name, self.config.description = spec.name, spec.description
        self.config.defaultPortConfig = spec.defaultPortConfig

    def Destroy_Task(self) -> None:
        self._center.groups.remove(self)


class DistributedSwitch:
    """A distributed switch."""

    def __init__(self, center: Center, spec: Any) -> None:
        self._center, self.name, self.description = center, spec.name, spec.description
        self.config = Space(
            name=spec.name, host=[], uplinkPortgroup=[], configVersion="1", maxMtu=spec.maxMtu
        )
        self.config.uplinkPortPolicy = spec.uplinkPortPolicy
        center.switches.append(self)

    def ReconfigureDvs_Task(self, spec: Any) -> None:
        self.config.maxMtu = spec.maxMtu or self.config.maxMtu
        for one in spec.host or []:
            nics = [pnic.pnicDevice for pnic in one.backing.pnicSpec] if one.backing else []
            host = next(h for h in self._center.hosts if h == one.host)
            members = [m for m in self.config.host if m.config.host != host]
            proxies = [p for p in host.network.proxySwitch if p.dvsName != self.name]
            if one.operation != "remove":
                members.append(Space(config=Space(host=host, backing=one.backing)))
                proxies.append(Space(dvsName=self.name, pnic=[f"key-{nic}" for nic in nics]))
            self.config.host, host.network.proxySwitch = members, proxies

    def AddDVPortgroup_Task(self, specs: list[Any]) -> None:
        for spec in specs:
            Group(self._center, self, spec)

    def Destroy_Task(self) -> None:
        self._center.switches.remove(self)
        self._center.groups = [
            g for g in self._center.groups if g.config.distributedVirtualSwitch is not self
        ]
        for host in self._center.hosts:
            proxies = host.network.proxySwitch
            host.network.proxySwitch = [p for p in proxies if p.dvsName != self.name]


class Center:
    """A datacenter with two hosts: places, session and reader of properties."""

    def __init__(self) -> None:
        self.hosts = [Host("e1"), Host("e2")]
        self.switches: list[DistributedSwitch] = []
        self.groups: list[Group] = []
        self.network: list[Any] = []
        self.hostFolder = self.vmFolder = self.networkFolder = self.datacenter = self
        self.vcenter = Space(server="vc")
        about = Space(instanceUuid="0a-1")
        self.content = Space(about=about, viewManager=self, propertyCollector=self)

    def call(self, _what: str, work: Callable[[], Any]) -> Any:
        return work()

    wait = call

    def CreateDVS_Task(self, spec: Any) -> None:
        DistributedSwitch(self, spec.configSpec)

    def CreateContainerView(self, **_words: Any) -> Any:
        return View("view")

    def RetrievePropertiesEx(self, specs: list[Any], _options: Any) -> Any:
        found = self._properties(specs[0].propSet[0].type).items()
        objects = [
            Space(obj=ref, missingSet=[], propSet=[Space(name=n, val=v) for n, v in values.items()])
            for ref, values in found
        ]
        return Space(objects=objects, token=None)

    def _properties(self, kind: Any) -> dict[Any, Any]:
        if kind is vim.HostSystem:
            return {h: {"name": h.name, "config.network": h.network} for h in self.hosts}
        if kind is vim.DistributedVirtualSwitch:
            name, text = "name", "summary.description"
            return {s: {name: s.name, text: s.description} for s in self.switches}
        assert kind is vim.dvs.DistributedVirtualPortgroup
        return {g: {"name": g.config.name, "config": g.config} for g in self.groups}

    def host(self, name: str) -> Host:
        return next(host for host in self.hosts if host.name == name)

    def group_names(self) -> dict[str, str]:
        return {str(id(group)): group.config.name for group in self.groups}

    def network_names(self) -> set[str]:
        standard = {g.spec.name for host in self.hosts for g in host.network.portgroup}
        return standard | {*self.group_names().values()}

    def forget_networks(self) -> None:
        """Nothing is kept."""


@pytest.fixture
def center() -> Center:
    return Center()


NEAR = "{name: near, kind: standard, nics: [vmnic1], port_groups: [{name: lan, vlan: 7}]}"
FAR = "{name: far, kind: distributed, nics: [vmnic2], mtu: 9000, port_groups: [{name: rdma}]}"


def spec_of(*switches: str) -> VsphereSpec:
    spec = parse_spec(
        "version: 1\nname: c\nbackend: vsphere\nvcenter: {server: vc, user: root}\n"
        f"switches: [{', '.join(switches)}]\nmachine: {{template: t}}\nhosts:\n"
        "- {name: h1, esxi: e1, nodes: [{name: n1}]}\n- {name: h2, esxi: e2, nodes: [{name: n2}]}\n"
    )
    assert isinstance(spec, VsphereSpec)
    return spec


def switches(center: Center, spec: VsphereSpec, directory: Path) -> Switches:
    made: Any = center
    return Switches(made, made, spec, directory)


def raised(center: Center, spec: VsphereSpec, directory: Path) -> dict[str, VirtualSwitch]:
    """Make the switches of a spec as `up` does, and read them."""
    assert switches(center, spec, directory).problems() == []
    for switch in spec.switches:
        switches(center, spec, directory).settle(switch.name)
    switches(center, spec, directory).trim(keep=True)
    found, notes = switches(center, spec, directory).observe()
    assert notes == []
    return found


def wanted(spec: VsphereSpec) -> dict[str, VirtualSwitch]:
    found = {r.key.name: r.values for r in desired(spec, Facts()).resources}
    return {name: values for name, values in found.items() if isinstance(values, VirtualSwitch)}


def texts(found: dict[str, VirtualSwitch]) -> dict[str, dict[str, str]]:
    return {name: dict(switch.attributes) for name, switch in found.items()}


MOVED = NEAR.replace("vmnic1", "vmnic2").replace("lan, vlan: 7", "lan, vlan: 4095")


@pytest.mark.parametrize(
    "steps",
    [
        [[NEAR, FAR]],
        [[NEAR, FAR], [NEAR], [FAR.replace("vmnic2", "vmnic1")]],
        [[NEAR, FAR], [MOVED, FAR.replace("vmnic2", "vmnic1").replace("9000", "1500")]],
        [[NEAR, FAR], [MOVED.replace("{name: lan", "{name: x}, {name: lan")], [NEAR]],
        [[NEAR], [NEAR.replace("standard", "distributed")], [NEAR]],
        [[NEAR, FAR], [NEAR.replace("kind", "esxi: [e1], kind"), FAR.replace("rdma", "other")]],
    ],
)
def test_switches_become_those_of_each_spec_and_leave_nothing(
    center: Center, tmp_path: Path, steps: list[list[str]]
) -> None:
    for step in steps:
        spec = spec_of(*step)
        assert texts(raised(center, spec, tmp_path)) == texts(wanted(spec))
        assert texts(raised(center, spec, tmp_path)) == texts(wanted(spec))
    switches(center, spec_of(), tmp_path).trim(keep=False)
    assert center.network_names() == set()
    assert center.switches == []
    assert [host.network.vswitch for host in center.hosts] == [[], []]
    assert list(tmp_path.iterdir()) == []


def test_hosts_that_differ_are_shown_one_by_one(center: Center, tmp_path: Path) -> None:
    spec = spec_of(NEAR)
    raised(center, spec, tmp_path)
    there = center.host("e2").network.vswitch[0].spec
    there.mtu = 9000
    center.host("e2").UpdateVirtualSwitch("near", there)
    found = texts(switches(center, spec, tmp_path).observe()[0])["near"]
    assert (found["mtu"], found["nics"]) == ("e1: 1500; e2: 9000", "vmnic1")


def test_obstacles_of_other_owners_are_reported_together(center: Center, tmp_path: Path) -> None:
    host = center.host("e1")
    bridge = vim.host.VirtualSwitch.BondBridge(nicDevice=["vmnic1"])
    host.AddVirtualSwitch("theirs", vim.host.VirtualSwitch.Specification(numPorts=8, bridge=bridge))
    group = vim.host.PortGroup.Specification(
        name="rdma", vlanId=0, vswitchName="theirs", policy=vim.host.NetworkPolicy()
    )
    host.AddPortGroup(group)
    spec = spec_of(NEAR, FAR.replace("vmnic2", "vmnic9"))
    said = [what for what, _ in switches(center, spec, tmp_path).problems()]
    for text in (
        "switch near: vmnic1 of e1 is an uplink of theirs",
        "rdma of distributed switch far: the datacenter has a network of that name",
        "switch far: e1 has no vmnic9",
        "switch far: e2 has no vmnic9",
    ):
        assert any(text in what for what in said)
    assert center.switches == []


def test_a_switch_with_groups_of_another_owner_stays_with_its_record(
    center: Center, tmp_path: Path
) -> None:
    spec = spec_of(NEAR, FAR)
    raised(center, spec, tmp_path)
    group = vim.host.PortGroup.Specification(
        name="theirs", vlanId=0, vswitchName="near", policy=vim.host.NetworkPolicy()
    )
    center.host("e2").AddPortGroup(group)
    with pytest.raises(BackendError, match="near of e2 has port groups that are not ours: theirs"):
        switches(center, spec, tmp_path).trim(keep=False)
    assert center.switches == []
    assert center.host("e1").network.vswitch == []
    center.host("e2").RemovePortGroup("theirs")
    switches(center, spec, tmp_path).trim(keep=False)
    assert list(tmp_path.iterdir()) == []


def test_a_host_without_an_answer_keeps_its_switch_and_a_lost_host_is_reported(
    center: Center, tmp_path: Path
) -> None:
    spec = spec_of(NEAR)
    raised(center, spec, tmp_path)
    host = center.host("e2")
    host.network, network = None, host.network
    with pytest.raises(BackendError, match="near of e2 stays: the host does not answer"):
        switches(center, spec, tmp_path).trim(keep=False)
    host.network = network
    center.hosts.remove(host)
    _, notes = switches(center, spec, tmp_path).observe()
    assert [note.partition(":")[0] for note in notes] == ["switch near of e2"]
    switches(center, spec, tmp_path).trim(keep=False)
    assert list(tmp_path.iterdir()) == []
