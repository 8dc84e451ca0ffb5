# SPDX-License-Identifier: Apache-2.0
"""Switches of clusters on a simulated vCenter: made, changed, drifted, repaired, removed, refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pyVmomi import vim

from nearmetal.cluster.apply import describe
from nearmetal.core.errors import BackendError, StateError
from tests.system.vcenter import (
    PASSWORD,
    TEMPLATE,
    Simulator,
    gone,
    networks_of,
    plan_of,
    raised,
    simulator,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from nearmetal.cluster.diff import Plan
    from nearmetal.host.vcenter.session import Session

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

MACHINE = f"""\
machine:
  template: {TEMPLATE}
  memory: 64 MiB
  adapters: [{{kind: vmxnet3, port_group: lan}}, {{kind: pvrdma, port_group: rdma, switch: far}}]
"""

STANDARD = "{name: near, kind: standard, nics: [vmnic1], port_groups: [{name: lan, vlan: 7}]}"
DISTRIBUTED = (
    "{name: far, kind: distributed, nics: [vmnic2, vmnic3], mtu: 9000, port_groups: [{name: rdma}]}"
)

HOSTS = """\
hosts:
  - {name: h0, esxi: DC0_C0_H0, nodes: [{name: n0}, {name: n1}]}
  - {name: h1, esxi: DC0_C0_H1, nodes: [{name: n2}]}
  - {name: h2, esxi: DC0_C0_H2, nodes: [{name: n3}]}
  - {name: h3, esxi: DC0_C0_H3, nodes: [{name: n4}]}
