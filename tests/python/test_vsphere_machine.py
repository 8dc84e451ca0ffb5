# SPDX-License-Identifier: Apache-2.0
"""A machine in vCenter as values of a plan, and the requests that make it as wanted."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from pyVmomi import vim

from nearmetal.cluster.backends.vsphere.machine import (
    DEVICES,
    P2P,
    clone_spec,
    config_spec,
    customization,
    values_of,
)
from nearmetal.cluster.backends.vsphere.marks import MARK, MARKED, mark_of, mark_option
from nearmetal.cluster.backends.vsphere.plan import VsphereMachine, differences
from nearmetal.cluster.backends.vsphere.spec import VsphereSpec
from nearmetal.cluster.registration import desired
from nearmetal.cluster.resource import Facts
from nearmetal.cluster.spec import parse_spec

TEXT = """\
version: 1
name: c
backend: vsphere
vcenter: {server: vc, user: root}
rules: [{name: r, kind: together, nodes: [n1, n2]}]
machine:
  template: t
  vcpus: 4
  memory: 8 GiB
  memory_reservation: full
  cpu_reservation: full
  cpu_shares: 4000
  affinity: [2, 3]
  numa: [0]
  mmio: 64 GiB
  secure_boot: true
  adapters: [{kind: vmxnet3, port_group: pg}]
  guest: {address: 10.0.0.5-10.0.0.6/24, gateway: 10.0.0.1, domain: x.org}
hosts: [{name: h1, esxi: e1, nodes: [{name: n1, slots: 4}, {name: n2, resource_pool: a/b}]}]
"""
CARD = vim.vm.device.VirtualVmxnet3(
    key=1, backing=vim.vm.device.VirtualEthernetCard.NetworkBackingInfo(deviceName="pg")
)
MHZ = 2000


def wanted() -> dict[str, VsphereMachine]:
    spec = parse_spec(TEXT)
    assert isinstance(spec, VsphereSpec)
    found = {r.key.name: r.values for r in desired(spec, Facts()).resources}
    return {name: v for name, v in found.items() if isinstance(v, VsphereMachine)}


class Places:
    """Places of a vCenter, each by its name."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_words: {"mhz": MHZ, "group_names": {}}.get(name)


def configured(machine: VsphereMachine) -> Any:
    """Return the request for a machine whose template has one processor and the card."""
    now = {"config.hardware.numCPU": 1, "config.hardware.memoryMB": 64, DEVICES: [CARD]}
    return config_spec(cast("Any", Places()), now, machine)


def properties(machine: VsphereMachine, **more: Any) -> dict[str, Any]:
    """Return a machine in vCenter after the request, as its properties have it."""
    spec = configured(machine)
    mark = mark_option("c", "n1", machine, "made")
    return {
        "name": machine.vm,
        "config.extraConfig": [*spec.extraConfig, mark],
        "runtime.powerState": "poweredOn",
        "config.version": "vmx-13",
        "config.hardware.numCPU": spec.numCPUs,
        "config.hardware.numCoresPerSocket": 1,
        "config.hardware.memoryMB": spec.memoryMB,
        "config.cpuAllocation": spec.cpuAllocation,
        "config.memoryAllocation": spec.memoryAllocation,
        "config.memoryReservationLockedToMax": spec.memoryReservationLockedToMax,
        "config.latencySensitivity": spec.latencySensitivity,
        "config.cpuAffinity": spec.cpuAffinity,
        "config.bootOptions": spec.bootOptions,
        "config.files.vmPathName": "[ds] n1/n1.vmx",
        DEVICES: [CARD],
    } | more


def read(machine: VsphereMachine | None, found: dict[str, Any], **more: Any) -> VsphereMachine:
    places: dict[str, Any] = {"esxi": "e1", "pool": "b", "rules": ("r:together",)} | more
    return values_of(found, machine, mhz=MHZ, groups={}, **places)


def test_a_machine_that_is_made_as_wanted_has_the_values_of_the_plan() -> None:
    for machine in wanted().values():
        now = read(machine, properties(machine))
        assert differences(machine, now) == set()
        assert now.attributes == machine.attributes
        assert now == machine


def test_every_change_by_hand_is_a_difference() -> None:
    machine = wanted()["n1"]
    off = vim.ResourceAllocationInfo(reservation=100, shares=vim.SharesInfo(level="low", shares=0))
    for change, name in (
        ({"runtime.powerState": "poweredOff"}, "power"),
        ({"config.hardware.numCPU": 2}, "vcpus"),
        ({"config.hardware.memoryMB": 64}, "memory"),
        ({"config.memoryReservationLockedToMax": False}, "memory_reservation"),
        ({"config.cpuAffinity": None}, "affinity"),
        ({"config.bootOptions": vim.vm.BootOptions()}, "secure_boot"),
        ({DEVICES: []}, "adapters"),
        ({"name": "other"}, "vm"),
    ):
        now = read(machine, properties(machine) | change)
        assert differences(machine, now) == {name}
    now = read(machine, properties(machine) | {"config.cpuAllocation": off}, esxi="e2", rules=())
    assert differences(machine, now) == {"cpu_reservation", "cpu_shares", "esxi", "rules"}
    assert (now.cpu_reservation, now.cpu_shares) == ("100", "low")