"""

ALL = [f"DC0_C0_H{i}" for i in range(4)]


@pytest.fixture
def vcenter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Simulator]:
    """Return a vCenter for one test: what a test that fails leaves there troubles no other."""
    yield from simulator(tmp_path_factory.mktemp("vcenter"))


@pytest.fixture(autouse=True)
def own(vcenter: Simulator, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    """Return a session of our own; the vCenter must be left as it was."""
    monkeypatch.setenv(PASSWORD, "pass")
    session = vcenter.session()
    before = networks_of(session.content)
    yield session
    assert networks_of(session.content) == before
    session.close()


def text_of(vcenter: Simulator, name: str, *switches: str, body: str = MACHINE + HOSTS) -> str:
    return f"{vcenter.head(name)}switches: [{', '.join(switches)}]\n{body}"


def lines(plan: Plan) -> list[str]:
    return [describe(change) for change in plan.effective]


def compute_of(content: Any) -> Any:
    return content.rootFolder.childEntity[0].hostFolder.childEntity[0]


def system_of(content: Any, number: int) -> Any:
    """Return the networks of one host, to meddle with."""
    return compute_of(content).host[number].configManager.networkSystem


def group_named(content: Any, name: str) -> Any:
    center = content.rootFolder.childEntity[0]
    return next(n for n in center.network if n.name == name)


def test_switches_from_up_to_down(vcenter: Simulator, own: Session, tmp_path: Path) -> None:
    text = text_of(vcenter, "life", STANDARD, DISTRIBUTED)
    plan = raised(text, tmp_path)
    assert lines(plan)[:3] == ["+ cluster life", "+ network near", "+ network far"]
    found: Any = networks_of(own.content)
    for host in ALL:
        assert found[host]["near"] == (1500, ["vmnic1"], [("lan", 7)])
    mtu, members, groups = found["distributed far"]
    assert mtu == 9000
    assert members == {host: ["vmnic2", "vmnic3"] for host in ALL}
    assert "rdma" in groups
    assert raised(text, tmp_path).empty

    near = STANDARD.replace("vmnic1", "vmnic1, vmnic4").replace("vlan: 7", "vlan: 4095")
    near = near.replace("}]}", "}, {name: more}], mtu: 9000}")
    far = DISTRIBUTED.replace("vmnic2, vmnic3", "vmnic3").replace("9000", "1500")
    far = far.replace("{name: rdma}", "{name: rdma, vlan: 4095}, {name: extra, vlan: 9}")
    changed = text_of(vcenter, "life", near, far)
    plan = plan_of(changed, tmp_path)
    assert [change.in_place for change in plan.effective] == [True, True]
    assert lines(plan) == [
        (
            "~ network near: mtu 1500 -> 9000, nics vmnic1 -> vmnic1,vmnic4, "
            "port_groups lan vlan 7 -> lan vlan 4095, more "
            "(in place; the network of n0, n1, n2 and 2 more stops for a while)"
        ),
        (
            "~ network far: mtu 9000 -> 1500, nics vmnic2,vmnic3 -> vmnic3, "
            "port_groups rdma -> extra vlan 9, rdma vlan 4095 "
            "(in place; the network of n0, n1, n2 and 2 more stops for a while)"
        ),
    ]
    raised(changed, tmp_path)
    assert raised(changed, tmp_path).empty
    found = networks_of(own.content)
    assert found["DC0_C0_H3"]["near"] == (9000, ["vmnic1", "vmnic4"], [("lan", 4095), ("more", 0)])
    assert found["distributed far"][0] == 1500

    drift(own)
    plan = plan_of(changed, tmp_path)
    differ = {c.key.name: {name for name, _, _ in c.differences} for c in plan.effective}
    assert differ == {
        "near": {"esxi_members", "mtu", "nics", "port_groups"},
        "far": {"mtu", "nics", "port_groups"},
        "n4": {"adapters"},
    }
    raised(changed, tmp_path)
    assert raised(changed, tmp_path).empty

    raised(text, tmp_path)
    assert raised(text, tmp_path).empty
    found = networks_of(own.content)
    assert "more" not in found["names"]
    assert "extra" not in found["names"]
    gone(text, tmp_path)
    assert not (tmp_path / "state").exists()


def drift(own: Session) -> None:
    """Change by hand: MTU, an uplink, VLANs, a port group; and take a switch from a host."""
    content = own.content
    system = system_of(content, 0)
    spec = next(s.spec for s in system.networkInfo.vswitch if s.name == "near")
    spec.mtu, spec.bridge.nicDevice = 1500, ["vmnic4"]
    system.UpdateVirtualSwitch("near", spec)
    system_of(content, 1).RemovePortGroup("more")
    group = vim.host.PortGroup.Specification(
        name="more", vlanId=12, vswitchName="near", policy=vim.host.NetworkPolicy()
    )
    system_of(content, 2).UpdatePortGroup("more", group)
    switch = next(
        s for s in content.rootFolder.childEntity[0].networkFolder.childEntity if s.name == "far"
    )
    vmware = vim.dvs.VmwareDistributedVirtualSwitch
    own.wait(
        "meddling",
        lambda: switch.ReconfigureDvs_Task(
            vmware.ConfigSpec(
                configVersion=switch.config.configVersion,
                maxMtu=2000,
                host=[
                    vim.dvs.HostMember.ConfigSpec(
                        operation="edit",
                        host=compute_of(content).host[1],
                        backing=vim.dvs.HostMember.PnicBacking(pnicSpec=[]),
                    )
                ],
            )
        ),
    )
    own.wait("meddling", group_named(content, "extra").Destroy_Task)
    # The machine of the last host hangs on it: it leaves first, and is put right, too.
    (machine,) = [vm for vm in compute_of(content).host[3].vm if vm.name == "n4"]
    remove_cards(own, machine)
    system_of(content, 3).RemoveVirtualSwitch("near")
    add_card(own, machine, "VM Network")


def remove_cards(own: Session, machine: Any) -> None:
    cards = [
        vim.vm.device.VirtualDeviceSpec(operation="remove", device=device)
        for device in machine.config.hardware.device
        if isinstance(device, vim.vm.device.VirtualEthernetCard)
    ]
    own.wait("meddling", lambda: machine.ReconfigVM_Task(vim.vm.ConfigSpec(deviceChange=cards)))


def add_card(own: Session, machine: Any, group: str) -> None:
    network = group_named(own.content, group)
    card = vim.vm.device.VirtualVmxnet3(key=-1)
    card.backing = vim.vm.device.VirtualEthernetCard.NetworkBackingInfo(
        deviceName=network.name, network=network
    )
    spec = vim.vm.device.VirtualDeviceSpec(operation="add", device=card)
    own.wait("meddling", lambda: machine.ReconfigVM_Task(vim.vm.ConfigSpec(deviceChange=[spec])))


def test_uplinks_change_hands_between_switches_of_one_cluster(
    vcenter: Simulator, own: Session, tmp_path: Path
) -> None:
    text = text_of(vcenter, "hands", STANDARD, DISTRIBUTED)
    raised(text, tmp_path)
    swapped = text.replace("nics: [vmnic1]", "nics: [vmnic2]").replace(
        "nics: [vmnic2, vmnic3]", "nics: [vmnic1]"
    )
    raised(swapped, tmp_path)
    assert raised(swapped, tmp_path).empty
    found: Any = networks_of(own.content)
    assert found["DC0_C0_H0"]["near"][1] == ["vmnic2"]
    assert found["distributed far"][1]["DC0_C0_H0"] == ["vmnic1"]
    gone(swapped, tmp_path)


def test_machines_leave_a_switch_before_it_goes(
    vcenter: Simulator, own: Session, tmp_path: Path
) -> None:
    text = text_of(vcenter, "leave", STANDARD, DISTRIBUTED)
    raised(text, tmp_path)
    other = STANDARD.replace("name: near", "name: next").replace("name: lan, vlan: 7", "name: net")
    moved = text_of(vcenter, "leave", other, DISTRIBUTED).replace("group: lan", "group: net")
    with pytest.raises(StateError, match="- network near"):
        raised(moved, tmp_path)
    plan = raised(moved, tmp_path, replace=True)
    assert lines(plan)[:2] == ["- network near", "+ network next"]
    assert {str(c.key) for c in plan.effective[2:]} == {f"node n{i}" for i in range(5)}
    assert raised(moved, tmp_path).empty
    found: Any = networks_of(own.content)
    assert set(found["DC0_C0_H0"]) == {"vSwitch0", "next"}
    none = vcenter.head("leave") + MACHINE + HOSTS
    none = none.replace("group: lan", "group: VM Network").replace(
        ", {kind: pvrdma, port_group: rdma, switch: far}", ""
    )
    assert lines(raised(none, tmp_path, replace=True))[:2] == ["- network next", "- network far"]
    assert raised(none, tmp_path).empty
    gone(none, tmp_path)


def test_hosts_join_and_leave_a_switch(vcenter: Simulator, own: Session, tmp_path: Path) -> None:
    body = f"machine: {{template: {TEMPLATE}}}\nhosts: [{{name: h, nodes: [{{name: n0}}]}}]\n"
    both = (
        STANDARD.replace("kind:", "esxi: [%s], kind:"),
        DISTRIBUTED.replace("kind:", "esxi: [%s], kind:"),
    )
    found: Any = {}
    for members in (["DC0_C0_H0", "DC0_C0_H1"], ["DC0_C0_H1", "DC0_C0_H3"]):
        hosts = ", ".join(members)
        text = text_of(vcenter, "join", *(one % hosts for one in both), body=body)
        raised(text, tmp_path)
        assert raised(text, tmp_path).empty
        found = networks_of(own.content)
        assert [host for host in ALL if "near" in found[host]] == members
        assert sorted(found["distributed far"][1]) == members
    gone(text, tmp_path)


def test_another_kind_needs_replace(vcenter: Simulator, own: Session, tmp_path: Path) -> None:
    body = MACHINE.replace(", {kind: pvrdma, port_group: rdma, switch: far}", "") + HOSTS
    text = text_of(vcenter, "kind", STANDARD, body=body)
    raised(text, tmp_path)
    other = text.replace("kind: standard", "kind: distributed")
    for there, wanted in ((text, other), (other, text)):
        with pytest.raises(StateError, match="already up under another spec"):
            raised(wanted, tmp_path)
        assert plan_of(there, tmp_path).empty
        raised(wanted, tmp_path, replace=True)
        assert raised(wanted, tmp_path).empty
        found: Any = networks_of(own.content)
        assert ("distributed near" in found) == (wanted is other)
        assert ("near" in found["DC0_C0_H0"]) == (wanted is text)
    gone(text, tmp_path)


BAD = [
    (
        "vmnic1",
        "vmnic0",
        "near: vmnic0 of DC0_C0_H0 is an uplink of vSwitch0",
        "free there: vmnic1",
    ),
    ("vmnic2", "vmnic8", "far: DC0_C0_H3 has no vmnic8", "known there: vmnic0"),
    ("name: near", "name: vSwitch0", "vSwitch0 is on DC0_C0_H0 already, and is not ours", "rename"),
    ("name: far,", "name: DVS0,", "distributed switch DVS0 is there already", "rename"),
    (
        "name: lan, vlan",
        "name: VM Network, vlan",
        "DC0_C0_H1 has one of that name on switch vSwitch0",
        "rename",
    ),
    ("name: lan, vlan", "name: DC0_DVPG0, vlan", "the datacenter has a distributed one", "rename"),
    ("name: rdma}]", "name: VM Network}]", "VM Network of distributed switch far", "rename"),
    ("kind: standard,", "kind: standard, esxi: [esx9],", "esxi 'esx9' is not there", "known here"),
]


@pytest.mark.parametrize("case", BAD, ids=[what for _, _, what, _ in BAD])
def test_what_is_in_the_way_is_told_before_anything_is_made(
    vcenter: Simulator, own: Session, tmp_path: Path, case: tuple[str, str, str, str]
) -> None:
    old, new, what, hint = case
    body = f"machine: {{template: {TEMPLATE}}}\n{HOSTS}"
    text = text_of(vcenter, "bad", STANDARD, DISTRIBUTED, body=body)
    before = networks_of(own.content)
    with pytest.raises(BackendError, match=what) as caught:
        raised(text.replace(old, new), tmp_path)
    assert hint in caught.value.message
    assert networks_of(own.content) == before
    assert not (tmp_path / "state" / "clusters" / "bad").exists()


def test_everything_in_the_way_is_told_at_once(vcenter: Simulator, tmp_path: Path) -> None:
    text = text_of(vcenter, "bad", STANDARD, DISTRIBUTED)
    text = text.replace("vmnic1", "vmnic0").replace("vmnic2", "vmnic9")
    with pytest.raises(BackendError) as caught:
        raised(text, tmp_path)
    assert caught.value.message.count("is an uplink of vSwitch0") == 4
    assert caught.value.message.count("has no vmnic9") == 4


@pytest.mark.parametrize(
    ("switch", "what"),
    [
        (STANDARD.replace("vmnic1]", "vmnic7], mtu: 9000"), "making switch near of DC0_C0_H0"),
        (DISTRIBUTED.replace("vmnic3", "vmnic7"), "joining switch far on DC0_C0_H0: DC0_C0_H0"),
    ],
)
def test_an_mtu_that_an_uplink_does_not_carry_is_refused_and_undone(
    vcenter: Simulator, tmp_path: Path, switch: str, what: str
) -> None:
    body = f"machine: {{template: {TEMPLATE}}}\n{HOSTS}"
    text = text_of(vcenter, "large", switch, body=body)
    with pytest.raises(BackendError) as caught:
        raised(text, tmp_path)
    assert f"{what}: PlatformConfigFault: vmnic7 carries at most 1500 bytes" in caught.value.message
    assert "an uplink may not carry the switch's mtu" in caught.value.hint
    smaller = text.replace("mtu: 9000", "mtu: 1500")
    raised(smaller, tmp_path)
    with pytest.raises(BackendError, match="PlatformConfigFault"):
        raised(text, tmp_path)
    gone(text, tmp_path)


@pytest.mark.parametrize("group", ["lan", "rdma"])
def test_a_port_group_on_which_a_foreign_machine_hangs_stays(
    vcenter: Simulator, own: Session, tmp_path: Path, group: str
) -> None:
    text = text_of(vcenter, "guest", STANDARD, DISTRIBUTED)
    raised(text, tmp_path)
    content = own.content
    folder = content.rootFolder.childEntity[0].vmFolder
    template = next(v for v in folder.childEntity if v.name == TEMPLATE)
    compute = compute_of(content)
    place = vim.vm.RelocateSpec(pool=compute.resourcePool, host=compute.host[2])
    clone = vim.vm.CloneSpec(location=place, powerOn=False, template=False)
    stranger = own.wait("meddling", lambda: template.CloneVM_Task(folder, "stranger", clone))
    remove_cards(own, stranger)
    add_card(own, stranger, group)
    fewer = text.replace(f"name: {group}", "name: other", 1).replace(
        f"port_group: {group}", "port_group: other"
    )
    for work in (lambda: raised(fewer, tmp_path), lambda: gone(text, tmp_path)):
        with pytest.raises(BackendError, match="stays: machines use it: stranger") as caught:
            work()
        assert "another port group" in caught.value.hint
        assert group in networks_of(content)["names"]  # type: ignore[operator]
    assert [d.backing for d in stranger.config.hardware.device if hasattr(d, "macAddress")]
    own.wait("meddling", stranger.Destroy_Task)
    gone(text, tmp_path)
    assert not (tmp_path / "state").exists()


def test_a_port_group_that_others_put_on_our_switch_keeps_it(
    vcenter: Simulator, own: Session, tmp_path: Path
) -> None:
    text = text_of(vcenter, "shared", STANDARD, DISTRIBUTED)
    raised(text, tmp_path)
    content = own.content
    spec = vim.host.PortGroup.Specification(
        name="theirs", vlanId=0, vswitchName="near", policy=vim.host.NetworkPolicy()
    )
    system_of(content, 1).AddPortGroup(spec)
    switch = next(
        s for s in content.rootFolder.childEntity[0].networkFolder.childEntity if s.name == "far"
    )
    group = vim.dvs.DistributedVirtualPortgroup.ConfigSpec(
        name="theirs too", type="earlyBinding", numPorts=1
    )
    own.wait("meddling", lambda: switch.AddDVPortgroup_Task([group]))
    assert raised(text, tmp_path).empty
    with pytest.raises(BackendError) as caught:
        gone(text, tmp_path)
    told = caught.value.message
    assert "switch near of DC0_C0_H1 has port groups that are not ours: theirs" in told
    assert "switch far has port groups that are not ours: theirs too" in told
    found: Any = networks_of(content)
    assert "near" not in found["DC0_C0_H0"]
    assert found["DC0_C0_H1"]["near"][2] == [("theirs", 0)]
    system_of(content, 1).RemovePortGroup("theirs")
    own.wait("meddling", group_named(content, "theirs too").Destroy_Task)
    gone(text, tmp_path)


def test_two_clusters_do_not_take_each_others_switches(vcenter: Simulator, tmp_path: Path) -> None:
    one = text_of(vcenter, "one", STANDARD, DISTRIBUTED)
    raised(one, tmp_path)
    other = text_of(vcenter, "other", STANDARD, DISTRIBUTED)
    with pytest.raises(BackendError, match="near is on DC0_C0_H0 already, and is not ours"):
        raised(other, tmp_path)
    gone(other, tmp_path)
    assert raised(one, tmp_path).empty
    gone(one, tmp_path)


@pytest.mark.parametrize("text", ["{", "[]", '{"near": {"h": [1]}}', '{"near": 3}'])
def test_a_record_that_cannot_be_read_is_told(
    vcenter: Simulator, tmp_path: Path, text: str
) -> None:
    directory = tmp_path / "state" / "clusters" / "torn"
    directory.mkdir(parents=True)
    (directory / "switches.json").write_text(text)
    with pytest.raises(BackendError, match=r"switches\.json cannot be read") as caught:
        plan_of(text_of(vcenter, "torn", STANDARD, DISTRIBUTED), tmp_path)
    assert "then this file" in caught.value.hint