def test_devices_reach_each_other_by_two_settings() -> None:
    """NVIDIA asks for both; a machine with one of them is neither way as wanted."""
    for wish in (True, False):
        machine = wanted()["n1"].model_copy(update={"p2p": wish})
        found = properties(machine)
        settings = {o.key: o.value for o in found["config.extraConfig"]}
        assert {settings[key] for key in P2P} == {"TRUE" if wish else ""}
        assert read(machine, found).p2p is wish
        half = [o for o in found["config.extraConfig"] if o.key not in P2P]
        half.append(vim.option.OptionValue(key=P2P[0], value="TRUE"))
        assert read(machine, found | {"config.extraConfig": half}).p2p is not wish


def test_a_newer_virtual_hardware_version_is_enough() -> None:
    for least, shown in ((11, 11), (13, 13), (19, 13)):
        machine = wanted()["n1"].model_copy(update={"hardware": least})
        assert read(machine, properties(machine)).hardware == shown


def test_values_that_the_spec_leaves_open_are_not_compared() -> None:
    machine = wanted()["n1"].model_copy(update={"vcpus": None, "memory": None, "adapters": None})
    found = properties(machine, **{"config.hardware.numCPU": 9, DEVICES: []})
    now = read(machine, found)
    assert (now.vcpus, now.memory, now.adapters, now.datastore) == (None, None, None, None)
    assert differences(machine, now) == {"cpu_reservation"}
    assert read(None, properties(machine)).esxi is None


def test_options_and_marks_of_another_writer_are_shown_and_never_fatal() -> None:
    machine = wanted()["n1"]
    found = properties(machine)
    option = vim.option.OptionValue
    for options in (
        [option(key=MARK, value="{")],
        [option(key=MARK, value="[]")],
        [option(key=MARK, value='{"slots": "many", "guest": "{}x", "host": 7}')],
    ):
        now = read(machine, found | {"config.extraConfig": options})
        assert (now.slots, now.guest, now.mmio, now.numa) == (None, None, None, ())
        assert {*MARKED} - {"host"} <= differences(machine, now)
    changed = [o for o in found["config.extraConfig"] if "numa" not in o.key]
    now = read(
        machine,
        found | {"config.extraConfig": [*changed, option(key="numa.nodeAffinity", value="0-1")]},
    )
    assert dict(now.attributes)["numa"] == "0-1"


def test_the_mark_has_the_values_that_vcenter_does_not_keep() -> None:
    machine = wanted()["n1"]
    mark = mark_of({"config.extraConfig": [mark_option("c", "n1", machine, "begun")]})
    assert mark == {
        "cluster": "c",
        "node": "n1",
        "state": "begun",
        "uuid": "",
        "host": "h1",
        "slots": "4",
        "template": "t",
        "clone": "full",
        "guest": dict(machine.attributes)["guest"],
    }


def test_the_first_card_gets_the_address_and_the_others_ask() -> None:
    guest = wanted()["n2"].guest
    assert guest is not None
    made = customization(guest, 2)
    first, second = (mapping.adapter for mapping in made.nicSettingMap)
    assert (first.ip.ipAddress, first.subnetMask) == ("10.0.0.6", "255.255.255.0")
    assert list(first.gateway) == ["10.0.0.1"]
    assert isinstance(second.ip, vim.vm.customization.DhcpIpGenerator)
    assert (made.identity.hostName.name, made.identity.domain) == ("n2", "x.org")


def test_a_clone_goes_where_the_plan_says() -> None:
    machine = wanted()["n1"].model_copy(update={"clone": "linked"})
    mark = mark_option("c", "n1", machine, "begun")
    template = SimpleNamespace(snapshot=SimpleNamespace(currentSnapshot=None))
    spec = clone_spec(cast("Any", Places()), template, machine, mark)
    assert spec.location.diskMoveType == "createNewChildDiskBacking"
    assert [option.key for option in spec.config.extraConfig] == [MARK]


def test_a_machine_as_a_whole_has_what_its_spec_leaves_open() -> None:
    bare = wanted()["n1"].model_copy(update=dict.fromkeys(("vcpus", "memory", "adapters", "esxi")))
    found = properties(bare)
    assert read(bare, found).vcpus is None
    whole = read(bare, found, whole=True)
    assert (whole.vcpus, whole.memory, whole.esxi) == (1, 64 << 20, "e1")
    assert whole.adapters == ("vmxnet3 port_group=pg",)
    assert whole.secure_boot is True
